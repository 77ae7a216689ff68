package rundir

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/proc"
)

// State says how far a run, or a process of it, is.
type State string

// States. A run is never waiting or exited; a driver that runs is ready.
const (
	Waiting   State = "waiting" // for the processes that it comes after
	Starting  State = "starting"
	Ready     State = "ready"
	Stopping  State = "stopping"
	Exited    State = "exited" // by itself, status 0
	Succeeded State = "succeeded"
	Failed    State = "failed"
	Stopped   State = "stopped" // by us
	Pending   State = "pending" // in a scheduler's queue, for the first time or again
	Unknown   State = "unknown" // nobody can say how it ended
	Lost      State = "lost"    // the supervisor is gone without having said how it ended
)

// Ended reports whether the state is final.
func (s State) Ended() bool {
	switch s {
	case Exited, Succeeded, Failed, Stopped, Lost, Unknown:
		return true
	}
	return false
}

// Told reports whether the state is final and the run itself said so: nothing of
// it is left, which [Lost] does not mean.
func (s State) Told() bool { return s.Ended() && s != Lost }

// Status is status.json.
type Status struct {
	RunID      string      `json:"run_id"`
	Name       string      `json:"name"`
	Workload   string      `json:"workload"`
	Target     string      `json:"target"`
	State      State       `json:"state"`
	Reason     string      `json:"reason,omitempty"` // why it is in this state, where that is not plain
	ExitCode   *int        `json:"exit_code"`        // of the run; null until its end
	Attempt    int         `json:"attempt"`          // from 1; more when a scheduler started it again
	StartedAt  *time.Time  `json:"started_at,omitempty"`
	ReadyAt    *time.Time  `json:"ready_at,omitempty"`
	EndedAt    *time.Time  `json:"ended_at,omitempty"`
	ReadyAfter float64     `json:"ready_after_s,omitempty"` // seconds by a clock that nobody sets
	Supervisor *Supervisor `json:"supervisor,omitempty"`
	JobID      string      `json:"job_id,omitempty"`    // of a scheduler
	JobState   string      `json:"job_state,omitempty"` // in the scheduler's words
	Nodes      string      `json:"nodes,omitempty"`     // that the scheduler gave, in its words
	Processes  []Process   `json:"processes"`
}

// Process is one process of a run.
type Process struct {
	Name       string         `json:"name"`
	Kind       string         `json:"kind"` // service or driver
	Role       string         `json:"role"` // engine, gateway, remote, ray-head, ray-worker, driver
	RouteKey   string         `json:"route_key,omitempty"`
	Replica    int            `json:"replica"`
	Node       int            `json:"node"`
	Host       string         `json:"host,omitempty"`
	State      State          `json:"state"`
	Reason     string         `json:"reason,omitempty"`
	Awaits     string         `json:"awaits,omitempty"` // what a starting process is waited for
	PID        int            `json:"pid,omitempty"`
	Start      uint64         `json:"start,omitempty"` // see proc.ID
	Ports      map[string]int `json:"ports,omitempty"`
	GPUs       []string       `json:"gpus,omitempty"`
	ExitCode   *int           `json:"exit_code,omitempty"`
	Signal     string         `json:"signal,omitempty"`
	StartedAt  *time.Time     `json:"started_at,omitempty"`
	ReadyAt    *time.Time     `json:"ready_at,omitempty"`
	EndedAt    *time.Time     `json:"ended_at,omitempty"`
	ReadyAfter float64        `json:"ready_after_s,omitempty"`
	Argv       []string       `json:"argv,omitempty"` // secrets as references
}

// begins bounds the time from making a run's folder to the first word of a
// supervisor on the same machine, which takes milliseconds.
const begins = time.Minute

// Status reads the run's status. Where its supervisor is of this machine and
// gone although the run has not ended, or never came, the state is [Lost].
func (r *Run) Status() (*Status, error) {
	s := &Status{}
	err := r.Read(statusFile, s)
	if errors.Is(err, fs.ErrNotExist) {
		s = &Status{RunID: r.ID, Name: r.Name, Workload: r.Workload, Target: r.Target, State: Starting, Attempt: 1, Processes: []Process{}}
		if host, _ := os.Hostname(); r.Target == "local" && r.Host == host && time.Since(r.Created) > begins {
			s.State, s.Reason = Lost, "its supervisor never began"
		}
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	if up := s.Supervisor; !s.State.Ended() && up != nil {
		host, _ := os.Hostname()
		if up.Host == host && (up.Boot != proc.BootID() || !up.Alive()) {
			s.State, s.Reason = Lost, "its supervisor is gone without having ended it; `genrm stop "+r.ID+"` ends what is left"
			if up.Boot != proc.BootID() {
				s.Reason = "the machine was started anew"
			}
		}
	}
	return s, nil
}

// HasStatus reports whether a supervisor has begun to tell.
func (r *Run) HasStatus() bool {
	_, err := os.Stat(r.path(statusFile))
	return err == nil
}

// WriteStatus replaces the run's status.
func (r *Run) WriteStatus(s *Status) error { return r.Write(statusFile, s) }

// WriteNodeStatus replaces the status of one node's processes, for runs of
// several.
func (r *Run) WriteNodeStatus(node string, s *Status) error {
	return r.Write("nodes/"+node+".status.json", s)
}

// Endpoints is endpoints.json: where the judges of a serve run are asked.
type Endpoints struct {
	RunID         string             `json:"run_id"`
	Gateway       Gateway            `json:"gateway"`
	FailurePolicy string             `json:"failure_policy"`
	Instances     tree.Map[Endpoint] `json:"instances"` // by route_key, in the user's order
}

// Gateway is the run's gateway.
type Gateway struct {
	URL    string            `json:"url"`
	APIKey map[string]string `json:"api_key,omitempty"` // reference to the key that clients send: {"env": NAME} or {"file": PATH}
}

// Endpoint is one judge.
type Endpoint struct {
	URL           string   `json:"url"`   // the gateway's
	Model         string   `json:"model"` // for OpenAI-style requests to URL/v1
	Engine        string   `json:"engine"`
	FailurePolicy string   `json:"failure_policy"`
	Replicas      []string `json:"replicas,omitempty"` // base addresses of its engines
}

// Event is one line of events.jsonl.
type Event struct {
	Time    time.Time `json:"time"`
	Type    string    `json:"type"` // run.STATE, process.STATE, note
	Process string    `json:"process,omitempty"`
	Node    int       `json:"node,omitempty"`
	PID     int       `json:"pid,omitempty"`
	Message string    `json:"message,omitempty"`
}

// AppendEvent adds a line to events.jsonl. It does not make the file's folder.
func (r *Run) AppendEvent(e Event) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(r.path(eventsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n')) // one write: lines of several nodes do not mix
	return errors.Join(err, f.Close())
}

// Events reads the lines of events.jsonl that are complete, from an offset in
// bytes, and returns where the next begin.
func (r *Run) Events(from int64) ([]Event, int64, error) {
	f, err := os.Open(r.path(eventsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, from, nil
	}
	if err != nil {
		return nil, from, err
	}
	defer func() { _ = f.Close() }() // only read
	if _, err := f.Seek(from, 0); err != nil {
		return nil, from, err
	}
	var out []Event
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return out, from, nil // the rest is not whole yet
		}
		from += int64(len(line))
		var e Event
		if json.Unmarshal(line, &e) == nil {
			out = append(out, e)
		}
	}
}
