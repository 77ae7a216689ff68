package bind_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/rules"
	"genrm.dev/genrm/launchers"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/local"
)

// machine is a made-up one: GPU 900 is busy with this test, 901 is free, and
// every program is there. It returns its folder of programs, which is PATH.
func machine(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	smi := fmt.Sprintf("case \"$1\" in\n--query-gpu=*) printf '900, GPU-aaa\\n901, GPU-bbb\\n' ;;\n*) printf 'GPU-aaa, %d, 123 MiB\\n' ;;\nesac\n", os.Getpid())
	for name, text := range map[string]string{"vllm": "", "python3": "exit 0\n", "ray": "", "gym": "", "nvidia-smi": smi} {
		script(t, bin, name, text)
	}
	t.Setenv("PATH", bin)
	t.Setenv("CUDA_VISIBLE_DEVICES", "")
	t.Setenv("GENRM_PAGE_SET", "a secret")
	return bin
}

func script(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// check compiles an experiment and checks the machine, as launch does.
func check(t *testing.T, dir, src string, rehearse bool) diag.List {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cue")
	if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
		t.Fatal(err)
	}
	r := compiler.Compile([]string{path}, compiler.Options{Checks: launchers.Checkers()})
	if r.Diagnostics.HasErrors() || len(r.Plans) != 1 {
		t.Fatalf("%+v", r.Diagnostics)
	}
	_, found, err := local.Prepare(context.Background(), local.Options{Plan: r.Plans[0], Rehearse: rehearse, WorkDir: dir, Env: os.Environ()})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// The wrong example of each page about launching raises its code and nothing
// else, the right one nothing.
func TestLaunchPages(t *testing.T) {
	bin := machine(t)
	if l, err := net.Listen("tcp", "127.0.0.1:18437"); err == nil { // else somebody else has it, which is as well
		defer l.Close()
	}
	// Numbers that no run of this machine holds.
	elsewhere := strings.NewReplacer("gpus: [1]", "gpus: [901]", "gpus: [0]", "gpus: [900]", "gpus: [0, 1]", "gpus: [900, 901]")
	tested := 0
	for _, code := range rules.Codes() {
		page, _ := rules.Lookup(code)
		if !page.Launch || !strings.Contains(page.Wrong, `target: "local"`) { // the other targets' are theirs
			continue
		}
		tested++
		wrong := check(t, bin, elsewhere.Replace(page.Wrong), false)
		if len(wrong) != 1 || wrong[0].Code != code || wrong[0].Severity != diag.Error || !wrong[0].Pos.IsValid() || wrong[0].Path == "" || wrong[0].Remedy == "" {
			t.Errorf("%s: the wrong example raises %+v", code, wrong)
		}
		if right := check(t, bin, elsewhere.Replace(page.Right), false); len(right) > 0 {
			t.Errorf("%s: the right example raises %+v", code, right)
		}
	}
	if tested < 7 {
		t.Errorf("only %d pages", tested)
	}
}

func TestCheck(t *testing.T) {
	machine(t)
	dir := t.TempDir()
	for _, d := range []string{"models/judge-4b", "relax/relax/entrypoints", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"relax/relax/entrypoints/train.py", "key"} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	nosglang := t.TempDir()
	script(t, nosglang, "python3", `[ "$PYTHONPATH" = /mine ]`+"\n")
	vllm := func(more string) string {
		return `name: "x", target: "local", local: gpus: [901], serve: instances: a: {engine: "vllm", num_gpus: 1, ` + more + "}\n"
	}
	relax := func(more string) string {
		return `name: "x", target: "local", local: gpus: [901], relax: {colocate: true, resource: {actor: [1, 1], rollout: [1, 1]}, args: {hf_checkpoint: "a/b", advantage_estimator: "grpo"}, ` + more + "}\n"
	}
	for _, c := range []struct {
		name, src string
		rehearse  bool
		want      []string // CODE path: summary | remedy
	}{
		{"a path of the folder in which it is launched", vllm(`model_path: "./models/judge-4b"`), false, nil},
		{"a path with a slip", vllm(`model_path: "./models/judge-4B"`), false,
			[]string{"GRM8113 serve.instances.a.model_path: the model ./models/judge-4B does not exist on this machine | did you mean " + dir + "/models/judge-4b?"}},
		{"a path of which nothing is there", vllm(`model_path: "/nowhere/x"`), false,
			[]string{"GRM8113 serve.instances.a.model_path: the model /nowhere/x does not exist on this machine | write the path where it lies on this machine, or download it"}},
		{"everything at once, each once", `name: "x", target: "local", local: gpus: [901, 902]
			serve: instances: {
				a: {engine: "vllm", model_path: "/nowhere/x", num_gpus: 1, env: {PATH: "/nowhere", TOKEN: {env: "GENRM_PAGE_UNSET"}}}
				b: {engine: "openai", base_url: "https://far.example/v1", model: "m", api_key: file: "/nowhere/key", default_headers: "X-Key": env: "GENRM_PAGE_UNSET_2"}
			}
			serve: gateway: api_key: env: "GENRM_PAGE_UNSET"`, false,
			[]string{
				"GRM8111 serve.instances.a: vllm is not installed on this machine | install it: pip install vllm==0.29.0; or put the folder of its environment first in PATH",
				"GRM8113 serve.instances.a.model_path: the model /nowhere/x does not exist on this machine | write the path where it lies on this machine, or download it",
				"GRM8117 serve.instances.a.env.TOKEN: the variable GENRM_PAGE_UNSET holds a secret and is not set | set it: export GENRM_PAGE_UNSET=…",
				"GRM8117 serve.instances.b.api_key: the file /nowhere/key holds a secret: it does not exist | make it readable for you alone, or write another path",
				"GRM8117 serve.instances.b.default_headers.\"X-Key\": the variable GENRM_PAGE_UNSET_2 holds a secret and is not set | set it: export GENRM_PAGE_UNSET_2=…",
			}},
		{"python3 without sglang", strings.Replace(vllm(`model_path: "a/b", env: PATH: "`+nosglang+`"`), "vllm", "sglang", 1), false,
			[]string{"GRM8111 serve.instances.a: " + nosglang + `/python3 has no sglang | install it: pip install "sglang==0.5.15.post1"; or put the folder of its environment first in PATH`}},
		{"python3 with sglang on the PYTHONPATH of the instance", strings.Replace(vllm(`model_path: "a/b", env: {PATH: "`+nosglang+`", PYTHONPATH: "/mine"}`), "vllm", "sglang", 1), false, nil},
		{"a rehearsal needs none of it", vllm(`model_path: "/nowhere/x", env: {PATH: "/nowhere", T: {env: "GENRM_PAGE_UNSET"}}`), true, nil},
		{"a rehearsal needs the gateway's key", vllm(`model_path: "/nowhere/x"`) + `serve: gateway: api_key: env: "GENRM_PAGE_UNSET"`, true,
			[]string{"GRM8117 serve.gateway.api_key: the variable GENRM_PAGE_UNSET holds a secret and is not set | set it: export GENRM_PAGE_UNSET=…"}},
		{"a checkout of Relax", relax(`root: "` + dir + `/relax"`), false, nil},
		{"a folder that is none", relax(`root: "` + dir + `/empty"`), false,
			[]string{"GRM8112 relax.root: " + dir + "/empty/relax/entrypoints/train.py does not exist | set relax.root to the folder of the checkout, or entrypoint to the script"}},
		{"a folder with a slip", relax(`root: "` + dir + `/relx"`), false,
			[]string{"GRM8112 relax.root: the folder " + dir + "/relx does not exist | did you mean " + dir + "/relax?"}},
		{"a checkpoint", strings.Replace(relax(`root: "`+dir+`/relax"`), "a/b", dir+"/models/judge-4", 1), false,
			[]string{"GRM8113 relax.args.hf_checkpoint: the model " + dir + "/models/judge-4 does not exist on this machine | did you mean " + dir + "/models/judge-4b?"}},
		{"gym without gym and ray", `name: "x", target: "local"
			gym: {env: PATH: "/nowhere", config: judge: responses_api_models: openai_model: {entrypoint: "app.py", openai_base_url: "https://far.example/v1", openai_api_key: {env: "GENRM_PAGE_SET"}, openai_model: "m"}}`, false,
			[]string{
				`GRM8111 gym: gym is not installed on this machine | install it: pip install nemo-gym; or put the folder of its environment first in PATH`,
				`GRM8111 gym: ray is not installed on this machine | install it: pip install "ray[default]"; or put the folder of its environment first in PATH`,
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, d := range check(t, dir, c.src, c.rehearse) {
				got = append(got, fmt.Sprintf("%s %s: %s | %s", d.Code, d.Path, d.Summary, d.Remedy))
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// Who has a port is told with pid and command.
func TestPortTaken(t *testing.T) {
	bin := machine(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Skip(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	me := fmt.Sprintf("pid %d (%s", os.Getpid(), os.Args[0])
	if got := bind.PortUser(port); !strings.HasPrefix(got, me) {
		t.Errorf("port %d is used by %q, want %q", port, got, me)
	}
	found := check(t, bin, fmt.Sprintf(`name: "x", target: "local", serve: {instances: a: {engine: "sim", constant: "1"}, gateway: port: %d}`+"\n", port), false)
	if len(found) != 1 || found[0].Summary != fmt.Sprintf("port %d is taken", port) || !strings.HasPrefix(found[0].Detail, "Held by "+me) {
		t.Errorf("%+v", found)
	}
}
