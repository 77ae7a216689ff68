package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/node"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// Options is what a launch is told.
type Options struct {
	Plan     *plan.Plan
	Rehearse bool          // judges are simulators, and no driver is started
	Root     string        // of runs
	WorkDir  string        // where relative paths of commands begin
	Env      []string      // of the processes, under what the plan says
	Version  string        // of genrm
	Judges   *graph.Judges // of another run, which the driver asks; nil for none
}

// Prepared is a run that could start here.
type Prepared struct {
	o       Options
	plan    *plan.Plan // what runs: the user's, or its rehearsal
	Graph   *graph.Graph
	Devices []string // GPUs for the plan's indices
	spare   []string // more of them that are free
}

// Prepare builds the process graph and checks this machine. Findings with errors
// mean that the run would fail; nothing was started or written.
func Prepare(ctx context.Context, o Options) (*Prepared, diag.List, error) {
	p := &Prepared{o: o, plan: o.Plan}
	if o.Rehearse {
		var err error
		if p.plan, err = graph.Rehearse(o.Plan); err != nil {
			return nil, nil, err
		}
	}
	g, err := graph.Build(p.plan, graph.Options{Block: "local", Rehearse: o.Rehearse, Judges: o.Judges})
	if err != nil {
		return nil, nil, err
	}
	p.Graph = g
	settings, _ := o.Plan.Settings.Get("local")
	var stated []string
	if gpus := settings.Field("gpus"); gpus.OK() {
		for _, item := range gpus.Items {
			stated = append(stated, item.Text)
		}
	}
	need := 0
	var devices bind.Devices
	if !o.Rehearse {
		need = graph.GPUs(p.plan)
	}
	if need > 0 {
		devices = bind.FindDevices(ctx, stated, bind.Getenv(o.Env))
		p.Devices = devices.IDs[:min(need, len(devices.IDs))]
		for _, id := range devices.IDs[len(p.Devices):] {
			if _, busy := devices.Busy[id]; !busy {
				p.spare = append(p.spare, id)
			}
		}
	}
	return p, bind.Check(ctx, p.plan, g, bind.Machine{Getenv: bind.Getenv(o.Env), WorkDir: o.WorkDir, Devices: devices}), nil
}

// Bind chooses ports. What it holds is given back by its Close.
func (p *Prepared) Bind(runID string) (graph.Binding, bind.Held, error) {
	settings, _ := p.o.Plan.Settings.Get("local")
	var ports bind.Range
	if v := settings.Field("ports"); v.OK() && len(v.Items) == 2 {
		first, _ := v.Items[0].AsInt()
		last, _ := v.Items[1].AsInt()
		ports = bind.Range{First: int(first), Last: int(last)}
	}
	host := "127.0.0.1"
	if p.Graph.Peer("ray-head") != nil {
		host = "127.0.0.2" // Ray puts the machine's outer address in the place of 127.0.0.1
	}
	return bind.Node(p.Graph, 0, p.Devices, bind.Options{Host: host, Ports: ports, RunID: runID, Exclusive: true, Spare: p.spare})
}

// Command is a command for people: secrets are references, and the folder of the
// run, which there is not yet, is RUN.
type Command struct{ Argv, Env []string }

// Command completes the command of a process.
func (p *Prepared) Command(pr *graph.Process, b graph.Binding) (Command, error) {
	argv, env, err := p.Graph.Command(pr, graph.Context{Bindings: []graph.Binding{b}, RunDir: "RUN", Artifacts: "RUN/artifacts", Binary: "genrm", Secret: graph.Masked})
	return Command{argv, env}, err
}

// Started is a run whose supervisor works.
type Started struct {
	*rundir.Run
	guard *os.Process
	leash io.Closer
	ended chan struct{}
	code  int // of the guard, once ended is closed; -1: killed
}

// Start freezes the run and hands it to a supervisor of its own session. With
// attached the run ends when this process does, however that ends. After an
// error nothing runs, and there is no folder unless something had run.
func (p *Prepared) Start(attached bool) (*Started, error) {
	hash, err := p.o.Plan.Hash()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	id := rundir.NewID(p.o.Plan.Name, now)
	b, held, err := p.Bind(id)
	if err != nil {
		return nil, err
	}
	defer held.Close() // the guard has them, too
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(p.o.Root)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, fmt.Errorf("the folder of runs cannot be made: %w; name another by GENRM_RUNS or cluster.run_root", err)
	}
	binary, err := rundir.KeepBinary(root, self)
	if err != nil {
		return nil, fmt.Errorf("the folder of runs cannot be written: %w; name another by GENRM_RUNS or cluster.run_root", err)
	}
	host, _ := os.Hostname()
	info := rundir.Info{ID: id, Name: p.o.Plan.Name, Workload: string(p.o.Plan.Workload), Target: string(plan.Local), Created: now.UTC(), PlanHash: hash,
		Version: p.o.Version, Host: host, User: rundir.UserName(), WorkDir: p.o.WorkDir, Binary: binary}
	settings, _ := p.o.Plan.Settings.Get("local")
	if dir, ok := settings.Field("log_dir").AsString(); ok {
		if !filepath.IsAbs(dir) {
			dir = filepath.Join(p.o.WorkDir, dir)
		}
		info.LogDir = filepath.Join(dir, id)
	}
	files, err := rundir.Files(p.plan, map[string]any{rundir.GraphFile: p.Graph, node.BindingFile(0, 1): b})
	if err != nil {
		return nil, err
	}
	run, err := rundir.Create(root, info, files)
	if err != nil && info.LogDir == "" {
		return nil, fmt.Errorf("the folder of runs cannot be written: %w; name another by GENRM_RUNS or cluster.run_root", err)
	}
	if err != nil {
		return nil, err
	}
	s, err := p.guard(run, held, attached)
	if err != nil {
		return nil, errors.Join(err, run.Remove())
	}
	return s, nil
}

func (p *Prepared) guard(run *rundir.Run, held bind.Held, attached bool) (*Started, error) {
	log, err := os.OpenFile(run.LogPath("supervisor"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the guard's now
	cmd := exec.Command(run.Binary, "node", "--run", run.Dir, "--node", "0")
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.SysProcAttr = p.o.Env, p.o.WorkDir, log, log, held, proc.OwnSession(false)
	s := &Started{Run: run, ended: make(chan struct{})}
	if attached {
		cmd.Args = append(cmd.Args, "--leash")
		r, w, err := os.Pipe()
		if err != nil {
			return nil, err
		}
		cmd.Stdin, s.leash = r, w
		defer func() { _ = r.Close() }() // the guard's now
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s.guard = cmd.Process
	go func() {
		_ = cmd.Wait() // the status file says how the run ended
		s.code = cmd.ProcessState.ExitCode()
		close(s.ended)
	}()
	for {
		select {
		case <-s.ended: // so soon: what it has to say is in its log and, mostly, in the status
			return s, nil
		case <-time.After(5 * time.Millisecond):
		}
		if run.HasStatus() {
			return s, nil
		}
	}
}

// Signal asks the run to stop; [node.Hurry], at once.
func (s *Started) Signal(sig os.Signal) {
	_ = s.guard.Signal(sig) // it may just have ended
}

// Ended is closed when the guard has ended. See [Started.End].
func (s *Started) Ended() <-chan struct{} { return s.ended }

// End makes sure, once the guard has ended, that nothing of the run is left, and
// returns how it ended. That a guard could not say it means that it was killed;
// or that the folder of the run is full or gone, and the exit status is all that
// there is: -1 means that there is none. The status is nil without a folder.
func (s *Started) End() (*rundir.Status, int, error) {
	if !s.Exists() {
		return nil, s.code, nil
	}
	st, err := s.Status()
	if err == nil && st.State == rundir.Lost {
		_, err = node.EndLost(s.Run, "its guard was killed")
		if again, e := s.Status(); e == nil {
			st = again
		}
	}
	return st, s.code, err
}

// Ports lists the ports of a binding for people, by process.
func Ports(b graph.Binding, process string) string {
	var out []string
	for _, purpose := range slices.Sorted(maps.Keys(b.Ports[process])) {
		out = append(out, fmt.Sprintf("%s %d", purpose, b.Ports[process][purpose]))
	}
	return strings.Join(out, ", ")
}
