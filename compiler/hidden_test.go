package compiler_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
)

// compileText compiles one file.
func compileText(t *testing.T, text string, sets ...string) *compiler.Result {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cue")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return compiler.Compile([]string{path}, compiler.Options{Sets: sets})
}

// TestSecretsThatAreComputed types the secret "hunter2" in every way that is not
// one literal: it is refused once and quoted nowhere.
func TestSecretsThatAreComputed(t *testing.T) {
	for _, value := range []string{
		`"hunter2" & string`, `("hunter2")`, `*"hunter2" | string`, `"hun\(1)ter2"`, `"hun" + "ter2"`, `"hunter2" + 3`,
		`"hunter2" & "hunter3"`, `int & "hunter2"`, `_k`, `_k & "x"`, `_k & int`, `"\(_k)"`, `[_k][0]`, `#"hunter2"#`, "\"\"\"\n\thunter2\n\t\"\"\"",
		`{env: "A"} | "hunter2"`, `strings.ToUpper("hunter2")`,
	} {
		for _, name := range []string{"HF_TOKEN", `"HF_TOKEN"`, `"HF_\("TOKEN")"`} {
			if strings.Contains(name, "(") && !strings.Contains(value, "_k") {
				continue
			}
			r := compileText(t, fmt.Sprintf(`
import "strings"
name: strings.ToLower("A")
_k: "hunter2"
serve: instances: a: {engine: "vllm", model_path: "/m", num_gpus: 1, env: %s: %s}
`, name, value))
			if all := fmt.Sprintf("%+v", r.Diagnostics); strings.Contains(strings.ToLower(all), "hunter") || len(r.Diagnostics) != 1 || !r.Diagnostics[0].Secret || !slices.Contains([]int{4, 5}, r.Diagnostics[0].Pos.Line) {
				t.Errorf("%s: %s: %s", name, value, all)
			}
		}
	}
	for _, set := range []string{`env."HF_TOKEN"="hunter2"`, `env={"HF_TOKEN": "hun" + "ter2"}`, `env.HF_TOKEN=*"hunter2" | string`} {
		r := compileText(t, `
name: "a"
serve: instances: a: {engine: "vllm", model_path: "/m", num_gpus: 1}
`, "serve.instances.a."+set)
		if all := fmt.Sprintf("%+v", r.Diagnostics); strings.Contains(all, "hunter") || len(r.Diagnostics) != 1 || !r.Diagnostics[0].Secret {
			t.Errorf("--set %s: %s", set, all)
		}
	}
	for _, set := range []string{"serve.instances.a=3", "serve.instances.a.env.Y=1/0"} {
		r := compileText(t, `
name: "a"
_k: "hunter2"
serve: instances: a: {engine: "vllm", model_path: "/m", num_gpus: 1, env: {HF_TOKEN: {env: "A"}, X: _k}}
`, set)
		if all := fmt.Sprintf("%+v", r.Diagnostics); strings.Contains(all, "hunter") || len(r.Diagnostics) != 1 || r.Diagnostics[0].Path == "" {
			t.Errorf("--set %s: %s", set, all)
		}
	}
	for _, value := range []string{`{env: "A"}`, `{file: "/a"}`, `_refs["main"]`, `_refs.main`, `{env: "\(name)_TOKEN"}`} {
		r := compileText(t, fmt.Sprintf(`
name: "a"
_refs: main: env: "A"
serve: instances: a: {engine: "vllm", model_path: "/m", num_gpus: 1, env: HF_TOKEN: %s}
`, value))
		if r.Diagnostics.HasErrors() {
			t.Errorf("%s: %+v", value, r.Diagnostics)
		}
	}
}

// TestNothingHides puts beside each mistake what CUE, or a reader of the first
// error only, would not show. Wanted are code and place of every error.
func TestNothingHides(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"an unused import", `
import "net"
name: "a"
serve: instances: a: {engine: "vllm", modell: 1, model_path: "/m", num_gpus: "1"}
`, "GRM1003@2:8 GRM2001@4:39 GRM2003@4:78"},
		{"an import that does not exist, used twice", `
import "nope"
import n "nope2"
name: nope.X
serve: instances: a: {engine: "vllm", modell: 1, model_path: n.X, num_gpus: "1", env: A: nothing}
`, "GRM1003@2:8 GRM1003@3:8 GRM2001@5:39 GRM2003@5:77 GRM1005@5:90"},
		{"a definition that the value breaks", `
name: "a"
#D: {engine: "vllm", model_path: string, num_gpus: <=4, ...}
serve: instances: {
	[string]: num_gpus: int
	a: #D & {model_path: 3, num_gpus: 5}
	b: {engine: "vllm", model_path: "/m", num_gpus: "x"}
}
`, "GRM1004@6:23 GRM1007@6:36 GRM1004@7:50"},
		{"a judge whose kind is unknown", `
name: "a"
serve: instances: {
	a: {engine: "vlm", model_pth: 3, num_gpus: "x", env: A: 1}
	b: {engin: "vllm", model_path: 3}
}
`, "GRM2004@4:14 GRM2001@4:21 GRM2003@4:45 GRM2003@4:58 GRM2002@5:2 GRM2001@5:6 GRM2003@5:33"},
		{"a misspelt block", `
name: "a"
serv: instance: a: {engine: "vllm", model_path: "/m", num_gpus: "x"}
`, "GRM2001@3:1 GRM2001@3:7 GRM2002@3:1 GRM2003@3:65"},
		{"a build attribute", "@if(prod)\nname: \"a\"\n", "GRM1003@0:0"},
		{"a misspelt sweep", `
experimens: a: serve: instances: a: {engine: "vllm", model_path: "/m", num_gpus: "x"}
`, "GRM2001@2:1 GRM2003@2:82"},
		{"a misspelt role", `
name: "a"
relax: {
	colocat: true
	resorce: {actor: [1, 8], rollot: [1, 4], genrm: [1, 4]}
	genrm_instances: q: {model_path: "/m", num_gpus: 5}
	args: hf_checkpoint: "/m"
}
`, "GRM2001@4:2 GRM2001@5:2 GRM2001@5:27 GRM4006@5:50"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, d := range compileText(t, c.text).Diagnostics {
				if d.Severity == diag.Error {
					got = append(got, fmt.Sprintf("%s@%d:%d", d.Code, d.Pos.Line, d.Pos.Column))
				}
			}
			want := strings.Fields(c.want)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

// TestSweepWords: what is wrong in one way in every experiment of a sweep is told
// once, by its path within the experiment.
func TestSweepWords(t *testing.T) {
	text := `_base: {target: "kuberay", kuberay: {imag: "i:1", head_gpus: "1"}, serve: instances: a: {engine: "sim", constant: "1"}, slurn: {}}
experiments: {a: _base, "b.c": _base}
`
	r := compileText(t, text)
	var shown strings.Builder
	if err := r.Diagnostics.Text(&shown, diag.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`unknown field "imag" in kuberay` + "\n", "kuberay.head_gpus wants", `unknown field "slurn" in an experiment` + "\n"} {
		if strings.Count(shown.String(), want) != 1 || strings.Contains(shown.String(), ": experiments.") {
			t.Errorf("%s not once in\n%s", want, &shown)
		}
	}
}

// TestSecretsOfKubernetes: what a secret is to be in the block of Kubernetes,
// which has references of its own.
func TestSecretsOfKubernetes(t *testing.T) {
	for field, want := range map[string]string{
		`env: HF_TOKEN: "hunter2"`:     `kuberay: secrets: HF_TOKEN: {name: "…", key: "…"}`,
		`secrets: HF_TOKEN: "hunter2"`: `: HF_TOKEN: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: {redis_address: "r:1", redis_password: "hunter2"}`: `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`env: REDIS_PASSWORD: "hunter2"`:                                         `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`head_ray_start_params: "redis-password": "hunter2"`:                     `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: redis_address: "redis://:hunter2@r:1"`:             `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		// As the operator has it, and misspelt.
		`gcs_fault_tolerance: {redis_address: "r:1", redis_password: {value: "hunter2"}}`:    `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: {redis_address: "r:1", redis_password: value: "hun" + "ter2"}`: `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: {redis_address: "r:1", redisPassword: {value: "hunter2"}}`:     `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: {redis_address: "r:1", redisPassword: "hunter2"}`:              `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: {redis_address: "r:1", redis_pasword: "hunter2"}`:              `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		`env: {REDIS_PASSWORD_FILE: "/run/redis", REDIS_PASS: "hunter2"}`:                    `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
		// Where there are no references.
		`labels: "a.example/password": "hunter2 !"`:                     `by kuberay: secrets: NAME: {name: "…", key: "…"}`,
		`serve_service: annotations: "a.example/api-key": "hunter2"`:    `by kuberay: secrets: NAME: {name: "…", key: "…"}`,
		`gcs_fault_tolerance: redis_address: "redis://ray:hunter2@r:1"`: `kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`,
	} {
		text := "name: \"a\"\nkuberay: {image: \"i:1\", " + field + "}\n" + `serve: instances: a: {engine: "vllm", model_path: "/m", num_gpus: 1}` + "\n"
		r := compileText(t, text)
		var shown strings.Builder
		if err := r.Diagnostics.Text(&shown, diag.TextOptions{Source: func(string) ([]byte, error) { return []byte(text), nil }, Hide: compiler.LooksSecret}); err != nil || strings.Contains(shown.String(), "hunter2") {
			t.Errorf("%s: %v\n%s", field, err, &shown)
		}
		if len(r.Diagnostics) != 1 || r.Diagnostics[0].Code != "GRM1008" || !strings.HasSuffix(r.Diagnostics[0].Remedy, want) || strings.Contains(fmt.Sprintf("%+v", r.Diagnostics), "hunter2") {
			t.Errorf("%s: %+v", field, r.Diagnostics)
		}
	}
}
