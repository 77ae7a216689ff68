//go:build e2e

package engines

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// Limits of waiting. They bound a hang; none is a promise.
const (
	startLimit = 5 * time.Minute  // for engines to become ready, several at once on two cores
	endLimit   = 90 * time.Second // for a run to end
	pollEvery  = 100 * time.Millisecond
)

// rig is one test's folder of models and runs, whose name has a blank and a
// quote. Every process that comes from it
// carries its mark in the environment; engines that write over their
// environment are found as descendants.
type rig struct {
	t    *testing.T
	dir  string
	temp string // TMPDIR, in which vLLM leaves its sockets: their paths have to be short
	path string // PATH of what is started
	seen map[int]process
	own  []*command
}

const markName = "GENRM_E2E_MARK"

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "judges' folder"), seen: map[int]process{}}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	temp, err := os.MkdirTemp("", "genrm-")
	if err != nil {
		t.Fatal(err)
	}
	r.temp = temp
	t.Cleanup(func() { _ = os.RemoveAll(temp) })
	// SGLang's python3 comes first: vllm has its own in its first line.
	r.path = filepath.Join(setting(t, "GENRM_E2E_SGLANG"), "bin") + ":" + filepath.Join(setting(t, "GENRM_E2E_VLLM"), "bin") + ":" + os.Getenv("PATH")
	t.Cleanup(func() {
		if t.Failed() {
			r.showLogs()
		}
		for _, c := range r.own { // after a failure: the next test starts with nothing left
			_ = c.cmd.Process.Kill()
			<-c.done
		}
		for _, p := range r.alive() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	})
	return r
}

func setting(t *testing.T, name string) string {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		t.Fatalf("%s is not set: start these tests with e2e/engines/run", name)
	}
	return v
}

// model makes a model that answers word.
func (r *rig) model(word string) string {
	dir := filepath.Join(r.dir, "models", word)
	writeModel(r.t, dir, word)
	return dir
}

// experiment writes an experiment file: judges, as `NAME: {…}`, behind a
// gateway, on a machine that is told to have GPUs. The engines here use none.
func (r *rig) experiment(gateway string, judges ...string) string {
	r.t.Helper()
	file := filepath.Join(r.dir, "experiment.cue")
	text := fmt.Sprintf(`
name:   "engines"
target: "local"
serve: {
	instances: {
		%s
	}
	gateway: {%s}
}
local: gpus: [0, 1, 2, 3, 4, 5, 6, 7]
cluster: {nodes: 1, gpus_per_node: 8}
`, strings.Join(judges, "\n\t\t"), gateway)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// vllm is a judge that vLLM serves; more is CUE that goes into its block.
func vllm(name, model, more string) string {
	return fmt.Sprintf(`%s: {
			engine: "vllm", model_path: %q, num_gpus: 1, engine_version: "0.24.0" // what ./run installs
			engine_config: {max_context_len: 512, enforce_eager: true}
			sampling_config: {temperature: 0, max_response_len: 3}
			env: {VLLM_CPU_KVCACHE_SPACE: "1", VLLM_NO_USAGE_STATS: "1", HF_HUB_OFFLINE: "1", TORCHDYNAMO_DISABLE: "1"} // else it needs g++
			%s
		}`, name, model, more)
}

// sglang is a judge that SGLang serves.
func sglang(name, model string) string {
	return fmt.Sprintf(`%s: {
			engine: "sglang", model_path: %q, num_gpus: 1
			engine_config: {
				max_context_len: 512, max_total_tokens: 4096, dtype: "float32"
				device: "cpu", attention_backend: "torch_native", sampling_backend: "pytorch"
				disable_radix_cache: true, disable_overlap_schedule: true
			}
			sampling_config: {temperature: 0, max_response_len: 3}
			env: HF_HUB_OFFLINE: "1"
		}`, name, model)
}

// sim is a judge without an engine.
func sim(name, answer string) string {
	return fmt.Sprintf(`%s: {engine: "sim", constant: %q}`, name, answer)
}

// command is a genrm that runs.
type command struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed after its end
	out  suite.Buffer  // stdout and stderr
}

// start starts genrm with the run root of this test.
func (r *rig) start(args ...string) *command {
	r.t.Helper()
	c := &command{t: r.t, name: "genrm " + strings.Join(args, " "), done: make(chan struct{})}
	c.cmd = exec.Command(setting(r.t, "GENRM_E2E_GENRM"), args...)
	c.cmd.Dir = r.dir
	c.cmd.Env = append(os.Environ(), "PATH="+r.path, "TMPDIR="+r.temp, "GENRM_RUNS="+r.runs(), markName+"="+r.dir)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
	c.cmd.WaitDelay = 5 * time.Second // what is left behind may hold the pipe
	if err := c.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.own = append(r.own, c)
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	return c
}

// genrm runs genrm to its end and returns what it printed. It must succeed.
func (r *rig) genrm(args ...string) string {
	r.t.Helper()
	c := r.start(args...)
	if code := c.wait(endLimit); code != 0 {
		r.t.Fatalf("%s: exit status %d\n%s", c.name, code, c.out.String())
	}
	return c.out.String()
}

// wait returns the exit status.
func (c *command) wait(limit time.Duration) int {
	c.t.Helper()
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		c.t.Fatalf("%s: not at its end after %s\n%s", c.name, limit, c.out.String())
		return -1
	}
}

// status is what these tests read of status.json.
type status struct {
	RunID      string            `json:"run_id"`
	State      string            `json:"state"`
	Reason     string            `json:"reason"`
	ExitCode   *int              `json:"exit_code"`
	Supervisor struct{ PID int } `json:"supervisor"`
	Processes  []struct {
		Name  string `json:"name"`
		State string `json:"state"`
		PID   int    `json:"pid"`
	} `json:"processes"`
}

func (s *status) pid(t *testing.T, name string) int {
	t.Helper()
	for _, p := range s.Processes {
		if p.Name == name && p.PID != 0 {
			return p.PID
		}
	}
	t.Fatalf("no process %s in %+v", name, s.Processes)
	return 0
}

func (r *rig) runs() string { return filepath.Join(r.dir, "runs") }

// folder is the folder of the only run, or "" before there is one.
func (r *rig) folder() string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.runs(), "engines-*", "run.json"))
	if err != nil || len(found) > 1 {
		r.t.Fatalf("%q, %v", found, err)
	}
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[0])
}

// await polls status.json until the run is in the state, and returns it. An end
// in another state fails the test.
func (r *rig) await(c *command, state string, limit time.Duration) *status {
	r.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(pollEvery) {
		over := exited(c) || time.Now().After(deadline) // before the look, so that the last one is not too early
		s := r.status()
		if s.State == state {
			return s
		}
		if over || s.ExitCode != nil {
			r.t.Fatalf("the run is %q, not %s, after %s at most: %s\n%s", s.State, state, limit, s.Reason, c.out.String())
		}
	}
}

// status reads status.json; the zero status before there is one.
func (r *rig) status() *status {
	r.t.Helper()
	s := new(status)
	dir := r.folder()
	if dir == "" {
		return s
	}
	data, err := os.ReadFile(filepath.Join(dir, "status.json"))
	if errors.Is(err, os.ErrNotExist) {
		return s
	}
	if err == nil {
		err = json.Unmarshal(data, s) // it is replaced as a whole, never half there
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

func exited(c *command) bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// showLogs prints the end of every log of the test's runs.
func (r *rig) showLogs() {
	files, _ := filepath.Glob(filepath.Join(r.runs(), "*", "logs", "*.log"))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		r.t.Logf("%s:\n%s", filepath.Base(file), data[max(0, len(data)-3000):])
	}
}

// process is what /proc says.
type process struct {
	pid, parent int
	state       string
	started     string // since boot, so that a pid taken anew is another process
	command     string
	environ     string
}

func (p process) String() string { return fmt.Sprintf("%d (%s, %s)", p.pid, p.command, p.state) }

// processes lists all processes; those that end meanwhile are left out.
func processes(t *testing.T) map[int]process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		_, rest, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
		f := strings.Fields(rest)
		if err != nil || !ok || len(f) < 20 {
			continue
		}
		p := process{pid: pid, state: f[0], started: f[19]}
		p.parent, _ = strconv.Atoi(f[1])
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		p.command = string(bytes.TrimSpace(bytes.ReplaceAll(command, []byte{0}, []byte{' '})))
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		p.environ = string(environ)
		all[pid] = p
	}
	return all
}

// note remembers every process that comes from roots, so that alive knows them
// whatever they do to their name, parent and environment. It returns them.
func (r *rig) note(roots ...int) []process {
	r.t.Helper()
	all := processes(r.t)
	family := map[int]bool{}
	for _, pid := range roots {
		family[pid] = true
	}
	for grown := true; grown; {
		grown = false
		for pid, p := range all {
			if !family[pid] && family[p.parent] {
				family[pid], grown = true, true
			}
		}
	}
	var list []process
	for pid := range family {
		if p, ok := all[pid]; ok {
			r.seen[pid] = p
			list = append(list, p)
		}
	}
	return list
}

// alive lists the processes of this test that are there, without the commands
// that it started itself. A zombie is not there.
func (r *rig) alive() []process {
	var list []process
	for pid, p := range processes(r.t) {
		seen, known := r.seen[pid]
		if slices.ContainsFunc(r.own, func(c *command) bool { return c.cmd.Process.Pid == pid }) {
			continue
		}
		mine := known && seen.started == p.started || strings.Contains(p.environ, r.dir) || strings.Contains(p.command, r.dir)
		if mine && p.state != "Z" && p.state != "X" {
			list = append(list, p)
		}
	}
	return list
}

// checkGone wants that nothing is left of the run.
func (r *rig) checkGone() {
	r.t.Helper()
	if left := r.alive(); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
}

// request returns the status and the body of the answer; a body makes it a POST.
func request(t *testing.T, url, body string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	var res *http.Response
	var err error
	if body == "" {
		res, err = client.Get(url)
	} else {
		res, err = client.Post(url, "application/json", strings.NewReader(body))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}
