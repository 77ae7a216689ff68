package main

import (
	"errors"
	"fmt"
	"time"

	"genrm.dev/genrm/launchers/ray/kuberay"
	"genrm.dev/genrm/launchers/rundir"
)

// launchKubes applies the objects of several runs, and with --wait follows them.
func (c *launchCmd) launchKubes(a *app, prepared []*kuberay.Prepared, at []runRoots) error {
	out := a.stdout
	if c.Output == "json" {
		out = a.stderr // the result is what is on stdout
	}
	var runs []*rundir.Run
	var followed []*kubeRun
	for i, p := range prepared {
		short := func(what string) {
			fmt.Fprintf(a.stderr, "genrm: %d of %d were applied; %s\n", i, len(prepared), what)
		}
		if a.ctx.Err() != nil { // a signal, which is the status
			short(p.Plan().Name + " was not")
			return exitStatus(exitTarget)
		}
		run, object, found, err := p.Launch(a.ctx)
		if err := a.sent(run, at[i].known, at[i].root, found, err); err != nil {
			if run == nil {
				short(p.Plan().Name + " was not")
			} else {
				short("of " + p.Plan().Name + " that is not known")
			}
			return err
		}
		// Also beside JSON: if a later one fails there is no result.
		fmt.Fprintf(out, "%s, run %s in %s\n", object, run.ID, relative(run.Dir))
		runs, followed = append(runs, run), append(followed, &kubeRun{run: run, session: p.Open(run, object)})
	}
	switch {
	case c.Wait:
		return c.followAll(a, &kubes{a, followed}, runs, out)
	case c.Output != "json":
		return nil
	}
	return a.reportAll(runs)
}

// kubes are runs on Kubernetes that are followed together.
type kubes struct {
	a    *app
	runs []*kubeRun
}

type kubeRun struct {
	run     *rundir.Run
	session *kuberay.Session
	checked time.Time // whether it is late
	refused kuberay.Refusals
	leaving *rundir.Status      // of one that is late: it is being removed
	removed chan *rundir.Status // how that came out
}

func (k *kubes) status(i int) (*rundir.Status, error) {
	r := k.runs[i]
	if r.leaving != nil {
		select {
		case st := <-r.removed:
			if st != nil {
				return st, nil
			}
			r.leaving = nil // the cluster did not answer
		default:
			return r.leaving, nil
		}
	}
	st, err := k.a.clusterStatus(r.run, func() (session, string, error) { return r.session, r.session.Server(), nil }, unreachable)
	if err != nil {
		return nil, err
	}
	r.refused = kuberay.Refusals{}
	if (st.State == rundir.Pending || st.State == rundir.Starting) && time.Since(r.checked) > lookMost {
		r.checked = time.Now()
		if late, limit, err := r.session.Overdue(k.a.ctx); err == nil && late {
			return r.giveUp(k.a, limit, k.telling(st.Reason)), nil
		}
	}
	return st, nil
}

// giveUp removes a run that did not start in time, beside the others.
func (r *kubeRun) giveUp(a *app, limit time.Duration, last string) *rundir.Status {
	r.leaving = &rundir.Status{State: rundir.Stopping, Reason: fmt.Sprintf("not started within %s: it is removed", limit)}
	r.removed = make(chan *rundir.Status, 1)
	ctx := a.ctx
	go func() {
		st, err := r.session.GiveUp(ctx, limit, last, removal)
		switch {
		case unreachable(err):
			st = nil
		case err != nil:
			code := exitTarget
			st = &rundir.Status{State: rundir.Failed, ExitCode: &code, Reason: err.Error()}
		}
		r.removed <- st
	}()
	return r.leaving
}

// unreachable reports that the API server did not answer.
func unreachable(err error) bool {
	var gone *kuberay.Unreachable
	return errors.As(err, &gone)
}

func (k *kubes) away(i int, err error) error {
	var target targetError
	if errors.As(err, &target) {
		err = target.err
	}
	if k.runs[i].refused.Last(err) {
		return nil
	}
	return err
}

func (k *kubes) words() (who, what string)    { return "Kubernetes", "RayJobs" }
func (k *kubes) telling(reason string) string { return lastReason(reason) }

// pause leaves the API server some time: a look at one run is some requests.
func (k *kubes) pause() time.Duration {
	return max(pollJob, time.Duration(len(k.runs))*200*time.Millisecond)
}
