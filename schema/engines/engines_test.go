package engines

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// get is Get for catalogues that must be there.
func get(t testing.TB, engine, version string) *Catalogue {
	t.Helper()
	c, ok := Get(engine, version)
	if !ok {
		t.Fatalf("no catalogue of %s %s", engine, version)
	}
	return c
}

// lookup is Lookup for flags that must be there.
func lookup(t testing.TB, c *Catalogue, name string) Flag {
	t.Helper()
	f, ok := c.Lookup(name)
	if !ok {
		t.Fatalf("%s %s has no %s", c.Engine, c.Version, name)
	}
	return f
}

func TestReleases(t *testing.T) {
	files, err := filepath.Glob("*.jsonl")
	if err != nil || len(files) != len(releases) {
		t.Errorf("%d catalogues are listed, the folder has %q (%v)", len(releases), files, err)
	}
	for _, c := range releases {
		text, err := os.ReadFile(c.Engine + "-" + c.Version + ".jsonl")
		if err != nil || string(text) != c.lines {
			t.Errorf("%s %s is not embedded from the file of its name (%v)", c.Engine, c.Version, err)
		}
		if found, ok := Get(c.Engine, c.Version); !ok || found != c {
			t.Errorf("Get(%q, %q) = %v, %v", c.Engine, c.Version, found, ok)
		}
		if versions := Versions(c.Engine); !slices.Contains(versions, c.Version) || Latest(c.Engine).Version != versions[len(versions)-1] {
			t.Errorf("Versions(%q) = %q, Latest has %q", c.Engine, versions, Latest(c.Engine).Version)
		}
	}
	if c, ok := Get("vllm", "0.0.1"); ok || c != nil || Latest("tgi") != nil || Versions("tgi") != nil {
		t.Error("an unknown release or engine was found")
	}
}

// The text of each catalogue is what look-ups rely on: sorted by name, unique, complete, and in one form.
func TestLines(t *testing.T) {
	actions := []Action{Store, Append, StoreTrue, StoreFalse, BooleanOptional, StoreConst, NoOp}
	for _, c := range releases {
		t.Run(c.Engine+"-"+c.Version, func(t *testing.T) {
			previous, canonical := "", []string(nil)
			for line := range strings.Lines(c.lines) {
				var f Flag
				decoder := json.NewDecoder(strings.NewReader(line))
				decoder.DisallowUnknownFields()
				if err := decoder.Decode(&f); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				if !strings.HasPrefix(line, opening+f.Name+`"`) || !strings.HasSuffix(line, "}\n") || f.Name <= previous {
					t.Fatalf("after %q: a line out of form or order: %s", previous, line)
				}
				previous = f.Name
				for _, spelling := range []string{f.Name, "--" + strings.ReplaceAll(f.Name, "_", "-")} {
					if found, ok := c.Lookup(spelling); !ok || !reflect.DeepEqual(found, f) {
						t.Errorf("Lookup(%q) = %+v, %v", spelling, found, ok)
					}
				}
				if of := f.AliasOf + f.NegativeOf; of != "" {
					if target, ok := c.Lookup(of); !ok || target.Flag == "" || f.Flag != "" {
						t.Errorf("%s: of something that is no flag", line)
					}
					continue
				}
				canonical = append(canonical, f.Name)
				if Key(f.Flag) != f.Name || !strings.HasPrefix(f.Flag, "--") || !slices.Contains(actions, f.Action) {
					t.Errorf("%s: flag or action", line)
				}
				for _, alias := range f.Aliases {
					if found, ok := c.Lookup(alias); !ok || found.AliasOf != f.Name && found.Name != f.Name {
						t.Errorf("Lookup(%q) = %+v, %v; want an alias of %s", alias, found, ok, f.Name)
					}
				}
				if found, ok := c.Lookup(f.Negative); f.Negative != "" && (!ok || found.NegativeOf != f.Name) {
					t.Errorf("Lookup(%q) = %+v, %v; want the negative of %s", f.Negative, found, ok, f.Name)
				}
				if f.Optional && (f.Default != nil || f.Required) {
					t.Errorf("%s: optional, with a default or required", line)
				}
				if value := decodeValue(t, string(f.Default)); f.Default != nil && f.Check(value) != nil && !takesWords(f) {
					t.Errorf("%s: the default does not pass: %v", line, f.Check(value))
				}
				f.Check(json.Number("1")) // panics for a type or a count that Check does not know
				_ = f.expected()
			}
			if names := slices.Collect(c.Names()); !slices.Equal(names, canonical) || len(names) < 200 {
				t.Errorf("Names yields %d names, the text has %d", len(names), len(canonical))
			}
			i := 0
			for f := range c.Flags() {
				if f.Name != canonical[i] || f.Flag == "" {
					t.Fatalf("Flags yields %+v for %s", f, canonical[i])
				}
				i++
			}
			for _, absent := range []string{"", "-", "!", "~", "tensor", canonical[0][:3], previous + "x", "no such flag", "\n"} {
				if f, ok := c.Lookup(absent); ok {
					t.Errorf("Lookup(%q) = %+v", absent, f)
				}
			}
		})
	}
}

// takesWords tells the flags whose default is not what their words would give: no words at all, one value for a
// list, or (sglang_router's selectors) a map of key=value words.
func takesWords(f Flag) bool { return f.NArgs == "+" }

// decodeValue decodes JSON in the form that Check takes.
func decodeValue(t testing.TB, text string) (value any) {
	t.Helper()
	if text == "" {
		return nil
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return value
}

func TestLookup(t *testing.T) {
	for _, test := range []struct{ engine, name, want string }{
		{"vllm", "tensor_parallel_size", "--tensor-parallel-size"},
		{"vllm", "--tensor-parallel-size", "--tensor-parallel-size"},
		{"vllm", "tensor-parallel_size", "--tensor-parallel-size"},
		{"vllm", "tp", "alias of tensor_parallel_size"},
		{"vllm", "-tp", "alias of tensor_parallel_size"},
		{"vllm", "--no-enable-prefix-caching", "negative of enable_prefix_caching"},
		{"vllm", "tensor_parallel_siz", "unknown"}, // the parser takes abbreviations
		{"vllm", "Tensor_Parallel_Size", "unknown"},
		{"vllm", "mem_fraction_static", "unknown"}, // SGLang's
		{"sglang", "tp_size", "--tp-size"},
		{"sglang", "tensor_parallel_size", "alias of tp_size"},
		{"sglang", "enable_reasoning", "unknown"}, // vLLM's, long ago
		{"relax", "use_kl_loss", "--use-kl-loss"},
		{"relax", "sglang_expert_parallel_size", "alias of sglang_ep_size"},
		{"relax", "no_use_precision_aware_optimizer", "negative of use_precision_aware_optimizer"},
		{"relax", "override_opt_param_scheduler", "--override-opt_param-scheduler"}, // Megatron's spelling
		{"relax", "--override-opt-param-scheduler", "--override-opt_param-scheduler"},
	} {
		f, ok := Latest(test.engine).Lookup(test.name)
		got := f.Flag
		switch {
		case !ok:
			got = "unknown"
		case f.AliasOf != "":
			got = "alias of " + f.AliasOf
		case f.NegativeOf != "":
			got = "negative of " + f.NegativeOf
		}
		if got != test.want {
			t.Errorf("%s: Lookup(%q) = %s, want %s", test.engine, test.name, got, test.want)
		}
	}
}

// Relax passes its SGLang's options on, behind a prefix, and adds some under the same prefix: the recording of its
// parser and the package's own parser agree on every one that both have.
func TestRelaxAgreesWithSGLang(t *testing.T) {
	sglang, count := get(t, "sglang", "0.5.15.post1"), 0
	for f := range get(t, "relax", "guide").Flags() {
		own, isSGLang := strings.CutPrefix(f.Flag, "--sglang-")
		theirs, both := sglang.Lookup(own)
		if !isSGLang || !both {
			continue
		}
		count++
		f.Name, f.Flag, f.Source = Key(own), "--"+own, ""
		f.Negative = strings.Replace(f.Negative, "--no-sglang-", "--no-", 1)
		f.Aliases = slices.Clone(f.Aliases)
		for i := range f.Aliases {
			f.Aliases[i] = strings.Replace(f.Aliases[i], "--sglang-", "--", 1)
		}
		if !reflect.DeepEqual(f, theirs) {
			t.Errorf("relax has  %+v\nsglang has %+v", f, theirs)
		}
	}
	if all := len(slices.Collect(sglang.Names())); count < all-20 {
		t.Errorf("%d of %d flags were compared", count, all)
	}
}

func TestBoolForms(t *testing.T) {
	const unset, always = "without it the program decides by itself", "is true by default"
	for _, test := range []struct{ engine, name, whenTrue, whenFalse, noFalse string }{
		{"vllm", "enforce_eager", "--enforce-eager", "--no-enforce-eager", ""},                         // false by default
		{"vllm", "enable_prefix_caching", "--enable-prefix-caching", "--no-enable-prefix-caching", ""}, // None
		{"vllm", "enable_log_deltas", "--enable-log-deltas", "--no-enable-log-deltas", ""},             // true
		{"vllm", "headless", "--headless", "", ""},
		{"vllm", "disable_log_stats", "--disable-log-stats", "", ""},
		{"sglang", "enable_metrics", "--enable-metrics", "", ""},
		{"sglang", "lora_strict_loading", "--lora-strict-loading", "--no-lora-strict-loading", ""},
		{"sglang", "enable_multimodal", "--enable-multimodal", "", unset},
		{"sglang", "enforce_piecewise_cuda_graph", "--enforce-piecewise-cuda-graph", "", ""}, // sets another option
		{"sglang", "collect_tokens_histogram", "--collect-tokens-histogram", "", ""},         // without effect
		{"relax", "enable_affinity", "--enable-affinity", "--no-enable-affinity", ""},
		{"relax", "offload_train", "--offload-train", "--no-offload-train", ""},
		{"relax", "use_precision_aware_optimizer", "--use-precision-aware-optimizer", "--no-use-precision-aware-optimizer", ""},
		{"relax", "disable_weights_backuper", "--disable-weights-backuper", "", ""}, // store_false
		{"relax", "no_rope_fusion", "--no-rope-fusion", "", ""},                     // store_false
		{"relax", "ckpt_fully_parallel_save", "--ckpt-fully-parallel-save", "", ""}, // another destination than --no-…
		{"relax", "tokenizer_hf_use_fast", "--tokenizer-hf-use-fast", "", always},   // store_true of what is true
		{"relax", "polling_mode", "--polling-mode=True", "", `reads every word, "False" too, as true`},
	} {
		forms, ok := lookup(t, Latest(test.engine), test.name).BoolForms()
		if !ok || forms.True != test.whenTrue || forms.False != test.whenFalse {
			t.Errorf("%s: %+v, %v", test.name, forms, ok)
		}
		if (forms.NoFalse == "") != (test.noFalse == "") || !strings.HasSuffix(forms.NoFalse, test.noFalse) {
			t.Errorf("%s: %q, want …%q", test.name, forms.NoFalse, test.noFalse)
		}
	}
	if forms, ok := lookup(t, Latest("vllm"), "dtype").BoolForms(); ok {
		t.Errorf("dtype: %+v", forms)
	}
}

func TestCheck(t *testing.T) {
	for _, test := range []struct{ engine, name, value, want string }{
		{"vllm", "enforce_eager", `true`, ""},
		{"vllm", "enforce_eager", `"true"`, "want true or false"},
		{"vllm", "enforce_eager", `1`, "want true or false"},
		{"vllm", "enable_prefix_caching", `null`, ""},
		{"vllm", "enable_prefix_caching", `"no"`, "want true or false, or null"},
		{"vllm", "tensor_parallel_size", `8`, ""},
		{"vllm", "tensor_parallel_size", `1.5`, "want an integer"},
		{"vllm", "tensor_parallel_size", `8.0`, "want an integer"},
		{"vllm", "tensor_parallel_size", `"8"`, "want an integer"},
		{"vllm", "tensor_parallel_size", `null`, "want an integer"},
		{"vllm", "tensor_parallel_size", `true`, "want an integer"},
		{"vllm", "tensor_parallel_size", `[8]`, "want an integer"},
		{"vllm", "max_model_len", `"4k"`, ""},
		{"vllm", "max_model_len", `"25.6k"`, ""},
		{"vllm", "max_model_len", `"auto"`, ""},
		{"vllm", "max_model_len", `"1.5K"`, `want an integer or a count such as "4k" or "auto", or null`}, // K is 1024
		{"vllm", "max_model_len", `"4kk"`, `want an integer or a count such as "4k" or "auto", or null`},
		{"vllm", "max_num_batched_tokens", `"auto"`, `want an integer or a count such as "4k", or null`},
		{"sglang", "context_length", `"4Ki"`, ""},
		{"sglang", "context_length", `"4K"`, `want an integer or a count such as "4k", or null`},
		{"vllm", "gpu_memory_utilization", `0.9`, ""},
		{"vllm", "gpu_memory_utilization", `1`, ""},
		{"vllm", "gpu_memory_utilization", `"0.9"`, "want a number"},
		{"vllm", "dtype", `"bfloat16"`, ""},
		{"vllm", "dtype", `"fp16"`, "want one of: auto, bfloat16, float, float16, float32, half"},
		{"vllm", "max_lora_rank", `16`, ""},
		{"vllm", "max_lora_rank", `17`, "want one of: 1, 8, 16, 32, 64, 128, 256, 320, 512"},
		{"vllm", "max_lora_rank", `"16"`, "want one of: 1, 8, 16, 32, 64, 128, 256, 320, 512"},
		{"vllm", "safetensors_load_strategy", `null`, ""},
		{"vllm", "safetensors_load_strategy", `"None"`, "want one of: eager, lazy, prefetch, torchao, or null"},
		{"vllm", "tokenizer_mode", `"auto"`, ""},
		{"vllm", "tokenizer_mode", `3`, "want a string"},
		{"vllm", "optimization_level", `2`, ""},
		{"vllm", "optimization_level", `true`, "want a string or a number"},
		{"vllm", "compilation_config", `{"level": 3}`, ""},
		{"vllm", "compilation_config", `"{\"level\": 3}"`, ""},
		{"vllm", "compilation_config", `"'{}'"`, "want an object"},
		{"vllm", "compilation_config", `3`, "want an object"},
		{"vllm", "compilation_config", `[]`, "want an object"},
		{"vllm", "compilation_config", `"[]"`, "want an object"},
		{"vllm", "hf_overrides", `{"architectures": ["A"]}`, ""},
		{"vllm", "hf_overrides", `"architectures"`, "want an object"},
		{"vllm", "allowed_origins", `["*"]`, ""},
		{"vllm", "allowed_origins", `"[\"*\"]"`, ""},
		{"vllm", "allowed_origins", `{}`, "want a list"},
		{"vllm", "pt_load_map_location", `"cpu"`, ""},
		{"vllm", "pt_load_map_location", `{"": "cuda"}`, ""},
		{"vllm", "pt_load_map_location", `[]`, "want a string or an object"},
		{"sglang", "json_model_override_args", `{}`, ""},
		{"sglang", "json_model_override_args", `"{}"`, ""},
		{"sglang", "json_model_override_args", `1`, "want a string or an object or a list"},
		{"vllm", "served_model_name", `["a", "b"]`, ""},
		{"vllm", "served_model_name", `"a"`, "want a list, not empty, of strings, or null"},
		{"vllm", "served_model_name", `[]`, "want a list, not empty, of strings, or null"},
		{"vllm", "cudagraph_capture_sizes", `[1, 2.5]`, "want a list, not empty, of integers, or null"},
		{"vllm", "hf_token", `true`, ""},
		{"vllm", "hf_token", `false`, "want a string, or true for the flag alone, or null"},
		{"vllm", "middleware", `["a"]`, ""},
		{"vllm", "middleware", `["a", 1]`, "want a list of strings"},
		{"sglang", "uvicorn_access_log_exclude_prefixes", `[]`, ""},
		{"relax", "rampup_batch_size", `[1, 2, 3]`, ""},
		{"relax", "rampup_batch_size", `[1, 2]`, "want a list of 3 integers, or null"},
		{"relax", "router_prefill", `[["http://a", "1"], ["http://b"]]`, ""},
		{"relax", "router_prefill", `["http://a"]`, "want a list of lists of strings, or null"},
		{"relax", "mtp_detach_paths", `["backbone", "x"]`, "want a list, not empty, of values, each one of: backbone, embedding, lm-head, none"},
		{"relax", "moe_layer_freq", `1`, ""},
		{"relax", "moe_layer_freq", `"[0]*3+[1]*58"`, ""},
		{"relax", "exit_signal", `"SIGUSR1"`, ""},
		{"relax", "resource", `{"actor": [1, 8]}`, ""},
		{"relax", "resource", `"{\"actor\": [1, 8]}"`, ""},
		{"relax", "resource", `"actor"`, "want an object or a list, or null"},
	} {
		err := lookup(t, Latest(test.engine), test.name).Check(decodeValue(t, test.value))
		if got := fmt.Sprint(err); err == nil && test.want != "" || err != nil && got != test.want {
			t.Errorf("%s: %s: %v, want %q", test.name, test.value, err, test.want)
		}
	}
}

// Objects may come as any map, struct or pointer: the compiler has an ordered one of its own.
func TestCheckObject(t *testing.T) {
	type ordered struct{ Keys []string }
	f := lookup(t, Latest("vllm"), "compilation_config")
	for _, value := range []any{map[string]any{}, map[string]json.RawMessage{}, ordered{}, &ordered{}} {
		if err := f.Check(value); err != nil {
			t.Errorf("%T: %v", value, err)
		}
	}
	for _, value := range []any{3, 3.0, []string{"a"}} { // not what decoding JSON gives
		if f.Check(value) == nil {
			t.Errorf("%T passes for an object", value)
		}
	}
}

func TestCheckKeepsSecrets(t *testing.T) {
	for _, c := range releases {
		for f := range c.Flags() {
			for _, value := range []any{"hunter2", json.Number("31337"), []any{"hunter2"}, map[string]any{"hunter2": "31337"}} {
				if err := f.Check(value); err != nil && (strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "31337")) {
					t.Errorf("%s: %v", f.Name, err)
				}
			}
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, name := range []string{"use_kl_loss", "no_such_flag"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c, _ := Get("relax", "guide")
				c.Lookup(name)
			}
		})
	}
}

func BenchmarkNames(b *testing.B) {
	c := get(b, "relax", "guide")
	b.ReportAllocs()
	for b.Loop() {
		for range c.Names() {
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	f := lookup(b, Latest("vllm"), "dtype")
	b.ReportAllocs()
	for b.Loop() {
		if f.Check("half") != nil {
			b.Fatal("refused")
		}
	}
}
