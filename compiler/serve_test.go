package compiler

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/schema/engines"
)

// codes lists the codes of what is not a note, sorted, each once.
func codes(l diag.List) []string {
	var out []string
	for _, d := range l {
		if d.Severity != diag.Note && !slices.Contains(out, d.Code) {
			out = append(out, d.Code)
		}
	}
	slices.Sort(out)
	return out
}

func compileCUE(t *testing.T, src string) *experiment {
	t.Helper()
	return compileExperiment(cueText(t, src), "", "case", Options{})
}

func instance(t *testing.T, e *experiment, key string) *plan.Instance {
	t.Helper()
	i, ok := e.plan.Instances.Get(key)
	if !ok {
		t.Fatalf("no instance %s:%s", key, describe(e.diags))
	}
	return i
}

func strs(argv []plan.Arg) []string {
	var out []string
	for _, a := range argv {
		out = append(out, string(a))
	}
	return out
}

func TestServeArgv(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"vllm", `serve: instances: quality: {engine: "vllm", model_path: "/models/judge", num_gpus: 4, num_gpus_per_engine: 2
			engine_config: {max_context_len: 4096, mem_fraction_static: 0.85, enable_prefix_caching: false}
			sampling_config: max_response_len: 64
			extra_args: ["--patched"]}
			cluster: gpus_per_node: 8`,
			`vllm serve /models/judge --served-model-name=quality --host={host:0} --port={port:http} --tensor-parallel-size=2 --max-model-len=4096 --gpu-memory-utilization=0.85 --no-enable-prefix-caching --patched
vllm serve /models/judge --served-model-name=quality --host={host:0} --port={port:http} --tensor-parallel-size=2 --max-model-len=4096 --gpu-memory-utilization=0.85 --no-enable-prefix-caching --patched`},
		{"vllm parallel", `serve: instances: quality: {engine: "vllm", model_path: "/m/j", num_gpus: 8, num_gpus_per_engine: 8
			engine_config: {pp_size: 2, dp_size: 2, ep_size: 4, hf_overrides: {architectures: ["A"]}, middleware: ["a", "b"]}}`,
			`vllm serve /m/j --served-model-name=quality --host={host:0} --port={port:http} --tensor-parallel-size=2 --pipeline-parallel-size=2 --data-parallel-size=2 --enable-expert-parallel --max-model-len=8192 --hf-overrides={"architectures":["A"]} --middleware=a --middleware=b`},
		{"vllm own flags", `serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 4, num_gpus_per_engine: 4
			engine_config: {data_parallel_size: 2, max_model_len: "8k", gpu_memory_utilization: 0.5}}`,
			`vllm serve /m/j --served-model-name=q --host={host:0} --port={port:http} --tensor-parallel-size=2 --data-parallel-size=2 --max-model-len=8k --gpu-memory-utilization=0.5`},
		{"vllm two nodes", `serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 16, num_gpus_per_engine: 16, engine_config: pp_size: 2}
			cluster: gpus_per_node: 8`,
			`vllm serve /m/j --served-model-name=q --host={host:0} --port={port:http} --tensor-parallel-size=8 --nnodes=2 --node-rank=0 --master-addr={host:0} --master-port={port:master} --pipeline-parallel-size=2 --max-model-len=8192
vllm serve /m/j --served-model-name=q --tensor-parallel-size=8 --nnodes=2 --node-rank=1 --master-addr={host:0} --master-port={port:master} --headless --pipeline-parallel-size=2 --max-model-len=8192`},
		{"sglang", `serve: instances: q: {engine: "sglang", model_path: "/m/j", num_gpus: 2, num_gpus_per_engine: 2
			engine_config: {max_context_len: 4096, mem_fraction_static: 0.8, trust_remote_code: true, disable_radix_cache: false, cuda_graph_bs_decode: [1, 2]}}
			cluster: gpus_per_node: 8`,
			`python3 -m sglang.launch_server --model-path=/m/j --served-model-name=q --host={host:0} --port={port:http} --nccl-port={port:nccl} --tp-size=2 --context-length=4096 --mem-fraction-static=0.8 --trust-remote-code --cuda-graph-bs-decode 1 2`},
		{"sglang two nodes", `serve: instances: q: {engine: "sglang", model_path: "/m/j", num_gpus: 16, num_gpus_per_engine: 16, engine_config: dp_size: 4}
			cluster: gpus_per_node: 8`,
			`python3 -m sglang.launch_server --model-path=/m/j --served-model-name=q --host={host:0} --port={port:http} --nccl-port={port:nccl} --tp-size=16 --nnodes=2 --node-rank=0 --dist-init-addr={host:0}:{port:dist_init} --dp-size=4 --enable-dp-attention --context-length=8192
python3 -m sglang.launch_server --model-path=/m/j --served-model-name=q --host={host:1} --port={port:http} --nccl-port={port:nccl} --tp-size=16 --nnodes=2 --node-rank=1 --dist-init-addr={host:0}:{port:dist_init} --dp-size=4 --enable-dp-attention --context-length=8192`},
		{"sglang replicas inside", `serve: instances: q: {engine: "sglang", model_path: "/m/j", num_gpus: 4, num_gpus_per_engine: 4
			engine_config: {dp_size: 2, enable_dp_attention: false}}`,
			`python3 -m sglang.launch_server --model-path=/m/j --served-model-name=q --host={host:0} --port={port:http} --nccl-port={port:nccl} --tp-size=2 --dp-size=2 --context-length=8192`},
		{"a path like a placeholder", `serve: instances: q: {engine: "vllm", model_path: "/m/{port:http}", num_gpus: 1}`,
			`vllm serve /m/{brace}port:http} --served-model-name=q --host={host:0} --port={port:http} --tensor-parallel-size=1 --max-model-len=8192`},
		{"sim", `serve: instances: q: {engine: "sim", constant: "1"}`,
			`genrm sim --route-key=q --host={host:0} --port={port:http} --script={file:sim-q.json}`},
		{"openai", `serve: instances: q: {engine: "openai", base_url: "https://h/v1", model: "m"}`, ``},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := compileCUE(t, c.src)
			if len(codes(e.diags)) > 0 {
				t.Fatalf("refused:%s", describe(e.diags))
			}
			var lines []string
			i := e.plan.Instances[0].Value
			for _, argv := range i.Argv {
				lines = append(lines, strings.Join(strs(argv), " "))
			}
			if got := strings.Join(lines, "\n"); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
			if len(i.Argv) != len(i.Placement) {
				t.Errorf("%d commands for %d placements", len(i.Argv), len(i.Placement))
			}
			if got := strs(e.plan.Launch.Argv); !slices.Equal(got, []string{"genrm", "gateway", "--config={file:gateway.json}"}) {
				t.Errorf("gateway: %q", got)
			}
		})
	}
}

// TestTopologySweep is a sweep over parallel sizes on one node of eight GPUs:
// nine of 24 fit, the others are refused with their product.
func TestTopologySweep(t *testing.T) {
	var accepted []string
	for _, tp := range []int{1, 2, 4, 8} {
		for _, pp := range []int{1, 8} {
			for _, dp := range []int{1, 2, 8} {
				n := tp * pp * dp
				e := compileCUE(t, fmt.Sprintf(`cluster: {nodes: 1, gpus_per_node: 8}
					serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: %d, num_gpus_per_engine: %d, engine_config: {pp_size: %d, dp_size: %d}}`, n, n, pp, dp))
				switch got := codes(e.diags); {
				case n > 8:
					want := fmt.Sprintf("%d×%d×%d = %d > 8", tp, pp, dp, n)
					if dp == 1 {
						want = fmt.Sprintf("%d×%d = %d > 8", tp, pp, n)
					}
					if !slices.Equal(got, []string{"GRM7002"}) || !strings.Contains(e.diags.Sorted()[0].Detail, want) {
						t.Errorf("(%d,%d,%d): got%s\nwant GRM7002 with %q", tp, pp, dp, describe(e.diags), want)
					}
					continue
				case n < 8 && !slices.Equal(got, []string{"GRM7005"}), n == 8 && got != nil:
					t.Errorf("(%d,%d,%d): got%s", tp, pp, dp, describe(e.diags))
				}
				accepted = append(accepted, fmt.Sprintf("(%d,%d,%d)", tp, pp, dp))
				if i := instance(t, e, "q"); i.TensorParallel != tp || i.PipelineParallel != pp || i.DataParallel != dp || i.Replicas != 1 || len(i.Bundles) != n {
					t.Errorf("(%d,%d,%d): planned %+v", tp, pp, dp, i)
				}
			}
		}
	}
	if got, want := strings.Join(accepted, " "), "(1,1,1) (1,1,2) (1,1,8) (1,8,1) (2,1,1) (2,1,2) (4,1,1) (4,1,2) (8,1,1)"; got != want {
		t.Errorf("accepted\n%s\nwant\n%s", got, want)
	}
}

func TestServePlacement(t *testing.T) {
	for _, c := range []struct {
		name, src string
		want      string // placements of all instances, replica.rank@node[gpus]
		codes     []string
	}{
		{"two judges on a node", `cluster: gpus_per_node: 8
			serve: instances: {b: {engine: "vllm", model_path: "/m/j", num_gpus: 4, num_gpus_per_engine: 2}, a: {engine: "vllm", model_path: "/m/j", num_gpus: 1}}`,
			"b 0.0@0[0 1] 1.0@0[2 3] a 0.0@0[4]", nil},
		{"an engine is not split over nodes", `cluster: gpus_per_node: 4
			serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 6, num_gpus_per_engine: 3}`,
			"q 0.0@0[0 1 2] 1.0@1[0 1 2]", nil},
		{"whole nodes after a part", `cluster: gpus_per_node: 2
			serve: instances: {a: {engine: "vllm", model_path: "/m/j", num_gpus: 1}, b: {engine: "sglang", model_path: "/m/j", num_gpus: 4, num_gpus_per_engine: 4}}`,
			"a 0.0@0[0] b 0.0@1[0 1] 0.1@2[0 1]", nil},
		{"six GPUs on nodes of four", `cluster: {nodes: 3, gpus_per_node: 4}
			serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 12, num_gpus_per_engine: 6}`, "q", []string{"GRM7002"}},
		{"too many replicas", `cluster: {nodes: 1, gpus_per_node: 4}
			serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 6, num_gpus_per_engine: 1}`,
			"q 0.0@0[0] 1.0@0[1] 2.0@0[2] 3.0@0[3] 4.0@1[0] 5.0@1[1]", []string{"GRM7014"}},
		{"holes need another node", `cluster: {nodes: 2, gpus_per_node: 4}
			serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 6, num_gpus_per_engine: 2}
			serve: instances: r: {engine: "vllm", model_path: "/m/j", num_gpus: 3, num_gpus_per_engine: 3}`,
			"q 0.0@0[0 1] 1.0@0[2 3] 2.0@1[0 1] r 0.0@2[0 1 2]", []string{"GRM7014"}},
		{"nodes not stated", `serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 2}`, "q 0.0@-1[0] 1.0@-1[1]", nil},
		{"as many nodes as an integer holds", `cluster: {nodes: 9223372036854775807, gpus_per_node: 8}
			serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 1}`, "q 0.0@0[0]", []string{"GRM7005"}},
		{"a thousand million GPUs", `serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 1000000000}`, "q", []string{"GRM7006"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := compileCUE(t, c.src)
			var got []string
			for _, i := range e.plan.Instances {
				got = append(got, i.Key)
				for _, p := range i.Value.Placement {
					got = append(got, fmt.Sprintf("%d.%d@%d%v", p.Replica, p.NodeRank, p.Node, p.GPUs))
				}
			}
			if s := strings.Join(got, " "); s != c.want || !slices.Equal(codes(e.diags), c.codes) {
				t.Errorf("got %s %v, want %s %v%s", s, codes(e.diags), c.want, c.codes, describe(e.diags))
			}
		})
	}
}

// TestServeManyMistakes: one file, every mistake, once.
func TestServeManyMistakes(t *testing.T) {
	e := compileCUE(t, `
		cluster: {nodes: 1, gpus_per_node: 8}
		models: "/m/j": num_attention_heads: 40
		serve: {
			gateway: host: "0.0.0.0"
			instances: {
				a: {engine: "vllm", model_path: "/m/j", num_gpus: 6, num_gpus_per_engine: 6, engine_config: {max_model_length: 1, host: "x", enforce_eager: "yes"}, sampling_config: {temperatur: 1}}
				b: {engine: "sim"}
				c: {engine: "sim", match: [{pattern: "(", answer: ""}]}
				d: {engine: "sglang", model_path: "/m/j", num_gpus: 3, num_gpus_per_engine: 2, engine_version: "0.0.1"}
			}
		}`)
	want := []string{"GRM3001", "GRM3002", "GRM3006", "GRM6001", "GRM6002", "GRM6003", "GRM6006", "GRM6009", "GRM7003", "GRM7005", "GRM7011"}
	if got := codes(e.diags); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v%s", got, want, describe(e.diags))
	}
	for _, d := range e.diags {
		if !d.Pos.IsValid() || d.Path == "" || d.Summary == "" || d.Severity != diag.Note && d.Remedy == "" {
			t.Errorf("no place, path, summary or remedy: %+v", d)
		}
	}
}

// TestGatewayArtifact: what the gateway reads has routes in order, defaults
// applied, and secrets as references.
func TestGatewayArtifact(t *testing.T) {
	e := compileCUE(t, `serve: {
		gateway: {host: "0.0.0.0", port: 8088, api_key: env: "GATEWAY_KEY", failure_policy: "mask"}
		instances: {
			z: {engine: "vllm", model_path: "/m/j", num_gpus: 2, sampling_config: {max_response_len: 32, chat_template_kwargs: enable_thinking: false}}
			a: {engine: "openai", base_url: "https://h/v1", model: "m", api_key: env: "REMOTE_KEY"}
		}}`)
	if len(codes(e.diags)) > 0 {
		t.Fatal(describe(e.diags))
	}
	want := `{"host":"0.0.0.0","port":8088,"failure_policy":"mask","api_key":{"env":"GATEWAY_KEY"},"routes":[` +
		`{"route_key":"z","engine":"vllm","model":"z","replicas":2,"sampling_config":{"max_response_len":32,"chat_template_kwargs":{"enable_thinking":false},"temperature":0.1,"top_p":1.0,"top_k":-1}},` +
		`{"route_key":"a","engine":"openai","model":"m","replicas":1,"base_url":"https://h/v1","api_key":{"env":"REMOTE_KEY"},"sampling_config":{"temperature":0.1,"top_p":1.0,"max_response_len":4096}}]}` + "\n"
	if got := e.plan.Artifacts[0]; got.Name != "gateway.json" || got.Text != want {
		t.Errorf("got %s\n%s\nwant\n%s", got.Name, got.Text, want)
	}
	data, err := e.plan.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var back map[string]any
	if err := json.Unmarshal(data, &back); err != nil || strings.Contains(string(data), "null") {
		t.Errorf("plan JSON: %v\n%s", err, data)
	}
}

// TestGatewayEnvironment: the gateway asks for what only the target knows, and
// for nothing else.
func TestGatewayEnvironment(t *testing.T) {
	const sim, remote = `q: {engine: "sim", constant: "1", startup_time: 2, crash_after: 3}`, `r: {engine: "openai", base_url: "https://h/v1", model: "m"}`
	for _, c := range []struct{ name, src, want string }{
		{"an open port", `serve: instances: {` + sim + `}`, `{"GENRM_PORT_GATEWAY":"{port:gateway}","GENRM_UPSTREAMS":"{upstreams}"}`},
		{"a port", `serve: {gateway: port: 8088, instances: {` + sim + `, ` + remote + `}}`, `{"GENRM_UPSTREAMS":"{upstreams}"}`},
		{"nothing is started", `serve: {gateway: port: 8088, instances: {` + remote + `}}`, `{}`},
	} {
		e := compileCUE(t, c.src)
		if len(codes(e.diags)) > 0 {
			t.Fatalf("%s: refused:%s", c.name, describe(e.diags))
		}
		if got, err := e.plan.Launch.Env.MarshalJSON(); err != nil || string(got) != c.want {
			t.Errorf("%s: %s %v, want %s", c.name, got, err, c.want)
		}
		if a := e.plan.Artifacts; strings.Contains(c.src, sim) && a[1].Text != `{"model":"q","constant":"1","startup_time":2,"crash_after":3}`+"\n" {
			t.Errorf("%s: %s", c.name, a[1].Text)
		}
	}
}

// TestServeExamples compiles the examples without a finding.
func TestServeExamples(t *testing.T) {
	for _, name := range []string{"serve-two-vllm", "serve-sglang-two-nodes", "serve-openai-beside-local", "quickstart"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join("..", "examples", name)
			if _, err := os.Stat(dir); err != nil {
				t.Fatal(err)
			}
			if e := compileExperiment(cueDir(t, dir), "", name, Options{}); len(e.diags) > 0 {
				t.Error(describe(e.diags))
			}
		})
	}
}

// Where no release is stated, it is the newest, but on Ray the one that Ray brings; and the plan says which, and why.
func TestServeDefaultRelease(t *testing.T) {
	newest := engines.Latest("vllm").Version
	for _, c := range []struct {
		name    string
		target  plan.Target
		more    string
		version string
		fact    string
	}{
		{"nowhere", "", "", newest, "the newest release that genrm knows"},
		{"local", plan.Local, "", newest, "the newest release that genrm knows"},
		{"slurm beside blocks of Ray's", plan.Slurm, `kuberay: rayVersion: "2.60.0"`, newest, "the newest release that genrm knows"},
		{"ray", plan.Ray, "", "0.29.0", "which ray[llm] pins in Ray 2.60.0, the newest Ray release that genrm knows"},
		{"ray beside a block of kuberay", plan.Ray, `kuberay: rayVersion: "2.40.0"`, "0.29.0", "which ray[llm] pins in Ray 2.60.0, the newest Ray release that genrm knows"},
		{"kuberay", plan.KubeRay, "", "0.29.0", "which ray[llm] pins in Ray 2.60.0, the newest Ray release that genrm knows"},
		{"kuberay, version", plan.KubeRay, `kuberay: {rayVersion: "2.60.0", image: "site/rl:1"}`, "0.29.0", "which ray[llm] pins in Ray 2.60.0, as kuberay.rayVersion says"},
		{"kuberay, image", plan.KubeRay, `kuberay: image: "rayproject/ray-llm:2.60.0-py311-cu128"`, "0.29.0", "which ray[llm] pins in Ray 2.60.0, as the tag of kuberay.image says"},
		{"kuberay, image of another kind", plan.KubeRay, `kuberay: image: "site/rl:2.40.0"`, "0.29.0", "which ray[llm] pins in Ray 2.60.0, the newest Ray release that genrm knows"},
		{"kuberay, unknown release", plan.KubeRay, `kuberay: rayVersion: "2.40.0"`, newest, "the newest release that genrm knows: which one ray[llm] of Ray 2.40.0 (as kuberay.rayVersion says) pins is not known"},
		{"block without a target", "", `kuberay: rayVersion: "2.60.0"`, "0.29.0", "which ray[llm] pins in Ray 2.60.0, as kuberay.rayVersion says"},
		{"stated", plan.Ray, `serve: instances: q: engine_version: "0.24.0"`, "0.24.0", "as engine_version says"},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := `serve: instances: q: {engine: "vllm", model_path: "/m/j", num_gpus: 1}` + "\n" + c.more
			e := compileExperiment(cueText(t, src), "", "case", Options{Target: c.target})
			if got := instance(t, e, "q").EngineVersion; got != c.version {
				t.Errorf("checked against %s, want %s", got, c.version)
			}
			want := plan.Fact{Path: "serve.instances.q", Text: fmt.Sprintf("flags are checked against vLLM %s, %s", c.version, c.fact)}
			if !slices.Contains(e.plan.Facts, want) {
				t.Errorf("no fact %q in %q", want, e.plan.Facts)
			}
		})
	}
	sglang := compileExperiment(cueText(t, `serve: instances: q: {engine: "sglang", model_path: "/m/j", num_gpus: 1}`), "", "case", Options{Target: plan.Ray})
	if got := instance(t, sglang, "q").EngineVersion; got != engines.Latest("sglang").Version {
		t.Errorf("SGLang is checked against %s", got)
	}
}
