package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/rundir"
)

// ray submits a job of each plan to a Ray cluster, and with --wait follows them.
func (c *launchCmd) ray(a *app, plans []*plan.Plan) error {
	switch {
	case c.Detach:
		return usagef("a Ray job is left to Ray anyway: --detach belongs to target local")
	case c.TestOnly:
		return usagef("--test-only asks a scheduler: it goes with target slurm")
	case c.Rehearse, c.Judges != "":
		return usagef("--rehearse and --judges do not go with target ray yet")
	case c.Replace:
		return usagef("--replace updates a serve application in place, and each %s run is a job of its own", plans[0].Workload)
	case c.Follow && len(plans) > 1:
		return oneLog(len(plans))
	}
	if c.DryRun != "" {
		return a.rayRequests(plans)
	}
	prepared, root, err := c.prepareRay(a, plans)
	defer func() {
		for _, p := range prepared {
			p.Close()
		}
	}()
	if err != nil {
		return err
	}
	out := a.stdout
	if c.Output == "json" {
		out = a.stderr // the result is what is on stdout
	}
	var runs []*rundir.Run
	for i, p := range prepared {
		run, err := c.launchRay(a, p, root[i], out)
		if run != nil {
			runs = append(runs, run)
		}
		if err != nil {
			if len(plans) > 1 {
				fmt.Fprintf(a.stderr, "genrm: %d of %d were submitted; %s was not\n", i, len(plans), plans[i].Name)
			}
			return err
		}
	}
	switch {
	case (c.Wait || c.Follow) && len(runs) == 1:
		return c.followRay(a, runs[0], out)
	case c.Wait:
		return c.followAll(a, rays{a, runs}, runs, out)
	case c.Output != "json":
		return nil
	}
	return a.reportAll(runs)
}

// rayRequests prints what would be submitted.
func (a *app) rayRequests(plans []*plan.Plan) error {
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	var all []ray.Request
	refused := false
	for _, p := range plans {
		req, found, err := ray.Preview(a.ctx, p, cwd)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if err := a.print(found); err != nil {
			return err
		}
		refused = refused || found.HasErrors()
		all = append(all, req)
	}
	if refused {
		return exitStatus(exitTarget)
	}
	return printEach(a.stdout, all)
}

// prepareRay looks whether every plan can be launched, before the first is.
func (c *launchCmd) prepareRay(a *app, plans []*plan.Plan) (out []*ray.Prepared, roots []runRoots, err error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, nil, err
	}
	var all diag.List
	for _, p := range plans {
		known, root, err := c.roots(a, p)
		if err != nil {
			return out, nil, err
		}
		block, _ := p.Settings.Get("ray")
		address, err := ray.Address(c.Address, block, a.getenv)
		if err != nil {
			return out, nil, usagef("%v", err)
		}
		ready, found, err := ray.Prepare(a.ctx, ray.Options{Plan: p, Address: address, Root: root, WorkDir: cwd, Env: a.env, Version: version(), Grows: c.Grows, Progress: a.sending()}, out)
		all = append(all, found...)
		if err != nil {
			return out, nil, errors.Join(a.print(all), targetError{err})
		}
		if ready != nil {
			out, roots = append(out, ready), append(roots, runRoots{known, root})
		}
	}
	if !all.HasErrors() {
		all = append(all, ray.Together(out)...)
	}
	if err := a.print(all); err != nil {
		return out, nil, err
	}
	if all.HasErrors() {
		return out, nil, exitStatus(exitTarget)
	}
	return out, roots, nil
}

// launchRay submits one job and says so.
func (c *launchCmd) launchRay(a *app, p *ray.Prepared, at runRoots, out io.Writer) (*rundir.Run, error) {
	run, job, found, err := p.Launch(a.ctx)
	if err := a.sent(run, at.known, at.root, found, err); err != nil {
		return run, err
	}
	for _, u := range job.Uploads {
		what := "uploaded"
		if u.There {
			what = "is there already"
		}
		fmt.Fprintf(a.stderr, "%s %s: %s, %s\n", relative(u.Dir), what, u.Size(), u.URI)
	}
	if c.Wait || c.Follow || c.Output != "json" {
		fmt.Fprintf(out, "job %s, run %s in %s\n", job.ID, run.ID, relative(run.Dir))
	}
	return run, nil
}

// rays are jobs that are followed together.
type rays struct {
	a    *app
	runs []*rundir.Run
}

func (r rays) status(i int) (*rundir.Status, error) { return r.a.rayStatus(r.runs[i]) }

func (rays) away(_ int, err error) error {
	var gone *ray.Unreachable
	if errors.As(err, &gone) {
		return gone
	}
	return nil
}

func (rays) words() (who, what string)    { return "Ray", "Ray jobs" }
func (rays) telling(reason string) string { return firstLine(reason) }
func (rays) pause() time.Duration         { return pollJob }

// sending shows how far an upload is, on a terminal.
func (a *app) sending() func(ray.Upload, int64) {
	if !a.terminal(a.stderr) {
		return nil
	}
	const width = 30
	var mu sync.Mutex // what an answered request still reads is told beside the next one
	var last time.Time
	return func(u ray.Upload, sent int64) {
		mu.Lock()
		defer mu.Unlock()
		if whole := sent == u.Bytes; !whole && time.Since(last) < 100*time.Millisecond {
			return
		} else if last = time.Now(); whole {
			fmt.Fprint(a.stderr, "\r\x1b[K") // the line about it follows
			return
		}
		done := int(sent * width / u.Bytes)
		fmt.Fprintf(a.stderr, "\r\x1b[K%s [%s%s] %.1f of %.1f MiB", relative(u.Dir), strings.Repeat("=", done), strings.Repeat(" ", width-done), float64(sent)/(1<<20), float64(u.Bytes)/(1<<20))
	}
}

// followRay shows how a job gets on and what its driver prints, until it has
// ended. A signal leaves it alone: it is Ray's now.
func (c *launchCmd) followRay(a *app, run *rundir.Run, out io.Writer) error {
	s, err := ray.Open(run, a.address, a.env, version())
	if err != nil {
		return targetError{err}
	}
	signals := a.takeSignals()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	logged := make(chan error, 1)
	go func() {
		err := a.pending(ctx, s, out)
		if err == nil {
			err = s.Follow(ctx, out, a.lost("Ray"))
		}
		logged <- err
	}()
	select {
	case sig := <-signals:
		cancel()
		<-logged // nothing is written after this
		fmt.Fprintf(a.stderr, "\n%s goes on as a Ray job; `genrm stop %s` ends it\n", run.ID, run.ID)
		return exitStatus(128 + number(sig))
	case err = <-logged:
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "genrm: %v\n", err)
	}
	st, err := a.awaitEnd(ctx, s, signals)
	if err != nil {
		return targetError{err}
	}
	return c.concluded(a, run, st, out)
}

// pending says what a job waits for until Ray has started it.
func (a *app) pending(ctx context.Context, s *ray.Session, out io.Writer) error {
	said := ""
	for {
		st, err := s.Status(ctx)
		switch {
		case err != nil: // Follow tells
			return nil
		case st.State != rundir.Pending:
			if st.State == rundir.Ready {
				fmt.Fprintln(out, "running")
			}
			return nil
		}
		if line := "pending: " + orDash(st.Reason); line != said {
			said = line
			fmt.Fprintln(out, line)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollJob):
		}
	}
}

// awaitEnd asks for the end of a job whose log has ended. A dashboard that is
// away is waited for, until a signal.
func (a *app) awaitEnd(ctx context.Context, s *ray.Session, signals <-chan os.Signal) (*rundir.Status, error) {
	for {
		st, err := s.Status(ctx)
		var gone *ray.Unreachable
		switch {
		case err == nil && st.State.Told():
			return st, nil
		case err != nil && !errors.As(err, &gone):
			return nil, err
		}
		select {
		case sig := <-signals:
			return nil, exitStatus(128 + number(sig))
		case <-time.After(pollJob):
		}
	}
}

// rayStatus is how a run on Ray is.
func (a *app) rayStatus(run *rundir.Run) (*rundir.Status, error) {
	return a.clusterStatus(run, func() (session, string, error) {
		s, err := ray.Open(run, a.address, a.env, version())
		if err != nil {
			return nil, "", err
		}
		return s, s.Address(), nil
	}, anyError)
}

// anyError takes every failure of a dashboard for one that the next run would
// meet, too.
func anyError(error) bool { return true }

// stopGrace is how long a Ray job may take to end.
const stopGrace = 3 * time.Minute

func (a *app) stopRay(run *rundir.Run, st *rundir.Status, quiet bool, out io.Writer) error {
	if st.State.Told() {
		if !quiet {
			fmt.Fprintf(out, "%s has ended: %s\n", run.ID, stateText(st))
		}
		return nil
	}
	s, err := ray.Open(run, a.address, a.env, version())
	if err != nil {
		return err
	}
	if st, err = s.Stop(a.ctx, userAtHost(), stopGrace); err != nil {
		return fmt.Errorf("%s: %w", run.ID, err)
	}
	fmt.Fprintf(out, "%s has ended: %s\n", run.ID, stateText(st))
	return nil
}

// ray shows the log of the driver, which is the only one that Ray keeps with a
// job.
func (c *logsCmd) ray(a *app, run *rundir.Run) error {
	if c.Process != "" && c.Process != "driver" || c.Node >= 0 {
		return fmt.Errorf("%s has the log of its driver alone: Ray's workers log on their nodes", run.ID)
	}
	s, err := ray.Open(run, a.address, a.env, version())
	if err != nil {
		return targetError{err}
	}
	if !c.Follow || c.Lines >= 0 {
		var out io.Writer = a.stdout
		ends := &lastLines{most: c.Lines}
		if c.Lines >= 0 {
			out = ends
		}
		if err := s.Log(a.ctx, out); err != nil {
			return targetError{err}
		}
		if !c.Follow {
			_, err = io.WriteString(a.stdout, ends.text())
			return err
		}
		// What is older than the last lines is passed over.
		err = s.Follow(a.ctx, &ray.Rest{Out: a.stdout, Skip: int64(ends.n - len(ends.text()))}, a.lost("Ray"))
		return c.followed(a, err)
	}
	return c.followed(a, s.Follow(a.ctx, a.stdout, a.lost("Ray")))
}

func (c *logsCmd) followed(a *app, err error) error {
	if err == nil || a.ctx.Err() != nil { // a signal, which is the status
		return nil
	}
	return targetError{err}
}

// lastLines keeps the last lines of what is written.
type lastLines struct {
	most  int
	n     int // bytes that were written
	kept  []byte
	worth int // bytes of kept that the last look left
}

// lineWorth is how much is kept at least before it is looked through.
const lineWorth = 1 << 20

func (l *lastLines) Write(p []byte) (int, error) {
	l.n += len(p)
	l.kept = append(l.kept, p...)
	if len(l.kept) > 2*max(l.worth, lineWorth) {
		l.kept = append([]byte(nil), l.text()...)
		l.worth = len(l.kept)
	}
	return len(p), nil
}

// text are the last lines.
func (l *lastLines) text() string { return last(string(l.kept), l.most) }

// last are the last n lines of a text.
func last(text string, n int) string {
	end := len(strings.TrimSuffix(text, "\n"))
	at := len(text)
	if n > 0 {
		at = end
		for ; n > 0 && at >= 0; n-- {
			at = strings.LastIndexByte(text[:at], '\n')
		}
		at++
	}
	return text[at:]
}
