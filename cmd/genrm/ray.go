package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/rundir"
)

// ray submits a job to a Ray cluster, and with --wait follows it.
func (c *launchCmd) ray(a *app, p *plan.Plan) error {
	switch {
	case p.Workload == plan.Serve:
		return usagef("a serve workload cannot be launched on target ray yet: emit writes its files")
	case c.Detach:
		return usagef("a Ray job is left to Ray anyway: --detach belongs to target local")
	case c.TestOnly:
		return usagef("--test-only asks a scheduler: it goes with target slurm")
	case c.Rehearse, c.Judges != "":
		return usagef("--rehearse and --judges do not go with target ray yet")
	}
	if c.DryRun != "" {
		req, found, err := ray.NewRequest(p)
		if err != nil {
			return err
		}
		if err := a.print(found); err != nil {
			return err
		}
		return printJSON(a.stdout, req)
	}
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	known, root, err := c.roots(a, p)
	if err != nil {
		return err
	}
	block, _ := p.Settings.Get("ray")
	address, err := ray.Address(c.Address, block, a.getenv)
	if err != nil {
		return usagef("%v", err)
	}
	run, job, found, err := ray.Launch(a.ctx, ray.Options{Plan: p, Address: address, Root: root, WorkDir: cwd, Env: a.env, Version: version(), Grows: c.Grows, Progress: a.sending()})
	if e := a.print(found); e != nil {
		return errors.Join(e, err)
	}
	if run != nil {
		if err := run.Link(known); err != nil {
			fmt.Fprintf(a.stderr, "genrm: note: the run lies in %s only: %v\n", root, err)
		}
	}
	switch {
	case err != nil:
		return targetError{err}
	case found.HasErrors():
		return exitStatus(exitTarget)
	}
	out := a.stdout
	if c.Output == "json" {
		out = a.stderr // the result is what is on stdout
	}
	for _, u := range job.Uploads {
		what := "uploaded"
		if u.There {
			what = "is there already"
		}
		fmt.Fprintf(a.stderr, "%s %s: %d files, %.1f MiB, %s\n", relative(u.Dir), what, u.Files, float64(u.Bytes)/(1<<20), u.URI)
	}
	if c.Wait || c.Follow || c.Output != "json" {
		fmt.Fprintf(out, "job %s, run %s in %s\n", job.ID, run.ID, relative(run.Dir))
	}
	if c.Wait || c.Follow {
		return c.followRay(a, run, out)
	}
	if c.Output == "json" {
		st, err := a.runStatus(run)
		if err != nil {
			return err
		}
		return printJSON(a.stdout, report{st, run.Dir})
	}
	return nil
}

// sending shows how far an upload is, on a terminal.
func (a *app) sending() func(ray.Upload, int64) {
	if !a.terminal(a.stderr) {
		return nil
	}
	const width = 30
	var last time.Time
	return func(u ray.Upload, sent int64) {
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
			err = s.Follow(ctx, out, a.lost())
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
	if c.Output == "json" {
		if err := printJSON(a.stdout, report{st, run.Dir}); err != nil {
			return err
		}
	} else {
		fmt.Fprintln(out, stateText(st))
		if st.Reason != "" {
			fmt.Fprintf(out, "  %s\n", st.Reason)
		}
	}
	switch {
	case st.ExitCode != nil && *st.ExitCode != 0:
		return exitStatus(*st.ExitCode)
	case st.ExitCode == nil:
		return exitStatus(exitTarget)
	}
	return nil
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

// lost tells of a dashboard that does not answer while a job is followed.
func (a *app) lost() func(error) error {
	var since time.Time
	return func(err error) error {
		if err != nil {
			since = time.Now()
			_, err = fmt.Fprintf(a.stderr, "Ray does not answer: %v\n", err)
			return err
		}
		_, err = fmt.Fprintf(a.stderr, "Ray answers again after %d s\n", int(time.Since(since).Seconds()))
		return err
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
	if st, err := run.Status(); err != nil || st.State.Told() {
		return st, err // it needs no cluster, and no token
	}
	s, err := ray.Open(run, a.address, a.env, version())
	if err != nil {
		return nil, targetError{err}
	}
	if err := a.away[s.Address()]; err != nil {
		return nil, targetError{err}
	}
	st, err := s.Status(a.ctx)
	if err != nil {
		if a.away == nil {
			a.away = map[string]error{}
		}
		a.away[s.Address()] = err
		return nil, targetError{err}
	}
	return st, nil
}

// stopGrace is how long a Ray job may take to end.
const stopGrace = 3 * time.Minute

func (a *app) stopRay(run *rundir.Run, st *rundir.Status, quiet bool) error {
	if st.State.Told() {
		if !quiet {
			fmt.Fprintf(a.stdout, "%s has ended: %s\n", run.ID, stateText(st))
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
	fmt.Fprintf(a.stdout, "%s has ended: %s\n", run.ID, stateText(st))
	return nil
}

// ray shows the log of the driver, which is the only one that Ray keeps with a
// job.
func (c *logsCmd) ray(a *app, run *rundir.Run) error {
	if c.Process != "" && c.Process != "driver" || c.Node > 0 {
		return fmt.Errorf("%s has the log of its driver alone: Ray's workers log on their nodes", run.ID)
	}
	s, err := ray.Open(run, a.address, a.env, version())
	if err != nil {
		return targetError{err}
	}
	if !c.Follow || c.Lines >= 0 {
		text, err := s.Log(a.ctx)
		if err != nil {
			return targetError{err}
		}
		if !c.Follow {
			_, err = io.WriteString(a.stdout, last(text, c.Lines))
			return err
		}
		// What is older than the last lines is passed over.
		skip := &skipping{out: a.stdout, n: len(text) - len(last(text, c.Lines))}
		err = s.Follow(a.ctx, skip, a.lost())
		return c.followed(a, err)
	}
	return c.followed(a, s.Follow(a.ctx, a.stdout, a.lost()))
}

func (c *logsCmd) followed(a *app, err error) error {
	if err == nil || a.ctx.Err() != nil { // a signal, which is the status
		return nil
	}
	return targetError{err}
}

// last are the last n lines of a text; all of them if n is negative.
func last(text string, n int) string {
	if n < 0 {
		return text
	}
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

// skipping passes over the first n bytes.
type skipping struct {
	out io.Writer
	n   int
}

func (s *skipping) Write(p []byte) (int, error) {
	k := min(s.n, len(p))
	s.n -= k
	if k == len(p) {
		return k, nil
	}
	n, err := s.out.Write(p[k:])
	return k + n, err
}
