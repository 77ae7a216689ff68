package compiler

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

func gymCompile(t *testing.T, src string) *experiment {
	t.Helper()
	return compileExperiment(cueText(t, src), "", "t", Options{})
}

// gymGot lists findings as "code line path", errors first by code.
func gymGot(e *experiment) []string {
	var got []string
	for _, d := range e.diags {
		got = append(got, fmt.Sprintf("%s:%d %s", d.Code, d.Pos.Line, d.Path))
	}
	slices.Sort(got)
	return got
}

const gymJudge = `gym: config: judge: responses_api_models: genrm_model: {
	entrypoint: "app.py", model: "/models/judge", return_token_id_information: false, uses_reasoning_parser: true
	vllm_serve_kwargs: {data_parallel_size: 1, tensor_parallel_size: 8, pipeline_parallel_size: 1}
	vllm_serve_env_vars: VLLM_RAY_DP_PACK_STRATEGY: "strict"
}
`

func TestGymFindings(t *testing.T) {
	t.Parallel()
	judge := func(oldnew ...string) string { return strings.NewReplacer(oldnew...).Replace(gymJudge) }
	const p = "gym.config.judge.responses_api_models.genrm_model"
	const kw = p + ".vllm_serve_kwargs"
	openai := `gym: config: o: responses_api_models: openai_model: {entrypoint: "app.py", openai_base_url: "u", openai_api_key: "EMPTY", openai_model: "m"}` + "\n"
	const om = "gym.config.o.responses_api_models.openai_model"
	for _, tc := range []struct {
		name, src string
		want      []string
	}{
		{"good", gymJudge, nil},
		{"unknown flag", gymJudge + "gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: tensor_paralel_size: 8", []string{"GRM3001:6 " + kw + ".tensor_paralel_size"}},
		{"flag of the other engine", gymJudge + "gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: mem_fraction_static: 0.9", []string{"GRM3001:6 " + kw + ".mem_fraction_static"}},
		{"wrong flag type", gymJudge + "gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: max_model_len: 1.5", []string{"GRM3002:6 " + kw + ".max_model_len"}},
		{"owned", gymJudge + "gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: {port: 1, model: \"x\"}", []string{"GRM3006:6 " + kw + ".model", "GRM3006:6 " + kw + ".port"}},
		{"alias and dashes", gymJudge + `gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: {sc: {}, "max-model-len": 1}`, []string{"GRM5011:6 " + kw + `."max-model-len"`, "GRM5011:6 " + kw + ".sc"}},
		{"text that vLLM would parse", gymJudge + `gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: {max_model_len: "4k", hf_overrides: "{}"}`, []string{"GRM5021:6 " + kw + ".hf_overrides", "GRM5021:6 " + kw + ".max_model_len"}},
		{"false of a plain switch", gymJudge + "gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: {enable_prefix_caching: false, aggregate_engine_logging: false}", nil},
		{"interpolated flag of a known name", gymJudge + "gym: config: {len: 1, judge: responses_api_models: genrm_model: vllm_serve_kwargs: {max_model_len: \"${len}\", max_modle_len: \"${len}\"}}", []string{"GRM3001:6 " + kw + ".max_modle_len"}},
		{"sizes missing, zero", `gym: config: judge: responses_api_models: genrm_model: {entrypoint: "app.py", model: "m", return_token_id_information: false, uses_reasoning_parser: true
	vllm_serve_kwargs: {data_parallel_size: 0, tensor_parallel_size: 1}, vllm_serve_env_vars: VLLM_RAY_DP_PACK_STRATEGY: "strict"}`,
			[]string{"GRM5010:2 " + kw, "GRM5010:2 " + kw + ".data_parallel_size"}},
		{"more GPUs than there are", judge("data_parallel_size: 1", "data_parallel_size: 60000", "tensor_parallel_size: 8", "tensor_parallel_size: 60000"), []string{"GRM5010:3 " + kw}},
		{"external endpoint needs no engine", `gym: config: judge: responses_api_models: genrm_model: {entrypoint: "app.py", model: "m", return_token_id_information: false, uses_reasoning_parser: true
	base_url: "http://x/v1", vllm_serve_kwargs: {}, vllm_serve_env_vars: {}}`, nil},
		{"missing fields, all at once", "gym: config: judge: responses_api_models: vllm_model: {}", []string{
			"GRM5004:1 gym.config.judge.responses_api_models.vllm_model", "GRM5004:1 gym.config.judge.responses_api_models.vllm_model", "GRM5004:1 gym.config.judge.responses_api_models.vllm_model",
			"GRM5004:1 gym.config.judge.responses_api_models.vllm_model", "GRM5004:1 gym.config.judge.responses_api_models.vllm_model", "GRM5004:1 gym.config.judge.responses_api_models.vllm_model"}},
		{"inherited block may lack fields", openai + `gym: config: p: responses_api_models: openai_model: {"_inherit_from": "o.responses_api_models.openai_model", openai_model: "n"}`, nil},
		{"inherits from nothing", openai + `gym: config: p: responses_api_models: openai_model: {"_inherit_from": "o.responses_api_models.opnai", openai_model: "n"}`, []string{`GRM5008:2 gym.config.p.responses_api_models.openai_model._inherit_from`}},
		{"agent without entrypoint", openai + "gym: config: a: responses_api_agents: simple_agent: {}", []string{"GRM5004:2 gym.config.a.responses_api_agents.simple_agent"}},
		{"domain", openai + `gym: config: {r: resources_servers: x: {entrypoint: "app.py"}, s: resources_servers: x: {entrypoint: "app.py", domain: "rlfh"}}`,
			[]string{"GRM5020:2 gym.config.r.resources_servers.x", "GRM5020:2 gym.config.s.resources_servers.x.domain"}},
		{"ports", openai + `gym: config: {o: responses_api_models: openai_model: port: 11000, a: responses_api_agents: x: {entrypoint: "app.py", port: 9000}
			b: responses_api_agents: x: {entrypoint: "app.py", port: "${p}"}, p: 9000
			c: responses_api_agents: x: {entrypoint: "app.py", port: 9000, host: "127.0.0.2"}}`,
			[]string{"GRM5005:2 " + om + ".port", "GRM5005:3 gym.config.b.responses_api_agents.x.port"}},
		{"references", openai + `gym: config: a: responses_api_agents: x: {entrypoint: "app.py"
			m: {type: "responses_api_models", name: "o"}, n: {type: "responses_api_models", name: "oo"}, deep: [{k: {type: "resources_servers", name: "o"}}]}`,
			[]string{"GRM5006:3 gym.config.a.responses_api_agents.x.deep[0].k.name", "GRM5006:3 gym.config.a.responses_api_agents.x.n.name"}},
		{"??? and overrides", openai + `gym: config: {x: "???", y: "???", l: ["???"]}` + "\ngym: overrides: x: 1", []string{"GRM5007:2 gym.config.l[0]", "GRM5007:2 gym.config.y"}},
		{"interpolations", openai + `gym: config: {a: b: [1, {c: 2}], ok: "${a.b[1].c} ${a.b.0} ${oc.env:X,${ok}} \\${no} ${.a} ${hf_token} ${now:%Y}"
			s: {k: 1, rel: "${.k} ${..a}", out: "${...a}"}
			bad: ["${nope}", "${a.c}", "${a.b[7]}", "${env:X}", "${open", "${}", "${oc.env:A,${nope2}}", "${inherit_from:nope3}"]}`,
			[]string{"GRM5008:3 gym.config.s.out", "GRM5008:4 gym.config.bad[0]", "GRM5008:4 gym.config.bad[1]", "GRM5008:4 gym.config.bad[2]", "GRM5008:4 gym.config.bad[6]", "GRM5008:4 gym.config.bad[7]",
				"GRM5009:4 gym.config.bad[3]", "GRM5009:4 gym.config.bad[4]", "GRM5009:4 gym.config.bad[5]"}},
		{"config_paths bring in the rest", `gym: config: {config_paths: ["m.yaml"], judge: responses_api_models: genrm_model: {model: "${x}", debug: "???"}}`, nil},
		{"misspelt", openai + "gym: config: {a: responses_api_model: x: {}, b: responses_api_models: vlm_model: {}, c: responses_api_models: vllm_model_v2: {entrypoint: \"app.py\"}}",
			[]string{"GRM5003:2 gym.config.a.responses_api_model", "GRM5003:2 gym.config.b.responses_api_models.vlm_model"}},
		{"two of each", openai + "gym: config: o: {responses_api_models: vllm_model: {}, responses_api_agents: a: {entrypoint: \"app.py\"}}",
			[]string{"GRM5001:2 gym.config.o.responses_api_agents", "GRM5002:2 gym.config.o.responses_api_models.vllm_model"}},
		{"nothing to start", "gym: config: {a: 1, b: c: 2}", []string{"GRM5023:1 gym.config"}},
		{"strict over two nodes", judge("tensor_parallel_size: 8", "tensor_parallel_size: 16") + "cluster: gpus_per_node: 8", []string{"GRM5014:4 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"span within a node", judge("strict", "span") + "cluster: gpus_per_node: 8", []string{"GRM5014:4 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"span over part of a node", judge("tensor_parallel_size: 8", "tensor_parallel_size: 12", "strict", "span") + "cluster: gpus_per_node: 8", []string{"GRM5014:4 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"span over two nodes", judge("tensor_parallel_size: 8", "tensor_parallel_size: 16", "strict", "span") + "cluster: {nodes: 2, gpus_per_node: 8}", nil},
		{"unknown strategy", judge("strict", "pack"), []string{"GRM5013:4 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"fill with DeepEP", judge("strict", "fill") + "gym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: all2all_backend: \"deepep_low_latency\"", []string{"GRM5013:4 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"interpolated size counts", "gym: config: tp: 16\n" + judge("tensor_parallel_size: 8", `tensor_parallel_size: "${tp}"`) + "cluster: gpus_per_node: 8", []string{"GRM5014:5 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"override counts", gymJudge + `gym: overrides: "judge.responses_api_models.genrm_model.vllm_serve_kwargs.tensor_parallel_size": 16` + "\ncluster: gpus_per_node: 8", []string{"GRM5014:4 " + p + ".vllm_serve_env_vars.VLLM_RAY_DP_PACK_STRATEGY"}},
		{"override of an unknown flag", gymJudge + `gym: overrides: "judge.responses_api_models.genrm_model.vllm_serve_kwargs.tp_sise": 16`, []string{`GRM3001:6 ` + kw + `.tp_sise`}},
		{"override of an unknown field", gymJudge + `gym: overrides: {"judge.responses_api_models.genrm_model.debugg": true, "judge.responses_api_models.genrm_model.debug": "x"
			"judge.responses_api_models.genrm_model.vllm_serve_env_vars.A": 1, "judge.responses_api_models.genrm_model.extra_body.x": 1}`,
			[]string{`GRM2003:7 gym.overrides."judge.responses_api_models.genrm_model.vllm_serve_env_vars.A"`, `GRM2004:6 gym.overrides."judge.responses_api_models.genrm_model.debug"`, `GRM5019:6 gym.overrides."judge.responses_api_models.genrm_model.debugg"`}},
		{"override below text", gymJudge + `gym: overrides: "judge.responses_api_models.genrm_model.entrypoint.x": 16`, []string{`GRM5019:6 gym.overrides."judge.responses_api_models.genrm_model.entrypoint.x"`}},
		{"too few nodes", judge("data_parallel_size: 1", "data_parallel_size: 3") + "cluster: {gpus_per_node: 8, nodes: 2}", []string{"GRM5015:6 cluster.nodes"}},
		{"heads", gymJudge + `models: "/models/judge": num_attention_heads: 28`, []string{"GRM7003:3 " + kw + ".tensor_parallel_size"}},
		{"unknown release", gymJudge + `gym: engine_version: "0.1.0"` + "\ngym: config: judge: responses_api_models: genrm_model: vllm_serve_kwargs: {x: 1, host: \"h\"}", []string{"GRM5022:6 gym.engine_version", "GRM5025:7 " + kw + ".host"}},
		{"exclusive fields", `gym: config: v: responses_api_models: vllm_model: {entrypoint: "app.py", base_url: "u", api_key: "EMPTY", model: "m", uses_reasoning_parser: true
			return_token_id_information: false, supply_prefix_token_ids: true, is_responses_native: true, use_completions_api: true, sequential_reasoning_allowed: false}`,
			[]string{"GRM5016:2 gym.config.v.responses_api_models.vllm_model.is_responses_native", "GRM5016:2 gym.config.v.responses_api_models.vllm_model.supply_prefix_token_ids",
				"GRM5016:2 gym.config.v.responses_api_models.vllm_model.supply_prefix_token_ids", "GRM5016:2 gym.config.v.responses_api_models.vllm_model.supply_prefix_token_ids"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if got := gymGot(gymCompile(t, tc.src)); !slices.Equal(got, tc.want) {
				t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(tc.want, "\n\t"))
			}
		})
	}
}

// A warning and not an error: 24 GPUs are there, but three replicas of 6 need a
// node each.
func TestGymPackingWarning(t *testing.T) {
	t.Parallel()
	e := gymCompile(t, `gym: config: {for n in ["a", "b"] {(n): responses_api_models: local_vllm_model: {
	entrypoint: "app.py", model: "/m", return_token_id_information: false, uses_reasoning_parser: true
	vllm_serve_kwargs: {data_parallel_size: 1, tensor_parallel_size: 5, pipeline_parallel_size: 1}
	vllm_serve_env_vars: VLLM_RAY_DP_PACK_STRATEGY: "strict"}}
	c: responses_api_models: local_vllm_model: {
	entrypoint: "app.py", model: "/m", return_token_id_information: false, uses_reasoning_parser: true
	vllm_serve_kwargs: {data_parallel_size: 1, tensor_parallel_size: 6, pipeline_parallel_size: 1}
	vllm_serve_env_vars: VLLM_RAY_DP_PACK_STRATEGY: "strict"}}
cluster: {nodes: 2, gpus_per_node: 8}`)
	if len(e.diags) != 1 || e.diags[0].Code != "GRM5015" || e.diags[0].Severity != diag.Warning || e.plan.Cluster.NodesNeeded != 3 {
		t.Errorf("%+v, %d nodes", e.diags, e.plan.Cluster.NodesNeeded)
	}
}

// Nothing is reported twice, and nothing at all about stand-ins.
func TestGymBad(t *testing.T) {
	t.Parallel()
	root := cueText(t, gymJudge+"gym: overrides: x: 1\ncluster: gpus_per_node: 8")
	var all []*tree.Value
	var collect func(*tree.Value)
	collect = func(v *tree.Value) {
		all = append(all, v)
		for _, f := range v.Fields {
			collect(f.Value)
		}
	}
	collect(root)
	for _, v := range all[1:] {
		saved := *v
		*v = tree.Value{Kind: tree.Bad, Pos: v.Pos, Path: v.Path}
		e := compileExperiment(root, "", "t", Options{})
		for _, d := range e.diags {
			// Where the servers themselves are faulty, there is none.
			if !(d.Code == "GRM5023" && strings.HasPrefix(v.Path, "gym.config")) {
				t.Errorf("%s faulty: %s %s", v.Path, d.Code, d.Summary)
			}
		}
		*v = saved
	}
}

func TestGymPlan(t *testing.T) {
	t.Parallel()
	e := gymCompile(t, strings.NewReplacer(`"/models/judge"`, `"judge"`, "data_parallel_size: 1", "data_parallel_size: 2", "tensor_parallel_size: 8", "tensor_parallel_size: 2",
		"pipeline_parallel_size: 1", "pipeline_parallel_size: 2").Replace(gymJudge)+`
gym: config: {
	policy: "http://x/v1"
	o: responses_api_models: openai_model: {entrypoint: "app.py", openai_base_url: "${policy}", openai_api_key: env: "KEY", openai_model: "m"}
}
gym: {root: "/opt/gym", env: {A: "{rank}", S: env: "SECRET"}
	overrides: {"a.b": true, c: 2.5, d: "it's \\", e: "8", f: "x/y", g: "\\'", h: "True", "judge.responses_api_models.genrm_model.debug": false}}
cluster: {gpus_per_node: 8, model_aliases: judge: "/models/judge"}`)
	if len(e.diags) > 0 {
		t.Fatal(e.diags)
	}
	j, _ := e.plan.Instances.Get("judge")
	o, _ := e.plan.Instances.Get("o")
	if j.Engine != "vllm" || j.EngineVersion != "0.24.0" || j.NumGPUs != 8 || j.NumGPUsPerEngine != 4 || j.Replicas != 2 || j.ModelPath != "/models/judge" || j.DataParallel != 2 {
		t.Errorf("judge: %+v", j)
	}
	if got := fmt.Sprint(j.Bundles, j.Placement); got != "[0 1 2 3 4 5 6 7] [{0 0 0 [0 1 2 3]} {1 0 0 [4 5 6 7]}]" {
		t.Errorf("judge on %s", got)
	}
	if o.Engine != "openai" || o.NumGPUs != 0 || o.Model != "m" {
		t.Errorf("o: %+v", o)
	}
	if e.plan.Cluster.NodesNeeded != 1 || e.plan.Cluster.Nodes != 1 {
		t.Errorf("cluster: %+v", e.plan.Cluster)
	}
	want := []plan.Arg{"gym", "env", "start", "--config", "{file:gym.yaml}", "++a.b=true", "++c=2.5", `++d='it\'s \\'`, "++e='8'", "++f=x/y", `++g='\\\''`, "++h='True'", "++judge.responses_api_models.genrm_model.debug=false"}
	if !slices.Equal(e.plan.Launch.Argv, want) {
		t.Errorf("argv\n\t%q\nwant\n\t%q", e.plan.Launch.Argv, want)
	}
	if env, _ := json.Marshal(e.plan.Launch.Env); string(env) != `{"A":"{brace}rank}","S":{"env":"SECRET"},"KEY":{"env":"KEY"}}` || e.plan.Launch.WorkDir != "/opt/gym" {
		t.Errorf("env %s, workdir %s", env, e.plan.Launch.WorkDir)
	}
	const text = `# Written by genrm from the experiment t: change that, not this.
judge:
  responses_api_models:
    genrm_model:
      entrypoint: app.py
      model: /models/judge
      return_token_id_information: false
      uses_reasoning_parser: true
      vllm_serve_kwargs:
        data_parallel_size: 2
        tensor_parallel_size: 2
        pipeline_parallel_size: 2
      vllm_serve_env_vars:
        VLLM_RAY_DP_PACK_STRATEGY: strict
policy: http://x/v1
o:
  responses_api_models:
    openai_model:
      entrypoint: app.py
      openai_base_url: ${policy}
      openai_api_key: ${oc.env:KEY}
      openai_model: m
`
	if got := e.plan.Artifacts[0].Text; got != text {
		t.Errorf("gym.yaml:\n%s", got)
	}
}

// What YAML readers of either version take for something else must come back
// as the text that it is.
func TestGymYAML(t *testing.T) {
	t.Parallel()
	hard := []string{"", " ", "yes", "No", "on", "y", "true", "NULL", "~", "null", "1", "1.5", "1e3", "0x1f", "0o7", "017", "1_000", "12:30:45", "2020-01-01", ".inf", "nan", "=", "<<", "-", "- a", "? a", "a: b", "a #b", "#a",
		"&a", "*a", "!a", "%a", "@a", "`a", "'a'", `"a"`, `\`, "a\nb", "a\tb", "\x00\x1b\x7f\u0085\u2028\ufeff", "héllo", "评分", "😀", "${a}", "${oc.env:A,b}", "a:", ":a", "[a]", "{a: 1}", "a, b", "|", ">", "---", "...", "a/b:c", "x@y", "+1", "._", "e+1"}
	obj := &tree.Value{Kind: tree.Struct}
	for _, s := range hard {
		obj.Fields = append(obj.Fields, tree.Field{Name: "k" + s, Value: tree.Text(s)}, tree.Field{Name: s, Value: tree.Text("v")})
	}
	list := &tree.Value{Kind: tree.List, Items: []*tree.Value{{Kind: tree.Null}, {Kind: tree.Bool, Text: "true"}, {Kind: tree.Struct}, {Kind: tree.List}, tree.Number("123456789012345678901234567890"), tree.Number("1e-6"), tree.Number("2.5E10"), tree.Number("-0.1"),
		{Kind: tree.List, Items: []*tree.Value{{Kind: tree.List, Items: []*tree.Value{tree.Integer(1)}}, {Kind: tree.Struct, Fields: []tree.Field{{Name: "a", Value: tree.Integer(1)}, {Name: "b", Value: tree.Integer(2)}}}}}}}
	obj.Fields = append(obj.Fields, tree.Field{Name: "zz list", Value: list})
	var b strings.Builder
	writeYAML(&b, obj, 0)
	var node yaml.Node
	if err := yaml.Unmarshal([]byte(b.String()), &node); err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	m := node.Content[0]
	for i, s := range hard {
		key, val, key2 := m.Content[4*i], m.Content[4*i+1], m.Content[4*i+2]
		if key.Value != "k"+s || val.Value != s || val.ShortTag() != "!!str" || key2.Value != s || key2.ShortTag() != "!!str" {
			t.Errorf("%q came back as %s %q: %s %q", s, key2.ShortTag(), key2.Value, val.ShortTag(), val.Value)
		}
	}
	var got []any
	if err := m.Content[4*len(hard)+1].Decode(&got); err != nil {
		t.Fatal(err)
	}
	want := []any{nil, true, map[string]any{}, []any{}, 123456789012345678901234567890., 1e-6, 2.5e10, -0.1, []any{[]any{1}, map[string]any{"a": 1, "b": 2}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestGymExamples(t *testing.T) {
	t.Parallel()
	dirs, err := filepath.Glob("../examples/gym-*")
	if err != nil || len(dirs) < 4 {
		t.Fatal(dirs, err)
	}
	for _, dir := range dirs {
		e := compileExperiment(cueDir(t, dir), "", filepath.Base(dir), Options{})
		for _, d := range e.diags {
			if d.Severity != diag.Note {
				t.Errorf("%s: %s %s %s", dir, d.Code, d.Path, d.Summary)
			}
		}
		out := os.Getenv("GYM_YAML_OUT")
		if out == "" {
			continue
		}
		if err := os.MkdirAll(filepath.Join(out, filepath.Base(dir)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, filepath.Base(dir), "gym.yaml"), []byte(e.plan.Artifacts[0].Text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Whatever a string holds, its interpolations are read without a panic and in
// time that grows with its length.
func FuzzGymInterpolation(f *testing.F) {
	for _, s := range []string{"${a}", "${", "${}", "${${a}.b}", "\\${a", "${oc.env:'}',\"x\"}", "${...}", "${a[0].b['c']}", "${:}", strings.Repeat("${", 1<<16), "${a:" + strings.Repeat("'", 1<<16)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v := tree.Text(s)
		root := &tree.Value{Kind: tree.Struct, Fields: []tree.Field{{Name: "a", Value: v}}}
		r := &gymRun{e: &experiment{plan: &plan.Plan{}}, eff: root}
		r.deferred()
		r.resolve(v)
		if got := hydraValue(v); strings.HasPrefix(got, "'") && !strings.HasSuffix(got, "'") {
			t.Errorf("%q is not closed", got)
		}
		var back string
		if text := yamlString(s); strings.ToValidUTF8(s, "") == s {
			if err := yaml.Unmarshal([]byte(text), &back); err != nil || back != s {
				t.Errorf("%q came back as %q: %v", s, back, err)
			}
		}
	})
}
