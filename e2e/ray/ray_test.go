//go:build e2e

package ray

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// limit bounds a hang; it is no promise.
const limit = 3 * time.Minute

// driver stands for train.py and gym: it records what it was given beside the
// file end, which is Python that says what it does then.
const driver = `#!/usr/bin/env python3
import json, os, pathlib, sys, time
here = pathlib.Path(%s)
files = {a: open(a).read() for a in sys.argv[1:] if a.endswith(".yaml") and os.path.exists(a)}
new = here / f"record.{os.getpid()}.new"
new.write_text(json.dumps({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd(), "files": files}))
(here / "records").mkdir(exist_ok=True)
new.rename(here / "records" / str(os.getpid()))
exec((here / "end").read_text())
`

// record is what a driver was given.
type record struct {
	Argv  []string // with its own name
	Env   map[string]string
	Cwd   string
	Files map[string]string
}

// rig is one test's folder on one of the clusters.
type rig struct {
	t       *testing.T
	dir     string
	genrm   string
	address string
	env     []string
}

func newRig(t *testing.T, end string) *rig {
	t.Helper()
	r := &rig{t: t, genrm: os.Getenv("GENRM_E2E_GENRM"), address: os.Getenv("GENRM_E2E_PLAIN"), dir: filepath.Join(t.TempDir(), `user's "größe" 50%`)}
	if r.genrm == "" || r.address == "" {
		t.Fatal("start these tests with e2e/ray/run")
	}
	for _, dir := range []string{"relax", "bin", "models"} {
		if err := os.MkdirAll(filepath.Join(r.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.file("end", end)
	text := fmt.Sprintf(driver, suite.CUE(r.dir))
	r.file("relax/train.py", text)
	if err := os.Chmod(r.file("bin/gym", text), 0o755); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

// relax writes a training run on this many GPUs.
func (r *rig) relax(gpus int, more string) string {
	return r.file("experiment.cue", fmt.Sprintf(`
name:   "training"
target: "ray"
relax: {
	root:       %s
	entrypoint: "train.py"
	colocate:   true
	resource: {actor: [1, %d], rollout: [1, %d], genrm: [1, %d]}
	genrm_model_path: %s
	rm_type:          "dapo-genrm"
	reward_key:       "score"
	args: hf_checkpoint: "/"
}
%s`, suite.CUE(filepath.Join(r.dir, "relax")), gpus, gpus/2, gpus/2, suite.CUE(filepath.Join(r.dir, "models")), more))
}

// gym writes a rollout run whose driver is found in the test's folder.
func (r *rig) gym(path string) string {
	return r.file("experiment.cue", fmt.Sprintf(`
name:   "rollouts"
target: "ray"
gym: {
	env: {PATH: %s, JUDGE_API_KEY: {env: "HOME"}}
	config: {
		policy_base_url:   "https://judge.example.com/v1"
		policy_model_name: "it's $HOME \"größe\""
		policy_api_key: env: "JUDGE_API_KEY"
		policy_model: responses_api_models: openai_model: {
			entrypoint:      "app.py"
			openai_base_url: "${policy_base_url}"
			openai_api_key:  "${policy_api_key}"
			openai_model:    "${policy_model_name}"
		}
	}
}
`, suite.CUE(path)))
}

func (r *rig) command(args ...string) *exec.Cmd {
	cmd := exec.Command(r.genrm, args...)
	cmd.Dir = r.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "GENRM_RUNS=" + filepath.Join(r.dir, "runs"), "RAY_ADDRESS=" + r.address,
		"HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://127.0.0.1:1"}, r.env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// ends runs genrm, wants an exit status and texts, and returns what it printed.
func (r *rig) ends(code int, texts []string, args ...string) string {
	r.t.Helper()
	return suite.Ends(r.t, r.command(args...), limit, code, texts...)
}

type status struct {
	RunID    string `json:"run_id"`
	State    string `json:"state"`
	ExitCode *int   `json:"exit_code"`
	JobID    string `json:"job_id"`
	JobState string `json:"job_state"`
	Dir      string `json:"dir"`
}

func (r *rig) status() status {
	r.t.Helper()
	out, err := r.command("status", "-o", "json").Output()
	var st status
	if err == nil {
		err = json.Unmarshal(out, &st)
	}
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return st
}

// until waits for a state of the last run.
func (r *rig) until(state string) {
	r.t.Helper()
	for start := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		if st := r.status(); st.State == state {
			return
		} else if time.Since(start) > limit || st.ExitCode != nil {
			r.t.Fatalf("the run is %s, not %s", st.State, state)
		}
	}
}

// recorded waits for the record of the test's one driver.
func (r *rig) recorded() record {
	r.t.Helper()
	for start := time.Now(); ; time.Sleep(100 * time.Millisecond) {
		if all := r.records(); len(all) > 0 {
			return all[0]
		}
		if time.Since(start) > limit {
			r.t.Fatal("the driver has recorded nothing")
		}
	}
}

// records are what the drivers of the test have recorded.
func (r *rig) records() (out []record) {
	r.t.Helper()
	entries, _ := os.ReadDir(filepath.Join(r.dir, "records")) // none yet
	for _, e := range entries {
		var rec record
		data, err := os.ReadFile(filepath.Join(r.dir, "records", e.Name()))
		if err == nil {
			err = json.Unmarshal(data, &rec)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		out = append(out, rec)
	}
	return out
}

// jobs are the ids of the cluster's jobs that hold a text.
func (r *rig) jobs(text string) (out []string) {
	r.t.Helper()
	resp, err := http.Get(r.address + "/api/jobs/")
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var all []struct {
		ID         string `json:"submission_id"`
		Entrypoint string `json:"entrypoint"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		r.t.Fatal(err)
	}
	for _, j := range all {
		if strings.Contains(j.Entrypoint, text) {
			out = append(out, j.ID)
		}
	}
	return out
}

// mark is a text that only the entrypoints of this rig's jobs hold.
func (r *rig) mark() string { return filepath.Dir(r.dir) + "/" }

func (r *rig) folders() int {
	entries, _ := os.ReadDir(filepath.Join(r.dir, "runs"))
	return len(entries)
}

func TestExit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, end string
		code      int
		says      string
	}{
		{"0", `print("fine")`, 0, "succeeded"},
		{"3", `sys.exit(3)`, 3, "the driver ended with status 3"},
		{"-9", `os.kill(os.getpid(), 9)`, 137, "the driver was killed by signal 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.end)
			r.ends(c.code, []string{c.says}, "launch", r.relax(2, ""), "--wait")
			if st := r.status(); st.ExitCode == nil || *st.ExitCode != c.code {
				t.Errorf("%+v", st)
			}
			r.ends(0, []string{c.says}, "list")
			r.ends(0, []string{"Running entrypoint"}, "logs", "-f")
			if want := filepath.Join(r.dir, "relax"); r.recorded().Cwd != want {
				t.Errorf("the driver was in %q, want %q", r.recorded().Cwd, want)
			}
		})
	}
	t.Run("127", func(t *testing.T) {
		r := newRig(t, "")
		r.ends(127, []string{"a program was not found on its node"}, "launch", r.gym("/usr/bin:/bin"), "--wait")
	})
}

// TestHostile sends what row by row was broken by others' quoting.
func TestHostile(t *testing.T) {
	t.Parallel()
	hostile := "it's \"`table`\" $HOME; a && b {{x}} \\ \n größe"
	plain := "it's \"`table`\"; a && b {{x}} \\ \n größe"
	argument := "{'ps-auc':{'cnt':1}}"
	r := newRig(t, `
import ray
ray.init(log_to_driver=False)
get = ray.remote(lambda: dict(os.environ))
(here / "worker").write_text(json.dumps(ray.get(get.options(num_gpus=1).remote())))
`)
	r.ends(0, []string{"GRM8324"}, "launch", r.relax(2, fmt.Sprintf("relax: {env: {HOSTILE: %s, PLAIN: %s}, extra_args: [\"--custom\", %s, %[1]s]}\n", suite.CUE(hostile), suite.CUE(plain), suite.CUE(argument))), "--wait")
	rec := r.recorded()
	if got := rec.Argv[len(rec.Argv)-3:]; got[1] != argument || got[2] != hostile {
		t.Errorf("argv %q", got)
	}
	if rec.Env["HOSTILE"] != hostile || rec.Env["PLAIN"] != plain {
		t.Errorf("environment %q, %q", rec.Env["HOSTILE"], rec.Env["PLAIN"])
	}
	data, err := os.ReadFile(filepath.Join(r.dir, "worker"))
	if err != nil {
		t.Fatal(err)
	}
	var worker map[string]string
	if err := json.Unmarshal(data, &worker); err != nil {
		t.Fatal(err)
	}
	if worker["PLAIN"] != plain || worker["HOSTILE"] != "" {
		t.Errorf("a worker has %q, %q", worker["PLAIN"], worker["HOSTILE"])
	}
}

// TestGym wants the generated file on the head as it was frozen, and a secret of
// the node's environment that the job's record does not hold.
func TestGym(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	r.ends(0, nil, "launch", r.gym(filepath.Join(r.dir, "bin")+":/usr/bin:/bin"), "--wait")
	want, err := os.ReadFile(filepath.Join(r.status().Dir, "artifacts", "gym.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	rec := r.recorded()
	if len(rec.Files) != 1 {
		t.Fatalf("files %q of %q", rec.Files, rec.Argv)
	}
	for _, got := range rec.Files {
		if got != string(want) {
			t.Errorf("the driver read\n%s\nand the run has\n%s", got, want)
		}
	}
	if home := filepath.Join(os.Getenv("GENRM_RAY_RIG"), "home"); rec.Env["JUDGE_API_KEY"] != home {
		t.Errorf("the secret is %q, want that of the node, %q", rec.Env["JUDGE_API_KEY"], home)
	}
	if request, err := os.ReadFile(filepath.Join(r.status().Dir, "request.json")); err != nil || strings.Contains(string(request), rec.Env["JUDGE_API_KEY"]) {
		t.Error("the request holds the secret", err)
	}
}

// TestAnswerLost drops the answer to the first submission.
func TestAnswerLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	var posts atomic.Int32
	r.address = r.front(func(w http.ResponseWriter, req *http.Request, ahead http.Handler) {
		if req.Method == http.MethodPost && posts.Add(1) == 1 {
			ahead.ServeHTTP(httptest.NewRecorder(), req)
			panic(http.ErrAbortHandler)
		}
		ahead.ServeHTTP(w, req)
	})
	r.ends(0, []string{"succeeded"}, "launch", r.relax(2, ""), "--wait")
	if got := r.jobs(r.mark()); len(got) != 1 {
		t.Errorf("there are the jobs %q", got)
	}
}

// front serves the dashboard below /pre/fix.
func (r *rig) front(f func(http.ResponseWriter, *http.Request, http.Handler)) string {
	r.t.Helper()
	to, err := url.Parse(r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	p := httputil.NewSingleHostReverseProxy(to)
	p.ErrorLog = nil
	s := httptest.NewServer(http.StripPrefix("/pre/fix", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { f(w, req, p) })))
	s.Config.ErrorLog = nil
	r.t.Cleanup(s.Close)
	real := r.address
	r.t.Cleanup(func() { r.address = real })
	address := s.URL + "/pre/fix"
	return address
}

func TestStop(t *testing.T) {
	t.Parallel()
	holder := newRig(t, "while not (here / 'go').exists(): time.sleep(0.1)")
	holder.ends(0, nil, "launch", holder.relax(2, `ray: entrypoint_resources: node2: 1`))
	holder.until("ready")
	r := newRig(t, "time.sleep(3600)")
	r.ends(0, nil, "launch", r.relax(2, `ray: entrypoint_resources: node2: 1`))
	r.until("pending")
	stop := r.command("stop")
	var out bytes.Buffer
	stop.Stdout, stop.Stderr = &out, &out
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); ; time.Sleep(50 * time.Millisecond) { // it has been asked to stop while it is pending
		if _, err := os.Stat(filepath.Join(r.status().Dir, "stop.json")); err == nil || time.Since(start) > limit {
			break
		}
	}
	holder.file("go", "")
	if err := stop.Wait(); err != nil {
		t.Errorf("stop of a pending job: %v\n%s", err, out.String())
	}
	if st := r.status(); st.State != "stopped" || st.ExitCode == nil || *st.ExitCode != 143 {
		t.Errorf("%+v", st)
	}
	holder.until("succeeded")
	holder.ends(0, []string{"has ended: succeeded"}, "stop")

	running := newRig(t, "time.sleep(3600)")
	running.ends(0, nil, "launch", running.relax(2, ""))
	running.recorded()
	running.ends(0, []string{"has ended: stopped"}, "stop")
	// The record is deleted right after it, as nobody should: the job does not come
	// back, and how it ended stays known.
	id := running.status().JobID
	running.delete(id)
	if got := running.jobs(running.mark()); len(got) != 0 {
		t.Errorf("there are the jobs %q", got)
	}
	running.ends(0, []string{"stopped"}, "status")
	running.ends(0, []string{"has ended: stopped"}, "stop")

	// One whose record is gone before its end was seen.
	gone := newRig(t, "")
	gone.ends(0, nil, "launch", gone.relax(2, ""))
	gone.recorded()
	for start := time.Now(); gone.jobStatus() != "SUCCEEDED"; time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatal("the job does not end")
		}
	}
	gone.delete(gone.jobs(gone.mark())[0])
	gone.ends(0, []string{"unknown", "the cluster was started anew, or the job was deleted"}, "status")
	gone.ends(0, []string{"unknown"}, "stop")
}

// delete removes the record of a job.
func (r *rig) delete(id string) {
	r.t.Helper()
	req, err := http.NewRequest(http.MethodDelete, r.address+"/api/jobs/"+id, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		r.t.Fatalf("DELETE %s: %s: %s", id, resp.Status, text)
	}
}

// jobStatus is what Ray says of the test's one job.
func (r *rig) jobStatus() string {
	r.t.Helper()
	resp, err := http.Get(r.address + "/api/jobs/" + r.jobs(r.mark())[0])
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var job struct {
		Status string `json:"status"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&job); err != nil {
		r.t.Fatal(err)
	}
	return job.Status
}

// TestInterrupt wants Ctrl-C to leave the job alone.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	r := newRig(t, "while not (here / 'go').exists(): time.sleep(0.1)")
	cmd := r.command("launch", r.relax(2, ""), "--wait")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.recorded()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 130 || !strings.Contains(out.String(), "goes on as a Ray job") {
		t.Errorf("exit status %d\n%s", code, out.String())
	}
	if st := r.status(); st.State != "ready" {
		t.Errorf("%+v", st)
	}
	r.file("go", "")
	r.until("succeeded")
}

func TestToken(t *testing.T) {
	t.Parallel()
	token, err := os.ReadFile(os.Getenv("GENRM_E2E_TOKEN_PATH"))
	if err != nil {
		t.Fatal(err)
	}
	headers := `ray: headers: Authorization: {env: "MY_HEADER"}`
	for _, c := range []struct {
		name, block, env string
		code             int
		says             string
	}{
		{"missing", "", "", 3, "GRM8323"},
		{"wrong", "", "RAY_AUTH_TOKEN=wrong", 3, "refuses the token"},
		{"variable", "", "RAY_AUTH_TOKEN=" + string(token), 0, "succeeded"},
		{"file", "", "RAY_AUTH_TOKEN_PATH=" + os.Getenv("GENRM_E2E_TOKEN_PATH"), 0, "succeeded"},
		{"header", headers, "MY_HEADER=Bearer " + string(token), 0, "succeeded"},
		{"header not set", headers, "", 3, "MY_HEADER holds a secret and is not set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "")
			r.address = os.Getenv("GENRM_E2E_TOKEN")
			if c.env != "" {
				r.env = []string{c.env}
			}
			r.ends(c.code, []string{c.says}, "launch", r.relax(2, c.block), "--wait")
			if c.code != 0 {
				if n := r.folders(); n != 0 {
					t.Errorf("%d folders are left", n)
				}
				return
			}
			found, err := exec.Command("grep", "-rF", string(token), filepath.Join(r.dir, "runs")).Output()
			if err == nil || len(found) > 0 {
				t.Errorf("the token is in the run: %s", found)
			}
		})
	}
}

// TestDashboard is about what stands at the address.
func TestDashboard(t *testing.T) {
	t.Parallel()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<!doctype html><title>Sign in</title>")
	}))
	t.Cleanup(page.Close)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "{}")
	}))
	t.Cleanup(other.Close)
	away := httptest.NewServer(http.RedirectHandler("https://login.example/", http.StatusFound))
	t.Cleanup(away.Close)
	listen := func(f func(net.Conn)) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				f(c)
			}
		}()
		return "http://" + l.Addr().String()
	}
	hang := listen(func(c net.Conn) { t.Cleanup(func() { _ = c.Close() }) })
	reset := listen(func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0); _ = c.Close() })
	for _, c := range []struct{ name, address, says string }{
		{"page", page.URL, `the web page "Sign in"`},
		{"other", other.URL, "is no Ray dashboard"},
		{"redirect", away.URL, "redirects to https://login.example"},
		{"hang", hang, "did not answer within"},
		{"reset", reset, "the Ray dashboard at " + reset},
		{"refused", "http://127.0.0.1:1", "connection refused"},
		{"prefix", os.Getenv("GENRM_E2E_PLAIN") + "/no", "path prefix"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "")
			r.ends(3, []string{c.says}, "launch", r.relax(2, ""), "--address", c.address)
			if n := r.folders(); n != 0 {
				t.Errorf("%d folders are left", n)
			}
		})
	}
}

func TestTooFewGPUs(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	file := r.relax(32, "")
	r.ends(3, []string{"GRM8320", "the run needs 32 GPUs, and the Ray cluster has 16", "32 for actor", "16 for genrm", "16 on 2 nodes"}, "launch", file)
	if n, jobs := r.folders(), r.jobs(r.mark()); n != 0 || len(jobs) != 0 {
		t.Errorf("%d folders and the jobs %q are left", n, jobs)
	}
	r.ends(0, []string{"warning[GRM8320]", "succeeded"}, "launch", file, "--grows", "--wait")
}

// TestLog follows a log over connections that break all the time.
func TestLog(t *testing.T) {
	t.Parallel()
	r := newRig(t, "for i in range(60000):\n    print(f'line {i} größe ' + 'x' * 50, flush=i % 100 == 0)\n    if i % 10000 == 0: time.sleep(0.5)\nprint('no newline at the end', end='')\n")
	to, err := url.Parse(r.address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var cuts atomic.Int32
	var most atomic.Int64 // bytes that a connection carries: each may get further than the one before
	most.Store(300_000)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				out, err := net.Dial("tcp", to.Host)
				if err != nil {
					_ = in.Close()
					return
				}
				var once sync.Once
				shut := func() { once.Do(func() { _ = in.Close(); _ = out.Close() }) }
				go func() { _, _ = io.Copy(out, in); shut() }()
				if n, _ := io.CopyN(in, out, most.Load()); n == most.Load() {
					cuts.Add(1)
					most.Add(900_000)
				}
				shut()
			}()
		}
	}()
	cmd := r.command("launch", r.relax(2, ""), "--wait", "--address", "http://"+l.Addr().String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out[:min(len(out), 2000)])
	}
	if cuts.Load() == 0 {
		t.Error("no connection was cut")
	}
	next := 0
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "line ") {
			continue
		}
		if want := fmt.Sprintf("line %d größe %s\n", next, strings.Repeat("x", 50)); line != want {
			t.Fatalf("%q, want %q", line, want)
		}
		next++
	}
	if next != 60000 || strings.Count(string(out), "no newline at the end") != 1 {
		t.Errorf("%d lines", next)
	}
	r.ends(0, []string{"line 59999"}, "logs", "-n", "2")
}

// TestLongLog follows 100 MB, of which genrm may keep little.
func TestLongLog(t *testing.T) {
	t.Parallel()
	const lines = 1_000_000
	r := newRig(t, "w = sys.stdout.write\nfor i in range(1000000): w(f'{i:09d} ' + 'x' * 89 + '\\n')")
	for _, args := range [][]string{{"launch", r.relax(2, ""), "--wait"}, {"logs", "--lines=-1"}} {
		cmd := r.command(args...)
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		next, kib, in := 0, 0, bufio.NewScanner(out)
		for in.Scan() {
			if line := in.Bytes(); len(line) == 99 && line[0] <= '9' {
				if want := fmt.Sprintf("%09d ", next); string(line[:10]) != want {
					t.Errorf("%s: %.20q comes for %q", args[0], line, want)
					break
				}
				if next++; next%50_000 == 0 {
					kib = max(kib, peak(cmd.Process.Pid))
				}
			}
		}
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil || next != lines {
			t.Errorf("%s: %v after %d lines", args[0], err, next)
		}
		if kib == 0 || kib > 100<<10 {
			t.Errorf("%s took %d KiB of memory", args[0], kib)
		}
	}
	r.ends(0, []string{fmt.Sprintf("%09d x", lines-1)}, "logs", "-n", "1")
}

// peak is the most memory in KiB that a process had so far. What the kernel says
// at its end is no less than what the test had when it started it.
func peak(pid int) (kib int) {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // 0 if it has ended
	_, after, _ := strings.Cut(string(data), "VmHWM:")
	_, _ = fmt.Sscan(after, &kib)
	return kib
}

// do makes the rig do something to the cluster.
func do(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("./rig", args...).CombinedOutput(); err != nil {
		t.Fatalf("rig %q: %v\n%s", args, err, out)
	}
}

// TestHang stops the dashboard while a run is followed. Other tests wait.
func TestHang(t *testing.T) {
	r := newRig(t, "while not (here / 'go').exists(): time.sleep(0.1)\nprint('after it')")
	cmd := r.command("launch", r.relax(2, ""), "--wait")
	var out suite.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.recorded()
	do(t, "dashboard", "hang")
	t.Cleanup(func() { do(t, "dashboard", "go") })
	r.ends(3, []string{"did not answer within"}, "status")
	r.ends(0, []string{"training-"}, "list")
	r.ends(3, []string{"did not answer within"}, "stop")
	out.Awaits(t, limit, "Ray does not answer")
	r.file("go", "")
	do(t, "dashboard", "go")
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, text := range []string{"Ray answers again", "after it", "succeeded"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("no %q in\n%s", text, out.String())
		}
	}
}

// TestNodeKilled takes the driver's node away.
func TestNodeKilled(t *testing.T) {
	r := newRig(t, "time.sleep(3600)")
	cmd := r.command("launch", r.relax(2, `ray: entrypoint_resources: node2: 1`), "--wait")
	var out suite.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.recorded()
	do(t, "node", "kill", "2")
	t.Cleanup(func() {
		do(t, "node", "start", "2")
		r.awaitNodes(2)
	})
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 || !strings.Contains(out.String(), "the node of its driver, or what watches it there, died") {
		t.Errorf("exit status %d\n%s", code, out.String())
	}
}

// nodes are the living nodes of the cluster.
func (r *rig) nodes() (n int) {
	resp, err := http.Get(r.address + "/nodes?view=summary")
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // half of it has fewer
	return strings.Count(string(text), `"state": "ALIVE"`)
}

// TestHeadRestarted takes the head away while a run is followed, and with it what
// it knows of jobs. Other tests wait.
func TestHeadRestarted(t *testing.T) {
	ended := newRig(t, "")
	ended.ends(0, nil, "launch", ended.relax(2, ""), "--wait")
	r := newRig(t, "time.sleep(3600)")
	cmd := r.command("launch", r.relax(2, ""), "--wait")
	var out suite.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r.recorded()
	do(t, "node", "kill", "1")
	restarted := false
	restart := func() {
		if restarted {
			return
		}
		restarted = true
		do(t, "node", "kill", "2") // it is of the cluster that is gone, and the head does not start beside it
		do(t, "node", "start", "1")
		r.awaitNodes(1)
		do(t, "node", "start", "2")
		r.awaitNodes(2)
	}
	t.Cleanup(restart)
	out.Awaits(t, limit, "Ray does not answer")
	r.ends(3, []string{"the Ray dashboard at"}, "status")
	r.ends(0, []string{"training-"}, "list")
	restart()
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit status %d", code)
	}
	for _, text := range []string{"unknown", "Ray has no record of the job", "the cluster was started anew"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("no %q in\n%s", text, out.String())
		}
	}
	r.ends(0, []string{"unknown"}, "status")
	r.ends(0, []string{"unknown"}, "stop")
	ended.ends(0, []string{"succeeded"}, "status")
	ended.ends(3, []string{"Ray answers 404"}, "logs")
}

// awaitNodes waits until so many nodes live.
func (r *rig) awaitNodes(n int) {
	r.t.Helper()
	for start := time.Now(); r.nodes() != n; time.Sleep(500 * time.Millisecond) {
		if time.Since(start) > limit {
			r.t.Fatalf("%d nodes live, not %d", r.nodes(), n)
		}
	}
}
