package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// LeashFD is the descriptor at which a supervisor hears that its guard is gone.
const LeashFD = 3

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
	for fd := 3; fd < 3+1024; fd++ {
		syscall.CloseOnExec(fd)
	}
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
	for {
		select {
		case <-o.Signals:
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may just have ended
		case <-leash:
			leash = nil
			_ = cmd.Process.Signal(syscall.SIGTERM)
		case <-reap.C:
			proc.Reap(proc.All(), os.Getpid(), []int{cmd.Process.Pid})
		case err := <-ended:
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				return ExitService, err
			}
			return o.after(cmd.ProcessState)
		}
	}
}

// after ends what the supervisor left, which is nothing unless it was killed.
func (o GuardOptions) after(st *os.ProcessState) (int, error) {
	self := os.Getpid()
	_, err := proc.End(func() []proc.Process {
		all := proc.All()
		proc.Reap(all, self, nil)
		return proc.Below(all, self)
	}, sweepGrace)
	ws, ok := st.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() {
		return st.ExitCode(), err
	}
	cleanNode(o.Run, o.Node, o.Attempt)
	reason := "its supervisor was killed by " + signalName(ws.Signal())
	return ExitService, errors.Join(err, conclude(o.Run, o.Node, reason))
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

// conclude writes the end of a run whose supervisor could not.
func conclude(r *rundir.Run, node int, reason string) error {
	st, err := r.Status()
	if err != nil || st.State.Ended() && st.State != rundir.Lost {
		return err
	}
	now := time.Now().UTC()
	code := ExitService
	st.State, st.Reason, st.ExitCode, st.EndedAt = rundir.Failed, reason, &code, &now
	for i := range st.Processes {
		if p := &st.Processes[i]; !p.State.Ended() {
			p.State, p.EndedAt = rundir.Stopped, &now
		}
	}
	_ = r.AppendEvent(rundir.Event{Time: now, Type: "run.failed", Node: node, Message: reason}) // the status says the same
	if node == 0 {
		return r.WriteStatus(st)
	}
	return r.WriteNodeStatus(strconv.Itoa(node), st)
}

// Leftovers lists the living processes of a run on this machine, by what marks
// them: their environment, or the session in which they were started.
func Leftovers(r *rundir.Run) []proc.Process {
	var sessions []int
	if st, err := r.Status(); err == nil {
		host, _ := os.Hostname()
		for _, p := range st.Processes {
			here := st.Supervisor != nil && st.Supervisor.Host == host && st.Supervisor.Boot == proc.BootID()
			// The number of a session goes to nobody else while one of its members
			// lives; a leader with another start is a stranger's.
			if leader := proc.Identify(p.PID); here && p.PID > 0 && (leader.Start == 0 || leader.Start == p.Start) {
				sessions = append(sessions, p.PID)
			}
		}
	}
	return proc.Marked(RunVariable+"="+r.ID, sessions)
}

// EndLost ends what is left of a run whose supervisor is gone, and says how many
// processes that were.
func EndLost(r *rundir.Run, reason string) (int, error) {
	n, err := proc.End(func() []proc.Process { return Leftovers(r) }, sweepGrace)
	attempt := 1
	if st, err := r.Status(); err == nil {
		attempt = st.Attempt
	}
	cleanNode(r, 0, attempt)
	return n, errors.Join(err, conclude(r, 0, reason))
}
