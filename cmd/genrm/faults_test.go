package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// What goes wrong with runs, done to the real binary with real processes.
// docs/faults.md says what a user sees; launchers/node has the faults of the
// supervisor alone.

// faultLimit bounds what would hang; nothing is measured by it.
const faultLimit = 60 * time.Second

// This binary is also the ray of the tests' PATH: its dashboard.
func init() {
	if os.Getenv("GENRM_FAULT_STUB") != "ray" {
		return
	}
	host, port := "", ""
	for _, arg := range os.Args {
		if v, ok := strings.CutPrefix(arg, "--dashboard-host="); ok {
			host = v
		} else if v, ok := strings.CutPrefix(arg, "--dashboard-port="); ok {
			port = v
		}
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		err := http.ListenAndServe(net.JoinHostPort(host, port), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"data": {"summary": [{"raylet": {"state": "ALIVE"}}]}}`)
		}))
		fmt.Println(err)
		os.Exit(1)
	}()
	<-signals
	os.Exit(143)
}

type faults struct {
	bin string // folder of the built genrm
}

func TestFaults(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("what is left is looked for in /proc")
	}
	// Whoever runs the tests may ignore SIGHUP (nohup), and what is started would,
	// too: a handler is not handed on.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	f := &faults{bin: shared(t)}
	build := exec.Command("go", "build", "-o", f.bin, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *faults)
	}{
		{"signals", faultSignals},
		{"interrupted twice", faultInterruptedTwice},
		{"terminal", faultTerminal},
		{"nohup", faultNohup},
		{"launcher killed", faultLauncherKilled},
		{"output closed", faultOutputClosed},
		{"stopped from elsewhere", faultStoppedFromElsewhere},
		{"interrupted at any time", faultInterruptedAnyTime},
		{"judge killed", faultJudgeKilled},
		{"supervisors killed", faultSupervisorsKilled},
		{"guard killed", faultGuardKilled},
		{"does not start", faultDoesNotStart},
		{"drivers", faultDrivers},
		{"two launches", faultTwoLaunches},
		{"two users", faultTwoUsers},
		{"folder of runs", faultFolderOfRuns},
		{"odd paths", faultOddPaths},
		{"disk full", faultDiskFull},
		{"folder removed", faultFolderRemoved},
		{"slow reader", faultSlowReader},
		{"many judges", faultManyJudges},
		{"frozen file changed", faultFrozenFileChanged},
		{"port is taken in between", faultPortTaken},
		{"stop while it does not end", faultStubbornJudge},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.test(t, f)
		})
	}
}

// shared makes a folder that other users may read.
func shared(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "genrm-faults-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// place is a folder with an experiment and runs of its own, and a PATH.
type place struct {
	t    *testing.T
	dir  string
	env  []string
	long string // number of a sleep, by which it is found
}

var places, started atomic.Int64

func (f *faults) place(t *testing.T) *place {
	t.Helper()
	return f.placeIn(t, shared(t))
}

func (f *faults) placeIn(t *testing.T, dir string) *place {
	t.Helper()
	p := &place{t: t, dir: dir, long: fmt.Sprintf("9%d%03d", os.Getpid()%1000000, places.Add(1))}
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + f.bin + ":" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir, "NO_COLOR=1", "TERM=xterm",
		"LONG=" + p.long, "STUB_MARK=" + p.mark(), "GENRM_RUNS=" + filepath.Join(dir, "runs"), "CUE_REGISTRY=none", "CUE_CACHE_DIR=" + filepath.Join(dir, "cache")}
	p.file("judges.cue", `name: "judges"
target: "local"
serve: instances: {
	quality: {engine: "sim", constant: "7"}
	safety: {engine: "sim", constant: "safe"}
}
`)
	t.Cleanup(func() {
		for _, left := range p.left() {
			t.Errorf("left behind: %s", left)
			pid, _, _ := strings.Cut(left, " ")
			if n, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(n, syscall.SIGKILL)
			}
		}
	})
	return p
}

// mark is in the environment of everything that is started in a place.
func (p *place) mark() string { return "place-" + p.long }

func (p *place) file(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

// left lists the processes of the place that live, however they hide.
func (p *place) left() []string {
	var out []string
	for _, q := range proc.All() {
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", q.PID))
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", q.PID))
		if q.State != "Z" && (bytes.Contains(env, []byte(p.mark())) || bytes.Contains(line, []byte(p.long)) || bytes.Contains(line, []byte(p.dir+"/"))) {
			out = append(out, fmt.Sprintf("%d %s %s", q.PID, q.State, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return out
}

func (p *place) nothingLeft() {
	p.t.Helper()
	if left := p.left(); len(left) > 0 {
		p.t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

func (p *place) until(what string, ok func() bool) {
	p.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > faultLimit {
			var logs strings.Builder
			names, _ := filepath.Glob(filepath.Join(p.dir, "*.out"))
			for _, n := range names {
				text, _ := os.ReadFile(n)
				fmt.Fprintf(&logs, "%s:\n%s\n", n, text[max(0, len(text)-4000):])
			}
			p.t.Fatalf("never: %s\n%s\n%s", what, strings.Join(p.left(), "\n"), logs.String())
		}
	}
}

// command is a started genrm, or what starts one.
type command struct {
	p    *place
	cmd  *exec.Cmd
	path string // of its output
	done chan struct{}
}

func (p *place) start(name string, args ...string) *command {
	p.t.Helper()
	return p.startWith(func(*exec.Cmd) {}, name, args...)
}

func (p *place) startWith(adjust func(*exec.Cmd), name string, args ...string) *command {
	p.t.Helper()
	c := &command{p: p, path: filepath.Join(p.dir, fmt.Sprintf("%d.out", started.Add(1))), done: make(chan struct{})}
	out, err := os.Create(c.path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	c.cmd = &exec.Cmd{Path: p.look(name), Args: append([]string{name}, args...), Env: p.env, Dir: p.dir, Stdout: out, Stderr: out, SysProcAttr: &syscall.SysProcAttr{Setpgid: true}}
	adjust(c.cmd)
	if err := c.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	return c
}

func (p *place) look(name string) string {
	path, _, _ := strings.Cut(strings.TrimPrefix(p.env[0], "PATH="), "\x00")
	for _, dir := range filepath.SplitList(path) {
		if st, err := os.Stat(filepath.Join(dir, name)); err == nil && st.Mode()&0o111 != 0 {
			return filepath.Join(dir, name)
		}
	}
	p.t.Fatalf("no %s in %s", name, path)
	return ""
}

func (c *command) said() string {
	text, _ := os.ReadFile(c.path)
	return string(text)
}

func (c *command) signal(sig syscall.Signal) { _ = c.cmd.Process.Signal(sig) }

func (c *command) saying(text string) *command {
	c.p.t.Helper()
	c.p.until("it says "+text, func() bool {
		select {
		case <-c.done:
			if !strings.Contains(c.said(), text) {
				c.p.t.Fatalf("ended without saying %q:\n%s", text, c.said())
			}
		default:
		}
		return strings.Contains(c.said(), text)
	})
	return c
}

// ends waits for the command's end and compares its exit status.
func (c *command) ends(code int, says ...string) string {
	c.p.t.Helper()
	select {
	case <-c.done:
	case <-time.After(faultLimit):
		c.p.t.Fatalf("does not end:\n%s", c.said())
	}
	ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	got := ws.ExitStatus()
	if ws.Signaled() {
		got = 128 + int(ws.Signal())
	}
	text := c.said()
	if got != code {
		c.p.t.Errorf("%q: exit status %d, want %d\n%s", c.cmd.Args, got, code, text)
	}
	for _, want := range says {
		if !strings.Contains(text, want) {
			c.p.t.Errorf("%q said\n%s\nand not\n%s", c.cmd.Args, text, want)
		}
	}
	return text
}

func (p *place) genrm(code int, args ...string) string {
	p.t.Helper()
	return p.start("genrm", args...).ends(code)
}

type runReport struct {
	rundir.Status
	Dir string
}

func (p *place) status() runReport {
	p.t.Helper()
	var r runReport
	if err := json.Unmarshal([]byte(p.genrm(0, "status", "-o", "json")), &r); err != nil {
		p.t.Fatal(err)
	}
	return r
}

// is checks the state of the last run, as another process sees it.
func (p *place) is(state rundir.State, code int, reasons ...string) {
	p.t.Helper()
	st := p.status()
	got := -1
	if st.ExitCode != nil {
		got = *st.ExitCode
	}
	if st.State != state || got != code {
		p.t.Errorf("the run is %s, exit status %d, want %s and %d; reason: %s", st.State, got, state, code, st.Reason)
	}
	for _, want := range reasons {
		if !strings.Contains(st.Reason, want) {
			p.t.Errorf("reason %q lacks %q", st.Reason, want)
		}
	}
	p.nothingLeft()
}

func (p *place) dir1() string {
	p.t.Helper()
	names, err := filepath.Glob(filepath.Join(p.dir, "runs", "judges-*"))
	if err != nil || len(names) != 1 {
		p.t.Fatalf("runs: %v %v", names, err)
	}
	return names[0]
}

// vllm writes a stub of that name, and an experiment that starts it.
func (p *place) vllm(script string, fields ...string) {
	p.t.Helper()
	p.file("bin/vllm", "#!/bin/sh\n"+script+"\n")
	p.file("judges.cue", `name: "judges"
target: "local"
serve: instances: {
	quality: {engine: "vllm", model_path: "org/model", num_gpus: 1, `+strings.Join(fields, ", ")+`}
	safety: {engine: "sim", constant: "safe"}
}
local: gpus: [`+p.long+`] // nobody else's
`)
}

// signalled is what a launch says of a signal.
func faultSignals(t *testing.T, f *faults) {
	for sig, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143, syscall.SIGHUP: 129} {
		t.Run(unix.SignalName(sig), func(t *testing.T) {
			p := f.place(t)
			c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
			c.signal(sig)
			c.ends(code, "ready in ", "stopping; once more does not wait", "\nstopped\n")
			p.is(rundir.Stopped, 0)
			c = p.start("genrm", "stop")
			c.ends(0, "has ended: stopped")
		})
	}
}

const stubborn = `trap '' TERM; echo "stubborn"; while :; do sleep 1; done`

func faultInterruptedTwice(t *testing.T, f *faults) {
	p := f.place(t)
	p.vllm(stubborn, "stop_timeout: 10000")
	c := p.start("genrm", "launch", "judges.cue", "--follow").saying("quality-0 | stubborn")
	c.signal(syscall.SIGINT)
	c.saying("stopping; once more does not wait")
	c.signal(syscall.SIGINT)
	c.ends(130)
	p.is(rundir.Stopped, 0, "interrupted")
}

func faultStubbornJudge(t *testing.T, f *faults) {
	p := f.place(t)
	p.vllm(stubborn, "stop_timeout: 0.5")
	c := p.start("genrm", "launch", "judges.cue", "--follow").saying("quality-0 | stubborn")
	p.start("genrm", "stop").ends(0, "has ended")
	c.ends(0)
	p.is(rundir.Stopped, 0, "stopped by ")
	st := p.status()
	if q := st.Processes[0]; q.Reason != "did not end within 500ms of SIGTERM and was killed" || q.Signal != "SIGKILL" || q.State != rundir.Stopped {
		t.Errorf("%+v", q)
	}
}

// pty opens a terminal: its keyboard and screen, and the file that a program
// takes for its terminal.
func pty(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0) // a Close ends a Read
	if err != nil {
		t.Skip(err)
	}
	screen = os.NewFile(uintptr(fd), "screen")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Skip(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Skip(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	return screen, tty
}

func faultTerminal(t *testing.T, f *faults) {
	for _, how := range []string{"Ctrl-C is typed", "the terminal is closed", "the terminal of a shell is closed"} {
		t.Run(how, func(t *testing.T) {
			p := f.place(t)
			screen, tty := pty(t)
			shown := make(chan string, 1)
			ready := make(chan bool, 1)
			go func() {
				var text []byte
				buf := make([]byte, 4096)
				for {
					n, err := screen.Read(buf)
					text = append(text, buf[:n]...)
					if bytes.Contains(text, []byte("\n  curl ")) {
						select {
						case ready <- true:
						default:
						}
					}
					if err != nil {
						shown <- string(text)
						return
					}
				}
			}()
			name, args := "genrm", []string{"launch", "judges.cue"}
			if how == "the terminal of a shell is closed" {
				name, args = "sh", []string{"-c", "genrm launch judges.cue; echo $? >code"}
			}
			c := p.startWith(func(cmd *exec.Cmd) {
				cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
			}, name, args...)
			_ = tty.Close()
			select {
			case <-ready:
			case <-c.done:
				t.Fatal("ended")
			case <-time.After(faultLimit):
				t.Fatal("never ready")
			}
			code := 129
			if how == "Ctrl-C is typed" {
				code = 130
				if _, err := screen.Write([]byte{3}); err != nil {
					t.Fatal(err)
				}
			} else if err := screen.Close(); err != nil {
				t.Fatal(err)
			}
			c.ends(code)
			p.until("nothing is left", func() bool { return len(p.left()) == 0 })
			p.is(rundir.Stopped, 0)
			if how == "Ctrl-C is typed" {
				_ = screen.Close()
				text := <-shown
				for _, want := range []string{"PROCESS", "quality-0", "\x1b[", "stopping; once more does not wait"} {
					if !strings.Contains(text, want) {
						t.Errorf("the terminal shows no %q:\n%q", want, text)
					}
				}
			}
		})
	}
}

func faultNohup(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("sh", "-c", "trap '' HUP; exec genrm launch judges.cue").saying("\n  curl ")
	c.signal(syscall.SIGHUP)
	time.Sleep(300 * time.Millisecond)
	if st := p.status(); st.State != rundir.Ready {
		t.Errorf("the run is %s: %s", st.State, st.Reason)
	}
	p.genrm(0, "stop")
	c.ends(0)
	p.is(rundir.Stopped, 0)
}

func faultLauncherKilled(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	c.signal(syscall.SIGKILL)
	c.ends(137)
	p.until("nothing is left", func() bool { return len(p.left()) == 0 })
	p.is(rundir.Stopped, 0, "its launcher is gone")
}

// As `genrm launch judges.cue | head -1`.
func faultOutputClosed(t *testing.T, f *faults) {
	p := f.place(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := p.startWith(func(cmd *exec.Cmd) { cmd.Stdout = w }, "genrm", "launch", "judges.cue")
	_ = w.Close()
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Error(err)
	}
	_ = r.Close()
	c.ends(128 + int(syscall.SIGPIPE))
	p.until("nothing is left", func() bool { return len(p.left()) == 0 })
	p.is(rundir.Stopped, 0)
}

func faultStoppedFromElsewhere(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	p.start("genrm", "stop", "judges").ends(0, "has ended")
	p.nothingLeft()
	c.ends(0, "\nstopped\n", "stopped by ")
	p.is(rundir.Stopped, 0)

	// Several at once, of a run that nobody attends.
	c = p.start("genrm", "launch", "judges.cue", "--detach", "--wait", "-o", "json")
	c.ends(0, `"state": "ready"`)
	stops := []*command{p.start("genrm", "stop"), p.start("genrm", "stop", "--all"), p.start("genrm", "stop")}
	for _, s := range stops {
		s.ends(0)
	}
	p.is(rundir.Stopped, 0, "stopped by ")
}

func faultInterruptedAnyTime(t *testing.T, f *faults) {
	for i := range 16 {
		p := f.place(t)
		c := p.start("genrm", "launch", "judges.cue")
		time.Sleep(time.Duration(i*i) * time.Millisecond)
		c.signal(syscall.SIGINT)
		c.ends(130)
		p.until("nothing is left", func() bool { return len(p.left()) == 0 })
		if names, _ := filepath.Glob(filepath.Join(p.dir, "runs", "judges-*")); len(names) > 0 {
			if st := p.status(); !st.State.Ended() {
				t.Errorf("the run is %s: %s", st.State, st.Reason)
			}
		}
	}
}

func (p *place) pid(process string) int {
	p.t.Helper()
	st := p.status()
	i := slices.IndexFunc(st.Processes, func(q rundir.Process) bool { return q.Name == process })
	if i < 0 || st.Processes[i].PID == 0 {
		p.t.Fatalf("%s has no pid", process)
	}
	return st.Processes[i].PID
}

// node finds the guard and the supervisor of the only run.
func (p *place) node() (guard, supervisor int) {
	p.t.Helper()
	guard = p.status().Supervisor.PID
	for _, q := range proc.All() {
		if q.Parent == guard && strings.Contains(proc.Command(q.PID), "--supervise") {
			supervisor = q.PID
		}
	}
	if supervisor == 0 {
		p.t.Fatal("no supervisor")
	}
	return guard, supervisor
}

func faultJudgeKilled(t *testing.T, f *faults) {
	for _, process := range []string{"quality-0", "gateway"} {
		p := f.place(t)
		c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
		_ = syscall.Kill(p.pid(process), syscall.SIGKILL)
		c.ends(3, process+" was killed by SIGKILL although the run had not ended", "  | ", "logs: genrm logs judges-")
		p.is(rundir.Failed, 3, process)
	}
}

func faultSupervisorsKilled(t *testing.T, f *faults) {
	// The guard ends the rest.
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	_, supervisor := p.node()
	_ = syscall.Kill(supervisor, syscall.SIGKILL)
	c.ends(3, "its supervisor was killed by SIGKILL")
	p.is(rundir.Failed, 3)

	// Both: the next stop ends what is left, whatever it did to hide.
	p = f.place(t)
	p.vllm(`trap '' TERM
setsid sh -c "trap '' TERM; sleep $LONG; :" &
env -i sh -c "trap '' TERM; sleep $LONG; :" &
echo up; wait; wait; wait; sleep $LONG`)
	p.genrm(0, "launch", "judges.cue", "--detach")
	p.until("it is up", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.dir1(), "logs", "quality-0.log"))
		return string(text) == "up\n"
	})
	guard, supervisor := p.node()
	_ = syscall.Kill(supervisor, syscall.SIGSTOP) // else one ends the run when it sees the other's end
	_ = syscall.Kill(guard, syscall.SIGKILL)
	_ = syscall.Kill(supervisor, syscall.SIGKILL)
	p.until("it is lost", func() bool { return p.status().State == rundir.Lost })
	if len(p.left()) < 3 {
		t.Errorf("survived: %q: the test shows nothing", p.left())
	}
	p.start("genrm", "list").ends(0, "lost")
	p.start("genrm", "prune", "--older-than=0s").ends(0)
	p.start("genrm", "stop").ends(0, "processes that were left", "has ended")
	p.is(rundir.Failed, 3, "stopped after its supervisor was gone")
	p.start("genrm", "stop").ends(0, "has ended: failed")
	p.start("genrm", "prune", "--older-than=0s").ends(0, "removed judges-")
}

func faultGuardKilled(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	guard, _ := p.node()
	_ = syscall.Kill(guard, syscall.SIGKILL)
	c.ends(3, "its guard was killed")
	p.is(rundir.Failed, 3, "its guard was killed")

	p = f.place(t)
	p.genrm(0, "launch", "judges.cue", "--detach", "--wait")
	guard, _ = p.node()
	_ = syscall.Kill(guard, syscall.SIGKILL)
	p.until("nothing is left", func() bool { return len(p.left()) == 0 })
	p.is(rundir.Failed, 3, "its guard was killed")
}

func faultDoesNotStart(t *testing.T, f *faults) {
	p := f.place(t)
	p.vllm("echo 'torch.OutOfMemoryError: CUDA out of memory' >&2; exit 1")
	p.start("genrm", "launch", "judges.cue").ends(3, "quality-0 ended with status 1 before it was ready", "  | torch.OutOfMemoryError: CUDA out of memory", "logs: genrm logs judges-")
	p.is(rundir.Failed, 3)
	p.start("genrm", "launch", "judges.cue", "--detach", "--wait").ends(3, "quality-0 ended with status 1 before it was ready")
	p.is(rundir.Failed, 3)

	p = f.place(t)
	p.vllm(`echo "loading shard 3 of 40"; sleep "$LONG" & wait`, "readiness: timeout: 0.5")
	p.start("genrm", "launch", "judges.cue").ends(3, "quality-0: not ready 500ms after its start (health: it does not listen yet)", "raise serve.instances.quality.readiness.timeout", "  | loading shard 3 of 40")
	p.is(rundir.Failed, 3)
}

// drivers of gym on a stub of Ray.
func faultDrivers(t *testing.T, f *faults) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("../../examples/gym-openai/experiment.cue")
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name, script string
		code         int
		state        rundir.State
		says         string
	}{
		{"succeeds", "exit 0", 0, rundir.Succeeded, "\nsucceeded\n"},
		{"fails", "echo no rollouts >&2; exit 3", 3, rundir.Failed, "the driver ended with status 3\n  | no rollouts"},
		{"is killed", "kill -KILL $$", 137, rundir.Failed, "the driver was killed by SIGKILL"},
		{"loses its Ray", `kill -KILL "$(cat "$HOME/ray.pid")"; sleep "$LONG" & wait`, 3, rundir.Failed, "ray-head was killed by SIGKILL although the run had not ended"},
		{"is interrupted", `kill -INT "$(cat "$HOME/launch.pid")"; sleep "$LONG" & wait`, 130, rundir.Stopped, "stopping; once more does not wait"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := f.place(t)
			p.file("judges.cue", string(example))
			p.file("bin/ray", "#!/bin/sh\necho $$ >\"$HOME/ray.pid\"\nGENRM_FAULT_STUB=ray exec '"+self+"' \"$@\"\n")
			p.file("bin/gym", "#!/bin/sh\n"+c.script+"\n")
			p.env = append(p.env, "JUDGE_API_KEY=sk-not-a-real-key")
			l := p.start("sh", "-c", `echo $$ >launch.pid; exec genrm launch judges.cue --target local`)
			l.ends(c.code, c.says)
			want := c.code
			if c.state == rundir.Stopped {
				want = 143
			}
			p.is(c.state, want)
			for _, q := range p.status().Processes {
				if !q.State.Ended() {
					t.Errorf("%s is %s", q.Name, q.State)
				}
			}
		})
	}
}

func faultTwoLaunches(t *testing.T, f *faults) {
	p := f.place(t)
	launches := []*command{}
	for range 4 {
		launches = append(launches, p.start("genrm", "launch", "judges.cue", "--detach", "--wait", "-o", "json"))
	}
	owners := map[int]string{}
	for _, l := range launches {
		l.ends(0)
	}
	var runs []runReport
	if err := json.Unmarshal([]byte(p.genrm(0, "list", "-o", "json")), &runs); err != nil || len(runs) != 4 {
		t.Fatal(runs, err)
	}
	for _, r := range runs {
		if r.State != rundir.Ready {
			t.Errorf("%s is %s: %s", r.RunID, r.State, r.Reason)
		}
		for _, q := range r.Processes {
			for purpose, port := range q.Ports {
				who := r.RunID + " " + q.Name + " " + purpose
				if owners[port] != "" {
					t.Errorf("port %d is of %s and of %s", port, owners[port], who)
				}
				owners[port] = who
			}
		}
	}
	p.genrm(0, "stop", "--all")
	p.nothingLeft()
}

func faultTwoUsers(t *testing.T, f *faults) {
	if os.Getuid() != 0 {
		t.Skip("needs root to be two users")
	}
	mine, theirs := f.place(t), f.place(t)
	nobody := func(cmd *exec.Cmd) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
	if err := os.Chown(theirs.dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	a := mine.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	b := theirs.startWith(nobody, "genrm", "launch", "judges.cue").saying("\n  curl ")
	for _, q := range theirs.status().Processes {
		for _, r := range mine.status().Processes {
			for _, x := range q.Ports {
				for _, y := range r.Ports {
					if x == y {
						t.Errorf("both have port %d", x)
					}
				}
			}
		}
		if st, err := os.Stat(fmt.Sprintf("/proc/%d", q.PID)); err != nil || st.Sys().(*syscall.Stat_t).Uid != 65534 {
			t.Errorf("%s is not run by its user: %v", q.Name, err)
		}
	}
	// One may not stop the other's.
	theirs.startWith(nobody, "genrm", "stop", "--runs", filepath.Join(mine.dir, "runs")).ends(3, "permission denied")
	if st := mine.status(); st.State != rundir.Ready {
		t.Errorf("the run is %s: %s", st.State, st.Reason)
	}
	theirs.startWith(nobody, "genrm", "stop").ends(0)
	b.ends(0)
	theirs.is(rundir.Stopped, 0)
	a.signal(syscall.SIGINT)
	a.ends(130)
	mine.is(rundir.Stopped, 0)

	// A folder of runs that is somebody else's.
	theirs.startWith(nobody, "genrm", "launch", "judges.cue", "--runs", filepath.Join(mine.dir, "runs")).ends(3, "the folder of runs cannot be written", "permission denied", "name another by GENRM_RUNS or cluster.run_root")
	theirs.startWith(nobody, "genrm", "launch", "judges.cue", "--runs", filepath.Join(mine.dir, "new")).ends(3, "the folder of runs cannot be made", "permission denied")
}

// A folder of runs that is none.
func faultFolderOfRuns(t *testing.T, f *faults) {
	p := f.place(t)
	p.file("file", "")
	p.start("genrm", "launch", "judges.cue", "--runs", filepath.Join(p.dir, "file")).ends(3, "the folder of runs cannot be made", "not a directory", "GENRM_RUNS")
	p.start("genrm", "launch", "judges.cue", "--runs", filepath.Join(p.dir, "file", "runs")).ends(3, "the folder of runs cannot be made", "not a directory")
	p.nothingLeft()
}

func faultOddPaths(t *testing.T, f *faults) {
	dir := filepath.Join(shared(t), `it's a "päth" $(touch x) 'ö' {run_dir} 100%`)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p := f.placeIn(t, dir)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	// The curl that is printed is pasted.
	m := regexp.MustCompile(`(?m)^  curl .*$`).FindString(c.said())
	if _, err := exec.LookPath("curl"); err == nil {
		out, err := exec.Command("sh", "-c", m).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "safe") {
			t.Errorf("%s: %v\n%s", m, err, out)
		}
	}
	p.start("genrm", "logs", "--process", "quality-0").ends(0, "listening on")
	p.start("genrm", "stop").ends(0)
	c.ends(0)
	p.is(rundir.Stopped, 0)
	if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
		t.Error("the path was run as a command")
	}
}

// A judge goes on when the disk is full; lines are dropped and counted, and the
// status catches up.
func faultDiskFull(t *testing.T, f *faults) {
	if os.Getuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		t.Skip("needs root and mount namespaces")
	}
	p := f.place(t)
	small := filepath.Join(p.dir, "runs")
	if err := os.Mkdir(small, 0o755); err != nil {
		t.Fatal(err)
	}
	p.vllm(`echo up; n=0; while :; do n=$((n+1)); echo "line $n"; echo $n >"$HOME/count"; sleep .01; done`)
	st, err := os.Stat(filepath.Join(f.bin, "genrm"))
	if err != nil {
		t.Fatal(err)
	}
	c := p.start("unshare", "-m", "sh", "-c", fmt.Sprintf("mount -t tmpfs -o size=%dk none runs && exec genrm launch judges.cue --follow", st.Size()>>10+2048)).saying("quality-0 | up")
	inside := fmt.Sprintf("/proc/%d/root%s", c.cmd.Process.Pid, small) // the disk as the run sees it
	fill := filepath.Join(inside, "fill")
	filler, err := os.Create(fill)
	if err != nil {
		t.Fatal(err)
	}
	full := func() {
		for block := make([]byte, 64<<10); ; {
			if _, err := filler.Write(block); err != nil {
				if block = block[:len(block)/2]; len(block) == 0 {
					return
				}
			}
		}
	}
	full()
	count := func() int {
		text, _ := os.ReadFile(filepath.Join(p.dir, "count"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n
	}
	// The judge goes on while nothing can be written.
	logs := func(name string) string {
		names, _ := filepath.Glob(filepath.Join(inside, "judges-*", name))
		if len(names) != 1 {
			return ""
		}
		text, _ := os.ReadFile(names[0])
		return string(text)
	}
	p.until("the log stands still while the judge goes on", func() bool {
		full() // what was freed meanwhile
		size, at := len(logs("logs/quality-0.log")), count()
		p.until("the judge goes on", func() bool { return count() > at+200 }) // not just a supervisor that had no turn
		return len(logs("logs/quality-0.log")) == size
	})
	// Room again: the log and the status say what is lost.
	if err := errors.Join(filler.Close(), os.Remove(fill)); err != nil {
		t.Fatal(err)
	}
	p.until("the log goes on", func() bool {
		return regexp.MustCompile(`\n\[genrm: \d+ lines are lost here\]\nline \d+\n`).MatchString(logs("logs/quality-0.log"))
	})
	p.until("it is told", func() bool {
		return regexp.MustCompile(`"type":"note","process":"quality-0".*"its log is written again; \d+ lines are lost"`).MatchString(logs("events.jsonl"))
	})

	// Full at the end: the exit status is that of the run all the same.
	if filler, err = os.Create(fill); err != nil {
		t.Fatal(err)
	}
	full()
	_ = syscall.Kill(p.childOf(c, "vllm"), syscall.SIGKILL)
	c.ends(3)
	_ = filler.Close()
	p.nothingLeft()
}

// childOf finds a process of a place by its command line.
func (p *place) childOf(_ *command, text string) int {
	p.t.Helper()
	for _, line := range p.left() {
		if pid, rest, _ := strings.Cut(line, " "); strings.Contains(rest, "bin/"+text+" ") {
			n, _ := strconv.Atoi(pid)
			return n
		}
	}
	p.t.Fatalf("no %s in %q", text, p.left())
	return 0
}

func faultFolderRemoved(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	dir := p.dir1()
	p.until("it is removed", func() bool { return os.RemoveAll(dir) == nil })
	c.ends(3, "the folder of the run is gone: "+dir)
	p.nothingLeft()
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder came back")
	}
	p.genrm(1, "status")
}

// A reader that stops reading holds up nobody.
func faultSlowReader(t *testing.T, f *faults) {
	p := f.place(t)
	p.vllm(`n=0; while :; do n=$((n+1)); yes "$(printf '%0200d' 0)" | head -n 2000; echo $n >"$HOME/count"; done`)
	c := p.start("genrm", "launch", "judges.cue", "--detach")
	c.ends(0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	reader := p.startWith(func(cmd *exec.Cmd) { cmd.Stdout = w }, "genrm", "logs", "-f")
	_ = w.Close()
	if _, err := r.Read(make([]byte, 10)); err != nil { // it reads; then nobody reads from it
		t.Fatal(err)
	}
	at := 0
	p.until("it prints", func() bool {
		text, _ := os.ReadFile(filepath.Join(p.dir, "count"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		if at == 0 {
			at = n
		}
		return at > 0 && n > at+30
	})
	p.genrm(0, "stop")
	reader.signal(syscall.SIGKILL)
	reader.ends(137)
	p.is(rundir.Stopped, 0)
}

func faultManyJudges(t *testing.T, f *faults) {
	p := f.place(t)
	const n = 200
	var text strings.Builder
	text.WriteString("name: \"many\"\nserve: instances: {\n")
	for i := range n {
		fmt.Fprintf(&text, "\tj%d: {engine: \"sim\", constant: \"%d\"}\n", i, i)
	}
	p.file("judges.cue", text.String()+"}\n")
	c := p.start("genrm", "launch", "judges.cue", "--target=local").saying("\n  curl ")
	st := p.status()
	ports := map[int]bool{}
	for _, q := range st.Processes {
		if q.State != rundir.Ready {
			t.Errorf("%s is %s", q.Name, q.State)
		}
		for _, port := range q.Ports {
			ports[port] = true
		}
	}
	if len(st.Processes) != n+1 || len(ports) != n+1 {
		t.Errorf("%d processes, %d ports", len(st.Processes), len(ports))
	}
	// What the supervisor has open, it has for a process: its output, its log, its
	// end. Connections of probes do not stay.
	_, supervisor := p.node()
	p.until("no more files are open than that", func() bool {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", supervisor))
		if err != nil {
			t.Fatal(err)
		}
		return len(fds) <= 3*(n+1)+16
	})
	c.signal(syscall.SIGINT)
	c.ends(130)
	p.is(rundir.Stopped, 0)
	for _, q := range p.status().Processes {
		if q.State != rundir.Stopped || q.Signal == "SIGKILL" {
			t.Errorf("%s is %s, %s", q.Name, q.State, q.Signal)
		}
	}
}

func faultFrozenFileChanged(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	c.signal(syscall.SIGINT)
	c.ends(130)
	dir := p.dir1()
	for _, name := range []string{"status.json", "endpoints.json", "events.jsonl"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	graph, err := os.ReadFile(filepath.Join(dir, rundir.GraphFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, rundir.GraphFile), bytes.Replace(graph, []byte("--route-key"), []byte("--route_key"), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	p.start("genrm", "node", "--run", dir, "--node=0").ends(3, "changed since the run was made: graph.json; launch again")
	p.is(rundir.Failed, 3, "changed since the run was made: graph.json; launch again")
}

// Somebody takes a judge's port after it was chosen.
func faultPortTaken(t *testing.T, f *faults) {
	p := f.place(t)
	c := p.start("genrm", "launch", "judges.cue").saying("\n  curl ")
	c.signal(syscall.SIGINT)
	c.ends(130)
	dir := p.dir1()
	port := 0
	for _, q := range p.status().Processes {
		if q.Name == "quality-0" {
			port = q.Ports["http"]
		}
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Skip(err) // somebody really has
	}
	defer l.Close()
	if err := os.Remove(filepath.Join(dir, "status.json")); err != nil {
		t.Fatal(err)
	}
	// The same run once more, with the ports that are in its folder.
	p.start("genrm", "node", "--run", dir, "--node=0").ends(3)
	p.is(rundir.Failed, 3, "quality-0 ended with status 3 before it was ready", "address already in use")
}
