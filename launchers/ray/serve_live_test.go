package ray

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/rundir"
)

// fakeServe is Ray Serve's REST API in memory: PUT replaces the set of declared
// applications, those that are left out are gone after a while.
type fakeServe struct {
	sync.Mutex
	version string
	apps    map[string]map[string]any // as GET tells
	puts    []map[string]json.RawMessage
	before  func(*fakeServe)                      // each PUT, under the lock
	after   func(*fakeServe)                      // each PUT, under the lock
	broken  func(put int) (status int, drop bool) // of the answer to a PUT, from 1; status of a refusal
}

func declare(config string) map[string]any {
	var c struct {
		Name   string `json:"name"`
		Prefix string `json:"route_prefix"`
	}
	_ = json.Unmarshal([]byte(config), &c)
	return map[string]any{"name": c.Name, "route_prefix": c.Prefix, "status": "RUNNING", "message": "", "source": "declarative",
		"last_deployed_time_s": 1.5, "deployed_app_config": json.RawMessage(config), "deployments": map[string]any{}}
}

func (f *fakeServe) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Lock()
	defer f.Unlock()
	switch r.Method + " " + r.URL.Path {
	case "GET /api/version":
		_, _ = io.WriteString(w, `{"ray_version": "`+f.version+`"}`)
	case "GET /nodes":
		_, _ = io.WriteString(w, `{"data": {"summary": [{"raylet": {"state": "ALIVE", "resourcesTotal": {"GPU": 8}}}]}}`)
	case "GET /api/serve/applications/":
		_ = json.NewEncoder(w).Encode(map[string]any{"applications": f.apps, "target_capacity": 50, "proxy_location": "HeadOnly",
			"http_options": map[string]any{"host": "0.0.0.0", "port": 8000, "root_path": "/r"}, "grpc_options": map[string]any{"port": 9000},
			"controller_info": map[string]any{"node_id": "n2"},
			"proxies":         map[string]any{"n1": map[string]any{"node_ip": "10.0.0.1", "status": "HEALTHY"}, "n2": map[string]any{"node_ip": "10.0.0.2", "status": "HEALTHY"}}})
	case "PUT /api/serve/applications/":
		var body map[string]json.RawMessage
		_ = json.NewDecoder(r.Body).Decode(&body)
		f.puts = append(f.puts, body)
		if f.before != nil {
			f.before(f)
		}
		status, drop := 0, false
		if f.broken != nil {
			status, drop = f.broken(len(f.puts))
		}
		if status == 0 {
			var set []json.RawMessage
			_ = json.Unmarshal(body["applications"], &set)
			kept := map[string]bool{}
			for _, c := range set {
				a := declare(string(c))
				kept[a["name"].(string)] = true
				f.apps[a["name"].(string)] = a
			}
			for name, a := range f.apps {
				if !kept[name] && a["source"] == "declarative" {
					if a["status"] == "DELETING" {
						delete(f.apps, name)
						continue
					}
					a["status"], a["deployed_app_config"] = "DELETING", nil
					go func() {
						time.Sleep(50 * time.Millisecond)
						f.Lock()
						defer f.Unlock()
						if f.apps[name] != nil && f.apps[name]["status"] == "DELETING" {
							delete(f.apps, name)
						}
					}()
				}
			}
		}
		if f.after != nil {
			f.after(f)
		}
		switch {
		case drop:
			c, _, _ := w.(http.Hijacker).Hijack()
			_ = c.Close()
		case status != 0:
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "Traceback\nray.serve.exceptions.RayServeException: refused")
		}
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

const foreignConfig = `{"name":"foreign","route_prefix":"/f","import_path":"a:b","runtime_env":{"env_vars":{"Z":"1","A":"2"}},"args":{"n":1.0,"big":12345678901234567890}}`

func newFakeServe(t *testing.T) (*fakeServe, string) {
	t.Helper()
	f := &fakeServe{version: "2.60.0", apps: map[string]map[string]any{"foreign": declare(foreignConfig),
		"typed": {"name": "typed", "route_prefix": "/typed", "status": "RUNNING", "source": "imperative", "deployed_app_config": nil, "deployments": map[string]any{}}}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	quick := retries
	retries = []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}
	t.Cleanup(func() { retries = quick })
	return f, s.URL
}

func servePlan(t *testing.T, name, more string) *plan.Plan {
	t.Helper()
	in := &plan.Instance{Engine: "vllm", EngineVersion: "0.29.0", Model: "quality", ModelPath: "/m/q", NumGPUs: 4, NumGPUsPerEngine: 2, Replicas: 2, TensorParallel: 2,
		Placement:    []plan.Placement{{Node: 0, GPUs: []int{0, 1}}, {Replica: 1, Node: 0, GPUs: []int{2, 3}}},
		EngineConfig: block(t, `{"max_context_len": 4096, "max_num_batched_tokens": "8k"}`), SamplingConfig: block(t, `{}`), Settings: block(t, `{}`)}
	p := &plan.Plan{Name: name, Workload: plan.Serve, Target: plan.Ray, Settings: tree.Map[*tree.Value]{{Key: "ray", Value: block(t, "{"+more+"}")}},
		Artifacts: []plan.Artifact{{Name: GatewayFile, Text: `{"host": "127.0.0.1"}` + "\n"}}}
	p.Instances.Set("quality", in)
	return p
}

func launchServe(t *testing.T, address, name, more string, replace bool) (*rundir.Run, []string, error) {
	t.Helper()
	run, _, found, err := LaunchServe(t.Context(), Options{Plan: servePlan(t, name, more), Address: address, Root: t.TempDir(), Version: "v", Replace: replace})
	var codes []string
	for _, d := range found {
		codes = append(codes, d.Code)
	}
	return run, codes, err
}

// TestServeBeside: launch, replace and stop leave what is not theirs exactly as
// the cluster told it.
func TestServeBeside(t *testing.T) {
	f, address := newFakeServe(t)
	foreign := func(put map[string]json.RawMessage) {
		t.Helper()
		if !strings.Contains(string(put["applications"]), foreignConfig) || strings.Contains(string(put["applications"]), `"typed"`) {
			t.Errorf("%s", put["applications"])
		}
		if string(put["target_capacity"]) != "50" || string(put["proxy_location"]) != `"HeadOnly"` || !strings.Contains(string(put["http_options"]), "8000") || !strings.Contains(string(put["grpc_options"]), "9000") {
			t.Errorf("what is the cluster's changes: %s", put)
		}
	}
	first, codes, err := launchServe(t, address, "My_Judges", "", false)
	if err != nil || len(codes) > 0 {
		t.Fatal(codes, err)
	}
	foreign(f.puts[0])
	if a := f.apps["my-judges"]; a == nil || a["route_prefix"] != "/my-judges" {
		t.Fatalf("%v", f.apps)
	}
	if _, codes, err = launchServe(t, address, "my-judges", "", false); err != nil || !slices.Equal(codes, []string{"GRM8331"}) {
		t.Fatal(codes, err)
	}
	second, codes, err := launchServe(t, address, "my-judges", "", true)
	if err != nil || len(codes) > 0 {
		t.Fatal(codes, err)
	}
	foreign(f.puts[1])
	s, err := OpenServe(first, "", nil, "v")
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.Status(t.Context())
	if err != nil || st.State != rundir.Stopped || st.Reason != "replaced by "+second.ID {
		t.Errorf("%+v %v", st, err)
	}
	if st, err = s.Stop(t.Context(), "me", time.Minute); err != nil || st.Reason != "replaced by "+second.ID || len(f.puts) != 2 {
		t.Errorf("stopping what was replaced: %+v %v", st, err)
	}
	if s, err = OpenServe(second, "", nil, "v"); err != nil {
		t.Fatal(err)
	}
	if url, _, err := s.Endpoint(t.Context()); err != nil || url != "http://10.0.0.2:8000/r/my-judges" {
		t.Error(url, err)
	}
	if runs, others, err := ServeRuns(t.Context(), address, nil, "v"); err != nil || len(runs) != 1 || runs[0].Info.ID != second.ID || runs[0].Info.User == "" || !slices.Equal(others, []string{"foreign", "typed"}) {
		t.Errorf("%+v %v %v", runs, others, err)
	}
	if st, err = s.Stop(t.Context(), "me", time.Minute); err != nil || st.State != rundir.Stopped || st.Reason != "stopped by me" {
		t.Fatalf("%+v %v", st, err)
	}
	foreign(f.puts[2])
	f.Lock()
	defer f.Unlock()
	if len(f.apps) != 2 || f.apps["foreign"]["status"] != "RUNNING" {
		t.Errorf("%v", f.apps)
	}
}

// TestServeRefused: nothing is sent, and no folder is left.
func TestServeRefused(t *testing.T) {
	for _, c := range []struct {
		name, more, version string
		want                []string
	}{
		{"foreign", "", "2.60.0", []string{"GRM8330"}},
		{"typed", "", "2.60.0", []string{"GRM8330"}},
		{"f", "", "2.60.0", []string{"GRM8332"}},
		{"judges", "", "2.61.0", []string{"GRM8333"}},
		{"judges", `"version": "2.59.0"`, "2.60.0", []string{"GRM8333"}},
	} {
		f, address := newFakeServe(t)
		f.version = c.version
		run, codes, err := launchServe(t, address, c.name, c.more, true)
		if run != nil || err != nil || !slices.Equal(codes, c.want) || len(f.puts) > 0 {
			t.Errorf("%+v: %v %v", c, codes, err)
		}
	}
	f, address := newFakeServe(t)
	f.apps["hidden"] = declare(strings.Replace(strings.Replace(foreignConfig, `"1"`, `"<redacted>"`, 1), `foreign"`, `hidden"`, 1))
	if _, _, err := launchServe(t, address, "judges", "", false); err == nil || !strings.Contains(err.Error(), "hides variables of the application hidden") || len(f.puts) > 0 {
		t.Error(err)
	}
	f, address = newFakeServe(t)
	f.broken = func(int) (int, bool) { return 400, false }
	root := t.TempDir()
	_, _, _, err := LaunchServe(t.Context(), Options{Plan: servePlan(t, "judges", ""), Address: address, Root: root, Version: "v"})
	if err == nil || !strings.Contains(err.Error(), "refused") || len(f.puts) != 1 {
		t.Error(err, len(f.puts))
	}
	if left, _ := filepath.Glob(filepath.Join(root, "judges-*")); len(left) > 0 {
		t.Errorf("a folder is left: %v", left)
	}
}

// TestServeLostAnswer: an answer that is lost is looked up, never taken for a
// failure, nor written again.
func TestServeLostAnswer(t *testing.T) {
	f, address := newFakeServe(t)
	f.broken = func(int) (int, bool) { return 0, true }
	run, codes, err := launchServe(t, address, "judges", "", false)
	if err != nil || run == nil || len(codes) > 0 || len(f.puts) != 1 {
		t.Error(codes, err, len(f.puts))
	}
	// Lost on the way there: it is written once more.
	f, address = newFakeServe(t)
	f.broken = func(put int) (int, bool) { return map[int]int{1: 500}[put], put == 1 }
	if run, codes, err = launchServe(t, address, "judges", "", false); err != nil || run == nil || len(codes) > 0 || len(f.puts) != 2 {
		t.Error(codes, err, len(f.puts))
	}
	// Never written: the run stays, since it is not known.
	f, address = newFakeServe(t)
	f.broken = func(int) (int, bool) { return 500, true }
	if run, _, err = launchServe(t, address, "judges", "", false); err == nil || run == nil || len(f.puts) != mostPuts || !strings.Contains(err.Error(), "genrm status "+run.ID) {
		t.Error(err, len(f.puts))
	}
}

// TestServeRaces: what another writer does between reading and writing is seen.
func TestServeRaces(t *testing.T) {
	f, address := newFakeServe(t)
	f.before = func(f *fakeServe) {
		if len(f.puts) == 1 {
			f.apps["late"] = declare(`{"name":"late","route_prefix":"/late","import_path":"a:b"}`)
		}
	}
	if _, codes, err := launchServe(t, address, "judges", "", false); err != nil || !slices.Equal(codes, []string{"GRM8338"}) || len(f.puts) != 1 {
		t.Error(codes, err, len(f.puts))
	}
	f, address = newFakeServe(t)
	f.after = func(f *fakeServe) { // they had read before
		if len(f.puts) == 1 {
			delete(f.apps, "judges")
		}
	}
	if _, codes, err := launchServe(t, address, "judges", "", false); err != nil || len(codes) > 0 || len(f.puts) != 2 {
		t.Error(codes, err, len(f.puts))
	}
	f, address = newFakeServe(t)
	f.after = func(f *fakeServe) { delete(f.apps, "judges") }
	if _, _, err := launchServe(t, address, "judges", "", false); err == nil || !strings.Contains(err.Error(), "another writer") || len(f.puts) != mostPuts {
		t.Error(err, len(f.puts))
	}
	f, address = newFakeServe(t)
	f.after = func(f *fakeServe) { // somebody changed it right after
		f.apps["foreign"]["deployed_app_config"] = json.RawMessage(strings.Replace(foreignConfig, "a:b", "a:c", 1))
	}
	if _, codes, err := launchServe(t, address, "judges", "", false); err != nil || !slices.Equal(codes, []string{"GRM8338"}) {
		t.Error(codes, err)
	}
}

func TestServeStatus(t *testing.T) {
	f, address := newFakeServe(t)
	run, _, err := launchServe(t, address, "judges", "", false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := OpenServe(run, "", nil, "v")
	if err != nil {
		t.Fatal(err)
	}
	trace := "Traceback:\n  File\n\x1b[31mValueError: no weights\x1b[0m\n"
	for _, c := range []struct {
		status, deployment, message string
		state                       rundir.State
		reason                      string
	}{
		{"RUNNING", "HEALTHY", "", rundir.Ready, ""},
		{"DEPLOYING", "UPDATING", "", rundir.Starting, ""},
		{"DEPLOYING", "UPDATING", trace, rundir.Starting, "LLMServer:quality: ValueError: no weights"},
		{"DEPLOY_FAILED", "DEPLOY_FAILED", trace, rundir.Failed, "LLMServer:quality: ValueError: no weights"},
		{"UNHEALTHY", "UNHEALTHY", "", rundir.Starting, "UNHEALTHY"},
		{"DELETING", "UPDATING", "", rundir.Stopping, ""},
	} {
		f.Lock()
		f.apps["judges"]["status"] = c.status
		f.apps["judges"]["deployments"] = map[string]any{"LLMServer:quality": map[string]any{"name": "LLMServer:quality", "status": c.deployment, "message": c.message, "target_num_replicas": 2,
			"replicas": []any{map[string]any{"state": "RUNNING"}}}}
		f.Unlock()
		st, err := s.Status(t.Context())
		if err != nil || st.State != c.state || st.Reason != c.reason || len(st.Processes) != 1 || st.Processes[0].RouteKey != "quality" {
			t.Errorf("%+v: %+v %v", c, st, err)
		}
	}
	f.Lock()
	delete(f.apps, "judges")
	f.Unlock()
	if st, err := s.Status(t.Context()); err != nil || st.State != rundir.Unknown {
		t.Errorf("%+v %v", st, err)
	}
	f.Lock()
	f.apps["judges"] = declare(`{"name":"judges","route_prefix":"/judges","import_path":"a:b"}`)
	f.Unlock()
	if st, err := s.Stop(t.Context(), "me", time.Second); err != nil || st.State != rundir.Unknown || len(f.puts) != 1 {
		t.Errorf("another's application: %+v %v", st, err)
	}
}

// TestServeSecrets: nothing that is a secret is in what is sent and kept.
func TestServeSecrets(t *testing.T) {
	f, address := newFakeServe(t)
	p := servePlan(t, "judges", `"headers": {"X-Key": {"env": "KEY"}}`)
	in := p.Instances[0].Value
	in.Env = plan.Env{{Key: "HF_TOKEN", Value: plan.EnvValue{SecretEnv: "HF_TOKEN"}}, {Key: "OTHER", Value: plan.EnvValue{SecretEnv: "HF_TOKEN"}},
		{Key: "VLLM_PORT", Value: plan.EnvValue{Text: plan.Port("vllm")}}, {Key: "PLAIN", Value: plan.EnvValue{Text: plan.Lit("{rank}")}}}
	root := t.TempDir()
	_, _, found, err := LaunchServe(t.Context(), Options{Plan: p, Address: address, Root: root, Version: "v", Env: []string{"KEY=hidden-1", "HF_TOKEN=hidden-2", "RAY_AUTH_TOKEN=hidden-3"}})
	if err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
	sent := string(f.puts[0]["applications"])
	if strings.Contains(sent, "VLLM_PORT") || !strings.Contains(sent, `"OTHER":"${HF_TOKEN}","PLAIN":"{rank}"}`) {
		t.Error(sent)
	}
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		sent += string(data)
		return err
	})
	if err != nil || strings.Contains(sent, "hidden-") {
		t.Error("a secret is kept", err)
	}
}

func TestCount(t *testing.T) {
	for text, want := range map[string]string{"4k": "4000", "4K": "4096", "1.5m": "1500000", "12": "12"} {
		if got, ok := count(text); !ok || got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
	for _, bad := range []string{"", "k", "auto"} {
		if got, ok := count(bad); ok {
			t.Errorf("%q: %s", bad, got)
		}
	}
}

// TestServeApplication: what the plan says is in the application.
func TestServeApplication(t *testing.T) {
	p := servePlan(t, "judges", `"runtime_env": {"env_vars": {"OWN": "1"}}, "serve": {"health_check_timeout_s": 600, "max_ongoing_requests": 64, "accelerator_type": "H100", "request_timeout_s": 900}`)
	in := p.Instances[0].Value
	in.Settings = block(t, `{"liveness": {"interval": 5.5}, "stop_timeout": 7}`)
	in.Env = plan.Env{{Key: "A", Value: plan.EnvValue{Text: "b"}}}
	in.EngineConfig = block(t, `{"max_context_len": "auto", "pp_size": 2, "ep_size": 2, "mem_fraction_static": 0.8, "disable_log_stats": true, "hf_overrides": "{\"a\": 1}", "enforce_eager": false}`)
	in.PipelineParallel = 2
	app, found, err := ServeApplication(p)
	if err != nil || len(found) > 0 {
		t.Fatal(found, err)
	}
	got, err := json.Marshal(app)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"name":"judges","route_prefix":"/judges","import_path":"ray.serve.llm:build_openai_app","runtime_env":{"env_vars":{"OWN":"1","RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT":"900"}},` +
		`"args":{"llm_configs":[{"model_loading_config":{"model_id":"quality","model_source":"/m/q"},` +
		`"engine_kwargs":{"tensor_parallel_size":2,"max_model_len":-1,"pipeline_parallel_size":2,"enable_expert_parallel":true,"gpu_memory_utilization":0.8,"disable_log_stats":true,"hf_overrides":{"a":1},"enforce_eager":false},` +
		`"accelerator_type":"H100","placement_group_config":{"bundles":[{"GPU":1},{"GPU":1},{"GPU":1},{"GPU":1}],"strategy":"STRICT_PACK"},` +
		`"deployment_config":{"num_replicas":2,"max_ongoing_requests":64,"health_check_period_s":5.5,"health_check_timeout_s":600,"graceful_shutdown_timeout_s":7},` +
		`"runtime_env":{"env_vars":{"A":"b","OWN":"1","RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT":"900"}},"log_engine_metrics":false}]}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if _, _, err := ServeApplication(&plan.Plan{Workload: plan.Gym}); err == nil {
		t.Error("a gym is an application")
	}
	var loop *ErrLoopback
	if errors.As(&ErrLoopback{"http://127.0.0.2:8000"}, &loop); !strings.Contains(loop.Error(), "ray.serve.endpoint") {
		t.Error(loop)
	}
}
