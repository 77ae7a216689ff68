//go:build e2e

package local

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// Limits of waiting. They bound a hang; none is a promise.
const (
	limit     = 3 * time.Minute
	pollEvery = 100 * time.Millisecond
)

const foreignToken = "somebody-elses-token-0123456789abcdef"

var foreignAddress string

// TestMain starts what is somebody else's: a Ray, and processes whose names are
// those that `ray stop` looks for. All of them have to be there at the end.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		status := 1
		if err := beside(func() { status = m.Run() }); err != nil {
			fmt.Fprintln(os.Stderr, "FAIL:", err)
			return 1
		}
		return status
	}())
}

func beside(run func()) (err error) {
	ray := filepath.Join(os.Getenv("GENRM_E2E_RAY"), "bin", "ray")
	var ports []string // for Ray itself and its client server
	for range 2 {
		port, err := suite.Port()
		if err != nil {
			return err
		}
		ports = append(ports, strconv.Itoa(port))
	}
	foreignAddress = "127.0.0.3:" + ports[0]
	temp, err := os.MkdirTemp("/tmp", "ray-") // short: sockets lie in it
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	script := `bash -c 'exec -a ray::IDLE sleep 3600' & bash -c 'exec -a raylet sleep 3600' &
		exec "$@"`
	cmd := exec.Command("bash", "-c", script, "bash", ray, "start", "--head", "--block", "--node-ip-address=127.0.0.3", "--port="+ports[0], "--include-dashboard=false",
		"--ray-client-server-port="+ports[1], "--num-cpus=1", "--num-gpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--temp-dir="+temp)
	cmd.Env = append(os.Environ(), "RAY_AUTH_MODE=disabled")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var out suite.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, time.Second
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	}()
	for start := time.Now(); !strings.Contains(out.String(), "--block"); time.Sleep(pollEvery) {
		select {
		case <-ended:
			return fmt.Errorf("the Ray of somebody else does not start:\n%s", out.String())
		default:
		}
		if time.Since(start) > limit {
			return fmt.Errorf("the Ray of somebody else is not there after %s:\n%s", limit, out.String())
		}
	}
	before := session(cmd.Process.Pid)
	run()
	after := session(cmd.Process.Pid)
	var gone []string
	for pid, p := range before {
		if after[pid].started != p.started {
			gone = append(gone, p.String())
		}
	}
	if len(gone) > 0 || len(before) < 5 {
		return fmt.Errorf("of somebody else's %d processes these are gone: %v", len(before), gone)
	}
	return nil
}

func session(leader int) map[int]process {
	all := processes(nil)
	for pid, p := range all {
		if p.session != leader || p.state == "Z" {
			delete(all, pid)
		}
	}
	return all
}

// rig is one test's folder of runs, whose name has a blank and a quote. What
// comes from it carries its name in the environment; what writes over its
// environment, as Ray's workers do, is noted as a descendant while it is there.
type rig struct {
	t    *testing.T
	dir  string
	end  string // what the driver is told
	gpus []int  // of this test alone: runs that share one are refused
	seen map[int]process
	own  []*command
}

var firstGPU atomic.Int64

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getenv("GENRM_E2E_GENRM") == "" || os.Getenv("GENRM_E2E_RAY") == "" {
		t.Fatal("start these tests with e2e/local/run")
	}
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "user's folder"), end: "0", seen: map[int]process{}}
	first := 1000 + int(firstGPU.Add(10))
	for i := range 8 { // the order is the user's
		r.gpus = append(r.gpus, first+(i+3)%8)
	}
	driver, err := filepath.Abs("driver.py")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"bin", "relax", "home/.ray", "models"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	err = errors.Join(
		os.Symlink(driver, filepath.Join(r.dir, "bin/gym")),
		os.Symlink(driver, filepath.Join(r.relax(), "train.py")),
		os.WriteFile(filepath.Join(r.dir, "home/.ray/auth_token"), []byte(foreignToken), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
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

func (r *rig) relax() string { return filepath.Join(r.dir, "relax") }

// cueGPUs is a list of n of the test's GPUs.
func (r *rig) cueGPUs(n int) string {
	return strings.ReplaceAll(fmt.Sprint(r.gpus[:n]), " ", ", ")
}

// example copies an example's file, with models that are here.
func (r *rig) example(dir string) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.cue"))
	if err != nil || len(found) != 1 {
		r.t.Fatal(found, err)
	}
	data, err := os.ReadFile(found[0])
	if err != nil {
		r.t.Fatal(err)
	}
	models := filepath.Join(r.dir, "models") + "/"
	text := strings.NewReplacer(`"/models/`, `"`+models, `"/exp/`, `"`+models).Replace(string(data))
	for _, part := range strings.Split(text, `"`+models)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		if err := os.MkdirAll(models+name, 0o755); err != nil {
			r.t.Fatal(err)
		}
	}
	return r.write(text)
}

// experiment writes a relax run of two GPUs with more in its block.
func (r *rig) experiment(more string) string {
	r.t.Helper()
	return r.write(fmt.Sprintf(`
name:   "rayrun"
target: "local"
relax: {
	root:       %q
	entrypoint: "train.py"
	colocate:   true
	resource: {actor: [1, 2], rollout: [1, 1], genrm: [1, 1]}
	genrm_model_path: %[2]q
	rm_type:          "dapo-genrm"
	reward_key:       "score"
	args: hf_checkpoint: %[2]q
	%[3]s
}
local: {
	gpus: %[4]s
	ray: object_store_memory: 100_000_000
}
cluster: {nodes: 1, gpus_per_node: 2}
`, r.relax(), filepath.Join(r.dir, "models"), more, r.cueGPUs(2)))
}

func (r *rig) write(text string) string {
	r.t.Helper()
	file := filepath.Join(r.dir, "experiment.cue")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// command is a genrm that runs.
type command struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed after its end
	out  suite.Buffer  // stdout and stderr
}

// start starts genrm as a user who also has another Ray to work with.
func (r *rig) start(args ...string) *command {
	r.t.Helper()
	c := &command{t: r.t, name: "genrm " + strings.Join(args, " "), done: make(chan struct{})}
	c.cmd = exec.Command(os.Getenv("GENRM_E2E_GENRM"), args...)
	c.cmd.Dir = r.dir
	c.cmd.Env = append(os.Environ(),
		"PATH="+filepath.Join(r.dir, "bin")+":"+filepath.Join(os.Getenv("GENRM_E2E_RAY"), "bin")+":"+os.Getenv("PATH"),
		"HOME="+filepath.Join(r.dir, "home"), "GENRM_RUNS="+r.runs(), "GENRM_E2E_MARK="+r.dir,
		"GENRM_E2E_END="+r.end, "GENRM_E2E_RECORD="+filepath.Join(r.dir, "record.json"), "JUDGE_API_KEY=k",
		"RAY_ADDRESS="+foreignAddress, "RAY_AUTH_MODE=disabled", "RAY_AUTH_TOKEN="+foreignToken,
	)
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

// genrm runs genrm to its end. It must succeed.
func (r *rig) genrm(args ...string) {
	r.t.Helper()
	c := r.start(args...)
	if code := c.wait(); code != 0 {
		r.t.Fatalf("%s: exit status %d\n%s", c.name, code, c.out.String())
	}
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

// waiting launches a run whose driver has started its judges and waits.
func (r *rig) waiting() (*command, *status) {
	r.t.Helper()
	r.end = "wait"
	l := r.start("launch", r.experiment(""))
	return l, r.recorded(l)
}

// recorded waits until the driver has written its record, and notes every
// process of the run. launch is the command whose end is a failure, nil for a
// detached run.
func (r *rig) recorded(launch *command) *status {
	r.t.Helper()
	for start := time.Now(); ; time.Sleep(pollEvery) {
		if _, err := os.Stat(filepath.Join(r.dir, "record.json")); err == nil {
			s := r.status()
			r.note(s.Supervisor.PID)
			return s
		}
		over := time.Since(start) > limit
		if launch != nil {
			select {
			case <-launch.done:
				over = true
			default:
			}
		}
		if s := r.status(); over || s.ExitCode != nil {
			text := ""
			if launch != nil {
				text = launch.out.String()
			}
			r.t.Fatalf("the driver has recorded nothing; the run is %q: %s\n%s", s.State, s.Reason, text)
		}
	}
}

// status is what these tests read of status.json.
type status struct {
	RunID      string            `json:"run_id"`
	State      string            `json:"state"`
	Reason     string            `json:"reason"`
	ExitCode   *int              `json:"exit_code"`
	Supervisor struct{ PID int } `json:"supervisor"`
	Processes  []member          `json:"processes"`
}

type member struct {
	Name  string         `json:"name"`
	Host  string         `json:"host"`
	PID   int            `json:"pid"`
	Ports map[string]int `json:"ports"`
	Argv  []string       `json:"argv"`
}

func (s *status) process(t *testing.T, name string) member {
	t.Helper()
	for _, p := range s.Processes {
		if p.Name == name && p.PID != 0 {
			return p
		}
	}
	t.Fatalf("no process %s in %+v", name, s.Processes)
	return member{}
}

func (r *rig) runs() string { return filepath.Join(r.dir, "runs") }

// folder is the folder of the only run, or "" before there is one.
func (r *rig) folder() string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.runs(), "*", "run.json"))
	if err != nil || len(found) > 1 {
		r.t.Fatalf("%q, %v", found, err)
	}
	if len(found) == 0 {
		return ""
	}
	return filepath.Dir(found[0])
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

// awaitEnd waits until the run's status says that it has ended, and its guard,
// which ends after that, is gone.
func (r *rig) awaitEnd() {
	r.t.Helper()
	for start := time.Now(); ; time.Sleep(pollEvery) {
		s := r.status()
		guard, there := processes(r.t)[s.Supervisor.PID]
		if s.ExitCode != nil && (!there || guard.state == "Z") {
			return
		}
		if time.Since(start) > limit {
			r.t.Fatalf("the run has not ended after %s: %+v", limit, s)
		}
	}
}

// checkEnd wants the run's status to say how it ended.
func (r *rig) checkEnd(state string, code int) {
	r.t.Helper()
	if s := r.status(); s.State != state || s.ExitCode == nil || *s.ExitCode != code {
		data, _ := json.Marshal(s)
		r.t.Errorf("want %s with %d, the status says %s", state, code, data)
	}
}

// record is what the driver has written down.
type record struct {
	Argv    []string          `json:"argv"`
	Env     map[string]string `json:"env"`
	Cwd     string            `json:"cwd"`
	Address string            `json:"address"`
	GPUs    int               `json:"gpus"`
	Nodes   int               `json:"nodes"`
	Tasks   []struct {
		Env map[string]string `json:"env"`
	} `json:"tasks"`
	TokenMode *string `json:"token_mode"`
}

func (r *rig) record() *record {
	r.t.Helper()
	data, err := os.ReadFile(filepath.Join(r.dir, "record.json"))
	rec := new(record)
	if err == nil {
		err = json.Unmarshal(data, rec)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return rec
}

// checkRay wants the driver to have been on a Ray of the run's own, with the
// run's GPUs.
func (r *rig) checkRay(rec *record, gpus int) {
	r.t.Helper()
	head := r.status().process(r.t, "ray-head")
	if want := fmt.Sprintf("%s:%d", head.Host, head.Ports["gcs"]); rec.Address != want || rec.Address == foreignAddress {
		r.t.Errorf("the driver was on the Ray of %s, want %s", rec.Address, want)
	}
	if rec.GPUs != gpus || rec.Nodes != 1 {
		r.t.Errorf("Ray had %d GPUs on %d nodes, want %d on one", rec.GPUs, rec.Nodes, gpus)
	}
	if gpus == 0 {
		return
	}
	var names []string
	for _, g := range r.gpus[:gpus] {
		names = append(names, strconv.Itoa(g))
	}
	all := strings.Join(names, ",")
	if got := rec.Env["CUDA_VISIBLE_DEVICES"]; got != all {
		r.t.Errorf("the driver sees GPUs %q, want %q", got, all)
	}
	for i, want := range [][]string{names[:1], names} {
		got := strings.Split(rec.Tasks[i].Env["CUDA_VISIBLE_DEVICES"], ",")
		slices.Sort(want) // Ray keeps no order
		if slices.Sort(got); !slices.Equal(got, want) {
			r.t.Errorf("task %d sees GPUs %q, want %q", i, got, want)
		}
	}
}

// showLogs prints the end of every log of the test's run.
func (r *rig) showLogs() {
	files, _ := filepath.Glob(filepath.Join(r.runs(), "*", "logs", "*.log"))
	for _, file := range files {
		data, _ := os.ReadFile(file)
		r.t.Logf("%s:\n%s", filepath.Base(file), data[max(0, len(data)-3000):])
	}
}

// process is what /proc says.
type process struct {
	pid, parent, session int
	state                string
	started              string // since boot, so that a pid taken anew is another process
	command              string
	environ              string
}

func (p process) String() string { return fmt.Sprintf("%d (%s, %s)", p.pid, p.command, p.state) }

// processes lists all processes; those that end meanwhile are left out.
func processes(t *testing.T) map[int]process {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		panic(err)
	}
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if err != nil || len(f) < 20 {
			continue
		}
		p := process{pid: pid, state: f[0], started: f[19]}
		p.parent, _ = strconv.Atoi(f[1])
		p.session, _ = strconv.Atoi(f[3])
		command, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		p.command = string(bytes.TrimRight(bytes.ReplaceAll(command, []byte{0}, []byte{' '}), " ")) + " "
		environ, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		p.environ = string(environ)
		all[pid] = p
	}
	return all
}

// note remembers root and all that comes from it, so that alive knows it
// whatever it does to its name, parent and environment.
func (r *rig) note(root int) {
	r.t.Helper()
	all := processes(r.t)
	family := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for pid, p := range all {
			if !family[pid] && family[p.parent] {
				family[pid], grown = true, true
			}
		}
	}
	for pid := range family {
		if p, ok := all[pid]; ok {
			r.seen[pid] = p
		}
	}
	if len(r.seen) < 25 { // Ray alone is twenty
		r.t.Fatalf("only %d processes were found: %v", len(r.seen), r.seen)
	}
}

// find returns the process in the session of the head whose command has the text.
func (r *rig) find(head int, text string) int {
	r.t.Helper()
	var found []int
	for pid, p := range session(head) {
		if strings.Contains(p.command, text) && pid != head {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		r.t.Fatalf("%q: processes %v", text, found)
	}
	return found[0]
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

// checkGone wants that nothing is left of the run but its folder.
func (r *rig) checkGone() {
	r.t.Helper()
	if left := r.alive(); len(left) > 0 {
		r.t.Errorf("left behind: %v", left)
	}
	for _, a := range r.status().process(r.t, "ray-head").Argv {
		if dir, ok := strings.CutPrefix(a, "--temp-dir="); ok {
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				r.t.Errorf("%s is left: %v", dir, err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(r.folder(), "ray-token")); !errors.Is(err, os.ErrNotExist) {
		r.t.Errorf("the token of Ray is left: %v", err)
	}
}

func kill(t *testing.T, pid int, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, s); err != nil {
		t.Fatalf("%s of %d: %v", s, pid, err)
	}
}
