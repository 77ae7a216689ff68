//go:build e2e

package slurm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	limit     = 4 * time.Minute
	pollEvery = 100 * time.Millisecond
)

// both are the versions of Slurm that the rig has.
var both = []string{"22", "24"}

func TestMain(m *testing.M) {
	if stub, ok := stubs[filepath.Base(os.Args[0])]; ok {
		stub()
		return
	}
	os.Exit(m.Run())
}

// on runs a test on Slurm in these versions, beside each other.
func on(t *testing.T, versions []string, f func(*testing.T, *rig)) {
	t.Helper()
	for _, v := range versions {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			f(t, newRig(t, v))
		})
	}
}

// rig is one test's folder, whose name has blanks, a quote and more, on one
// cluster. Its runs carry the folder in their environment.
type rig struct {
	t       *testing.T
	version string
	dir     string
	genrm   string
	own     []*command
}

func newRig(t *testing.T, version string) *rig {
	t.Helper()
	genrm := os.Getenv("GENRM_E2E_GENRM")
	if genrm == "" || os.Getenv("GENRM_SLURM_RIG") == "" {
		t.Fatal("start these tests with e2e/slurm/run")
	}
	temp, err := os.MkdirTemp("", "genrm-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, version: version, genrm: genrm, dir: filepath.Join(temp, `user's "größe" 50% $HOME`)}
	for _, dir := range []string{"bin", "relax", "models"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name := range stubs {
		if name == "vllm" { // for the tests that want it
			continue
		}
		r.link(self, "bin/"+name)
	}
	r.link(genrm, "bin/genrm")
	r.file("relax/train.py", "")
	t.Cleanup(func() {
		if t.Failed() {
			r.showLogs()
		}
		for _, id := range r.jobs() { // after a failure: the next test finds the nodes free
			_, _, _ = r.try("scancel", id)
		}
		for _, c := range r.own {
			_ = c.cmd.Process.Kill()
			<-c.done
		}
		for _, p := range r.alive() {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		if err := os.RemoveAll(temp); err != nil {
			t.Log(err)
		}
	})
	return r
}

func (r *rig) link(to, name string) {
	r.t.Helper()
	if err := os.Symlink(to, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// file writes a file of the test's folder, and returns its path.
func (r *rig) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// serve writes an experiment of one simulated judge on one node.
func (r *rig) serve(more string) string {
	return r.file("experiment.cue", `
name:   "judges"
target: "slurm"
serve: instances: judge: {engine: "sim", constant: "7"}
slurm: time: string | *"10"
`+more)
}

// engine writes an experiment of one judge on GPUs, whose engine is a stand-in.
func (r *rig) engine(gpus int, more string) string {
	return r.file("experiment.cue", fmt.Sprintf(`
name:   "judges"
target: "slurm"
serve: instances: judge: {engine: "sglang", model_path: %s, num_gpus: %d, num_gpus_per_engine: %[2]d}
slurm: time: string | *"10"
cluster: {nodes: 1, gpus_per_node: 8}
%[3]s`, suite.CUE(filepath.Join(r.dir, "models")), gpus, more))
}

// relax writes a training run on two GPUs of one node; end is what its driver
// does.
func (r *rig) relax(end, more string) string {
	r.file("end", end)
	return r.file("experiment.cue", fmt.Sprintf(`
name:   "training"
target: "slurm"
relax: {
	root:       %s
	entrypoint: "train.py"
	colocate:   true
	resource: {actor: [1, 2], rollout: [1, 1], genrm: [1, 1]}
	genrm_model_path: %s
	rm_type:          "dapo-genrm"
	reward_key:       "score"
	args: hf_checkpoint: "/"
}
slurm: time: string | *"10"
cluster: {nodes: 1, gpus_per_node: 2}
%s`, suite.CUE(filepath.Join(r.dir, "relax")), suite.CUE(filepath.Join(r.dir, "models")), more))
}

// between are the arguments of a run over both nodes, which speak to each other by
// this machine's first interface: there may be several.
func between(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		addresses, _ := i.Addrs() // it may have gone
		if i.Flags&net.FlagLoopback == 0 && slices.ContainsFunc(addresses, func(a net.Addr) bool { n, ok := a.(*net.IPNet); return ok && n.IP.To4() != nil }) {
			return []string{"--set", "slurm.interface=" + suite.CUE(i.Name), "--set", `slurm.time="10"`}
		}
	}
	t.Fatal("this machine has no interface but the loopback one")
	return nil
}

// example copies an example's file, with models that are here and a port that
// nobody else uses.
func (r *rig) example(dir string) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.cue"))
	if err != nil || len(found) != 1 {
		r.t.Fatal(dir, found, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		r.t.Fatal(err)
	}
	port, err := suite.Port()
	if err != nil {
		r.t.Fatal(err)
	}
	quoted := suite.CUE(filepath.Join(r.dir, "models"))
	models := quoted[1:len(quoted)-1] + "/"
	text := strings.NewReplacer(`"/models/`, `"`+models, `"/exp/`, `"`+models, "port: 8088", fmt.Sprintf("port: %d", port)).Replace(string(data))
	for _, part := range strings.Split(text, `"`+models)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if err := os.MkdirAll(filepath.Join(r.dir, "models", name), 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.file("experiment.cue", text)
}

// command is a program on the cluster's login node.
type command struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed after its end
	out  suite.Buffer  // stdout and stderr
}

// command prepares a program with the environment of a user, and more.
func (r *rig) command(env []string, args ...string) *exec.Cmd {
	cmd := exec.Command("./rig", append([]string{"exec", r.version, "env", "--chdir=" + r.dir, "--"}, args...)...)
	cmd.Env = append([]string{
		"PATH=" + filepath.Join(r.dir, "bin") + ":" + os.Getenv("PATH"), "HOME=" + r.dir, "USER=root", "LOGNAME=root", "LANG=C.UTF-8",
		"GENRM_RUNS=" + r.runs(), "GENRM_API_KEY=k", "JUDGE_API_KEY=k", "HF_TOKEN=k", "OF_THE_SHELL=1",
		"GENRM_SLURM_RIG=" + os.Getenv("GENRM_SLURM_RIG"), "GENRM_E2E_CACHE=" + os.Getenv("GENRM_E2E_CACHE"),
	}, env...)
	cmd.WaitDelay = 5 * time.Second // what is left behind may hold the pipe
	return cmd
}

// start starts genrm.
func (r *rig) start(args ...string) *command {
	return r.startIn(nil, append([]string{"genrm"}, args...)...)
}

// startIn starts a program with more in its environment.
func (r *rig) startIn(env []string, args ...string) *command {
	r.t.Helper()
	c := &command{t: r.t, name: strings.Join(args, " "), done: make(chan struct{}), cmd: r.command(env, args...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.out
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

// launch submits a run and follows it to its end.
func (r *rig) launch(file string, more ...string) *command {
	r.t.Helper()
	return r.start(append([]string{"launch", file, "--target", "slurm", "--wait"}, more...)...)
}

// wait returns the exit status.
func (c *command) wait() int {
	c.t.Helper()
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		c.t.Fatalf("%s: not at its end after %s\n%s", c.name, limit, c.out.String())
		return -1
	}
}

// ends wants an exit status, and texts in what was printed.
func (c *command) ends(code int, texts ...string) {
	c.t.Helper()
	if got := c.wait(); got != code {
		c.t.Errorf("%s: exit status %d, want %d\n%s", c.name, got, code, c.out.String())
	}
	c.says(texts...)
}

func (c *command) says(texts ...string) {
	c.t.Helper()
	for _, text := range texts {
		if !strings.Contains(c.out.String(), text) {
			c.t.Errorf("%s: no %q in\n%s", c.name, text, c.out.String())
		}
	}
}

// awaits waits until a text is printed.
func (c *command) awaits(text string) {
	c.t.Helper()
	for start := time.Now(); !strings.Contains(c.out.String(), text); time.Sleep(pollEvery) {
		over := time.Since(start) > limit
		select {
		case <-c.done:
			over = !strings.Contains(c.out.String(), text)
		default:
		}
		if over {
			c.t.Fatalf("%s: has not said %q\n%s", c.name, text, c.out.String())
		}
	}
}

// try runs a program on the login node.
func (r *rig) try(args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	cmd := r.command(nil, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// run runs a program on the login node, which must succeed, and returns what it
// printed.
func (r *rig) run(args ...string) string {
	r.t.Helper()
	out, errs, err := r.try(args...)
	if err != nil {
		r.t.Fatalf("%q: %v\n%s%s", args, err, out, errs)
	}
	return out
}

// status is what these tests read of status.json.
type status struct {
	RunID     string   `json:"run_id"`
	State     string   `json:"state"`
	Reason    string   `json:"reason"`
	ExitCode  *int     `json:"exit_code"`
	Attempt   int      `json:"attempt"`
	JobID     string   `json:"job_id"`
	JobState  string   `json:"job_state"`
	Nodes     string   `json:"nodes"`
	Dir       string   `json:"dir"`
	Processes []member `json:"processes"`
}

type member struct {
	Name  string         `json:"name"`
	State string         `json:"state"`
	Node  int            `json:"node"`
	Host  string         `json:"host"`
	Ports map[string]int `json:"ports"`
	GPUs  []string       `json:"gpus"`
	Argv  []string       `json:"argv"`
}

func (s *status) process(t *testing.T, name string) member {
	t.Helper()
	for _, p := range s.Processes {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("no process %s in %+v", name, s.Processes)
	return member{}
}

func (r *rig) runs() string { return filepath.Join(r.dir, "runs") }

// folders are those of the test's runs.
func (r *rig) folders() []string {
	var out []string
	for _, root := range []string{r.runs(), filepath.Join(r.dir, "out", ".genrm", "runs")} {
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			if _, err := os.Stat(filepath.Join(root, e.Name(), "run.json")); err == nil && !strings.HasPrefix(e.Name(), ".") {
				out = append(out, filepath.Join(root, e.Name()))
			}
		}
	}
	return out
}

// folder is that of the only run.
func (r *rig) folder() string {
	r.t.Helper()
	found := r.folders()
	if len(found) != 1 {
		r.t.Fatalf("runs: %q", found)
	}
	return found[0]
}

// jobs are the ids of the test's jobs.
func (r *rig) jobs() []string {
	var out []string
	for _, dir := range r.folders() {
		var job struct {
			ID string `json:"job_id"`
		}
		if data, err := os.ReadFile(filepath.Join(dir, "slurm.json")); err == nil && json.Unmarshal(data, &job) == nil {
			out = append(out, job.ID)
		}
	}
	return out
}

// job is the only job's id.
func (r *rig) job() string {
	r.t.Helper()
	found := r.jobs()
	if len(found) != 1 {
		r.t.Fatalf("jobs: %q", found)
	}
	return found[0]
}

// status is what genrm says of the last run.
func (r *rig) status(args ...string) *status {
	r.t.Helper()
	s := new(status)
	if err := json.Unmarshal([]byte(r.run(append([]string{"genrm", "status", "-o", "json"}, args...)...)), s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// written is the status that the supervisors of the run in a folder have
// written, the zero status before that.
func written(t *testing.T, dir string) *status {
	t.Helper()
	s := new(status)
	data, err := os.ReadFile(filepath.Join(dir, "status.json"))
	if errors.Is(err, os.ErrNotExist) {
		return s
	}
	if err == nil {
		err = json.Unmarshal(data, s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// until waits for something to be so.
func (r *rig) until(what string, so func() bool) {
	r.t.Helper()
	for start := time.Now(); !so(); time.Sleep(pollEvery) {
		if time.Since(start) > limit {
			r.t.Fatalf("after %s: not %s", limit, what)
		}
	}
}

// untilReady waits until the only run is ready: its services are, or its driver
// runs. It may not end before.
func (r *rig) untilReady() *status {
	r.t.Helper()
	return r.untilAttempt(1)
}

func (r *rig) untilAttempt(n int) *status {
	r.t.Helper()
	var s *status
	r.until(fmt.Sprintf("ready in attempt %d", n), func() bool {
		if len(r.folders()) == 0 {
			return false
		}
		s = written(r.t, r.folder())
		if s.ExitCode != nil && s.Attempt >= n {
			r.t.Fatalf("the run has ended: %s, %s", s.State, s.Reason)
		}
		return s.State == "ready" && s.Attempt == n
	})
	return s
}

var jobField = regexp.MustCompile(`(?:^| )(JobState|ExitCode|Reason|Restarts|NodeList)=(\S*)`)

// slurm is what Slurm says of the only job.
func (r *rig) slurm() map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for _, m := range jobField.FindAllStringSubmatch(r.run("scontrol", "-o", "show", "job", r.job()), -1) {
		out[m[1]] = m[2]
	}
	return out
}

// checkEnd wants the run to have ended so, by its own words and by Slurm's, and
// nothing to be left of it.
func (r *rig) checkEnd(state string, code int, jobStates string) *status {
	r.t.Helper()
	s := r.status()
	if s.State != state || s.ExitCode == nil || *s.ExitCode != code {
		data, _ := json.Marshal(s)
		r.t.Errorf("want %s with %d, the status says %s", state, code, data)
	}
	job := r.slurm()
	if got := job["JobState"] + " " + job["ExitCode"]; !slices.Contains(strings.Split(jobStates, "|"), got) {
		r.t.Errorf("Slurm says %q, want %q", got, jobStates)
	}
	r.checkGone()
	return s
}

// checkGone wants that no job of the test is in the queue and no process there.
func (r *rig) checkGone() {
	r.t.Helper()
	for _, id := range r.jobs() {
		queue := ""
		r.until("out of the queue", func() bool { // its last processes are being ended
			queue, _, _ = r.try("squeue", "-h", "-j", id, "-o", "%i %T") // it fails for a job that Slurm has forgotten
			return !strings.Contains(queue, "COMPLETING")
		})
		if queue != "" {
			r.t.Errorf("in the queue: %s", queue)
		}
	}
	if left := r.alive(); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
}

// read reads the record of a process of the only run.
func (r *rig) record(process string, attempt int) *record {
	r.t.Helper()
	rec, err := r.recordOf(filepath.Base(r.folder()), process, attempt)
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

func (r *rig) recordOf(run, process string, attempt int) (*record, error) {
	data, err := os.ReadFile(filepath.Join(r.dir, fmt.Sprintf("record-%s-%s.%d", run, process, attempt)))
	rec := new(record)
	if err == nil {
		err = json.Unmarshal(data, rec)
	}
	return rec, err
}

// endpoints is what `genrm endpoint` says.
type endpoints struct {
	Gateway struct {
		URL    string            `json:"url"`
		APIKey map[string]string `json:"api_key"`
	} `json:"gateway"`
	Instances map[string]struct {
		URL      string   `json:"url"`
		Replicas []string `json:"replicas"`
	} `json:"instances"`
}

func (r *rig) endpoints(args ...string) endpoints {
	r.t.Helper()
	var e endpoints
	if err := json.Unmarshal([]byte(r.run(append([]string{"genrm", "endpoint", "-o", "json"}, args...)...)), &e); err != nil {
		r.t.Fatal(err)
	}
	return e
}

// ask asks every judge of a run by its route_key, and returns the answers.
func (r *rig) ask(e endpoints) map[string]string {
	r.t.Helper()
	answers := map[string]string{}
	for key, in := range e.Instances {
		body, _ := json.Marshal(map[string]any{"route_key": key, "messages": []any{map[string]string{"role": "user", "content": "hello from " + key}}})
		// The nodes' names mean something on the cluster only.
		url := strings.NewReplacer("//node1:", "//127.0.0.2:", "//node2:", "//127.0.0.3:").Replace(in.URL)
		req, err := http.NewRequest(http.MethodPost, url+"/genrm/generate", bytes.NewReader(body))
		if err != nil {
			r.t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		if e.Gateway.APIKey != nil {
			req.Header.Set("Authorization", "Bearer k")
		}
		client := http.Client{Timeout: time.Minute}
		res, err := client.Do(req)
		if err != nil {
			r.t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			r.t.Fatalf("%s answers with status %d: %s", key, res.StatusCode, text)
		}
		answers[key] = string(text)
	}
	if len(answers) == 0 {
		r.t.Fatal("there is no judge")
	}
	return answers
}

// showLogs prints the end of every log of the test's runs.
func (r *rig) showLogs() {
	for _, dir := range r.folders() {
		files, _ := os.ReadDir(filepath.Join(dir, "logs"))
		for _, f := range files {
			data, _ := os.ReadFile(filepath.Join(dir, "logs", f.Name()))
			r.t.Logf("%s:\n%s", f.Name(), data[max(0, len(data)-3000):])
		}
	}
	for _, c := range r.own {
		r.t.Logf("%s:\n%s", c.name, c.out.String())
	}
}

// process is what /proc says.
type process struct {
	pid     int
	command string
	environ []byte
}

func (p process) String() string { return fmt.Sprintf("%d (%s)", p.pid, p.command) }

// processes are those of this machine and of every node.
func processes() []process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		panic(err)
	}
	var out []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Empty for a zombie, which is not there, and for what has just ended.
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		text, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		out = append(out, process{pid, string(bytes.ReplaceAll(bytes.TrimRight(text, "\x00"), []byte{0}, []byte{' '})), environ})
	}
	return out
}

// alive lists the processes of this test that are there, on the nodes and here,
// without the commands that it started itself.
func (r *rig) alive() []process {
	return slices.DeleteFunc(processes(), func(p process) bool {
		own := slices.ContainsFunc(r.own, func(c *command) bool { return c.cmd.Process.Pid == p.pid })
		return own || !bytes.Contains(p.environ, []byte("HOME="+r.dir)) && !strings.Contains(p.command, r.dir)
	})
}
