package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// LeashFD is the descriptor at which a supervisor hears that its guard is gone.
const LeashFD = 3

// Hurry is the signal to a guard, and to its supervisor, that nothing is waited
// for any more. It is another than the one before, since the kernel makes one of
// two equal signals that are close together.
const Hurry = syscall.SIGUSR2

// GuardOptions is what a guard is told.
type GuardOptions struct {
	Run     *rundir.Run
	Node    int
	Attempt int
	Args    []string         // that start the supervisor with this program; it reads end of file at [LeashFD] when the guard is gone
	Signals <-chan os.Signal // each is a request to stop
	Leash   io.Reader        // end of file is a request to stop, too; nil for none
	Log     *os.File         // of both
}

// Guard starts the supervisor of a node, waits for its end, and ends whatever is
// left of the run here. It returns the run's exit status.
func Guard(o GuardOptions) (int, error) {
	// Files that the launcher passed on (held ports) are for this process alone.
	proc.KeepFiles(3)
	if err := proc.Subreaper(); err != nil {
		fmt.Fprintf(o.Log, "guard: orphans cannot be adopted: %v\n", err)
	}
	self, err := os.Executable()
	if err != nil {
		return ExitService, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return ExitService, err
	}
	defer func() { _ = w.Close() }() // its closing is the message
	cmd := exec.Command(self, o.Args...)
	cmd.Env = append(os.Environ(), supervisorVariable+"="+o.Run.ID)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = o.Log, o.Log, []*os.File{r}
	cmd.SysProcAttr = proc.OwnSession(false)
	if err := errors.Join(cmd.Start(), r.Close()); err != nil {
		return ExitService, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	leash := make(chan struct{})
	if o.Leash != nil {
		go func() {
			_, _ = io.Copy(io.Discard, o.Leash) // to the end of file
			close(leash)
		}()
	}
	reap := time.NewTicker(time.Second)
	defer reap.Stop()
	asked := false
	for {
		select {
		case sig := <-o.Signals:
			asked = true
			_ = cmd.Process.Signal(sig) // it may just have ended
		case <-leash:
			leash, asked = nil, true
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case <-reap.C:
			proc.Reap(proc.All(), os.Getpid(), []int{cmd.Process.Pid})
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return ExitService, err
			}
			return o.after(cmd.ProcessState, asked)
		}
	}
}

// after ends what the supervisor left, which is nothing unless it was killed,
// and writes the run's end if the supervisor could not. asked means that it had
// been asked to stop.
func (o GuardOptions) after(st *os.ProcessState, asked bool) (int, error) {
	self := os.Getpid()
	_, err := proc.End(func() []proc.Process {
		all := proc.All()
		proc.Reap(all, self, nil)
		return proc.Below(all, self)
	}, sweepGrace)
	code, end := st.ExitCode(), rundir.Failed
	reason := fmt.Sprintf("its supervisor ended with status %d and could not say why: see %s", code, o.Run.LogPath("supervisor"))
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code, reason = ExitService, "its supervisor was killed by "+signalName(ws.Signal())
		if asked && ws.Signal() != syscall.SIGKILL { // the request came before it could take one
			code, end, reason = ExitStopped, rundir.Stopped, "stopped by a signal, before anything was started"
		}
	}
	cleanNode(o.Run, o.Node, o.Attempt)
	return code, errors.Join(err, conclude(o.Run, o.Node, o.Attempt, end, code, reason))
}

// cleanNode removes what the run had on the node outside of its folder.
func cleanNode(r *rundir.Run, node, attempt int) {
	var b graph.Binding
	if r.Read(BindingFile(node, attempt), &b) == nil {
		for _, path := range b.Paths {
			_ = os.RemoveAll(path) // a folder of temporary files
		}
	}
	_ = os.Remove(r.Path(graph.TokenFile))
}

// conclude writes the end of a run, or a node, whose supervisor could not.
func conclude(r *rundir.Run, node, attempt int, end rundir.State, code int, reason string) error {
	if !r.Exists() {
		return nil // nobody will ask
	}
	st, err := r.Status()
	write := r.WriteStatus
	if node > 0 {
		st = new(rundir.Status)
		err = r.Read(nodeStatus(node), st)
		write = func(st *rundir.Status) error { return r.WriteNodeStatus(strconv.Itoa(node), st) }
	}
	if err != nil || st.State.Told() {
		return err
	}
	if st.Attempt > attempt {
		return nil // the run is a later attempt's
	}
	now := time.Now().UTC()
	st.State, st.Reason, st.ExitCode, st.EndedAt = end, reason, &code, &now
	for i := range st.Processes {
		if p := &st.Processes[i]; !p.State.Ended() {
			p.State, p.EndedAt = rundir.Stopped, &now
		}
	}
	_ = r.AppendEvent(rundir.Event{Time: now, Type: "run." + string(end), Node: node, Message: reason}) // the status says the same
	return write(st)
}

// supervisorVariable marks a supervisor, whose guard may have been killed.
const supervisorVariable = "GENRM_SUPERVISOR_OF"

// Leftovers lists the living processes of a run on this machine, by what marks
// them: their environment, the session in which they were started, or that the
// supervisor saw them hide from both.
func Leftovers(r *rundir.Run) []proc.Process {
	var sessions []int
	var hidden []proc.ID
	st, err := r.Status()
	// Where the end of the run was written, every session had been looked at.
	if err == nil && !st.State.Told() && st.Supervisor != nil && st.Supervisor.Here() {
		for _, p := range st.Processes {
			// The number of a session goes to nobody else while one of its members
			// lives; a leader with another start is a stranger's.
			if leader := proc.Identify(p.PID); p.PID > 0 && (leader.Start == 0 || leader.Start == p.Start) {
				sessions = append(sessions, p.PID)
			}
		}
		_ = r.Read(hiddenFile(0), &hidden) // mostly there is none
	}
	found := proc.Marked(RunVariable+"="+r.ID, sessions)
	if len(hidden) == 0 {
		return found
	}
	all := proc.All()
	var roots []int
	for _, p := range all {
		if slices.Contains(hidden, p.ID) && p.State != "Z" {
			roots, found = append(roots, p.PID), append(found, p)
		}
	}
	return append(found, proc.Below(all, roots...)...)
}

// supervisors lists those of a run, with all that they started.
func supervisors(r *rundir.Run) []proc.Process {
	return proc.Marked(supervisorVariable+"="+r.ID, nil)
}

// supervisorGrace is what a supervisor without a guard gets to end its run.
const supervisorGrace = 30 * time.Second

// EndLost ends what is left of a run whose guard is gone, its supervisor
// included, and says how many processes that were.
func EndLost(r *rundir.Run, reason string) (int, error) {
	attempt := 1
	if st, err := r.Status(); err == nil {
		attempt = st.Attempt
		// One that has written the end is about to go by itself.
		for start := time.Now(); st.State.Told() && time.Since(start) < sweepGrace; time.Sleep(20 * time.Millisecond) {
			if len(supervisors(r)) == 0 {
				break
			}
		}
	}
	with, err1 := proc.End(func() []proc.Process { return supervisors(r) }, supervisorGrace)
	n, err2 := proc.End(func() []proc.Process { return Leftovers(r) }, sweepGrace)
	cleanNode(r, 0, attempt)
	return with + n, errors.Join(err1, err2, conclude(r, 0, attempt, rundir.Failed, ExitService, reason))
}

// Leash is the end of the pipe at which a supervisor hears that its guard is
// gone. No process of the run inherits it.
func Leash() *os.File {
	syscall.CloseOnExec(LeashFD)
	return os.NewFile(LeashFD, "guard")
}
