package compiler

import (
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// TestBooleanFlags: both values of a switch, on both engines, and what an
// argparse parser would make of them.
func TestBooleanFlags(t *testing.T) {
	for _, c := range []struct{ name, engine, config, want string }{
		{"vllm", "vllm", `{enforce_eager: false, enable_prefix_caching: false, enable_chunked_prefill: true, trust_remote_code: true, gpu_memory_utilization: 0.9}`,
			"--no-enforce-eager --no-enable-prefix-caching --enable-chunked-prefill --trust-remote-code --gpu-memory-utilization=0.9"},
		{"sglang", "sglang", `{disable_cuda_graph_padding: false, disable_radix_cache: true, trust_remote_code: true, mem_fraction_static: 0.9}`,
			"--disable-radix-cache --trust-remote-code --mem-fraction-static=0.9"},
		{"sglang pair", "sglang", `{lora_strict_loading: false}`, "--no-lora-strict-loading"},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv, found := flagsOf(t, c.engine, equals, c.config, `[]`)
			if got := strings.Join(argv, " "); got != c.want || found != nil {
				t.Errorf("got %s %v, want %s", got, found, c.want)
			}
			if slices.Contains(argv, "true") || slices.Contains(argv, "false") {
				t.Errorf("a boolean as a word: %q", argv)
			}
		})
	}
}

// flagsOf runs checkFlags on a block of its own.
func flagsOf(t *testing.T, engine string, style argvStyle, config, extra string) (argv []string, found []string) {
	t.Helper()
	root := cueText(t, "config: "+config+"\nextra: "+extra)
	e := &experiment{root: root, plan: &plan.Plan{}}
	r := flagRules{cat: engines.Latest(engine), others: otherCatalogues("vllm", "sglang"), style: style,
		owned: map[string]string{"port": "genrm sets it", "tensor_parallel_size": "genrm derives it", "tp_size": "genrm derives it"}, skip: map[string]bool{"max_context_len": true}}
	args := e.checkFlags(r, root.Field("config"), root.Field("extra"))
	for _, d := range e.diags.Sorted() {
		found = append(found, d.Code+" "+d.Summary)
		if !d.Pos.IsValid() || d.Path == "" {
			t.Errorf("no place: %+v", d)
		}
	}
	return strs(args), found
}

func TestFlagFindings(t *testing.T) {
	none := []string{}
	for _, c := range []struct {
		name, engine, config, extra string
		argv                        string
		found                       []string
	}{
		{"unknown", "vllm", `{enable_prefix_cachin: true}`, `[]`, "", []string{"GRM3001 enable_prefix_cachin is no flag of vLLM 0.29.0"}},
		{"of the other engine", "vllm", `{disable_radix_cache: true}`, `[]`, "", []string{"GRM3001 disable_radix_cache is no flag of vLLM 0.29.0"}},
		{"wrong type", "vllm", `{max_num_seqs: "many", dtype: "fp16"}`, `[]`, "", []string{
			`GRM3002 max_num_seqs is "many", but --max-num-seqs of vLLM 0.29.0 takes an integer, or null`, `GRM3002 dtype is "fp16", but --dtype of vLLM 0.29.0 takes one of: auto, bfloat16, float, float16, float32, half`}},
		{"null is no advice in args, where the schema refuses it", "relax", `{global_batch_size: "many"}`, `[]`, "", []string{`GRM3002 global_batch_size is "many", but --global-batch-size of Relax's train.py takes an integer`}},
		{"null for what may be absent", "vllm", `{revision: null}`, `[]`, "", none},
		{"null", "vllm", `{dtype: null}`, `[]`, "", []string{"GRM3002 dtype is null, but --dtype of vLLM 0.29.0 takes one of: auto, bfloat16, float, float16, float32, half"}},
		{"quoted JSON", "vllm", `{hf_overrides: "'{\"architectures\":[\"A\"]}'"}`, `[]`, "", []string{"GRM3011 --hf-overrides is not a JSON object: it begins with a quote character"}},
		{"quoted JSON in a text flag", "sglang", `{json_model_override_args: "'{}'"}`, `[]`, "", []string{"GRM3011 --json-model-override-args is not a JSON object or list: it begins with a quote character"}},
		{"duplicate key", "vllm", `{hf_overrides: "{\"a\":1,\"a\":2}"}`, `[]`, "", []string{`GRM3011 --hf-overrides has a duplicate key "a"`}},
		{"JSON text and struct give the same", "vllm", `{hf_overrides: "{ \"b\": 1.50, \"a\": \"<\" }", speculative_config: {method: "m", num_speculative_tokens: 2}}`, `[]`,
			`--hf-overrides={"b":1.50,"a":"<"} --speculative-config={"method":"m","num_speculative_tokens":2}`, none},
		{"alias", "sglang", `{pipeline_parallel_size: 2}`, `[]`, "--pp-size=2", []string{"GRM3004 pipeline_parallel_size is another spelling of pp_size"}},
		{"alias of an owned flag", "sglang", `{tensor_parallel_size: 2}`, `[]`, "", []string{"GRM3006 tensor_parallel_size is not yours to set: genrm derives it"}},
		{"negative", "vllm", `{no_enable_prefix_caching: true}`, `[]`, "", []string{"GRM3004 no_enable_prefix_caching is the negative form of enable_prefix_caching"}},
		{"twice", "sglang", `{pp_size: 1, pipeline_parallel_size: 2}`, `[]`, "--pp-size=1", []string{"GRM3007 --pp-size is set twice"}},
		{"no way to say false", "sglang", `{enable_multimodal: false}`, `[]`, "", []string{"GRM3003 enable_multimodal: false cannot be written on the command line"}},
		{"deprecated", "sglang", `{cuda_graph_max_bs: 8}`, `[]`, "--cuda-graph-max-bs=8", []string{"GRM3005 cuda_graph_max_bs is deprecated"}},
		{"owned", "vllm", `{port: 1}`, `["--tensor-parallel-size=2", "-tp", "2", "--tensor_parallel_size", "2", "--tensor-par=3"]`, "--tensor-parallel-size=2 -tp 2 --tensor_parallel_size 2 --tensor-par=3", []string{
			"GRM3006 port is not yours to set: genrm sets it", "GRM3006 --tensor-parallel-size is not yours to set: genrm derives it", "GRM3006 -tp is not yours to set: genrm derives it",
			"GRM3006 --tensor_parallel_size is not yours to set: genrm derives it", "GRM3006 --tensor-par is not yours to set: genrm derives it"}},
		{"a blank in extra_args", "vllm", `{}`, `["--foo 6379", "--bar=a b", "-1", "c d"]`, "--foo 6379 --bar=a b -1 c d", []string{"GRM3008 an element of extra_args holds a flag and its value with a blank between"}},
		{"repeated", "vllm", `{enable_prefix_caching: true, hf_overrides: a: 1}`, `["--no-enable-prefix-caching", "--hf_overrides.b=2", "--patched", "--patched"]`,
			`--enable-prefix-caching --hf-overrides={"a":1} --no-enable-prefix-caching --hf_overrides.b=2 --patched --patched`,
			[]string{"GRM3007 --enable-prefix-caching is set twice", "GRM3007 --hf-overrides is set twice", "GRM3007 --patched is set twice"}},
		{"known in extra_args", "vllm", `{}`, `["--enforce-eager"]`, "--enforce-eager", []string{"GRM3010 --enforce-eager is a known flag of vLLM 0.29.0"}},
		{"lists", "vllm", `{cudagraph_capture_sizes: [1], allowed_origins: ["*"], numa_bind_nodes: [0, 1]}`, `[]`, `--cudagraph-capture-sizes=1 --allowed-origins=["*"] --numa-bind-nodes 0 1`, none},
		{"a dash in a list", "vllm", `{logits_processors: ["a", "-b"]}`, `[]`, "", []string{`GRM3009 a word of --logits-processors begins with "-"`}},
		{"negative number", "vllm", `{watermark: -0.5}`, `[]`, "--watermark=-0.5", none},
		{"hostile text", "vllm", "{download_dir: \"/a b'\\\"$HOME;`x`{{y}}{port:http}\\n\"}", `[]`, "--download-dir=/a b'\"$HOME;`x`{{y}}{brace}port:http}\n", none},
		{"skipped", "vllm", `{max_context_len: 1}`, `[]`, "", none},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv, found := flagsOf(t, c.engine, equals, c.config, c.extra)
			if got := strings.Join(argv, " "); got != c.argv {
				t.Errorf("argv %s\nwant %s", got, c.argv)
			}
			want := slices.Clone(c.found)
			slices.Sort(want)
			slices.Sort(found)
			if !slices.Equal(found, want) {
				t.Errorf("found\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// TestFlagWords: the style of Relax's scripts, where a value that argparse
// would take for an option is attached.
func TestFlagWords(t *testing.T) {
	argv, found := flagsOf(t, "relax", words,
		`{lr: 0.000001, hf_checkpoint: "-x", data_path: ["a", "b"], use_kl_loss: true, kl_loss_coef: -0.5, rollout_stop_token_ids: [-1, 2], apply_chat_template_kwargs: {enable_thinking: false}, data_path2: 1}`, `[]`)
	want := []string{"--lr", "0.000001", "--hf-checkpoint=-x", "--data-path", "a", "b", "--use-kl-loss", "--kl-loss-coef", "-0.5", "--rollout-stop-token-ids", "-1", "2",
		"--apply-chat-template-kwargs", `{"enable_thinking":false}`}
	if !slices.Equal(argv, want) {
		t.Errorf("got  %q\nwant %q", argv, want)
	}
	if len(found) != 1 || found[0] != "GRM3001 data_path2 is no flag of Relax's train.py" {
		t.Errorf("found %q", found)
	}
}

// TestFaultyFlags: what was found faulty is not reported again.
func TestFaultyFlags(t *testing.T) {
	e := &experiment{plan: &plan.Plan{}}
	block := &tree.Value{Kind: tree.Struct}
	put(block, "max_num_seqs", &tree.Value{Kind: tree.Bad})
	put(block, "hf_overrides", &tree.Value{Kind: tree.Struct, Fields: []tree.Field{{Name: "a", Value: &tree.Value{Kind: tree.Bad}}}})
	put(block, "enforce_eager", &tree.Value{Kind: tree.Bool, Text: "true"})
	argv := e.checkFlags(flagRules{cat: engines.Latest("vllm")}, block, &tree.Value{Kind: tree.List, Items: []*tree.Value{{Kind: tree.Bad}}})
	if len(e.diags) > 0 || len(argv) != 1 {
		t.Errorf("%q%s", argv, describe(e.diags))
	}
}

// TestValueRemedies: a value of the wrong kind is followed by what to type.
func TestValueRemedies(t *testing.T) {
	for _, c := range []struct{ config, want string }{
		{`{enforce_eager: "false"}`, "write it without the quotes: false"},
		{`{max_num_seqs: "64"}`, "write it without the quotes: 64"},
		{`{dtype: "bflot16"}`, `did you mean "bfloat16" or "float16"?`},
		{`{middleware: "a"}`, `write a list of one: ["a"]`},
		{`{revision: 1}`, `write it with quotes: "1"`},
		{`{max_num_seqs: true}`, "write an integer, or null"},
	} {
		root := cueText(t, "config: "+c.config)
		e := &experiment{root: root, plan: &plan.Plan{}}
		e.checkFlags(flagRules{cat: engines.Latest("vllm")}, root.Field("config"), nil)
		if len(e.diags) != 1 || e.diags[0].Code != "GRM3002" || e.diags[0].Remedy != c.want {
			t.Errorf("%s: got%s, want %s", c.config, describe(e.diags), c.want)
		}
	}
}
