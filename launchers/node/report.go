package node

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/launchers/rundir"
)

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
		err = s.Run.WriteNodeStatus(strconv.Itoa(s.Node), &s.status)
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
