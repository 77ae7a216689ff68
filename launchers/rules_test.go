package launchers

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"os"
	"path/filepath"
)

func vet(t *testing.T, src string, target plan.Target) diag.List {
	t.Helper()
	file := filepath.Join(t.TempDir(), "experiment.cue")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return compiler.Compile([]string{file}, compiler.Options{Checks: Checkers(), Target: target}).Diagnostics
}

// TestTargetRules: more cases of the rules whose pages show one.
func TestTargetRules(t *testing.T) {
	serve := func(blocks string) string {
		return "name: \"judges\"\n" + blocks + "\ncluster: gpus_per_node: 8\n" +
			`serve: instances: quality: {engine: "vllm", model_path: "/m/j", num_gpus: 8}`
	}
	gym := func(name, kuberay string) string {
		if !strings.Contains(kuberay, "image:") {
			kuberay = `image: "site/rl:1.2.3", ` + kuberay
		}
		return fmt.Sprintf("name: %q\nkuberay: {%s}\n", name, kuberay) +
			`relax: {resource: {actor: [1, 8], rollout: [1, 4]}, rollout_num_gpus: 4, args: {hf_checkpoint: "/m"}, root: "/r"}` + "\ncluster: gpus_per_node: 8\n"
	}
	for _, c := range []struct {
		name   string
		target plan.Target
		src    string
		want   []string // codes of the 8000s
	}{
		{"signals", plan.Slurm, serve(`slurm: signal: "R:USR1"`), nil},
		{"signal number", plan.Slurm, serve(`slurm: signal: "SIGUSR2@60"`), nil},
		{"signal 0", plan.Slurm, serve(`slurm: signal: "0@60"`), []string{"GRM8205"}},
		{"signal too early", plan.Slurm, serve(`slurm: signal: "TERM@70000"`), []string{"GRM8205"}},
		{"both targets of a signal", plan.Slurm, serve(`slurm: signal: "RB:TERM"`), []string{"GRM8205"}},
		{"directives", plan.Slurm, serve(`slurm: directives: {"mail-user": "a #b", nodes: 1, comment: "x", exclusive: true, output: "x"}`), []string{"GRM8203", "GRM8204"}},
		{"the same twice", plan.Slurm, "name: \"j\"\nslurm: nodes: 3\ncluster: {nodes: 2, gpus_per_node: 4}\n" + `serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 8}`, []string{"GRM8201"}},
		{"more nodes than used", plan.Slurm, serve(`slurm: nodes: 2`), []string{"GRM8201"}},
		{"registry image", plan.Slurm, serve(`slurm: container: image: "docker://vllm/vllm-openai:v0.24.0"`), nil},
		{"dockerd", plan.Slurm, serve(`slurm: container: image: "dockerd://x:1"`), []string{"GRM8208"}},
		{"no block", plan.Slurm, serve(""), nil},
		{"local", plan.Local, serve(`local: {gpus: [0, 1, 2, 3, 4, 5, 6], ports: [30000, 30100]}`), []string{"GRM8101"}},
		{"ports: two for each engine and one for the gateway", plan.Local, serve(`local: ports: [30000, 30016]`), nil},
		{"one port short", plan.Local, serve(`local: ports: [30000, 30015]`), []string{"GRM8104"}},
		{"every block when no target is chosen", "", serve(`local: gpus: [0]` + "\n" + `slurm: nodes: 2`), []string{"GRM8101", "GRM8201"}},
		{"a block of another target", plan.Local, serve(`slurm: nodes: 2`), nil},
		{"ray: remote beside local", plan.Ray, serve("") + "\n" + `serve: instances: remote: {engine: "openai", base_url: "https://h/v1", model: "m"}`, nil},
		{"ray: another vLLM", plan.Ray, serve("") + "\n" + `serve: instances: quality: engine_version: "0.24.0"`, []string{"GRM8302"}},
		{"ray: sglang", plan.Ray, "name: \"j\"\n" + `serve: instances: q: {engine: "sglang", model_path: "/m/j", num_gpus: 1}`, []string{"GRM8301"}},
		{"kuberay: a Ray release without a known pin", plan.KubeRay, serve(`kuberay: {image: "site/rl:1.2.3", rayVersion: "2.40.0"}`), []string{"GRM8302"}},
		{"ray: a Ray release without a known pin", plan.Ray, serve(`ray: version: "2.40.0"`), []string{"GRM8302"}},
		{"ray: everything that has no place", plan.Ray, serve("") + "\n" + `serve: instances: quality: {extra_args: ["--x"], env: {A: "a$b", B: {file: "/s"}}, image: "a:1", num_gpus_per_engine: 2, engine_config: {dp_size: 2, tool_parser_plugin: "p.py", distributed_executor_backend: "mp"}}`,
			[]string{"GRM8334", "GRM8335", "GRM8337"}},
		{"ray: what vLLM's server and Ray agree on", plan.Ray, serve("") + "\n" + `serve: instances: quality: {num_gpus_per_engine: 2, engine_config: {dp_size: 1, distributed_executor_backend: "ray", enable_auto_tool_choice: true, tool_call_parser: "hermes"}}`, nil},
		{"ray: settings of jobs", plan.Ray, serve(`ray: {metadata: {a: "b"}, working_dir: "."}`), []string{"GRM8337"}},
		{"kuberay: 40 characters", plan.KubeRay, gym(strings.Repeat("a", 40), ""), nil},
		{"kuberay: 41 characters", plan.KubeRay, gym(strings.Repeat("a", 41), ""), []string{"GRM8401"}},
		{"kuberay: dots, case and underscores", plan.KubeRay, gym("Qwen_3.x", ""), nil},
		{"kuberay: a name that ends in a dash", plan.KubeRay, gym("judges-", ""), []string{"GRM8402"}},
		{"kuberay: image with another suffix", plan.KubeRay, gym("j", `image: "rayproject/ray-ml:2.60.0.abc123-py311-gpu", rayVersion: "2.60.0"`), nil},
		{"kuberay: not a ray image", plan.KubeRay, gym("j", `image: "site/rl:1.2.3", rayVersion: "2.60.0"`), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, d := range vet(t, c.src, c.target) {
				if d.Severity == diag.Note {
					continue
				}
				if strings.HasPrefix(d.Code, "GRM8") && !slices.Contains(got, d.Code) {
					got = append(got, d.Code)
				} else if d.Severity == diag.Error && !strings.HasPrefix(d.Code, "GRM8") {
					t.Errorf("%+v", d)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v: %+v", got, c.want, vet(t, c.src, c.target))
			}
		})
	}
}
