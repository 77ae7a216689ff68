//go:build e2e

package ray

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/e2e/internal/suite"
)

// planned is what is read of a plan.
type planned struct {
	Name     string `json:"name"`
	Workload string `json:"workload"`
	Launch   struct {
		Argv []string       `json:"argv"`
		Env  map[string]any `json:"env"`
	} `json:"launch"`
	Artifacts []struct{ Name, Text string } `json:"artifacts"`
}

// TestExamples runs the job of every example that Ray takes as one, and wants
// each driver to be given what the plan shows. Where the nodes would have Relax,
// it is uploaded, as a folder with a stand-in in it.
func TestExamples(t *testing.T) {
	t.Parallel()
	dirs := append(glob(t, "../../examples/*"), glob(t, "../../examples/site/*")...)
	jobs := 0
	for _, dir := range dirs {
		dir, err := filepath.Rel("../../examples", dir)
		if err != nil {
			t.Fatal(err)
		}
		probe := newRig(t, "")
		plans, err := probe.plans(probe.example(dir)...)
		if err != nil || len(plans) == 0 || plans[0].Workload == "serve" {
			continue
		}
		jobs += len(plans)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "")
			args := r.example(dir)
			for _, p := range plans {
				at := ""
				if len(plans) > 1 {
					at = "experiments." + suite.CUE(p.Name) + "."
				}
				if p.Workload == "gym" {
					args = append(args, "--set", at+"gym.env.PATH="+suite.CUE(filepath.Join(r.dir, "bin")+":/usr/local/bin:/usr/bin:/bin"))
				} else {
					args = append(args, "--set", at+`ray.working_dir="code"`)
				}
			}
			for _, root := range []string{"code", "shared/src/Relax"} {
				entry := root + "/relax/entrypoints/train.py"
				if err := os.MkdirAll(filepath.Join(r.dir, filepath.Dir(entry)), 0o755); err != nil {
					t.Fatal(err)
				}
				r.file(entry, fmt.Sprintf(driver, suite.CUE(r.dir)))
			}
			plans, err := r.plans(args...)
			if err != nil {
				t.Fatal(err)
			}
			r.ends(0, []string{"succeeded"}, append([]string{"launch", "--grows", "--wait"}, args...)...)
			records := r.records()
			if len(records) != len(plans) {
				t.Fatalf("%d drivers of %d were started", len(records), len(plans))
			}
			for _, p := range plans {
				p.check(t, records)
			}
		})
	}
	if jobs < 15 {
		t.Errorf("%d jobs of examples", jobs)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// example copies the examples, with their shared file system in the test's
// folder, and returns the arguments that choose one of them and the target.
func (r *rig) example(dir string) []string {
	r.t.Helper()
	to := filepath.Join(r.dir, "examples")
	if err := os.CopyFS(to, os.DirFS("../../examples")); err != nil {
		r.t.Fatal(err)
	}
	shared := suite.CUE(r.dir + "/shared/")
	err := filepath.WalkDir(to, func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".cue" {
			return err
		}
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(strings.ReplaceAll(string(data), `"/shared/`, shared[:len(shared)-1])), 0o600)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return []string{filepath.Join(to, dir), "--target", "ray"}
}

// plans are those of experiments.
func (r *rig) plans(args ...string) ([]planned, error) {
	out, err := r.command(append([]string{"plan", "-o", "json"}, args...)...).Output()
	if err != nil {
		return nil, err
	}
	var several []planned
	if json.Unmarshal(out, &several) == nil {
		return several, nil
	}
	one := make([]planned, 1)
	return one, json.Unmarshal(out, &one[0])
}

// check wants a record that is the plan's.
func (p planned) check(t *testing.T, records []record) {
	t.Helper()
	words := p.Launch.Argv // as the driver has them: without python3 and -m
	if p.Workload == "relax" {
		if words = words[1:]; words[0] == "-m" {
			words = words[1:]
		}
	}
	i := slices.IndexFunc(records, func(r record) bool {
		if len(r.Argv) != len(words) {
			return false
		}
		for i, w := range words[1:] {
			if got := r.Argv[i+1]; got != w && (!strings.Contains(w, "{file:") || r.Files[got] != p.Artifacts[0].Text) {
				return false
			}
		}
		return true
	})
	if i < 0 {
		t.Errorf("no driver was given\n%q\nbut the first\n%q", words, records[0].Argv)
		return
	}
	for name, v := range p.Launch.Env {
		text, ok := v.(string)
		if got := records[i].Env[name]; ok && got != text {
			t.Errorf("%s is %q, want %q", name, got, text)
		}
	}
	if got := records[i].Env["CUDA_VISIBLE_DEVICES"]; got != "" {
		t.Errorf("the driver sees the GPUs %s, which are the run's", got)
	}
}

// TestGPUs wants a driver that asks for GPUs to see them, and the run's tasks
// theirs.
func TestGPUs(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
import ray
ray.init(log_to_driver=False)
see = ray.remote(lambda: os.environ.get("CUDA_VISIBLE_DEVICES"))
(here / "gpus").write_text(json.dumps([ray.get(see.options(num_gpus=n).remote()) for n in (1, 2)] + [ray.cluster_resources()["GPU"]]))
`)
	r.ends(0, []string{"succeeded"}, "launch", r.relax(2, "ray: entrypoint_num_gpus: 2"), "--wait")
	if got := r.recorded().Env["CUDA_VISIBLE_DEVICES"]; len(strings.Split(got, ",")) != 2 {
		t.Errorf("the driver sees the GPUs %q, want two", got)
	}
	data, err := os.ReadFile(filepath.Join(r.dir, "gpus"))
	if err != nil {
		t.Fatal(err)
	}
	var got []any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	for i, n := range []int{1, 2} {
		if s, _ := got[i].(string); len(strings.Split(s, ",")) != n || s == "" {
			t.Errorf("a task with %d GPUs sees %q", n, s)
		}
	}
	if got[2] != 16.0 {
		t.Errorf("the cluster has %v GPUs", got[2])
	}
}

// TestHeadWithoutGPUs wants NeMo Gym's driver off a head that has no GPU, if it
// starts a vLLM.
func TestHeadWithoutGPUs(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	r.address = os.Getenv("GENRM_E2E_TOKEN")
	r.env = []string{"RAY_AUTH_TOKEN_PATH=" + os.Getenv("GENRM_E2E_TOKEN_PATH")}
	file := func(more string) string {
		return r.file("experiment.cue", fmt.Sprintf(`
name:   "rollouts"
target: "ray"
cluster: gpus_per_node: 8
gym: {
	env: PATH: %s
	config: judge: responses_api_models: local_vllm_model: {
		entrypoint:                  "app.py"
		model:                       "/models/judge"
		return_token_id_information: false
		uses_reasoning_parser:       false
		vllm_serve_env_vars: VLLM_RAY_DP_PACK_STRATEGY: "strict"
		vllm_serve_kwargs: {data_parallel_size: 1, tensor_parallel_size: 4, pipeline_parallel_size: 1}
	}
}
%s`, suite.CUE(filepath.Join(r.dir, "bin")+":/usr/local/bin:/usr/bin:/bin"), more))
	}
	r.ends(3, []string{"error[GRM8327]: the driver comes to the head, which has no GPU"}, "launch", file(""), "--wait")
	r.ends(3, []string{"warning[GRM8329]", "error[GRM8320]", "the run needs 12 GPUs, and the Ray cluster has 8", "4 for judge, 8 for the entrypoint"}, "launch", file("ray: {entrypoint_num_gpus: 8, entrypoint_resources: node1: 1}"))
	if n := r.folders(); n != 0 {
		t.Errorf("%d folders are left", n)
	}
	r.ends(0, []string{"succeeded"}, "launch", file("ray: entrypoint_resources: node2: 0.001"), "--wait")
	r.ends(0, []string{"warning[GRM8327]: the driver may come to one of 1 nodes without a GPU"}, "launch", file("ray: entrypoint_num_cpus: 1"), "--wait")
}
