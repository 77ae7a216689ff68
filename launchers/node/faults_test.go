package node

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/rundir"
)

// How the run ends by how its processes do: the first meaningful end counts, and
// nothing is left of any.
func TestEnds(t *testing.T) {
	t.Parallel()
	const wait = `sleep "$LONG" & wait`
	quick := func(p *graph.Process) *graph.Process { p.StopTimeout = 0.3; return p }
	cases := []struct {
		name      string
		processes []*graph.Process
		state     rundir.State
		code      int
		reasons   []string
		want      map[string]rundir.State // of processes
	}{
		{"a service ends with 0", []*graph.Process{service("svc", "echo bye; sleep .1"), driver(wait)},
			rundir.Failed, 3, []string{"svc ended with status 0 although the run had not ended", "| bye"}, map[string]rundir.State{"svc": rundir.Failed, "driver": rundir.Stopped}},
		{"the driver ends with 3", []*graph.Process{service("svc", wait), driver("echo no data >&2; exit 3")},
			rundir.Failed, 3, []string{"the driver ended with status 3", "| no data"}, map[string]rundir.State{"svc": rundir.Stopped, "driver": rundir.Failed}},
		{"the driver ends with 42", []*graph.Process{service("svc", wait), driver("exit 42")},
			rundir.Failed, 42, []string{"the driver ended with status 42", "printed nothing"}, nil},
		{"the driver is killed", []*graph.Process{service("svc", wait), driver("kill -KILL $$")},
			rundir.Failed, 137, []string{"the driver was killed by SIGKILL"}, nil},
		{"the driver is terminated by somebody else", []*graph.Process{service("svc", wait), driver("kill -TERM $$")},
			rundir.Failed, 143, []string{"the driver was killed by SIGTERM"}, map[string]rundir.State{"driver": rundir.Failed}},
		{"the driver succeeds, services end with 143", []*graph.Process{service("svc", wait), driver("true")},
			rundir.Succeeded, 0, nil, map[string]rundir.State{"svc": rundir.Stopped, "driver": rundir.Exited}},
		{"the driver succeeds, a service then fails", []*graph.Process{service("svc", "trap 'exit 7' TERM; sleep $LONG & wait"), driver("sleep .2")},
			rundir.Succeeded, 0, nil, nil},
		{"a service fails, the driver then ends with 9", []*graph.Process{service("svc", "sleep .2; exit 5"), driver("trap 'exit 9' TERM; sleep $LONG & wait")},
			rundir.Failed, 3, []string{"svc ended with status 5"}, nil},
		{"a service is killed", []*graph.Process{service("svc", "sleep .1; kill -KILL $$"), service("other", wait)},
			rundir.Failed, 3, []string{"svc was killed by SIGKILL although"}, map[string]rundir.State{"svc": rundir.Failed, "other": rundir.Stopped}},
		{"a service ignores TERM", []*graph.Process{quick(service("svc", "trap '' TERM; while :; do sleep 1; done")), driver("sleep .3")},
			rundir.Succeeded, 0, nil, map[string]rundir.State{"svc": rundir.Stopped}},
		{"a child of a service ignores TERM", []*graph.Process{quick(service("svc", "(trap '' TERM; while :; do sleep 1; done) & wait")), driver("sleep .3")},
			rundir.Succeeded, 0, nil, nil},
		{"a service forks and ends", []*graph.Process{service("svc", "sleep $LONG & exit 0"), driver(wait)},
			rundir.Failed, 3, []string{"svc ended with status 0"}, nil},
		{"a service becomes a daemon", []*graph.Process{service("svc", "setsid sh -c 'sleep $LONG & exit 0' >/dev/null 2>&1 & sleep .3"), driver(wait)},
			rundir.Failed, 3, []string{"svc ended with status 0"}, nil},
		{"a service becomes a daemon with an empty environment that ignores TERM", []*graph.Process{service("svc", `env -i setsid sh -c "trap '' TERM; sleep $LONG & wait; sleep $LONG" & sleep .3`), driver("sleep .6")},
			rundir.Failed, 3, nil, nil},
		{"a program is missing", []*graph.Process{{Name: "svc", Kind: graph.Service, Role: graph.Engine, Argv: []plan.Arg{"no-such-program"}}, service("other", wait)},
			rundir.Failed, 3, []string{"svc could not be started: no-such-program: no such program in PATH"}, map[string]rundir.State{"svc": rundir.Failed}},
		{"a working folder is missing", []*graph.Process{{Name: "svc", Kind: graph.Service, Role: graph.Engine, Argv: []plan.Arg{"/bin/true"}, WorkDir: "nowhere"}},
			rundir.Failed, 3, []string{"svc could not be started: the folder ", "/nowhere does not exist"}, nil},
		{"a script without an interpreter line of a kind that there is", []*graph.Process{service("svc", `printf '#!/no/such/interpreter\n' >x; chmod +x x; ./x`)},
			rundir.Failed, 3, []string{"svc ended with status"}, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.start(c.processes...)
			r.ends(c.state, c.code, c.reasons...)
			for name, want := range c.want {
				if p := r.process(name); p.State != want {
					t.Errorf("%s is %s (%s), want %s", name, p.State, p.Reason, want)
				}
			}
		})
	}
}

// An engine that does not get ready, or stays well no longer: the reason says
// what was seen, and what to change.
func TestProbes(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	within := func(p *graph.Process, timeout float64) *graph.Process { p.Ready.Timeout = timeout; return p }
	cases := []struct {
		name    string
		p       *graph.Process
		reasons []string
	}{
		{"ends before it is ready", &graph.Process{Argv: []plan.Arg{"/bin/sh", "-c", "echo CUDA out of memory; exit 1"}, Ready: judge("x").Ready, Model: "m"},
			[]string{"e ended with status 1 before it was ready", "| CUDA out of memory"}},
		{"ends with 0 before it is ready", &graph.Process{Argv: []plan.Arg{"/bin/true"}, Ready: judge("x").Ready}, []string{"e ended with status 0 before it was ready", "it printed nothing"}},
		{"does not listen in time", within(&graph.Process{Argv: []plan.Arg{"/bin/sh", "-c", "echo loading weights; sleep $LONG & wait"}, Ready: judge("x").Ready}, .4),
			[]string{"not ready 400ms after its start (health: it does not listen yet)", "raise serve.instances.x.readiness.timeout", "| loading weights"}},
		{"listens and does not answer", within(judge("e", "--mute"), .5), []string{"not ready 500ms after its start", "raise serve.instances.e.readiness.timeout"}},
		{"refuses the first token", judge("e", "--refuse=400"), []string{"it will not get ready: a first token: status 400: this chat template is broken", "| judge listens"}},
		{"is busy for ever", within(judge("e", "--refuse=429"), .8), []string{"not ready 800ms after its start (a first token: status 429"}},
		{"fails at the first token", within(judge("e", "--refuse=500"), .8), []string{"not ready 800ms after its start (a first token: status 500"}},
		{"serves another name", judge("e", "--model=other"), []string{"it will not get ready: a first token: status 404: The model m does not exist."}},
		{"generates nothing", within(judge("e", "--tokens=0"), .5), []string{"a first token: the answer has none"}},
		{"finds its port taken", func() *graph.Process { p := judge("e"); p.Argv[2] = plan.Arg("--port=" + port); return p }(),
			[]string{"e ended with status 9 before it was ready", "address already in use"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c.p.Name, c.p.Kind, c.p.Role, c.p.StopTimeout = "e", graph.Service, graph.Engine, 20
			if len(c.p.Argv) > 0 && c.p.Argv[0] != "/bin/sh" {
				c.p.Env = nil
			}
			if len(c.p.Ports()) == 0 { // something has to own the port that is probed
				c.p.Env.Set("PORT", plan.EnvValue{Text: plan.Port("http")})
			}
			r.start(c.p, service("other", `sleep "$LONG" & wait`))
			r.ends(rundir.Failed, 3, c.reasons...)
			if p := r.process("e"); p.State != rundir.Failed || p.Reason == "" {
				t.Errorf("e is %s: %s", p.State, p.Reason)
			}
		})
	}
}

// A judge that was ready counts as dead only after so many failures in a row.
func TestLiveness(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	sick := filepath.Join(r.dir, "sick")
	p := judge("e", "--sick="+sick)
	p.Live = &graph.Liveness{URL: p.Ready.URL + "/health", Interval: .02, ProbeTimeout: 5, FailureThreshold: 400, Field: "serve.instances.e.liveness.failure_threshold"}
	r.start(p)
	r.untilReady()
	for range 3 { // unwell for shorter than that
		if err := os.WriteFile(sick, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if err := os.Remove(sick); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if st := r.status(); st.State != rundir.Ready {
		t.Fatalf("the run is %s: %s", st.State, st.Reason)
	}
	if err := syscall.Kill(r.cmd.Process.Pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	r.ends(rundir.Stopped, 0)

	r = newRig(t)
	sick = filepath.Join(r.dir, "sick")
	p = judge("e", "--sick="+sick)
	p.Live = &graph.Liveness{URL: p.Ready.URL + "/health", Interval: .02, ProbeTimeout: 5, FailureThreshold: 3, Field: "serve.instances.e.liveness.failure_threshold"}
	r.start(p)
	r.untilReady()
	if err := os.WriteFile(sick, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.ends(rundir.Failed, 3, "its health check failed 3 times in a row (status 503: )", "raise serve.instances.e.liveness.failure_threshold")
}

// Requests to stop, from wherever: TERM first, and nothing is left.
func TestStops(t *testing.T) {
	t.Parallel()
	const gently = `trap 'sleep %s; echo gently >end; exit 0' TERM; echo up; sleep "$LONG" & wait; wait`
	signals := func(sigs ...syscall.Signal) func(r *rig) {
		return func(r *rig) {
			for _, sig := range sigs {
				_ = syscall.Kill(r.cmd.Process.Pid, sig)
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	cases := []struct {
		name   string
		stop   func(r *rig)
		gentle bool
		driver bool
		reason string
	}{
		{"Ctrl-C", signals(syscall.SIGINT), true, false, "stopped by a signal"},
		{"Ctrl-C with a driver", signals(syscall.SIGINT), true, true, "stopped by a signal"},
		{"Ctrl-C twice", signals(syscall.SIGINT, syscall.SIGINT), false, false, "stopped by a signal"},
		{"HUP twice, as a shell and the kernel send it", signals(syscall.SIGHUP, syscall.SIGHUP), true, false, "stopped by a signal"},
		{"TERM, and HUP, and the launcher is gone", func(r *rig) {
			signals(syscall.SIGTERM, syscall.SIGHUP)(r)
			_ = r.own.Close()
		}, true, false, "stopped by a signal"},
		{"a request", func(r *rig) {
			if err := r.run.RequestStop("me@here"); err != nil {
				r.t.Error(err)
			}
			time.Sleep(2 * lookAfter) // it was seen
			signals(syscall.SIGTERM)(r)
		}, true, false, "stopped by me@here"},
		{"the launcher is gone", func(r *rig) { _ = r.own.Close() }, true, false, "stopped by a signal"},
		{"everything gets TERM at once, as from a scheduler", func(r *rig) {
			guard, supervisor, p := r.cmd.Process.Pid, r.supervisor(), r.process("svc").PID
			_ = syscall.Kill(p, syscall.SIGTERM)
			_ = syscall.Kill(guard, syscall.SIGTERM)
			_ = syscall.Kill(supervisor, syscall.SIGTERM)
		}, true, false, "stopped by a signal"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			end := filepath.Join(r.dir, "end")
			takes := ".3"
			if !c.gentle {
				takes = r.long
			}
			svc := service("svc", fmt.Sprintf(gently, takes))
			if strings.HasPrefix(c.name, "everything") {
				svc = service("svc", "echo up; sleep $LONG")
			}
			processes := []*graph.Process{svc}
			state, code := rundir.Stopped, 0
			if c.driver {
				processes = append(processes, driver(`sleep "$LONG"`))
				code = ExitStopped
			}
			r.start(processes...)
			r.untilReady()
			r.until("svc is up", func() bool {
				text, _ := os.ReadFile(r.run.LogPath("svc"))
				return string(text) == "up\n"
			})
			c.stop(r)
			r.ends(state, code, c.reason)
			_, err := os.Stat(end)
			if c.gentle && err != nil && !strings.HasPrefix(c.name, "everything") || !c.gentle && err == nil {
				t.Errorf("ended by itself: %v, want %v\n%s", err == nil, c.gentle, r.said())
			}
		})
	}
}

// A signal at any time of the start ends the run, and nothing is left.
func TestStopAtAnyTime(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.start(service("a", `sleep "$LONG"`), judge("b"), service("c", `setsid sleep "$LONG" & wait`))
			if i%2 == 0 {
				time.Sleep(time.Duration(i) * 15 * time.Millisecond)
			} else {
				r.until("", r.run.HasStatus)
				time.Sleep(time.Duration(i) * 5 * time.Millisecond)
			}
			_ = syscall.Kill(r.cmd.Process.Pid, syscall.SIGINT)
			r.wait()
			r.nothingLeft()
			if !r.run.HasStatus() {
				return // so early that the guard itself took no signals yet
			}
			if st := r.status(); st.State != rundir.Stopped {
				t.Errorf("the run is %s: %s\n%s", st.State, st.Reason, r.said())
			}
		})
	}
}

// KILL of the run's own processes. What carries on is ended by the one that is
// left, or by the next stop.
func TestKills(t *testing.T) {
	t.Parallel()
	hard := func(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }
	// Children that hide in every way, and ignore TERM.
	processes := func() []*graph.Process {
		return []*graph.Process{
			service("plain", `sleep "$LONG"`),
			judge("stubborn", "--stubborn"),
			service("session", `setsid sh -c "trap '' TERM; sleep $LONG; :" & wait`),
			service("bare", `env -i sh -c "trap '' TERM; sleep $LONG; :" & wait`),
		}
	}
	t.Run("a child", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		ps := processes()
		for _, p := range ps {
			p.StopTimeout = .5
		}
		r.start(ps...)
		r.untilReady()
		hard(r.process("stubborn").PID)
		r.ends(rundir.Failed, 3, "stubborn was killed by SIGKILL although the run had not ended")
	})
	t.Run("the supervisor", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.start(processes()...)
		r.untilReady()
		hard(r.supervisor())
		r.ends(rundir.Failed, 3, "its supervisor was killed by SIGKILL")
	})
	t.Run("the supervisor, while it starts", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.start(processes()...)
		hard(r.supervisor())
		r.wait()
		r.nothingLeft()
	})
	t.Run("the supervisor breaks by itself", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.env = append(r.env, "NODE_TEST_FAULT=panic")
		r.start(processes()...)
		r.ends(rundir.Failed, 2, "its supervisor ended with status 2 and could not say why")
	})
	t.Run("the guard", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		ps := processes()
		for _, p := range ps {
			p.StopTimeout = .5
		}
		r.start(ps...)
		r.untilReady()
		hard(r.cmd.Process.Pid)
		r.until("nothing is left", func() bool { return len(r.living()) == 0 })
		if st := r.status(); st.State != rundir.Failed || st.Reason != "its guard was killed" {
			t.Errorf("the run is %s: %s", st.State, st.Reason)
		}
	})
	t.Run("both", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.start(append(processes(), service("hidden", `env -i setsid sh -c "trap '' TERM; sleep $LONG; :" & wait`))...)
		r.untilReady()
		r.until("the hidden one was seen", func() bool {
			_, err := os.Stat(r.run.Path(hiddenFile(0)))
			return err == nil
		})
		supervisor := r.supervisor()
		_ = syscall.Kill(supervisor, syscall.SIGSTOP) // else it sees the guard's end
		hard(r.cmd.Process.Pid)
		hard(supervisor)
		r.wait()
		r.until("it is lost", func() bool { return r.status().State == rundir.Lost })
		if len(r.living()) == 0 {
			t.Fatal("nothing survived: the test shows nothing")
		}
		n, err := EndLost(r.run, "over")
		if err != nil || n < 4 {
			t.Errorf("ended %d processes, error %v", n, err)
		}
		r.nothingLeft()
		if st := r.status(); st.State != rundir.Failed || st.Reason != "over" {
			t.Errorf("the run is %s: %s", st.State, st.Reason)
		}
		if n, err := EndLost(r.run, "again"); n != 0 || err != nil {
			t.Errorf("once more: %d, %v", n, err)
		}
	})
	t.Run("the guard, and the supervisor is stopped", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		ps := processes()
		for _, p := range ps {
			p.StopTimeout = .5
		}
		r.start(ps...)
		r.untilReady()
		supervisor := r.supervisor()
		_ = syscall.Kill(supervisor, syscall.SIGSTOP)
		hard(r.cmd.Process.Pid)
		r.wait()
		if found := supervisors(r.run); len(found) < 4 {
			t.Errorf("%v", found)
		}
		_ = syscall.Kill(supervisor, syscall.SIGCONT)
		if _, err := EndLost(r.run, "over"); err != nil {
			t.Error(err)
		}
		r.nothingLeft()
	})
}

// The kernel tells the children of a supervisor when the thread that started
// them ends. Threads that come and go beside it end no judge.
func TestThreadsComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.env = append(r.env, "NODE_TEST_FAULT=threads")
	var ps []*graph.Process
	for i := range 40 {
		p := service(fmt.Sprint("s", i), `exec sleep "$LONG"`)
		if i > 0 {
			p.After = []string{ps[i-1].Name}
		}
		ps = append(ps, p)
	}
	r.start(append(ps, driver("sleep .5"))...)
	r.ends(rundir.Succeeded, 0)
}

// A clock that is set to and fro changes no wait.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.env = append(r.env, "NODE_TEST_FAULT=clock")
	p := judge("e")
	p.Ready.Timeout = 50
	p.Live = &graph.Liveness{URL: p.Ready.URL + "/health", Interval: .02, ProbeTimeout: 5, FailureThreshold: 1, Field: "x"}
	r.start(p, service("svc", "trap 'sleep .3; echo >end; exit 0' TERM; sleep $LONG & wait; wait"), driver("sleep .5; exit 6"))
	r.ends(rundir.Failed, 6)
	r.untilFile("end")
	if st := r.status(); st.ReadyAfter > 60 {
		t.Errorf("ready after %v s", st.ReadyAfter)
	}
}

func TestFrozenFileChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(service("svc", "touch started"))
	if err := os.WriteFile(r.run.Path(rundir.GraphFile), []byte(`{"processes": []}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.ends(rundir.Failed, 3, "changed since the run was made: graph.json")
	if _, err := os.Stat(filepath.Join(r.dir, "started")); err == nil {
		t.Error("a process was started")
	}
}

// The run ends when its folder is removed, and no log, status or event brings
// the folder back.
func TestFolderRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(service("chatty", `while :; do echo "$LONG$LONG$LONG$LONG"; done`), service("late", `trap 'echo the end; exit 0' TERM; sleep "$LONG" & wait`))
	r.untilReady()
	r.until("the log was rotated", func() bool {
		names, _ := filepath.Glob(r.run.Path("logs/chatty-*.log"))
		return len(names) > 0
	})
	r.until("the folder is removed", func() bool { return os.RemoveAll(r.run.Dir) == nil && !r.run.Exists() })
	if code := r.wait(); code != ExitService {
		t.Errorf("exit status %d, want %d\n%s", code, ExitService, r.said())
	}
	r.nothingLeft()
	if entries, err := os.ReadDir(filepath.Dir(r.run.Dir)); err != nil || len(entries) > 0 {
		t.Errorf("left in the folder of runs: %v %v", entries, err)
	}
	if !strings.Contains(r.said(), "the folder of the run was removed while it ran") {
		t.Error(r.said())
	}
}

// A judge inherits its standard files, nothing else, and a run does not ask for
// input.
func TestInherits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(driver(`read x || echo end of input; grep flags /proc/self/fdinfo/1; exec ls -l /proc/self/fd`))
	r.ends(rundir.Succeeded, 0)
	text, err := os.ReadFile(r.run.LogPath("driver"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		switch {
		case words[0] == "flags:":
			if flags, _ := strconv.ParseInt(words[1], 8, 32); flags&syscall.O_NONBLOCK != 0 {
				t.Errorf("its output does not block: %s", line) // it would lose what does not fit
			}
		case len(words) > 4 && words[len(words)-2] == "->":
			to, _, _ := strings.Cut(words[len(words)-1], ":")
			got = append(got, words[len(words)-3]+" "+to)
		case words[0] != "total":
			got = append(got, strings.TrimSpace(line))
		}
	}
	if len(got) != 5 || strings.Join(got[:4], ", ") != "end of input, 0 /dev/null, 1 pipe, 2 pipe" || !strings.HasPrefix(got[4], "3 /proc/") { // of ls itself
		t.Errorf("%q", got)
	}
}

// A process that the kernel does not let go does not hold up the end.
func TestCannotBeKilled(t *testing.T) {
	every, most := killEvery, maxKills
	killEvery, maxKills = time.Millisecond, 3
	t.Cleanup(func() { killEvery, maxKills = every, most })
	dir := t.TempDir()
	run, err := rundir.Create(dir, rundir.Info{ID: "x"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const nobody = 1 << 30 // signals reach nobody, and no end is told
	s := &supervisor{Options: Options{Run: run, Now: time.Now}, events: make(chan func(), 1), lead: true}
	s.tasks = []*task{{p: &graph.Process{Name: "stuck", StopTimeout: .01}, mine: true, running: true, st: rundir.Process{Name: "stuck", State: rundir.Ready}}}
	s.tasks[0].id.PID = nobody
	s.graph = &graph.Graph{Nodes: 1}
	stop := make(chan Stop, 1)
	s.Stop = stop
	stop <- Stop{Why: "enough"}
	s.loop()
	if got := s.tasks[0].st; got.State != rundir.Failed || !strings.Contains(got.Reason, "cannot be killed") {
		t.Errorf("%+v", got)
	}
}

// A scheduler that lost sight of a job starts it again while it still runs: the
// earlier attempt ends, and says nothing more in the run's folder.
func TestLaterAttempt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(service("svc", `sleep "$LONG"`))
	r.untilReady()
	later := &rundir.Status{RunID: r.run.ID, State: rundir.Starting, Attempt: 2, Processes: []rundir.Process{}}
	if err := r.run.WriteStatus(later); err != nil {
		t.Fatal(err)
	}
	if code := r.wait(); code != ExitStopped {
		t.Errorf("exit status %d, want %d\n%s", code, ExitStopped, r.said())
	}
	r.nothingLeft()
	if st, err := r.run.Status(); err != nil || st.Attempt != 2 || st.State != rundir.Starting {
		t.Errorf("%+v %v", st, err)
	}
}

// A driver comes after the judges of another run, is told where they are, and
// does not outlive them; they end with it when they were started for it.
func TestJudgesBeside(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    rundir.State // of the judges, once the driver runs
		driver string
		state  rundir.State
		code   int
		reason string
	}{
		{"driver ends", rundir.Ready, `echo "$GENRM_JUDGES_URL" >asked; exit 4`, rundir.Failed, 4, "the driver ended with status 4"},
		{"judges end", rundir.Failed, `echo "$GENRM_JUDGES_URL" >asked; sleep "$LONG"`, rundir.Failed, ExitService, "judges: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			judges, err := rundir.Create(filepath.Join(r.dir, "judges"), rundir.Info{ID: "judges-1"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			status := func(s rundir.State) {
				if err := judges.WriteStatus(&rundir.Status{RunID: judges.ID, State: s, Processes: []rundir.Process{}}); err != nil {
					t.Fatal(err)
				}
			}
			status(rundir.Starting)
			if err := judges.Write(rundir.EndpointsFile, rundir.Endpoints{Gateway: rundir.Gateway{URL: "http://there:1"}}); err != nil {
				t.Fatal(err)
			}
			r.judges = &graph.Judges{RunID: judges.ID, Dir: judges.Dir, Stop: true}
			beside := &graph.Process{Name: "judges", Kind: graph.Remote, Role: graph.Endpoint,
				Ready: &graph.Ready{Probe: graph.ProbeRun, URL: plan.Lit(judges.Dir), Timeout: 50, Interval: 0.02, ProbeTimeout: 5},
				Live:  &graph.Liveness{URL: plan.Lit(judges.Dir), Interval: 0.1, ProbeTimeout: 5, FailureThreshold: 1}}
			d := driver(c.driver)
			d.Env.Set(graph.JudgesURL, plan.EnvValue{Text: plan.JudgesURL()})
			r.start(beside, d)
			r.until("the judges are awaited", func() bool {
				ps := r.status().Processes
				return len(ps) > 0 && strings.Contains(ps[0].Awaits, "judges-1 is starting")
			})
			if _, err := os.Stat(filepath.Join(r.dir, "asked")); err == nil {
				t.Error("the driver did not wait")
			}
			status(rundir.Ready)
			r.until("the driver asks", func() bool {
				text, _ := os.ReadFile(filepath.Join(r.dir, "asked"))
				return string(text) == "http://there:1\n"
			})
			status(c.end)
			r.ends(c.state, c.code, c.reason)
			if by, ok := judges.StopRequested(); !ok || by.By != "run "+r.run.ID {
				t.Errorf("the judges were not asked to end: %+v", by)
			}
		})
	}
}
