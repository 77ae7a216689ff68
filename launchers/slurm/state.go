package slurm

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/launchers/rundir"
)

// record is what Slurm says of a job.
type record struct {
	state    string // such as PENDING, RUNNING, COMPLETED, OUT_OF_MEMORY
	reason   string
	start    string // estimate of a pending job; "" for none
	code     int
	signal   int
	derived  int // highest status of its steps
	restarts int
	nodes    string
}

// errNoRecord says that Slurm answers, and does not know the job (any more).
var errNoRecord = errors.New("no record of the job in Slurm")

// query asks accounting first, which keeps ended jobs, then the controller,
// which forgets them after MinJobAge (300 s).
func query(ctx context.Context, c client, id string) (record, error) {
	acct, acctErr := c.sacct(ctx, id)
	if acctErr == nil && over(acct.state) {
		return acct, nil
	}
	job, err := c.scontrol(ctx, id)
	switch {
	case err == nil:
		return job, nil
	case acctErr == nil: // accounting may lag behind
		return acct, nil
	}
	return record{}, err
}

// sacct reads the accounting. Clusters without slurmdbd answer with an error.
func (c client) sacct(ctx context.Context, id string) (record, error) {
	out, stderr, err := c.run(ctx, "sacct", "-X", "-n", "-P", "-j", id, "-o", "JobID,State,ExitCode,DerivedExitCode,Restarts,NodeList,Reason")
	if err != nil && strings.Contains(stderr, "Invalid field") { // older releases lack some
		out, _, err = c.run(ctx, "sacct", "-X", "-n", "-P", "-j", id, "-o", "JobID,State,ExitCode,DerivedExitCode")
	}
	if err != nil {
		return record{}, err
	}
	var last record
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) < 4 || f[0] != id {
			continue
		}
		state, _, _ := strings.Cut(f[1], " ") // "CANCELLED by 0"
		last = record{state: state}
		last.code, last.signal = status(f[2])
		last.derived, _ = status(f[3])
		if len(f) >= 7 {
			last.restarts, _ = strconv.Atoi(f[4])
			last.nodes, last.reason = f[5], f[6]
		}
	}
	if last.state == "" {
		return last, errNoRecord
	}
	return last, nil
}

// field finds one of scontrol's, which end at the next key. The comment, which
// is ours, is the only one that a job's owner could forge others in.
var field = regexp.MustCompile(`(?:^| )(JobState|Reason|StartTime|ExitCode|DerivedExitCode|Restarts|NodeList)=(\S*)`)

func (c client) scontrol(ctx context.Context, id string) (record, error) {
	out, stderr, err := c.run(ctx, "scontrol", "-d", "-o", "show", "job", id)
	if err != nil {
		// The second, on standard output, is of an array's task that was cancelled in
		// the queue, as long as other tasks are there.
		if strings.Contains(stderr, "Invalid job id") || stderr == "" && strings.HasSuffix(strings.TrimSpace(out), " not found") {
			return record{}, errNoRecord
		}
		var gone *Unreachable
		if errors.As(err, &gone) {
			return record{}, err
		}
		return record{}, &Unreachable{fmt.Errorf("scontrol: %s", lastLine(stderr))}
	}
	var r record
	for _, m := range field.FindAllStringSubmatch(strings.Split(strings.TrimSpace(out), "\n")[0], -1) {
		switch m[1] {
		case "JobState":
			if r.state == "" {
				r.state = m[2]
			}
		case "Reason":
			r.reason = m[2]
		case "StartTime":
			if m[2] != "Unknown" {
				r.start = m[2]
			}
		case "ExitCode":
			r.code, r.signal = status(m[2])
		case "DerivedExitCode":
			r.derived, _ = status(m[2])
		case "Restarts":
			r.restarts, _ = strconv.Atoi(m[2])
		case "NodeList":
			r.nodes = m[2]
		}
	}
	if r.state == "" {
		return r, &Unreachable{fmt.Errorf("scontrol's answer has no JobState: %s", lastLine(out))}
	}
	return r, nil
}

// status reads Slurm's CODE:SIGNAL.
func status(s string) (code, signal int) {
	a, b, _ := strings.Cut(s, ":")
	code, _ = strconv.Atoi(a)
	signal, _ = strconv.Atoi(b)
	return code, signal
}

// over reports whether a state is final. PREEMPTED and REQUEUED jobs may run
// again: they are not.
func over(state string) bool {
	return slices.Contains([]string{"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "REVOKED"}, state)
}

// waiting reports whether a job has yet to run, for the first time or again.
func waiting(state string) bool {
	return slices.Contains([]string{"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "PREEMPTED", "SPECIAL_EXIT", "RESV_DEL_HOLD", "SUSPENDED", "STOPPED"}, state)
}

// means says a state in words.
var means = map[string]string{
	"OUT_OF_MEMORY": "Slurm ended it: it used more memory than it asked for (slurm.mem)",
	"TIMEOUT":       "Slurm ended it: its time was over (slurm.time)",
	"NODE_FAIL":     "a node failed",
	"BOOT_FAIL":     "a node could not be started",
	"DEADLINE":      "Slurm ended it: its deadline was over",
	"PREEMPTED":     "preempted by another job",
	"REVOKED":       "another cluster took it",
}

// Status is how a run is: what its supervisors say, and what Slurm says where
// they are silent, or it knows better.
//
// A job counts as succeeded when Slurm says COMPLETED with 0:0 and the run's own
// status says succeeded: either alone was seen to lie. A run that Slurm does not
// know any more and that did not say how it ended is [rundir.Unknown].
func Status(ctx context.Context, run *rundir.Run, env []string) (*rundir.Status, error) {
	own, err := run.Status()
	if err != nil {
		return nil, err
	}
	var job Job
	if err := run.Read(JobFile, &job); err != nil {
		own.State, own.Reason = rundir.Failed, "it was never submitted"
		return own, nil
	}
	clean, _ := Environment(env)
	r, err := query(ctx, client{env: clean}, job.ID)
	ended := own.State.Told()
	switch {
	case errors.Is(err, errNoRecord):
		if !ended {
			if _, asked := run.StopRequested(); !asked && time.Since(job.Submitted) < recordGrace {
				own.State, own.Reason = rundir.Pending, "submitted a moment ago"
				return own, nil
			}
			if req, ok := run.StopRequested(); ok { // a task that is cancelled in the queue leaves no record
				code := 143
				own.State, own.Reason, own.ExitCode = rundir.Stopped, "stopped by "+req.By, &code
				return own, nil
			}
			if strings.Contains(job.ID, "_") && !run.HasStatus() { // nor does one that somebody else cancelled there
				code := 143
				own.State, own.Reason, own.ExitCode = rundir.Stopped, "cancelled in the queue: Slurm has no record of task "+job.ID, &code
				return own, nil
			}
			own.State, own.Reason = rundir.Unknown, "Slurm has no record of job "+job.ID+" any more, and the run did not say how it ended"
		}
		return own, nil
	case err != nil:
		if ended {
			return own, nil
		}
		return own, err
	}
	merge(own, r, job.ID, ended)
	if own.State == rundir.Failed && !run.HasStatus() { // it never began: only its job's log can tell why
		code := 3
		own.ExitCode = &code
		if last := lastLog(run); last != "" {
			own.Reason += ", before the run began:" + last
		}
	}
	return own, nil
}

// lastLog is the end of the log of a run's job, indented.
func lastLog(run *rundir.Run) string {
	t, err := rundir.NewTail(run.LogPath("job"), 5)
	if err != nil {
		return ""
	}
	defer func() { _ = t.Close() }() // only read
	lines, _ := t.Lines(true)        // what could be read
	var b strings.Builder
	for _, l := range lines {
		b.WriteString("\n  | " + l)
	}
	return b.String()
}

// recordGrace is how long a job that was just submitted, or requeued, may be
// unknown.
const recordGrace = 30 * time.Second

func merge(own *rundir.Status, r record, id string, ended bool) {
	own.JobID, own.JobState, own.Nodes = id, r.state, r.nodes
	attempt := r.restarts + 1
	switch {
	case waiting(r.state):
		own.State, own.ExitCode, own.EndedAt, own.ReadyAt = rundir.Pending, nil, nil, nil
		own.Attempt = max(own.Attempt, attempt)
		own.Reason = r.reason
		if r.reason == "None" {
			own.Reason = "the scheduler has not looked at it yet"
		}
		if m := means[r.state]; m != "" {
			own.Reason = m + "; it waits to run again"
		}
		if r.start != "" {
			own.Reason += "; may start at " + r.start
		}
	case !over(r.state): // RUNNING, COMPLETING and what later releases add
		switch {
		case own.State == rundir.Lost, own.Attempt < attempt && ended:
			own.State, own.Reason, own.ExitCode = rundir.Starting, "", nil
		case ended: // its job may end for another reason, which is told then
			own.State, own.ExitCode, own.EndedAt = rundir.Stopping, nil, nil
		}
	case r.state == "COMPLETED" && r.code == 0 && r.signal == 0 && (r.derived == 0 || r.restarts > 0): // it stays that of an earlier attempt
		if !ended {
			own.State, own.Reason = rundir.Unknown, "Slurm says COMPLETED, and the run did not say how it ended"
		}
	case r.state == "CANCELLED":
		if !ended {
			code := 143
			own.State, own.Reason, own.ExitCode = rundir.Stopped, "cancelled", &code
		}
	default:
		meaning := means[r.state]
		if ended && meaning == "" && (own.ExitCode == nil || *own.ExitCode != 0) {
			return // FAILED, and we know better why
		}
		if ended && own.State == rundir.Stopped && meaning == "" {
			return
		}
		if meaning == "" {
			meaning = fmt.Sprintf("its job ended with %s, %d:%d", r.state, r.code, r.signal)
		}
		code := 3
		if r.code > 0 {
			code = r.code
		}
		if own.ExitCode != nil && *own.ExitCode != 0 {
			code = *own.ExitCode
		}
		if own.Reason != "" && ended {
			meaning += "; " + own.Reason
		}
		own.State, own.Reason, own.ExitCode = rundir.Failed, meaning, &code
	}
}

// Stop ends a job: its supervisors are asked, and end it in order; a job that
// does not run, or does not end, is cancelled.
func Stop(ctx context.Context, run *rundir.Run, by string, env []string, grace time.Duration) error {
	var job Job
	if err := run.Read(JobFile, &job); err != nil {
		return err
	}
	clean, _ := Environment(env)
	c := client{env: clean}
	if err := run.RequestStop(by); err != nil {
		return err
	}
	r, err := query(ctx, c, job.ID)
	if err == nil && !over(r.state) && !waiting(r.state) {
		for start := time.Now(); time.Since(start) < grace; time.Sleep(200 * time.Millisecond) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if st, err := run.Status(); err == nil && st.State.Ended() {
				if r, err := query(ctx, c, job.ID); err != nil || over(r.state) {
					return nil
				}
			}
		}
	}
	if errors.Is(err, errNoRecord) || err == nil && over(r.state) {
		return nil
	}
	if _, stderr, err := c.run(ctx, "scancel", job.ID); err != nil {
		return &Unreachable{fmt.Errorf("scancel: %s", firstOf(stderr, err.Error()))}
	}
	for start := time.Now(); time.Since(start) < grace+time.Minute; time.Sleep(200 * time.Millisecond) {
		if r, err := query(ctx, c, job.ID); errors.Is(err, errNoRecord) || err == nil && over(r.state) {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return fmt.Errorf("job %s was cancelled and has not ended yet", job.ID)
}

func firstOf(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}
