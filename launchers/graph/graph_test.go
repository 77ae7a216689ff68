package graph_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers"
	"genrm.dev/genrm/launchers/graph"
)

// compile compiles one experiment: a folder, or text.
func compile(t *testing.T, src string, target plan.Target) *plan.Plan {
	t.Helper()
	path := src
	if strings.Contains(src, "\n") || strings.Contains(src, "{") {
		path = filepath.Join(t.TempDir(), "x.cue")
		if err := os.WriteFile(path, []byte(src), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := compiler.Compile([]string{path}, compiler.Options{Target: target, Checks: launchers.Checkers()})
	if r.Diagnostics.HasErrors() || len(r.Plans) != 1 {
		t.Fatalf("%d plans: %+v", len(r.Plans), r.Diagnostics)
	}
	return r.Plans[0]
}

func build(t *testing.T, p *plan.Plan, o graph.Options) *graph.Graph {
	t.Helper()
	g, err := graph.Build(p, o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// describe shows of each process what decides its life, without its command.
func describe(g *graph.Graph) string {
	var b strings.Builder
	for _, p := range g.Processes {
		fmt.Fprintf(&b, "%s %s/%s", p.Name, p.Kind, p.Role)
		if p.Node > 0 || p.NodeRank > 0 || p.Replica > 0 {
			fmt.Fprintf(&b, " replica=%d rank=%d node=%d", p.Replica, p.NodeRank, p.Node)
		}
		if len(p.GPUs) > 0 {
			fmt.Fprintf(&b, " gpus=%v", p.GPUs)
		}
		if len(p.Peers) > 1 {
			fmt.Fprintf(&b, " peers=%v", p.Peers)
		}
		if len(p.After) > 0 {
			fmt.Fprintf(&b, " after=%v", p.After)
		}
		if ports := p.Ports(); len(ports) > 0 {
			fmt.Fprintf(&b, " ports=%v", ports)
		}
		if len(p.Fixed) > 0 {
			fmt.Fprintf(&b, " fixed=%v", p.Fixed)
		}
		if r := p.Ready; r != nil {
			fmt.Fprintf(&b, " ready=%s:%s", r.Probe, r.URL)
			if r.Nodes > 0 {
				fmt.Fprintf(&b, "#%d", r.Nodes)
			}
			fmt.Fprintf(&b, ",%v,%v,%v,%s", r.Timeout, r.Interval, r.ProbeTimeout, r.Field)
		}
		if l := p.Live; l != nil {
			fmt.Fprintf(&b, " live=%s,%v,%v,%d,%s", l.URL, l.Interval, l.ProbeTimeout, l.FailureThreshold, l.Field)
		}
		fmt.Fprintf(&b, " stop=%v\n", p.StopTimeout)
	}
	return b.String()
}

const gatewayLine = `gateway service/gateway ports=[gateway] ready=http:http://127.0.0.1:{port:gateway}/health,60,0.05,10,serve.gateway.readiness.timeout live=http://127.0.0.1:{port:gateway}/health,10,60,5,serve.gateway.liveness.failure_threshold stop=10
`

func TestServe(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"a judge that is not of this machine is looked at when the gateway is there", `name: "x"
			serve: instances: {
				far: {engine: "openai", base_url: "https://far.example/v1", model: "m"}
				near: {engine: "sim", constant: "1", stop_timeout: 2.5}
			}
			local: stop_timeout: 3`,
			`near-0 service/engine ports=[http] ready=judge:http://{host:0}:{port:http},1800,0.05,120,serve.instances.near.readiness.timeout live=http://{host:0}:{port:http}/health,10,60,5,serve.instances.near.liveness.failure_threshold stop=2.5
` + strings.Replace(gatewayLine, "stop=10", "stop=3", 1) + `far remote/remote after=[gateway] ready=remote:http://127.0.0.1:{port:gateway},60,1,30,serve.instances.far.base_url stop=0
`},
		{"replicas and GPUs; the user's times; a name that is no file name", `name: "x"
			serve: {
				instances: "_q.1": {engine: "vllm", model_path: "a/b", num_gpus: 4, num_gpus_per_engine: 2
					readiness: {timeout: 7, interval: 0.5, probe_timeout: 3}
					liveness: {interval: 4, probe_timeout: 5, failure_threshold: 6}}
				gateway: {host: "0.0.0.0", port: 8088, api_key: env: "KEY"}
			}`,
			`_q.1-0 service/engine gpus=[0 1] ports=[http vllm] ready=judge:http://{host:0}:{port:http},7,0.5,3,serve.instances."_q.1".readiness.timeout live=http://{host:0}:{port:http}/health,4,5,6,serve.instances."_q.1".liveness.failure_threshold stop=10
_q.1-1 service/engine replica=1 rank=0 node=0 gpus=[2 3] ports=[http vllm] ready=judge:http://{host:0}:{port:http},7,0.5,3,serve.instances."_q.1".readiness.timeout live=http://{host:0}:{port:http}/health,4,5,6,serve.instances."_q.1".liveness.failure_threshold stop=10
gateway service/gateway fixed=map[gateway:8088] ready=http:http://127.0.0.1:8088/health,60,0.05,10,serve.gateway.readiness.timeout live=http://127.0.0.1:8088/health,10,60,5,serve.gateway.liveness.failure_threshold stop=10
`},
		{"IPv6", `name: "x"
			serve: {
				instances: a: {engine: "sim", constant: "1"}
				gateway: {host: "::", api_key: env: "KEY"}
			}`,
			`a-0 service/engine ports=[http] ready=judge:http://{host:0}:{port:http},1800,0.05,120,serve.instances.a.readiness.timeout live=http://{host:0}:{port:http}/health,10,60,5,serve.instances.a.liveness.failure_threshold stop=10
` + strings.ReplaceAll(gatewayLine, "127.0.0.1", "[::1]")},
		{"SGLang over two nodes", "../../examples/serve-sglang-two-nodes",
			`judge-0-0 service/engine gpus=[0 1 2 3 4 5 6 7] peers=[judge-0-0 judge-0-1] ports=[http nccl dist_init] ready=judge:http://{host:0}:{port:http},1800,0.05,120,serve.instances.judge.readiness.timeout live=http://{host:0}:{port:http}/health,10,60,5,serve.instances.judge.liveness.failure_threshold stop=10
judge-0-1 service/engine replica=0 rank=1 node=1 gpus=[0 1 2 3 4 5 6 7] peers=[judge-0-0 judge-0-1] ports=[http nccl] stop=10
gateway service/gateway fixed=map[gateway:8088] ready=http:http://127.0.0.1:8088/health,60,0.05,10,serve.gateway.readiness.timeout live=http://127.0.0.1:8088/health,10,60,5,serve.gateway.liveness.failure_threshold stop=10
`},
		{"two vLLM replicas of two nodes", `name: "x"
			serve: instances: big: {engine: "vllm", model_path: "a/b", num_gpus: 8, num_gpus_per_engine: 4}
			cluster: {nodes: 4, gpus_per_node: 2}`,
			`big-0-0 service/engine gpus=[0 1] peers=[big-0-0 big-0-1] ports=[http master vllm] ready=judge:http://{host:0}:{port:http},1800,0.05,120,serve.instances.big.readiness.timeout live=http://{host:0}:{port:http}/health,10,60,5,serve.instances.big.liveness.failure_threshold stop=10
big-0-1 service/engine replica=0 rank=1 node=1 gpus=[0 1] peers=[big-0-0 big-0-1] ports=[vllm] stop=10
big-1-0 service/engine replica=1 rank=0 node=2 gpus=[0 1] peers=[big-1-0 big-1-1] ports=[http master vllm] ready=judge:http://{host:0}:{port:http},1800,0.05,120,serve.instances.big.readiness.timeout live=http://{host:0}:{port:http}/health,10,60,5,serve.instances.big.liveness.failure_threshold stop=10
big-1-1 service/engine replica=1 rank=1 node=3 gpus=[0 1] peers=[big-1-0 big-1-1] ports=[vllm] stop=10
` + gatewayLine},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := build(t, compile(t, c.src, ""), graph.Options{Block: "local"})
			if got := describe(g); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

func TestDriver(t *testing.T) {
	for _, c := range []struct{ name, src, block, want string }{
		{"relax", "../../examples/relax-colocated", "local",
			`ray-head service/ray-head gpus=[0 1 2 3 4 5 6 7] ports=[gcs dashboard client node_manager object_manager agent agent_grpc runtime_env metrics workers autoscaler_metrics dashboard_metrics] ready=ray:http://{host:0}:{port:dashboard}#1,300,0.05,120,local.ray.readiness.timeout live=http://{host:0}:{port:dashboard},2,60,5,local.ray.liveness.failure_threshold stop=10
driver driver/driver gpus=[0 1 2 3 4 5 6 7] after=[ray-head] stop=10
`},
		{"relax, own Ray", `name: "x"
			local: ray: {num_cpus: 3, object_store_memory: 100000000, args: ["--labels={\"a\":1}"], readiness: {timeout: 9, interval: 0.2}}
			local: stop_timeout: 4
			relax: {root: "/relax", colocate: true, resource: {actor: [1, 2], rollout: [1, 2]}
				args: {hf_checkpoint: "a/b", advantage_estimator: "grpo"}}`, "local",
			`ray-head service/ray-head gpus=[0 1] ports=[gcs dashboard client node_manager object_manager agent agent_grpc runtime_env metrics workers autoscaler_metrics dashboard_metrics] ready=ray:http://{host:0}:{port:dashboard}#1,9,0.2,120,local.ray.readiness.timeout live=http://{host:0}:{port:dashboard},2,60,5,local.ray.liveness.failure_threshold stop=4
driver driver/driver gpus=[0 1] after=[ray-head] stop=4
`},
		{"relax over nodes", "../../examples/relax-397b-split", "slurm",
			`ray-head service/ray-head gpus=[0 1 2 3 4 5 6 7] peers=[ray-head ray-worker-1] ports=[gcs dashboard client node_manager object_manager agent agent_grpc runtime_env metrics workers autoscaler_metrics dashboard_metrics] ready=ray:http://{host:0}:{port:dashboard}#1,300,0.05,120,slurm.ray.readiness.timeout live=http://{host:0}:{port:dashboard},2,60,5,slurm.ray.liveness.failure_threshold stop=10
ray-worker-1 service/ray-worker replica=0 rank=1 node=1 gpus=[0 1 2 3 4 5 6 7] peers=[ray-head ray-worker-1] after=[ray-head] ports=[node_manager object_manager agent agent_grpc runtime_env metrics workers] ready=ray:http://{host:0}:{port:dashboard}#2,300,0.05,10,slurm.ray.readiness.timeout live=http://{host:0}:{port:dashboard},2,60,5,slurm.ray.liveness.failure_threshold stop=10
driver driver/driver gpus=[0 1 2 3 4 5 6 7] peers=[ray-head ray-worker-1] after=[ray-head ray-worker-1] stop=10
`},
		{"gym", "../../examples/gym-genrm", "local",
			`ray-head service/ray-head gpus=[0 1 2 3 4 5 6 7] ports=[gcs dashboard client node_manager object_manager agent agent_grpc runtime_env metrics workers autoscaler_metrics dashboard_metrics] ready=ray:http://{host:0}:{port:dashboard}#1,300,0.05,120,local.ray.readiness.timeout live=http://{host:0}:{port:dashboard},2,60,5,local.ray.liveness.failure_threshold stop=10
driver driver/driver gpus=[0 1 2 3 4 5 6 7] after=[ray-head] stop=10
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := build(t, compile(t, c.src, ""), graph.Options{Block: c.block})
			if got := describe(g); got != c.want {
				t.Errorf("got\n%s\nwant\n%s", got, c.want)
			}
		})
	}
}

// Two judges whose processes would share a name would share ports and a log,
// and are refused.
func TestNamesAreUnique(t *testing.T) {
	for _, c := range []struct{ name, src, want string }{
		{"engines", `name: "x"
			serve: instances: {
				"a": {engine: "vllm", model_path: "m/m", num_gpus: 4, num_gpus_per_engine: 4}
				"a-0": {engine: "sim", constant: "1"}
			}
			cluster: {nodes: 2, gpus_per_node: 2}`, "a-0-0"},
		{"the gateway", `name: "x"
			serve: instances: {
				gateway: {engine: "openai", base_url: "https://far.example/v1", model: "m"}
				a: {engine: "sim", constant: "1"}
			}`, "gateway"},
	} {
		g, err := graph.Build(compile(t, c.src, ""), graph.Options{Block: "local"})
		if err == nil || !strings.Contains(err.Error(), "two processes would be called "+c.want+"; rename a judge") {
			t.Errorf("%s: %v, %v", c.name, g, err)
		}
	}
}

// Engines on one GPU start one after another, in the order of the file; the
// others do not wait.
func TestSharedGPUs(t *testing.T) {
	p := compile(t, `name: "x"
		serve: instances: {
			a: {engine: "vllm", model_path: "m/m", num_gpus: 2, num_gpus_per_engine: 2}
			b: {engine: "vllm", model_path: "m/m", num_gpus: 1}
			c: {engine: "vllm", model_path: "m/m", num_gpus: 1}
			d: {engine: "vllm", model_path: "m/m", num_gpus: 2, num_gpus_per_engine: 2}
			e: {engine: "vllm", model_path: "m/m", num_gpus: 1}
		}`, "")
	place := map[string]struct {
		node int
		gpus []int
	}{"a": {0, []int{0, 1}}, "b": {0, []int{1}}, "c": {0, []int{2}}, "d": {0, []int{0, 1}}, "e": {1, []int{0}}}
	for _, i := range p.Instances {
		i.Value.Placement[0].Node, i.Value.Placement[0].GPUs = place[i.Key].node, place[i.Key].gpus
	}
	p.Cluster.NodesNeeded = 2
	g := build(t, p, graph.Options{Block: "local"})
	for name, want := range map[string][]string{"a-0": nil, "b-0": {"a-0"}, "c-0": nil, "d-0": {"a-0", "b-0"}, "e-0": nil, "gateway": nil} {
		if got := g.Peer(name).After; !slices.Equal(got, want) {
			t.Errorf("%s starts after %v, want %v", name, got, want)
		}
	}
}

// commands shows what every process would be started with.
func commands(t *testing.T, g *graph.Graph, c graph.Context) string {
	t.Helper()
	var b strings.Builder
	for _, p := range g.Processes {
		argv, env, err := g.Command(p, c)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%s: %q\n", p.Name, argv)
		for _, e := range env {
			fmt.Fprintf(&b, "  %q\n", e)
		}
	}
	return b.String()
}

// context binds every port of a graph to a number that tells the process and the
// purpose: process i of the graph, purpose j of it.
func context(g *graph.Graph) graph.Context {
	c := graph.Context{Bindings: make([]graph.Binding, g.Nodes), RunDir: "/run of 'me'", Artifacts: "/run of 'me'/artifacts", Binary: "/bin/genrm", JobID: "42", Secret: graph.Masked}
	for n := range c.Bindings {
		c.Bindings[n] = graph.Binding{Node: n, Host: fmt.Sprintf("10.0.0.%d", n), Ports: map[string]map[string]int{}, GPUs: map[string][]string{}, CPUs: 16, Paths: map[string]string{"ray": "/tmp/r"}}
	}
	for i, p := range g.Processes {
		b := c.Bindings[p.Node]
		b.Ports[p.Name] = map[string]int{}
		for j, purpose := range p.Ports() {
			b.Ports[p.Name][purpose] = 1000*(i+1) + j
			if purpose == "workers" {
				b.Ports[p.Name]["workers_end"] = 1000*(i+1) + 99
			}
		}
		for _, gpu := range p.GPUs {
			b.GPUs[p.Name] = append(b.GPUs[p.Name], fmt.Sprintf("GPU-%d", gpu))
		}
	}
	return c
}

func TestCommandOverNodes(t *testing.T) {
	g := build(t, compile(t, "../../examples/serve-sglang-two-nodes", ""), graph.Options{Block: "local"})
	got := commands(t, g, context(g))
	for _, want := range []string{
		`judge-0-0: ["python3" "-m" "sglang.launch_server"`,
		// Each rank listens at its own address and with its own port, and all meet at the first's.
		`"--host=10.0.0.0" "--port=1000" "--nccl-port=1001" "--tp-size=16" "--nnodes=2" "--node-rank=0" "--dist-init-addr=10.0.0.0:1002"`,
		`"--host=10.0.0.1" "--port=2000" "--nccl-port=2001" "--tp-size=16" "--nnodes=2" "--node-rank=1" "--dist-init-addr=10.0.0.0:1002"`,
		`"CUDA_VISIBLE_DEVICES=GPU-0,GPU-1,GPU-2,GPU-3,GPU-4,GPU-5,GPU-6,GPU-7"`,
		`gateway: ["/bin/genrm" "gateway" "--config=/run of 'me'/artifacts/gateway.json"]`,
		`"GENRM_UPSTREAMS=judge=http://10.0.0.0:1000"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	for node, want := range map[int]string{0: "[0 1]", 1: "[0 1]"} {
		if got := fmt.Sprint(g.Needs(node)); got != want {
			t.Errorf("node %d refers to %s, want %s", node, got, want)
		}
	}
	g = build(t, compile(t, `name: "x"
		serve: instances: big: {engine: "vllm", model_path: "a/b", num_gpus: 8, num_gpus_per_engine: 4}
		cluster: {nodes: 4, gpus_per_node: 2}`, ""), graph.Options{Block: "local"})
	got = commands(t, g, context(g))
	for _, want := range []string{
		`"--master-addr=10.0.0.0" "--master-port=1001"`, `"--master-addr=10.0.0.2" "--master-port=3001"`,
		`"GENRM_UPSTREAMS=big=http://10.0.0.0:1000,big=http://10.0.0.2:3000"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	for node, want := range map[int]string{0: "[0 1 2 3]", 1: "[0 1]", 2: "[2 3]", 3: "[2 3]"} {
		if got := fmt.Sprint(g.Needs(node)); got != want {
			t.Errorf("node %d refers to %s, want %s", node, got, want)
		}
	}
	// An address of IPv6 is written as URLs want it.
	c := context(g)
	for n := range c.Bindings {
		c.Bindings[n].Host = fmt.Sprintf("fd00::%d", n)
	}
	if got := commands(t, g, c); !strings.Contains(got, `"GENRM_UPSTREAMS=big=http://[fd00::0]:1000,big=http://[fd00::2]:3000"`) {
		t.Errorf("over IPv6:\n%s", got)
	}
}

func TestCommandOfDrivers(t *testing.T) {
	p := compile(t, `name: "x"
		local: ray: {num_cpus: 3, object_store_memory: 100000000, args: ["--labels={\"a\":1}{port:gcs}"]}
		relax: {root: "/relax", colocate: true, resource: {actor: [1, 2], rollout: [1, 2]}
			env: {RAY_USAGE_STATS_ENABLED: "1", RAY_ADDRESS: "mine:1", HF_TOKEN: {env: "TOKEN_OF_MINE"}, KEY: {file: "/k"}}
			args: {hf_checkpoint: "a/b", advantage_estimator: "grpo"}}`, "")
	g := build(t, p, graph.Options{Block: "local"})
	got := commands(t, g, context(g))
	for _, want := range []string{
		`ray-head: ["ray" "start" "--head" "--port=1000" "--dashboard-host=10.0.0.0" "--dashboard-port=1001" "--ray-client-server-port=1002" "--temp-dir=/tmp/r" "--block" "--node-ip-address=10.0.0.0"`,
		`"--min-worker-port=1009" "--max-worker-port=1099" "--num-cpus=3" "--num-gpus=2"`,
		`"--object-store-memory=100000000" "--labels={\"a\":1}{port:gcs}"]`, // the user's text is nobody's placeholder
		`  "RAY_AUTH_MODE=token"`, `  "RAY_AUTH_TOKEN_PATH=/run of 'me'/ray-token"`, `  "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0"`,
		`  "AUTOSCALER_METRIC_PORT=1010"`, `  "DASHBOARD_METRIC_PORT=1011"`,
		`  "RAY_USAGE_STATS_ENABLED=1"`, // the user's own wins
		`  "HF_TOKEN={secret:env:TOKEN_OF_MINE}"`, `  "KEY={secret:file:/k}"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "RAY_USAGE_STATS_ENABLED=0") || strings.Contains(got, `"RAY_ADDRESS=10.0.0.0:1000"`) || !strings.Contains(got, `"RAY_ADDRESS=mine:1"`) {
		t.Errorf("what the user says of Ray does not hold:\n%s", got)
	}
	if head := strings.Split(got, "driver: ")[0]; !strings.Contains(head, "HF_TOKEN=") {
		t.Error("the workers of Ray would not have the run's environment")
	}
	// Its own way to authenticate is the user's alone.
	p.Launch.Env.Set("RAY_AUTH_MODE", plan.EnvValue{Text: "disabled"})
	g = build(t, p, graph.Options{Block: "local"})
	if got := commands(t, g, context(g)); strings.Contains(got, "RAY_AUTH_TOKEN_PATH") {
		t.Errorf("a token beside it:\n%s", got)
	}
	// Gym: the driver asks the run's Ray, and the cores are the node's.
	g = build(t, compile(t, "../../examples/gym-genrm", ""), graph.Options{Block: "local"})
	got = commands(t, g, context(g))
	for _, want := range []string{`"--num-cpus=16"`, `"RAY_ADDRESS=10.0.0.0:1000"`, `driver: ["gym" "env" "start"`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	head, driver, _ := strings.Cut(got, "driver: ")
	if strings.Contains(head, "RAY_ADDRESS=") || strings.Contains(driver, "AUTOSCALER_METRIC_PORT=") {
		t.Errorf("head and driver share an environment:\n%s", got)
	}
	// Over nodes a worker goes to the head's address.
	g = build(t, compile(t, "../../examples/relax-397b-split", ""), graph.Options{Block: "slurm"})
	got = commands(t, g, context(g))
	if want := `ray-worker-1: ["ray" "start" "--address=10.0.0.0:1000" "--block" "--node-ip-address=10.0.0.1" "--node-manager-port=2000"`; !strings.Contains(got, want) {
		t.Errorf("no %s in\n%s", want, got)
	}
}

// hostile is text that a shell, a template or genrm itself might read.
const hostile = "{port:http} {host:0} {run_dir} {secret:env:HOME} {brace} {cpus} {path:ray} $(id) `id` $HOME 'a' \"b\" \\ %s é\x01 a\nb"

func TestTextOfTheUserSurvives(t *testing.T) {
	quoted, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	p := compile(t, `name: "x"
		serve: instances: q: {engine: "vllm", model_path: "m/m", num_gpus: 1, env: {Z: "1", TEXT: `+string(quoted)+`, A: "2"}, extra_args: ["--patched", `+string(quoted)+`]}`, "")
	g := build(t, p, graph.Options{Block: "local"})
	argv, env, err := g.Command(g.Peer("q-0"), context(g))
	if err != nil {
		t.Fatal(err)
	}
	if got := argv[len(argv)-1]; got != hostile {
		t.Errorf("argument %q", got)
	}
	if !slices.Equal(env, []string{"CUDA_VISIBLE_DEVICES=GPU-0", "VLLM_PORT=1001", "Z=1", "TEXT=" + hostile, "A=2"}) { // in the order of the file
		t.Errorf("environment %q", env)
	}
	if got := g.Peer("q-0").Ports(); !slices.Equal(got, []string{"http", "vllm"}) {
		t.Errorf("ports %v", got)
	}
}

func TestPorts(t *testing.T) {
	p := graph.Process{Name: "a", Argv: []plan.Arg{"--b=" + plan.Port("b"), plan.Port("a") + plan.Port("workers") + plan.Port("workers_end"), plan.Port("b"), plan.Lit("{port:c}"), plan.Port("gcs")}}
	p.Env.Set("D", plan.EnvValue{Text: plan.Port("d") + plan.Port("a")})
	for _, c := range []struct {
		peers []string
		want  string
	}{{nil, "[b a workers gcs d]"}, {[]string{"a", "b"}, "[b a workers gcs d]"}, {[]string{"b", "a"}, "[b a workers d]"}} {
		if p.Peers = c.peers; fmt.Sprint(p.Ports()) != c.want {
			t.Errorf("beside %v: %v, want %s", c.peers, p.Ports(), c.want)
		}
	}
}

func TestSecrets(t *testing.T) {
	g := build(t, compile(t, `name: "x"
		serve: instances: q: {engine: "vllm", model_path: "m/m", num_gpus: 1, env: {A: {env: "NAME"}, B: {file: "/a b"}}}`, ""), graph.Options{Block: "local"})
	c := context(g)
	_, env, err := g.Command(g.Peer("q-0"), c)
	if err != nil || !slices.Contains(env, "A={secret:env:NAME}") || !slices.Contains(env, "B={secret:file:/a b}") {
		t.Errorf("masked: %q, %v", env, err)
	}
	c.Secret = func(kind, name string) (string, error) { return "{" + kind + ":" + name + "} {port:http}", nil }
	_, env, err = g.Command(g.Peer("q-0"), c)
	if err != nil || !slices.Contains(env, "A={env:NAME} {port:http}") || !slices.Contains(env, "B={file:/a b} {port:http}") {
		t.Errorf("%q, %v", env, err)
	}
	c.Secret = func(kind, name string) (string, error) { return "", errors.New("not set") }
	if _, _, err = g.Command(g.Peer("q-0"), c); err == nil || err.Error() != "q-0: environment variable A: not set" {
		t.Errorf("%v", err)
	}
	c.Bindings[0].Ports["q-0"] = nil
	if _, _, err = g.Command(g.Peer("q-0"), c); err == nil || !strings.Contains(err.Error(), "q-0: word ") || !strings.Contains(err.Error(), "no port is bound for http") {
		t.Errorf("%v", err)
	}
}

func TestRoundTrip(t *testing.T) {
	for _, dir := range []string{"quickstart", "serve-two-vllm", "serve-sglang-two-nodes", "serve-openai-beside-local", "relax-397b-split", "gym-genrm"} {
		g := build(t, compile(t, "../../examples/"+dir, ""), graph.Options{Block: "local"})
		g.Processes[0].Env.Set("A", plan.EnvValue{SecretEnv: "NAME"})
		g.Processes[0].Env.Set("B", plan.EnvValue{SecretFile: "/a"})
		g.Processes[0].Env.Set("C", plan.EnvValue{Text: plan.Lit(hostile)})
		g.Processes[0].Argv = append(g.Processes[0].Argv, plan.Lit(hostile))
		text, err := json.Marshal(g)
		if err != nil {
			t.Fatal(err)
		}
		again, err := graph.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if text2, err := json.Marshal(again); err != nil || string(text2) != string(text) {
			t.Errorf("%s: %v\n%s\n%s", dir, err, text, text2)
		}
		if got, want := commands(t, again, context(again)), commands(t, g, context(g)); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", dir, got, want)
		}
		if got, want := describe(again), describe(g); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", dir, got, want)
		}
	}
	if _, err := graph.Parse([]byte("{")); err == nil {
		t.Error("half a file is a graph")
	}
}

func TestRehearse(t *testing.T) {
	for _, c := range []struct {
		name, src string
		processes string   // of the rehearsal, with their ports
		routes    []string // in gateway.json
	}{
		{"serve", `name: "x"
			serve: {
				instances: {
					v: {engine: "vllm", model_path: "m/m", num_gpus: 2, env: PATH: "/nowhere"}
					s: {engine: "sim", constant: "1", sampling_config: temperature: 0.7}
					o: {engine: "openai", base_url: "https://far.example/v1", model: "gpt", api_key: env: "KEY"}
				}
				gateway: {port: 18000, failure_policy: "mask", api_key: env: "GATEWAY_KEY"}
			}`, "v-0[http] v-1[http] s-0[http] o-0[http] gateway[]",
			[]string{"v sim v 2", "s sim s 1", "o sim gpt 1"}},
		{"relax", "../../examples/relax-dual-judge", "quality-0[http] safety-0[http] gateway[gateway]",
			[]string{"quality sim quality 1", "safety sim safety 1"}},
		{"relax with one judge", "../../examples/relax-colocated", "__default__-0[http] __default__-1[http] gateway[gateway]",
			[]string{"__default__ sim __default__ 2"}},
		{"gym", "../../examples/gym-genrm", "genrm_model-0[http] gateway[gateway]", []string{"genrm_model sim genrm_model 1"}},
		{"two nodes", "../../examples/serve-sglang-two-nodes", "judge-0[http] gateway[]", []string{"judge sim judge 1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := compile(t, c.src, "")
			before, err := p.JSON()
			if err != nil {
				t.Fatal(err)
			}
			r, err := graph.Rehearse(p)
			if err != nil {
				t.Fatal(err)
			}
			if after, err := p.JSON(); err != nil || string(after) != string(before) {
				t.Error("the plan itself was changed")
			}
			g := build(t, r, graph.Options{Block: "local", Rehearse: true})
			if g.Nodes != 1 || !g.Rehearsal || g.Workload != plan.Serve || graph.GPUs(r) != 0 {
				t.Errorf("%d nodes, %v, %s, %d GPUs", g.Nodes, g.Rehearsal, g.Workload, graph.GPUs(r))
			}
			var names []string
			for _, pr := range g.Processes {
				names = append(names, fmt.Sprint(pr.Name, pr.Ports()))
				if pr.Kind != graph.Service || pr.Role == graph.Engine && pr.Engine != "sim" || len(pr.GPUs) > 0 {
					t.Errorf("%s: %s %s %v", pr.Name, pr.Kind, pr.Engine, pr.GPUs)
				}
				argv, _, err := g.Command(pr, context(g))
				if err != nil || argv[0] != "/bin/genrm" {
					t.Errorf("%s: %q, %v", pr.Name, argv, err)
				}
				for _, a := range argv {
					if _, name, ok := strings.Cut(a, "/artifacts/"); ok && !slices.ContainsFunc(r.Artifacts, func(f plan.Artifact) bool { return f.Name == name }) {
						t.Errorf("%s: no artifact %s", pr.Name, name)
					}
				}
			}
			if got := strings.Join(names, " "); got != c.processes {
				t.Errorf("processes %s, want %s", got, c.processes)
			}
			var config struct {
				Port          any
				FailurePolicy string `json:"failure_policy"`
				APIKey        any    `json:"api_key"`
				Routes        []struct {
					RouteKey string `json:"route_key"`
					Engine   string
					Model    string
					Replicas int
				}
			}
			var script struct {
				Model string
				Echo  bool
			}
			for _, a := range r.Artifacts {
				v := any(&config)
				if a.Name != "gateway.json" {
					v = &script
				}
				if err := json.Unmarshal([]byte(a.Text), v); err != nil {
					t.Errorf("%s: %v", a.Name, err)
				}
			}
			var routes []string
			for _, x := range config.Routes {
				routes = append(routes, fmt.Sprintf("%s %s %s %d", x.RouteKey, x.Engine, x.Model, x.Replicas))
			}
			if !slices.Equal(routes, c.routes) {
				t.Errorf("routes %q, want %q", routes, c.routes)
			}
			if i := slices.IndexFunc(r.Artifacts, func(a plan.Artifact) bool { return strings.Contains(a.Text, `"constant"`) }); (i >= 0) != (c.name == "serve") {
				t.Errorf("a simulator of the user's answers as its own script says: %v", r.Artifacts)
			}
			if c.name == "serve" && (config.FailurePolicy != "mask" || config.APIKey == nil || config.Port != 18000.0) {
				t.Errorf("the gateway's own: %+v", config)
			}
		})
	}
	p := compile(t, "../../examples/gym-openai", "")
	p.Instances = nil
	if _, err := graph.Rehearse(p); err == nil || !strings.Contains(err.Error(), "has no judge to rehearse") {
		t.Errorf("without a judge: %v", err)
	}
}
