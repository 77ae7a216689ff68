package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
	"genrm.dev/genrm/launchers/local"
	"genrm.dev/genrm/launchers/node"
	"genrm.dev/genrm/launchers/rundir"
)

type launchCmd struct {
	compileFlags
	rootFlag
	Detach      bool   `short:"d" help:"Target local: leave the run to its supervisor and return."`
	Wait        bool   `help:"Target local with --detach: return only when the judges are ready, or the driver has ended. Target slurm: follow the job to its end. Targets ray and kuberay: that, with what the driver prints; of judges, until they are ready."`
	Follow      bool   `short:"f" help:"Show what the processes print, too."`
	DryRun      dryRun `help:"Check this machine and show what would be started; start and write nothing. Targets ray and kuberay: print what would be sent, and ask nobody; --dry-run=server asks the API server whether it would take them."`
	TestOnly    bool   `help:"Target slurm: ask the scheduler whether and when the job would start; submit nothing."`
	NodeBinary  string `placeholder:"FILE" help:"Target slurm: genrm for the nodes, where their processors differ from this machine's. Default: this one."`
	SkipRefused bool   `help:"Launch the accepted experiments of a sweep although others are refused."`
	Judges      string `placeholder:"RUN|PATH" help:"For relax and gym: judges that the driver asks, told to it as GENRM_JUDGES_URL. A run; on target slurm also a serve experiment, which then starts and ends with this one in a heterogeneous job."`
	Address     string `placeholder:"URL" help:"Target ray: address of the dashboard, such as http://host:8265. Default: ray.address, else RAY_API_SERVER_ADDRESS, else RAY_ADDRESS if it is one of http or https."`
	Kubeconfig  string `placeholder:"FILE" help:"Target kuberay: the kubeconfig. Default: KUBECONFIG, else ~/.kube/config, else the pod's own service account."`
	Context     string `placeholder:"NAME" help:"Target kuberay: context of the kubeconfig. Default: kuberay.context, else its current one."`
	Namespace   string `short:"n" placeholder:"NAME" help:"Target kuberay: namespace. Default: kuberay.namespace, else the context's."`
	Replace     bool   `help:"Targets ray and kuberay, serve: what an older run of the experiment became is updated in place. Without it a second launch is refused."`
	Grows       bool   `help:"Targets ray and kuberay: too few GPUs are a warning, since the cluster gets nodes when it is asked."`
	Rehearse    bool   `help:"Replace every judge by a simulator that echoes: no model, no GPU, no driver."`
	Output      string `short:"o" enum:"text,json" default:"text" help:"Form of the result: text or json."`
}

func (launchCmd) Help() string {
	return `Starts an experiment on its target; on targets slurm, ray and kuberay also several at once. On target local:

 1. as vet, and stop if anything is refused;
 2. check this machine, everything at once: programs, model paths, secrets, ports, GPUs;
 3. choose free ports and GPUs, and freeze all of it in a folder of its own;
 4. start the processes under a supervisor: judges, then the gateway, ready when each has answered its health check and generated a token; for relax and gym a Ray of the run's own, then the driver;
 5. follow it: what is waited for, for how long, and how it ends.

On target slurm: as vet; look for the run's secrets here; freeze the run, submit its job.sbatch, and print the job's id. The nodes look for programs, models and GPUs before they start anything. --wait follows the queue, the start and the run to its end; Ctrl-C leaves the job alone. Several experiments are one job array.

On target ray, for relax and gym: the live cluster's GPUs, version and authentication are compared with the plan, and the run becomes a Ray job. --wait follows it, with what the driver prints; Ctrl-C leaves the job alone. Several experiments are a job each, and all are looked at before the first is submitted; --wait waits for all, and the exit status is the highest. Local folders of the ray block are uploaded.

On target ray, for serve: the cluster is looked at in the same way, and the judges become one application of Ray Serve beside those that are there, named after the experiment. --wait returns when it is ready; genrm gateway --run ID puts the GenRM API in front of it.

On target kuberay: the live cluster is looked at, everything at once: namespace, KubeRay and its fields, permissions, GPUs of the nodes, what the pods refer to; then the API server says whether it would take the objects (a RayJob, or a RayService for serve), and gets them by server-side apply. --wait follows the run, with the reasons of pods that do not start and what the driver prints, and returns for served judges when they are ready; Ctrl-C leaves the run alone. A run that does not start within kuberay.startup_deadline is removed by --wait. Several relax and gym experiments are a RayJob each: all are looked at before the first is applied; --wait waits for all, and the exit status is the highest.

On target local Ctrl-C ends the run and everything that belongs to it; a second Ctrl-C does not wait. With --detach the run goes on without this terminal: see status, logs, stop, endpoint.

Examples:

  genrm launch examples/quickstart
  genrm launch judges.cue --target local --detach --wait
  genrm launch examples/serve-two-vllm --target local --rehearse
  genrm launch examples/serve-two-vllm --target local --rehearse --dry-run
  genrm launch train.cue --target slurm --judges judges.cue --wait
  genrm launch train.cue --target ray --address http://ray-head:8265 --wait
  genrm launch sweep.cue --target kuberay --dry-run=server

Exit status: 1 errors in the input; 3 the machine lacks something, or a judge failed; that of the driver, 128+n if signal n killed it; 128+n after signal n here; 0 a run without a driver was stopped.`
}

func (c *launchCmd) Run(a *app) error {
	if err := c.belong(plan.Target(c.Target)); err != nil { // before anything is read
		return err
	}
	if c.Wait && c.DryRun != "" || c.Detach && c.Follow {
		return usagef("--dry-run does not go with --wait, nor --follow with --detach")
	}
	plans, err := a.accepted(c.compile(), c.SkipRefused)
	if err != nil {
		return err
	}
	for _, p := range plans {
		if err := c.belong(p.Target); err != nil {
			return err
		}
	}
	if len(plans) > 1 {
		return c.several(a, plans)
	}
	p := plans[0]
	if c.Judges != "" && p.Workload == plan.Serve {
		return usagef("--judges are asked by a driver, and the serve experiment %s has none", p.Name)
	}
	switch p.Target {
	case plan.Local:
		if c.TestOnly {
			return usagef("--test-only asks a scheduler: it goes with target slurm")
		}
		return c.local(a, p)
	case plan.Slurm:
		return c.slurm(a, p)
	case plan.Ray:
		if p.Workload == plan.Serve {
			return c.rayServe(a, p)
		}
		return c.ray(a, plans)
	case plan.KubeRay:
		return c.kuberay(a, plans)
	case "":
		return usagef("no target for %s: add --target (%s), or target: in the file", p.Name, targetNames())
	}
	return usagef("target %s cannot be launched", p.Target)
}

// several launches more than one experiment, where their target does that.
func (c *launchCmd) several(a *app, plans []*plan.Plan) error {
	var names, served []string
	for _, p := range plans {
		names = append(names, p.Name)
		if p.Workload == plan.Serve {
			served = append(served, p.Name)
		}
	}
	target := plans[0].Target
	mixed := slices.ContainsFunc(plans, func(p *plan.Plan) bool { return p.Target != target })
	switch {
	case mixed:
	case target == plan.Slurm:
		return c.array(a, plans)
	case (target == plan.Ray || target == plan.KubeRay) && len(served) > 0:
		return usagef("launch serves the judges of one experiment at a time on target %s, and there are %s to serve among %d: choose by --name (%s)", target, strings.Join(served, ", "), len(plans), strings.Join(names, ", "))
	case target == plan.Ray:
		return c.ray(a, plans)
	case target == plan.KubeRay:
		return c.kuberay(a, plans)
	}
	return usagef("launch starts one experiment, and there are %d: choose by --name (%s)", len(plans), strings.Join(names, ", "))
}

// belong reports flags of another target; nothing for a target that is not known.
func (c *launchCmd) belong(t plan.Target) error {
	switch {
	case t == "":
	case c.Address != "" && t != plan.Ray:
		return usagef("--address belongs to target ray")
	case c.Grows && t != plan.Ray && t != plan.KubeRay:
		return usagef("--grows belongs to targets ray and kuberay")
	case c.Replace && t != plan.Ray && t != plan.KubeRay:
		return usagef("--replace belongs to targets ray and kuberay")
	case (c.kube().given() || c.DryRun == dryServer) && t != plan.KubeRay:
		return usagef("--kubeconfig, --context, --namespace and --dry-run=server belong to target kuberay")
	}
	return nil
}

// kube are the flags that name a Kubernetes cluster.
func (c *launchCmd) kube() kubeFlags { return kubeFlags{c.Kubeconfig, c.Context, c.Namespace} }

// dryRun is the value of --dry-run, which may stand without one.
type dryRun string

// What asks in a dry run: nobody, or the API server.
const (
	dryClient dryRun = "client"
	dryServer dryRun = "server"
)

// IsBool tells kong that the flag may stand alone.
func (*dryRun) IsBool() bool { return true }

// Decode is called by kong with the flag.
func (d *dryRun) Decode(ctx *kong.DecodeContext) error {
	*d = dryClient
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	switch v := ctx.Scan.Pop().String(); dryRun(v) {
	case dryClient, "true":
	case dryServer:
		*d = dryServer
	case "false":
		*d = ""
	default:
		return fmt.Errorf("want client or server, not %q", v)
	}
	return nil
}

// roots are the folder of runs in which commands look, and the one in which the
// run is made: what the experiment states goes before the first, and --runs
// before both.
func (c *launchCmd) roots(a *app, p *plan.Plan) (known, root string, err error) {
	if known, err = c.root(a); err != nil {
		return "", "", err
	}
	if stated := p.Cluster.RunRoot; stated != "" && c.Runs == "" {
		return known, stated, nil
	}
	return known, known, nil
}

func (c *launchCmd) local(a *app, p *plan.Plan) error {
	cwd, err := os.Getwd()
	if err != nil {
		return err
	}
	known, root, err := c.roots(a, p)
	if err != nil {
		return err
	}
	judges, err := c.judges(a)
	if err != nil {
		return err
	}
	prepared, found, err := local.Prepare(a.ctx, local.Options{Plan: p, Judges: judges, Rehearse: c.Rehearse, Root: root, WorkDir: cwd, Env: a.env, Version: version()})
	if err != nil {
		return err
	}
	if err := a.print(found); err != nil {
		return err
	}
	if found.HasErrors() {
		return exitStatus(exitTarget)
	}
	if c.DryRun != "" {
		return c.dryRun(a, prepared)
	}
	started, err := prepared.Start(!c.Detach)
	if err != nil {
		return targetError{err}
	}
	if err := started.Link(known); err != nil {
		fmt.Fprintf(a.stderr, "genrm: note: the run lies in %s only: %v\n", root, err)
	}
	return c.attend(a, started)
}

// dryRun shows what would be started. Its ports are free now, and not held.
func (c *launchCmd) dryRun(a *app, p *local.Prepared) error {
	b, held, err := p.Bind("dry-run-000000")
	if err != nil {
		return targetError{err}
	}
	held.Close()
	if c.Output == "json" {
		commands := map[string]any{}
		for _, pr := range p.Graph.Processes {
			cmd, err := p.Command(pr, b)
			if err != nil {
				return err
			}
			commands[pr.Name] = map[string]any{"argv": cmd.Argv, "env": cmd.Env, "ports": b.Ports[pr.Name], "gpus": b.GPUs[pr.Name], "after": pr.After}
		}
		return printJSON(a.stdout, map[string]any{"processes": commands})
	}
	for _, pr := range p.Graph.Processes {
		cmd, err := p.Command(pr, b)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "%s (%s)\n", pr.Name, pr.Kind)
		if len(pr.After) > 0 {
			fmt.Fprintf(a.stdout, "  after  %s\n", strings.Join(pr.After, ", "))
		}
		if ports := local.Ports(b, pr.Name); ports != "" {
			fmt.Fprintf(a.stdout, "  ports  %s\n", ports)
		}
		if gpus := b.GPUs[pr.Name]; len(gpus) > 0 {
			fmt.Fprintf(a.stdout, "  GPUs   %s\n", strings.Join(gpus, ","))
		}
		for i, e := range cmd.Env {
			name, value, _ := strings.Cut(e, "=")
			q, err := shell.Quote(value)
			if err != nil {
				return err
			}
			head := "         "
			if i == 0 {
				head = "  env    "
			}
			fmt.Fprintf(a.stdout, "%s%s=%s\n", head, name, q)
		}
		if len(cmd.Argv) > 0 {
			words := make([]string, len(cmd.Argv))
			for i, w := range cmd.Argv {
				if words[i], err = shell.Quote(w); err != nil {
					return err
				}
			}
			fmt.Fprintf(a.stdout, "  starts %s\n", strings.Join(emit.Lines(plan.Lits(cmd.Argv), words), " \\\n           "))
		}
		fmt.Fprintln(a.stdout)
	}
	return nil
}

// attend follows a run until it ends, or until it may be left alone.
func (c *launchCmd) attend(a *app, s *local.Started) error {
	out := a.stdout
	if c.Output == "json" {
		out = a.stderr // the result is what is on stdout
	}
	v := &view{out: out, run: s.Run, live: a.terminal(out) && !c.Follow, quiet: c.Detach && !c.Wait, root: relative(s.Dir)}
	if c.Follow {
		v.logs = &follower{run: s.Run, lines: -1, to: &named{out: out}}
		defer v.logs.close()
	}
	signals := a.takeSignals()
	interrupted := 0
	var broken error // of the view
	for {
		st, err := s.Status()
		if err != nil && s.Exists() {
			return err
		}
		over := false
		select {
		case <-s.Ended():
			over = true
			var code int
			if st, code, err = s.End(); st == nil {
				return targetError{fmt.Errorf("the folder of the run is gone: %s", s.Dir)}
			}
			if err != nil {
				fmt.Fprintf(a.stderr, "genrm: %v\n", err)
			}
			if !st.State.Told() {
				if code < 0 {
					code = exitTarget
				}
				if interrupted > 0 {
					code = interrupted
				}
				fmt.Fprintf(a.stderr, "genrm: how the run ended could not be written; its supervisor's exit status is %d: see %s\n", code, s.LogPath("supervisor"))
				return exitStatus(code)
			}
		default:
		}
		if st != nil {
			if err := v.show(st, over); err != nil && broken == nil {
				// The terminal is gone: nobody sees any more how the run gets on.
				broken, v.out, v.live, v.logs = err, io.Discard, false, nil
				if !c.Detach {
					s.Signal(syscall.SIGHUP)
				}
			}
		}
		driver := s.Workload != "serve" && !c.Rehearse
		left := c.Detach && (!c.Wait || !driver && st != nil && st.State == rundir.Ready)
		if over || left {
			if broken != nil && interrupted == 0 {
				return broken
			}
			return c.result(a, s, st, interrupted, over)
		}
		select {
		case sig := <-signals:
			if c.Detach {
				fmt.Fprintf(a.stderr, "\n%s goes on; `genrm stop %s` ends it\n", s.ID, s.ID)
				return exitStatus(128 + number(sig))
			}
			if interrupted == 0 {
				interrupted = 128 + number(sig)
				v.note("stopping; once more does not wait")
			} else if sig == os.Interrupt {
				sig = node.Hurry
			}
			s.Signal(sig)
		case <-s.Ended():
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// result says how it ended and gives the exit status.
func (c *launchCmd) result(a *app, s *local.Started, st *rundir.Status, interrupted int, over bool) error {
	if c.Output == "json" {
		if err := printJSON(a.stdout, report{st, s.Dir}); err != nil {
			return err
		}
	}
	switch {
	case interrupted > 0:
		return exitStatus(interrupted)
	case !over:
		return nil
	case st.ExitCode != nil && *st.ExitCode != 0:
		return exitStatus(*st.ExitCode)
	}
	return nil
}

// relative shortens a path below the current folder.
func relative(path string) string {
	cwd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(cwd, path); err == nil && filepath.IsLocal(rel) {
		return rel
	}
	return path
}
