package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// kubeAPI is a stand-in of a Kubernetes API server with KubeRay and one node of 8
// GPUs. A RayJob starts when it is first looked at, runs when it is looked at again,
// and then ends with the status that its name says; one called stuck never starts,
// and one called long runs for ever.
type kubeAPI struct {
	mu      sync.Mutex
	objects map[string]map[string]any // by path
	looks   map[string]int            // at each path
	asked   map[string]int            // by method and path
	refuses string                    // part of the name of an object that is not taken
	dry     bool                      // and a dry run tells
	without string                    // path that is not there
	breaks  int                       // so many looks at objects are not answered by Kubernetes
	hangs   func()                    // is told of a look at an object that nobody answers
}

func (k *kubeAPI) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	k.mu.Lock()
	defer k.mu.Unlock()
	path, dry := req.URL.Path, req.URL.Query().Get("dryRun") != ""
	k.asked[req.Method+" "+path]++
	w.Header().Set("Content-Type", "application/json")
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	refuse := func(code int, reason, message string) {
		w.WriteHeader(code)
		answer(map[string]any{"kind": "Status", "code": code, "reason": reason, "message": message})
	}
	list := func(items ...any) { answer(map[string]any{"items": items}) }
	_, name, isJob := strings.Cut(path, "/rayjobs/")
	switch {
	case k.without != "" && strings.HasPrefix(path, k.without):
		refuse(404, "NotFound", "not found")
	case path == "/api/v1/namespaces/ml":
		answer(map[string]any{})
	case path == "/apis/ray.io":
		answer(map[string]any{"versions": []any{map[string]any{"version": "v1"}}})
	case path == "/apis/ray.io/v1":
		answer(map[string]any{"resources": []any{map[string]any{"kind": "RayJob"}, map[string]any{"kind": "RayService"}}})
	case path == "/apis/kueue.x-k8s.io":
		answer(map[string]any{"preferredVersion": map[string]any{"groupVersion": "kueue.x-k8s.io/v1beta1"}})
	case strings.HasSuffix(path, "/localqueues/team"):
		answer(map[string]any{})
	case strings.HasSuffix(path, "/selfsubjectaccessreviews"):
		answer(map[string]any{"status": map[string]any{"allowed": true}})
	case path == "/apis/apps/v1/deployments":
		list(map[string]any{"status": map[string]any{"availableReplicas": 1}})
	case path == "/api/v1/nodes":
		list(map[string]any{"metadata": map[string]any{"name": "n"}, "status": map[string]any{"allocatable": map[string]any{"nvidia.com/gpu": "8"}}})
	case strings.HasSuffix(path, "/pods"), strings.HasSuffix(path, "/events"):
		list()
	case req.Method == http.MethodPatch:
		if k.refuses != "" && isJob && strings.Contains(name, k.refuses) && dry == k.dry {
			refuse(403, "Forbidden", fmt.Sprintf("rayjobs.ray.io %q is forbidden: a webhook says no", name))
			return
		}
		var o map[string]any
		if err := json.NewDecoder(req.Body).Decode(&o); err != nil {
			refuse(400, "BadRequest", err.Error())
			return
		}
		meta := o["metadata"].(map[string]any)
		meta["uid"], meta["creationTimestamp"] = path, time.Now().UTC().Format(time.RFC3339)
		if !dry {
			k.objects[path] = o
		}
		w.WriteHeader(http.StatusCreated)
		answer(map[string]any{"metadata": meta})
	case k.objects[path] == nil:
		refuse(404, "NotFound", "not found")
	case req.Method == http.MethodDelete:
		delete(k.objects, path)
		answer(map[string]any{})
	case k.hangs != nil:
		k.hangs()
		k.mu.Unlock()
		_, _ = io.Copy(io.Discard, req.Body) // so that its end is seen
		<-req.Context().Done()
		k.mu.Lock()
	case k.breaks > 0:
		k.breaks--
		http.Error(w, "upstream connect error", http.StatusServiceUnavailable)
	default:
		o := k.objects[path]
		k.looks[path]++
		switch code, n := 0, k.looks[path]; {
		case strings.HasPrefix(name, "stuck-"):
			o["status"] = map[string]any{"jobDeploymentStatus": "Initializing", "startTime": "2020-01-01T00:00:00Z"}
		case n == 1:
			o["status"] = map[string]any{"jobDeploymentStatus": "Initializing"}
		case n < 4, strings.HasPrefix(name, "long-"):
			o["status"] = map[string]any{"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
		default:
			_, _ = fmt.Sscanf(name, "exit%d-", &code)
			o["status"] = map[string]any{"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
			if code != 0 {
				o["status"] = map[string]any{"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "message": fmt.Sprintf("Job entrypoint command failed with exit code %d, last available logs", code)}
			}
		}
		answer(o)
	}
}

// jobs counts the RayJobs that are there.
func (k *kubeAPI) jobs() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for path := range k.objects {
		if strings.Contains(path, "/rayjobs/") {
			n++
		}
	}
	return n
}

// kubeSweep is a package with an experiment of four GPUs for each name: all of one
// place, or each of its own.
func kubeSweep(names []string, apart bool, more string) string {
	const body = `{
	target: "kuberay"
	kuberay: {image: "registry.example/relax-ray:2.60.0", head_memory: "16Gi", MORE}
	relax: {
		root:       "/opt/relax"
		entrypoint: "train.py"
		colocate:   true
		resource: {actor: [1, GPUS], rollout: [1, 2], genrm: [1, GPUS - 2]}
		genrm_model_path: "/models/judge"
		genrm_num_gpus:   GPUS - 2
		rm_type:          "dapo-genrm"
		reward_key:       "score"
		args: hf_checkpoint: "/models/policy"
	}
	cluster: gpus_per_node: 8
}
`
	text := ""
	if !apart {
		quoted, _ := json.Marshal(names)
		text = "experiments: {for n in " + string(quoted) + " {(n): " + body + "}}\n"
	} else {
		for _, n := range names {
			text += fmt.Sprintf("experiments: %q: %s", n, body)
		}
	}
	return strings.ReplaceAll(text, "MORE", more)
}

// kubeEnv starts a stand-in, and is the environment that leads to it.
func kubeEnv(t *testing.T, k *kubeAPI) (dir string, env []string) {
	t.Helper()
	k.objects, k.looks, k.asked = map[string]map[string]any{}, map[string]int{}, map[string]int{}
	s := httptest.NewServer(k)
	t.Cleanup(s.Close)
	dir = t.TempDir()
	config := filepath.Join(dir, "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "k", "cluster": {"server": %q}}],
"users": [{"name": "u", "user": {}}], "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "ml"}}]}`, s.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, []string{"KUBECONFIG=" + config, "GENRM_RUNS=" + filepath.Join(dir, "runs")}
}

// TestKubeSweep launches several experiments at once.
func TestKubeSweep(t *testing.T) {
	three := []string{"exit3", "exit137", "exit0"}
	for _, c := range []struct {
		name  string
		api   *kubeAPI
		names []string
		apart bool
		more  string // of the block
		gpus  string
		args  []string
		code  int
		says  []string
		once  []string // said, and not again
		lacks []string
		jobs  int
	}{
		{name: "no wait", says: []string{"rayjob/exit0-", "rayjob/exit3-", "rayjob/exit137-", " in ml, run exit3-"}, once: []string{"the 3 runs need 12 GPUs together, and 8 of the cluster's are free now"}, jobs: 3},
		{name: "a queue", more: `queue: "team"`, lacks: []string{"GRM"}, jobs: 3},
		{name: "suspended", more: `suspend: true`, lacks: []string{"GRM"}, jobs: 3},
		{name: "there is room", names: []string{"a", "b"}, lacks: []string{"GRM"}, jobs: 2},
		{name: "wait", args: []string{"--wait"}, code: 137, jobs: 3, lacks: []string{"does not answer"},
			says: []string{"  pending: its Ray cluster starts\n", "  running\n", "  succeeded\n", "  failed, exit status 3: the driver ended with status 3\n", "failed, exit status 137: the driver ended with status 137"}},
		{name: "wait for JSON", args: []string{"--wait", "-o", "json"}, code: 137, says: []string{"  running\n", `"exit_code": 137`, "]\n"}, jobs: 3},
		{name: "JSON", args: []string{"-o", "json"}, says: []string{"[\n  {", `"run_id": "exit0-`, "]\n"}, jobs: 3},
		{name: "one of them", args: []string{"--name", "exit3"}, says: []string{"rayjob/exit3-"}, lacks: []string{"together"}, jobs: 1},
		{name: "away", api: &kubeAPI{breaks: 2}, args: []string{"--wait"}, code: 137, once: []string{"Kubernetes does not answer: ", "Kubernetes answers again after"}, jobs: 3},
		{name: "too late", names: []string{"stuck", "exit0"}, args: []string{"--wait"}, code: 3, jobs: 1,
			says: []string{"  stopping: not started within 30m0s: it is removed\n", "  failed, exit status 3: not started 30m0s after it was made (kuberay.startup_deadline), and removed: its Ray cluster starts\n", "  succeeded\n"}},
		{name: "all are too large", gpus: "16", code: 3, once: []string{"GRM8425"}, says: []string{"in 3 experiments: exit3, exit137, exit0"}, lacks: []string{"together"}},
		{name: "no namespace", api: &kubeAPI{without: "/api/v1/namespaces/ml"}, apart: true, more: `secrets: HF_TOKEN: {name: "hf", key: "token"}`, code: 3,
			once: []string{"error[GRM8421]: the cluster has no namespace ml", "error[GRM8429]: ml has no secret hf"}, says: []string{"in experiment exit3\n", "sweep.cue:19:11: of experiment exit137, too\n  see: ", "sweep.cue:35:103: of experiment exit0, too\n"}},
		{name: "no KubeRay", api: &kubeAPI{without: "/apis/ray.io"}, code: 3, once: []string{"GRM8422"}, says: []string{"in 3 experiments"}},
		{name: "one is refused", api: &kubeAPI{refuses: "exit137", dry: true}, code: 3, once: []string{"GRM8433", "in experiment exit137\n"}, says: []string{"a webhook says no"}},
		{name: "all are refused", api: &kubeAPI{refuses: "exit", dry: true}, code: 3, once: []string{"error[GRM8433]: Kubernetes refuses RayJob ml/exit3-"}, says: []string{"in 3 experiments"}},
		{name: "one is not taken", api: &kubeAPI{refuses: "exit137"}, code: 3, says: []string{"GRM8433", "1 of 3 were applied; exit137 was not", "rayjob/exit3-"}, jobs: 1},
		{name: "one is not taken, JSON", api: &kubeAPI{refuses: "exit0"}, args: []string{"-o", "json"}, code: 3, says: []string{"2 of 3 were applied; exit0 was not", "rayjob/exit3-"}, jobs: 2},
		{name: "follow", args: []string{"--follow"}, code: 2, says: []string{"--follow shows one log, and there are 3 experiments: choose by --name, or launch them and look by genrm logs RUN -f"}},
		{name: "replace", args: []string{"--replace"}, code: 2, says: []string{"each relax run has an object of its own"}},
		{name: "dry run", args: []string{"--dry-run"}, says: []string{"kind: RayJob", "name: exit0-"}},
		{name: "dry run, JSON", args: []string{"--dry-run", "-o", "json", "--namespace", "other"}, once: []string{`"kind": "List"`}, says: []string{`"namespace": "other"`}},
		{name: "dry run of the server", args: []string{"--dry-run=server"}, says: []string{"the API server would take configmap/exit3-", " and rayjob/exit0-", " in ml; nothing was changed\n"}},
		{name: "dry run of the server, JSON", args: []string{"--dry-run=server", "-o", "json"}, says: []string{`"dry_run": "server"`, `"name": "exit137"`, "]\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.api == nil {
				c.api = &kubeAPI{}
			}
			if c.names == nil {
				c.names = three
			}
			if c.gpus == "" {
				c.gpus = "4"
			}
			dir, env := kubeEnv(t, c.api)
			file := filepath.Join(dir, "sweep.cue")
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(kubeSweep(c.names, c.apart, c.more), "GPUS", c.gpus)), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			code := Main(append([]string{"launch", file}, c.args...), strings.NewReader(""), &out, &errs, env)
			all := out.String() + errs.String()
			if jobs := c.api.jobs(); code != c.code || jobs != c.jobs {
				t.Errorf("exit status %d, want %d; %d jobs, want %d\n%s", code, c.code, jobs, c.jobs, all)
			}
			for _, text := range append(c.says, c.once...) {
				if n := strings.Count(all, text); n == 0 || n > 1 && slices.Contains(c.once, text) {
					t.Errorf("%d times %q in\n%s", n, text, all)
				}
			}
			for _, text := range c.lacks {
				if strings.Contains(all, text) {
					t.Errorf("%q in\n%s", text, all)
				}
			}
			if slices.Contains(c.args, "json") && out.Len() > 0 && !json.Valid(out.Bytes()) {
				t.Errorf("not JSON alone: %s", out.String())
			}
			if slices.Contains(c.args, "--dry-run") && len(c.args) == 1 {
				kinds := map[any]int{}
				for _, doc := range strings.Split(out.String(), "---\n") {
					var o map[string]any
					if err := yaml.UnmarshalStrict([]byte(doc), &o); err != nil {
						t.Errorf("%v: %s", err, doc)
					}
					kinds[o["kind"]]++
				}
				if len(kinds) != 2 || kinds["RayJob"] != 3 || kinds["ConfigMap"] != 3 {
					t.Errorf("%v", kinds)
				}
			}
			want := c.jobs
			if c.name == "too late" {
				want++ // its folder tells how it ended
			}
			if runs, _ := os.ReadDir(filepath.Join(dir, "runs")); len(runs) != want {
				t.Errorf("%d runs", len(runs))
			}
			for asked, n := range c.api.asked { // what they have in common
				if n > 1 && (strings.HasPrefix(asked, "GET /apis/ray.io/v1") || asked == "GET /api/v1/nodes" || asked == "GET /api/v1/pods" || strings.HasSuffix(asked, "/secrets/hf") || asked == "GET /api/v1/namespaces/ml") && !strings.Contains(asked, "/rayjobs/") {
					t.Errorf("%s was asked %d times", asked, n)
				}
			}
			if n := c.api.asked["POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"]; n > 12 {
				t.Errorf("%d permissions were asked for", n)
			}
		})
	}
}

// TestKubeSweepSignal: Ctrl-C leaves all of them alone.
func TestKubeSweepSignal(t *testing.T) {
	api := &kubeAPI{}
	dir, env := kubeEnv(t, api)
	file := filepath.Join(dir, "sweep.cue")
	text := strings.ReplaceAll(kubeSweep([]string{"long-a", "long-b", "exit0"}, false, ""), "GPUS", "4")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	in, out := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- Main([]string{"launch", file, "--wait"}, strings.NewReader(""), out, out, env)
		_ = out.Close()
	}()
	all, sent := "", false
	buf := make([]byte, 4096)
	for {
		n, err := in.Read(buf)
		all += string(buf[:n])
		if strings.Contains(all, "succeeded") && !sent {
			sent = true
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				t.Fatal(err)
			}
		}
		if err != nil {
			break
		}
	}
	select {
	case got := <-code:
		if got != 130 || !strings.Contains(all, "2 of 3 go on as RayJobs; `genrm stop RUN` ends one\n") || api.jobs() != 3 {
			t.Errorf("exit status %d, %d jobs\n%s", got, api.jobs(), all)
		}
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
}

// TestKubeSignalHangs: nor does Ctrl-C wait for an API server that hangs.
func TestKubeSignalHangs(t *testing.T) {
	for want, names := range map[string][]string{"goes on as rayjob/": {"long-a"}, "2 of 2 go on as RayJobs": {"long-a", "long-b"}} {
		api := &kubeAPI{}
		api.hangs = sync.OnceFunc(func() {
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				t.Error(err)
			}
		})
		dir, env := kubeEnv(t, api)
		file := filepath.Join(dir, "sweep.cue")
		text := strings.ReplaceAll(kubeSweep(names, false, ""), "GPUS", "4")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		all := &locked{out: new(bytes.Buffer)}
		code := Main([]string{"launch", file, "--wait"}, strings.NewReader(""), all, all, env)
		all.mu.Lock()
		said := fmt.Sprint(all.out)
		all.mu.Unlock()
		if code != 130 || !strings.Contains(said, want) || strings.Contains(said, "does not answer") {
			t.Errorf("exit status %d\n%s", code, said)
		}
	}
}
