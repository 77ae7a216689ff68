// Package node runs the processes of one node of a run and leaves none behind.
//
// It may not know where it runs: on the machine of the user, or in a job step of
// a scheduler. It decides nothing that the graph says; what it chooses on the
// node (ports, devices) it chooses by package bind.
//
// Two processes do it. The guard ([Guard]) starts the supervisor ([Supervise])
// and outlives it: it ends whatever is left when the supervisor is killed. The
// supervisor ends the run when the guard is killed. Both adopt orphans
// (PR_SET_CHILD_SUBREAPER), and direct children get SIGTERM from the kernel when
// the supervisor dies. What survives even both being killed at once is found by
// its environment or session: [Leftovers].
package node

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	neturl "net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// Variables that every process of a run has in its environment.
const (
	RunVariable     = "GENRM_RUN_ID"
	DirVariable     = "GENRM_RUN_DIR"
	ProcessVariable = "GENRM_PROCESS"
)

// Exit statuses of a run.
const (
	ExitService = 3   // a service failed, or did not get ready
	ExitStopped = 143 // a driver was stopped on request; a run without one ends with 0
)

// Options is what a supervisor is told.
type Options struct {
	Run     *rundir.Run
	Node    int
	Attempt int      // from 1
	Env     []string // of the processes, under what the graph says
	JobID   string
	Host    string     // address of this node for others; "" means loopback
	Name    string     // of this node for clients of a gateway that listens on every address; "" means loopback
	Ports   bind.Range // where ports may be taken, if the binding is made here
	Devices []string   // GPUs of this node, if the binding is made here
	// Check looks at this node before anything starts; nil when a launcher did.
	Check func() diag.List
	Stop  <-chan Stop
	Log   io.Writer        // what the supervisor has to say about itself
	Now   func() time.Time // for what is shown; waits use a clock that nobody sets. nil means time.Now
}

// Stop asks a supervisor to end the run.
type Stop struct {
	Why   string
	Now   bool // do not wait for anything: KILL
	Fault bool // the run fails by it
}

// BindingFile is where the choices of a node are kept, for one attempt.
func BindingFile(node, attempt int) string { return fmt.Sprintf("nodes/%d.%d.json", node, attempt) }

// task is a process on its way.
type task struct {
	p       *graph.Process
	st      rundir.Process
	mine    bool // of this node
	id      proc.ID
	out     *output
	cancel  context.CancelFunc // ends its probes
	running bool
	began   time.Time
	killAt  time.Time // when TERM has not helped; zero: no TERM was sent
	kills   int       // times that KILL was sent
	faulty  bool      // the run fails because of it
	judged  bool      // its end was looked at once, see exited
}

// outcome is how a run ends. The first one counts: what follows from it, such as
// services that are stopped, does not change it.
type outcome struct {
	state  rundir.State
	code   int
	reason string
}

type supervisor struct {
	Options
	graph    *graph.Graph
	tasks    []*task
	self     int
	lead     bool // of node 0: it keeps the status of the run
	bindings []graph.Binding
	held     bind.Held
	events   chan func() // run by the loop, which owns all state
	ctx      context.Context
	began    time.Time
	status   rundir.Status
	end      *outcome
	rayToken string
	asked    bool // to stop
	hurry    bool // to stop without waiting
	dirty    bool
	flushed  time.Time     // when the status was written last
	cost     time.Duration // of that
	reaped   time.Time
	hidden   []proc.ID // see noteHidden
	untold   []rundir.Event
	old      bool // a later attempt of the run has begun: it is its folder now
	gone     int  // times in a row that the run's folder was not there
	wrote    error
}

// Supervise runs a node's processes to the end of the run and returns the run's
// exit status. An error means that the run could not even begin.
func Supervise(o Options) (int, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	// The kernel takes the end of the thread that started a child for that of the
	// supervisor (man 2 PR_SET_PDEATHSIG): all of them are started by this one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &supervisor{Options: o, self: os.Getpid(), lead: o.Node == 0, events: make(chan func(), 64), ctx: ctx, began: time.Now()}
	err := s.prepare()
	var stop stopped
	switch {
	case errors.As(err, &stop):
		s.stop(Stop(stop))
		err = nil
	case err != nil:
		s.settle(rundir.Failed, ExitService, err.Error())
	default:
		s.loop()
	}
	cancel()
	s.sweep()
	s.lastOutput()
	s.releaseJudges()
	s.finish()
	s.held.Close()
	s.heard()
	return s.end.code, err
}

// prepare reads what is frozen and binds the node.
func (s *supervisor) prepare() error {
	if err := proc.Subreaper(); err != nil {
		s.say("orphans cannot be adopted: %v", err)
	}
	now := s.Now().UTC()
	host, _ := os.Hostname()
	s.status = rundir.Status{
		RunID: s.Run.ID, Name: s.Run.Name, Workload: s.Run.Workload, Target: s.Run.Target, State: rundir.Starting, Attempt: s.Attempt, StartedAt: &now,
		Supervisor: &rundir.Supervisor{ID: proc.Identify(os.Getppid()), Host: host, Boot: proc.BootID()}, Processes: []rundir.Process{},
	}
	if err := s.Run.Verify(); err != nil {
		return err
	}
	s.graph = new(graph.Graph)
	if err := s.Run.Read(rundir.GraphFile, s.graph); err != nil {
		return err
	}
	for _, p := range s.graph.Processes {
		s.tasks = append(s.tasks, &task{p: p, mine: p.Node == s.Node, st: rundir.Process{
			Name: p.Name, Kind: string(p.Kind), Role: string(p.Role), RouteKey: p.RouteKey, Replica: p.Replica, Node: p.Node, State: rundir.Waiting,
		}})
	}
	s.event("run.starting", nil, "")
	s.flush()
	if s.Check != nil {
		if err := s.check(); err != nil {
			return err
		}
	}
	if err := s.bind(); err != nil {
		return err
	}
	if len(s.bindings) > s.Node {
		for _, path := range s.bindings[s.Node].Paths {
			if err := os.MkdirAll(path, 0o700); err != nil {
				return err
			}
		}
	}
	if s.lead && s.graph.Peer("ray-head") != nil {
		token := make([]byte, 32)
		_, _ = rand.Read(token) // never fails
		s.rayToken = hex.EncodeToString(token)
		return os.WriteFile(s.Run.Path(graph.TokenFile), []byte(s.rayToken), 0o600)
	}
	return nil
}

// bind reads the node's binding or makes it, and waits for those of the nodes
// that this one refers to.
func (s *supervisor) bind() error {
	s.bindings = make([]graph.Binding, s.graph.Nodes)
	file := BindingFile(s.Node, s.Attempt)
	if err := s.Run.Read(file, &s.bindings[s.Node]); errors.Is(err, os.ErrNotExist) {
		id := s.Run.ID
		if s.Attempt > 1 { // an earlier attempt may still remove its folders
			id += strconv.Itoa(s.Attempt)
		}
		b, held, err := bind.Node(s.graph, s.Node, s.Devices, bind.Options{Host: s.Host, Ports: s.Ports, RunID: id})
		if err != nil {
			return err
		}
		s.held, s.bindings[s.Node] = held, b
		if err := s.Run.Write(file, b); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	for _, n := range s.graph.Needs(s.Node) {
		for start := time.Now(); n != s.Node; time.Sleep(100 * time.Millisecond) {
			if s.Run.Read(BindingFile(n, s.Attempt), &s.bindings[n]) == nil {
				break
			}
			if time.Since(start) > bindTimeout {
				return fmt.Errorf("node %d has not said its address for %s: is its job step running?", n, bindTimeout)
			}
			select {
			case why := <-s.Stop:
				return stopped(why)
			default:
			}
			if req, ok := s.Run.StopRequested(); ok {
				return stopped{Why: "stopped by " + req.By}
			}
			if !s.Run.Exists() {
				return errRemoved
			}
		}
	}
	return nil
}

// stopped is a request to stop that came before anything was started.
type stopped Stop

func (e stopped) Error() string { return e.Why }

var errRemoved = errors.New("the folder of the run was removed while it ran")

// check fails with the list of what this node lacks.
func (s *supervisor) check() error {
	found := s.Check()
	if !found.HasErrors() {
		return nil
	}
	var b strings.Builder
	if err := found.Text(&b, diag.TextOptions{}); err != nil {
		return err
	}
	return fmt.Errorf("node %d lacks what the run needs:\n%s", s.Node, strings.TrimSpace(b.String()))
}

// bindTimeout bounds the wait for the other nodes' bindings: job steps start
// within seconds of each other, but images may be pulled first.
const bindTimeout = 15 * time.Minute

const (
	tick      = 50 * time.Millisecond
	lookAfter = 250 * time.Millisecond // between looks at files of others
	reapAfter = 2 * time.Second        // between looks for orphans that have ended
)

func (s *supervisor) loop() {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	var looked time.Time
	for {
		s.startReady()
		s.progress()
		s.flush()
		if s.finished() {
			return
		}
		select {
		case f := <-s.events:
			f()
		case why := <-s.Stop:
			s.stop(why)
		case <-ticks.C:
			s.escalate()
			if time.Since(looked) >= lookAfter {
				looked = time.Now()
				s.look()
			}
		}
	}
}

// look sees to what others do: a request to stop, other nodes, the run's folder,
// orphans that have ended.
func (s *supervisor) look() {
	if !s.asked {
		if req, ok := s.Run.StopRequested(); ok {
			s.stop(Stop{Why: "stopped by " + req.By})
		}
	}
	if s.Run.Exists() {
		s.gone = 0
	} else if s.gone++; s.gone == 2 {
		s.settle(rundir.Failed, ExitService, errRemoved.Error())
	}
	if !s.old {
		// A scheduler that lost sight of a job may start it again while it runs.
		if st, err := s.Run.Status(); err == nil && st.Attempt > s.Attempt {
			s.old = true
			s.settle(rundir.Stopped, ExitStopped, "the scheduler has started the run again")
		}
	}
	if s.graph.Nodes > 1 && !s.old {
		s.lookAtNodes()
	}
	if time.Since(s.reaped) < reapAfter {
		return
	}
	s.reaped = time.Now()
	var own, sessions []int
	for _, t := range s.tasks {
		sessions = append(sessions, t.id.PID)
		if t.running {
			own = append(own, t.id.PID)
		}
	}
	all := proc.All()
	proc.Reap(all, s.self, own)
	s.noteHidden(all, sessions)
}

// noteHidden keeps who descends from the run's processes and has neither their
// session nor their environment: nobody would find it if supervisor and guard
// were killed.
func (s *supervisor) noteHidden(all []proc.Process, sessions []int) {
	var hidden []proc.ID
	for _, p := range proc.Below(all, s.self) {
		if !slices.Contains(sessions, p.Session) && !p.Carries(RunVariable+"="+s.Run.ID) {
			hidden = append(hidden, p.ID)
		}
	}
	if s.gone == 0 && !slices.Equal(hidden, s.hidden) && s.Run.Write(hiddenFile(s.Node), hidden) == nil {
		s.hidden = hidden
	}
}

func hiddenFile(n int) string { return fmt.Sprintf("nodes/%d.hidden.json", n) }

// lookAtNodes takes over what the other nodes say of their processes; a node
// that is not the lead also follows the lead to the end.
func (s *supervisor) lookAtNodes() {
	take := func(st *rundir.Status) {
		for _, t := range s.tasks {
			for _, p := range st.Processes {
				if p.Name == t.p.Name && !t.mine && p.State != t.st.State {
					t.st, s.dirty = p, true
					if s.lead && p.State.Ended() {
						s.ended(t)
					}
				}
			}
		}
	}
	if !s.lead {
		st, err := s.Run.Status()
		if err != nil || st.Attempt != s.Attempt {
			return
		}
		take(st)
		if st.State == rundir.Stopping || st.State.Ended() {
			s.settle(rundir.Stopped, 0, "") // the lead says how the run ends
		}
		return
	}
	for n := 1; n < s.graph.Nodes; n++ {
		var st rundir.Status
		if s.Run.Read(nodeStatus(n), &st) == nil && st.Attempt == s.Attempt {
			take(&st)
			if st.State == rundir.Failed {
				s.settle(rundir.Failed, ExitService, fmt.Sprintf("node %d: %s", n, st.Reason))
			}
		}
	}
}

// heard lets the lead notice the failure of another node before its job step is
// ended for the other's status, which would look like a signal out of nowhere.
func (s *supervisor) heard() {
	if s.lead || s.end.state != rundir.Failed {
		return
	}
	for start := time.Now(); time.Since(start) < heardTimeout; time.Sleep(lookAfter) {
		if st, err := s.Run.Status(); err == nil && (st.State == rundir.Stopping || st.State.Ended()) {
			return
		}
	}
}

// heardTimeout bounds that, for a lead that is gone.
const heardTimeout = 10 * time.Second

func nodeStatus(n int) string { return fmt.Sprintf("nodes/%d.status.json", n) }

// startReady starts the processes whose predecessors are ready.
func (s *supervisor) startReady() {
	if s.end != nil {
		return
	}
	for _, t := range s.tasks {
		if !t.mine || t.st.State != rundir.Waiting {
			continue
		}
		open := ""
		for _, name := range t.p.After {
			if s.task(name).st.State != rundir.Ready {
				open = name
				break
			}
		}
		switch {
		case open == "":
			s.start(t)
			if s.end != nil {
				return
			}
		case t.st.Awaits != open:
			t.st.Awaits, s.dirty = open, true
		}
	}
}

func (s *supervisor) task(name string) *task {
	for _, t := range s.tasks {
		if t.p.Name == name {
			return t
		}
	}
	return nil
}

// secret reads a secret. Its errors name the reference, never the value.
func (s *supervisor) secret(kind, name string) (string, error) {
	if kind == "file" {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(data), "\r\n"), nil
	}
	for _, e := range slices.Backward(s.Env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok && v != "" {
			return v, nil
		}
	}
	return "", fmt.Errorf("the variable %s holds a secret and is not set", name)
}

func (s *supervisor) context(secret func(kind, name string) (string, error)) graph.Context {
	return graph.Context{Bindings: s.bindings, RunDir: s.Run.Dir, Artifacts: s.Run.Path(rundir.Artifacts), Binary: s.Run.Binary, JobID: s.JobID, Secret: secret, Judges: s.judgesURL}
}

func (s *supervisor) start(t *task) {
	now := s.Now().UTC()
	t.began, t.st.State, t.st.StartedAt, t.st.Awaits, s.dirty = time.Now(), rundir.Starting, &now, "", true
	if t.p.Kind == graph.Remote {
		s.await(t)
		return
	}
	if err := s.spawn(t); err != nil {
		t.st.State, t.st.Reason = rundir.Failed, err.Error()
		s.event("process.failed", t, err.Error())
		s.settle(rundir.Failed, ExitService, fmt.Sprintf("%s could not be started: %v", t.p.Name, err))
		return
	}
	s.event("process.starting", t, "")
	s.await(t)
}

// judgesURL is where the judges that stand beside are asked.
func (s *supervisor) judgesURL() (string, error) {
	if s.graph.Judges == nil {
		return "", errors.New("no judges stand beside")
	}
	run, err := rundir.Open(s.graph.Judges.Dir)
	if err != nil {
		return "", err
	}
	var e rundir.Endpoints
	if err := run.Read(rundir.EndpointsFile, &e); err != nil {
		return "", err
	}
	return e.Gateway.URL, nil
}

// releaseJudges ends the judges that were started for this run alone.
func (s *supervisor) releaseJudges() {
	if s.graph == nil || s.graph.Judges == nil || !s.graph.Judges.Stop || !s.lead || s.old {
		return
	}
	run, err := rundir.Open(s.graph.Judges.Dir)
	if err == nil {
		err = run.RequestStop("run " + s.Run.ID)
	}
	if err != nil {
		s.say("the judges beside could not be asked to end: %v", err)
	}
}

// spawn starts the process in a session of its own.
func (s *supervisor) spawn(t *task) error {
	var values []string // of the secrets that this process gets
	argv, env, err := s.graph.Command(t.p, s.context(func(kind, name string) (string, error) {
		v, err := s.secret(kind, name)
		values = append(values, v)
		return v, err
	}))
	if err != nil {
		return err
	}
	if t.st.Argv, _, err = s.graph.Command(t.p, s.context(graph.Masked)); err != nil {
		return err
	}
	b := s.bindings[s.Node]
	t.st.Ports, t.st.GPUs, t.st.Host = b.Ports[t.p.Name], b.GPUs[t.p.Name], b.Host
	full := s.environment(t, env)
	dir := t.p.WorkDir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(s.Run.WorkDir, dir)
	}
	if t.p.Role == graph.Gateway { // its own secrets, read by itself
		values = append(values, s.gatewaySecrets()...)
	}
	path := bind.LookPath(argv[0], full, dir)
	if path == "" {
		return fmt.Errorf("%s: no such program in PATH", argv[0])
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("the folder %s does not exist", dir)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: path, Args: argv, Env: full, Dir: dir, Stdout: w, Stderr: w, SysProcAttr: proc.OwnSession(true)}
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return errors.Join(err, r.Close())
	}
	t.id = proc.Identify(cmd.Process.Pid)
	t.st.PID, t.st.Start, t.running = t.id.PID, t.id.Start, true
	t.out = newOutput(r, s.Run.LogPath(t.p.Name), s.graph.Log.MaxMiB, s.graph.Log.Keep, values, func(note string) {
		s.post(func() { s.event("note", t, note) })
	})
	go func() {
		err := cmd.Wait()
		// What it leaves in its group is told to end, too: an engine's workers hold
		// GPUs when its server is gone. What stays is killed with the run's end.
		_ = syscall.Kill(-t.id.PID, syscall.SIGTERM) // there may be nobody
		t.waitOutput(lastLinesAfter)
		s.post(func() { s.exited(t, cmd.ProcessState, err) })
	}()
	return nil
}

// lastLinesAfter is how long the last lines of a process that has ended may take
// to its log. A child that still has its output open is not waited for.
const lastLinesAfter = 100 * time.Millisecond

// environment is that of the caller, what marks the run's processes, defaults
// that everybody wants, and what the graph says.
func (s *supervisor) environment(t *task, own []string) []string {
	env := slices.DeleteFunc(slices.Clone(s.Env), func(e string) bool {
		if strings.HasPrefix(e, supervisorVariable+"=") {
			return true
		}
		// A Ray of the caller's is none of ours. Its token would win over the file
		// of ours. Source: RAY_AUTH_TOKEN goes before RAY_AUTH_TOKEN_PATH in Ray 2.60.0.
		return strings.HasPrefix(e, "RAY_ADDRESS=") && (t.p.Role == graph.RayHead || t.p.Role == graph.RayWorker) ||
			strings.HasPrefix(e, "RAY_AUTH_TOKEN=") && slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(o, "RAY_AUTH_TOKEN_PATH=") })
	})
	env = append(env, RunVariable+"="+s.Run.ID, DirVariable+"="+s.Run.Dir, ProcessVariable+"="+t.p.Name)
	get := func(name string) string {
		for _, e := range slices.Backward(env) {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
	if get("PYTHONUNBUFFERED") == "" { // else a log shows its lines minutes late
		env = append(env, "PYTHONUNBUFFERED=1")
	}
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"} {
		if get(name) == "" {
			continue
		}
		// Processes of the run speak to each other without the proxy.
		for _, no := range []string{"no_proxy", "NO_PROXY"} {
			list := "localhost,127.0.0.1,::1"
			for _, b := range s.bindings {
				if b.Host != "" && !strings.Contains(list, b.Host) {
					list += "," + b.Host
				}
			}
			if old := get(no); old != "" {
				list = old + "," + list
			}
			env = append(env, no+"="+list)
		}
		break
	}
	return append(env, own...)
}

// gatewaySecrets are the values that gateway.json refers to, so that they are
// hidden in its log. A reference that cannot be read is the gateway's to report.
func (s *supervisor) gatewaySecrets() []string {
	var doc any
	if s.Run.Read(rundir.Artifacts+"/gateway.json", &doc) != nil {
		return nil
	}
	var out []string
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for key, x := range v {
				if name, ok := x.(string); ok && len(v) == 1 && (key == "env" || key == "file") {
					if value, err := s.secret(key, name); err == nil {
						out = append(out, value)
					}
				}
				walk(x)
			}
		}
	}
	walk(doc)
	return out
}

// post runs f in the loop. After the loop's end nothing is run any more.
func (s *supervisor) post(f func()) {
	select {
	case s.events <- f:
	case <-s.ctx.Done():
	}
}

// await watches a started process get ready, and then that it stays well.
func (s *supervisor) await(t *task) {
	if t.p.Ready == nil {
		s.ready(t)
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	t.cancel = cancel
	base, err := s.graph.URL(t.p, t.p.Ready.URL, s.context(graph.Masked))
	if err != nil {
		s.lost(t, err.Error())
		return
	}
	prober := newProber()
	switch t.p.Ready.Probe {
	case graph.ProbeRemote:
		prober.key = s.gatewayKey()
	case graph.ProbeRay:
		prober.key = s.token()
	}
	go func() {
		err := prober.awaitReady(ctx, t.p, base, func(what string) {
			s.post(func() { t.st.Awaits, s.dirty = what, true })
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.post(func() { s.lost(t, err.Error()) })
			return
		}
		s.post(func() { s.ready(t) })
		if t.p.Live == nil {
			return
		}
		address, err := s.graph.URL(t.p, t.p.Live.URL, s.context(graph.Masked))
		if err == nil {
			err = prober.watch(ctx, t.p, address)
		}
		if err != nil {
			s.post(func() { s.lost(t, err.Error()) })
		}
	}()
}

// token is that of the run's Ray; on other nodes than the first it is read.
func (s *supervisor) token() string {
	if s.rayToken == "" {
		data, _ := os.ReadFile(s.Run.Path(graph.TokenFile)) // without one Ray answers what is wrong
		s.rayToken = string(data)
	}
	return s.rayToken
}

// gatewayKey is the key that clients of the gateway send, or "".
func (s *supervisor) gatewayKey() string {
	var c struct {
		APIKey struct{ Env, File string } `json:"api_key"`
	}
	if s.Run.Read(rundir.Artifacts+"/gateway.json", &c) != nil {
		return ""
	}
	var key string
	switch {
	case c.APIKey.Env != "":
		key, _ = s.secret("env", c.APIKey.Env)
	case c.APIKey.File != "":
		key, _ = s.secret("file", c.APIKey.File)
	}
	return key
}

func (s *supervisor) ready(t *task) {
	if t.st.State != rundir.Starting {
		return
	}
	now := s.Now().UTC()
	t.st.State, t.st.ReadyAt, t.st.Awaits, t.st.ReadyAfter, s.dirty = rundir.Ready, &now, "", since(t.began), true
	s.event("process.ready", t, "")
}

func since(t time.Time) float64 { return float64(time.Since(t).Milliseconds()) / 1000 }

// progress notices that the run as a whole is ready.
func (s *supervisor) progress() {
	if !s.lead || s.status.State != rundir.Starting || s.end != nil {
		return
	}
	for _, t := range s.tasks {
		if t.st.State != rundir.Ready {
			return
		}
	}
	if s.graph.Peer("gateway") != nil {
		e, err := s.endpoints()
		if err == nil {
			err = s.Run.Write(rundir.EndpointsFile, e)
		}
		if err != nil {
			s.settle(rundir.Failed, ExitService, "the endpoints could not be written: "+err.Error())
			return
		}
	}
	now := s.Now().UTC()
	s.status.State, s.status.ReadyAt, s.status.ReadyAfter, s.dirty = rundir.Ready, &now, since(s.began), true
	s.event("run.ready", nil, "")
}

// endpoints says where the judges are asked.
func (s *supervisor) endpoints() (*rundir.Endpoints, error) {
	gateway := s.graph.Peer("gateway")
	c := s.context(graph.Masked)
	url, err := s.graph.URL(gateway, gateway.Ready.URL, c)
	if err != nil {
		return nil, err
	}
	url = strings.TrimSuffix(url, "/health")
	e := &rundir.Endpoints{RunID: s.Run.ID, Gateway: rundir.Gateway{URL: url}, FailurePolicy: s.graph.FailurePolicy}
	var config struct {
		Host   string            `json:"host"`
		APIKey map[string]string `json:"api_key"`
	}
	if err := s.Run.Read(rundir.Artifacts+"/gateway.json", &config); err != nil {
		return nil, err
	}
	e.Gateway.APIKey = config.APIKey
	if ip := net.ParseIP(strings.Trim(config.Host, "[]")); s.Name != "" && ip.IsUnspecified() {
		at, err := neturl.Parse(url)
		if err != nil {
			return nil, err
		}
		at.Host = net.JoinHostPort(s.Name, at.Port())
		url, e.Gateway.URL = at.String(), at.String()
	}
	for _, p := range s.graph.Processes {
		if p.RouteKey == "" || p.NodeRank > 0 {
			continue
		}
		in, ok := e.Instances.Get(p.RouteKey)
		if !ok {
			in = rundir.Endpoint{URL: url, Model: p.RouteKey, Engine: p.Engine, FailurePolicy: s.graph.FailurePolicy}
		}
		if p.Role == graph.Engine {
			base, err := s.graph.URL(p, p.Ready.URL, c)
			if err != nil {
				return nil, err
			}
			in.Replicas = append(in.Replicas, base)
		}
		e.Instances.Set(p.RouteKey, in)
	}
	return e, nil
}

// lost is a process that does not get ready or is dead although it runs.
func (s *supervisor) lost(t *task, why string) {
	if t.st.State.Ended() || s.end != nil {
		return
	}
	t.st.Reason, t.faulty, s.dirty = why, true, true
	s.event("process.failed", t, why)
	s.settle(rundir.Failed, ExitService, t.p.Name+": "+why+s.lastLines(t))
	if !t.running {
		t.st.State = rundir.Failed
	}
}

// lastLines shows the end of a process's log in a message.
func (s *supervisor) lastLines(t *task) string {
	if t.out == nil {
		return ""
	}
	lines := t.out.last(messageLines)
	if len(lines) == 0 {
		return "; it printed nothing"
	}
	return "\n  | " + strings.Join(lines, "\n  | ")
}

// exited is told the end of a process of this node.
func (s *supervisor) exited(t *task, st *os.ProcessState, err error) {
	if !t.running {
		return // given up already
	}
	code, how, asked := s.ending(t, st, err)
	if asked && s.end == nil && !t.judged {
		// Somebody may have told every process to end, the supervisor too, such as a
		// scheduler: its signal is under way.
		t.judged = true
		time.AfterFunc(signalsWithin, func() { s.post(func() { s.exited(t, st, err) }) })
		return
	}
	t.running, s.dirty = false, true
	if t.cancel != nil {
		t.cancel()
	}
	now := s.Now().UTC()
	t.st.EndedAt, t.st.ExitCode = &now, &code
	before := t.st.State
	switch {
	case t.faulty:
		t.st.State = rundir.Failed
	case !t.killAt.IsZero() || s.end != nil && asked:
		t.st.State = rundir.Stopped
	case code == 0:
		t.st.State = rundir.Exited
	default:
		t.st.State = rundir.Failed
	}
	if s.end == nil {
		switch {
		case t.p.Kind == graph.Driver && code == 0:
			s.settle(rundir.Succeeded, 0, "")
		case t.p.Kind == graph.Driver:
			t.st.Reason = how
			s.settle(rundir.Failed, code, "the driver "+how+s.lastLines(t))
		default:
			t.st.State = rundir.Failed // whatever its status
			when := "although the run had not ended"
			if before == rundir.Starting {
				when = "before it was ready"
			}
			t.st.Reason = how + " " + when
			s.settle(rundir.Failed, ExitService, t.p.Name+" "+t.st.Reason+s.lastLines(t))
		}
	}
	s.event("process."+string(t.st.State), t, how)
}

// ended is told the end of another node's process.
func (s *supervisor) ended(t *task) {
	if s.end == nil && t.p.Kind == graph.Service {
		s.settle(rundir.Failed, ExitService, fmt.Sprintf("%s on node %d: %s", t.p.Name, t.p.Node, t.st.Reason))
	}
}

// signalsWithin is how far apart the signals to several processes may come.
const signalsWithin = 200 * time.Millisecond

// ending says how a process ended. asked means that it looks as if a signal had
// told it to.
func (s *supervisor) ending(t *task, st *os.ProcessState, err error) (code int, how string, asked bool) {
	if st == nil {
		return ExitService, "ended, and its status is not known: " + err.Error(), false
	}
	code = st.ExitCode()
	how = fmt.Sprintf("ended with status %d", code)
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		t.st.Signal = signalName(ws.Signal())
		code, how = 128+int(ws.Signal()), "was killed by "+t.st.Signal
	}
	return code, how, code == 128+int(syscall.SIGTERM) || code == 128+int(syscall.SIGINT) || code == 128+int(syscall.SIGHUP)
}

// waitOutput lets what is on the way reach the log.
func (t *task) waitOutput(limit time.Duration) {
	select {
	case <-t.out.done:
	case <-time.After(limit):
	}
}

// lastOutput lets every log have its last lines: nobody writes any more.
func (s *supervisor) lastOutput() {
	deadline := time.Now().Add(2 * time.Second)
	for _, t := range s.tasks {
		if t.out != nil {
			t.waitOutput(time.Until(deadline))
		}
	}
}

func signalName(n syscall.Signal) string {
	if name := unix.SignalName(n); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(n))
}

// settle decides how the run ends, once, and begins to stop what runs.
func (s *supervisor) settle(state rundir.State, code int, reason string) {
	if s.end != nil {
		return
	}
	s.end = &outcome{state, code, reason}
	s.status.State, s.status.Reason, s.dirty = rundir.Stopping, reason, true
	s.event("run.stopping", nil, reason)
	for _, t := range s.tasks {
		if t.cancel != nil {
			t.cancel()
		}
		if t.mine && (t.st.State == rundir.Waiting || t.p.Kind == graph.Remote && !t.st.State.Ended()) {
			t.st.State, t.st.Awaits = rundir.Stopped, ""
		}
	}
	s.escalate()
}

const guardKilled = "its guard was killed"

// stop is a request from outside.
func (s *supervisor) stop(r Stop) {
	if req, ok := s.Run.StopRequested(); ok && !r.Fault {
		r.Why = "stopped by " + req.By
	} else if guard := s.status.Supervisor; guard != nil && guard.Start > 0 && !guard.Alive() {
		// Who ends a lost run asks so, and may be quicker than the leash.
		r.Why, r.Fault = guardKilled, true
	}
	s.asked = true
	if r.Now && !s.hurry {
		s.hurry = true
		for _, t := range s.tasks {
			if t.running {
				t.killAt = time.Now()
			}
		}
	}
	state, code := rundir.Stopped, 0
	for _, t := range s.tasks {
		if t.p.Kind == graph.Driver {
			code = ExitStopped
		}
	}
	if r.Fault {
		state, code = rundir.Failed, ExitService
	}
	s.settle(state, code, r.Why)
	s.escalate()
}

// escalate sends TERM to what has to end now, and KILL to what had its time.
// Drivers and the gateway go first: what they talk to is there to the last.
func (s *supervisor) escalate() {
	if s.end == nil {
		return
	}
	first := false
	for _, t := range s.tasks {
		if t.running && early(t.p) {
			first = true
		}
	}
	all := []proc.Process(nil)
	for _, t := range s.tasks {
		if !t.running || first && !early(t.p) && !s.hurry {
			continue
		}
		switch {
		case t.killAt.IsZero():
			t.killAt, t.st.State, s.dirty = time.Now().Add(seconds(t.p.StopTimeout)), rundir.Stopping, true
			_ = syscall.Kill(-t.id.PID, syscall.SIGTERM) // it may just have ended
		case time.Now().After(t.killAt):
			if all == nil {
				all = proc.All()
			}
			// The group at once, so that none of it sees another end and goes on; then
			// those that left it.
			_ = syscall.Kill(-t.id.PID, syscall.SIGKILL)
			for _, p := range proc.Below(all, t.id.PID) {
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
			t.killAt = time.Now().Add(killEvery)
			if t.st.Reason == "" && !s.hurry {
				t.st.Reason = fmt.Sprintf("did not end within %s of SIGTERM and was killed", seconds(t.p.StopTimeout))
			}
			if t.kills++; t.kills > maxKills { // it hangs in the kernel, by a driver or a file server
				t.running, t.st.State, s.dirty = false, rundir.Failed, true
				t.st.Reason = fmt.Sprintf("pid %d cannot be killed: the kernel does not let it go", t.id.PID)
				s.event("process.failed", t, t.st.Reason)
			}
		}
	}
}

// KILL is sent so often, so far apart. Variables for tests.
var (
	killEvery = time.Second
	maxKills  = 30
)

func early(p *graph.Process) bool { return p.Kind == graph.Driver || p.Role == graph.Gateway }

func (s *supervisor) finished() bool {
	if s.end == nil {
		return false
	}
	return !slices.ContainsFunc(s.tasks, func(t *task) bool { return t.running })
}

// sweep ends whatever the node's processes left behind.
func (s *supervisor) sweep() {
	n, err := proc.End(func() []proc.Process {
		all := proc.All()
		proc.Reap(all, s.self, nil)
		return proc.Below(all, s.self)
	}, sweepGrace)
	if n > 0 {
		s.say("ended %d processes that were left behind", n)
		s.event("note", nil, fmt.Sprintf("%d processes were left behind and ended", n))
	}
	if err != nil {
		s.say("%v", err)
		s.event("note", nil, err.Error())
	}
	if s.rayToken != "" && s.lead && !s.old {
		_ = os.Remove(s.Run.Path(graph.TokenFile)) // it is worth nothing any more
	}
	if s.Node < len(s.bindings) {
		for _, path := range s.bindings[s.Node].Paths {
			if err := os.RemoveAll(path); err != nil {
				s.say("%v", err)
			}
		}
	}
}

// sweepGrace is what an orphan gets between TERM and KILL: the process that it
// belonged to has had its own time.
const sweepGrace = 2 * time.Second

// finish writes the end of the run.
func (s *supervisor) finish() {
	now := s.Now().UTC()
	s.status.State, s.status.EndedAt, s.status.ExitCode, s.status.Reason = s.end.state, &now, &s.end.code, s.end.reason
	s.event("run."+string(s.end.state), nil, s.end.reason)
	s.dirty = true
	for range 20 { // a full disk may have room again
		if s.write(); !s.dirty || s.old || !s.Run.Exists() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// flush writes the status if it changed, and so seldom that the loop has four
// fifths of its time for other things: with hundreds of processes, or a slow
// disk, a write takes as long as many changes.
func (s *supervisor) flush() {
	if s.dirty && time.Since(s.flushed) >= min(4*s.cost, time.Second) {
		s.write()
	}
}

func (s *supervisor) write() {
	if !s.dirty || s.gone > 0 || s.old {
		return
	}
	start := time.Now()
	defer func() {
		for _, e := range s.untold {
			_ = s.Run.AppendEvent(e) // the status says the same; a full disk is told there
		}
		s.untold, s.flushed = nil, time.Now()
		s.cost = s.flushed.Sub(start)
	}()
	s.status.Processes = s.status.Processes[:0]
	for _, t := range s.tasks {
		if t.mine || s.lead {
			s.status.Processes = append(s.status.Processes, t.st)
		}
	}
	var err error
	if s.lead {
		err = s.Run.WriteStatus(&s.status)
	} else {
		err = s.Run.Write(nodeStatus(s.Node), &s.status)
	}
	if err == nil {
		s.dirty = false
	}
	if (err == nil) != (s.wrote == nil) {
		s.say("status: %v", err)
	}
	s.wrote = err
}

func (s *supervisor) event(kind string, t *task, message string) {
	e := rundir.Event{Time: s.Now().UTC(), Type: kind, Node: s.Node, Message: message}
	if t != nil {
		e.Process, e.PID = t.p.Name, t.st.PID
	}
	// It is told when the status knows it: who hears of it may look there.
	s.untold, s.dirty = append(s.untold, e), true
	s.say("%s %s %s", kind, e.Process, message)
}

func (s *supervisor) say(format string, args ...any) {
	if s.Log != nil {
		fmt.Fprintf(s.Log, "%s %s\n", s.Now().UTC().Format(time.RFC3339Nano), strings.TrimSpace(fmt.Sprintf(format, args...)))
	}
}
