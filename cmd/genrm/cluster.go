package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/launchers/rundir"
)

// What launches on clusters, and the verbs of their runs, have in common.

// sent tells what a launch on a cluster came to: its findings, its error, and a
// run that does not lie where the commands look. Without an error the run is there.
func (a *app) sent(run *rundir.Run, known, root string, found diag.List, err error) error {
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
	return nil
}

// launched ends a launch whose run is on its cluster: it says what was made there,
// follows it if that is asked for, and prints the result.
func (c *launchCmd) launched(a *app, run *rundir.Run, what string, follow func(out io.Writer) error) error {
	out := a.stdout
	if c.Output == "json" {
		out = a.stderr // the result is what is on stdout
	}
	if c.Wait || c.Follow || c.Output != "json" {
		fmt.Fprintf(out, "%s, run %s in %s\n", what, run.ID, relative(run.Dir))
	}
	if c.Wait || c.Follow {
		return follow(out)
	}
	if c.Output != "json" {
		return nil
	}
	st, err := a.runStatus(run)
	if err != nil {
		return err
	}
	return printJSON(a.stdout, report{st, run.Dir})
}

// outcome is the exit status for a run that has ended.
func outcome(st *rundir.Status) error {
	switch {
	case st.ExitCode == nil:
		return exitStatus(exitTarget)
	case *st.ExitCode != 0:
		return exitStatus(*st.ExitCode)
	}
	return nil
}

// concluded shows how a run that was followed ended, and is its exit status.
func (c *launchCmd) concluded(a *app, run *rundir.Run, st *rundir.Status, out io.Writer) error {
	if c.Output == "json" {
		if err := printJSON(a.stdout, report{st, run.Dir}); err != nil {
			return err
		}
		return outcome(st)
	}
	fmt.Fprintln(out, stateText(st))
	if st.Reason != "" {
		fmt.Fprintf(out, "  %s\n", strings.ReplaceAll(st.Reason, "\n", "\n  "))
	}
	return outcome(st)
}

// runRoots are the folders of runs of a launch; see roots.
type runRoots struct{ known, root string }

// oneLog is the error of --follow for several experiments.
func oneLog(n int) error {
	return usagef("--follow shows one log, and there are %d experiments: choose by --name, or launch them and look by genrm logs RUN -f", n)
}

// reportAll prints how runs are.
func (a *app) reportAll(runs []*rundir.Run) error {
	var reports []report
	for _, run := range runs {
		st, err := a.runStatus(run)
		if err != nil {
			return err
		}
		reports = append(reports, report{st, run.Dir})
	}
	return printEach(a.stdout, reports)
}

// sweep is what is asked of runs on a cluster that are followed together.
type sweep interface {
	// status is how the run with this number is.
	status(i int) (*rundir.Status, error)
	// away is the failure to tell of where an error of status says that the cluster
	// does not answer, and that is waited for; nil ends the following.
	away(i int, err error) error
	// words are who does not answer then, and what the runs are after a signal.
	words() (who, what string)
	// telling is the line of a reason that is shown.
	telling(reason string) string
	// pause is between two rounds.
	pause() time.Duration
}

// untilSignal is a context for requests that ends with the next signal, which is
// caught then: a server that hangs holds up none.
func (a *app) untilSignal(ctx context.Context) (asking context.Context, caught <-chan os.Signal, stop func()) {
	asking, cancel := context.WithCancel(ctx)
	signals, got, done := a.takeSignals(), make(chan os.Signal, 1), make(chan struct{})
	go func() {
		select {
		case sig := <-signals:
			got <- sig
			cancel()
		case <-done:
		}
	}()
	return asking, got, func() { close(done); cancel() }
}

// followAll waits for the ends of several runs, and tells of each what changes.
// The exit status is the highest of theirs. A signal leaves them alone.
func (c *launchCmd) followAll(a *app, s sweep, runs []*rundir.Run, out io.Writer) error {
	ctx, caught, stop := a.untilSignal(a.ctx)
	defer stop()
	a.ctx = ctx // neither do many runs hold up a signal
	said := make([]string, len(runs))
	who, what := s.words()
	lost := a.lost(who)
	broken, left, worst := false, len(runs), 0
	leave := func(sig os.Signal) error {
		fmt.Fprintf(a.stderr, "\n%d of %d go on as %s; `genrm stop RUN` ends one\n", left, len(runs), what)
		return exitStatus(128 + number(sig))
	}
	for {
		var away error
		a.away = nil // what did not answer in the last round may answer now
		for i, run := range runs {
			if said[i] == over {
				continue
			}
			st, err := s.status(i)
			if err != nil && ctx.Err() != nil {
				return leave(<-caught)
			}
			if err != nil {
				gone := s.away(i, err)
				if gone == nil {
					return err
				}
				away = gone
				continue // the same cluster is not asked again in this round
			}
			line := stateText(st)
			switch {
			case st.State == rundir.Ready:
				line = "running"
			case st.Reason != "":
				line += ": " + s.telling(st.Reason)
			}
			if line != said[i] {
				said[i] = line
				fmt.Fprintf(out, "%s  %s\n", run.ID, line)
			}
			if st.State.Told() {
				code := exitTarget
				if st.ExitCode != nil {
					code = *st.ExitCode
				}
				worst = max(worst, code)
				said[i] = over
				left--
			}
		}
		if (away != nil) != broken {
			broken = away != nil
			if err := lost(away); err != nil {
				return err
			}
		}
		if left == 0 {
			break
		}
		select {
		case sig := <-caught:
			return leave(sig)
		case <-time.After(s.pause()):
		}
	}
	if c.Output == "json" {
		if err := a.reportAll(runs); err != nil {
			return err
		}
	}
	if worst > 0 {
		return exitStatus(worst)
	}
	return nil
}

// over is said of a run that has ended, to ourselves.
const over = "\x00"

// lost tells of a cluster that does not answer while a run on it is followed.
func (a *app) lost(who string) func(error) error {
	var since time.Time
	return func(err error) error {
		if err != nil {
			since = time.Now()
			_, err = fmt.Fprintf(a.stderr, "%s does not answer: %v\n", who, err)
			return err
		}
		_, err = fmt.Fprintf(a.stderr, "%s answers again after %d s\n", who, int(time.Since(since).Seconds()))
		return err
	}
}

// session is the access to a run on a cluster.
type session interface {
	Status(ctx context.Context) (*rundir.Status, error)
}

// clusterStatus is how a run on a cluster is. One that is known to have ended
// needs no cluster. A cluster that did not answer is not asked again by the same
// command: it would let each of a list of runs wait. open returns the cluster's
// address, too.
func (a *app) clusterStatus(run *rundir.Run, open func() (s session, address string, err error), gone func(error) bool) (*rundir.Status, error) {
	if st, err := run.Status(); err != nil || st.State.Told() {
		return st, err
	}
	s, address, err := open()
	if err != nil {
		return nil, targetError{err}
	}
	a.asked.Lock()
	err = a.away[address]
	a.asked.Unlock()
	if err != nil {
		return nil, targetError{err}
	}
	st, err := s.Status(a.ctx)
	if err != nil {
		if gone(err) {
			a.asked.Lock()
			if a.away == nil {
				a.away = map[string]error{}
			}
			a.away[address] = err
			a.asked.Unlock()
		}
		return nil, targetError{err}
	}
	return st, nil
}
