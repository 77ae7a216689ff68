package graph

import (
	"fmt"
	"strconv"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
)

// GPUs is the number of GPUs of a node that a plan uses.
func GPUs(p *plan.Plan) int {
	if p.Cluster.NodesNeeded > 1 {
		return p.Cluster.GPUsPerNode
	}
	return need.GPUs(p)
}

// ray adds a Ray head, its workers on the other nodes, and the driver. The Ray
// is the run's own: nothing is stopped by name (`ray stop` would end every Ray
// of the machine), and every port and folder is the run's.
func (g *Graph) ray(p *plan.Plan, settings *tree.Value, block string, stop float64) error {
	if len(p.Launch.Argv) == 0 {
		return fmt.Errorf("the plan has no command")
	}
	own := settings.Field("ray")
	field := block + ".ray"
	gpus := GPUs(p)
	devices := make([]int, gpus)
	for i := range devices {
		devices[i] = i
	}
	var names []string
	for n := range g.Nodes {
		if n == 0 {
			names = append(names, "ray-head")
		} else {
			names = append(names, fmt.Sprintf("ray-worker-%d", n))
		}
	}
	cpus := plan.CPUs()
	if n, ok := own.Field("num_cpus").AsInt(); ok {
		cpus = plan.Arg(strconv.FormatInt(n, 10))
	} else if n := p.Cluster.CPUsPerNode; n > 0 {
		cpus = plan.Arg(strconv.Itoa(n))
	}
	// The environment of the run holds for Ray, too: its workers inherit it.
	env := rayEnv(p.Launch.Env)
	for n, name := range names {
		argv := []plan.Arg{"ray", "start"}
		env := env
		if n == 0 {
			argv = append(argv, "--head", "--port="+plan.Port("gcs"), "--dashboard-host="+plan.Host(0), "--dashboard-port="+plan.Port("dashboard"),
				"--ray-client-server-port="+plan.Port("client"), "--temp-dir="+plan.Path("ray"))
			env = append(plan.Env(nil), env...)
			// Two listeners that have no flag. Source: ray/dashboard/consts.py and autoscaler/_private/constants.py at 2.60.0.
			setDefault(&env, "AUTOSCALER_METRIC_PORT", plan.Port("autoscaler_metrics"))
			setDefault(&env, "DASHBOARD_METRIC_PORT", plan.Port("dashboard_metrics"))
		} else {
			argv = append(argv, "--address="+plan.Host(0)+":"+plan.Port("gcs"))
		}
		argv = append(argv, "--block", "--node-ip-address="+plan.Host(n),
			"--node-manager-port="+plan.Port("node_manager"), "--object-manager-port="+plan.Port("object_manager"),
			"--dashboard-agent-listen-port="+plan.Port("agent"), "--dashboard-agent-grpc-port="+plan.Port("agent_grpc"),
			"--runtime-env-agent-port="+plan.Port("runtime_env"), "--metrics-export-port="+plan.Port("metrics"),
			"--min-worker-port="+plan.Port("workers"), "--max-worker-port="+plan.Port("workers_end"),
			"--num-cpus="+cpus, "--num-gpus="+plan.Arg(strconv.Itoa(gpus)), "--disable-usage-stats", "--log-style=record", "--log-color=false")
		if b, ok := own.Field("object_store_memory").AsInt(); ok {
			argv = append(argv, "--object-store-memory="+plan.Arg(strconv.FormatInt(b, 10)))
		}
		if args := own.Field("args"); args.OK() {
			for _, a := range args.Items {
				argv = append(argv, plan.Lit(a.Text))
			}
		}
		pr := &Process{Name: name, Kind: Service, Role: RayWorker, NodeRank: n, Node: n, GPUs: devices, Argv: argv, Env: env, Peers: names, StopTimeout: stop}
		if n == 0 {
			pr.Role = RayHead
			pr.Ready = readiness(own.Field("readiness"), ProbeRay, "http://"+plan.Host(0)+":"+plan.Port("dashboard"), field)
			pr.Ready.Nodes = 1
			if own.Lookup("readiness", "timeout") == nil {
				pr.Ready.Timeout = 300
			}
			pr.Live = rayLiveness(own, field)
		} else {
			pr.After = names[:1]
		}
		g.Processes = append(g.Processes, pr)
	}
	driver := &Process{Name: "driver", Kind: Driver, Role: Main, GPUs: devices, Argv: p.Launch.Argv, Env: env, WorkDir: p.Launch.WorkDir, Peers: names, After: names, StopTimeout: stop}
	driver.Env = append(plan.Env(nil), env...)
	setDefault(&driver.Env, "RAY_ADDRESS", plan.Host(0)+":"+plan.Port("gcs"))
	if g.Nodes > 1 { // the last worker's joining is what the driver waits for
		last := g.Processes[len(g.Processes)-1]
		last.Ready = &Ready{Probe: ProbeRay, Nodes: g.Nodes, URL: "http://" + plan.Host(0) + ":" + plan.Port("dashboard"),
			Timeout: g.Processes[0].Ready.Timeout, Interval: readyInterval, ProbeTimeout: 10, Field: g.Processes[0].Ready.Field}
		last.Live = rayLiveness(own, field)
	}
	g.Processes = append(g.Processes, driver)
	return nil
}

// rayLiveness has the dashboard count nodes. `ray start --block` goes on without
// its node when the raylet ends with status 0, which it does when its agent is
// killed, such as for want of memory; the health of the rest stays good, and a
// driver that waits for something else does not notice. Observed in 2.60.0.
func rayLiveness(own *tree.Value, field string) *Liveness {
	l := liveness(own.Field("liveness"), "http://"+plan.Host(0)+":"+plan.Port("dashboard"), field)
	if own.Lookup("liveness", "interval") == nil {
		l.Interval = 2
	}
	return l
}

// TokenFile is the file of the run that holds the token of its Ray, readable by
// its owner alone and removed at the end.
const TokenFile = "ray-token"

// rayEnv is the environment of Ray and the driver. Most of Ray's ports listen on
// every address, so the cluster wants a token of its own; the mode is stated in
// any case, since it otherwise depends on whether ~/.ray/auth_token exists, on
// each node by itself. A release without tokens ignores this.
//
// Ray's default at SIGTERM is to wait up to 30 s for what still runs; the driver
// has ended then.
func rayEnv(user plan.Env) plan.Env {
	env := append(plan.Env(nil), user...)
	if _, given := env.Get("RAY_AUTH_MODE"); !given {
		setDefault(&env, "RAY_AUTH_MODE", "token")
		setDefault(&env, "RAY_AUTH_TOKEN_PATH", "{run_dir}/"+TokenFile)
	}
	setDefault(&env, "RAY_USAGE_STATS_ENABLED", "0")
	setDefault(&env, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0")
	return env
}

func setDefault(env *plan.Env, name string, value plan.Arg) {
	if _, given := env.Get(name); !given {
		env.Set(name, plan.EnvValue{Text: value})
	}
}
