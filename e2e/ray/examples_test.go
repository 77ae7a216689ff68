//go:build e2e

package ray

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// planned is what is read of a plan.
type planned struct {
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
	dirs, err := filepath.Glob("../../examples/*")
	if err != nil {
		t.Fatal(err)
	}
	site, err := filepath.Glob("../../examples/site/*")
	if err != nil {
		t.Fatal(err)
	}
	jobs := 0
	for _, dir := range append(dirs, site...) {
		probe := newRig(t, "")
		dir, err := filepath.Abs(dir)
		if err != nil {
			t.Fatal(err)
		}
		plans, err := probe.plans(dir, "--target", "ray")
		if err != nil || len(plans) == 0 || plans[0].Workload == "serve" {
			continue
		}
		jobs += len(plans)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "")
			set := []string{dir, "--target", "ray"}
			if plans[0].Workload == "gym" {
				set = append(set, "--set", "gym.env.PATH="+cueText(filepath.Join(r.dir, "bin")+":/usr/local/bin:/usr/bin:/bin"))
			} else {
				entry := "code/relax/entrypoints/train.py"
				if err := os.MkdirAll(filepath.Join(r.dir, filepath.Dir(entry)), 0o755); err != nil {
					t.Fatal(err)
				}
				r.file(entry, fmt.Sprintf(driver, cueText(r.dir)))
				set = append(set, "--set", `ray.working_dir="code"`)
			}
			plans, err := r.plans(set...)
			if err != nil {
				t.Fatal(err)
			}
			r.ends(0, []string{"succeeded"}, append([]string{"launch", "--grows", "--wait"}, set...)...)
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
	words := p.Launch.Argv[1:] // without python3, or gym
	if p.Workload == "gym" {
		words = p.Launch.Argv
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
%s`, cueText(filepath.Join(r.dir, "bin")+":/usr/local/bin:/usr/bin:/bin"), more))
	}
	r.ends(3, []string{"error[GRM8327]: the driver comes to the head, which has no GPU"}, "launch", file(""), "--wait")
	r.ends(3, []string{"warning[GRM8329]", "error[GRM8320]", "the run needs 12 GPUs, and the Ray cluster has 8", "4 for judge, 8 for the entrypoint"}, "launch", file("ray: {entrypoint_num_gpus: 8, entrypoint_resources: node1: 1}"))
	if n := r.folders(); n != 0 {
		t.Errorf("%d folders are left", n)
	}
	r.ends(0, []string{"succeeded"}, "launch", file("ray: entrypoint_resources: node2: 0.001"), "--wait")
	r.ends(0, []string{"warning[GRM8327]: the driver may come to one of 1 nodes without a GPU"}, "launch", file("ray: entrypoint_num_cpus: 1"), "--wait")
}
