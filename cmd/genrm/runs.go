package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/node"
	"genrm.dev/genrm/launchers/rundir"
	"genrm.dev/genrm/launchers/slurm"
)

// rootFlag says where runs lie.
type rootFlag struct {
	Runs string `placeholder:"DIR" help:"Folder of runs. Default: $$GENRM_RUNS, else .genrm/runs beside the nearest cue.mod, else in the current folder."`
}

func (f rootFlag) root(a *app) (string, error) {
	root := f.Runs
	if root == "" {
		cwd, err := os.Getwd()
		if err != nil {
			return "", err
		}
		root = rundir.Root(a.getenv("GENRM_RUNS"), cwd)
	}
	root, err := filepath.Abs(root)
	if err == nil && !utf8.ValidString(root) { // the run's own files, which are JSON, could not name it
		err = fmt.Errorf("the path of the folder of runs is not UTF-8: %q; name another by GENRM_RUNS", root)
	}
	return root, err
}

// runFlags are the arguments of commands about one run.
type runFlags struct {
	Ref string `arg:"" optional:"" name:"run" default:"@last" help:"Id of the run, the beginning of one, or @last."`
	rootFlag
	clusterFlags
}

func (f runFlags) open(a *app) (*rundir.Run, error) {
	root, err := f.root(a)
	if err != nil {
		return nil, err
	}
	return a.find(root, f.Ref, f.clusterFlags)
}

// report is a run for scripts: its status, and where it lies.
type report struct {
	*rundir.Status
	Dir string `json:"dir"`
}

type statusCmd struct {
	runFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"Form: text or json."`
}

func (statusCmd) Help() string {
	return `Shows the state of a run and of each of its processes: what a starting one is waited for, ports, GPUs, how it ended.

States of a run: pending (on targets slurm, ray and kuberay: it waits for its machines, with the reason), starting, ready (all services are; for relax and gym the driver runs), stopping, succeeded, failed, stopped, lost (its supervisor is gone without having ended it), unknown (its cluster does not have it any more, and its end was not seen).

Examples:

  genrm status
  genrm status quickstart-2026 -o json
  genrm status training-2026 --address http://ray-head:8265

Exit status: 0, whatever the state; 1 no such run.`
}

func (c *statusCmd) Run(a *app) error {
	run, err := c.open(a)
	if err != nil {
		return err
	}
	st, err := a.runStatus(run)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(a.stdout, report{st, run.Dir})
	}
	return statusText(a.stdout, run, st)
}

// runStatus is how a run is: what it says itself, and where a scheduler runs it
// what that says.
func (a *app) runStatus(run *rundir.Run) (*rundir.Status, error) {
	switch run.Target {
	case string(plan.Ray):
		if onRayServe(run) {
			return a.serveStatus(run)
		}
		return a.rayStatus(run)
	case string(plan.KubeRay):
		return a.kubeStatus(run)
	case string(plan.Slurm):
	default:
		return run.Status()
	}
	st, err := slurm.Status(a.ctx, run, a.env)
	if err != nil {
		return nil, targetError{err}
	}
	return st, nil
}

func statusText(out io.Writer, run *rundir.Run, st *rundir.Status) error {
	fmt.Fprintf(out, "%s\n", run.ID)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  state\t%s\n", stateText(st))
	if st.Reason != "" {
		fmt.Fprintf(w, "  reason\t%s\n", strings.ReplaceAll(st.Reason, "\n", "\n  \t"))
	}
	fmt.Fprintf(w, "  workload\t%s on %s\n", st.Workload, st.Target)
	if st.JobID != "" {
		job := st.JobID
		if st.JobState != "" {
			job += ", " + st.JobState
		}
		if st.Nodes != "" {
			job += " " + st.Nodes
		}
		fmt.Fprintf(w, "  job\t%s\n", job)
	}
	if st.Attempt > 1 {
		fmt.Fprintf(w, "  attempt\t%d\n", st.Attempt)
	}
	fmt.Fprintf(w, "  folder\t%s\n", run.Dir)
	if err := w.Flush(); err != nil {
		return err
	}
	if len(st.Processes) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	return processTable(out, st)
}

// stateText is the state with what belongs to it: "ready after 0.6 s".
func stateText(st *rundir.Status) string {
	s := string(st.State)
	switch {
	case st.State == rundir.Ready && st.ReadyAfter > 0: // a cluster does not say when it was
		s += fmt.Sprintf(" after %s", took(st.ReadyAfter))
	case st.State.Ended() && st.ExitCode != nil && *st.ExitCode != 0:
		s += fmt.Sprintf(", exit status %d", *st.ExitCode)
	}
	return s
}

func took(s float64) string { return strconv.FormatFloat(s, 'f', 1, 64) + " s" }

func processTable(out io.Writer, st *rundir.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  PROCESS\tSTATE\tPID\tPORTS\tGPUS\t")
	for _, p := range st.Processes {
		pid := "-"
		if p.PID > 0 {
			pid = strconv.Itoa(p.PID)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.State, pid, portsText(p.Ports), orDash(strings.Join(p.GPUs, ",")), detail(p))
	}
	return w.Flush()
}

// portsText shows the port for clients, or the first few.
func portsText(ports map[string]int) string {
	for _, purpose := range []string{"http", "gateway", "dashboard"} {
		if n, ok := ports[purpose]; ok {
			return strconv.Itoa(n)
		}
	}
	return "-"
}

// detail says what there is to say of a process besides its state.
func detail(p rundir.Process) string {
	switch {
	case p.State == rundir.Waiting && p.Awaits != "":
		return "after " + p.Awaits
	case p.State == rundir.Starting:
		return p.Awaits
	case p.Reason != "":
		return firstLine(p.Reason)
	case p.State == rundir.Ready && p.ReadyAfter > 0:
		return "after " + took(p.ReadyAfter)
	case p.State.Ended() && p.Signal != "":
		return p.Signal
	case p.State.Ended() && p.ExitCode != nil && *p.ExitCode != 0:
		return fmt.Sprintf("status %d", *p.ExitCode)
	}
	return ""
}

func firstLine(s string) string { line, _, _ := strings.Cut(s, "\n"); return line }

type listCmd struct {
	rootFlag
	clusterFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"Form: text or json."`
}

func (listCmd) Help() string {
	return `Lists the runs of the folder of runs, the newest last; with --address those of a Ray cluster, and with --namespace, --context or --kubeconfig those of a namespace of Kubernetes, whoever launched them. Where a cluster does not answer, the state is the one that was seen last.

Examples:

  genrm list
  genrm list --address http://ray-head:8265
  genrm list --namespace ml
  genrm list --runs /shared/runs -o json`
}

func (c *listCmd) Run(a *app) error {
	if c.named() {
		return c.remote(a)
	}
	root, err := c.root(a)
	if err != nil {
		return err
	}
	runs, err := rundir.List(root)
	if err != nil {
		return err
	}
	reports := []report{}
	said := map[string]bool{}
	for _, r := range runs {
		st, err := a.runStatus(r)
		if err != nil { // one cluster that does not answer hides no run
			if text := err.Error(); !said[text] && a.ctx.Err() == nil {
				said[text] = true
				fmt.Fprintf(a.stderr, "genrm: note: %s; what was seen last of %s is shown\n", text, r.ID)
			}
			if st, err = r.Status(); err != nil {
				return err
			}
		}
		reports = append(reports, report{st, r.Dir})
	}
	if c.Output == "json" {
		return printJSON(a.stdout, reports)
	}
	if len(runs) == 0 {
		fmt.Fprintf(a.stderr, "no run in %s\n", root)
		return nil
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tWORKLOAD\tTARGET\tSTATE\tSTARTED\t")
	for i, r := range runs {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", r.ID, r.Workload, r.Target, stateText(reports[i].Status), r.Created.Local().Format("2006-01-02 15:04"), firstLine(reports[i].Reason))
	}
	return w.Flush()
}

type endpointCmd struct {
	runFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"Form: text or json."`
}

func (endpointCmd) Help() string {
	return `Shows where the judges of a serve run are asked, and a request to paste.

JSON: {"run_id", "gateway": {"url", "api_key"?}, "failure_policy", "instances": {route_key: {"url", "model", "engine", "failure_policy", "replicas"}}}.

Examples:

  genrm endpoint
  genrm endpoint @last -o json

Exit status: 1 there is no such run, or it has no endpoints (yet, or any more).`
}

func (c *endpointCmd) Run(a *app) error {
	run, err := c.open(a)
	if err != nil {
		return err
	}
	if run.Target == string(plan.KubeRay) {
		return c.kuberay(a, run)
	}
	if st, err := run.Status(); err != nil {
		return err
	} else if st.State.Ended() {
		return fmt.Errorf("%s has no endpoints any more: %s", run.ID, stateText(st))
	}
	if onRayServe(run) {
		return c.rayServe(a, run)
	}
	e, err := endpoints(run)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(a.stdout, e)
	}
	return endpointText(a.stdout, e)
}

func endpoints(run *rundir.Run) (*rundir.Endpoints, error) {
	var e rundir.Endpoints
	err := run.Read(rundir.EndpointsFile, &e)
	if !errors.Is(err, fs.ErrNotExist) {
		return &e, err
	}
	st, err := run.Status()
	switch {
	case err != nil:
		return nil, err
	case st.Workload != "serve":
		return nil, fmt.Errorf("%s is a %s run: its judges are asked by its driver", run.ID, st.Workload)
	}
	return nil, fmt.Errorf("%s has no endpoints: it is %s", run.ID, st.State)
}

func endpointText(out io.Writer, e *rundir.Endpoints) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  ROUTE_KEY\tMODEL\tENGINE\tGATEWAY\tREPLICAS")
	for _, i := range e.Instances {
		in := i.Value
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\n", i.Key, in.Model, in.Engine, in.URL, orDash(strings.Join(in.Replicas, " ")))
	}
	if err := w.Flush(); err != nil || len(e.Instances) == 0 {
		return err
	}
	auth := ""
	if env := e.Gateway.APIKey["env"]; env != "" {
		auth = fmt.Sprintf(` -H "Authorization: Bearer $%s"`, env)
	} else if file := e.Gateway.APIKey["file"]; file != "" {
		auth = fmt.Sprintf(` -H "Authorization: Bearer $(cat '%s')"`, strings.ReplaceAll(file, `'`, `'\''`))
	}
	fmt.Fprint(out, "\n"+request(e.Gateway.URL, auth, e.Instances[len(e.Instances)-1].Key))
	return nil
}

type stopCmd struct {
	Refs []string `arg:"" optional:"" name:"run" help:"Ids of runs, beginnings of them, or @last (the default)."`
	rootFlag
	clusterFlags
	All    bool   `help:"Every run that has not ended."`
	Output string `short:"o" enum:"text,json" default:"text" help:"Form: text, or json: the status of each run afterwards, in a list."`
}

func (stopCmd) Help() string {
	return `Ends runs and waits until nothing of them is left. Each process gets SIGTERM, and SIGKILL after its stop_timeout. What survived a killed supervisor is found and ended, too. On target slurm the job is cancelled if that does not help; on target ray its job or application is ended, on target kuberay its object is removed with its pods, and both are waited for; several on clusters are ended side by side. An ended run stays as it is.

Examples:

  genrm stop
  genrm stop quickstart-2026
  genrm stop --all

Exit status: 0 ended; 1 no such run; 3 something could not be ended.`
}

func (c *stopCmd) Run(a *app) error {
	root, err := c.root(a)
	if err != nil {
		return err
	}
	var runs []*rundir.Run
	switch {
	case c.All && len(c.Refs) > 0:
		return usagef("--all names every run: leave the others out")
	case c.All && c.named():
		return usagef("--all ends the runs of the folder of runs: name those of a cluster one by one")
	case c.All:
		if runs, err = rundir.List(root); err != nil {
			return err
		}
		slices.Reverse(runs) // the last tasks of a job array wait, and would begin while the first are ended
	case len(c.Refs) == 0:
		c.Refs = []string{rundir.Last}
	}
	for _, ref := range c.Refs {
		run, err := a.find(root, ref, c.clusterFlags)
		if err != nil {
			return err
		}
		runs = append(runs, run)
	}
	ends := c.stopRuns(a, runs)
	var errs []error
	reports := []report{}
	for _, e := range ends {
		errs = append(errs, e.err)
		if e.report != nil {
			reports = append(reports, *e.report)
		}
	}
	if c.Output == "json" {
		errs = append(errs, printJSON(a.stdout, reports))
	}
	if err := errors.Join(errs...); err != nil {
		return targetError{err}
	}
	return nil
}

// stopsAtOnce bounds how many runs are ended side by side: each asks its cluster
// three times a second.
const stopsAtOnce = 8

// stopped is what came of one run.
type stopped struct {
	said   bytes.Buffer
	err    error
	report *report // where it is told as JSON
	over   chan struct{}
}

// stopRuns ends runs, those that do not get in each other's way side by side: a
// Ray job that has not started takes a minute. What is said of each is shown as a
// whole, in the order of the runs.
func (c *stopCmd) stopRuns(a *app, runs []*rundir.Run) []*stopped {
	a.stderr = &locked{out: a.stderr}
	ends := make([]*stopped, len(runs))
	lanes := map[string][]int{}
	var order []string
	for i, run := range runs {
		ends[i] = &stopped{over: make(chan struct{})}
		key := lane(run)
		if lanes[key] == nil {
			order = append(order, key)
		}
		lanes[key] = append(lanes[key], i)
	}
	places := make(chan struct{}, stopsAtOnce)
	go func() {
		for _, key := range order {
			places <- struct{}{}
			go func() {
				for _, i := range lanes[key] {
					c.stopOne(a, runs[i], ends[i])
				}
				<-places
			}()
		}
	}()
	for _, e := range ends {
		<-e.over
		if c.Output != "json" {
			if _, err := a.stdout.Write(e.said.Bytes()); err != nil {
				e.err = errors.Join(e.err, err)
			}
		}
	}
	return ends
}

// lane names what a run has to be ended in turn with: on this machine and on
// Slurm all others, since tasks of a job array that wait have to go before those
// that run; on Ray Serve the cluster's others, since each change of its
// applications sends all of them.
func lane(run *rundir.Run) string {
	switch {
	case onRayServe(run):
		return run.Target + " " + run.Workload
	case run.Target == string(plan.Ray), run.Target == string(plan.KubeRay):
		return run.Target + " " + run.ID
	}
	return ""
}

func (c *stopCmd) stopOne(a *app, run *rundir.Run, e *stopped) {
	defer close(e.over)
	if a.ctx.Err() != nil {
		return // a signal, which is the status
	}
	told := c.Output == "json"
	if told && c.All { // only of those that are ended now
		st, err := a.runStatus(run)
		told = err != nil || !st.State.Told()
	}
	e.err = a.stopRun(run, c.All, &e.said)
	if e.err != nil && a.ctx.Err() != nil {
		e.err = fmt.Errorf("%s was not seen to end", run.ID)
		return
	}
	if told {
		st, err := a.runStatus(run)
		if err != nil {
			e.err = errors.Join(e.err, err)
			return
		}
		e.report = &report{st, run.Dir}
	}
}

// stopRun ends one run. quiet says nothing of one that has ended.
func (a *app) stopRun(run *rundir.Run, quiet bool, out io.Writer) error {
	st, err := a.runStatus(run)
	if err != nil {
		return err
	}
	if run.Target == string(plan.Slurm) {
		return a.stopJob(run, st, quiet, out)
	}
	if onRayServe(run) {
		return a.stopServe(run, st, quiet, out)
	}
	if run.Target == string(plan.Ray) {
		return a.stopRay(run, st, quiet, out)
	}
	if run.Target == string(plan.KubeRay) {
		return a.stopKube(run, st, quiet, out)
	}
	if st.State.Told() {
		if left := node.Leftovers(run); len(left) == 0 {
			if !quiet {
				fmt.Fprintf(out, "%s has ended: %s\n", run.ID, stateText(st))
			}
			return nil
		}
		st.State = rundir.Lost
	}
	if st.State != rundir.Lost {
		if err := run.RequestStop(userAtHost()); err != nil {
			return err
		}
		if up := st.Supervisor; up != nil && up.Here() && up.Alive() {
			_ = syscall.Kill(up.PID, syscall.SIGTERM) // quicker than the request; it may be somebody else's process
		}
		started, said := time.Now(), time.Now()
		for {
			if st, err = run.Status(); err != nil {
				return err
			}
			if st.State.Ended() {
				break
			}
			if err := a.ctx.Err(); err != nil {
				return fmt.Errorf("%s was asked to end and has not yet", run.ID)
			}
			if time.Since(said) > 5*time.Second {
				said = time.Now()
				fmt.Fprintf(a.stderr, "%s: %s for %d s: %s\n", run.ID, st.State, int(time.Since(started).Seconds()), stillThere(st))
			}
			time.Sleep(50 * time.Millisecond)
		}
		// The guard ends right after it, and only then are ports and GPUs free.
		for end := time.Now().Add(5 * time.Second); st.Supervisor != nil && st.Supervisor.Here() && st.Supervisor.Alive() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	}
	n, err := node.EndLost(run, "stopped after its supervisor was gone")
	if n > 0 {
		fmt.Fprintf(out, "%s: ended %d processes that were left\n", run.ID, n)
	}
	if err == nil {
		fmt.Fprintf(out, "%s has ended\n", run.ID)
	}
	return err
}

func stillThere(st *rundir.Status) string {
	var names []string
	for _, p := range st.Processes {
		if !p.State.Ended() && p.State != rundir.Waiting {
			names = append(names, p.Name)
		}
	}
	return strings.Join(names, ", ")
}

func userAtHost() string {
	host, _ := os.Hostname()
	return rundir.UserName() + "@" + host
}

type pruneCmd struct {
	rootFlag
	OlderThan time.Duration `default:"168h" placeholder:"AGE" help:"Only runs that ended longer ago, such as 24h; 0s for all."`
	DryRun    bool          `help:"Only say what would be removed."`
	Output    string        `short:"o" enum:"text,json" default:"text" help:"Form: text or json."`
}

func (pruneCmd) Help() string {
	return `Removes the folders of ended runs, with their logs, and copies of genrm that no run needs any more. A run that has not ended, or of which something may be left, is kept.

Examples:

  genrm prune
  genrm prune --older-than 0s --dry-run`
}

func (c *pruneCmd) Run(a *app) error {
	if c.OlderThan < 0 {
		return usagef("--older-than wants an age, such as 24h, not %s", c.OlderThan)
	}
	root, err := c.root(a)
	if err != nil {
		return err
	}
	runs, err := rundir.List(root)
	if err != nil {
		return err
	}
	removed := []string{}
	var kept []*rundir.Run
	for _, r := range runs {
		st, err := a.runStatus(r)
		if err != nil || !st.State.Told() || st.EndedAt == nil || time.Since(*st.EndedAt) < c.OlderThan {
			kept = append(kept, r)
			continue
		}
		if !c.DryRun {
			if err := r.Remove(); err != nil {
				return err
			}
		}
		removed = append(removed, r.ID)
	}
	if !c.DryRun {
		if err := rundir.PruneBinaries(root, kept); err != nil {
			return err
		}
	}
	if c.Output == "json" {
		return printJSON(a.stdout, map[string]any{"removed": removed, "dry_run": c.DryRun})
	}
	what := "removed"
	if c.DryRun {
		what = "would remove"
	}
	for _, id := range removed {
		fmt.Fprintf(a.stdout, "%s %s\n", what, id)
	}
	return nil
}
