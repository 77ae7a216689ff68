package compiler

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/image"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// serveRun is a serve workload on its way to a plan.
type serveRun struct {
	e    *experiment
	pack packer
	sum  []string // of the GPUs, by judge: "2 (quality)"
}

func compileServe(e *experiment, w *tree.Value) {
	s := &serveRun{e: e, pack: packer{perNode: e.plan.Cluster.GPUsPerNode}}
	s.gateway(w)
	instances := w.Field("instances")
	if instances.OK() && len(instances.Fields) == 0 {
		e.report("GRM6012", diag.Error, instances, "no instances", "A serve workload answers for at least one judge.", "add an instance, such as quality: {engine: \"sim\", constant: \"1\"}")
	}
	if instances.OK() {
		for _, f := range instances.Fields {
			if f.Value.Kind != tree.Struct {
				continue
			}
			kind, _ := f.Value.Field("engine").AsString()
			switch kind {
			case "vllm", "sglang":
				s.engine(f.Name, kind, f.Value)
			case "openai":
				s.openai(f.Name, f.Value)
			case "sim":
				s.sim(f.Name, f.Value)
			}
		}
	}
	e.capacity(s.pack, strings.Join(s.sum, " + "))
	if e.plan.Cluster.GPUsPerNode == 0 && s.pack.next > 0 && e.root.Lookup("cluster", "gpus_per_node") == nil {
		e.fact("cluster.gpus_per_node", "not stated: GPUs are counted through, each engine is taken to fit one node, and capacity is not checked")
	}
	if s.pack.next == 0 && e.plan.Cluster.NodesNeeded == 0 {
		e.plan.Cluster.NodesNeeded = 1 // simulators and the gateway need no GPU
	}
	s.launch()
	if e.plan.Target == plan.Ray || e.plan.Target == plan.KubeRay {
		s.onRay()
	}
}

// onRay tells what a Ray Serve application leaves to the gateway.
func (s *serveRun) onRay() {
	s.e.fact("serve", "Ray Serve starts the engines, by the keyword arguments of its application: no command line of a judge is run")
	for _, i := range s.e.plan.Instances {
		path := tree.Join("serve.instances", i.Key)
		switch i.Value.Engine {
		case "vllm":
			for _, v := range i.Value.Env {
				if v.Value.SecretEnv != "" {
					where := "the node's own environment"
					if s.e.plan.Target == plan.KubeRay {
						where = "their pods: kuberay.secrets, a template or the image must set it"
						if s.e.root.Lookup("kuberay", "secrets", v.Value.SecretEnv) != nil {
							where = "their pods, where kuberay.secrets sets it"
						}
					}
					s.e.fact(tree.Join(path+".env", v.Key), "its replicas read it from "+v.Value.SecretEnv+" of "+where)
				}
			}
			s.e.fact(path+".sampling_config", "sampling defaults are no part of a Ray Serve application: `genrm gateway --run ID` sends them, and who asks the application itself gets vLLM's")
		case "openai":
			s.e.fact(path, "nothing is deployed for it: `genrm gateway --run ID` asks it")
		}
	}
}

// gateway settles where the service API listens.
func (s *serveRun) gateway(w *tree.Value) {
	e, v := s.e, w.Field("gateway")
	g := &plan.Gateway{Host: "127.0.0.1", Port: plan.Port("gateway"), FailurePolicy: "error", Settings: v}
	if host, ok := v.Field("host").AsString(); ok {
		g.Host = host
		if !loopback(host) && v.Field("api_key") == nil {
			e.report("GRM6001", diag.Error, v.Field("host"), fmt.Sprintf("the gateway listens on %s without an api_key", host),
				"Whoever reaches the port can ask the judges, and read the prompts that others send to a judge that echoes them.",
				`add api_key: {env: "GENRM_API_KEY"}, or listen on 127.0.0.1`)
		}
	}
	if port, ok := v.Field("port").AsInt(); ok {
		g.Port = plan.Arg(fmt.Sprint(port))
	}
	if policy, ok := v.Field("failure_policy").AsString(); ok {
		g.FailurePolicy = policy
	}
	e.plan.Gateway = g
}

// loopback reports whether only this machine reaches a host.
func loopback(host string) bool {
	host = strings.Trim(host, "[]")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// launch is the gateway's command and the artifact that it reads: the routes in
// the user's order, secrets as references. The addresses of engines that the
// run starts are not in it: they are known when ports are, and reach the gateway
// by its environment, as does a port that the user left open.
func (s *serveRun) launch() {
	p := s.e.plan
	g := p.Gateway
	root := &tree.Value{Kind: tree.Struct}
	put(root, "host", tree.Text(g.Host))
	port := tree.Text(string(g.Port))
	if n, ok := g.Settings.Field("port").AsInt(); ok {
		port = tree.Integer(int(n))
	}
	put(root, "port", port)
	put(root, "failure_policy", tree.Text(g.FailurePolicy))
	if key := g.Settings.Field("api_key"); key.OK() {
		put(root, "api_key", key)
	}
	routes := &tree.Value{Kind: tree.List}
	for _, i := range p.Instances {
		r := &tree.Value{Kind: tree.Struct}
		put(r, "route_key", tree.Text(i.Key))
		put(r, "engine", tree.Text(i.Value.Engine))
		put(r, "model", tree.Text(i.Value.Model))
		put(r, "replicas", tree.Integer(i.Value.Replicas))
		if i.Value.Engine == "openai" {
			for _, name := range []string{"base_url", "api_key", "default_headers", "session_key_headers"} {
				if v := i.Value.Settings.Field(name); v.OK() {
					put(r, name, v)
				}
			}
		}
		put(r, "sampling_config", i.Value.SamplingConfig)
		routes.Items = append(routes.Items, r)
	}
	put(root, "routes", routes)
	p.Artifacts = append([]plan.Artifact{{Name: "gateway.json", Text: root.JSON() + "\n"}}, p.Artifacts...)
	p.Launch = plan.Launch{Argv: []plan.Arg{"genrm", "gateway", "--config=" + plan.File("gateway.json")}}
	if len(g.Port.Placeholders()) > 0 {
		p.Launch.Env.Set("GENRM_PORT_GATEWAY", plan.EnvValue{Text: g.Port})
	}
	for _, i := range p.Instances {
		if i.Value.Engine != "openai" {
			p.Launch.Env.Set("GENRM_UPSTREAMS", plan.EnvValue{Text: plan.Upstreams()})
			break
		}
	}
}

func put(v *tree.Value, name string, x *tree.Value) {
	v.Fields = append(v.Fields, tree.Field{Name: name, Value: x})
}

// clone returns v with a list of fields of its own; nil gives an empty struct.
func clone(v *tree.Value) *tree.Value {
	out := &tree.Value{Kind: tree.Struct}
	if v.OK() {
		*out = *v
		out.Fields = slices.Clone(v.Fields)
	}
	return out
}

// maxGPUs bounds what is placed GPU by GPU.
const maxGPUs = 1 << 16

// engine plans a judge that the run serves itself.
func (s *serveRun) engine(key, kind string, v *tree.Value) {
	e := s.e
	config := v.Field("engine_config")
	if config != nil && !config.OK() {
		config = nil
	}
	cat := s.release(kind, v)
	path := e.modelPath(v.Field("model_path"))
	num, per := v.Size("num_gpus"), 1
	if x := v.Field("num_gpus_per_engine"); x != nil {
		per = v.Size("num_gpus_per_engine")
	}
	inst := &plan.Instance{
		Engine: kind, Model: key, ModelPath: path, NumGPUs: num, NumGPUsPerEngine: per,
		Bundles: []int{}, Argv: [][]plan.Arg{}, Placement: []plan.Placement{},
		Settings: v, Env: s.env(kind, v), Image: s.image(v, cat),
		EngineConfig: clone(config),
	}
	if cat != nil {
		inst.EngineVersion = cat.Version
	}
	e.plan.Instances.Set(key, inst)

	c := s.common(kind, cat, config)
	if c.context == nil && (config == nil || !config.OK() || config.Field("max_context_len") == nil) {
		put(inst.EngineConfig, "max_context_len", tree.Integer(defaultContext))
		e.fact(e.relative(v), fmt.Sprintf("max_context_len is %d, genrm's default: set engine_config.max_context_len for another", defaultContext))
	}
	response := defaultResponse
	if n := intOf(c.context); n > 1 && n <= defaultResponse && v.Lookup("sampling_config", "max_response_len") == nil {
		response = n / 2
		e.fact(e.relative(v), fmt.Sprintf("max_response_len is %d, half of the context: genrm's default of %d does not fit it", response, defaultResponse))
	}
	inst.SamplingConfig = s.sampling(kind, v, response)
	e.judgeSanity(judge{at: v, model: v.Field("model_path"), context: c.context, sampling: v.Field("sampling_config"), maxResponse: int64(response)})

	shape := s.shape(key, kind, v, config, c, per)
	flags := s.flags(kind, cat, config, v, c, shape)
	if replicas := e.wholeEngines(key, v.Field("num_gpus"), v.Field("num_gpus_per_engine"), num, per); replicas > 0 && shape.tp > 0 {
		at := v.Field("num_gpus_per_engine")
		if at == nil {
			at = v.Field("num_gpus")
		}
		switch {
		case num > maxGPUs:
			e.report("GRM7006", diag.Error, v.Field("num_gpus"), fmt.Sprintf("num_gpus %d of %s is more than genrm places", num, key),
				fmt.Sprintf("The limit is %d GPUs.", maxGPUs), "check the number for a typing mistake")
		case e.engineFits(key, per, shape.product(), at):
			inst.Replicas = replicas
			inst.TensorParallel, inst.PipelineParallel, inst.DataParallel = shape.tp, shape.pp, shape.dp
			s.sum = append(s.sum, fmt.Sprintf("%d (%s)", num, key))
			for r := range replicas {
				bundles := s.pack.take(per)
				inst.Bundles = append(inst.Bundles, bundles...)
				inst.Placement = append(inst.Placement, s.pack.place(r, bundles)...)
			}
			s.commands(inst, cat, flags, c, config)
		}
	}
}

// Defaults of a judge that is served here; the schema states them, too.
const (
	defaultContext  = 8192
	defaultResponse = 4096
)

// release picks the catalogue of engine_version, or of the engine's default.
func (s *serveRun) release(kind string, v *tree.Value) *engines.Catalogue {
	want := v.Field("engine_version")
	if want == nil {
		cat, why := s.defaultRelease(kind)
		s.e.fact(s.e.relative(v), fmt.Sprintf("flags are checked against %s, %s", programOf(cat), why))
		return cat
	}
	version, ok := want.AsString()
	if !ok {
		return nil
	}
	cat, ok := engines.Get(kind, version)
	if !ok {
		known := engines.Versions(kind)
		remedy := "write one of them, or leave engine_version out"
		if near := diag.DidYouMean(version, known); near != "" {
			remedy = near
		}
		s.e.report("GRM6006", diag.Error, want, fmt.Sprintf("no flag catalogue of %s %s", programName(kind), version),
			"Known releases: "+strings.Join(known, ", ")+".", remedy)
		return nil
	}
	s.e.fact(s.e.relative(v), fmt.Sprintf("flags are checked against %s, as engine_version says", programOf(cat)))
	return cat
}

// defaultRelease is the release that is checked where engine_version is left
// out, and why: the newest that is known, but on Ray what Ray brings. Ray Serve
// starts the vLLM that ray[llm] pins, whatever a file says.
func (s *serveRun) defaultRelease(kind string) (cat *engines.Catalogue, why string) {
	cat = engines.Latest(kind)
	target := s.rayTarget()
	if kind != "vllm" || target == "" {
		return cat, "the newest release that genrm knows"
	}
	ray, from := engines.LatestRay(), "the newest Ray release that genrm knows"
	if version, ok := s.e.root.Lookup(string(plan.Ray), "version").AsString(); ok && target == plan.Ray {
		ray, from = version, "as ray.version says"
	}
	if target == plan.KubeRay {
		block := s.e.root.Field(string(plan.KubeRay))
		ref, _ := block.Field("image").AsString()
		if version, ok := block.Field("rayVersion").AsString(); ok {
			ray, from = version, "as kuberay.rayVersion says"
		} else if tag := image.Ray(ref); tag != "" {
			ray, from = tag, "as the tag of kuberay.image says"
		}
	}
	pin, _ := engines.RayLLM(ray)
	pinned, ok := engines.Get(kind, pin)
	if !ok {
		return cat, fmt.Sprintf("the newest release that genrm knows: which one ray[llm] of Ray %s (%s) pins is not known", ray, from)
	}
	return pinned, fmt.Sprintf("which ray[llm] pins in Ray %s, %s", ray, from)
}

// rayTarget is the target of Ray's on which the judges run: the chosen one or,
// when none is chosen, that which has a block and so is checked; else "".
func (s *serveRun) rayTarget() plan.Target {
	for _, t := range []plan.Target{plan.Ray, plan.KubeRay} {
		if s.e.plan.Target == t || s.e.plan.Target == "" && s.e.root.Field(string(t)) != nil {
			return t
		}
	}
	return ""
}

func programName(engine string) string {
	name, _, _ := strings.Cut(programOf(&engines.Catalogue{Engine: engine}), " ")
	return name
}

// commonConfig is what the keys that every engine has come to, each from its
// common key or from the engine's own flag. A nil field was not given.
type commonConfig struct {
	context, pp, dp, ep, memory *tree.Value
	own                         map[string]bool // common keys that were given as the engine's own flag
}

// ownFlags is how an engine calls the common keys.
var ownFlags = map[string]map[string]string{
	"vllm": {"max_context_len": "max_model_len", "dp_size": "data_parallel_size", "pp_size": "pipeline_parallel_size",
		"ep_size": "enable_expert_parallel", "mem_fraction_static": "gpu_memory_utilization"},
	"sglang": {"max_context_len": "context_length", "dp_size": "dp_size", "pp_size": "pp_size", "ep_size": "ep_size", "mem_fraction_static": "mem_fraction_static"},
}

// common reads the common keys and reports (GRM6004) one that is given twice,
// in its common form and as the engine's own flag.
func (s *serveRun) common(kind string, cat *engines.Catalogue, config *tree.Value) commonConfig {
	c := commonConfig{own: map[string]bool{}}
	if config == nil {
		return c
	}
	pick := func(common string) *tree.Value {
		v := config.Field(common)
		own := ownName(kind, common, cat, config)
		switch {
		case own == "":
			return v
		case v == nil:
			c.own[common] = true
			return config.Field(own)
		}
		s.e.reportKey("GRM6004", diag.Error, config, own, fmt.Sprintf("%s and %s are the same setting", own, common),
			fmt.Sprintf("%s is what %s calls %s.", own, programName(kind), common), "keep "+common+", which means this for every engine",
			diag.Related{Pos: config.KeyPos(common), Message: "set here, too"})
		return nil
	}
	c.context, c.pp, c.dp, c.ep, c.memory = pick("max_context_len"), pick("pp_size"), pick("dp_size"), pick("ep_size"), pick("mem_fraction_static")
	return c
}

// ownName returns the key by which config sets a common key as the engine's own
// flag, in whatever spelling, or "".
func ownName(kind, common string, cat *engines.Catalogue, config *tree.Value) string {
	own := ownFlags[kind][common]
	for _, f := range config.Fields {
		if f.Name == common {
			continue
		}
		if f.Name == own {
			return own
		}
		if cat != nil {
			if flag, _ := cat.Lookup(f.Name); flag.AliasOf == own || flag.Name == own && flag.AliasOf == "" {
				return f.Name
			}
		}
	}
	return ""
}

// shape works out the parallel sizes of one engine and reports those that
// cannot be.
func (s *serveRun) shape(key, kind string, v, config *tree.Value, c commonConfig, per int) parallelism {
	e := s.e
	for _, x := range []*tree.Value{c.pp, c.dp, c.ep} {
		if x != nil && x.Kind != tree.Int && x.Kind != tree.Bool {
			return parallelism{} // faulty
		}
	}
	perAt := v.Field("num_gpus_per_engine")
	if perAt == nil {
		perAt = v.Field("num_gpus")
	}
	if per < 1 || !perAt.OK() {
		return parallelism{}
	}
	pp, dp := intOf(c.pp), intOf(c.dp)
	inside := kind == "sglang" && !isFalse(config.Field("enable_dp_attention"))
	shape, ok := e.tensorParallel(key, per, pp, dp, inside, perAt, c.pp, c.dp)
	if !ok {
		return shape
	}
	heads := shape.tp
	if shape.dpInside {
		heads = shape.tp / shape.dp
	}
	e.modelFits(key, v.Field("model_path"), heads, shape.pp, perAt)
	if ep := intOf(c.ep); c.ep != nil && c.ep.Kind == tree.Int && ep != 1 {
		switch all := shape.tp * shape.dp; {
		case kind == "vllm" && ep != all:
			e.report("GRM6005", diag.Error, c.ep, fmt.Sprintf("ep_size %d of %s, but vLLM's would be %d", ep, key, all),
				fmt.Sprintf("vLLM has no flag for it: with expert parallelism on, the size is tensor parallel size %d × data parallel size %d = %d.", shape.tp, shape.dp, all),
				fmt.Sprintf("write ep_size: %d, or leave it out for none", all))
		case kind == "sglang" && (ep < 1 || shape.tp%ep != 0):
			e.report("GRM6005", diag.Error, c.ep, fmt.Sprintf("ep_size %d of %s does not divide the tensor parallel size %d", ep, key, shape.tp),
				fmt.Sprintf("SGLang splits the experts among the tensor parallel ranks: %d %% %d = %d.", shape.tp, ep, shape.tp%max(1, ep)),
				"choose an ep_size that divides the tensor parallel size")
		}
	}
	if n := e.plan.Cluster.GPUsPerNode; kind == "sglang" && !shape.dpInside && shape.dp > 1 && n > 0 && per > n {
		e.report("GRM6013", diag.Error, c.dp, fmt.Sprintf("dp_size %d of %s over several nodes without attention data parallelism", shape.dp, key),
			"SGLang refuses to start: over more than one node its data parallel ranks must share the tensor parallel ranks.",
			"remove enable_dp_attention: false, or take dp_size away and give the judge more replicas by num_gpus",
			diag.Related{Pos: config.KeyPos("enable_dp_attention"), Message: "switched off here"})
		return parallelism{}
	}
	return shape
}

func intOf(v *tree.Value) int {
	n, ok := v.AsInt()
	if !ok {
		return 0
	}
	return int(n)
}

func isFalse(v *tree.Value) bool { b, ok := v.AsBool(); return ok && !b }

// ownedFlags are the flags of an engine that genrm sets, and why.
var ownedFlags = map[string]map[string]string{
	"vllm": {
		"model": "genrm sets it from model_path", "model_tag": "genrm sets it from model_path",
		"host": "genrm sets it, so that the gateway finds the engine", "port": "genrm sets it, so that the gateway finds the engine",
		"uds": "the gateway asks the engine by host and port", "grpc": "the gateway speaks HTTP",
		"served_model_name":    "genrm sets it to the route_key",
		"tensor_parallel_size": "genrm derives it from num_gpus_per_engine",
		"nnodes":               "genrm derives it from the placement", "node_rank": "genrm derives it from the placement",
		"master_addr": "genrm derives it from the placement", "master_port": "genrm derives it from the placement", "headless": "genrm derives it from the placement",
		"data_parallel_address": "genrm derives it from the placement", "data_parallel_rpc_port": "genrm derives it from the placement",
		"data_parallel_rank": "genrm derives it from the placement", "data_parallel_start_rank": "genrm derives it from the placement",
		"data_parallel_size_local": "vLLM derives it from the nodes",
		"config":                   "a file of flags would not be checked, and vLLM drops part of it without a word",
		"api_key":                  "a key on the command line is visible to every user of the machine; clients use gateway.api_key",
		"hf_token":                 `a token on the command line is visible to every user of the machine; write env: HF_TOKEN: {env: "HF_TOKEN"}`,
		"ssl_keyfile":              "the gateway asks the engine by plain HTTP", "ssl_certfile": "the gateway asks the engine by plain HTTP",
		"api_server_count": "genrm starts one server for each replica",
	},
	"sglang": {
		"model_path": "genrm sets it from model_path",
		"host":       "genrm sets it, so that the gateway finds the engine", "port": "genrm sets it, so that the gateway finds the engine",
		"served_model_name": "genrm sets it to the route_key",
		"tp_size":           "genrm derives it from num_gpus_per_engine",
		"nnodes":            "genrm derives it from the placement", "node_rank": "genrm derives it from the placement",
		"dist_init_addr": "genrm derives it from the placement", "nccl_port": "genrm sets it, so that engines on a node do not collide",
		"base_gpu_id":   "genrm shows the engine only its own GPUs",
		"config":        "a file of flags would not be checked",
		"api_key":       "a key on the command line is visible to every user of the machine; clients use gateway.api_key",
		"admin_api_key": "a key on the command line is visible to every user of the machine",
		"ssl_keyfile":   "the gateway asks the engine by plain HTTP", "ssl_certfile": "the gateway asks the engine by plain HTTP",
		"ssl_keyfile_password": "the gateway asks the engine by plain HTTP",
	},
}

// commonNames are the keys that [serveRun.common] reads.
var commonNames = []string{"max_context_len", "dp_size", "pp_size", "ep_size", "mem_fraction_static"}

// flags checks engine_config and extra_args and returns their part of the
// command line: common keys first, then the engine's own in the user's order.
func (s *serveRun) flags(kind string, cat *engines.Catalogue, config, v *tree.Value, c commonConfig, shape parallelism) []plan.Arg {
	if cat == nil {
		return nil
	}
	var argv []plan.Arg
	flag := func(own, text string) {
		if f, ok := cat.Lookup(own); ok {
			argv = append(argv, plan.Lit(f.Flag+"="+text))
		}
	}
	names := ownFlags[kind]
	text := func(x *tree.Value, common string) (string, bool) {
		return textOf(x), x.OK() && !c.own[common]
	}
	if t, ok := text(c.pp, "pp_size"); ok {
		flag(names["pp_size"], t)
	}
	if t, ok := text(c.dp, "dp_size"); ok {
		flag(names["dp_size"], t)
		if shape.dpInside && shape.dp > 1 && config.Field("enable_dp_attention") == nil {
			if f, ok := cat.Lookup("enable_dp_attention"); ok {
				argv = append(argv, plan.Lit(f.Flag))
			}
			s.e.fact(s.e.relative(c.dp), fmt.Sprintf("attention data parallelism: %d ranks share the %d GPUs of an engine (--enable-dp-attention, which not every model has)", shape.dp, shape.gpus()))
		}
	}
	if t, ok := text(c.ep, "ep_size"); ok {
		if kind == "sglang" {
			flag("ep_size", t)
		} else if t != "1" {
			argv = append(argv, "--enable-expert-parallel")
		}
	}
	if t, ok := text(c.context, "max_context_len"); ok {
		flag(names["max_context_len"], t)
	} else if c.context == nil && config.Field("max_context_len") == nil && config.Field(names["max_context_len"]) == nil {
		flag(names["max_context_len"], fmt.Sprint(defaultContext))
	}
	if t, ok := text(c.memory, "mem_fraction_static"); ok {
		flag(names["mem_fraction_static"], t)
	}
	rules := flagRules{cat: cat, others: otherCatalogues("vllm", "sglang"), skip: map[string]bool{}, owned: ownedFlags[kind]}
	for _, name := range commonNames {
		rules.skip[name] = true
	}
	// What a common key sets may not come again in extra_args; what was found
	// to be given twice is not reported again.
	owned := map[string]string{}
	for k, who := range rules.owned {
		owned[k] = who
	}
	for _, name := range commonNames {
		if own := names[name]; config.Field(name) != nil && ownName(kind, name, cat, config) == "" {
			owned[own] = "engine_config." + name + " sets it"
		}
	}
	rules.owned = owned
	extra := v.Field("extra_args")
	if !extra.OK() {
		extra = nil
	}
	return append(argv, s.e.checkFlags(rules, config, extra)...)
}

func textOf(v *tree.Value) string {
	if v == nil {
		return ""
	}
	return v.Text
}

// commands writes one command for each placement.
func (s *serveRun) commands(inst *plan.Instance, cat *engines.Catalogue, flags []plan.Arg, c commonConfig, config *tree.Value) {
	if cat == nil || inst.ModelPath == "" {
		return
	}
	nodes := map[int]int{} // replica → its nodes
	for _, p := range inst.Placement {
		nodes[p.Replica]++
	}
	for _, p := range inst.Placement {
		n, follower := nodes[p.Replica], p.NodeRank > 0
		var argv []plan.Arg
		add := func(words ...plan.Arg) { argv = append(argv, words...) }
		rank := plan.Arg(fmt.Sprint(p.NodeRank))
		tp := plan.Arg(fmt.Sprint(inst.TensorParallel))
		switch inst.Engine {
		case "vllm":
			add("vllm", "serve", plan.Lit(inst.ModelPath), "--served-model-name="+plan.Lit(inst.Model))
			if !follower {
				add("--host="+plan.Host(0), "--port="+plan.Port("http"))
			}
			add("--tensor-parallel-size=" + tp)
			if n > 1 {
				add("--nnodes="+plan.Arg(fmt.Sprint(n)), "--node-rank="+rank, "--master-addr="+plan.Host(0), "--master-port="+plan.Port("master"))
				if inst.DataParallel > 1 {
					add("--data-parallel-address="+plan.Host(0), "--data-parallel-rpc-port="+plan.Port("dp_rpc"))
				}
				if follower {
					add("--headless")
				}
			}
		case "sglang":
			add("python3", "-m", "sglang.launch_server", "--model-path="+plan.Lit(inst.ModelPath), "--served-model-name="+plan.Lit(inst.Model),
				"--host="+plan.Host(p.NodeRank), "--port="+plan.Port("http"), "--nccl-port="+plan.Port("nccl"), "--tp-size="+tp)
			if n > 1 {
				add("--nnodes="+plan.Arg(fmt.Sprint(n)), "--node-rank="+rank, "--dist-init-addr="+plan.Host(0)+":"+plan.Port("dist_init"))
			}
		}
		inst.Argv = append(inst.Argv, append(argv, flags...))
	}
}

// env is the environment of an engine: what keeps engines of one node apart,
// then the user's own.
func (s *serveRun) env(kind string, v *tree.Value) plan.Env {
	var env plan.Env
	if kind == "vllm" {
		// The base from which vLLM counts its internal ports up; without one,
		// engines that start together may choose the same.
		env.Set("VLLM_PORT", plan.EnvValue{Text: plan.Port("vllm")})
	}
	setEnv(&env, v.Field("env"))
	return env
}

// release is the tag of an engine's release, as the engines' own images have it.
var release = regexp.MustCompile(`^v?(\d+\.\d+\.\d+(?:\.?post\d+)?)(?:[-+].*)?$`)

// image resolves the container image and warns of a tag that will not be the
// same image tomorrow, or that names another release than is checked.
func (s *serveRun) image(v *tree.Value, cat *engines.Catalogue) string {
	e, at := s.e, v.Field("image")
	name, ok := at.AsString()
	if !ok {
		return ""
	}
	aliases := e.root.Lookup("cluster", "image_aliases")
	if a, ok := aliases.Field(name).AsString(); ok {
		name = a
	} else if !strings.ContainsAny(name, "/:@") {
		if near := diag.DidYouMean(name, aliases.Names()); near != "" {
			e.report("GRM6011", diag.Error, at, fmt.Sprintf("%q is no alias in cluster.image_aliases", name), "It has no tag and is close to an alias, so it is taken for a misspelt one.", near,
				diag.Related{Pos: e.root.Field("cluster").KeyPos("image_aliases"), Message: "the aliases"})
			return ""
		}
	}
	tag := image.Tag(name)
	m := release.FindStringSubmatch(tag)
	switch what := image.Floating(name); {
	case what != "":
		e.report("GRM6007", diag.Warning, at, "the image "+what, "The same file may start another engine release tomorrow, with other flags.", "name a release's tag, or a digest (@sha256:…)")
	case m != nil && cat != nil && m[1] != cat.Version && !strings.HasPrefix(name, "/"):
		e.report("GRM6008", diag.Warning, at, fmt.Sprintf("the image is tagged %s, but the flags are those of %s", tag, programOf(cat)),
			"A flag that is right for one release may be unknown to another, which then does not start.",
			"set engine_version to the image's release if genrm knows it: "+strings.Join(engines.Versions(cat.Engine), ", "))
	}
	return name
}

// samplingKeys are the further sampling keys that an engine's chat API reads.
// Sources: vllm/entrypoints/openai/chat_completion/protocol.py 0.24.0 and 0.29.0,
// sglang/srt/entrypoints/openai/protocol.py 0.5.15.post1, both
// ChatCompletionRequest; OpenAI's API reference, chat completions.
var samplingKeys = map[string][]string{
	"vllm": {"frequency_penalty", "logit_bias", "presence_penalty", "response_format", "seed", "stop", "reasoning_effort", "thinking_token_budget",
		"include_reasoning", "use_beam_search", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids", "include_stop_str_in_output",
		"ignore_eos", "min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "truncation_side",
		"allowed_token_ids", "bad_words", "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template",
		"mm_processor_kwargs", "structured_outputs", "priority", "cache_salt", "vllm_xargs", "repetition_detection"},
	"sglang": {"frequency_penalty", "logit_bias", "presence_penalty", "response_format", "seed", "stop", "reasoning_effort", "min_p", "min_tokens",
		"regex", "ebnf", "repetition_penalty", "stop_token_ids", "stop_regex", "no_stop_trim", "ignore_eos", "continue_final_message",
		"skip_special_tokens", "separate_reasoning", "custom_logit_processor", "custom_params", "lora_path", "priority", "cache_salt"},
	"openai": {"frequency_penalty", "logit_bias", "presence_penalty", "response_format", "seed", "stop", "reasoning_effort", "verbosity", "service_tier"},
	"sim":    nil,
}

var baseSampling = []string{"temperature", "top_p", "top_k", "max_response_len", "chat_template_kwargs"}

// sampling applies the defaults and reports keys that the engine's API lacks.
func (s *serveRun) sampling(kind string, v *tree.Value, response int) *tree.Value {
	given := v.Field("sampling_config")
	out := clone(given)
	known := slices.Concat(baseSampling, samplingKeys[kind])
	if kind == "openai" { // whatever program answers there
		known = slices.Concat(known, samplingKeys["vllm"], samplingKeys["sglang"])
	}
	if given.OK() {
		for _, f := range given.Fields {
			if slices.Contains(known, f.Name) {
				continue
			}
			remedy := diag.DidYouMean(f.Name, known)
			if slices.Contains([]string{"max_tokens", "max_new_tokens", "max_completion_tokens"}, f.Name) {
				remedy = "write max_response_len, which means this for every engine"
			}
			if remedy == "" {
				remedy = "remove it; known keys: " + strings.Join(baseSampling, ", ") + " and the engine's own"
			}
			api := map[string]string{"vllm": "vLLM's chat API", "sglang": "SGLang's chat API", "openai": "an OpenAI-style chat API", "sim": "the simulator"}[kind]
			s.e.reportKey("GRM6009", diag.Error, given, f.Name, fmt.Sprintf("%s is no sampling key of %s", f.Name, api), "", remedy)
		}
	}
	defaults := []struct {
		name string
		v    *tree.Value
	}{{"temperature", tree.Number("0.1")}, {"top_p", tree.Number("1.0")}, {"top_k", tree.Integer(-1)}, {"max_response_len", tree.Integer(response)}}
	for _, d := range defaults {
		// top_k is no key of OpenAI's own API, and -1 means off: not sent.
		if out.Field(d.name) == nil && !(kind == "openai" && d.name == "top_k") {
			put(out, d.name, d.v)
		}
	}
	return out
}

// openai plans a judge that someone else serves.
func (s *serveRun) openai(key string, v *tree.Value) {
	e := s.e
	model, _ := v.Field("model").AsString()
	e.plan.Instances.Set(key, &plan.Instance{Engine: "openai", Model: model, Replicas: 1, EngineConfig: &tree.Value{Kind: tree.Struct},
		Bundles: []int{}, Argv: [][]plan.Arg{}, Placement: []plan.Placement{}, SamplingConfig: s.sampling("openai", v, defaultResponse), Settings: v})
	e.judgeSanity(judge{at: v, sampling: v.Field("sampling_config"), maxResponse: defaultResponse})
	base, ok := v.Field("base_url").AsString()
	if !ok {
		return
	}
	u, err := url.Parse(base)
	if err != nil {
		e.report("GRM6014", diag.Error, v.Field("base_url"), "base_url is no URL", "It is not of the form scheme://host[:port]/path.", "write it as https://host/v1")
		return
	}
	switch far := e.plan.Target == plan.Slurm || e.plan.Target == plan.Ray || e.plan.Target == plan.KubeRay; {
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		d := diag.Diagnostic{Code: "GRM6014", Severity: diag.Error, Pos: v.Field("base_url").Pos, Path: v.Field("base_url").Path,
			Summary: "base_url has a user, a query or a fragment", Detail: "A credential in an address reaches plans and logs, and request paths are appended to the address.",
			Remedy: "keep scheme, host and path; give the key as api_key by reference", Secret: true}
		e.diags.Add(d)
	case loopback(u.Hostname()) && (far || e.plan.Cluster.Nodes > 1):
		where := "on " + string(e.plan.Target)
		if !far {
			where = fmt.Sprintf("with %d nodes", e.plan.Cluster.Nodes)
		}
		e.report("GRM6010", diag.Warning, v.Field("base_url"), fmt.Sprintf("base_url is a loopback address, %s", where),
			"It means the machine of whoever asks: the gateway may run on another one than the endpoint.", "write the endpoint's host name")
	}
}

// sim plans a scripted judge.
func (s *serveRun) sim(key string, v *tree.Value) {
	e := s.e
	model := key
	if m, ok := v.Field("model").AsString(); ok {
		model = m
	}
	script := "sim-" + key + ".json"
	inst := &plan.Instance{Engine: "sim", Model: model, Replicas: 1, EngineConfig: &tree.Value{Kind: tree.Struct}, SamplingConfig: s.sampling("sim", v, defaultResponse), Settings: v,
		Bundles: []int{}, Placement: []plan.Placement{{GPUs: []int{}}},
		Argv: [][]plan.Arg{{"genrm", "sim", "--route-key=" + plan.Lit(key), "--host=" + plan.Host(0), "--port=" + plan.Port("http"), "--script=" + plan.File(script)}}}
	e.plan.Instances.Set(key, inst)

	var ways []string
	for _, name := range []string{"constant", "echo", "match"} {
		x := v.Field(name)
		if x != nil && !x.OK() {
			return // faulty: which way was meant is not known
		}
		if x != nil && !isFalse(x) {
			ways = append(ways, name)
		}
	}
	match := v.Field("match")
	switch {
	case len(ways) == 0:
		e.report("GRM6002", diag.Error, v, key+" has no answer", "A simulated judge answers by exactly one of constant, echo and match.", `add constant: "1"`)
	case len(ways) > 1:
		e.reportKey("GRM6002", diag.Error, v, ways[1], fmt.Sprintf("%s answers in %d ways: %s", key, len(ways), strings.Join(ways, ", ")),
			"A simulated judge answers by exactly one of constant, echo and match.", "keep one of them", diag.Related{Pos: v.KeyPos(ways[0]), Message: "the first"})
	case match != nil && len(match.Items) == 0:
		e.report("GRM6002", diag.Error, match, "match of "+key+" is empty", "No request would get an answer.", `add {pattern: ".*", answer: "1"}`)
	}
	for _, m := range itemsOf(match) {
		p, ok := m.Field("pattern").AsString()
		if !ok {
			continue
		}
		if _, err := regexp.Compile(p); err != nil {
			e.report("GRM6003", diag.Error, m.Field("pattern"), "pattern is no regular expression",
				strings.TrimPrefix(err.Error(), "error parsing regexp: ")+" (RE2 syntax: no look-around, no back-references).", "correct the pattern")
		}
	}
	out := &tree.Value{Kind: tree.Struct}
	put(out, "model", tree.Text(model))
	for _, name := range []string{"constant", "echo", "match", "latency", "failure_rate", "startup_time", "crash_after"} {
		if x := v.Field(name); x.OK() {
			put(out, name, x)
		}
	}
	e.plan.Artifacts = append(e.plan.Artifacts, plan.Artifact{Name: script, Text: out.JSON() + "\n"})
}

func itemsOf(v *tree.Value) []*tree.Value {
	if v == nil {
		return nil
	}
	return v.Items
}
