package node

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

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
const signalsWithin = 500 * time.Millisecond

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
