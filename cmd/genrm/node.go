package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/node"
	"genrm.dev/genrm/launchers/rundir"
	"genrm.dev/genrm/launchers/slurm"
)

type nodeCmd struct {
	RunDir    string `name:"run" placeholder:"DIR" help:"Folder of the run."`
	Node      int    `default:"-1" placeholder:"N" help:"Number of this node in the plan, from 0. Default: in a step of a Slurm job its $$SLURM_NODEID, else 0."`
	Prepare   string `placeholder:"DIR" help:"Make a run of a folder that emit wrote for target slurm, and print its folder: for a job that is submitted by hand."`
	Leash     bool   `help:"End the run when standard input ends: it is tied to whoever holds the other end."`
	Result    int    `hidden:"" default:"-1" help:"Exit with the status of the ended run, else with this."`
	Supervise bool   `hidden:"" help:"Be the supervisor that a guard started."`
}

func (nodeCmd) Help() string {
	return `Runs the processes of one node of a run that launch has frozen, and leaves none behind. You need it only to start a run's node by hand.

Steps: hold the frozen files against their hashes; bind ports and GPUs, unless launch did; start the processes in their order, each in a session of its own; see that they get ready and stay well; at the end of the run send SIGTERM to each, SIGKILL after its stop_timeout, and end whatever is left.

A signal ends the run; a second SIGINT does not wait. What happens is written to the run's folder.

Examples:

  genrm node --run=.genrm/runs/quickstart-20260101-120000-a1b2c3 --node=0
  genrm node --prepare="$SLURM_SUBMIT_DIR"

Exit status: that of the run's driver, 128+n if signal n killed it; 3 a service failed; 0 a run without a driver was stopped.`
}

func (c *nodeCmd) Run(a *app) error {
	if c.Prepare != "" {
		dir, err := slurm.Adopt(c.Prepare, a.env, version())
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(a.stdout, dir)
		return err
	}
	if c.RunDir == "" {
		return usagef("give the folder of the run: --run=DIR")
	}
	run, err := rundir.Open(c.RunDir)
	if err != nil {
		return err
	}
	if c.Result >= 0 {
		return c.result(run)
	}
	o := node.Options{Run: run, Node: max(0, c.Node), Attempt: 1, Env: a.env, Host: "127.0.0.1"}
	if run.Target == string(plan.Slurm) {
		if o, err = slurm.NodeOptions(a.ctx, run, a.env); err != nil {
			return targetError{err}
		}
	}
	signals := a.takeSignals()
	signal.Notify(a.signal, syscall.SIGUSR1, node.Hurry) // the first is what srun passes on
	if !c.Supervise {
		g := node.GuardOptions{Run: run, Node: o.Node, Attempt: o.Attempt, Signals: signals, Log: logFile(a.stderr),
			Args: []string{"node", "--run", run.Dir, "--node", strconv.Itoa(o.Node), "--supervise"}}
		if c.Leash {
			g.Leash = a.stdin
		}
		return ended(node.Guard(g))
	}
	stop := make(chan node.Stop, 16)
	go func() {
		interrupts := 0
		for sig := range signals {
			if sig == os.Interrupt {
				interrupts++
			}
			stop <- node.Stop{Why: stopReason(sig), Now: interrupts > 1 || sig == node.Hurry}
		}
	}()
	leash := node.Leash()
	go func() {
		_, _ = io.Copy(io.Discard, leash) // to the end of file
		stop <- node.Stop{Why: "its guard was killed", Fault: true}
	}()
	o.Stop, o.Log = stop, a.stderr
	return ended(node.Supervise(o))
}

// result is the status of a job whose steps are over: that of the run, unless it
// could not say it.
func (c *nodeCmd) result(run *rundir.Run) error {
	st, err := run.Status()
	if err == nil && st.State.Ended() && st.ExitCode != nil {
		return ended(*st.ExitCode, nil)
	}
	return ended(cmp.Or(c.Result, exitTarget), err)
}

func stopReason(sig os.Signal) string {
	switch sig {
	case os.Interrupt, node.Hurry:
		return "interrupted"
	case syscall.SIGHUP:
		return "its terminal was closed"
	}
	return "stopped by a signal, or its launcher is gone"
}

func ended(code int, err error) error {
	switch {
	case err != nil && code != 0:
		return errors.Join(exitStatus(code), err)
	case code != 0:
		return exitStatus(code)
	}
	return err
}

// logFile is where a node's guard and supervisor speak to.
func logFile(w io.Writer) *os.File {
	if f, ok := w.(*os.File); ok {
		return f
	}
	return os.Stderr
}
