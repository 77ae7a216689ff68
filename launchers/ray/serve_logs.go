package ray

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/launchers/internal/stall"
)

// The logs of an application are files on the nodes of its replicas, which the
// dashboard hands on. What its API can do, in Ray 2.60.0
// (ray/dashboard/modules/log/log_agent.py, state/state_head.py):
//
//   - /api/v0/logs/file and /stream take the number of last lines to begin with, -1
//     for all, and 0 means 1000. Neither takes an offset, nor tells one, so that
//     where a broken stream goes on has to be found in the text.
//   - A stream reads an open file for ever: it ends neither with the process, nor
//     when the file is rotated (NAME.log becomes NAME.log.1, five of them at most,
//     512 MiB each), and then has nothing more to say.
//   - It answers 100 requests at the same time, and each stream is one.
//
// So a log is caught up with (file) before it is streamed, again after each break
// and when it is silent for long, and the place is where the lines that were shown
// last are found. Lines that repeat each other without end or time can't be told
// apart: of those that came while the connection was broken some may be missed.

// ServeTail is how the logs of replicas are shown. Line and Note may be called at
// the same time, but Line for one log only in turn.
type ServeTail struct {
	Process string                        // a deployment or one of its judges; "controller" is what decides for all applications of the cluster; "": every deployment
	Lines   int                           // begin with so many of each log's last lines; -1 for all that its node keeps
	Logs    func(names []string)          // is told which logs there are, whenever they are looked at
	Line    func(name, line string) error // without the line's end
	Note    func(name string, err error)  // a log that can't be read for some time, once; it is tried again
	Lost    func(err error) error         // as of [Session.Follow]
}

// serveLog is a file of a replica, on its node.
type serveLog struct {
	name string // of the deployment, the replica, and the file where that is not Ray Serve's own
	node string
	file string
}

// errNoReplicas says that the cluster has the run's application no more.
type errNoReplicas struct{ run string }

func (e *errNoReplicas) Error() string {
	return e.run + " has no replicas any more; their logs lie on the nodes, in logs/serve of Ray's session"
}

// serveLogs finds the files of the application's replicas: what Ray Serve logs of
// each, and what its process prints (out, err). An application without replicas has
// none but the controller's.
func (s *ServeSession) serveLogs(ctx context.Context, process string, k *knownLogs) ([]serveLog, error) {
	all, err := s.c.served(ctx)
	if err != nil {
		return nil, err
	}
	controller := serveLog{"controller", all.Head.Node, strings.TrimPrefix(all.Head.Log, "/")}
	if process == "controller" && all.Head.Node != "" {
		return []serveLog{controller}, nil
	}
	a, there := all.Applications[s.serving.Application]
	if !there || a.run() != s.run.ID && a.Status != "DELETING" { // which has no config any more
		return nil, &errNoReplicas{s.run.ID}
	}
	k.unlisted = map[string]error{}
	var out []serveLog
	var names []string
	if ids := modelIDs(a.Config); len(ids) > 0 {
		k.judges = ids
	}
	for _, name := range slices.Sorted(maps.Keys(a.Deployments)) {
		names = append(names, name)
		if process != "" && process != name && process != k.judges[name] {
			continue
		}
		for _, r := range a.Deployments[name].Replicas {
			if r.Node == "" {
				continue // it has no process yet
			}
			label := name + " " + r.ID
			if log := strings.TrimPrefix(r.Log, "/"); log != "" {
				out = append(out, serveLog{label, r.Node, log})
			}
			if r.Worker == "" {
				continue
			}
			if len(k.files[r.Worker]) == 0 && k.unlisted[r.Node] == nil {
				found, err := s.files(ctx, r.Node, "worker-"+r.Worker+"*")
				var no *answered
				switch {
				case errors.As(err, &no): // a node that is gone hides no other
					k.unlisted[r.Node] = err
				case err != nil:
					return nil, err
				}
				k.files[r.Worker] = found
			}
			for _, f := range k.files[r.Worker] {
				if kind := f[strings.LastIndexByte(f, '.')+1:]; kind == "out" || kind == "err" { // others are older parts of these
					out = append(out, serveLog{label + " " + kind, r.Node, f})
				}
			}
		}
	}
	switch {
	case process != "" && !slices.Contains(names, process) && !slices.Contains(slices.Collect(maps.Values(k.judges)), process) && a.run() == s.run.ID:
		hint := diag.DidYouMean(process, append(slices.Sorted(maps.Values(k.judges)), names...))
		if hint == "" {
			hint = "there are " + strings.Join(append(names, "controller"), ", ")
		}
		return nil, &ErrNoProcess{fmt.Sprintf("%s has no process %s; %s", s.run.ID, process, hint)}
	case len(out) == 0 && all.Head.Node != "":
		return []serveLog{controller}, nil // what failed before a replica had a process
	}
	return out, nil
}

// ErrNoProcess is the error for a name that no deployment has.
type ErrNoProcess struct{ what string }

func (e *ErrNoProcess) Error() string { return e.what }

// knownLogs is what one look finds for the next.
type knownLogs struct {
	files    map[string][]string // by worker
	judges   map[string]string   // by deployment: an application that is being removed has no config
	unlisted map[string]error    // nodes that did not say in this look which logs they have
}

// listing is for how many seconds Ray waits for the answer of a node, which is less
// than it is waited for itself.
const listing = "10"

// files lists logs of a node.
func (s *ServeSession) files(ctx context.Context, node, glob string) ([]string, error) {
	var found struct {
		Data struct {
			Result map[string][]string `json:"result"`
		} `json:"data"`
	}
	q := url.Values{"node_id": {node}, "glob": {glob}, "timeout": {listing}}
	if err := s.c.do(ctx, http.MethodGet, "/api/v0/logs?"+q.Encode(), nil, &found); err != nil {
		return nil, err
	}
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(found.Data.Result)) {
		out = append(out, found.Data.Result[kind]...)
	}
	slices.Sort(out)
	return out, nil
}

// Logs shows the end of each log of the application's replicas.
func (s *ServeSession) Logs(ctx context.Context, t ServeTail) error {
	known := &knownLogs{files: map[string][]string{}}
	list, err := s.serveLogs(ctx, t.Process, known)
	if err != nil {
		return err
	}
	t.Logs(logNames(list))
	var errs []error
	for _, node := range slices.Sorted(maps.Keys(known.unlisted)) {
		errs = append(errs, fmt.Errorf("the logs of node %s: %w", node, known.unlisted[node]))
	}
	for _, l := range list {
		_, err := s.reader(l, t, nil).catchUp(ctx, true)
		var w *writeError
		switch {
		case errors.As(err, &w):
			return w.err
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // one node that is gone hides no other
			errs = append(errs, fmt.Errorf("the log of %s: %w", l.name, err))
		}
	}
	return errors.Join(errs...)
}

func logNames(list []serveLog) []string {
	var out []string
	for _, l := range list {
		out = append(out, l.name)
	}
	return out
}

const (
	// mostStreams leaves some of the requests that Ray answers at the same time to
	// others. What is beyond is caught up with from time to time.
	mostStreams = 64
	// goneFor is for how many looks a replica, or the application, must not have been
	// there until that is believed: a process that ends has last words, and a
	// dashboard that starts may know nothing of Ray Serve yet.
	goneFor = 3
)

// FollowLogs is [ServeSession.Logs] that goes on until the application is gone, or
// ctx is done. Replicas that come later join, one that goes ends. A dashboard that
// goes away is waited for; what can be done for each line then stands above.
func (s *ServeSession) FollowLogs(ctx context.Context, t ServeTail) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel() // before the readers are waited for
	failed := make(chan error, 1)
	places := make(chan struct{}, mostStreams)
	known := &knownLogs{files: map[string][]string{}}
	type following struct {
		r      *serveReader
		gone   chan struct{} // is closed when nothing more will come
		over   chan struct{} // is closed when all of it was shown
		missed int           // looks that have not seen it
	}
	start := func(f *following) {
		f.gone, f.over, f.missed = make(chan struct{}), make(chan struct{}), 0
		gone, over := f.gone, f.over
		all.Go(func() {
			defer close(over)
			if err := f.r.follow(ctx, gone); err != nil && ctx.Err() == nil {
				select {
				case failed <- err:
				default: // the first is enough
				}
			}
		})
	}
	followed := map[serveLog]*following{}
	away, missing := false, 0
	for first := true; ; first = false {
		list, err := s.serveLogs(ctx, t.Process, known)
		var none *errNoReplicas
		var denied *Denied
		var no *ErrNoProcess
		missing++
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && first, errors.As(err, &denied):
			return err
		case errors.As(err, &none):
			err = nil
		default:
			missing = 0
		}
		if errors.As(err, &no) { // of a deployment that is made anew
			err = nil
		}
		if (err != nil) != away {
			away = err != nil
			if err := t.Lost(err); err != nil {
				return err
			}
		}
		if !first && t.Process != "controller" { // which stands in only for an application without replicas yet
			list = slices.DeleteFunc(list, func(l serveLog) bool { return l.name == "controller" && followed[l] == nil })
		}
		if len(list) > 0 {
			t.Logs(logNames(list))
		}
		for _, l := range list {
			f := followed[l]
			switch {
			case f == nil:
				f = &following{r: s.reader(l, t, places)}
				followed[l] = f
				start(f)
			case f.missed >= goneFor: // a controller that is started again finds its replicas one by one
				select {
				case <-f.over:
					start(f)
				default: // at the next look
				}
			default:
				f.missed = 0
			}
		}
		for l, f := range followed {
			if err != nil || slices.Contains(list, l) {
				continue
			}
			if f.missed++; f.missed == goneFor {
				close(f.gone)
			}
		}
		if missing == goneFor {
			all.Wait()
			select {
			case err := <-failed:
				return err
			default:
				return nil
			}
		}
		select {
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * wait):
		}
	}
}

// serveReader shows one log.
type serveReader struct {
	s      *ServeSession
	l      serveLog
	t      ServeTail
	places chan struct{} // of streams
	begun  bool          // the first lines were shown
	shown  seam
}

func (s *ServeSession) reader(l serveLog, t ServeTail, places chan struct{}) *serveReader {
	return &serveReader{s: s, l: l, t: t, places: places, shown: seam{seed: maphash.MakeSeed()}}
}

// noteAfter is for how long a log can't be read until that is told: an agent
// starts after its dashboard.
var noteAfter = 15 * time.Second // shorter in a test

// follow goes on with a log until gone, and then shows the rest.
func (r *serveReader) follow(ctx context.Context, gone <-chan struct{}) error {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-during.Done():
		case <-gone:
			cancel() // Ray does not end the stream
		}
	}()
	var failing time.Time
	noted := false
	for {
		asked := time.Now()
		have, err := r.catchUp(during, false)
		pause := 2 * wait
		if err == nil {
			failing = time.Time{}
			select {
			case r.places <- struct{}{}:
				err = r.stream(during, have)
				<-r.places
			default:
				pause = 10 * wait
			}
		} else if failing.IsZero() {
			failing = asked
		}
		var w *writeError
		var denied *Denied
		var no *answered
		switch {
		case errors.As(err, &w):
			return w.err
		case ctx.Err() != nil:
			return ctx.Err()
		case during.Err() != nil:
			if _, err := r.catchUp(ctx, true); errors.As(err, &w) {
				return w.err
			}
			return nil // the node may be gone, too
		case errors.As(err, &denied):
			return err
		case (errors.As(err, &no) || errors.Is(err, errStalled)) && !noted && !failing.IsZero() && time.Since(failing) > noteAfter:
			noted = true
			r.t.Note(r.l.name, err)
		}
		select {
		case <-during.Done():
		case <-time.After(pause):
		}
	}
}

// catchLines is how many lines are asked for to find those that were shown last;
// catchMost from how many on it is all of them.
const (
	catchLines = 1000
	catchMost  = 50_000
)

// begin shows the last lines of a log, and returns how many whole lines its file
// has at least. At the end a last line without an end is one of them.
func (r *serveReader) begin(ctx context.Context, end bool) (have int, err error) {
	ask := r.t.Lines
	if ask >= 0 {
		ask = max(ask, seamLeast) // more are passed over
	}
	lines, half, err := r.read(ctx, r.l.file, ask)
	if err != nil {
		return 0, err
	}
	have = len(lines)
	if ask < 0 || counted(lines, half) < r.t.Lines {
		if lines, err = r.before(ctx, lines); err != nil {
			return 0, err
		}
	}
	if !end || r.t.Lines == 0 {
		half = ""
	}
	from := 0
	if r.t.Lines >= 0 {
		from = max(0, min(counted(lines, half)-r.t.Lines, len(lines)))
	}
	r.begun = true
	r.shown.add(lines[:from])
	return have, r.show(lines[from:], half)
}

// counted is how many lines Ray takes it for.
func counted(lines []string, half string) int {
	if half != "" {
		return len(lines) + 1
	}
	return len(lines)
}

// catchUp is begin, and after that shows what a log has and was not shown.
func (r *serveReader) catchUp(ctx context.Context, end bool) (have int, err error) {
	if !r.begun {
		return r.begin(ctx, end)
	}
	ask, at := catchLines, 0
	if len(r.shown.last) == 0 { // it was empty
		ask = -1
	}
	for {
		lines, half, err := r.read(ctx, r.l.file, ask)
		if err != nil {
			return 0, err
		}
		have = len(lines)
		if len(r.shown.last) > 0 {
			at = r.shown.find(lines, seamLeast)
			switch {
			case at >= 0:
			case ask >= 0 && counted(lines, half) >= ask:
				if ask *= 16; ask > catchMost {
					ask = -1
				}
				continue
			default: // it was rotated
				if lines, err = r.before(ctx, lines); err != nil {
					return 0, err
				}
				at = max(0, r.shown.find(lines, seamLeast))
			}
		}
		if !end {
			half = ""
		}
		return have, r.show(lines[at:], half)
	}
}

// before puts the lines of the parts that were rotated away before those of the
// file, as many as are needed.
func (r *serveReader) before(ctx context.Context, lines []string) ([]string, error) {
	files, err := r.s.files(ctx, r.l.node, r.l.file+".*")
	if err != nil {
		return nil, err
	}
	parts := map[int]string{}
	for _, f := range files {
		if n, err := strconv.Atoi(strings.TrimPrefix(f, r.l.file+".")); err == nil {
			parts[n] = f
		}
	}
	for _, n := range slices.Sorted(maps.Keys(parts)) {
		older, _, err := r.read(ctx, parts[n], -1)
		if err != nil {
			return nil, err
		}
		lines = append(older, lines...)
		if r.begun && r.shown.find(lines, seamLeast) >= 0 || !r.begun && r.t.Lines >= 0 && len(lines) >= r.t.Lines {
			break
		}
	}
	return lines, nil
}

// show shows lines, and one without an end unless it is "": should the log go on
// nevertheless, that is looked for as a whole.
func (r *serveReader) show(lines []string, half string) error {
	r.shown.add(lines)
	if half != "" {
		lines = append(slices.Clip(lines), half)
	}
	for _, l := range lines {
		if err := r.t.Line(r.l.name, l); err != nil {
			return &writeError{err}
		}
	}
	return nil
}

// read has the last n lines of a file, and what is after the last line's end.
func (r *serveReader) read(ctx context.Context, file string, n int) (lines []string, half string, err error) {
	err = r.s.log(ctx, r.l.node, file, n, false, func(line string, whole bool) error {
		if whole {
			lines = append(lines, line)
		} else {
			half = line
		}
		return nil
	})
	return lines, half, err
}

// streamLines is how many lines a stream begins with at most: what came since the
// log was caught up with is within them, mostly.
const streamLines = 200

// errApart says that a stream begins after the lines that were shown last.
var errApart = errors.New("more was added in between")

// stream shows what is added to a file that has at least so many whole lines. It
// ends with the connection, when it is silent for long, or with errApart.
func (r *serveReader) stream(ctx context.Context, have int) error {
	n := min(have, streamLines)
	var begin []string
	attached := n == 0
	ask := n
	if attached {
		ask = -1
	}
	return r.s.log(ctx, r.l.node, r.l.file, ask, true, func(line string, whole bool) error {
		switch {
		case !whole: // it comes again
			return nil
		case attached:
			return r.show([]string{line}, "")
		}
		if begin = append(begin, line); len(begin) < n {
			return nil
		}
		at := r.shown.find(begin, max(1, min(seamLeast, n/2)))
		if at < 0 {
			return errApart
		}
		attached = true
		return r.show(begin[at:], "")
	})
}

// serveSilence is for how long a stream may be silent until the log is caught up
// with: it may have been rotated.
var serveSilence = time.Minute // shorter in a test

// errSilent ends a stream.
var errSilent = errors.New("it is silent")

// log reads the lines of a file from the last n on (all of them for -1), and with
// follow those that are added.
func (s *ServeSession) log(ctx context.Context, node, file string, n int, follow bool, line func(text string, whole bool) error) error {
	media, quiet, why := "file", logStall, errStalled
	if follow {
		media, quiet, why = "stream", serveSilence, errSilent
	}
	during, awaiting, stop := stall.Watch(ctx, quiet, why)
	defer stop()
	q := url.Values{"node_id": {node}, "filename": {file}, "lines": {strconv.Itoa(n)}}
	req, err := http.NewRequestWithContext(during, http.MethodGet, s.c.base+"/api/v0/logs/"+media+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header = s.c.headers.Clone()
	gone := func(err error) error {
		if cause := context.Cause(during); cause != nil {
			err = cause
		}
		return s.c.gone(during, err)
	}
	resp, err := s.c.http.Do(req)
	if err != nil {
		return gone(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return gone(err)
		}
		return s.c.judge(resp, data, nil)
	}
	in := bufio.NewReader(awaiting(resp.Body))
	for {
		text, err := in.ReadString('\n')
		if text != "" {
			plain := colours.ReplaceAllString(strings.TrimRight(text, "\r\n"), "")
			if err := line(plain, strings.HasSuffix(text, "\n")); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return gone(err)
		}
	}
}

const (
	// seamMost is how many of the lines that were shown last are remembered.
	seamMost = 256
	// seamLeast is how many must be found again, if so many were shown: a single one
	// may be there twice.
	seamLeast = 8
)

// seam finds the place in a log up to which it was shown.
type seam struct {
	seed maphash.Seed
	last []uint64 // of the last lines that were shown, or passed over before them
}

func (s *seam) add(lines []string) {
	for _, l := range lines[max(0, len(lines)-seamMost):] {
		s.last = append(s.last, maphash.String(s.seed, l))
	}
	if len(s.last) > 4*seamMost {
		s.last = slices.Clone(s.last[len(s.last)-seamMost:])
	}
}

// find is how many of the lines were shown before, -1 if they do not go on from
// those that were shown last. At least so many of these must be among them, or all.
func (s *seam) find(lines []string, least int) int {
	last := s.last[max(0, len(s.last)-seamMost):]
	if len(last) == 0 {
		return -1
	}
	sums := make([]uint64, len(lines))
	for i, l := range lines {
		sums[i] = maphash.String(s.seed, l)
	}
	for at := len(sums); at >= min(least, len(last)); at-- {
		n := min(at, len(last))
		if slices.Equal(sums[at-n:at], last[len(last)-n:]) {
			return at
		}
	}
	return -1
}
