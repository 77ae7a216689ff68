package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/ray/kuberay"
	"genrm.dev/genrm/launchers/rundir"
)

// kubeFlags name a Kubernetes cluster.
type kubeFlags struct {
	Kubeconfig string `placeholder:"FILE" help:"Kubernetes: the kubeconfig. Default: KUBECONFIG, else ~/.kube/config, else the pod's own service account."`
	Context    string `placeholder:"NAME" help:"Kubernetes: context of the kubeconfig. Default: the run's, else its current one."`
	Namespace  string `placeholder:"NAME" help:"Kubernetes: namespace. Default: kuberay.namespace, else the context's."`
}

func (f kubeFlags) where() kuberay.Where {
	return kuberay.Where{Kubeconfig: f.Kubeconfig, Context: f.Context, Namespace: f.Namespace}
}

func (f kubeFlags) given() bool { return f != kubeFlags{} }

// kuberay applies the objects of the run of each plan to a Kubernetes cluster, and
// with --wait follows them.
func (c *launchCmd) kuberay(a *app, plans []*plan.Plan) error {
	switch {
	case c.Detach:
		return usagef("a run on Kubernetes is left to KubeRay anyway: --detach belongs to target local")
	case c.TestOnly:
		return usagef("--test-only asks a scheduler: it goes with target slurm; --dry-run=server asks the API server")
	case c.Rehearse, c.Judges != "":
		return usagef("--rehearse and --judges do not go with target kuberay")
	case c.Replace && plans[0].Workload != plan.Serve:
		return usagef("--replace changes the object of served judges: each %s run has an object of its own", plans[0].Workload)
	case c.Follow && len(plans) > 1:
		return oneLog(len(plans))
	}
	if c.DryRun == dryClient {
		return c.manifests(a, plans)
	}
	prepared, at, err := c.prepareKube(a, plans)
	switch {
	case err != nil:
		return err
	case c.DryRun == dryServer:
		return c.wouldTake(a, prepared)
	case len(prepared) > 1:
		return c.launchKubes(a, prepared, at)
	}
	run, object, found, err := prepared[0].Launch(a.ctx)
	if err := a.sent(run, at[0].known, at[0].root, found, err); err != nil {
		return err
	}
	return c.launched(a, run, object.String(), func(out io.Writer) error { return c.followKube(a, run, out) })
}

// prepareKube makes the objects of every plan and asks whether they can be launched,
// before the first is.
func (c *launchCmd) prepareKube(a *app, plans []*plan.Plan) (out []*kuberay.Prepared, at []runRoots, err error) {
	cwd, err := os.Getwd()
	if err != nil {
		return nil, nil, err
	}
	var found diag.List
	for _, p := range plans {
		known, root, err := c.roots(a, p)
		if err != nil {
			return nil, nil, err
		}
		ready, more, err := kuberay.Prepare(kuberay.Options{Plan: p, Where: c.kube().where(), Root: root, WorkDir: cwd, Env: a.env, Version: version(), Grows: c.Grows, Replace: c.Replace}, out)
		found = append(found, more...)
		if err != nil {
			return nil, nil, errors.Join(a.print(found), targetError{err})
		}
		if ready != nil {
			out, at = append(out, ready), append(at, runRoots{known, root})
		}
	}
	if len(out) == len(plans) {
		more, e := kuberay.Check(a.ctx, out)
		found, err = append(found, more...), e
	}
	if e := a.print(found); e != nil {
		return nil, nil, errors.Join(e, err)
	}
	switch {
	case err != nil:
		return nil, nil, targetError{err}
	case found.HasErrors():
		return nil, nil, exitStatus(exitTarget)
	}
	return out, at, nil
}

// wouldTake says what the API server would take.
func (c *launchCmd) wouldTake(a *app, prepared []*kuberay.Prepared) error {
	var all []map[string]any
	for _, p := range prepared {
		var names []string
		for _, o := range p.Objects.All() {
			names = append(names, strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind)+"/"+o.GetName())
		}
		all = append(all, map[string]any{"dry_run": "server", "name": p.Plan().Name, "namespace": p.Namespace(), "objects": names})
		if c.Output != "json" {
			fmt.Fprintf(a.stdout, "the API server would take %s in %s; nothing was changed\n", strings.Join(names, " and "), p.Namespace())
		}
	}
	if c.Output != "json" {
		return nil
	}
	return printEach(a.stdout, all)
}

// manifests prints the objects of runs that are not made.
func (c *launchCmd) manifests(a *app, plans []*plan.Plan) error {
	if c.Namespace != "" {
		if err := kuberay.CheckNamespace(c.Namespace); err != nil {
			return usagef("--namespace: %v", err)
		}
	}
	host, _ := os.Hostname()
	now := time.Now().UTC()
	var found diag.List
	var list []any
	var text []byte
	for i, p := range plans {
		objects, more, err := kuberay.Build(p, kuberay.Run{ID: rundir.NewID(p.Name, now), User: rundir.UserName(), Host: host, Version: version(), Created: now})
		if err != nil {
			return err
		}
		if found = append(found, more...); found.HasErrors() {
			continue
		}
		for _, o := range objects.All() {
			if c.Namespace != "" {
				o.SetNamespace(c.Namespace)
			}
			u, err := kuberay.Unstructured(o)
			if err != nil {
				return err
			}
			list = append(list, u.Object)
		}
		documents, err := kuberay.Manifest(p, objects)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append(text, "---\n"...)
		}
		text = append(text, documents...)
	}
	if err := a.print(found); err != nil {
		return err
	}
	if found.HasErrors() {
		return exitStatus(exitInput)
	}
	if c.Output == "json" {
		return printJSON(a.stdout, map[string]any{"apiVersion": "v1", "kind": "List", "items": list})
	}
	_, err := a.stdout.Write(text)
	return err
}

// locked lets several write whole pieces.
type locked struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.Write(p)
}

const (
	lookLeast = 500 * time.Millisecond // between two looks at a run, however much changes
	lookMost  = 5 * time.Second        // without a sign of change
)

// settles is how long an application must have failed until that is believed, or
// have run, where it may be the one before a change: KubeRay may tell what Ray has
// said just before it was given the change.
const settles = 15 * time.Second

// removal is how long what belongs to an object may take to go.
const removal = 3 * time.Minute

// followKube shows how a run gets on until it has ended; served judges, until
// they are ready. A signal leaves it alone: it is KubeRay's now.
func (c *launchCmd) followKube(a *app, run *rundir.Run, to io.Writer) error {
	s, err := kuberay.Open(run, kuberay.Where{}, a.env, version())
	if err != nil {
		return targetError{err}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	asking, signals, stop := a.untilSignal(ctx)
	defer stop()
	out := &locked{out: to}
	logged := make(chan error, 1)
	if run.Workload == string(plan.Serve) {
		logged <- nil
	} else {
		go func() { logged <- s.Follow(ctx, out, func(error) error { return nil }) }() // the status tells who does not answer
	}
	leave := func(sig os.Signal) error {
		cancel()
		fmt.Fprintf(a.stderr, "\n%s goes on as %s; `genrm stop %s` ends it\n", run.ID, s.Object(), run.ID)
		return exitStatus(128 + number(sig))
	}
	v := &kubeView{out: out, said: map[string]bool{}}
	var refused kuberay.Refusals
	changes := s.Changes(ctx)
	var looked, checked, failing, ready time.Time
	moved := false // whether it was seen not to be ready, or on its way to what was sent
	var st *rundir.Status
	for {
		looked = time.Now()
		got, err := s.Status(asking)
		given := refused.Last(err)
		switch {
		case err != nil && asking.Err() != nil:
			return leave(<-signals)
		case given:
			return targetError{err}
		case err != nil:
			v.lost(err)
		default:
			st = got
			v.show(st)
			waiting := st.State == rundir.Pending || st.State == rundir.Starting
			if st.State != rundir.Ready {
				moved = moved || strings.HasPrefix(st.JobState, "NotReady") || strings.HasPrefix(st.Reason, "application ")
				ready = time.Time{}
			}
			switch {
			case st.State.Ended():
				return c.endKube(a, run, st, logged, signals, leave, out)
			case run.Workload == string(plan.Serve) && st.State == rundir.Ready:
				if failing = (time.Time{}); ready.IsZero() {
					ready = time.Now()
				}
				if moved || time.Since(ready) > settles {
					return c.readyKube(a, run, s, st, out)
				}
			case !kuberay.Failing(st):
				failing = time.Time{}
			case failing.IsZero(): // it may be what was before a change of the object
				failing = time.Now()
			case time.Since(failing) > settles:
				fmt.Fprintf(out, "failed\n  %s stays as it is: `genrm stop %s` removes it, launch --replace changes it\n", s.Object(), run.ID)
				return exitStatus(exitTarget)
			}
			if waiting && time.Since(checked) > lookMost {
				checked = time.Now()
				late, limit, err := s.Overdue(asking)
				if err == nil && late {
					fmt.Fprintf(out, "not started within %s: it is removed\n", limit)
					if st, err = s.GiveUp(ctx, limit, firstLine(v.last), removal); err != nil {
						return targetError{err}
					}
					return c.endKube(a, run, st, logged, signals, leave, out)
				}
			}
		}
		select {
		case sig := <-signals:
			return leave(sig)
		case <-changes:
			select {
			case sig := <-signals:
				return leave(sig)
			case <-time.After(max(0, lookLeast-time.Since(looked))):
			}
		case <-time.After(lookMost):
		}
	}
}

// kubeView tells each thing about a run once.
type kubeView struct {
	out   io.Writer
	state rundir.State
	said  map[string]bool
	last  string // reason of a run that waits
	away  time.Time
}

// lost tells of a failure to ask, once.
func (v *kubeView) lost(err error) {
	if v.away.IsZero() {
		v.away = time.Now()
		fmt.Fprintf(v.out, "Kubernetes does not answer: %v\n", err)
	}
}

func (v *kubeView) show(st *rundir.Status) {
	if !v.away.IsZero() {
		fmt.Fprintf(v.out, "Kubernetes answers again after %d s\n", int(time.Since(v.away).Seconds()))
		v.away = time.Time{}
	}
	switch st.State {
	case rundir.Pending, rundir.Starting, rundir.Stopping:
		if st.Reason != "" {
			v.last = lastReason(st.Reason)
		}
		for line := range strings.Lines(st.Reason) {
			line = string(st.State) + ": " + strings.TrimSuffix(line, "\n")
			if !v.said[line] {
				v.said[line] = true
				fmt.Fprintln(v.out, line)
			}
		}
	case rundir.Ready:
		if v.state != rundir.Ready && st.Workload != string(plan.Serve) {
			fmt.Fprintln(v.out, "running")
			clear(v.said) // another attempt waits for its own reasons
		}
	}
	v.state = st.State
}

// lastReason is the most telling line: what a pod or an event says, if there is
// any, comes last.
func lastReason(s string) string {
	lines := strings.Split(s, "\n")
	return lines[len(lines)-1]
}

// endKube shows how a run ended, after the end of its log.
func (c *launchCmd) endKube(a *app, run *rundir.Run, st *rundir.Status, logged <-chan error, signals <-chan os.Signal, leave func(os.Signal) error, out io.Writer) error {
	select {
	case err := <-logged:
		if err != nil {
			fmt.Fprintf(a.stderr, "genrm: %v\n", err)
		}
	case sig := <-signals:
		return leave(sig)
	case <-time.After(30 * time.Second):
		fmt.Fprintf(a.stderr, "genrm: note: the rest of the log cannot be had\n")
	}
	return c.concluded(a, run, st, out)
}

// readyKube shows where judges are asked.
func (c *launchCmd) readyKube(a *app, run *rundir.Run, s *kuberay.Session, st *rundir.Status, out io.Writer) error {
	if c.Output == "json" {
		return printJSON(a.stdout, report{st, run.Dir})
	}
	fmt.Fprintf(out, "ready in %s\n\n", took(st.ReadyAfter))
	e, err := s.Endpoints(a.ctx)
	if err != nil {
		return targetError{err}
	}
	return kubeEndpoints(out, s, e)
}

// kubeStatus is how a run on Kubernetes is.
func (a *app) kubeStatus(run *rundir.Run) (*rundir.Status, error) {
	return a.clusterStatus(run, func() (session, string, error) {
		s, err := kuberay.Open(run, a.where, a.env, version())
		if err != nil {
			return nil, "", err
		}
		return s, s.Server(), nil
	}, unreachable)
}

func (a *app) stopKube(run *rundir.Run, st *rundir.Status, quiet bool, out io.Writer) error {
	ended := st.State.Told()
	if ended && quiet {
		return nil
	}
	s, err := kuberay.Open(run, a.where, a.env, version())
	if err != nil {
		return err
	}
	left := ended && s.Left(a.ctx)
	if !ended || left {
		if st, err = s.Stop(a.ctx, userAtHost(), removal); err != nil {
			return fmt.Errorf("%s: %w", run.ID, err)
		}
	}
	fmt.Fprintf(out, "%s has ended: %s\n", run.ID, stateText(st))
	if left {
		fmt.Fprintf(out, "%s was still there, and is removed\n", s.Object())
	}
	return nil
}

// kuberay shows the log of the driver, or what a pod prints.
func (c *logsCmd) kuberay(a *app, run *rundir.Run) error {
	if c.Node >= 0 {
		return fmt.Errorf("%s has pods, not nodes: --process POD shows what one prints", run.ID)
	}
	s, err := kuberay.Open(run, a.where, a.env, version())
	if err != nil {
		return targetError{err}
	}
	switch {
	case c.Process != "" && c.Process != "driver", c.Process == "" && s.Object().Kind == "RayService":
		return c.kubeErr(a, c.pods(a, s))
	case c.Follow && c.Lines >= 0:
		b := &beginning{lastLines: lastLines{most: c.Lines}, out: a.stdout}
		return c.kubeErr(a, s.FollowOn(a.ctx, b, b.caught, a.lost("Kubernetes")))
	case c.Follow:
		return c.kubeErr(a, s.Follow(a.ctx, a.stdout, a.lost("Kubernetes")))
	case c.Lines < 0:
		return c.kubeErr(a, s.Log(a.ctx, a.stdout))
	}
	b := &beginning{lastLines: lastLines{most: c.Lines}, out: a.stdout}
	err = s.Log(a.ctx, b)
	return c.kubeErr(a, errors.Join(err, b.caught()))
}

// pods shows what the pods of a run print, or one of them.
func (c *logsCmd) pods(a *app, s *kuberay.Session) error {
	n := &named{only: c.Process != "", out: a.stdout, notes: a.stderr}
	t := kuberay.PodTail{Pod: c.Process, Lines: c.Lines, Pods: n.names, Line: n.line, Note: n.note, Lost: a.lost("Kubernetes")}
	if c.Follow {
		return s.FollowPods(a.ctx, t)
	}
	return s.PodLogs(a.ctx, t)
}

// beginning keeps the last lines of a log until that has caught up with what is
// added, and passes on what comes then.
type beginning struct {
	lastLines
	out  io.Writer
	past bool
}

func (b *beginning) Write(p []byte) (int, error) {
	if b.past {
		return b.out.Write(p)
	}
	return b.lastLines.Write(p)
}

func (b *beginning) caught() error {
	b.past = true
	_, err := io.WriteString(b.out, b.text())
	b.kept = nil
	return err
}

func (c *logsCmd) kubeErr(a *app, err error) error {
	var none *kuberay.ErrNoLog
	if errors.As(err, &none) {
		return none
	}
	return c.followed(a, err)
}

// kubeEndpoint shows where the judges of a RayService are asked.
func (c *endpointCmd) kuberay(a *app, run *rundir.Run) error {
	st, err := a.kubeStatus(run)
	switch {
	case err != nil:
		return err
	case st.State.Ended():
		return fmt.Errorf("%s has no endpoints any more: %s", run.ID, stateText(st))
	case st.Workload != string(plan.Serve):
		return fmt.Errorf("%s is a %s run: its judges are asked by its driver", run.ID, st.Workload)
	}
	s, err := kuberay.Open(run, a.where, a.env, version())
	if err != nil {
		return targetError{err}
	}
	e, err := s.Endpoints(a.ctx)
	if err != nil {
		return targetError{err}
	}
	if st.State != rundir.Ready {
		fmt.Fprintf(a.stderr, "genrm: note: it is %s: %s\n", st.State, firstLine(st.Reason))
	}
	if c.Output == "json" {
		return printJSON(a.stdout, e)
	}
	return kubeEndpoints(a.stdout, s, e)
}

func kubeEndpoints(out io.Writer, s *kuberay.Session, e *rundir.Endpoints) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  ROUTE_KEY\tMODEL\tENGINE\tURL\t")
	for _, i := range e.Instances {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t\n", i.Key, i.Value.Model, i.Value.Engine, i.Value.URL)
	}
	if err := w.Flush(); err != nil || len(e.Instances) == 0 {
		return err
	}
	svc, port := s.Object().ServeService()
	fmt.Fprintf(out, "\nThese addresses are the cluster's own. From here:\n\n  genrm gateway --run %s   # the GenRM API, by way of the API server\n  kubectl -n %s port-forward service/%s %d\n  curl -s http://localhost:%d%s/v1/models\n",
		e.RunID, s.Object().Namespace, svc, port, port, strings.TrimPrefix(e.Instances[0].Value.URL, s.Object().URL()))
	return nil
}

// kubeFinder finds the runs of a namespace by the labels of their objects.
type kubeFinder struct {
	a     *app
	where kuberay.Where
}

func (f *kubeFinder) list(ctx context.Context) ([]remoteRun, error) {
	all, err := kuberay.List(ctx, f.where, f.a.env, version())
	if err != nil {
		return nil, err
	}
	var out []remoteRun
	for _, r := range all {
		files, err := r.Files()
		if err != nil {
			return nil, err
		}
		out = append(out, remoteRun{r.Info, r.Status, files})
	}
	return out, nil
}

func (f *kubeFinder) find(ctx context.Context, ref string) (rundir.Info, map[string][]byte, error) {
	runs, err := f.list(ctx)
	if err != nil {
		return rundir.Info{}, nil, err
	}
	r, err := pick(runs, ref, "the namespace")
	return r.Info, r.Files, err
}
