// Package graph turns a plan into the processes of each node: what is started,
// in which order, when it counts as ready, and what its end means.
//
// It may not touch a machine: hosts, ports and devices come as a [Binding]. It
// decides nothing that the plan says.
package graph

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// Kind says what the end of a process means.
type Kind string

// Kinds.
const (
	Service Kind = "service" // has to outlive the driver: its end is a failure, whatever its status
	Driver  Kind = "driver"  // its end is the run's, with its status
	Remote  Kind = "remote"  // no process: an endpoint that somebody else runs, only looked at
)

// Role says what a process is.
type Role string

// Roles.
const (
	Engine    Role = "engine"
	Gateway   Role = "gateway"
	RayHead   Role = "ray-head"
	RayWorker Role = "ray-worker"
	Main      Role = "driver"
	Endpoint  Role = "remote"
)

// Graph is graph.json: every process of a run, in the order in which they start.
type Graph struct {
	Name          string        `json:"name"`
	Workload      plan.Workload `json:"workload"`
	PlanHash      string        `json:"plan_hash"`
	Nodes         int           `json:"nodes"`
	Rehearsal     bool          `json:"rehearsal,omitempty"` // every engine is a simulator
	FailurePolicy string        `json:"failure_policy,omitempty"`
	Judges        *Judges       `json:"judges,omitempty"`
	Log           Log           `json:"log"`
	Processes     []*Process    `json:"processes"`
}

// Judges are those of another run, which stand beside a training run: its driver
// starts when they are ready, is told where they are, and does not outlive them.
type Judges struct {
	RunID string `json:"run_id"`
	Dir   string `json:"dir"`  // of their run, as the nodes see it
	Stop  bool   `json:"stop"` // they end with this run
}

// Log says how much of a process's output is kept.
type Log struct {
	MaxMiB int `json:"max_mib"` // size at which a log is put aside
	Keep   int `json:"keep"`    // logs that are put aside and kept
}

// Process is one process.
type Process struct {
	Name     string     `json:"name"`
	Kind     Kind       `json:"kind"`
	Role     Role       `json:"role"`
	RouteKey string     `json:"route_key,omitempty"`
	Engine   string     `json:"engine,omitempty"` // program of an engine: vllm, sglang, sim, openai
	Model    string     `json:"model,omitempty"`  // name by which it is asked
	Replica  int        `json:"replica"`
	NodeRank int        `json:"node_rank"`
	Node     int        `json:"node"`
	GPUs     []int      `json:"gpus,omitempty"` // indices on the node, as the plan counts
	Argv     []plan.Arg `json:"argv,omitempty"`
	Env      plan.Env   `json:"env"`
	WorkDir  string     `json:"workdir,omitempty"` // "" means where the run was launched
	After    []string   `json:"after,omitempty"`   // processes that have to be ready first
	// Peers are the processes of this one's replica by node rank: {host:N} is the
	// host of Peers[N], and the ports where they meet are those of Peers[0].
	Peers       []string  `json:"peers,omitempty"`
	Ready       *Ready    `json:"ready,omitempty"` // nil: ready once it runs
	Live        *Liveness `json:"live,omitempty"`  // nil: alive while it runs
	StopTimeout float64   `json:"stop_timeout"`    // seconds from TERM to KILL
	// Fixed are ports that the user chose, by purpose: nobody else may get them.
	Fixed map[string]int `json:"fixed_ports,omitempty"`
}

// Probe names the way in which readiness is seen.
type Probe string

// Probes.
const (
	ProbeJudge  Probe = "judge"  // GET /health is 200, and one token is generated under the served name
	ProbeHTTP   Probe = "http"   // GET URL is 200
	ProbeRay    Probe = "ray"    // the head answers, and Nodes nodes are alive
	ProbeRemote Probe = "remote" // the gateway reaches the endpoint
	ProbeRun    Probe = "run"    // the run in the folder URL is ready
)

// Ready says when a process counts as ready.
type Ready struct {
	Probe        Probe    `json:"probe"`
	URL          plan.Arg `json:"url"`             // base address
	Nodes        int      `json:"nodes,omitempty"` // of ProbeRay
	Timeout      float64  `json:"timeout"`         // seconds from the start
	Interval     float64  `json:"interval"`        // seconds between probes
	ProbeTimeout float64  `json:"probe_timeout"`   // seconds of one probe
	Field        string   `json:"field"`           // of the experiment: where Timeout is raised
}

// Liveness says when a ready process counts as dead although it runs: for
// FailureThreshold probes in a row GET URL is not 200, or the nodes that
// [ProbeRay] counted are not there.
type Liveness struct {
	URL              plan.Arg `json:"url"`
	Interval         float64  `json:"interval"`
	ProbeTimeout     float64  `json:"probe_timeout"`
	FailureThreshold int      `json:"failure_threshold"`
	Field            string   `json:"field"`
}

// Defaults in seconds, which the schema states too.
const (
	readyTimeout  = 1800.0
	readyInterval = 0.05
	readyProbe    = 120.0
	liveInterval  = 10.0
	liveProbe     = 60.0
	liveThreshold = 5
	stopTimeout   = 10.0
	logMaxMiB     = 64
	logKeep       = 4
)

// Options is what a target adds to a plan.
type Options struct {
	Block    string  // name of the target's block: local or slurm
	Rehearse bool    // replace every engine by a simulator
	Judges   *Judges // those that stand beside a training run; nil for none
}

// Build makes the graph of a plan. It fails for a plan without a command, and
// where two processes would have one name.
func Build(p *plan.Plan, o Options) (*Graph, error) {
	hash, err := p.Hash()
	if err != nil {
		return nil, err
	}
	settings, _ := p.Settings.Get(o.Block)
	g := &Graph{Name: p.Name, Workload: p.Workload, PlanHash: hash, Nodes: max(1, p.Cluster.NodesNeeded), Rehearsal: o.Rehearse, Log: Log{logMaxMiB, logKeep}}
	if log := settings.Field("log"); log.OK() {
		g.Log.MaxMiB = integer(log.Field("max_mib"), logMaxMiB)
		g.Log.Keep = integer(log.Field("keep"), logKeep)
	}
	stop := number(settings.Field("stop_timeout"), stopTimeout)
	switch {
	case p.Workload == plan.Serve && o.Judges != nil:
		return nil, fmt.Errorf("%s has no driver that could ask other judges", p.Name)
	case p.Workload == plan.Serve:
		g.serve(p, stop)
	default:
		if err := g.ray(p, settings, o.Block, stop); err != nil {
			return nil, err
		}
	}
	if o.Judges != nil {
		g.beside(o.Judges, o.Block)
	}
	return g, g.unique()
}

// unique refuses two processes of one name, which would share ports and a log:
// replica 0 of a judge a-0, and rank 0 of replica 0 of a judge a over nodes.
func (g *Graph) unique() error {
	seen := map[string]bool{}
	for _, p := range g.Processes {
		if seen[p.Name] {
			return fmt.Errorf("two processes would be called %s; rename a judge", p.Name)
		}
		seen[p.Name] = true
	}
	return nil
}

// Variables by which a driver finds the judges that stand beside.
const (
	JudgesURL       = "GENRM_JUDGES_URL"       // of their gateway
	JudgesEndpoints = "GENRM_JUDGES_ENDPOINTS" // path of their endpoints.json
)

// beside lets the driver come after the judges of another run, and end with them.
func (g *Graph) beside(j *Judges, block string) {
	g.Judges = j
	dir := plan.Lit(j.Dir)
	judges := &Process{Name: "judges", Kind: Remote, Role: Endpoint, Ready: &Ready{Probe: ProbeRun, URL: dir, Timeout: readyTimeout, Interval: 0.25, ProbeTimeout: 10, Field: block},
		Live: &Liveness{URL: dir, Interval: 1, ProbeTimeout: 10, FailureThreshold: 1, Field: block}}
	for _, p := range g.Processes {
		if p.Kind != Driver {
			continue
		}
		p.After = append(slices.Clone(p.After), judges.Name)
		p.Env = append(plan.Env(nil), p.Env...)
		setDefault(&p.Env, JudgesURL, plan.JudgesURL())
		setDefault(&p.Env, JudgesEndpoints, dir+"/endpoints.json")
	}
	g.Processes = append([]*Process{judges}, g.Processes...)
}

func integer(v *tree.Value, otherwise int) int {
	if n, ok := v.AsInt(); ok {
		return int(n)
	}
	return otherwise
}

func number(v *tree.Value, otherwise float64) float64 {
	if x, ok := v.AsFloat(); ok {
		return x
	}
	return otherwise
}

// readiness reads the user's block, field names the block in the experiment.
func readiness(v *tree.Value, probe Probe, url plan.Arg, field string) *Ready {
	return &Ready{
		Probe: probe, URL: url, Timeout: number(v.Field("timeout"), readyTimeout), Interval: number(v.Field("interval"), readyInterval),
		ProbeTimeout: number(v.Field("probe_timeout"), readyProbe), Field: field + ".readiness.timeout",
	}
}

func liveness(v *tree.Value, url plan.Arg, field string) *Liveness {
	return &Liveness{
		URL: url, Interval: number(v.Field("interval"), liveInterval), ProbeTimeout: number(v.Field("probe_timeout"), liveProbe),
		FailureThreshold: integer(v.Field("failure_threshold"), liveThreshold), Field: field + ".liveness.failure_threshold",
	}
}

// serve adds engines, remote endpoints and the gateway.
func (g *Graph) serve(p *plan.Plan, stop float64) {
	g.FailurePolicy = p.Gateway.FailurePolicy
	gateway := &Process{
		Name: "gateway", Kind: Service, Role: Gateway, Argv: p.Launch.Argv, Env: p.Launch.Env, StopTimeout: stop,
		Ready: readiness(nil, ProbeHTTP, gatewayURL(p)+"/health", "serve.gateway"), Live: liveness(nil, gatewayURL(p)+"/health", "serve.gateway"),
	}
	gateway.Ready.Timeout, gateway.Ready.ProbeTimeout = 60, 10
	if port, err := strconv.Atoi(string(p.Gateway.Port)); err == nil {
		gateway.Fixed = map[string]int{"gateway": port}
	}
	var remotes []*Process
	for _, e := range p.Instances {
		in, field := e.Value, tree.Join("serve.instances", e.Key)
		if in.Engine == "openai" {
			r := readiness(nil, ProbeRemote, gatewayURL(p), field)
			r.Timeout, r.Interval, r.ProbeTimeout, r.Field = 60, 1, 30, field+".base_url"
			remotes = append(remotes, &Process{Name: e.Key, Kind: Remote, Role: Endpoint, RouteKey: e.Key, Engine: in.Engine, Model: in.Model, After: []string{"gateway"}, Ready: r})
			continue
		}
		g.Processes = append(g.Processes, engines(e.Key, in, field, stop)...)
	}
	g.queueShared()
	g.Processes = append(append(g.Processes, gateway), remotes...)
}

// gatewayURL is the address at which this machine asks the gateway.
func gatewayURL(p *plan.Plan) plan.Arg {
	port := p.Gateway.Port
	if len(port.Placeholders()) > 0 {
		port = plan.Port("gateway")
	}
	return plan.Arg("http://"+dialable(p.Gateway.Host)+":") + port
}

// dialable is the address to ask for one that is listened on.
func dialable(host string) string {
	switch host = strings.Trim(host, "[]"); {
	case host == "0.0.0.0":
		return "127.0.0.1"
	case host == "::":
		return "[::1]"
	case strings.Contains(host, ":"):
		return "[" + host + "]"
	}
	return host
}

func engines(key string, in *plan.Instance, field string, stop float64) []*Process {
	var out []*Process
	nodes := map[int]int{} // replica → its nodes
	for _, at := range in.Placement {
		nodes[at.Replica]++
	}
	name := func(at plan.Placement) string {
		if nodes[at.Replica] > 1 {
			return fmt.Sprintf("%s-%d-%d", emit.FileName(key), at.Replica, at.NodeRank)
		}
		return fmt.Sprintf("%s-%d", emit.FileName(key), at.Replica)
	}
	base := plan.Arg("http://") + plan.Host(0) + ":" + plan.Port("http")
	for i, argv := range in.Argv {
		at := in.Placement[i]
		pr := &Process{
			Name: name(at), Kind: Service, Role: Engine, RouteKey: key, Engine: in.Engine, Model: in.Model, Replica: at.Replica, NodeRank: at.NodeRank,
			Node: max(0, at.Node), GPUs: at.GPUs, Argv: argv, Env: in.Env, StopTimeout: number(in.Settings.Field("stop_timeout"), stop),
		}
		for _, other := range in.Placement {
			if other.Replica == at.Replica {
				pr.Peers = append(pr.Peers, name(other))
			}
		}
		if at.NodeRank == 0 { // the others of a replica answer no requests
			pr.Ready = readiness(in.Settings.Field("readiness"), ProbeJudge, base, field)
			pr.Live = liveness(in.Settings.Field("liveness"), base+"/health", field)
		}
		out = append(out, pr)
	}
	return out
}

// queueShared lets engines that share a GPU start one after another: two that
// measure free memory at the same time both get it wrong.
func (g *Graph) queueShared() {
	type device struct{ node, gpu int }
	last := map[device]string{}
	for _, p := range g.Processes {
		for _, gpu := range p.GPUs {
			at := device{p.Node, gpu}
			if before, ok := last[at]; ok && !slices.Contains(p.After, before) {
				p.After = append(p.After, before)
			}
			last[at] = p.Name
		}
	}
}

// Devices is the number of GPUs of a node that its processes use, as the plan
// counts them.
func (g *Graph) Devices(node int) int {
	n := 0
	for _, p := range g.On(node) {
		for _, i := range p.GPUs {
			n = max(n, i+1)
		}
	}
	return n
}

// Peer returns a process by name, or nil.
func (g *Graph) Peer(name string) *Process {
	for _, p := range g.Processes {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// On lists the processes of a node.
func (g *Graph) On(node int) []*Process {
	var out []*Process
	for _, p := range g.Processes {
		if p.Node == node {
			out = append(out, p)
		}
	}
	return out
}

// Strides are ports that engines count on from by themselves: each replica gets
// a range of its own.
const StridePorts = 100

// Strided reports whether a process uses a range of ports from the one that is
// given for a purpose.
func Strided(purpose string) bool {
	switch purpose {
	case "vllm", "nccl", "dist_init", "workers":
		return true
	}
	return false
}

// shared are the ports where the nodes of a replica, or all nodes, meet: those of
// the first.
func shared(purpose string) bool {
	return slices.Contains([]string{"master", "dp_rpc", "dist_init", "gcs", "dashboard"}, purpose)
}

// Ports lists the port purposes that a process binds itself, each once, in
// order.
func (p *Process) Ports() []string {
	var out []string
	add := func(a plan.Arg) {
		for _, h := range a.Placeholders() {
			if h.Kind == "port" && h.Name != "workers_end" && !slices.Contains(out, h.Name) && (!shared(h.Name) || len(p.Peers) == 0 || p.Peers[0] == p.Name) {
				out = append(out, h.Name)
			}
		}
	}
	for _, a := range p.Argv {
		add(a)
	}
	for _, e := range p.Env {
		add(e.Value.Text)
	}
	return out
}

// Binding is nodes/N.json: what was chosen on one node.
type Binding struct {
	Node  int                       `json:"node"`
	Host  string                    `json:"host"`            // address at which the other nodes reach it
	Ports map[string]map[string]int `json:"ports"`           // process → purpose → port, the first of a range
	GPUs  map[string][]string       `json:"gpus"`            // process → devices, as CUDA_VISIBLE_DEVICES wants them
	CPUs  int                       `json:"cpus,omitempty"`  // cores of the node
	Paths map[string]string         `json:"paths,omitempty"` // purpose → folder that the run has on this node, such as ray
}

// Context is what a command is completed with.
type Context struct {
	Bindings  []Binding // of every node that the process refers to, by node
	RunDir    string
	Artifacts string // folder of artifacts as the process sees it
	Binary    string // genrm itself
	JobID     string
	Judges    func() (string, error)                  // address of the judges that stand beside
	Secret    func(kind, name string) (string, error) // kind is env or file
}

// Masked shows secrets as their references: for what is written and printed.
func Masked(kind, name string) (string, error) { return "{secret:" + kind + ":" + name + "}", nil }

// Command completes a process's argv and environment. Text of the user's comes
// out byte for byte.
func (g *Graph) Command(p *Process, c Context) (argv, env []string, err error) {
	for i, a := range p.Argv {
		s, err := g.fill(p, a, c)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: word %d of its command: %w", p.Name, i+1, err)
		}
		if i == 0 && s == "genrm" {
			s = c.Binary
		}
		argv = append(argv, s)
	}
	if gpus := c.Bindings[p.Node].GPUs[p.Name]; len(gpus) > 0 {
		env = append(env, "CUDA_VISIBLE_DEVICES="+strings.Join(gpus, ","))
	}
	for _, e := range p.Env {
		var v string
		switch {
		case e.Value.SecretEnv != "":
			v, err = c.Secret("env", e.Value.SecretEnv)
		case e.Value.SecretFile != "":
			v, err = c.Secret("file", e.Value.SecretFile)
		default:
			v, err = g.fill(p, e.Value.Text, c)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: environment variable %s: %w", p.Name, e.Key, err)
		}
		env = append(env, e.Key+"="+v)
	}
	return argv, env, nil
}

// URL completes an address that a process is asked at.
func (g *Graph) URL(p *Process, a plan.Arg, c Context) (string, error) { return g.fill(p, a, c) }

func (g *Graph) fill(p *Process, a plan.Arg, c Context) (string, error) {
	return a.Bind(func(h plan.Placeholder) (string, error) {
		switch h.Kind {
		case "port":
			owner := p
			if shared(h.Name) && len(p.Peers) > 0 {
				owner = g.Peer(p.Peers[0])
			}
			return g.port(owner, h.Name, c)
		case "host":
			n, err := strconv.Atoi(h.Name)
			if err != nil {
				return "", err
			}
			node := p.Node
			if n < len(p.Peers) {
				node = g.Peer(p.Peers[n]).Node
			}
			return bracketed(c.Bindings[node].Host), nil
		case "upstreams":
			return g.upstreams(c)
		case "rank":
			return strconv.Itoa(p.NodeRank), nil
		case "job_id":
			return c.JobID, nil
		case "run_dir":
			return c.RunDir, nil
		case "judges_url":
			if c.Judges == nil {
				return "", fmt.Errorf("no judges stand beside")
			}
			return c.Judges()
		case "cpus":
			return strconv.Itoa(max(1, c.Bindings[p.Node].CPUs)), nil
		case "path":
			if path := c.Bindings[p.Node].Paths[h.Name]; path != "" {
				return path, nil
			}
			return "", fmt.Errorf("no folder is bound for %s", h.Name)
		case "file":
			return c.Artifacts + "/" + h.Name, nil
		case "secret":
			kind, name, _ := strings.Cut(h.Name, ":")
			return c.Secret(kind, name)
		}
		return "", fmt.Errorf("unknown placeholder")
	})
}

// bracketed writes an IPv6 address as URLs and --flag=host:port want it.
func bracketed(host string) string {
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return "[" + host + "]"
	}
	return host
}

func (g *Graph) port(p *Process, purpose string, c Context) (string, error) {
	if port := c.Bindings[p.Node].Ports[p.Name][purpose]; port > 0 {
		return strconv.Itoa(port), nil
	}
	// An address of the gateway in somebody else's probe.
	if gw := g.Peer("gateway"); gw != nil && purpose == "gateway" {
		if port := c.Bindings[gw.Node].Ports[gw.Name][purpose]; port > 0 {
			return strconv.Itoa(port), nil
		}
	}
	return "", fmt.Errorf("no port is bound for %s", purpose)
}

// upstreams are the addresses of the engines in the form that the gateway reads.
func (g *Graph) upstreams(c Context) (string, error) {
	var out []string
	for _, p := range g.Processes {
		if p.Role != Engine || p.NodeRank != 0 {
			continue
		}
		url, err := g.fill(p, p.Ready.URL, c)
		if err != nil {
			return "", err
		}
		out = append(out, p.RouteKey+"="+url)
	}
	return strings.Join(out, ","), nil
}

// Needs lists the nodes whose binding the processes of a node refer to.
func (g *Graph) Needs(node int) []int {
	need := map[int]bool{node: true}
	for _, p := range g.On(node) {
		for _, name := range p.Peers {
			need[g.Peer(name).Node] = true
		}
		if p.Role == Gateway {
			for _, e := range g.Processes {
				if e.Role == Engine {
					need[e.Node] = true
				}
			}
		}
	}
	var out []int
	for n := range g.Nodes {
		if need[n] {
			out = append(out, n)
		}
	}
	return out
}

// Parse reads graph.json.
func Parse(data []byte) (*Graph, error) {
	g := new(Graph)
	if err := json.Unmarshal(data, g); err != nil {
		return nil, err
	}
	return g, nil
}
