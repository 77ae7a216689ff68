package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/rundir"
)

type logsCmd struct {
	runFlags
	Follow  bool   `short:"f" help:"Go on with what is added, until the run ends."`
	Process string `placeholder:"NAME" help:"Only this process; supervisor is the run's own, job that of its Slurm job."`
	Node    int    `default:"-1" placeholder:"N" help:"Only processes of this node of the plan."`
	Lines   int    `short:"n" default:"100" placeholder:"N" help:"Begin with the last N lines of each log; -1 for all that is kept."`
}

func (logsCmd) Help() string {
	return `Shows what the processes of a run print. Several logs are shown with the name of the process before each line. Secrets that the run refers to are hidden in them. Of a run on target ray it is what Ray keeps: the log of the driver, as it is; of a serve run the logs of the application's replicas, which Ray keeps on their nodes: what Ray Serve logs of each, and what its process prints (out, err). On target kuberay it is the log of the driver; of a serve run what its pods print, with the name of the pod, and with -f also of pods that come later, from their first line. --process POD is one pod.

Examples:

  genrm logs
  genrm logs -f --process safety-0
  genrm logs quickstart-2026 --lines=-1

Exit status: 1 no such run or process.`
}

func (c *logsCmd) Run(a *app) error {
	switch {
	case c.Lines < -1:
		return usagef("--lines wants a number, or -1 for all, not %d", c.Lines)
	case c.Node < -1:
		return usagef("--node wants the number of a node, from 0, not %d", c.Node)
	}
	run, err := c.open(a)
	if err != nil {
		return err
	}
	if onRayServe(run) {
		return c.rayServe(a, run)
	}
	if run.Target == string(plan.Ray) {
		return c.ray(a, run)
	}
	if run.Target == string(plan.KubeRay) {
		return c.kuberay(a, run)
	}
	st, err := a.runStatus(run)
	if err != nil {
		return err
	}
	names := c.names(st)
	if c.Node >= 0 && len(names) == 0 && len(st.Processes) > 0 {
		return fmt.Errorf("%s has no process on node %d", run.ID, c.Node)
	}
	if c.Process != "" {
		job := c.Process == "job" && run.Target == string(plan.Slurm)
		if !slices.Contains(names, c.Process) && c.Process != "supervisor" && !job {
			hint := diag.DidYouMean(c.Process, names)
			if hint == "" {
				hint = "there are " + strings.Join(append(names, "supervisor"), ", ")
			}
			return fmt.Errorf("%s has no process %s; %s", run.ID, c.Process, hint)
		}
		names = []string{c.Process}
	}
	f := &follower{run: run, lines: c.Lines, to: &named{only: c.Process != "", out: a.stdout}}
	defer f.close()
	for {
		ended := true
		if c.Follow {
			if st, err = a.runStatus(run); err != nil {
				return err
			}
			ended = st.State.Ended()
			if c.Process == "" {
				names = c.names(st)
			}
		}
		if err := f.poll(names, ended); err != nil || ended {
			return err
		}
		select {
		case <-a.ctx.Done():
			return nil // a signal, which is the status
		case <-time.After(a.lookEvery(run)):
		}
	}
}

// names are the processes that were asked for.
func (c *logsCmd) names(st *rundir.Status) []string {
	if c.Node < 0 {
		return processNames(st)
	}
	var out []string
	for _, p := range st.Processes {
		if p.Node == c.Node && p.Kind != "remote" {
			out = append(out, p.Name)
		}
	}
	return out
}

// processNames are the processes that have a log.
func processNames(st *rundir.Status) []string {
	var out []string
	for _, p := range st.Processes {
		if p.Kind != "remote" {
			out = append(out, p.Name)
		}
	}
	return out
}

// follower prints several logs of a run's folder.
type follower struct {
	run   *rundir.Run
	lines int // of what was there before; -1 for all
	to    *named
	tails map[string]*rundir.Tail
}

func (f *follower) poll(names []string, end bool) error {
	if f.tails == nil {
		f.tails = map[string]*rundir.Tail{}
	}
	f.to.names(names)
	for _, name := range names {
		t, ok := f.tails[name]
		if !ok {
			var err error
			if t, err = rundir.NewTail(f.run.LogPath(name), f.lines); err != nil {
				return err
			}
			f.tails[name] = t
		}
		for {
			lines, err := t.Lines(end)
			for _, l := range lines {
				if err := f.to.line(name, l); err != nil {
					return err
				}
			}
			if err != nil {
				return err
			}
			if !end || len(lines) == 0 {
				break
			}
		}
	}
	return nil
}

func (f *follower) close() {
	var errs []error
	for _, t := range f.tails {
		errs = append(errs, t.Close())
	}
	_ = errors.Join(errs...) // only read
}

// named prints lines of several logs, which may come at the same time, each with
// the name of its log unless it is the only one.
type named struct {
	only  bool
	out   io.Writer
	notes io.Writer
	mu    sync.Mutex
	width int
}

func (n *named) names(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		n.width = max(n.width, len(name))
	}
}

func (n *named) line(name, line string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.only {
		_, err := fmt.Fprintln(n.out, line)
		return err
	}
	_, err := fmt.Fprintf(n.out, "%-*s | %s\n", n.width, name, line)
	return err
}

func (n *named) note(name string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fmt.Fprintf(n.notes, "genrm: note: the log of %s cannot be read, and is tried again: %v\n", name, err)
}
