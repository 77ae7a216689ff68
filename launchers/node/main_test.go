package node

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// limit bounds what would hang; nothing is measured by it.
const limit = 60 * time.Second

// TestMain makes this binary what the tests start, too: a guard, a supervisor, a
// judge.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "guard":
			os.Exit(guardMain(os.Args[2]))
		case "supervise":
			os.Exit(superviseMain(os.Args[2]))
		case "judge":
			judgeMain(os.Args[2:])
		}
	}
	if f := flag.Lookup("test.parallel"); f != nil {
		_ = f.Value.Set("16") // they wait more than they work
	}
	os.Exit(m.Run())
}

func guardMain(dir string) int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	run, err := rundir.Open(dir)
	if err != nil {
		panic(err)
	}
	code, err := Guard(GuardOptions{Run: run, Attempt: 1, Args: []string{"supervise", dir}, Signals: signals, Leash: os.Stdin, Log: os.Stderr})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

func superviseMain(dir string) int {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	run, err := rundir.Open(dir)
	if err != nil {
		panic(err)
	}
	refusalPatience = 300 * time.Millisecond
	stop := make(chan Stop, 16)
	go func() {
		n := 0
		for sig := range signals {
			if sig == os.Interrupt {
				n++
			}
			stop <- Stop{Why: "stopped by a signal", Now: n > 1}
		}
	}()
	leash := Leash()
	go func() {
		_, _ = io.Copy(io.Discard, leash)
		stop <- Stop{Why: "its guard was killed", Fault: true}
	}()
	o := Options{Run: run, Attempt: 1, Env: os.Environ(), Host: "127.0.0.1", Stop: stop, Log: os.Stderr}
	for _, fault := range strings.Split(os.Getenv("NODE_TEST_FAULT"), ",") {
		switch fault {
		case "clock": // is set to and fro all the time
			o.Now = func() time.Time { return time.Now().Add(time.Duration(rand.IntN(4e5)-2e5) * time.Hour) }
		case "threads": // come and go
			go func() {
				for range time.Tick(time.Millisecond) {
					for range 4 {
						go runtime.LockOSThread() // the thread ends with the goroutine
					}
				}
			}()
		case "panic":
			go func() {
				for st, err := run.Status(); err != nil || st.State != rundir.Ready; st, err = run.Status() {
					time.Sleep(5 * time.Millisecond)
				}
				panic("a fault of the supervisor's")
			}()
		}
	}
	code, err := Supervise(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return code
}

// judgeMain serves what vLLM does as far as a probe looks, with a fault.
func judgeMain(args []string) {
	f := flag.NewFlagSet("judge", flag.ExitOnError)
	port := f.Int("port", 0, "")
	model := f.String("model", "m", "")
	mute := f.Bool("mute", false, "listen, and answer nothing")
	refuse := f.Int("refuse", 0, "status of every generation")
	tokens := f.Int("tokens", 1, "of a generation")
	sick := f.String("sick", "", "file: health fails while it is there")
	stubborn := f.Bool("stubborn", false, "ignore TERM")
	_ = f.Parse(args)
	if *stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", *port))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(9)
	}
	fmt.Println("judge listens")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if *mute {
			<-r.Context().Done()
		}
		if _, err := os.Stat(*sick); *sick != "" && err == nil {
			w.WriteHeader(503)
		}
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&in)
		switch {
		case *refuse > 0:
			http.Error(w, "this chat template is broken", *refuse)
		case in.Model != *model:
			http.Error(w, "The model "+in.Model+" does not exist.", 404)
		default:
			fmt.Fprintf(w, `{"choices": [{}], "usage": {"completion_tokens": %d}}`, *tokens)
		}
	})
	fmt.Fprintln(os.Stderr, http.Serve(l, mux))
	os.Exit(1)
}

var unique atomic.Int64

// rig is a run with its guard.
type rig struct {
	judges *graph.Judges // beside the run
	t      *testing.T
	run    *rundir.Run
	long   string // sleep $long lasts, and is found by this number
	dir    string // for files of the test
	env    []string
	cmd    *exec.Cmd
	own    io.Closer // the launcher's end of the leash
	log    *os.File
	done   chan struct{}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	long := fmt.Sprintf("8%d%03d", os.Getpid()%1000000, unique.Add(1))
	return &rig{t: t, long: long, dir: t.TempDir(), env: append(os.Environ(), "LONG="+long)}
}

// shell is a process that is ready once it runs.
func shell(name string, kind graph.Kind, script string) *graph.Process {
	p := &graph.Process{Name: name, Kind: kind, Role: graph.Engine, RouteKey: name, Argv: []plan.Arg{"/bin/sh", "-c", plan.Lit(script)}, StopTimeout: 20}
	if kind == graph.Driver {
		p.Role, p.RouteKey = graph.Main, ""
	}
	return p
}

func service(name, script string) *graph.Process { return shell(name, graph.Service, script) }
func driver(script string) *graph.Process        { return shell("driver", graph.Driver, script) }

// judge is a process of this binary that is probed as an engine is.
func judge(name string, args ...string) *graph.Process {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	argv := []plan.Arg{plan.Lit(self), "judge", "--port=" + plan.Port("http")}
	for _, a := range args {
		argv = append(argv, plan.Lit(a))
	}
	base := plan.Arg("http://127.0.0.1:") + plan.Port("http")
	return &graph.Process{Name: name, Kind: graph.Service, Role: graph.Engine, RouteKey: name, Engine: "sim", Model: "m", Argv: argv, StopTimeout: 20,
		Ready: &graph.Ready{Probe: graph.ProbeJudge, URL: base, Timeout: 50, Interval: 0.02, ProbeTimeout: 5, Field: "serve.instances." + name + ".readiness.timeout"}}
}

// create freezes a run of these processes.
func (r *rig) create(processes ...*graph.Process) {
	r.t.Helper()
	for i, p := range processes {
		if p.Kind == graph.Driver {
			for _, q := range processes[:i] {
				p.After = append(p.After, q.Name)
			}
		}
	}
	g := graph.Graph{Name: "faults", Workload: plan.Gym, Nodes: 1, Log: graph.Log{MaxMiB: 1, Keep: 2}, Judges: r.judges, Processes: processes}
	text, err := rundir.Text(g)
	if err != nil {
		r.t.Fatal(err)
	}
	info := rundir.Info{ID: rundir.NewID("faults", time.Now()) + r.long, Name: "faults", Workload: "gym", Target: "local", WorkDir: r.dir}
	r.run, err = rundir.Create(filepath.Join(r.dir, "runs"), info, map[string][]byte{rundir.GraphFile: text})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(r.clean)
}

// start starts the guard, as a launcher does that stays.
func (r *rig) start(processes ...*graph.Process) {
	r.t.Helper()
	if r.run == nil {
		r.create(processes...)
	}
	log, err := os.Create(filepath.Join(r.dir, "node.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		r.t.Fatal(err)
	}
	leash, own, err := os.Pipe()
	if err != nil {
		r.t.Fatal(err)
	}
	r.log, r.own, r.done = log, own, make(chan struct{})
	r.cmd = exec.Command(self, "guard", r.run.Dir)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr, r.cmd.Env, r.cmd.SysProcAttr = leash, log, log, r.env, proc.OwnSession(false)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	_ = leash.Close()
	go func() {
		_ = r.cmd.Wait()
		close(r.done)
	}()
}

// wait waits for the guard's end and returns its exit status.
func (r *rig) wait() int {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(limit):
		r.t.Fatalf("the run does not end\n%s", r.said())
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *rig) said() string {
	text, _ := os.ReadFile(filepath.Join(r.dir, "node.log"))
	return string(text)
}

func (r *rig) status() *rundir.Status {
	r.t.Helper()
	st, err := r.run.Status()
	if err != nil {
		r.t.Fatal(err)
	}
	return st
}

// until waits for something to become true.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(start) > limit {
			text, _ := json.MarshalIndent(r.status(), "", " ")
			r.t.Fatalf("never: %s\n%s\n%s", what, text, r.said())
		}
	}
}

func (r *rig) untilReady() {
	r.t.Helper()
	r.until("the run is ready", func() bool { return r.status().State == rundir.Ready })
}

// untilFile waits for a file that a process makes in the test's folder.
func (r *rig) untilFile(name string) string {
	r.t.Helper()
	var text []byte
	r.until(name+" is there", func() bool {
		text, _ = os.ReadFile(filepath.Join(r.dir, name))
		return bytes.HasSuffix(text, []byte("\n"))
	})
	return strings.TrimSpace(string(text))
}

func (r *rig) process(name string) rundir.Process {
	r.t.Helper()
	st := r.status()
	i := slices.IndexFunc(st.Processes, func(p rundir.Process) bool { return p.Name == name })
	if i < 0 {
		r.t.Fatalf("no process %s in %v", name, st.Processes)
	}
	return st.Processes[i]
}

// supervisor is the pid of the guard's child.
func (r *rig) supervisor() int {
	r.t.Helper()
	pid := 0
	r.until("there is a supervisor", func() bool {
		for _, p := range proc.All() {
			if p.Parent == r.cmd.Process.Pid && strings.Contains(proc.Command(p.PID), "supervise") {
				pid = p.PID
			}
		}
		return pid > 0
	})
	return pid
}

// living lists the processes of the run that live, however they hide: by what
// the run's processes carry in their environment or command line.
func (r *rig) living() []string {
	var out []string
	for _, p := range proc.All() {
		env, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/environ")
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/cmdline")
		if p.State != "Z" && p.PID != os.Getpid() && (bytes.Contains(env, []byte(r.run.ID)) || bytes.Contains(line, []byte(r.run.ID)) || bytes.Contains(line, []byte(r.long))) {
			out = append(out, fmt.Sprintf("%d %s %s", p.PID, p.State, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return out
}

func (r *rig) nothingLeft() {
	r.t.Helper()
	if left := r.living(); len(left) > 0 {
		r.t.Errorf("left behind:\n%s\n%s", strings.Join(left, "\n"), r.said())
	}
}

// clean ends what a failed test has left.
func (r *rig) clean() {
	if r.cmd == nil {
		return
	}
	_ = r.own.Close()
	for _, line := range r.living() {
		pid, _, _ := strings.Cut(line, " ")
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	<-r.done
	_ = r.log.Close()
}

// ends checks how the run ended, and that nothing is left of it.
func (r *rig) ends(state rundir.State, code int, reasons ...string) {
	r.t.Helper()
	got := r.wait()
	st := r.status()
	if st.State != state || got != code || st.ExitCode == nil || *st.ExitCode != code {
		r.t.Errorf("the run is %s, exit status %d (said: %v), want %s and %d\nreason: %s\n%s", st.State, got, st.ExitCode, state, code, st.Reason, r.said())
	}
	for _, want := range reasons {
		if !strings.Contains(st.Reason, want) {
			r.t.Errorf("the reason\n%s\nlacks\n%s", st.Reason, want)
		}
	}
	for _, p := range st.Processes {
		if !p.State.Ended() {
			r.t.Errorf("%s is %s at the end", p.Name, p.State)
		}
	}
	r.nothingLeft()
}
