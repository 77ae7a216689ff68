package compiler

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// relaxCase is one command line and what Relax's own argument code and
// placement planner said of it. "genrm" is what genrm must say; where it
// refuses what Relax accepts, the verdict is "stricter".
type relaxCase struct {
	Case  string
	Argv  []string
	Relax struct {
		Accepts   bool
		Mode      plan.Mode
		Instances tree.Map[*tree.Value] `json:"genrm_instances"`
		Bundles   []struct {
			Role, Model, Pool string
			Start, Stop       int
		}
		Error string
	}
	Genrm   string
	Verdict string
}

func relaxCases(t *testing.T) []relaxCase {
	t.Helper()
	data, err := os.ReadFile("testdata/relax-cases.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []relaxCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

// fromArgv writes a train.py command line as an experiment, as its author would
// write it: flags with a field as fields, the others under args, unknown ones
// that Relax ignores under extra if asked for.
func fromArgv(t *testing.T, argv []string, extra ...string) *tree.Value {
	t.Helper()
	cat, ok := engines.Get("relax", "guide")
	if !ok {
		t.Fatal("no catalogue of Relax")
	}
	relax, args, extras := &tree.Value{Kind: tree.Struct}, &tree.Value{Kind: tree.Struct}, &tree.Value{Kind: tree.List}
	for i := 0; i < len(argv); {
		flag := argv[i]
		j := i + 1
		for j < len(argv) && !strings.HasPrefix(argv[j], "--") {
			j++
		}
		vals := argv[i+1 : j]
		i = j
		if slices.Contains(extra, flag) {
			for _, s := range append([]string{flag}, vals...) {
				extras.Items = append(extras.Items, tree.Text(s))
			}
			continue
		}
		name := engines.Key(flag)
		into := args
		if slices.Contains(relaxFields, name) {
			into = relax
		}
		f, _ := cat.Lookup(name)
		if f.NegativeOf != "" {
			set(args, f.NegativeOf, &tree.Value{Kind: tree.Bool, Text: "false"})
			continue
		}
		set(into, name, argValue(f, vals))
	}
	if len(args.Fields) > 0 {
		set(relax, "args", args)
	}
	if len(extras.Items) > 0 {
		set(relax, "extra_args", extras)
	}
	root := &tree.Value{Kind: tree.Struct}
	set(root, "name", tree.Text("case"))
	set(root, "relax", relax)
	return root
}

// set sets a member; of a repeated flag the last wins, as in argparse.
func set(v *tree.Value, name string, x *tree.Value) {
	for i := range v.Fields {
		if v.Fields[i].Name == name {
			v.Fields[i].Value = x
			return
		}
	}
	v.Fields = append(v.Fields, tree.Field{Name: name, Value: x})
}

func argValue(f engines.Flag, vals []string) *tree.Value {
	one := func(s string) *tree.Value {
		switch f.Type {
		case engines.Int, engines.Float:
			if _, err := strconv.ParseFloat(s, 64); err == nil {
				return tree.Number(s)
			}
		case engines.JSON:
			if v, err := tree.ParseJSON(s); err == nil {
				return v
			}
		}
		return tree.Text(s)
	}
	switch {
	case len(vals) == 0:
		return &tree.Value{Kind: tree.Bool, Text: "true"}
	case f.NArgs == "" && len(vals) == 1:
		return one(vals[0])
	}
	list := &tree.Value{Kind: tree.List}
	for _, s := range vals {
		list.Items = append(list.Items, one(s))
	}
	return list
}

// compileRelaxText compiles one file.
func compileRelaxText(t testing.TB, src string) *Result {
	t.Helper()
	file := filepath.Join(t.TempDir(), "case.cue")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return Compile([]string{file}, Options{})
}

// onlyPlan returns the plan of the one experiment, which must be accepted.
func onlyPlan(t testing.TB, r *Result) *plan.Plan {
	t.Helper()
	if len(r.Plans) != 1 || r.Diagnostics.HasErrors() {
		t.Fatalf("%d plans:%s", len(r.Plans), describe(r.Diagnostics))
	}
	return r.Plans[0]
}

// The text of a refused layout must hold for the line of Relax that is stated.
func TestRefusedLayoutNamesTheLinesRule(t *testing.T) {
	for version, want := range map[string]string{"guide": "R + G = A", "inference-defer": "R + G ≤ A"} {
		diags := compileRelaxText(t, `name: "x", relax: {colocate: true, relax_version: "`+version+`"
			resource: {actor: [1, 8], rollout: [1, 6], genrm: [1, 4]}
			genrm_instances: a: {model_path: "/m", num_gpus: 4}, custom_rm_path: "a.b"}`).Diagnostics
		if len(diags) != 1 || diags[0].Code != "GRM4008" || !strings.Contains(diags[0].Detail, want) {
			t.Errorf("%s: want %q in%s", version, want, describe(diags))
		}
	}
}

// A check that could not be made is said: dapo-genrm's exact verdict needs a
// judge that does not think first.
func TestUnknownReasoningIsSaid(t *testing.T) {
	for rest, want := range map[string]bool{
		"":                               true,
		`models: "/m": reasoning: false`: false,
		`relax: genrm_sampling_config: chat_template_kwargs: enable_thinking: false`: false,
	} {
		res := compileRelaxText(t, `name: "x"
relax: {colocate: true, resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
	genrm_model_path: "/m", rm_type: "dapo-genrm", reward_key: "score"}
`+rest)
		if len(res.Plans) != 1 {
			t.Fatal(describe(res.Diagnostics))
		}
		said := slices.ContainsFunc(res.Plans[0].Facts, func(f plan.Fact) bool {
			return f.Path == "relax.genrm_model_path" && strings.Contains(f.Text, "without thinking first")
		})
		if said != want {
			t.Errorf("%q: said %v, want %v", rest, said, want)
		}
	}
}

func describe(l diag.List) string {
	var b strings.Builder
	for _, d := range l.Sorted() {
		fmt.Fprintf(&b, "\n  %s %s %s: %s | %s | %s", d.Severity, d.Code, d.Path, d.Summary, d.Detail, d.Remedy)
	}
	return b.String()
}

// TestRelaxCases compares with what Relax itself said: verdict, mode, judges
// with their fall-backs, and bundles.
func TestRelaxCases(t *testing.T) {
	for _, c := range relaxCases(t) {
		t.Run(c.Case, func(t *testing.T) {
			r := compileRelaxText(t, fromArgv(t, c.Argv, "--use-gated-attention").JSON())
			if got := r.Diagnostics.HasErrors(); got != (c.Genrm == "refuse") {
				t.Fatalf("refused: %v, want %s; Relax: %s%s", got, c.Genrm, c.Relax.Error, describe(r.Diagnostics))
			}
			if c.Genrm != "accept" {
				return
			}
			p := onlyPlan(t, r)
			if p.Mode != c.Relax.Mode {
				t.Errorf("mode %s (%s), want %s", p.Mode, p.ModeReason, c.Relax.Mode)
			}
			var keys, want []string
			for _, i := range p.Instances {
				keys = append(keys, i.Key)
			}
			for _, i := range c.Relax.Instances {
				want = append(want, i.Key)
			}
			if !slices.Equal(keys, want) {
				t.Fatalf("judges %v, want %v in that order", keys, want)
			}
			for _, w := range c.Relax.Instances {
				i, _ := p.Instances.Get(w.Key)
				got := fmt.Sprintf(`{"model_path":%q,"num_gpus":%d,"num_gpus_per_engine":%d,"engine_config":%s,"sampling_config":%s}`,
					i.ModelPath, i.NumGPUs, i.NumGPUsPerEngine, i.EngineConfig.JSON(), i.SamplingConfig.JSON())
				if got != w.Value.JSON() {
					t.Errorf("judge %s:\n got %s\nwant %s", w.Key, got, w.Value.JSON())
				}
			}
			for _, b := range c.Relax.Bundles {
				bundles := bundleRange(b.Start, b.Stop)
				role, _ := p.Roles.Get(b.Role)
				if role.Pool != b.Pool {
					t.Errorf("%s: pool %s, want %s", b.Role, role.Pool, b.Pool)
				}
				got := role.Bundles
				if b.Role == "genrm" {
					i, _ := p.Instances.Get(b.Model)
					got = i.Bundles
				}
				if !slices.Equal(got, bundles) {
					t.Errorf("%s/%s: bundles %v, want %v", b.Role, b.Model, got, bundles)
				}
			}
		})
	}
}

// flagWords groups a command line by flag; of a repeated flag the last wins, as in
// argparse. Numbers compare by value and JSON by content and key order.
func flagWords(t *testing.T, argv []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for i := 0; i < len(argv); {
		j := i + 1
		for j < len(argv) && !strings.HasPrefix(argv[j], "--") {
			j++
		}
		var vals []string
		for _, s := range argv[i+1 : j] {
			if f, err := strconv.ParseFloat(s, 64); err == nil {
				s = strconv.FormatFloat(f, 'g', -1, 64)
			} else if v, err := tree.ParseJSON(s); err == nil {
				s = v.JSON()
			}
			vals = append(vals, s)
		}
		out[argv[i]] = strings.Join(vals, "\x00")
		i = j
	}
	return out
}

// TestRelaxScripts compares examples with what Relax's published scripts submit:
// command, environment, and every flag and value.
func TestRelaxScripts(t *testing.T) {
	data, err := os.ReadFile("testdata/relax-scripts.json")
	if err != nil {
		t.Fatal(err)
	}
	var scripts map[string]struct{ Submit, Cmd, Argv []string }
	if err := json.Unmarshal(data, &scripts); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		script, dir string
		mode        plan.Mode
	}{
		{"run-qwen3-4B-8xgpu-colocated", "relax-colocated", plan.CoResident},
		{"run-qwen3-4B-8xgpu-async", "relax-async", plan.FullyAsync},
		{"run-qwen35-35B-A3B-16xgpu-genrm-397B-split", "relax-397b-split", plan.Split},
		{"run-qwen35-35B-A3B-16xgpu-genrm-397B-defer", "relax-397b-defer", plan.DeferSwap},
	} {
		t.Run(c.script, func(t *testing.T) {
			s, ok := scripts[c.script]
			if !ok {
				t.Fatal("no such script")
			}
			p := onlyPlan(t, Compile([]string{"../examples/" + c.dir}, Options{}))
			if p.Mode != c.mode {
				t.Errorf("mode %s, want %s", p.Mode, c.mode)
			}
			var argv []string
			for _, a := range p.Launch.Argv {
				text, err := a.Bind(func(p plan.Placeholder) (string, error) { return "", fmt.Errorf("unexpected %v", p) })
				if err != nil {
					t.Fatal(err)
				}
				argv = append(argv, text)
			}
			n := len(s.Cmd)
			if len(argv) < n || !slices.Equal(argv[:n], s.Cmd) {
				t.Fatalf("command %v, want %v", argv[:min(n, len(argv))], s.Cmd)
			}
			got, want := flagWords(t, argv[n:]), flagWords(t, s.Argv)
			for _, cosmetic := range []string{"--tb-experiment-name"} {
				delete(got, cosmetic)
				delete(want, cosmetic)
			}
			for f, v := range want {
				if w, ok := got[f]; !ok {
					t.Errorf("%s is missing", f)
				} else if w != v {
					t.Errorf("%s: %q, want %q", f, w, v)
				}
			}
			for f := range got {
				if _, ok := want[f]; !ok {
					t.Errorf("%s is no flag of the script", f)
				}
			}
			var runtime struct {
				Env map[string]string `json:"env_vars"`
			}
			for _, o := range s.Submit {
				if text, ok := strings.CutPrefix(o, "--runtime-env-json="); ok {
					if err := json.Unmarshal([]byte(text), &runtime); err != nil {
						t.Fatal(err)
					}
				}
			}
			for name, v := range runtime.Env {
				if x, _ := p.Launch.Env.Get(name); string(x.Text) != v {
					t.Errorf("env %s=%q, want %q", name, x.Text, v)
				}
			}
		})
	}
}

// TestRelaxExamples compiles every example of a Relax run: none has an error, and
// no warning but those that are stated.
func TestRelaxExamples(t *testing.T) {
	for _, c := range []struct {
		dir  string
		mode plan.Mode
		n    int    // experiments
		warn string // the code that its warnings have
	}{
		{"relax-dual-judge", plan.Split, 1, ""},
		{"relax-split", plan.Split, 1, ""},
		{"relax-colocated", plan.CoResident, 1, ""},
		{"relax-async", plan.FullyAsync, 1, ""},
		// The published scripts set disable_cuda_graph, which SGLang calls deprecated.
		{"relax-397b-split", plan.Split, 1, "GRM3005"},
		{"relax-397b-defer", plan.DeferSwap, 1, "GRM3005"},
		{"relax-agentic", plan.Split, 1, ""},
		{"sweep", plan.Split, 6, ""},
		{"site/nightly", plan.Split, 1, ""},
		{"site/weekly", plan.Split, 1, ""},
	} {
		t.Run(c.dir, func(t *testing.T) {
			r := Compile([]string{"../examples/" + c.dir}, Options{})
			if len(r.Plans) != c.n || len(r.Refused) > 0 {
				t.Errorf("%d plans, want %d; refused: %v", len(r.Plans), c.n, r.Refused)
			}
			for _, d := range r.Diagnostics {
				if d.Severity != diag.Note && (d.Severity != diag.Warning || d.Code != c.warn) {
					t.Errorf("%s", describe(diag.List{d}))
				}
			}
			for _, p := range r.Plans {
				if p.Mode != c.mode {
					t.Errorf("mode %s (%s), want %s", p.Mode, p.ModeReason, c.mode)
				}
				if len(p.Instances) == 0 || len(p.Launch.Argv) < 5 {
					t.Errorf("the plan has no judge or no command: %v", p.Launch.Argv)
				}
				if _, err := p.JSON(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestRelaxFindings wants exactly these findings, each "severity code path", of
// experiments with several mistakes at once, or none.
func TestRelaxFindings(t *testing.T) {
	const dual = `genrm_instances: {
		quality: {model_path: "/q", num_gpus: 2, num_gpus_per_engine: 2}
		safety: {model_path: "/s", num_gpus: 2, num_gpus_per_engine: 2}
	}
	`
	const custom = `custom_rm_path: "a.b", reward_key: "score"
	`
	for _, c := range []struct {
		name, relax, rest string
		want              []string
	}{
		{name: "many mistakes at once", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [2, 1], genrm: [1, 5]}
			genrm_instances: {
				quality: {model_path: "/q", num_gpus: 3, num_gpus_per_engine: 2, sampling_config: temperature: 0.9}
				safety: {model_path: "judge-larg", num_gpus: 1, engine_config: {port: 1, context_length: 32}, sampling_config: max_response_len: 32}
			}
			rm_type: "dapo-genrm"
			args: {rm_typ: "x", colocate: true}`,
			rest: `cluster: model_aliases: "judge-large": "/m"`,
			want: []string{
				"error GRM4007 relax.resource.rollout[0]",
				"error GRM4006 relax.resource.genrm",
				"error GRM4008 relax.resource",
				"error GRM4020 relax.rm_type",
				"error GRM7011 relax.genrm_instances.quality.num_gpus",
				"note GRM4505 relax.genrm_instances.quality.sampling_config.temperature",
				"error GRM7010 relax.genrm_instances.safety.model_path",
				"error GRM3006 relax.genrm_instances.safety.engine_config.port",
				"error GRM4501 relax.genrm_instances.safety.sampling_config.max_response_len",
				"error GRM4026 relax.args.colocate",
				"error GRM3001 relax.args.rm_typ",
			}},
		{name: "a wrong sum is not also a wrong layout", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 3]}
			` + dual + custom, want: []string{"error GRM4006 relax.resource.genrm"}},
		{name: "a wrong flag is not also a wrong layout", relax: `colocate: true, rollout_num_gpus: 3
			resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
			` + dual + custom, want: []string{"error GRM4010 relax.rollout_num_gpus"}},
		{name: "the newer line takes fewer GPUs", relax: `colocate: true, relax_version: "inference-defer"
			resource: {actor: [1, 8], rollout: [1, 3], genrm: [1, 4]}
			args: inference_defer_roles: ["genrm"]
			` + dual + custom},
		{name: "the documented line does not know its flag", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
			args: inference_defer_roles: ["genrm"]
			` + dual + custom, want: []string{"error GRM3001 relax.args.inference_defer_roles"}},
		{name: "a line that is not stated", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1, 8], genrm: [1, 8]}
			genrm_model_path: "/m", genrm_engine_config: mem_fraction_static: 0.4
			sglang_mem_fraction_static: 0.55
			rm_type: "dapo-genrm", reward_key: "score"`, want: []string{
			"warning GRM4027 relax.resource",
			"warning GRM4013 relax.genrm_engine_config.mem_fraction_static",
		}},
		{name: "fractions that fill the GPU", relax: `colocate: true, relax_version: "guide"
			resource: {actor: [1, 8], rollout: [1, 8], genrm: [1, 8]}
			genrm_model_path: "/m", genrm_engine_config: mem_fraction_static: 0.5
			sglang_mem_fraction_static: 0.5
			rm_type: "dapo-genrm", reward_key: "score"`, want: []string{
			"error GRM4013 relax.genrm_engine_config.mem_fraction_static",
		}},
		{name: "a common engine_config without a fraction is one mistake", relax: `colocate: true, relax_version: "guide"
			resource: {actor: [1, 4], rollout: [1, 4], genrm: [1, 4]}
			genrm_engine_config: {}
			sglang_mem_fraction_static: 0.5
			` + dual + custom, want: []string{"error GRM4012 relax.genrm_engine_config"}},
		{name: "the rollout's fraction in a file", relax: `colocate: true, relax_version: "guide"
			resource: {actor: [1, 4], rollout: [1, 4], genrm: [1, 4]}
			genrm_engine_config: mem_fraction_static: 0.3
			sglang_config: "/c.yaml"
			` + dual + custom},
		{name: "deferred with every part wrong", relax: `colocate: true, defer_reward_to_post_process: true
			resource: {actor: [1, 8], rollout: [1, 8], genrm: [1, 8]}
			genrm_model_path: "/m"
			rm_type: "dapo-genrm"
			` + custom, want: []string{
			"error GRM4015 relax.defer_reward_to_post_process",
			"error GRM4015 relax.rm_type",
			"error GRM4015 relax.custom_rm_path",
			"warning GRM4024 relax.rm_type",
		}},
		{name: "deferred without a judge", relax: `defer_reward_to_post_process: true`,
			want: []string{"error GRM4016 relax.defer_reward_to_post_process"}},
		{name: "nothing but a judge", relax: `genrm_model_path: "/m"`, want: []string{
			"error GRM4005 relax",
			"warning GRM4023 relax.genrm_model_path",
		}},
		{name: "GPUs without a judge", relax: `resource: {actor: [1, 8], rollout: [1, 8], genrm: [1, 8]}`,
			want: []string{"error GRM4004 relax.resource.genrm"}},
		{name: "no GenRM is fine", relax: `colocate: true, resource: {actor: [1, 8], rollout: [1, 8]}, rm_type: "math"`},
		{name: "a critic shares the split", relax: `colocate: true
			resource: {actor: [1, 4], critic: [1, 4], rollout: [1, 4], genrm: [1, 4]}
			args: advantage_estimator: "ppo"
			` + dual + custom},
		{name: "an actor of no whole nodes is rounded down", relax: `colocate: true
			resource: {actor: [1, 12], rollout: [1, 4], genrm: [1, 4]}
			` + dual + custom, want: []string{"warning GRM4028 relax.resource.actor"}},
		{name: "what does not fit the rounded actor", relax: `colocate: true
			resource: {actor: [1, 12], rollout: [1, 8], genrm: [1, 4]}
			` + dual + custom, want: []string{"warning GRM4028 relax.resource.actor", "error GRM4008 relax.resource"}},
		{name: "actor flags beyond any cluster", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
			args: {actor_num_nodes: 9223372036854775807, actor_num_gpus_per_node: 9223372036854775807}
			` + dual + custom, want: []string{"error GRM4029 relax.args.actor_num_nodes"}},
		{name: "more GPUs than any cluster", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1000000, 1000000], genrm: [1, 9223372036854775807]}
			genrm_instances: only: {model_path: "/m", num_gpus: 1000000000}
			` + custom, want: []string{"error GRM7006 relax.resource.rollout", "error GRM7006 relax.resource.genrm", "error GRM7006 relax.genrm_instances.only.num_gpus"}},
		{name: "a role that is no pair of numbers", relax: `colocate: true
			resource: {actor: [1, "8"], rollout: [1], genrm: [1, 4]}
			` + dual + custom, want: []string{"error GRM2003 relax.resource.actor[1]", "error GRM2004 relax.resource.rollout"}},
		{name: "actor flags size the actor", relax: `colocate: true
			resource: {actor: [1, 12], rollout: [1, 8], genrm: [1, 4]}
			args: {actor_num_nodes: 3, actor_num_gpus_per_node: 4}
			` + dual + custom},
		{name: "one judge of a set answers dapo-genrm", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
			genrm_instances: only: {model_path: "/m", num_gpus: 4}
			rm_type: "dapo-genrm", reward_key: "score"`},
		{name: "ranks and heads", relax: `colocate: true
			resource: {actor: [1, 16], rollout: [1, 4], genrm: [1, 12]}
			genrm_engine_config: {dp_size: 2, pp_size: 2}
			genrm_instances: {
				a: {model_path: "/a", num_gpus: 4, num_gpus_per_engine: 2}
				b: {model_path: "/b", num_gpus: 8, num_gpus_per_engine: 8, engine_config: {dp_size: 3, enable_dp_attention: true}}
			}
			` + custom, rest: `models: "/a": num_attention_heads: 7`, want: []string{
			"warning GRM4032 relax.genrm_engine_config.dp_size",
			"warning GRM4032 relax.genrm_engine_config.pp_size",
			"error GRM7003 relax.genrm_instances.a.num_gpus_per_engine",
			"error GRM7001 relax.genrm_instances.b.engine_config.dp_size",
		}},
		{name: "an extra flag that has a field", relax: `colocate: true
			resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
			extra_args: ["--reward-key", "acc"]
			` + dual + custom, want: []string{"error GRM3006 relax.extra_args[0]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			diags := compileRelaxText(t, "name: \"x\"\nrelax: {\n"+c.relax+"\n}\n"+c.rest).Diagnostics
			var got []string
			for _, d := range diags {
				got = append(got, fmt.Sprintf("%s %s %s", d.Severity, d.Code, d.Path))
				if d.Summary == "" || strings.HasSuffix(d.Summary, ".") || d.Remedy == "" || d.Pos.Line == 0 {
					t.Errorf("%s: no summary, remedy or position, or a final stop: %+v", d.Code, d)
				}
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q%s", got, c.want, describe(diags))
			}
		})
	}
}

// TestRelaxCommand wants the command and environment of one experiment, word by
// word.
func TestRelaxCommand(t *testing.T) {
	r := compileRelaxText(t, `name: "x"
relax: {
	entrypoint: module: "relax.entrypoints.train"
	root: "/src/Relax", megatron_path: "/src/Megatron"
	fully_async: false
	colocate: true
	genrm_instances: {
		"b.q": {model_path: "large", num_gpus: 2, num_gpus_per_engine: 2, engine_config: null}
		a: {model_path: "/a/{rank}", num_gpus: 2, sampling_config: {}}
	}
	genrm_model_path: "/ignored"
	genrm_engine_config: context_length: 4096
	genrm_sampling_config: max_response_len: 32
	resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
	custom_rm_path: "a.b"
	args: {lr: 0.5, eval_prompt_data: ["x", "y z"], use_kl_loss: true, use_tis: false, enable_affinity: false}
	extra_args: ["--fork", "v"]
	env: {OMP_NUM_THREADS: "8", TOKEN: {env: "HF_TOKEN"}, KEY: {file: "/k"}, BRACE: "{rank}"}
}
cluster: model_aliases: large: "/models/large"`)
	p := onlyPlan(t, r)
	want := []plan.Arg{"python3", "-m", "relax.entrypoints.train", "--colocate",
		"--genrm-instances", `{"b.q":{"model_path":"/models/large","num_gpus":2,"num_gpus_per_engine":2,"engine_config":null},"a":{"model_path":"/a/{brace}rank}","num_gpus":2,"sampling_config":{}}}`,
		"--genrm-engine-config", `{"context_length":4096}`, "--genrm-sampling-config", `{"max_response_len":32}`,
		"--resource", `{"actor":[1,8],"rollout":[1,4],"genrm":[1,4]}`, "--custom-rm-path", "a.b",
		"--lr", "0.5", "--eval-prompt-data", "x", "y z", "--use-kl-loss", "--no-enable-affinity", "--fork", "v"}
	if got := p.Launch.Argv; !slices.Equal(got, want) {
		t.Errorf("argv\n got %q\nwant %q", got, want)
	}
	if p.Launch.WorkDir != "/src/Relax" {
		t.Errorf("workdir %q", p.Launch.WorkDir)
	}
	for name, want := range map[string]plan.EnvValue{
		"PYTHONPATH":                  {Text: "/src/Relax:/src/Megatron"},
		"OMP_NUM_THREADS":             {Text: "8"},
		"CUDA_DEVICE_MAX_CONNECTIONS": {Text: "1"},
		"SGLANG_HEALTH_CHECK_TIMEOUT": {Text: "180"},
		"TOKEN":                       {SecretEnv: "HF_TOKEN"},
		"KEY":                         {SecretFile: "/k"},
		"BRACE":                       {Text: "{brace}rank}"},
	} {
		if got, _ := p.Launch.Env.Get(name); got != want {
			t.Errorf("env %s: %+v, want %+v", name, got, want)
		}
	}
	// {} and null block the common configuration; absence does not.
	for key, want := range map[string][2]string{
		"b.q": {`{}`, `{"max_response_len":32}`},
		"a":   {`{"context_length":4096}`, `{}`},
	} {
		i, _ := p.Instances.Get(key)
		if got := [2]string{i.EngineConfig.JSON(), i.SamplingConfig.JSON()}; got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
	if !slices.ContainsFunc(r.Diagnostics, func(d diag.Diagnostic) bool { return d.Code == "GRM4003" }) {
		t.Errorf("genrm_model_path was ignored without a warning")
	}
}

// BenchmarkRelax compiles the largest example from its file.
func BenchmarkRelax(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		onlyPlan(b, Compile([]string{"../examples/relax-397b-defer"}, Options{}))
	}
}
