//go:build e2e

// Package engines launches experiments whose judges are real vLLM and SGLang
// servers on this machine's CPU, and does to them what goes wrong in practice.
// After each test nothing of its run may be left. Started by ./run.
package engines

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Nothing starts, and everything that is wrong is said at once: a port that
// another process has, a model that is not there, programs that are not.
func TestPreflight(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	self, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}

	r := newRig(t)
	model := r.model("good")
	missing := model + "-v2"
	file := r.experiment(fmt.Sprintf("port: %d", port), vllm("quality", missing, ""), vllm("safety", model, ""))
	wants := func(words ...string) {
		t.Helper()
		c := r.start("launch", file)
		if code := c.wait(endLimit); code != 3 {
			t.Errorf("exit status %d, want 3", code)
		}
		for _, want := range words {
			if !strings.Contains(c.out.String(), want) {
				t.Errorf("%q is not in what it says:\n%s", want, c.out.String())
			}
		}
		if dir := r.folder(); dir != "" {
			t.Errorf("%s was made", dir)
		}
		r.checkGone()
	}
	holder := []string{fmt.Sprint(port), fmt.Sprint(os.Getpid()), strings.TrimSpace(string(self))}
	wants(append(holder, missing, filepath.Dir(missing))...)
	r.path = "/usr/bin:/bin"
	wants(append(holder, missing, "vllm")...)
}

// Three judges behind one gateway: they become ready, each answers under its
// name, another terminal follows the logs, and `genrm stop` ends it all.
func TestServe(t *testing.T) {
	r := newRig(t)
	file := r.experiment("", vllm("quality", r.model("good"), ""), vllm("safety", r.model("safe"), ""), sglang("style", r.model("plain")))
	launch := r.start("launch", file)
	for r.folder() == "" && !exited(launch) {
		time.Sleep(pollEvery)
	}
	logs := r.start("logs", "-f")
	s := r.await(launch, "ready", startLimit)
	r.note(launch.cmd.Process.Pid, s.Supervisor.PID)

	var endpoints struct {
		RunID     string                                  `json:"run_id"`
		Gateway   struct{ URL string }                    `json:"gateway"`
		Instances map[string]struct{ URL, Engine string } `json:"instances"`
	}
	data, err := os.ReadFile(filepath.Join(r.folder(), "endpoints.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &endpoints); err != nil {
		t.Fatal(err)
	}
	if endpoints.RunID != s.RunID || len(endpoints.Instances) != 3 || endpoints.Instances["style"].Engine != "sglang" {
		t.Errorf("endpoints.json: %s", data)
	}
	var printed, written any
	if err := json.Unmarshal([]byte(r.genrm("endpoint", "-o", "json")), &printed); err != nil {
		t.Error(err)
	}
	if _ = json.Unmarshal(data, &written); !reflect.DeepEqual(printed, written) {
		t.Errorf("genrm endpoint says %v, endpoints.json %v", printed, written)
	}

	url := endpoints.Gateway.URL
	for judge, word := range map[string]string{"quality": "good", "safety": "safe", "style": "plain"} {
		answer := word + " " + word + " " + word
		code, text := request(t, url+"/genrm/generate", fmt.Sprintf(`{"route_key":%q,"messages":[{"role":"user","content":"is it"}]}`, judge))
		if want := fmt.Sprintf(`{"response":%q}`, answer); code != 200 || strings.TrimSpace(text) != want {
			t.Errorf("%s: %d %s, want %s", judge, code, text, want)
		}
		code, text = request(t, url+"/v1/chat/completions", fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"is it"}]}`, judge))
		if code != 200 || !strings.Contains(text, answer) {
			t.Errorf("%s: %d %s, want %s", judge, code, text, answer)
		}
		code, text = request(t, url+"/v1/responses", fmt.Sprintf(`{"model":%q,"input":"is it"}`, judge))
		if code != 200 || !strings.Contains(text, answer) {
			t.Errorf("%s: %d %s, want %s", judge, code, text, answer)
		}
		long := strings.Repeat("long ", 600)
		code, text = request(t, url+"/genrm/generate", fmt.Sprintf(`{"route_key":%q,"messages":[{"role":"user","content":%q}]}`, judge, long))
		if code != 400 || !strings.HasPrefix(text, `{"error":{`) || !strings.Contains(text, "context length") {
			t.Errorf("%s: a prompt beyond the context: %d %s", judge, code, text)
		}
	}
	code, text := request(t, url+"/genrm/generate", `{"route_key":"tone","messages":[{"role":"user","content":"is it"}]}`)
	if want := `No GenRM instance registered for route_key='tone'; available=['quality', 'safety', 'style']`; code != 404 || !strings.Contains(text, want) {
		t.Errorf("%d %s, want %s", code, text, want)
	}
	if code, text := request(t, url+"/genrm/health", ""); code != 200 || !strings.Contains(text, `"status":"healthy"`) || strings.Contains(text, "unhealthy") {
		t.Errorf("health: %d %s", code, text)
	}
	if code, text := request(t, url+"/genrm/metrics", ""); code != 200 || !strings.Contains(text, `"requests":4,"errors":0,"refused":1`) {
		t.Errorf("metrics: %d %s", code, text)
	}

	out := launch.out.String()
	if !strings.Contains(out, "ready in ") {
		t.Errorf("launch did not say that it is ready:\n%s", out)
	}
	_, curl, _ := strings.Cut(out, "\n  curl ")
	curl, _, _ = strings.Cut(curl, "\n")
	answer, err := exec.Command("bash", "-c", "curl -sS "+curl).CombinedOutput()
	if err != nil || !strings.HasPrefix(string(answer), `{"response":"`) {
		t.Errorf("pasted curl %s: %v, %s", curl, err, answer)
	}

	if exited(logs) {
		t.Errorf("logs -f ended before the run:\n%s", logs.out.String())
	}
	r.note(launch.cmd.Process.Pid, s.Supervisor.PID)
	r.genrm("stop")
	if code := launch.wait(endLimit); code != 0 {
		t.Errorf("launch: exit status %d after stop\n%s", code, launch.out.String())
	}
	r.checkGone()
	if s := r.await(launch, "stopped", 0); s.ExitCode == nil || *s.ExitCode != 0 {
		t.Errorf("status after stop: %+v", s)
	}
	if code := logs.wait(endLimit); code != 0 {
		t.Errorf("logs -f: exit status %d", code)
	}
	for _, want := range []string{"EngineCore", "Uvicorn running", "max_total_num_tokens"} { // vLLM's, both, SGLang's
		if !strings.Contains(logs.out.String(), want) {
			t.Errorf("logs -f shows no line with %q:\n%s", want, logs.out.String())
		}
	}
}

// An engine of which a process is killed ends the run as a failure, and the
// rest of it goes, too: vLLM's engine core and worker outlive their API server,
// and the API server leaves with status 0 when it loses its engine core.
func TestKill(t *testing.T) {
	for _, c := range []struct {
		name   string
		judge  func(r *rig) string
		victim string // start of its command; "" for the process that genrm started
	}{
		{"vLLM server", func(r *rig) string { return vllm("quality", r.model("good"), "") }, ""},
		{"vLLM engine core", func(r *rig) string { return vllm("quality", r.model("good"), "") }, "VLLM::EngineCore"},
		{"vLLM worker", func(r *rig) string { return vllm("quality", r.model("good"), "") }, "VLLM::Worker"},
		{"SGLang server", func(r *rig) string { return sglang("quality", r.model("good")) }, ""},
		{"SGLang scheduler", func(r *rig) string { return sglang("quality", r.model("good")) }, "sglang::scheduler"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			launch := r.start("launch", r.experiment("", c.judge(r), sim("safety", "safe")))
			s := r.await(launch, "ready", startLimit)
			victim := s.pid(t, "quality-0")
			for _, p := range r.note(launch.cmd.Process.Pid, s.Supervisor.PID) {
				if c.victim != "" && strings.HasPrefix(p.command, c.victim) {
					victim = p.pid
				}
			}
			if c.victim != "" && victim == s.pid(t, "quality-0") {
				t.Fatalf("no process %s", c.victim)
			}
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if code := launch.wait(endLimit); code != 3 {
				t.Errorf("exit status %d, want 3", code)
			}
			r.checkGone()
			if !strings.Contains(launch.out.String(), "quality-0") {
				t.Errorf("it does not say which process ended:\n%s", launch.out.String())
			}
			if s := r.await(launch, "failed", 0); s.ExitCode == nil || *s.ExitCode != 3 || !strings.Contains(s.Reason, "quality-0") {
				t.Errorf("status: %+v", s)
			}
		})
	}
}

// A run's own two processes, one of which watches the other, are killed: the
// engines go all the same, at the latest by `genrm stop`.
func TestKillSupervisor(t *testing.T) {
	for _, c := range []struct {
		name              string
		guard, supervisor bool
	}{
		{"guard", true, false},
		{"supervisor", false, true},
		{"both", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			launch := r.start("launch", r.experiment("", vllm("quality", r.model("good"), ""), sim("safety", "safe")))
			s := r.await(launch, "ready", startLimit)
			var victims []int
			for _, p := range r.note(launch.cmd.Process.Pid, s.Supervisor.PID) {
				if guard := p.pid == s.Supervisor.PID; guard && c.guard || p.parent == s.Supervisor.PID && c.supervisor {
					victims = append(victims, p.pid)
				}
			}
			if len(victims) == 0 || c.guard && c.supervisor && len(victims) != 2 {
				t.Fatalf("victims: %v", victims)
			}
			for _, pid := range victims {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
			if code := launch.wait(endLimit); code != 3 {
				t.Errorf("exit status %d, want 3\n%s", code, launch.out.String())
			}
			if c.guard && c.supervisor {
				r.genrm("stop")
			}
			r.checkGone()
			if s := r.status(); s.State != "failed" && s.State != "lost" {
				t.Errorf("status: %+v", s)
			}
		})
	}
}

// vLLM that is told to end while it starts loses its engine core and then hangs:
// it takes a KILL.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	launch := r.start("launch", r.experiment("", vllm("quality", r.model("good"), "stop_timeout: 3")))
	s := r.await(launch, "starting", startLimit)
	deadline := time.Now().Add(startLimit)
	for there := false; !there; time.Sleep(pollEvery) {
		if exited(launch) || time.Now().After(deadline) {
			t.Fatalf("no engine core:\n%s", launch.out.String())
		}
		for _, p := range r.note(launch.cmd.Process.Pid, s.Supervisor.PID) {
			there = there || strings.HasPrefix(p.command, "VLLM::EngineCore")
		}
		s = r.await(launch, "starting", 0)
	}
	r.genrm("stop")
	if code := launch.wait(endLimit); code != 0 {
		t.Errorf("exit status %d\n%s", code, launch.out.String())
	}
	r.checkGone()
	r.await(launch, "stopped", 0)
}

// A flag that the engine does not know ends the start with the engine's words.
func TestWrongFlag(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	launch := r.start("launch", r.experiment("", vllm("quality", r.model("good"), `extra_args: ["--no-such-flag=1"]`), sim("safety", "safe")))
	if code := launch.wait(startLimit); code != 3 {
		t.Errorf("exit status %d, want 3", code)
	}
	for _, want := range []string{"quality-0", "unrecognized arguments: --no-such-flag=1"} {
		if !strings.Contains(launch.out.String(), want) {
			t.Errorf("%q is not in what it says:\n%s", want, launch.out.String())
		}
	}
	r.checkGone()
	r.await(launch, "failed", 0)
}
