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
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

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

func (s *supervisor) task(name string) *task {
	for _, t := range s.tasks {
		if t.p.Name == name {
			return t
		}
	}
	return nil
}

// post runs f in the loop. After the loop's end nothing is run any more.
func (s *supervisor) post(f func()) {
	select {
	case s.events <- f:
	case <-s.ctx.Done():
	}
}
