package node

import (
	"fmt"
	"slices"
	"time"

	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

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
