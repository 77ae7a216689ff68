package slurm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/node"
	"genrm.dev/genrm/launchers/rundir"
)

// Options is what a launch is told.
type Options struct {
	Plan    *plan.Plan
	Root    string        // of runs, on a file system that every node sees
	WorkDir string        // where relative paths of commands begin
	Env     []string      // of the caller
	Version string        // of genrm
	Judges  *graph.Judges // of another run, which the driver asks; nil for none
	Binary  string        // genrm for the nodes; "" means this one
	beside  *plan.Plan    // of judges in the same job
}

// positionsFile keeps the places of fields in the user's file, so that what a
// node finds points there.
const positionsFile = "positions.json"

// Launch freezes a run and submits its job. Findings with errors mean that
// nothing was submitted; then, and after an error, no folder is left.
func Launch(ctx context.Context, o Options) (run *rundir.Run, job *Job, found diag.List, err error) {
	if found = checkHere(ctx, o); found.HasErrors() {
		return nil, nil, found, nil
	}
	if run, err = freeze(o, rundir.NewID(o.Plan.Name, time.Now()), nil); err != nil {
		return nil, nil, nil, err
	}
	job, err = submit(ctx, o, run)
	if err != nil {
		err = errors.Join(err, run.Remove())
		var no *Refused
		if errors.As(err, &no) {
			return nil, nil, append(found, no.Finding), nil
		}
		return nil, nil, nil, err
	}
	return run, job, found, nil
}

// Test asks the scheduler whether and when the job would start, in Slurm's
// sentence, and submits nothing.
func Test(ctx context.Context, o Options) (answer string, found diag.List, err error) {
	dir, err := os.MkdirTemp("", "genrm-")
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	text, err := script(o.Plan)
	if err != nil {
		return "", nil, err
	}
	path := filepath.Join(dir, Script)
	if err := os.WriteFile(path, text, 0o700); err != nil {
		return "", nil, err
	}
	_, stderr, err := client{passed(o.Env, o.Plan), o.WorkDir, o.Env}.run(ctx, "sbatch", "--test-only", path)
	if err != nil {
		var no *Refused
		if err = refusal(o.Plan, stderr, err); errors.As(err, &no) {
			return "", diag.List{no.Finding}, nil
		}
		return "", nil, err
	}
	return strings.TrimPrefix(lastLine(stderr), "sbatch: "), nil, nil
}

// checkHere looks for what the job gets from where it is submitted: secrets by
// name, and with check_on "submit" the model paths.
func checkHere(ctx context.Context, o Options) diag.List {
	var l diag.List
	getenv := bind.Getenv(o.Env)
	for _, name := range secretNames(o.Plan) {
		if getenv(name) == "" {
			l.Add(o.Plan.Finding("GRM8117", diag.Error, "slurm", fmt.Sprintf("the variable %s holds a secret and is not set", name),
				"The job gets it by name from the shell that submits it.", "set it: export "+name+"=…"))
		}
	}
	s, _ := o.Plan.Settings.Get("slurm")
	if on, _ := s.Field("check_on").AsString(); on == "submit" {
		l = append(l, bind.Models(o.Plan, o.WorkDir)...)
	}
	if _, leaked := Environment(o.Env); leaked {
		l.Add(o.Plan.Finding("GRM8221", diag.Note, "slurm", "this shell is inside an allocation", "Its SLURM_, SBATCH_ and PMIX_ variables are kept from the new job; SLURM_CONF stays.", ""))
	}
	return l
}

// freeze makes the folder of a run. job renders what sbatch is given; nil means
// the job of this run alone.
func freeze(o Options, id string, job func(*graph.Graph) ([]byte, error)) (*rundir.Run, error) {
	p := o.Plan
	g, err := graph.Build(p, graph.Options{Block: "slurm", Judges: o.Judges})
	if err != nil {
		return nil, err
	}
	if job == nil {
		job = func(*graph.Graph) ([]byte, error) { return script(p) }
	}
	batch, err := job(g)
	if err != nil {
		return nil, err
	}
	files, err := rundir.Files(p, map[string]any{rundir.GraphFile: g, positionsFile: p.Positions})
	if err != nil {
		return nil, err
	}
	files[Script] = batch
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("the folder of runs cannot be made: %w; name another, which the nodes see, by GENRM_RUNS or cluster.run_root", err)
	}
	self := o.Binary
	if self == "" {
		if self, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	binary, err := rundir.KeepBinary(root, self)
	if err != nil {
		return nil, fmt.Errorf("the folder of runs cannot be written: %w; name another, which the nodes see, by GENRM_RUNS or cluster.run_root", err)
	}
	host, _ := os.Hostname()
	return rundir.Create(root, rundir.Info{ID: id, Name: p.Name, Workload: string(p.Workload), Target: string(plan.Slurm), Created: time.Now().UTC(),
		PlanHash: g.PlanHash, Version: o.Version, Host: host, User: rundir.UserName(), WorkDir: o.WorkDir, Binary: binary}, files)
}

// Adopt makes a run of a folder that emit wrote, for a job that was submitted by
// hand: it is called by the job. It returns the run's folder.
func Adopt(dir string, env []string, version string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, rundir.PlanFile))
	if err != nil {
		return "", fmt.Errorf("%w: submit the job in the folder that emit wrote", err)
	}
	p, err := readPlan(data)
	if err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(dir, rundir.PlanFile), err)
	}
	getenv := bind.Getenv(env)
	root := p.Cluster.RunRoot
	if root == "" {
		root = rundir.Root(getenv("GENRM_RUNS"), dir)
	}
	run, err := freeze(Options{Plan: p, Root: root, WorkDir: dir, Env: env, Version: version}, rundir.NewID(p.Name, time.Now()), nil)
	if err != nil {
		return "", err
	}
	return run.Dir, run.Write(JobFile, Job{ID: getenv("SLURM_JOB_ID"), Submitted: time.Now().UTC()})
}

func readPlan(data []byte) (*plan.Plan, error) {
	p := new(plan.Plan)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err
	}
	return p, nil
}

// NodeOptions fills in what a supervisor learns from the job that it runs in.
func NodeOptions(ctx context.Context, run *rundir.Run, env []string) (node.Options, error) {
	getenv := bind.Getenv(env)
	o := node.Options{Run: run, Attempt: 1, Env: env, JobID: getenv("SLURM_JOB_ID")}
	if n, err := strconv.Atoi(getenv("SLURM_RESTART_COUNT")); err == nil {
		o.Attempt += n
	}
	o.Name, _ = os.Hostname() // without one clients are told the loopback address
	n, err := strconv.Atoi(getenv("SLURM_NODEID"))
	if err != nil {
		return o, errors.New("SLURM_NODEID is not set: a Slurm run's node is started by srun, in its job")
	}
	o.Node = n
	var g graph.Graph
	if err := run.Read(rundir.GraphFile, &g); err != nil {
		return o, err
	}
	if has, err := strconv.Atoi(getenv("SLURM_STEP_NUM_NODES")); err == nil && has != g.Nodes {
		return o, fmt.Errorf("the plan needs %d nodes, and the job step has %d", g.Nodes, has)
	}
	data, err := os.ReadFile(run.Path(rundir.PlanFile))
	if err != nil {
		return o, err
	}
	p, err := readPlan(data)
	if err != nil {
		return o, err
	}
	_ = run.Read(positionsFile, &p.Positions) // a job by hand has none
	s, _ := p.Settings.Get("slurm")
	switch {
	case g.Nodes > 1:
		iface, _ := s.Field("interface").AsString()
		family, ok := s.Field("address_family").AsString()
		if !ok {
			family = "ipv4"
		}
		if o.Host, err = bind.Host(ctx, iface, family); err != nil {
			return o, err
		}
	case g.Peer("ray-head") != nil:
		o.Host = "127.0.0.2" // Ray puts the machine's outer address in the place of 127.0.0.1
	default:
		o.Host = "127.0.0.1"
	}
	devices := bind.Devices{Source: "the job's share of this node"}
	if n := g.Devices(o.Node); n > 0 {
		devices = jobDevices(ctx, getenv)
		o.Devices = devices.IDs[:min(n, len(devices.IDs))]
	}
	o.Check = func() diag.List {
		m := bind.Machine{Getenv: getenv, WorkDir: run.WorkDir, Devices: devices, Node: o.Node}
		return bind.Check(ctx, p, &g, m)
	}
	return o, nil
}

// jobDevices are the GPUs of the job on this node: as Slurm made them visible,
// else as it numbers them, else what the machine has, for clusters that do not
// schedule GPUs.
func jobDevices(ctx context.Context, getenv func(string) string) bind.Devices {
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"} {
		if v := getenv(name); v != "" && v != "NoDevFiles" {
			return bind.Devices{IDs: strings.Split(v, ","), Source: name + "=" + v}
		}
	}
	if n, err := strconv.Atoi(getenv("SLURM_GPUS_ON_NODE")); err == nil && n > 0 {
		ids := make([]string, n)
		for i := range ids {
			ids[i] = strconv.Itoa(i)
		}
		return bind.Devices{IDs: ids, Source: fmt.Sprintf("SLURM_GPUS_ON_NODE=%d", n)}
	}
	return bind.FindDevices(ctx, nil, func(string) string { return "" })
}
