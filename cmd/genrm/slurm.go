package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/rundir"
	"genrm.dev/genrm/launchers/slurm"
)

// slurm submits a job, and with --wait follows it.
func (c *launchCmd) slurm(a *app, p *plan.Plan) error {
	if c.Detach {
		return usagef("a Slurm job is left to Slurm anyway: --detach belongs to target local")
	}
	switch {
	case c.TestOnly && (c.Wait || c.Follow || c.DryRun != ""):
		return usagef("--test-only submits nothing: it does not go with --wait, --follow or --dry-run")
	case (c.TestOnly || c.DryRun != "") && c.judgesPath():
		return usagef("--dry-run and --test-only look at one experiment: without --judges at %s, then at %s", p.Name, c.Judges)
	case (c.TestOnly || c.DryRun != "") && c.Output == "json":
		return usagef("--dry-run prints the job's script and --test-only the scheduler's answer: neither has a JSON form on target slurm")
	}
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	if c.Rehearse {
		if p, err = graph.Rehearse(p); err != nil {
			return err
		}
	}
	known, root, err := c.roots(a, p)
	if err != nil {
		return err
	}
	o := slurm.Options{Plan: p, Root: root, WorkDir: cwd, Env: a.env, Version: version(), Binary: c.NodeBinary}
	if c.DryRun != "" {
		files, err := slurm.Files(p)
		if err != nil {
			return err
		}
		_, err = a.stdout.Write(files[0].Text)
		return err
	}
	if c.TestOnly {
		answer, found, err := slurm.Test(a.ctx, o)
		if err == nil {
			err = a.print(found)
		}
		switch {
		case err != nil:
			return targetError{err}
		case found.HasErrors():
			return exitStatus(exitTarget)
		}
		_, err = fmt.Fprintln(a.stdout, answer)
		return err
	}
	var run, beside *rundir.Run
	var job *slurm.Job
	var found diag.List
	if c.judgesPath() {
		judges, err := c.judgesPlan(a)
		if err != nil {
			return err
		}
		if run, beside, job, found, err = slurm.LaunchBeside(a.ctx, o, judges); err != nil {
			return targetError{err}
		}
	} else {
		if o.Judges, err = c.judges(a); err != nil {
			return err
		}
		if run, job, found, err = slurm.Launch(a.ctx, o); err != nil {
			return targetError{err}
		}
	}
	if err := a.print(found); err != nil {
		return err
	}
	if found.HasErrors() {
		return exitStatus(exitTarget)
	}
	for _, r := range []*rundir.Run{beside, run} { // the run last: @last
		if r == nil {
			continue
		}
		if err := r.Link(known); err != nil {
			fmt.Fprintf(a.stderr, "genrm: note: the run lies in %s only: %v\n", root, err)
		}
	}
	if beside != nil {
		fmt.Fprintf(a.stderr, "judges: run %s\n", beside.ID)
	}
	if !c.Wait && !c.Follow {
		if c.Output == "json" {
			st, err := a.runStatus(run)
			if err != nil {
				return err
			}
			return printJSON(a.stdout, report{st, run.Dir})
		}
		fmt.Fprintf(a.stdout, "job %s, run %s in %s\n", job.ID, run.ID, relative(run.Dir))
		return nil
	}
	return c.followJob(a, run, job)
}

// judgesPath reports whether --judges names an experiment, not a run.
func (c *launchCmd) judgesPath() bool { return strings.HasSuffix(c.Judges, ".cue") || isDir(c.Judges) }

// judges are those of the run that --judges names, or nil.
func (c *launchCmd) judges(a *app) (*graph.Judges, error) {
	if c.Judges == "" {
		return nil, nil
	}
	if c.judgesPath() {
		return nil, usagef("on target local --judges wants a run: launch %s first, and give its id", c.Judges)
	}
	root, err := c.root(a)
	if err != nil {
		return nil, err
	}
	run, err := rundir.Find(root, c.Judges)
	if err != nil {
		return nil, err
	}
	if run.Workload != string(plan.Serve) {
		return nil, fmt.Errorf("%s is a %s run and serves no judges", run.ID, run.Workload)
	}
	return &graph.Judges{RunID: run.ID, Dir: run.Dir}, nil
}

// judgesPlan compiles the serve experiment that --judges names.
func (c *launchCmd) judgesPlan(a *app) (*plan.Plan, error) {
	plans, err := a.accepted(compiler.Compile([]string{c.Judges}, compiler.Options{Target: plan.Slurm, Strict: c.Strict, Checks: launchers.Checkers()}), false)
	if err != nil {
		return nil, err
	}
	if len(plans) != 1 || plans[0].Workload != plan.Serve {
		return nil, usagef("--judges wants one serve experiment, and %s has something else", c.Judges)
	}
	return plans[0], nil
}

// array submits the variants of a sweep.
func (c *launchCmd) array(a *app, plans []*plan.Plan) error {
	if c.Wait || c.Follow || c.Detach || c.TestOnly || c.Rehearse {
		return usagef("%d experiments are one job array: --wait, --follow, --detach, --test-only and --rehearse want one, by --name", len(plans))
	}
	if c.Judges != "" {
		return usagef("%d experiments are one job array: --judges wants one, by --name", len(plans))
	}
	if c.DryRun != "" && c.Output == "json" {
		return usagef("--dry-run prints the job's script: it has no JSON form on target slurm")
	}
	if c.DryRun != "" {
		_, err := a.stdout.Write(slurm.ArrayScript(plans))
		return err
	}
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	_, root, err := c.roots(a, plans[0])
	if err != nil {
		return err
	}
	runs, job, found, err := slurm.LaunchArray(a.ctx, plans, slurm.Options{Root: root, WorkDir: cwd, Env: a.env, Version: version(), Binary: c.NodeBinary})
	if err != nil {
		return targetError{err}
	}
	if err := a.print(found); err != nil {
		return err
	}
	if found.HasErrors() {
		return exitStatus(exitTarget)
	}
	if c.Output == "json" {
		reports := []report{}
		for _, run := range runs {
			st, err := a.runStatus(run)
			if err != nil {
				return err
			}
			reports = append(reports, report{st, run.Dir})
		}
		return printJSON(a.stdout, reports)
	}
	for i, run := range runs {
		fmt.Fprintf(a.stdout, "job %s_%d, run %s\n", job.ID, i, run.ID)
	}
	return nil
}

// pollJob is how often Slurm is asked: a controller has many to answer.
const pollJob = time.Second

// lookEvery is how often a run is looked at.
func (a *app) lookEvery(run *rundir.Run) time.Duration {
	if run.Target == string(plan.Slurm) {
		return pollJob
	}
	return 100 * time.Millisecond
}

// followJob shows how a job gets on until it has ended. A signal leaves it alone:
// it is Slurm's now.
func (c *launchCmd) followJob(a *app, run *rundir.Run, job *slurm.Job) error {
	out := a.stdout
	if c.Output == "json" {
		out = a.stderr
	}
	fmt.Fprintf(out, "job %s\n", job.ID)
	v := &view{out: out, run: run, live: a.terminal(out) && !c.Follow, root: relative(run.Dir)}
	if c.Follow {
		v.logs = &follower{run: run, lines: -1, to: &named{out: out}}
		defer v.logs.close()
	}
	signals := a.takeSignals()
	said, unreachable := "", time.Time{}
	for {
		st, err := slurm.Status(a.ctx, run, a.env)
		var gone *slurm.Unreachable
		switch {
		case errors.As(err, &gone): // a controller may be restarted under us
			if unreachable.IsZero() {
				unreachable = time.Now()
				fmt.Fprintf(out, "Slurm does not answer: %v\n", gone)
			}
		case err != nil:
			return targetError{err}
		default:
			if !unreachable.IsZero() {
				fmt.Fprintf(out, "Slurm answers again after %d s\n", int(time.Since(unreachable).Seconds()))
				unreachable = time.Time{}
			}
			if st.State == rundir.Pending {
				if line := "pending: " + orDash(st.Reason); line != said {
					said = line
					fmt.Fprintln(out, line)
				}
				break
			}
			said = ""
			over := st.State.Ended()
			if err := v.show(st, over); err != nil {
				return err
			}
			if !over {
				break
			}
			if c.Output == "json" {
				if err := printJSON(a.stdout, report{st, run.Dir}); err != nil {
					return err
				}
			}
			return outcome(st)
		}
		select {
		case sig := <-signals:
			fmt.Fprintf(a.stderr, "\n%s goes on as job %s; `genrm stop %s` ends it\n", run.ID, job.ID, run.ID)
			return exitStatus(128 + number(sig))
		case <-time.After(pollJob):
		}
	}
}

// jobGrace is how long a job may take to end in order before it is cancelled.
const jobGrace = 60 * time.Second

func (a *app) stopJob(run *rundir.Run, st *rundir.Status, quiet bool, out io.Writer) error {
	if st.State.Ended() {
		if !quiet {
			fmt.Fprintf(out, "%s has ended: %s\n", run.ID, stateText(st))
		}
		return nil
	}
	if err := slurm.Stop(a.ctx, run, userAtHost(), a.env, jobGrace); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s has ended\n", run.ID)
	return nil
}
