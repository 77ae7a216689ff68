package ray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf16"

	"github.com/coder/websocket"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/rundir"
)

func none(string) string { return "" }

// block parses the settings of the target.
func block(t *testing.T, text string) *tree.Value {
	t.Helper()
	v, err := tree.ParseJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestAddress(t *testing.T) {
	for _, c := range []struct{ flag, block, env, want, says string }{
		{"http://a:1/p/", `{"address": "http://b:1"}`, "http://c:1", "http://a:1/p", ""},
		{"", `{"address": "https://b:1"}`, "http://c:1", "https://b:1", ""},
		{"", `{}`, "http://c:1", "http://c:1", ""},
		{"", `{}`, "", "", "no address of a Ray dashboard: give"},
		{"", `{}`, "c:6379", "", "no address of a Ray dashboard (RAY_ADDRESS is set, but"},
		{"", `{}`, "auto", "", "(RAY_ADDRESS is set"},
		{"ray://a:1", `{}`, "", "", "no URL of a dashboard"},
		{"http://", `{}`, "", "", "no URL of a dashboard"},
		{"http://u:hidden@a", `{}`, "", "", "holds a user or password"},
		{"http://a?x=1", `{}`, "", "", "query"},
		{"http://a:82655", `{}`, "", "", "no port between"},
		{"http://a/?", `{}`, "", "", "query"},
	} {
		getenv := func(name string) string {
			if name == "RAY_ADDRESS" {
				return c.env
			}
			return ""
		}
		got, err := Address(c.flag, block(t, c.block), getenv)
		if got != c.want || (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%+v: %q, %v", c, got, err)
		}
	}
}

func TestInside(t *testing.T) {
	for host, want := range map[string]bool{"127.0.0.1": true, "::1": true, "10.1.2.3": true, "ray-head": true, "head.ns.svc": true, "head.ns.svc.cluster.local": true, "8.8.8.8": false, "ray.example.com": false} {
		if inside(host) != want {
			t.Errorf("%s: %t", host, !want)
		}
	}
}

func TestSubmissionID(t *testing.T) {
	if id, err := SubmissionID("a.b_c-1", 2); id != "a.b_c-1-2" || err != nil {
		t.Error(id, err)
	}
	for _, bad := range []string{"a/b", "a b", "", "-a", "ä", strings.Repeat("a", 200)} {
		if _, err := SubmissionID(bad, 1); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestEntrypoint runs entry points as Ray does, and wants every byte.
func TestEntrypoint(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "it's a `dir` $HOME")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, []byte("of the file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hostile := "it's \"`id`\" $HOME ; && {{x}} {file:gym.yaml} \\ \n ö"
	for _, c := range []struct {
		name string
		p    plan.Plan
		want string
	}{
		{"one command", plan.Plan{Launch: plan.Launch{Argv: plan.Lits([]string{"printf", "%s|", hostile, ""})}}, hostile + "||"},
		{"environment", plan.Plan{Launch: plan.Launch{Argv: plan.Lits([]string{"printenv", "A"}), Env: plan.Env{{Key: "A", Value: plan.EnvValue{Text: plan.Lit(hostile)}}}}}, hostile + "\n"},
		{"folder", plan.Plan{Launch: plan.Launch{Argv: plan.Lits([]string{"pwd"}), WorkDir: dir}}, dir + "\n"},
		{"file", plan.Plan{Artifacts: []plan.Artifact{{Name: "gym.yaml", Text: hostile}}, Launch: plan.Launch{Argv: []plan.Arg{"cat", plan.File("gym.yaml")}}}, hostile},
		{"secret of the node", plan.Plan{Launch: plan.Launch{Argv: plan.Lits([]string{"printenv", "A"}), Env: plan.Env{{Key: "A", Value: plan.EnvValue{SecretEnv: "OF_THE_NODE"}}}}}, hostile + "\n"},
		{"secret of a file", plan.Plan{Launch: plan.Launch{Argv: plan.Lits([]string{"printenv", "A"}), Env: plan.Env{{Key: "A", Value: plan.EnvValue{SecretFile: file}}}}}, "of the file\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			line, err := Entrypoint(&c.p)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/bin/sh", "-c", line)
			cmd.Env = append(os.Environ(), "TMPDIR="+dir, "OF_THE_NODE="+hostile)
			out, err := cmd.CombinedOutput()
			if err != nil || string(out) != c.want {
				t.Errorf("%v: %q, want %q; %s", err, out, c.want, line)
			}
		})
	}
	for _, bad := range []plan.Plan{
		{},
		{Launch: plan.Launch{Argv: []plan.Arg{"a\x00"}}},
		{Launch: plan.Launch{Argv: []plan.Arg{"a", plan.Port("http")}}},
		{Launch: plan.Launch{Argv: []plan.Arg{plan.Arg(strings.Repeat("a", maxEntrypoint))}}},
	} {
		if line, err := Entrypoint(&bad); err == nil {
			t.Errorf("%.80q is taken", line)
		}
	}
	missing := plan.Plan{Launch: plan.Launch{Argv: plan.Lits([]string{"true"}), Env: plan.Env{{Key: "A", Value: plan.EnvValue{SecretEnv: "GENRM_NOT_SET"}}}}}
	line, err := Entrypoint(&missing)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput(); err == nil || !strings.Contains(string(out), "GENRM_NOT_SET holds a secret and is not set") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestRuntime(t *testing.T) {
	p := &plan.Plan{Workload: plan.Relax, Launch: plan.Launch{Argv: []plan.Arg{"a"}, Env: plan.Env{
		{Key: "PLAIN", Value: plan.EnvValue{Text: plan.Lit("{rank} it's")}},
		{Key: "DOLLAR", Value: plan.EnvValue{Text: "$5"}},
		{Key: "SECRET", Value: plan.EnvValue{SecretEnv: "X"}},
		{Key: "GIVEN", Value: plan.EnvValue{Text: "ours"}},
	}}}
	p.Settings.Set("ray", block(t, `{"runtime_env": {"env_vars": {"GIVEN": "theirs"}, "pip": ["a"]}, "metadata": {"team": "x"}, "entrypoint_num_gpus": 0.5}`))
	r, err := NewRequest(p)
	if err != nil {
		t.Fatal(err)
	}
	bare := r
	if r, err = r.For(rundir.Info{ID: "run"}, 1); err != nil {
		t.Fatal(err)
	}
	if bare.Metadata["genrm_run_id"] != "" || bare.SubmissionID != "" {
		t.Errorf("the request without a run is %+v", bare)
	}
	got, err := json.Marshal(r.RuntimeEnv)
	if want := `{"env_vars":{"GIVEN":"theirs","PLAIN":"{rank} it's"},"pip":["a"]}`; string(got) != want || err != nil {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	if found := Checker().Check(p); len(found) != 1 || found[0].Code != "GRM8324" {
		t.Errorf("%v", found)
	}
	if r.SubmissionID != "run-1" || r.Metadata["team"] != "x" || r.Metadata["genrm_run_id"] != "run" || r.GPUs == nil || *r.GPUs != 0.5 {
		t.Errorf("%+v", r)
	}
}

func TestCheck(t *testing.T) {
	p := &plan.Plan{Workload: plan.Relax}
	p.Roles.Set("actor", plan.Role{NumGPUs: 8, Bundles: []int{0, 1, 2, 3, 4, 5, 6, 7}, Pool: "actor"})
	for _, c := range []struct {
		got   cluster
		grows bool
		want  string
	}{
		{cluster{version: "2.60.0", gpus: 8, free: 8, freeTold: true}, false, ""},
		{cluster{version: "2.60.0", gpus: 7}, false, "error GRM8320"},
		{cluster{version: "2.60.0", gpus: 7}, true, "warning GRM8320"},
		{cluster{version: "2.60.0", gpus: 8, free: 7, freeTold: true}, false, "warning GRM8321"},
		{cluster{version: "2.8.1", gpus: 8}, false, "warning GRM8322"},
		{cluster{version: "3.0.0.dev0", gpus: 8}, false, ""},
	} {
		var got string
		for _, d := range check(p, c.got, c.grows) {
			got += string(d.Severity) + " " + d.Code
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.got, got, c.want)
		}
	}
	p.Settings.Set("ray", &tree.Value{Kind: tree.Struct, Fields: []tree.Field{{Name: "version", Value: &tree.Value{Kind: tree.String, Text: "2.60.0"}}}})
	for version, n := range map[string]int{"2.60.0": 0, "2.59.0": 1} {
		if l := check(p, cluster{version: version, gpus: 8}, false); len(l) != n || n > 0 && l[0].Code != "GRM8333" {
			t.Errorf("%s: %v", version, l)
		}
	}
}

func TestJobFields(t *testing.T) {
	for text, want := range map[string]string{
		`{"entrypoint_num_cpus": 1.5, "entrypoint_num_gpus": 0.5, "entrypoint_resources": {"a": 1.5, "b": 0, "accelerator_type:H100": 0.001}, "metadata": {"a": "b"}}`: "",
		`{"entrypoint_resources": {"CPU": 1, "GPU": 0, "memory": 5, "object_store_memory": 5, "cpu": 1}}`:                                                              "GRM8310 GRM8310 GRM8310 GRM8310",
		`{"entrypoint_num_cpus": 0.00001, "entrypoint_num_gpus": 1.5, "entrypoint_resources": {"a": 0.00001}}`:                                                         "GRM8310 GRM8310 GRM8310",
		`{"runtime_env": {"env_vars": ["a"], "excludes": 5, "pip": 5, "py_modules": ["a", 1], "working_dir": [], "config": "x", "own": 5}}`:                            "GRM8305 GRM8305 GRM8305 GRM8305 GRM8305 GRM8305",
		`{"runtime_env": {"env_vars": {"A": "b"}, "excludes": ["a"], "pip": "requirements.txt", "config": {"setup_timeout_seconds": 5}}}`:                              "",
		`{"metadata": {"token": "abc"}}`:                         "GRM8304",
		`{"metadata": {"genrm_run_id": "x", "genrm_else": "y"}}`: "GRM8311",
	} {
		p := &plan.Plan{Workload: plan.Relax}
		p.Settings.Set("ray", block(t, text))
		var got []string
		for _, d := range Checker().Check(p) {
			got = append(got, d.Code)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestMerge(t *testing.T) {
	n := func(i int) *int { return &i }
	for _, c := range []struct {
		r     record
		state rundir.State
		code  *int
		says  string
	}{
		{record{Status: "PENDING", Message: "waits\nmore"}, rundir.Pending, nil, "waits"},
		{record{Status: "RUNNING"}, rundir.Ready, nil, ""},
		{record{Status: "SUCCEEDED", Code: n(0)}, rundir.Succeeded, n(0), ""},
		{record{Status: "STOPPED"}, rundir.Stopped, n(143), "stopped"},
		{record{Status: "FAILED", Code: n(3)}, rundir.Failed, n(3), "status 3"},
		{record{Status: "FAILED", Code: n(-9)}, rundir.Failed, n(137), "signal 9"},
		{record{Status: "FAILED", Code: n(127)}, rundir.Failed, n(127), "not found"},
		{record{Status: "FAILED", ErrorType: "JOB_SUPERVISOR_ACTOR_DIED", Message: "x"}, rundir.Failed, n(3), "died: x"},
		{record{Status: "FAILED", ErrorType: "JOB_SUPERVISOR_ACTOR_START_FAILURE", Message: "Failed to start supervisor actor a-1: 'no 'x' here'. Full traceback:\nTraceback"},
			rundir.Failed, n(3), "could not start it: no 'x' here"},
	} {
		var st rundir.Status
		merge(&st, c.r)
		if st.State != c.state || (st.ExitCode == nil) != (c.code == nil) || c.code != nil && *st.ExitCode != *c.code || !strings.Contains(st.Reason, c.says) {
			t.Errorf("%+v: %+v", c.r, st)
		}
	}
}

// TestLook reads what dashboards say of their nodes.
func TestLook(t *testing.T) {
	nodes := ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/api/version":
			_, _ = io.WriteString(w, `{"ray_version": "2.60.0"}`)
		case "/nodes":
			_, _ = io.WriteString(w, `{"data": {"summary": [`+nodes+`]}}`)
		case "/api/cluster_status":
			_, _ = io.WriteString(w, `{"data": {"clusterStatus": {"loadMetricsReport": {"usage": {"GPU": [3, 8]}}}}}`)
		default:
			http.NotFound(w, req)
		}
	}))
	defer s.Close()
	const worker = `{"raylet": {"state": "ALIVE", "resourcesTotal": {"GPU": 8, "acceleratorType:h100": 1}}}, {"raylet": {"state": "DEAD", "resourcesTotal": {"GPU": 8}}}`
	for _, head := range []string{`{"raylet": {"state": "ALIVE", "isHeadNode": true, "resourcesTotal": {"CPU": 4}}}`, `{"raylet": {"state": "ALIVE", "resourcesTotal": {"CPU": 4, "node:InternalHead": 1}}}`} {
		nodes = head + ", " + worker
		got, err := newClient(s.URL, http.Header{}, "v").look(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if len(got.nodes) != 2 || !got.nodes[0].head || got.nodes[1].head || got.gpus != 8 || got.free != 5 || got.nodes[1].resources[resourceKey("accelerator_type:H100")] != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// TestDriverGPU wants the driver of a gym run with a vLLM of its own on a node
// that has a GPU.
func TestDriverGPU(t *testing.T) {
	head := func(gpus float64) machine { return machine{true, map[string]float64{"gpu": gpus, "cpu": 4}} }
	worker := func(gpus float64) machine {
		return machine{false, map[string]float64{"gpu": gpus, "cpu": 8, "acceleratortype:h100": 1}}
	}
	for _, c := range []struct {
		block string
		nodes []machine
		plan  string // what the rules without a cluster say
		want  string
	}{
		{`{}`, []machine{head(8)}, "note GRM8308", ""},
		{`{}`, []machine{head(0), worker(8)}, "note GRM8308", "error GRM8327"},
		{`{"entrypoint_num_gpus": 1}`, []machine{head(0), worker(8)}, "", ""},
		{`{"entrypoint_resources": {"accelerator_type:H100": 0.001}}`, []machine{head(0), worker(8)}, "", ""},
		{`{"entrypoint_num_cpus": 1}`, []machine{head(0), worker(8)}, "", "warning GRM8327"},
		{`{"entrypoint_num_cpus": 8}`, []machine{head(0), worker(8)}, "", ""},
		{`{"entrypoint_num_cpus": 1}`, []machine{head(0), head(0)}, "", "error GRM8327"},
		{`{"entrypoint_resources": {"tpu": 1}}`, []machine{head(8), worker(8)}, "", "warning GRM8329"},
	} {
		p := &plan.Plan{Workload: plan.Gym}
		p.Instances.Set("judge", &plan.Instance{NumGPUs: 2})
		p.Settings.Set("ray", block(t, c.block))
		say := func(l diag.List) (s string) {
			for _, d := range l {
				s += string(d.Severity) + " " + d.Code
			}
			return s
		}
		if got := say(Checker().Check(p)); got != c.plan {
			t.Errorf("%s: %q, want %q", c.block, got, c.plan)
		}
		got := cluster{version: "2.60.0", nodes: c.nodes, gpus: 16}
		if got := say(check(p, got, false)); got != c.want {
			t.Errorf("%s on %v: %q, want %q", c.block, c.nodes, got, c.want)
		}
		p.Workload = plan.Relax // its driver has no such need
		if got := say(check(p, got, false)); strings.Contains(got, "8327") {
			t.Errorf("%s: %q", c.block, got)
		}
	}
}

// TestSubmitOnce loses answers in each way that they can be lost.
func TestSubmitOnce(t *testing.T) {
	old := retries
	retries = []time.Duration{time.Millisecond, time.Millisecond}
	defer func() { retries = old }()
	for _, c := range []struct {
		name    string
		takes   bool // the job is kept although the answer is lost
		other   bool // the id is another's
		status  int  // answered instead; 0: the connection breaks
		posts   int32
		succeed bool
	}{
		{name: "kept", takes: true, posts: 1, succeed: true},
		{name: "never kept", posts: 3},
		{name: "there already", takes: true, status: 500, posts: 1, succeed: true},
		{name: "another's", takes: true, other: true, status: 500, posts: 1},
		{name: "refused", status: 400, posts: 1},
		{name: "gateway", status: 502, posts: 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			var posts atomic.Int32
			var kept atomic.Bool
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				switch {
				case req.Method == http.MethodPost && req.URL.Path == "/api/jobs/":
					posts.Add(1)
					if c.takes {
						kept.Store(true)
					}
					if c.status == 0 {
						panic(http.ErrAbortHandler)
					}
					http.Error(w, "traceback\nno", c.status)
				case kept.Load() && req.URL.Path == "/api/jobs/run-1":
					run := "run"
					if c.other {
						run = "other"
					}
					_, _ = io.WriteString(w, `{"status": "PENDING", "entrypoint": "a", "metadata": {"genrm_run_id": "`+run+`"}}`)
				default:
					http.NotFound(w, req)
				}
			}))
			s.Config.ErrorLog = nil
			defer s.Close()
			err := newClient(s.URL, http.Header{}, "v").submit(context.Background(), Request{SubmissionID: "run-1", Entrypoint: "a", Metadata: map[string]string{"genrm_run_id": "run"}})
			if (err == nil) != c.succeed || posts.Load() != c.posts {
				t.Errorf("%v after %d requests, want %d", err, posts.Load(), c.posts)
			}
		})
	}
}

// TestErrors wants an error that says what stands at the address, and no secret.
func TestErrors(t *testing.T) {
	hang := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/html":
			_, _ = io.WriteString(w, "<html><title> Sign in </title>")
		case "/401", "/403":
			w.WriteHeader(map[string]int{"/401": 401, "/403": 403}[req.URL.Path])
		case "/json":
			_, _ = io.WriteString(w, "no json")
		case "/list":
			_, _ = io.WriteString(w, "[1]")
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/redirect":
			http.Redirect(w, req, "https://login.example/x", http.StatusFound)
		case "/hang":
			<-hang
		default:
			http.Error(w, "Traceback:\n  ValueError: no\n", 500)
		}
	}))
	defer s.Close()
	defer close(hang)
	c := newClient(s.URL, http.Header{"Authorization": {"Bearer hidden"}}, "v")
	c.timeout = 200 * time.Millisecond
	for path, want := range map[string]string{"/html": `the web page "Sign in"`, "/401": "wants a token", "/403": "refuses the token", "/json": "does not answer as Ray's API does: its answer is no JSON", "/list": "another kind of JSON (array)", "/reset": "without an answer",
		"/redirect": "redirects to https://login.example/x", "/hang": "did not answer within", "/500": "Ray answers 500: ValueError: no"} {
		var out map[string]any
		err := c.do(context.Background(), http.MethodGet, path, nil, &out)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.do(gone, http.MethodGet, "/json", nil, nil); err == nil || !strings.Contains(err.Error(), "interrupted while") {
		t.Errorf("interrupted: %v", err)
	}
	sealed := httptest.NewUnstartedServer(http.NotFoundHandler())
	sealed.Config.ErrorLog = log.New(io.Discard, "", 0)
	sealed.StartTLS()
	defer sealed.Close()
	for address, want := range map[string]string{sealed.URL: "its certificate is not trusted here", strings.Replace(s.URL, "http:", "https:", 1): "try http://"} {
		if err := newClient(address, http.Header{}, "v").do(context.Background(), http.MethodGet, "/", nil, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", address, err, want)
		}
	}
}

// TestFollowWithoutStream wants the whole log, each line once, through a proxy
// that passes no websocket.
func TestFollowWithoutStream(t *testing.T) {
	defer func(w time.Duration) { wait = w }(wait)
	wait = time.Millisecond
	var asked atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := asked.Load()
		switch {
		case strings.HasSuffix(req.URL.Path, "/logs/tail"):
			http.Error(w, "no upgrade", http.StatusBadRequest)
		case strings.HasSuffix(req.URL.Path, "/logs"):
			_, _ = fmt.Fprintf(w, `{"logs": %q}`, "one\ntwo\nthree\n"[:min(14, 4*asked.Add(1))])
		default:
			_, _ = io.WriteString(w, map[bool]string{true: `{"status": "SUCCEEDED", "driver_agent_http_address": "x"}`, false: `{"status": "RUNNING", "driver_agent_http_address": "x"}`}[n >= 4])
		}
	}))
	defer s.Close()
	var out strings.Builder
	session := &Session{job: Job{ID: "a-1"}, c: newClient(s.URL, http.Header{}, "v")}
	if err := session.Follow(context.Background(), &out, func(err error) error { return fmt.Errorf("told of %w", err) }); err != nil || out.String() != "one\ntwo\nthree\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// TestFollow breaks the stream at every byte.
func TestFollow(t *testing.T) {
	const text = "one\nzwölf\nthree"
	var conns atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		n := int(conns.Load())
		if !strings.HasSuffix(req.URL.Path, "/tail") {
			status := "RUNNING"
			if n >= len(text) {
				status = "SUCCEEDED"
			}
			_, _ = io.WriteString(w, `{"status": "`+status+`", "driver_agent_http_address": "http://x"}`)
			return
		}
		conn, err := websocket.Accept(w, req, nil)
		if err != nil {
			return
		}
		// Frames are whole texts: a letter is not split.
		end := min(n, len(text))
		for end < len(text) && text[end]&0xc0 == 0x80 {
			end++
		}
		_ = conn.Write(req.Context(), websocket.MessageText, []byte(text[:end]))
		if conns.Add(1); n < len(text) {
			_ = conn.CloseNow()
			return
		}
		_ = conn.Close(websocket.StatusNormalClosure, "")
	}))
	defer s.Close()
	session := &Session{job: Job{ID: "x"}, c: newClient(s.URL, http.Header{}, "v")}
	wait = time.Millisecond
	defer func() { wait = reconnects }()
	var out strings.Builder
	breaks, open := 0, 0
	if err := session.Follow(context.Background(), &out, func(err error) error {
		if err != nil {
			breaks++
			open++
		} else {
			open--
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if out.String() != text || breaks == 0 || open != 0 {
		t.Errorf("%q after %d breaks; %d did not end", out.String(), breaks, open)
	}
	failing := errors.New("no")
	if err := session.Follow(context.Background(), brokenWriter{failing}, func(error) error { return nil }); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

func TestHeaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("of-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"A": "Bearer x", "RAY_AUTH_TOKEN": "t"}
	getenv := func(n string) string { return env[n] }
	for _, c := range []struct{ block, want string }{
		{`{}`, "Bearer t"},
		{`{"headers": {"Authorization": {"env": "A"}}}`, "Bearer x"},
		{`{"headers": {"X": "y"}}`, "Bearer t"},
	} {
		if h, err := headers(block(t, c.block), getenv); err != nil || h.Get("Authorization") != c.want {
			t.Errorf("%s: %v, %v", c.block, h, err)
		}
	}
	h, err := headers(nil, func(n string) string { return map[string]string{"RAY_AUTH_TOKEN_PATH": path}[n] })
	if err != nil || h.Get("Authorization") != "Bearer of-file" {
		t.Errorf("%v, %v", h, err)
	}
	for _, c := range []struct{ block, token, says string }{
		{`{"headers": {"X Y": "hidden"}}`, "", `"X Y" is no name`},
		{`{"headers": {"X": "hidden\nb"}}`, "", "the value of X holds a line break"},
		{`{}`, "hidden\nb", "RAY_AUTH_TOKEN holds a line break"},
	} {
		_, err := headers(block(t, c.block), func(n string) string { return map[string]string{"RAY_AUTH_TOKEN": c.token}[n] })
		if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := headers(block(t, `{"headers": {"Authorization": {"env": "NOT"}}}`), none); err == nil || !strings.Contains(err.Error(), "NOT") {
		t.Errorf("%v", err)
	}
}

// TestLogText wants the text as a JSON parser reads it.
func TestLogText(t *testing.T) {
	for _, text := range []string{"", "a\nb", "größe \U0001f600 \u2028 \x00\x1b[0m \"quoted\" \\ / \t\r\b\f", strings.Repeat("x", 200_000)} {
		data, err := json.Marshal(map[string]string{"logs": text})
		if err != nil {
			t.Fatal(err)
		}
		ascii := regexp.MustCompile(`[^\x00-\x7f]`).ReplaceAllStringFunc(string(data), func(s string) string {
			var out string
			for _, u := range utf16.Encode([]rune(s)) {
				out += fmt.Sprintf(`\u%04x`, u)
			}
			return out
		})
		for _, form := range []string{string(data), ascii, " { \n\"logs\" : " + ascii[len(`{"logs":`):]} {
			var out strings.Builder
			if err := logText(iotest.OneByteReader(strings.NewReader(form)), &out); err != nil || out.String() != text {
				t.Errorf("%.200q: %v, %.200q", form, err, out.String())
			}
		}
	}
	for form, want := range map[string]error{`{"log": "x"}`: errNotLog, ``: errNotLog, `{"logs": null}`: errNotLog, `{"logs": "abc`: io.ErrUnexpectedEOF, `{"logs": "\q"}`: errNotLog, `{"logs": "\u12"}`: errNotLog} {
		var out strings.Builder
		if err := logText(strings.NewReader(form), &out); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", form, err, want)
		}
	}
	failing := errors.New("no")
	var w *writeError
	if err := logText(strings.NewReader(`{"logs": "x"}`), brokenWriter{failing}); !errors.As(err, &w) {
		t.Errorf("%v", err)
	}
}
