package compiler_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
	"genrm.dev/genrm/launchers"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/ray/kuberay"
	"genrm.dev/genrm/launchers/slurm"
)

// nulFiles have what becomes a word or a variable of a process. A text that
// begins with "=" goes into a file, or JSON, and may have a NUL.
var nulFiles = map[string]string{
	"serve": `name: "judges"
serve: instances: {
	quality: {
		engine:     "vllm"
		model_path: "/models/q"
		num_gpus:   1
		engine_config: {tokenizer: "/models/t", chat_template: "x", allowed_origins: ["=a"], compilation_config: {x: "=a"}}
		env: {A: "b", HF_TOKEN: file: "/run/token"}
		sampling_config: stop: ["=a"]
	}
	safety: {engine: "sglang", model_path: "/models/s", num_gpus: 1, extra_args: ["--x=y", "z"], env: A: "b", image: "lmsysorg/sglang:v0.5.15.post1"}
	sim: {engine: "sim", constant: "=1"}
}
`,
	"relax": `name: "run"
relax: {
	colocate: true
	resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
	genrm_instances: quality: {model_path: "/models/q", num_gpus: 4, sampling_config: chat_template_kwargs: x: "=a"}
	custom_rm_path: "a.b"
	rm_type:        "c"
	reward_key:     "score"
	sglang_config:  "/x.yaml"
	entrypoint:     "run/train.py"
	root:           "/relax"
	megatron_path:  "/megatron"
	args: {hf_checkpoint: "/models/p", eval_prompt_data: ["name", "/data"]}
	extra_args: ["--x=y"]
	env: {A: "b"}
}
`,
	"gym": `name: "run"
gym: {
	config: policy_model: responses_api_models: openai_model: {entrypoint: "app.py", openai_base_url: "https://h/v1", openai_api_key: "EMPTY", openai_model: "=m"}
	root: "/gym"
	env: {A: "b"}
	overrides: "policy_model.x": "y"
}
`,
}

// nulBlocks are blocks of targets with the same.
var nulBlocks = map[string]string{
	"local":   `local: {log_dir: "/logs", ray: args: ["--x=y"]}`,
	"slurm":   `slurm: {container: {image: "r.example/x:1", mounts: ["/a:/b"]}, setup: ["module load x"], directives: "mail-user": "x", ray: args: ["--x=y"]}`,
	"ray":     `ray: {metadata: a: "b", headers: "X-A": "b"}`,
	"kuberay": `kuberay: {image: "r.example/ray:2.60.0", env: A2: "b", head_ray_start_params: "num-cpus": "0"}`,
}

// TestNUL puts a NUL into each text of a file: what cannot be handed to a process
// is found at its place, and no file is refused later, without one.
func TestNUL(t *testing.T) {
	text := regexp.MustCompile(`"[^"\n]*"`)
	names := map[string]func(p *plan.Plan) ([]emit.File, error){"local": nil, "slurm": slurm.Files, "ray": ray.Files, "kuberay": kuberay.Files}
	path := filepath.Join(t.TempDir(), "x.cue")
	for name, file := range nulFiles {
		for target, more := range names {
			file := file + "cluster: {gpus_per_node: 8, run_root: \"/runs\"}\n" + nulBlocks[target] + "\n"
			if name == "serve" && (target == "ray" || target == "kuberay") { // what a Serve application has
				file = regexp.MustCompile(`(?m)^\t(safety|sim): .*\n|HF_TOKEN: file: "[^"]*"|^.*allowed_origins.*\n`).ReplaceAllString(file, "")
			}
			compile := func(text string) *compiler.Result {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				return compiler.Compile([]string{path}, compiler.Options{Target: plan.Target(target), Checks: launchers.Checkers()})
			}
			if r := compile(file); len(r.Plans) != 1 {
				t.Fatalf("%s on %s: %+v", name, target, r.Diagnostics)
			}
			found := 0
			for _, at := range text.FindAllStringIndex(file, -1) {
				if strings.HasPrefix(strings.TrimSpace(file[at[1]:]), ":") {
					continue // a name
				}
				middle := at[0] + (at[1]-at[0])/2
				r := compile(file[:middle] + `\u0000` + file[middle:])
				line := strings.Count(file[:at[0]], "\n") + 1
				for _, d := range r.Diagnostics {
					if d.Pos.Line == line && strings.HasSuffix(d.Summary, "holds a NUL character") {
						found++
						if file[at[0]+1] == '=' {
							t.Errorf("%s on %s: %s may hold a NUL: %+v", name, target, file[at[0]:at[1]], d)
						}
					}
				}
				for _, p := range r.Plans {
					_, err := emit.Files(p)
					if err == nil && more != nil {
						_, err = more(p)
					}
					if errors.Is(err, shell.ErrNUL) {
						t.Errorf("%s on %s: %s: %v, and it is not found before", name, target, file[at[0]:at[1]], err)
					}
				}
			}
			if found < 3 {
				t.Errorf("%s on %s: %d texts with a NUL were found", name, target, found)
			}
		}
	}
}
