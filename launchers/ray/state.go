package ray

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/coder/websocket"

	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/internal/stall"
	"genrm.dev/genrm/launchers/rundir"
)

// record is what GET /api/jobs/ID answers.
type record struct {
	Status     string            `json:"status"` // PENDING, RUNNING, STOPPED, SUCCEEDED, FAILED
	Entrypoint string            `json:"entrypoint"`
	Message    string            `json:"message"`
	ErrorType  string            `json:"error_type"`
	Start      int64             `json:"start_time"` // milliseconds
	End        int64             `json:"end_time"`
	Metadata   map[string]string `json:"metadata"`
	Code       *int              `json:"driver_exit_code"` // -n after signal n
	Agent      string            `json:"driver_agent_http_address"`
}

func (r record) over() bool {
	return r.Status == "STOPPED" || r.Status == "SUCCEEDED" || r.Status == "FAILED"
}

func (c *client) job(ctx context.Context, id string) (record, error) {
	var r record
	err := c.do(ctx, http.MethodGet, "/api/jobs/"+id, nil, &r)
	if err == nil && r.Status == "" {
		err = &Unreachable{fmt.Errorf("%s does not answer as Ray's API does: the job has no status", c.base)}
	}
	return r, err
}

// Session is the access to the job of a run.
type Session struct {
	run *rundir.Run
	job Job
	c   *client
}

// Open prepares the access; it asks nothing yet. Secrets of ray.headers and the
// token are read from env; of a run that was launched from another machine the
// headers are not known, and the token is what env has. An address goes before
// the one by which the run was launched: that may be another one from here.
func Open(run *rundir.Run, address string, env []string, version string) (*Session, error) {
	s := &Session{run: run}
	if err := run.Read(JobFile, &s.job); err != nil {
		return nil, err
	}
	if address != "" {
		s.job.Address = address
	}
	p, err := readPlan(run)
	if err != nil {
		return nil, err
	}
	var block *tree.Value
	if p != nil {
		block, _ = p.Settings.Get("ray")
	}
	h, err := headers(block, bind.Getenv(env))
	if err != nil {
		return nil, err
	}
	s.c = newClient(s.job.Address, h, version)
	return s, nil
}

// Through is the access to a job whose dashboard is reached by another way than
// its own address, such as the service proxy of a Kubernetes API server. Only
// [Session.Follow] and [Session.Log] may be called.
func Through(base, id string, h http.Header, transport http.RoundTripper, version string) *Session {
	c := newClient(base, h, version)
	c.http.Transport = transport
	return &Session{job: Job{ID: id, Address: base}, c: c}
}

// Address is that of the dashboard.
func (s *Session) Address() string { return s.job.Address }

// Status is how a run is: what Ray says of its job, and how it ended once that
// was seen, even if the cluster is gone by then.
func (s *Session) Status(ctx context.Context) (*rundir.Status, error) {
	own, err := s.run.Status()
	if err != nil || own.State.Told() {
		return own, err
	}
	own.JobID = s.job.ID
	r, err := s.c.job(ctx, s.job.ID)
	var no *answered
	switch {
	case errors.As(err, &no) && no.status == http.StatusNotFound:
		if s.job.Submitted == nil {
			own.State, own.Reason = rundir.Failed, "Ray never got its job"
			code := 3
			own.ExitCode = &code
			return own, nil // not kept: a request may still be on its way
		}
		own.State, own.Reason = rundir.Unknown, "Ray has no record of the job "+s.job.ID+" any more: the cluster was started anew, or the job was deleted"
		return own, nil
	case err != nil:
		return own, err
	}
	merge(own, r)
	if own.State.Told() {
		return own, s.run.WriteStatus(own)
	}
	return own, nil
}

// merge puts a job's record into a status.
func merge(own *rundir.Status, r record) {
	own.JobState = r.Status
	own.StartedAt = at(r.Start)
	switch r.Status {
	case "PENDING":
		own.State, own.Reason = rundir.Pending, firstLine(r.Message)
	case "SUCCEEDED":
		code := 0
		own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Succeeded, "", &code, at(r.End)
	case "STOPPED":
		code := 143
		own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Stopped, "stopped", &code, at(r.End)
	case "FAILED":
		code := 3
		own.State, own.EndedAt = rundir.Failed, at(r.End)
		if r.Code != nil && *r.Code != 0 {
			code, own.Reason = DriverEnd(*r.Code)
		} else {
			own.Reason = because(r)
		}
		own.ExitCode = &code
	default: // RUNNING, and what later releases add
		own.State, own.Reason = rundir.Ready, ""
	}
}

// DriverEnd is the exit status of a run whose driver ended with n, which is not 0
// (-s after signal s), and why.
func DriverEnd(n int) (code int, reason string) {
	switch {
	case n < 0:
		return 128 - n, fmt.Sprintf("the driver was killed by signal %d", -n)
	case n == 127:
		return n, "the driver ended with status 127: a program was not found on its node"
	}
	return n, fmt.Sprintf("the driver ended with status %d", n)
}

// supervisor finds what went wrong in the first line of what Ray says of a job
// that it could not start. Source: ray/dashboard/modules/job/job_manager.py at 2.60.0.
var supervisor = regexp.MustCompile(`^Failed to start supervisor actor \S+: '(.*)'\. Full traceback:$`)

// because says why a job failed without a driver's exit status.
func because(r record) string {
	what := map[string]string{
		"RUNTIME_ENV_SETUP_FAILURE":          "its runtime environment could not be set up",
		"JOB_SUPERVISOR_ACTOR_START_FAILURE": "Ray could not start it",
		"JOB_SUPERVISOR_ACTOR_START_TIMEOUT": "Ray could not start it in time",
		"JOB_SUPERVISOR_ACTOR_DIED":          "the node of its driver, or what watches it there, died",
	}[r.ErrorType]
	said := firstLine(r.Message)
	if what == "" {
		return said
	}
	if last := lastLine(r.Message); last != said && r.ErrorType == "RUNTIME_ENV_SETUP_FAILURE" {
		said = last
	}
	if m := supervisor.FindStringSubmatch(said); m != nil {
		said = m[1]
	}
	return what + ": " + said
}

func firstLine(s string) string { l, _, _ := strings.Cut(strings.TrimSpace(s), "\n"); return l }

func at(ms int64) *time.Time {
	if ms == 0 {
		return nil
	}
	t := time.UnixMilli(ms).UTC()
	return &t
}

// ErrPending says that a job could not be stopped because Ray has not started it.
var ErrPending = errors.New("the job has not been started, and Ray cannot stop such a one (PENDING); Ray gives up by itself after 15 minutes unless RAY_JOB_START_TIMEOUT_SECONDS says otherwise: stop it again later")

// pendingGrace is how long stop waits for a pending job to start.
const pendingGrace = time.Minute

// Stop ends the job and waits until it has ended. Ray answers at once, and to a
// job that is PENDING it answers as well and does nothing: it is asked again
// once that runs. It gives up after grace.
func (s *Session) Stop(ctx context.Context, by string, grace time.Duration) (*rundir.Status, error) {
	if err := s.run.RequestStop(by); err != nil {
		return nil, err
	}
	var asked time.Time
	asking := ""
	for start := time.Now(); ; {
		r, err := s.c.job(ctx, s.job.ID)
		var no *answered
		switch {
		case errors.As(err, &no) && no.status == http.StatusNotFound:
			return s.Status(ctx)
		case err != nil:
			return nil, err
		case r.over():
			return s.Status(ctx)
		}
		if asking != r.Status || time.Since(asked) > 5*time.Second {
			if err := s.c.do(ctx, http.MethodPost, "/api/jobs/"+s.job.ID+"/stop", nil, nil); err != nil && !errors.As(err, &no) {
				return nil, err
			}
			asked, asking = time.Now(), r.Status
		}
		switch {
		case r.Status == "PENDING" && time.Since(start) > pendingGrace:
			return nil, ErrPending
		case time.Since(start) > grace:
			return nil, fmt.Errorf("job %s was asked to stop %d s ago and is %s", s.job.ID, int(grace.Seconds()), r.Status)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// reconnects is the wait between two tries to get the log, and mostFailed how
// many of them may fail for a job that has ended: its node may be gone.
const (
	reconnects = 500 * time.Millisecond
	mostFailed = 10
)

var wait = reconnects // shorter in a test

// Follow writes the job's log until the job has ended and all of its log is
// written, or ctx is done. Each connection gives the log from its first byte:
// what was written before is passed over, so that a connection that breaks loses
// and doubles nothing. lost is told of a dashboard that does not answer, once a
// break, and nil when it answers again; it may end the following by an error.
func (s *Session) Follow(ctx context.Context, out io.Writer, lost func(error) error) error {
	var done int64 // bytes of the log that are written
	var failed int // connections in a row, for a job that has ended
	broken := false
	more, pause := s.copy, wait
	for {
		r, err := s.c.job(ctx, s.job.ID)
		if broken && err == nil { // before what the log has for a long time, maybe to its end
			broken = false
			if err := lost(nil); err != nil {
				return err
			}
		}
		var no *answered
		var denied *Denied
		switch {
		case errors.As(err, &no) && no.status == http.StatusNotFound:
			return nil
		case err == nil && r.Agent == "": // it has not run: Ray would never close the stream
			if r.over() {
				return nil
			}
		case err == nil:
			if done, err = more(ctx, out, done); err == nil && r.over() {
				return nil
			}
			var none *noStream
			if errors.As(err, &none) {
				more, pause = s.reread, 4*wait
				continue
			}
			var w *writeError
			if errors.As(err, &w) {
				return w.err
			}
			if failed++; err == nil || !r.over() {
				failed = 0
			} else if failed == mostFailed {
				return fmt.Errorf("the rest of the log cannot be had: %w", err)
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &denied):
			return err
		case (err != nil) != broken:
			broken = err != nil
			if err := lost(err); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// reread is copy where no stream can be had: it asks for the log as it is now.
func (s *Session) reread(ctx context.Context, out io.Writer, skip int64) (int64, error) {
	w := &Rest{Out: out, Skip: skip}
	err := s.Log(ctx, w)
	if w.Err != nil {
		err = &writeError{w.Err}
	}
	return w.Written(), err
}

// Rest writes what comes after the first Skip bytes, of a log that begins with its
// first byte each time.
type Rest struct {
	Out  io.Writer
	Skip int64
	Err  error // of Out
	seen int64
}

func (w *Rest) Write(p []byte) (int, error) {
	from := max(0, min(w.Skip-w.seen, int64(len(p))))
	w.seen += int64(len(p))
	if from < int64(len(p)) {
		_, w.Err = w.Out.Write(p[from:])
	}
	return len(p), w.Err
}

// Written is how many bytes of the log are written in all.
func (w *Rest) Written() int64 { return max(w.seen, w.Skip) }

// writeError is a failure of the reader's side.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }

// silence is how long a log may be silent before it is asked whether the
// dashboard is there, and whether the job has ended. Ray answers no pings.
const silence = 20 * time.Second

// copy writes what a stream has after its first skip bytes, and returns how many
// bytes of the log are written in all. The error is nil if Ray closed the stream.
func (s *Session) copy(ctx context.Context, out io.Writer, skip int64) (int64, error) {
	conn, err := s.c.tail(ctx, s.job.ID)
	if err != nil {
		return skip, err
	}
	defer func() { _ = conn.CloseNow() }() // only read
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var last atomic.Int64 // when something was read, in nanoseconds
	last.Store(time.Now().UnixNano())
	go func() { // a dashboard that hangs keeps the connection open
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(silence / 4):
			}
			if time.Since(time.Unix(0, last.Load())) < silence {
				continue
			}
			last.Store(time.Now().UnixNano())
			if r, err := s.c.job(ctx, s.job.ID); err != nil {
				cancel(err)
			} else if r.over() {
				cancel(errors.New("it is silent, and the job has ended"))
			}
		}
	}()
	w := &Rest{Out: out, Skip: skip}
	for {
		_, data, err := conn.Read(ctx)
		last.Store(time.Now().UnixNano())
		if err != nil {
			if websocket.CloseStatus(err) == websocket.StatusNormalClosure {
				return w.Written(), nil
			}
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
			return w.Written(), &Unreachable{fmt.Errorf("the log's connection broke: %w", err)}
		}
		if _, err := w.Write(data); err != nil {
			return w.Written(), &writeError{err}
		}
	}
}

var logStall = mostStall // shorter in a test

// errStalled ends a request for a log.
var errStalled = fmt.Errorf("it sent nothing of the log for %s", mostStall)

// Log writes what the job has printed up to now, as it comes: it may be longer
// than the memory.
func (s *Session) Log(ctx context.Context, w io.Writer) error {
	ctx, awaiting, stop := stall.Watch(ctx, logStall, errStalled)
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.c.base+"/api/jobs/"+s.job.ID+"/logs", nil)
	if err != nil {
		return err
	}
	req.Header = s.c.headers.Clone()
	gone := func(err error) error {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return s.c.gone(ctx, err)
	}
	resp, err := s.c.http.Do(req)
	if err != nil {
		return gone(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode >= 300 || strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		data, err := io.ReadAll(io.LimitReader(resp.Body, answerMost))
		if err != nil {
			return gone(err)
		}
		return s.c.judge(resp, data, nil)
	}
	err = logText(awaiting(resp.Body), w)
	var mine *writeError
	switch {
	case errors.As(err, &mine):
		return mine.err
	case errors.Is(err, errNotLog):
		return &Unreachable{fmt.Errorf("%s does not answer as Ray's API does: %w", s.c.base, err)}
	case err != nil:
		return gone(err)
	}
	return nil
}

// errNotLog is the error for an answer that is not {"logs": "…"}.
var errNotLog = errors.New("it is no log")

// logText copies the text of {"logs": "…"} without its JSON form. Failures of w
// are [*writeError].
func logText(r io.Reader, w io.Writer) error {
	in, out := bufio.NewReaderSize(r, 64<<10), bufio.NewWriterSize(w, 64<<10)
	end := func(err error) error {
		if e := out.Flush(); e != nil {
			return &writeError{e}
		}
		return err
	}
	for _, want := range `{"logs":"` {
		c, err := in.ReadByte()
		for err == nil && (c == ' ' || c == '\n' || c == '\t' || c == '\r') {
			c, err = in.ReadByte()
		}
		switch {
		case errors.Is(err, io.EOF), err == nil && rune(c) != want:
			return errNotLog
		case err != nil:
			return err
		}
	}
	for {
		c, err := in.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			return end(io.ErrUnexpectedEOF)
		case err != nil:
			return end(err)
		case c == '"':
			return end(nil)
		case c != '\\':
			if err := out.WriteByte(c); err != nil {
				return &writeError{err}
			}
			continue
		}
		r, err := escaping(in)
		if err != nil {
			return end(err)
		}
		if _, err := out.WriteRune(r); err != nil {
			return &writeError{err}
		}
	}
}

// escaping reads what follows a backslash in a JSON string.
func escaping(in *bufio.Reader) (rune, error) {
	c, err := in.ReadByte()
	if err != nil {
		return 0, err
	}
	if c != 'u' {
		r := map[byte]rune{'n': '\n', 't': '\t', 'r': '\r', 'b': '\b', 'f': '\f', '"': '"', '\\': '\\', '/': '/'}[c]
		if r == 0 {
			return 0, errNotLog
		}
		return r, nil
	}
	r, err := unit(in)
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if next, err := in.Peek(2); err != nil || string(next) != `\u` {
		return utf8.RuneError, nil // half of a pair
	}
	_, _ = in.Discard(2) // they were seen
	second, err := unit(in)
	return utf16.DecodeRune(r, second), err
}

// unit reads four hexadecimal digits.
func unit(in *bufio.Reader) (rune, error) {
	var b [4]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(b[:]), 16, 16)
	if err != nil {
		return 0, errNotLog
	}
	return rune(n), nil
}
