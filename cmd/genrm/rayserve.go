package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/gateway"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/ray/kuberay"
	"genrm.dev/genrm/launchers/rundir"
)

// onRayServe reports whether a run is an application of Ray Serve on target ray.
func onRayServe(run *rundir.Run) bool {
	return run.Target == string(plan.Ray) && run.Workload == string(plan.Serve)
}

// rayServe makes a serve experiment an application of a Ray cluster, and with
// --wait follows it until it is ready.
func (c *launchCmd) rayServe(a *app, p *plan.Plan) error {
	switch {
	case c.Detach:
		return usagef("an application is left to Ray Serve anyway: --detach belongs to target local")
	case c.Follow:
		return usagef("an application has no one log to follow: --wait shows how it gets on, and genrm logs -f what its replicas print")
	case c.TestOnly:
		return usagef("--test-only asks a scheduler: it goes with target slurm")
	case c.Rehearse:
		return usagef("--rehearse does not go with target ray: use target local")
	}
	if c.DryRun != "" {
		app, found, err := ray.ServeApplicationFor(p, plan.Ray)
		if err != nil {
			return err
		}
		if found.HasErrors() { // accepted plans have none
			return a.print(found)
		}
		return printJSON(a.stdout, app)
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
	run, serving, found, err := ray.LaunchServe(a.ctx, ray.Options{Plan: p, Address: address, Root: root, WorkDir: cwd, Env: a.env, Version: version(), Grows: c.Grows, Replace: c.Replace})
	if err := a.sent(run, known, root, found, err); err != nil {
		return err
	}
	return c.launched(a, run, "application "+serving.Application, func(out io.Writer) error { return c.awaitServe(a, run, out) })
}

// awaitServe shows how an application gets on until it is ready, has failed, or
// has taken longer than its judges may. It is left as it is then, also after a
// signal: it is Ray Serve's.
func (c *launchCmd) awaitServe(a *app, run *rundir.Run, out io.Writer) error {
	s, err := ray.OpenServe(run, a.address, a.env, version())
	if err != nil {
		return targetError{err}
	}
	ctx, signals, stop := a.untilSignal(context.Background())
	defer stop()
	leave := func(sig os.Signal) error {
		fmt.Fprintf(a.stderr, "\n%s goes on as an application of Ray Serve; `genrm stop %s` removes it\n", run.ID, run.ID)
		return exitStatus(128 + number(sig))
	}
	started := time.Now()
	said := map[string]string{}
	lost := a.lost("Ray")
	away := false
	var st *rundir.Status
	for {
		now, err := s.Status(ctx)
		var gone *ray.Unreachable
		switch {
		case err == nil:
			if away {
				_ = lost(nil) // stderr
				away = false
			}
			st = now
			for _, p := range st.Processes {
				text := strings.TrimSpace(fmt.Sprintf("%-8s  %s", p.State, servingDetail(p)))
				if said[p.Name] != text {
					said[p.Name] = text
					fmt.Fprintf(out, "  %-28s  %s\n", p.Name, text)
				}
			}
		case ctx.Err() != nil:
			return leave(<-signals)
		case errors.As(err, &gone):
			if !away {
				_ = lost(err) // stderr
				away = true
			}
		default:
			return targetError{err}
		}
		if st != nil && (st.State == rundir.Ready || st.State.Ended()) {
			break
		}
		if deadline := s.Deadline(); time.Since(started) > deadline {
			reason := ""
			if st != nil && st.Reason != "" {
				reason = ": " + st.Reason
			}
			fmt.Fprintf(a.stderr, "genrm: the application is not ready after %d s (readiness.timeout)%s\n%s goes on as an application of Ray Serve; `genrm stop %s` removes it\n", int(deadline.Seconds()), reason, run.ID, run.ID)
			return exitStatus(exitTarget)
		}
		select {
		case sig := <-signals:
			return leave(sig)
		case <-time.After(pollJob):
		}
	}
	if st.State == rundir.Ready {
		st.ReadyAfter = time.Since(started).Seconds()
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
		if st.State == rundir.Failed {
			fmt.Fprintf(out, "  logs: genrm logs %s\n  It keeps what it has of the cluster until genrm stop %s\n", run.ID, run.ID)
		}
	}
	if st.State != rundir.Ready {
		return exitStatus(exitTarget)
	}
	if c.Output != "json" {
		fmt.Fprintln(out)
		e, err := a.serveEndpoints(ctx, s, run)
		if err != nil {
			fmt.Fprintf(a.stderr, "genrm: note: %v\n", err)
		}
		if e != nil {
			return servingText(out, run, e)
		}
	}
	return nil
}

func servingDetail(p rundir.Process) string {
	words := []string{p.Awaits, firstLine(p.Reason)}
	if words[0] == "" || words[1] == "" {
		return words[0] + words[1]
	}
	return strings.Join(words, ": ")
}

// serveStatus is how a run on Ray Serve is.
func (a *app) serveStatus(run *rundir.Run) (*rundir.Status, error) {
	return a.clusterStatus(run, func() (session, string, error) {
		s, err := ray.OpenServe(run, a.address, a.env, version())
		if err != nil {
			return nil, "", err
		}
		return s, s.Address(), nil
	}, anyError)
}

// stopServe removes the application of a run; also one that has failed, since
// that keeps what it has of the cluster.
func (a *app) stopServe(run *rundir.Run, st *rundir.Status, quiet bool, out io.Writer) error {
	told, err := run.Status()
	if err != nil {
		return err
	}
	if told.State.Told() || st.State == rundir.Unknown {
		if !quiet {
			reason := ""
			if st.Reason != "" {
				reason = ": " + st.Reason
			}
			fmt.Fprintf(out, "%s has ended: %s%s\n", run.ID, stateText(st), reason)
		}
		return nil
	}
	s, err := ray.OpenServe(run, a.address, a.env, version())
	if err != nil {
		return err
	}
	st, err = s.Stop(a.ctx, userAtHost(), stopGrace)
	for _, note := range s.Notes {
		fmt.Fprintf(a.stderr, "genrm: warning: %s\n", note)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", run.ID, err)
	}
	fmt.Fprintf(out, "%s has ended: %s\n", run.ID, stateText(st))
	return nil
}

// serveEndpoints are the addresses of a run's judges: of the application, which
// speaks the OpenAI-style API, and not GenRM's. With an error it may be known
// nevertheless, and of use on the cluster alone.
func (a *app) serveEndpoints(ctx context.Context, s *ray.ServeSession, run *rundir.Run) (*rundir.Endpoints, error) {
	base, _, err := s.Endpoint(ctx)
	if base == "" {
		return nil, err
	}
	e := &rundir.Endpoints{RunID: run.ID, Instances: tree.Map[rundir.Endpoint]{}}
	text, e2 := s.Gateway(ctx)
	if e2 != nil {
		return nil, errors.Join(err, e2)
	}
	config, e2 := gateway.ParseConfig(text)
	if e2 != nil {
		return nil, errors.Join(err, fmt.Errorf("%s: %w", ray.GatewayFile, e2))
	}
	e.FailurePolicy = config.FailurePolicy
	for _, r := range config.Routes {
		url := base
		if r.Engine == "openai" {
			url = strings.TrimSuffix(strings.TrimRight(r.BaseURL, "/"), "/v1")
		}
		e.Instances.Set(r.RouteKey, rundir.Endpoint{URL: url, Model: r.Model, Engine: r.Engine, FailurePolicy: config.FailurePolicy})
	}
	return e, err
}

// servingEndpoint prints where an application is asked.
func (c *endpointCmd) rayServe(a *app, run *rundir.Run) error {
	s, err := ray.OpenServe(run, a.address, a.env, version())
	if err != nil {
		return targetError{err}
	}
	e, err := a.serveEndpoints(a.ctx, s, run)
	var here *ray.ErrLoopback
	if e == nil || err != nil && !errors.As(err, &here) {
		return targetError{err}
	}
	if here != nil {
		return targetError{here}
	}
	if c.Output == "json" {
		return printJSON(a.stdout, e)
	}
	return servingText(a.stdout, run, e)
}

func servingText(out io.Writer, run *rundir.Run, e *rundir.Endpoints) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  ROUTE_KEY\tMODEL\tENGINE\tOPENAI API")
	for _, i := range e.Instances {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s/v1\n", i.Key, i.Value.Model, i.Value.Engine, i.Value.URL)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, i := range e.Instances {
		if i.Value.Engine == "vllm" {
			fmt.Fprintf(out, "\n  curl -s %s/v1/chat/completions -H 'Content-Type: application/json' -d '{\"model\": \"%s\", \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'\n", i.Value.URL, i.Value.Model)
			break
		}
	}
	_, err := fmt.Fprintf(out, "\nThe GenRM API in front of it: genrm gateway --run %s\n", run.ID)
	return err
}

// rayServe shows the logs of an application's replicas, which lie on the nodes
// and are read through the dashboard.
func (c *logsCmd) rayServe(a *app, run *rundir.Run) error {
	if c.Node >= 0 {
		return fmt.Errorf("%s has no nodes of its own: name a process by --process", run.ID)
	}
	s, err := ray.OpenServe(run, a.address, a.env, version())
	if err != nil {
		return targetError{err}
	}
	n := &named{out: a.stdout, notes: a.stderr}
	t := ray.ServeTail{Process: c.Process, Lines: c.Lines, Logs: n.names, Line: n.line, Note: n.note, Lost: a.lost("Ray")}
	show := s.Logs
	if c.Follow {
		show = s.FollowLogs
	}
	err = show(a.ctx, t)
	var none *ray.ErrNoProcess
	if errors.As(err, &none) {
		return none
	}
	return c.followed(a, err)
}

// gatewayOfRun is the configuration of a run's gateway with what it has to be
// told besides: on Ray Serve the application's address, elsewhere those of its
// engines.
func (c *gatewayCmd) ofRun(a *app) (config *gateway.Config, o gateway.Options, err error) {
	run, err := c.runFlags().open(a)
	if err != nil {
		return nil, o, err
	}
	if run.Workload != string(plan.Serve) {
		return nil, o, fmt.Errorf("%s is a %s run: it has no judges to stand in front of", run.ID, run.Workload)
	}
	var text []byte
	var session *ray.ServeSession
	if onRayServe(run) {
		if session, err = ray.OpenServe(run, a.address, a.env, version()); err != nil {
			return nil, o, targetError{err}
		}
		text, err = session.Gateway(a.ctx)
	} else {
		text, err = os.ReadFile(run.Path(rundir.Artifacts + "/" + ray.GatewayFile))
	}
	if err != nil {
		return nil, o, targetError{err}
	}
	if config, err = gateway.ParseConfig(text); err != nil {
		return nil, o, fmt.Errorf("%s of %s: %w", ray.GatewayFile, run.ID, err)
	}
	if run.Target == string(plan.KubeRay) {
		s, err := kuberay.Open(run, a.where, a.env, version())
		if err != nil {
			return nil, o, targetError{err}
		}
		base, err := s.Front(a.ctx)
		if err != nil {
			return nil, o, targetError{err}
		}
		o.Fronts = map[string]gateway.Front{}
		for _, r := range config.Routes {
			if r.Engine != "openai" {
				o.Fronts[r.RouteKey] = gateway.Front{Base: base}
			}
		}
		return config, o, nil
	}
	if session == nil {
		st, err := a.runStatus(run)
		switch {
		case err != nil:
			return nil, o, err
		case st.State.Ended():
			return nil, o, fmt.Errorf("%s has ended: %s", run.ID, stateText(st))
		}
		e, err := endpoints(run)
		if err != nil {
			return nil, o, err
		}
		o.Upstreams = map[string][]string{}
		for _, i := range e.Instances {
			if i.Value.Engine != "openai" {
				o.Upstreams[i.Key] = i.Value.Replicas
			}
		}
		config.Port = 0 // the run's own gateway has it
		return config, o, nil
	}
	var base string
	var header http.Header
	if len(c.Upstream) == 0 {
		if base, header, err = session.Endpoint(a.ctx); err != nil {
			return nil, o, targetError{err}
		}
	}
	o.Fronts = map[string]gateway.Front{}
	for _, r := range config.Routes {
		if r.Engine != "openai" && base != "" {
			o.Fronts[r.RouteKey] = gateway.Front{Base: base, Header: header}
		}
	}
	return config, o, nil
}
