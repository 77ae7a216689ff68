//go:build e2e

package ray

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// serveApp is an application as the dashboard tells of it.
type serveApp struct {
	Status      string          `json:"status"`
	Config      json.RawMessage `json:"deployed_app_config"`
	Deployments map[string]struct {
		Replicas []struct {
			ID string `json:"replica_id"`
		} `json:"replicas"`
	} `json:"deployments"`
}

const putPath = "/api/serve/applications/"

func (r *rig) apps() map[string]serveApp {
	r.t.Helper()
	resp, err := http.Get(r.address + putPath)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var all struct {
		Applications map[string]serveApp `json:"applications"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		r.t.Fatal(err)
	}
	return all.Applications
}

// judges writes a serve experiment. What the last part of a path asks for, the
// stand-in does (llm/standin.py).
func (r *rig) judges(name, model, more string) string {
	return r.file(name+".cue", fmt.Sprintf(`
name:   %q
target: "ray"
serve: instances: {
	quality: {
		engine:     "vllm"
		model_path: "/models/%s"
		num_gpus:   1
		engine_config: {max_context_len: 4096, max_num_batched_tokens: "8k", compilation_config: mode: 3}
		sampling_config: temperature: 0.25
		env: {PLAIN: "it's {rank} \"größe\"", OF_THE_NODE: {env: "HOME"}}
	}
}
ray: serve: {endpoint: %q, graceful_shutdown_timeout_s: 1}
%s`, name, model, os.Getenv("GENRM_E2E_SERVE"), more))
}

// asks posts a request and returns the answer.
func asks(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Errorf("%s: %v", url, err)
		return 0, ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(text)
}

// TestServe: applications beside one of another tool, which must stay as it is
// and go on. The parts share a cluster's one set of applications, so that they
// come one after another.
func TestServe(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	proxy := os.Getenv("GENRM_E2E_SERVE")

	// Deployed as another tool would.
	foreign := `{"name":"foreign","route_prefix":"/foreign","import_path":"ray.serve.llm:build_openai_app","runtime_env":{"env_vars":{"Z":"<1>","A":"2"}},
		"args":{"llm_configs":[{"model_loading_config":{"model_id":"theirs","model_source":"/m"},"engine_kwargs":{},"placement_group_config":{"bundles":[{"CPU":0.1}],"strategy":"PACK"},"deployment_config":{"num_replicas":1}}]}}`
	req, err := http.NewRequest(http.MethodPut, r.address+putPath, strings.NewReader(`{"http_options":{"request_timeout_s":120},"applications":[`+foreign+`]}`))
	if err != nil {
		t.Fatal(err)
	}
	if resp, err := http.DefaultClient.Do(req); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	for start := time.Now(); r.apps()["foreign"].Status != "RUNNING"; time.Sleep(300 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("%+v", r.apps())
		}
	}
	before := r.apps()["foreign"]
	same := func(t *testing.T) {
		t.Helper()
		now := r.apps()["foreign"]
		if !bytes.Equal(now.Config, before.Config) || now.Status != "RUNNING" || fmt.Sprint(now.Deployments) != fmt.Sprint(before.Deployments) {
			t.Errorf("the application of another tool is not as it was:\n%s %s\n%s %s", now.Status, now.Config, before.Status, before.Config)
		}
		if code, text := asks(t, proxy+"/foreign/v1/chat/completions", `{"model":"theirs","messages":[{"role":"user","content":"still here"}]}`); code != 200 || !strings.Contains(text, "still here") {
			t.Errorf("%d %s", code, text)
		}
	}
	same(t)

	t.Run("refused", func(t *testing.T) {
		r.t = t
		r.ends(3, []string{"GRM8330", "not by --replace either"}, "launch", r.judges("foreign", "good", ""), "--replace")
		r.ends(3, []string{"GRM8333", "2.61.0"}, "launch", r.judges("newer", "good", `ray: version: "2.61.0"`))
		r.ends(3, []string{"GRM8320", "1 for quality, 39 for many"}, "launch", r.judges("large", "good", ""), "--set", "serve.instances.many={engine: \"vllm\", model_path: \"/m\", num_gpus: 39}")
		if n := r.folders(); n != 0 {
			t.Errorf("%d folders are left", n)
		}
		same(t)
	})

	var first string
	t.Run("launch", func(t *testing.T) {
		r.t = t
		file := r.judges("judges", "good", "ray: serve: http_options: port: 9000")
		out := r.ends(0, []string{"application judges", "ready after", proxy + "/judges/v1", "genrm gateway --run", "GRM8339"}, "launch", file, "--wait")
		if strings.Contains(out, "GRM8338") {
			t.Error(out)
		}
		first = r.status().RunID
		r.ends(0, []string{"ready", "LLMServer:quality"}, "status")
		r.ends(0, []string{first}, "list")
		r.ends(0, []string{"judge quality is up"}, "logs", "--process", "quality")
		follow := r.command("logs", "-f")
		var logged suite.Buffer
		follow.Stdout, follow.Stderr = &logged, &logged
		if err := follow.Start(); err != nil {
			t.Fatal(err)
		}
		logged.Awaits(t, limit, "judge quality is up")
		_ = follow.Process.Signal(syscall.SIGINT)
		if _ = follow.Wait(); follow.ProcessState.ExitCode() != 130 {
			t.Errorf("%v\n%s", follow.ProcessState, logged.String())
		}
		code, text := asks(t, proxy+"/judges/told", `{"model":"quality"}`)
		var told struct {
			Config struct {
				Kwargs     map[string]any `json:"engine_kwargs"`
				Deployment map[string]any `json:"deployment_config"`
			}
			Env map[string]string
		}
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			t.Fatal(code, text, err)
		}
		if told.Config.Kwargs["max_model_len"] != 4096.0 || told.Config.Kwargs["max_num_batched_tokens"] != 8000.0 || told.Config.Deployment["health_check_timeout_s"] != 300.0 {
			t.Errorf("%+v", told.Config)
		}
		if told.Env["PLAIN"] != `it's {rank} "größe"` || told.Env["OF_THE_NODE"] != told.Env["HOME"] || told.Env["HOME"] == "" || told.Env["GENRM_RUN_ID"] != first {
			t.Errorf("%q", told.Env)
		}
		r.ends(3, []string{"GRM8331", first, "--replace"}, "launch", file)
		same(t)
	})

	t.Run("gateway", func(t *testing.T) {
		r.t = t
		for _, from := range []string{"here", "another machine"} {
			args := []string{"gateway", "--run", first, "--port", "0"}
			if from != "here" {
				args = append(args, "--runs", filepath.Join(r.dir, "elsewhere"), "--address", r.address)
			}
			cmd := r.command(args...)
			var out suite.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			out.Awaits(t, limit, "listening on http://")
			url := regexp.MustCompile(`listening on (http://\S+)`).FindStringSubmatch(out.String())[1]
			if code, text := asks(t, url+"/genrm/generate", `{"route_key":"quality","messages":[{"role":"user","content":"through both"}]}`); code != 200 || text != `{"response":"through both"}`+"\n" && text != `{"response":"through both"}` {
				t.Errorf("%s: %d %s\n%s", from, code, text, out.String())
			}
			if from == "here" {
				resp, err := http.Get(url + "/genrm/health")
				if err != nil {
					t.Fatal(err)
				}
				text, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if !strings.Contains(string(text), `"quality":{"status":"healthy"}`) {
					t.Errorf("%s", text)
				}
			}
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	})

	t.Run("replace", func(t *testing.T) {
		r.t = t
		r.ends(0, []string{"ready after"}, "launch", r.judges("judges", "good", `serve: instances: safety: {engine: "vllm", model_path: "/m/good", num_gpus: 1}`), "--replace", "--wait")
		second := r.status().RunID
		r.ends(0, []string{"stopped", "replaced by " + second}, "status", first)
		r.ends(0, []string{"replaced by " + second}, "stop", first)
		if code, text := asks(t, proxy+"/judges/v1/chat/completions", `{"model":"safety","messages":[{"role":"user","content":"new"}]}`); code != 200 {
			t.Errorf("%d %s", code, text)
		}
		same(t)
	})

	t.Run("failure", func(t *testing.T) {
		r.t = t
		r.ends(3, []string{"LLMServer:quality: ValueError: the weights of quality are not there", "genrm stop"}, "launch", r.judges("broken", "raises", ""), "--wait")
		if st := r.status(); st.State != "failed" || st.JobState != "DEPLOY_FAILED" {
			t.Errorf("%+v", st)
		}
		r.ends(0, []string{"the weights of quality are not there"}, "status")
		r.ends(0, []string{"has ended: stopped"}, "stop")
		if _, there := r.apps()["broken"]; there {
			t.Error("what had failed is still there")
		}
		r.ends(3, []string{"not ready after 2 s (readiness.timeout)", "genrm stop"}, "launch", r.judges("slow", "slow", "serve: instances: quality: readiness: timeout: 2"), "--wait")
		r.ends(0, []string{"has ended: stopped"}, "stop")
		same(t)
	})

	t.Run("readme", func(t *testing.T) {
		readme := newRig(t, "")
		text, err := os.ReadFile("../../README.md")
		if err != nil {
			t.Fatal(err)
		}
		ran := 0
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			if m[1] == "cue" && m[2] == "judges.cue" {
				// Nobody but the rig's forwarder reaches its nodes, and the experiment's name is taken here.
				readme.file(m[2], strings.Replace(m[3], `"judges"`, `"readme"`, 1)+fmt.Sprintf("ray: serve: endpoint: %q\n", proxy))
			}
			if m[1] != "sh" || m[2] != "ray-serve" {
				continue
			}
			for line := range strings.Lines(m[3]) {
				cmd := readme.command()
				sh := exec.Command("bash", "-c", strings.ReplaceAll(line, "http://ray-head:8265", readme.address))
				sh.Dir, sh.Env = readme.dir, append(cmd.Env, "PATH="+filepath.Dir(readme.genrm)+":"+os.Getenv("PATH"))
				if out, err := sh.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", line, err, out)
				}
				ran++
			}
		}
		if ran == 0 {
			t.Error("README.md shows no command for Ray Serve")
		}
		same(t)
	})

	t.Run("answer lost", func(t *testing.T) {
		other := newRig(t, "")
		var puts atomic.Int32
		direct := other.address
		other.address = other.front(func(w http.ResponseWriter, req *http.Request, ahead http.Handler) {
			if req.Method == http.MethodPut && puts.Add(1) == 1 {
				ahead.ServeHTTP(httptest.NewRecorder(), req)
				panic(http.ErrAbortHandler)
			}
			ahead.ServeHTTP(w, req)
		})
		other.ends(0, []string{"ready after"}, "launch", other.judges("lost", "good", ""), "--wait")
		if puts.Load() != 1 {
			t.Errorf("it was written %d times", puts.Load())
		}
		id := other.status().RunID
		// From another machine, and without the prefix.
		other.address = direct
		other.ends(0, []string{id, "LLMServer:quality"}, "status", id, "--runs", filepath.Join(other.dir, "elsewhere"), "--address", direct)
		other.ends(0, []string{"has ended: stopped"}, "stop", id, "--runs", filepath.Join(other.dir, "elsewhere"))
		other.ends(0, []string{"unknown", "somebody removed it"}, "status", id, "--address", direct)
		same(t)
	})

	t.Run("stop", func(t *testing.T) {
		r.t = t
		run := ""
		for _, st := range r.list() {
			if st.State == "ready" {
				run = st.RunID
			}
		}
		r.ends(0, []string{run + " has ended: stopped"}, "stop", run)
		if code, _ := asks(t, proxy+"/judges/v1/models", ""); code != 404 {
			t.Errorf("the route answers %d", code)
		}
		same(t)
		if all := r.apps(); len(all) != 1 {
			t.Errorf("%+v", all)
		}
	})
}

// list are the runs of this test.
func (r *rig) list() (out []status) {
	r.t.Helper()
	text, err := r.command("list", "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		r.t.Fatalf("%v: %s", err, text)
	}
	return out
}

// TestServeToken: the first application of a cluster, and its last, with a
// token.
func TestServeToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	r.address = os.Getenv("GENRM_E2E_TOKEN")
	file := r.judges("judges", "good", `ray: serve: http_options: request_timeout_s: 77`)
	r.ends(3, []string{"GRM8323"}, "launch", file)
	r.env = []string{"RAY_AUTH_TOKEN_PATH=" + os.Getenv("GENRM_E2E_TOKEN_PATH")}
	r.ends(0, []string{"ready after"}, "launch", file, "--wait")
	r.ends(0, []string{"judge quality is up"}, "logs")
	token, err := os.ReadFile(os.Getenv("GENRM_E2E_TOKEN_PATH"))
	if err != nil {
		t.Fatal(err)
	}
	if found, err := exec.Command("grep", "-rF", string(token), filepath.Join(r.dir, "runs")).Output(); err == nil || len(found) > 0 {
		t.Errorf("the token is in the run: %s", found)
	}
	r.ends(0, []string{"has ended: stopped"}, "stop")
	// Ray Serve itself stays: its proxies would be started anew for whoever comes next.
	req, err := http.NewRequest(http.MethodGet, r.address+putPath, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(text), `"applications": {}`) || !strings.Contains(string(text), `"request_timeout_s": 77`) {
		t.Errorf("%v: %s", err, text)
	}
}

// TestServeArgs hands applications to the classes that read them on a cluster;
// see serveargs.py.
func TestServeArgs(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	every := r.file("every.cue", `
name:   "every"
target: "ray"
cluster: gpus_per_node: 8
serve: instances: {
	"mixture.v1": {
		engine:              "vllm"
		model_path:          "/models/mixture"
		num_gpus:            16
		num_gpus_per_engine: 4
		stop_timeout:        90
		liveness: {interval: 15, probe_timeout: 200}
		env: {A: "b", HF_TOKEN: {env: "HF_TOKEN"}, OTHER: {env: "HF_TOKEN"}}
		engine_config: {
			max_context_len:             32768
			pp_size:                     2
			ep_size:                     2
			mem_fraction_static:         0.85
			max_num_batched_tokens:      "8k"
			kv_cache_memory_bytes:       "1.5g"
			disable_log_stats:           true
			enable_prefix_caching:       false
			compilation_config: mode:    3
			hf_overrides:                "{\"a\": 1}"
			speculative_config:          {method: "ngram", num_speculative_tokens: 2}
			limit_mm_per_prompt:         {image: 0}
			enable_auto_tool_choice:     true
			tool_call_parser:            "hermes"
			reasoning_parser:            "qwen3"
			chat_template:               "/models/template.jinja"
			default_chat_template_kwargs: {enable_thinking: false}
		}
	}
	plain: {engine: "vllm", model_path: "org/model", num_gpus: 1}
	remote: {engine: "openai", base_url: "https://judge.example.com/v1", model: "m"}
}
ray: {
	runtime_env: {env_vars: {B: "c"}, pip: ["x==1"]}
	serve: {
		health_check_period_s:         20
		health_check_timeout_s:        240
		graceful_shutdown_timeout_s:   30
		graceful_shutdown_wait_loop_s: 1
		max_ongoing_requests:          64
		max_queued_requests:           1000
		accelerator_type:              "H100"
		request_timeout_s:             900
		proxy_location:                "HeadOnly"
		http_options: {host: "0.0.0.0", port: 8000, request_timeout_s: 60, keep_alive_timeout_s: 5}
	}
}
`)
	var files []string
	for i, path := range []string{every, "../../examples/serve-two-vllm", "../../examples/serve-openai-beside-local"} {
		path, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(r.dir, fmt.Sprint("out", i))
		r.ends(0, nil, "emit", path, "--target", "ray", "-o", dir)
		files = append(files, filepath.Join(dir, "serve.json"))
	}
	if t.Failed() {
		return
	}
	venv, err := exec.Command("./install").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("python3", append([]string{"serveargs.py", strings.TrimSpace(string(venv))}, files...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, problems.String())
	}
	for _, want := range []string{
		"no keyword: api_server_count config grpc headless\n", // each is refused
		"mixture.v1 4 STRICT_PACK compilation_config disable_log_stats enable_expert_parallel enable_prefix_caching gpu_memory_utilization hf_overrides kv_cache_memory_bytes limit_mm_per_prompt max_model_len max_num_batched_tokens pipeline_parallel_size reasoning_parser speculative_config tensor_parallel_size chat_template default_chat_template_kwargs enable_auto_tool_choice tool_call_parser\n",
		"plain 1 STRICT_PACK max_model_len tensor_parallel_size\n",
		"quality 2 STRICT_PACK enable_prefix_caching gpu_memory_utilization max_model_len tensor_parallel_size\n",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestServeLogs follows the logs of judges while what hands them on, and then a
// replica, is killed: no line is lost or doubled, and what comes in its place
// joins. Other tests wait.
func TestServeLogs(t *testing.T) {
	r := newRig(t, "")
	r.ends(0, []string{"ready after"}, "launch", r.judges("logged", "good", ""), "--wait")
	r.ends(0, []string{" out | judge quality is up\n"}, "logs", "-n", "1")
	cmd := r.command("logs", "-f", "-n", "1", "--process", "quality")
	var out suite.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	out.Awaits(t, limit, "judge quality is up")
	out.Awaits(t, limit, "Finished initializing replica")
	logs, err := filepath.Glob(filepath.Join(os.Getenv("GENRM_RAY_RIG"), "t/session_latest/logs/serve/replica_logged_LLMServer_*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	says := func(line string) {
		f, err := os.OpenFile(logs[0], os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(line + "\n")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	says("before the break")
	out.Awaits(t, limit, "before the break")
	killed := func(name string) {
		t.Helper()
		do(t, "exec", "bash", "-c", "kill -9 $(pgrep -f '"+name+"')")
	}
	killed("[S]tateHead")
	says("after the break")
	out.Awaits(t, limit, "after the break")
	killed("ray::[S]erveReplica:logged:LLMServer")
	for start := time.Now(); strings.Count(out.String(), "judge quality is up") < 2; time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("the next replica does not join\n%s", out.String())
		}
	}
	r.ends(0, []string{"has ended: stopped"}, "stop")
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, line := range []string{"before the break", "after the break"} {
		if n := strings.Count(out.String(), line); n != 1 {
			t.Errorf("%q was shown %d times\n%s", line, n, out.String())
		}
	}
}
