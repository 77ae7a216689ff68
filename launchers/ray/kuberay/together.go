package kuberay

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/rundir"
)

// Several runs that are launched at the same time.

// shared is the connection of one that is launched with a run, if the run's would
// lead to the same place.
func shared(o Options, others []*Prepared) *conn {
	place := Place(o.Plan)
	for _, q := range others {
		if there := Place(q.o.Plan); q.o.Where == o.Where && there[0] == place[0] && there[1] == place[1] {
			return q.c
		}
	}
	return nil
}

// atOnce is how many runs are looked at at the same time.
const atOnce = 8

// Check asks the clusters whether runs that are launched together can start, and
// the API servers whether they take the objects; nothing is changed. Findings with
// errors mean that they cannot. What is wrong in the same way for several runs is
// found once, and what they have in common is asked once.
func Check(ctx context.Context, all []*Prepared) (diag.List, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	known := new(answers)
	looks, found := make([]*look, len(all)), make([]diag.List, len(all))
	var wg sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for i, p := range all {
		l := &look{c: p.c, p: p.o.Plan, objects: p.Objects, grows: p.o.Grows, replace: p.o.Replace, user: p.info.User, known: known}
		looks[i] = l
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			var err error
			if found[i], err = p.check(ctx, l); err != nil {
				cancel(err) // the others would meet it, too
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return once(all, found), err
	}
	var more diag.List
	var err error
	if !slices.ContainsFunc(found, diag.List.HasErrors) {
		more, err = together(ctx, looks, found)
	}
	return append(once(all, found), more...), err
}

// together compares what several runs want at the same time with what is free, and
// takes out what was found of each of them about that. Runs that wait in a queue, or
// are suspended, want nothing now.
func together(ctx context.Context, looks []*look, found []diag.List) (diag.List, error) {
	type site struct {
		server string
		kind   corev1.ResourceName
	}
	var sites []site
	runs := map[site][]int{}
	for i, l := range looks {
		if j := l.objects.RayJob; l.queued() || j != nil && j.Spec.Suspend {
			continue
		}
		for _, kind := range kinds(l.objects.groups()) {
			s := site{l.c.base, kind}
			if runs[s] == nil {
				sites = append(sites, s)
			}
			runs[s] = append(runs[s], i)
		}
	}
	var out diag.List
	for _, s := range sites {
		if len(runs[s]) < 2 {
			continue
		}
		first := looks[runs[s][0]]
		got, err := first.nodes(ctx)
		switch {
		case status(err) == http.StatusForbidden: // that was told of each
			continue
		case err != nil:
			return out, err
		}
		var groups []group
		for _, i := range runs[s] {
			groups = append(groups, looks[i].objects.groups()...)
		}
		want, r := wanted(s.kind, groups), got.room(s.kind, groups)
		there, what := r.have, "the cluster has %d"
		if r.told {
			there, what = r.free, "%d of the cluster's are free now"
		}
		if want <= there {
			continue
		}
		for _, i := range runs[s] {
			found[i] = slices.DeleteFunc(found[i], func(d diag.Diagnostic) bool { return d.Code == "GRM8426" })
		}
		at, _ := ray.Roles(first.p)
		d := first.p.Finding("GRM8426", diag.Warning, at, fmt.Sprintf("the %d runs need %d %s together, and "+what, len(runs[s]), want, gpuName(s.kind, want), there),
			fmt.Sprintf("Present: %s Kubernetes starts pods where there is room and lets the others wait, so that a run may hold GPUs while it waits for more. --wait removes what has not started within kuberay.startup_deadline.", r),
			"name a queue of Kueue (kuberay.queue), which starts each when there is room for all of it; time in a queue does not count")
		d.Path = at // it is of no one experiment
		out.Add(d)
	}
	return out, nil
}

// once tells what is wrong in the same way for several runs once, at the place of
// the first: printers name the others if that is their place, too, and else they are
// places to see. What is the same may still name each run's own objects.
func once(all []*Prepared, found []diag.List) diag.List {
	type words struct {
		code, summary, detail, remedy string
		severity                      diag.Severity
	}
	type told struct {
		at   []int // in out
		also []diag.Related
	}
	if len(all) == 1 {
		return found[0]
	}
	var out diag.List
	var tellings []*told
	said := map[words]*told{}
	for i, p := range all {
		plain := strings.NewReplacer(p.Objects.Main().GetName(), "\x00")
		for _, d := range found[i] {
			k := words{d.Code, plain.Replace(d.Summary), plain.Replace(d.Detail), d.Remedy, d.Severity}
			t := said[k]
			switch {
			case t == nil:
				t = &told{at: []int{len(out)}}
				said[k], tellings = t, append(tellings, t)
				out.Add(d)
			case p.o.Plan.Prefix != "" && d.Pos == out[t.at[0]].Pos:
				first := out[t.at[0]]
				d.Summary, d.Detail = first.Summary, first.Detail
				t.at = append(t.at, len(out))
				out.Add(d)
			default:
				t.also = append(t.also, diag.Related{Pos: d.Pos, Message: "of experiment " + p.o.Plan.Name + ", too"})
			}
		}
	}
	for _, t := range tellings {
		if n := len(t.also) - mostPlaces; n > 0 {
			t.also = append(t.also[:mostPlaces], diag.Related{Message: fmt.Sprintf("of %d experiments more", n)})
		}
		for _, i := range t.at {
			out[i].Related = append(out[i].Related, t.also...)
		}
	}
	return out
}

// mostPlaces is how many places of other experiments are shown with a finding.
const mostPlaces = 8

// answers are what clusters have said to the looks of several runs: each question is
// asked once. What is kept is everybody's, and is not changed.
type answers struct {
	mu  sync.Mutex
	all map[string]*answer
}

type answer struct {
	asked sync.Once
	value any
	err   error
}

// ask asks a question, unless the look of another run has asked it at the same
// place.
func ask[T any](l *look, question string, put func() (T, error)) (T, error) {
	if l.known == nil {
		return put()
	}
	key := strings.Join([]string{l.c.base, l.c.kubeconfig, l.c.context, question}, "\x00")
	l.known.mu.Lock()
	if l.known.all == nil {
		l.known.all = map[string]*answer{}
	}
	a := l.known.all[key]
	if a == nil {
		a = new(answer)
		l.known.all[key] = a
	}
	l.known.mu.Unlock()
	a.asked.Do(func() { a.value, a.err = put() })
	v, _ := a.value.(T)
	return v, a.err
}

// read asks for what is at a path, as [ask] does. It is not nil after an error.
func read[T any](ctx context.Context, l *look, r request) (*T, error) {
	r.method = http.MethodGet
	return ask(l, strings.Join([]string{r.path, r.query.Encode(), r.accept}, "\x00"), func() (*T, error) {
		out := new(T)
		return out, l.c.do(ctx, r, out)
	})
}

// Open is the access to the run that a launch has made, over the connection of the
// launch.
func (p *Prepared) Open(run *rundir.Run, object *Object) *Session {
	return &Session{run: run, object: *object, block: settings(p.o.Plan), c: p.c}
}

// Plan is what is launched.
func (p *Prepared) Plan() *plan.Plan { return p.o.Plan }
