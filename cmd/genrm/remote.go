package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/rundir"
)

// clusterFlags name the cluster on which runs are looked for that were launched
// from another machine.
type clusterFlags struct {
	kubeFlags
	Address string `placeholder:"URL" help:"Look for the run on the Ray cluster of this dashboard, too: it may have been launched from another machine. Default: RAY_API_SERVER_ADDRESS, else RAY_ADDRESS if it is one of http or https."`
}

// finder looks runs up on a cluster.
type finder interface {
	// find is the run of an id, of a beginning of one, or the newest of the
	// caller's own ([rundir.Last]), with the files that its folder needs here. Where
	// the cluster has not, or has several, the error is a [*rundir.NotFound], and a
	// notOurs for what is there and not meant.
	find(ctx context.Context, ref string) (info rundir.Info, files map[string][]byte, err error)
	// list is every run that the cluster knows, the newest last.
	list(ctx context.Context) ([]remoteRun, error)
}

// remoteRun is a run as a cluster tells of it.
type remoteRun struct {
	rundir.Info
	Status *rundir.Status
	Files  map[string][]byte // that its folder needs; see [rundir.Create]
}

// named reports whether a cluster is named by a flag.
func (f clusterFlags) named() bool { return f.Address != "" || f.given() }

// finder is that of the cluster which flags or the environment name; nil if they
// name none.
func (f clusterFlags) finder(a *app) (finder, error) {
	if f.given() {
		return &kubeFinder{a: a, where: f.where()}, nil
	}
	address, err := ray.Address(f.Address, nil, a.getenv)
	switch {
	case err == nil:
		return &rayFinder{a: a, address: address}, nil
	case f.named():
		return nil, usagef("%v", err)
	}
	return nil, nil
}

// find opens a run of the folder of runs, or one of the cluster that is named,
// which gets a folder there.
func (a *app) find(root, ref string, on clusterFlags) (*rundir.Run, error) {
	a.where = on.where()
	if on.Address != "" && on.given() {
		return nil, usagef("--address names a Ray dashboard, and --kubeconfig, --context and --namespace a Kubernetes cluster: a run is on one of them")
	}
	if on.Address != "" {
		var err error
		if a.address, err = ray.Address(on.Address, nil, a.getenv); err != nil {
			return nil, usagef("%v", err)
		}
	}
	var missing error
	if ref != rundir.Last || !on.named() {
		run, err := rundir.Find(root, ref)
		var none *rundir.NotFound
		if !errors.As(err, &none) || len(none.Several) > 0 {
			return run, err
		}
		missing = err
	}
	f, err := on.finder(a)
	if f == nil || err != nil {
		return nil, errors.Join(err, missing)
	}
	info, files, err := f.find(a.ctx, ref)
	var none *rundir.NotFound
	var other notOurs
	switch {
	case errors.As(err, &other):
		return nil, err
	case errors.As(err, &none):
		if missing != nil && len(none.Several) == 0 {
			return nil, fmt.Errorf("%w, nor on the cluster: %w", missing, err)
		}
		return nil, err
	case err != nil && missing != nil:
		return nil, targetError{fmt.Errorf("%w; %w", missing, err)}
	case err != nil:
		return nil, targetError{err}
	}
	return a.adopt(root, info, files)
}

// adopt makes the folder of a run that was launched from another machine, unless
// it is there.
func (a *app) adopt(root string, info rundir.Info, files map[string][]byte) (*rundir.Run, error) {
	if run, err := rundir.Find(root, info.ID); err == nil {
		return run, nil
	}
	run, err := rundir.Create(root, info, files)
	if err != nil { // another command may have made it just now
		if run, e := rundir.Find(root, info.ID); e == nil {
			return run, nil
		}
		return nil, err
	}
	if me := rundir.UserName(); info.User != me {
		fmt.Fprintf(a.stderr, "genrm: note: %s is a run of %s\n", info.ID, by(info))
	}
	return run, nil
}

// by says who launched a run where.
func by(i rundir.Info) string {
	user := i.User
	if user == "" {
		user = "nobody knows whom"
	}
	if i.Host != "" {
		user += "@" + i.Host
	}
	return user
}

// pick chooses among the runs of a cluster as [rundir.Find] does; of the newest
// only the caller's own count. where names the cluster.
func pick(runs []remoteRun, ref, where string) (remoteRun, error) {
	missing := &rundir.NotFound{Root: where, Ref: ref}
	if ref == rundir.Last {
		me := rundir.UserName()
		for _, r := range slices.Backward(runs) {
			if r.User == me {
				return r, nil
			}
		}
		if len(runs) > 0 {
			return remoteRun{}, notOurs(fmt.Sprintf("no run of %s on %s, but %d of others: name one by its id", me, where, len(runs)))
		}
		return remoteRun{}, missing
	}
	var found []remoteRun
	var ids []string
	for _, r := range runs {
		if r.ID == ref {
			return r, nil
		}
		if strings.HasPrefix(r.ID, ref) && ref != "" {
			found = append(found, r)
			missing.Several = append(missing.Several, r.ID+" of "+by(r.Info))
		}
		ids = append(ids, r.ID)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	missing.Near = diag.DidYouMean(ref, ids)
	return remoteRun{}, missing
}

// notOurs is the error for what is on a cluster, and not meant.
type notOurs string

func (e notOurs) Error() string { return string(e) }

// rayFinder finds the runs of a Ray cluster by the metadata of its jobs.
type rayFinder struct {
	a       *app
	address string
	foreign []string // jobs that genrm did not launch, once list was asked
}

func (f *rayFinder) list(ctx context.Context) ([]remoteRun, error) {
	jobs, foreign, err := ray.Runs(ctx, f.address, f.a.env, version())
	if err != nil {
		return nil, err
	}
	f.foreign = foreign
	var out []remoteRun
	for _, j := range jobs {
		text, err := rundir.Text(j.Job)
		if err != nil {
			return nil, err
		}
		out = append(out, remoteRun{j.Info, j.Status, map[string][]byte{ray.JobFile: text}})
	}
	served, others, err := ray.ServeRuns(ctx, f.address, f.a.env, version())
	if err != nil {
		return nil, err
	}
	f.foreign = append(f.foreign, others...)
	for _, s := range served {
		text, err := rundir.Text(s.Serving)
		if err != nil {
			return nil, err
		}
		out = append(out, remoteRun{s.Info, s.Status, map[string][]byte{ray.ServeFile: text}})
	}
	slices.SortStableFunc(out, func(a, b remoteRun) int { return a.Created.Compare(b.Created) })
	return out, nil
}

func (f *rayFinder) find(ctx context.Context, ref string) (rundir.Info, map[string][]byte, error) {
	runs, err := f.list(ctx)
	if err != nil {
		return rundir.Info{}, nil, err
	}
	r, err := pick(runs, ref, f.address)
	if err != nil && slices.Contains(f.foreign, ref) {
		err = notOurs(fmt.Sprintf("%s on %s is not of genrm", ref, f.address))
	}
	return r.Info, r.Files, err
}

// remoteList prints the runs of a cluster, with whose they are.
func (c *listCmd) remote(a *app) error {
	f, err := c.finder(a)
	if err != nil {
		return err
	}
	runs, err := f.list(a.ctx)
	if err != nil {
		return targetError{err}
	}
	if c.Output == "json" {
		type remoteReport struct {
			*rundir.Status
			User string `json:"user"`
			Host string `json:"host"`
		}
		reports := []remoteReport{}
		for _, r := range runs {
			reports = append(reports, remoteReport{r.Status, r.User, r.Host})
		}
		return printJSON(a.stdout, reports)
	}
	if len(runs) == 0 {
		where := ""
		if c.Namespace != "" {
			where = " in the namespace " + c.Namespace
		}
		fmt.Fprintf(a.stderr, "no run on the cluster%s\n", where)
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tWORKLOAD\tTARGET\tSTATE\tSTARTED\tBY\t")
	for _, r := range runs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Workload, r.Target, stateText(r.Status), r.Created.Local().Format("2006-01-02 15:04"), by(r.Info), firstLine(r.Status.Reason))
	}
	return w.Flush()
}
