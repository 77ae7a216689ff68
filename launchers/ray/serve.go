package ray

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// Application is a Ray Serve application as PUT /api/serve/applications/, `serve
// deploy` and the serveConfigV2 of a RayService take it. Source:
// ray.serve.schema.ServeApplicationSchema of 2.60.0.
type Application struct {
	Name        string         `json:"name"`
	RoutePrefix string         `json:"route_prefix"`
	ImportPath  string         `json:"import_path"`
	RuntimeEnv  map[string]any `json:"runtime_env,omitempty"`
	Args        ServingArgs    `json:"args"`
}

// ServingArgs are the arguments of the application's builder. Source:
// ray.serve.llm.LLMServingArgs of 2.60.0, which refuses fields that it does not
// know.
type ServingArgs struct {
	LLMConfigs []LLMConfig `json:"llm_configs"`
}

// LLMConfig is one judge. Source: ray.serve.llm.LLMConfig of 2.60.0, which
// refuses fields that it does not know.
type LLMConfig struct {
	ModelLoading     ModelLoading     `json:"model_loading_config"`
	EngineKwargs     *tree.Value      `json:"engine_kwargs"` // in the user's order
	AcceleratorType  string           `json:"accelerator_type,omitempty"`
	PlacementGroup   PlacementGroup   `json:"placement_group_config"`
	Deployment       DeploymentConfig `json:"deployment_config"`
	RuntimeEnv       map[string]any   `json:"runtime_env,omitempty"`
	LogEngineMetrics *bool            `json:"log_engine_metrics,omitempty"`
}

// ModelLoading says what is served, and under which name.
type ModelLoading struct {
	ModelID     string `json:"model_id"` // the route_key
	ModelSource string `json:"model_source"`
}

// PlacementGroup is what Ray keeps free for each engine: a bundle for each GPU.
type PlacementGroup struct {
	Bundles  []Bundle `json:"bundles"`
	Strategy string   `json:"strategy"`
}

// Bundle is a bundle of a placement group.
type Bundle struct {
	GPU int `json:"GPU"`
}

// DeploymentConfig are the options of a judge's deployment. Times are in
// seconds. Source: ray.serve.schema.DeploymentSchema of 2.60.0.
type DeploymentConfig struct {
	Replicas         int         `json:"num_replicas"`
	MaxOngoing       *int64      `json:"max_ongoing_requests,omitempty"`
	MaxQueued        *int64      `json:"max_queued_requests,omitempty"`
	HealthPeriod     *tree.Value `json:"health_check_period_s"`
	HealthTimeout    *tree.Value `json:"health_check_timeout_s"`
	GracefulTimeout  *tree.Value `json:"graceful_shutdown_timeout_s"`
	GracefulWaitLoop *tree.Value `json:"graceful_shutdown_wait_loop_s,omitempty"`
}

// buildOpenAIApp is the builder of Ray Serve LLM.
const buildOpenAIApp = "ray.serve.llm:build_openai_app"

// Defaults of deployments; the schema states them, too. Ray Serve LLM's own
// 10 s restart an engine that is merely busy (ray-project/ray#54070).
const (
	defaultHealthPeriod  = 30
	defaultHealthTimeout = 300
	defaultGraceful      = 60
)

// noPlace are the settings of vLLM's server that mean nothing in a Serve
// application, and why. Sources: vLLM 0.29.0, vllm/entrypoints/launchers
// (cli_args.py; what app_state.py does not read), and Ray 2.60.0,
// ray/llm/_internal/serve/engines/vllm.
var noPlace = map[string]string{
	"distributed_executor_backend": "Ray Serve LLM runs vLLM's workers by Ray, and refuses another",
	"data_parallel_backend":        dataParallel, "data_parallel_hybrid_lb": dataParallel, "data_parallel_external_lb": dataParallel,
	"data_parallel_multi_port_external_lb": dataParallel, "data_parallel_size_local": dataParallel,
	"data_parallel_supervisor_port": dataParallel, "dp_supervisor_probe_interval_s": dataParallel,
	"dp_supervisor_probe_timeout_s": dataParallel, "dp_supervisor_probe_failure_threshold": dataParallel,
	"lora_modules":       "Ray Serve LLM loads adapters by a configuration of its own",
	"tool_parser_plugin": "vLLM's own server loads it, and Ray Serve LLM does not",
	"log_config_file":    ownServer, "sse_keep_alive_interval": ownServer, "enable_tokenizer_info_endpoint": ownServer,
	"host": ownServer, "port": ownServer, "uds": ownServer, "uvicorn_log_level": ownServer, "disable_uvicorn_access_log": ownServer,
	"disable_access_log_for_endpoints": ownServer, "allow_credentials": ownServer, "allowed_origins": ownServer, "allowed_methods": ownServer,
	"allowed_headers": ownServer, "api_key": ownServer, "ssl_keyfile": ownServer, "ssl_certfile": ownServer, "ssl_ca_certs": ownServer,
	"enable_ssl_refresh": ownServer, "ssl_cert_reqs": ownServer, "ssl_ciphers": ownServer, "root_path": ownServer, "middleware": ownServer,
	"enable_request_id_headers": ownServer, "disable_fastapi_docs": ownServer, "h11_max_incomplete_event_size": ownServer,
	"h11_max_header_count": ownServer, "enable_offline_docs": ownServer, "headless": ownServer, "api_server_count": ownServer, "grpc": ownServer,
}

const (
	ownServer    = "Ray Serve's proxy is the HTTP server, not vLLM's"
	dataParallel = "a Serve application has replicas in place of data parallel ranks"
)

// expands matches what Ray replaces in values of runtime_env.env_vars on the
// node. Source: ray/_private/utils.py of 2.60.0, update_envs.
var expands = regexp.MustCompile(`\$(\w|\{)`)

// ServeApplication is the one application of a serve experiment, and what there
// is to say about it. It is pure: it needs no cluster, and the same plan gives
// the same application. With findings that are errors the application is not
// complete. Settings come from kuberay.serve if that is the plan's target, else
// from ray.serve.
//
// Judges that are remote endpoints are not part of it: the gateway asks them.
func ServeApplication(p *plan.Plan) (Application, diag.List, error) {
	if p.Target == plan.KubeRay {
		return ServeApplicationFor(p, plan.KubeRay)
	}
	return ServeApplicationFor(p, plan.Ray)
}

// ServeApplicationFor is [ServeApplication] with the settings of ray or kuberay,
// whatever the plan's target.
func ServeApplicationFor(p *plan.Plan, target plan.Target) (Application, diag.List, error) {
	var l diag.List
	if p.Workload != plan.Serve {
		return Application{}, nil, fmt.Errorf("a %s workload is no Serve application", p.Workload)
	}
	settings, _ := p.Settings.Get(string(target))
	b := &builder{p: p, l: &l, serve: settings.Field("serve")}
	name := ObjectName(p.Name)
	app := Application{Name: name, RoutePrefix: "/" + name, ImportPath: buildOpenAIApp, Args: ServingArgs{LLMConfigs: []LLMConfig{}}}
	if target == plan.Ray {
		if own, ok := settings.Field("runtime_env").Any().(map[string]any); ok {
			app.RuntimeEnv = own
		}
	}
	if t := b.serve.Field("request_timeout_s"); t.OK() {
		set(&app.RuntimeEnv, "RAY_SERVE_LLM_ROUTER_HTTP_TIMEOUT", t.Text)
	}
	deployments := map[string]string{} // name of the deployment → route_key
	for _, i := range p.Instances {
		if i.Value.Engine != "vllm" {
			continue // see CheckServe
		}
		at := tree.Join("serve.instances", i.Key)
		deployment := strings.NewReplacer("/", "--", ".", "_").Replace(i.Key)
		if other, taken := deployments[deployment]; taken {
			d := p.Finding("GRM8336", diag.Error, at, fmt.Sprintf("%s and %s are one deployment for Ray Serve", other, i.Key),
				"Ray Serve LLM names deployments after the judge, with _ for a dot: both become LLMServer:"+deployment+".", "rename one of the two")
			d.Related = []diag.Related{{Pos: p.Pos(tree.Join("serve.instances", other)), Message: "the other"}}
			l.Add(d)
			continue
		}
		deployments[deployment] = i.Key
		app.Args.LLMConfigs = append(app.Args.LLMConfigs, b.judge(i.Key, at, i.Value, app.RuntimeEnv))
	}
	return app, l, nil
}

// builder makes the parts of an application.
type builder struct {
	p     *plan.Plan
	l     *diag.List
	serve *tree.Value // the settings of the target's block
}

func (b *builder) judge(key, at string, in *plan.Instance, inherited map[string]any) LLMConfig {
	c := LLMConfig{
		ModelLoading:   ModelLoading{ModelID: key, ModelSource: in.ModelPath},
		PlacementGroup: PlacementGroup{Bundles: make([]Bundle, in.TensorParallel*max(1, in.PipelineParallel)), Strategy: "PACK"},
		Deployment:     b.deployment(in),
		RuntimeEnv:     b.env(at, in, inherited),
	}
	for i := range c.PlacementGroup.Bundles {
		c.PlacementGroup.Bundles[i].GPU = 1
	}
	if oneNode(in) {
		c.PlacementGroup.Strategy = "STRICT_PACK"
	}
	c.AcceleratorType, _ = b.serve.Field("accelerator_type").AsString()
	c.EngineKwargs = b.kwargs(key, at, in, &c)
	if extra := in.Settings.Field("extra_args"); extra.OK() && len(extra.Items) > 0 {
		b.refuse(at+".extra_args", "extra_args cannot be given to a Ray Serve application",
			"They are words of a command line, and Ray Serve LLM starts vLLM without one: by keyword arguments that it checks itself.",
			"set them as keys of engine_config, or use target slurm or local")
	}
	for _, f := range []struct{ field, why string }{
		{"image", "The engines run in the environment of the cluster's nodes."},
		{"liveness.failure_threshold", "Ray Serve restarts a replica after three failed checks in a row (REPLICA_HEALTH_CHECK_UNHEALTHY_THRESHOLD)."},
		{"readiness.interval", "Ray Serve looks itself when a replica is ready."},
		{"readiness.probe_timeout", "Ray Serve looks itself when a replica is ready."},
	} {
		if in.Settings.Lookup(strings.Split(f.field, ".")...).OK() {
			b.idle(at+"."+f.field, f.field, f.why)
		}
	}
	return c
}

// oneNode reports whether the plan puts each engine on one node, so that Ray
// must not spread it.
func oneNode(in *plan.Instance) bool {
	return len(in.Placement) > 0 && !slices.ContainsFunc(in.Placement, func(p plan.Placement) bool { return p.Node < 0 || p.NodeRank > 0 })
}

func (b *builder) refuse(path, summary, detail, remedy string) {
	b.l.Add(b.p.Finding("GRM8334", diag.Error, path, summary, detail, remedy))
}

// idle reports a setting that a Serve application has no use for.
func (b *builder) idle(path, field, why string) {
	b.l.Add(b.p.Finding("GRM8337", diag.Warning, path, field+" has no effect on a Ray Serve application", why, "remove it"))
}

func (b *builder) deployment(in *plan.Instance) DeploymentConfig {
	setting := func(name string, own *tree.Value, unset int) *tree.Value {
		switch given := b.serve.Field(name); {
		case own.OK():
			return own
		case given.OK():
			return given
		case unset < 0:
			return nil
		}
		return tree.Integer(unset)
	}
	count := func(name string) *int64 {
		if n, ok := b.serve.Field(name).AsInt(); ok {
			return &n
		}
		return nil
	}
	return DeploymentConfig{
		Replicas:         in.Replicas,
		MaxOngoing:       count("max_ongoing_requests"),
		MaxQueued:        count("max_queued_requests"),
		HealthPeriod:     setting("health_check_period_s", in.Settings.Lookup("liveness", "interval"), defaultHealthPeriod),
		HealthTimeout:    setting("health_check_timeout_s", in.Settings.Lookup("liveness", "probe_timeout"), defaultHealthTimeout),
		GracefulTimeout:  setting("graceful_shutdown_timeout_s", in.Settings.Field("stop_timeout"), defaultGraceful),
		GracefulWaitLoop: setting("graceful_shutdown_wait_loop_s", nil, -1),
	}
}

// env is the runtime environment of a judge's replicas, nil for the
// application's. Ray merges the two key by key, so that one with variables has
// to repeat the application's. A secret stays a reference, which Ray resolves in
// the environment of the node.
func (b *builder) env(at string, in *plan.Instance, inherited map[string]any) map[string]any {
	var out map[string]any
	for _, e := range in.Env {
		path := tree.Join(at+".env", e.Key)
		switch v := e.Value; {
		case v.SecretFile != "":
			b.l.Add(b.p.Finding("GRM8335", diag.Error, path, e.Key+" is read from a file, which Ray cannot do",
				"Ray keeps the values of env_vars with the application, so that only the name of a variable of the nodes can stand there.",
				"set it in the environment of the nodes or pods, and write {env: \""+e.Key+"\"}"))
		case v.SecretEnv == e.Key: // the node's own reaches the replica
		case v.SecretEnv != "":
			set(&out, e.Key, "${"+v.SecretEnv+"}")
		case len(v.Text.Placeholders()) > 0: // a port, which Ray's workers find themselves
		default:
			text, err := v.Text.Bind(nil) // no placeholder is left but {brace}
			switch {
			case err != nil:
			case expands.MatchString(text):
				b.l.Add(b.p.Finding("GRM8335", diag.Error, path, "Ray would change the value of "+e.Key,
					"It replaces $NAME and ${NAME} in values of env_vars by variables of the node, and has no way to write the sign itself.", "set it in the environment of the nodes or pods"))
			default:
				set(&out, e.Key, text)
			}
		}
	}
	if out == nil {
		return nil
	}
	vars := out["env_vars"].(map[string]any)
	if own, ok := inherited["env_vars"].(map[string]any); ok {
		for name, v := range own {
			if _, given := vars[name]; !given {
				vars[name] = v
			}
		}
	}
	return out
}

// set puts a variable into a runtime environment.
func set(env *map[string]any, name, value string) {
	if *env == nil {
		*env = map[string]any{}
	}
	vars, ok := (*env)["env_vars"].(map[string]any)
	if !ok {
		vars = map[string]any{}
		(*env)["env_vars"] = vars
	}
	vars[name] = value
}

// kwargs is the engine configuration as vLLM's keyword arguments, which are
// called as its flags are. Source: ray/llm/_internal/serve/engines/vllm/vllm_models.py
// of 2.60.0, which takes the fields of AsyncEngineArgs and FrontendArgs.
func (b *builder) kwargs(key, at string, in *plan.Instance, c *LLMConfig) *tree.Value {
	out := &tree.Value{Kind: tree.Struct}
	put := func(name string, v *tree.Value) { out.Fields = append(out.Fields, tree.Field{Name: name, Value: v}) }
	put("tensor_parallel_size", tree.Integer(max(1, in.TensorParallel)))
	if in.EngineConfig == nil {
		return out
	}
	cat, ok := engines.Get("vllm", in.EngineVersion)
	if !ok {
		return out // reported by the compiler
	}
	for _, f := range in.EngineConfig.Fields {
		path := tree.Join(at+".engine_config", f.Name)
		name, v := f.Name, f.Value
		if !v.OK() || v.Kind == tree.Null {
			continue
		}
		switch name {
		case "max_context_len":
			name = "max_model_len"
		case "mem_fraction_static":
			name = "gpu_memory_utilization"
		case "pp_size":
			name = "pipeline_parallel_size"
		case "dp_size":
			name = "data_parallel_size"
		case "ep_size":
			if n, ok := v.AsInt(); !ok || n <= 1 {
				continue
			}
			name, v = "enable_expert_parallel", &tree.Value{Kind: tree.Bool, Text: "true"}
		}
		flag, known := cat.Lookup(name)
		if known && flag.AliasOf != "" {
			flag, known = cat.Lookup(flag.AliasOf)
		}
		if !known || flag.NegativeOf != "" {
			continue // reported by the compiler
		}
		name = flag.Name
		if why, ok := noPlace[name]; ok && (name != "distributed_executor_backend" || v.Text != "ray") {
			b.refuse(path, f.Name+" has no place in a Ray Serve application", strings.ToUpper(why[:1])+why[1:]+".", "remove it, or use target slurm or local")
			continue
		}
		switch name {
		case "data_parallel_size":
			if n, ok := v.AsInt(); ok && n > 1 {
				b.refuse(path, fmt.Sprintf("data parallelism of %s inside an engine has no place in a Ray Serve application", key),
					"The builder of several models ("+buildOpenAIApp+") starts one vLLM for each replica, and reserves the GPUs of tensor and pipeline parallelism alone.",
					fmt.Sprintf("remove it, and write num_gpus_per_engine: %d: the replicas share the requests", max(1, in.NumGPUsPerEngine/int(n))))
			}
			continue
		case "disable_log_stats":
			if v.IsTrue() { // LLMConfig refuses it beside its own metrics
				off := false
				c.LogEngineMetrics = &off
			}
		}
		put(name, keyword(flag, v))
	}
	return out
}

// keyword is the value of a flag as vLLM's classes have it after its parser.
func keyword(f engines.Flag, v *tree.Value) *tree.Value {
	if v.Kind != tree.String {
		return v
	}
	switch {
	case f.Type == engines.JSON, f.JSONLoose && strings.HasPrefix(strings.TrimSpace(v.Text), "{"):
		if parsed, err := tree.ParseJSON(v.Text); err == nil {
			return parsed
		}
	case f.HumanInt && v.Text == "auto":
		return tree.Integer(-1)
	case f.HumanInt:
		if n, ok := count(v.Text); ok {
			return &tree.Value{Kind: tree.Int, Text: n}
		}
	}
	return v
}

// count reads a count as vLLM's parser does: 4k is 4000, 1.5k 1500, and 4K 4096.
// Source: vllm/utils/argparse_utils.py of 0.29.0, human_readable_int.
func count(s string) (string, bool) {
	factors := map[byte]int64{'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
	if s == "" {
		return "", false
	}
	factor, suffixed := factors[s[len(s)-1]]
	if !suffixed {
		factor = 1
	} else {
		s = s[:len(s)-1]
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return "", false
	}
	r.Mul(r, new(big.Rat).SetInt64(factor))
	return new(big.Int).Quo(r.Num(), r.Denom()).String(), true
}

// ServeFiles are the emitted files of a serve experiment on target ray:
// serve.json, which `serve deploy serve.json` and PUT /api/serve/applications/
// take. Both replace every application of a cluster, which a launch does not.
func ServeFiles(p *plan.Plan) ([]emit.File, error) {
	if p.Workload != plan.Serve {
		return nil, nil
	}
	app, _, err := ServeApplicationFor(p, plan.Ray)
	if err != nil {
		return nil, err
	}
	s, _ := p.Settings.Get("ray")
	options, location := httpSettings(s)
	doc := struct {
		Location     string          `json:"proxy_location,omitempty"`
		HTTP         json.RawMessage `json:"http_options,omitempty"`
		Applications []Application   `json:"applications"`
	}{location, options, []Application{app}}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(doc); err != nil {
		return nil, err
	}
	return []emit.File{{Name: ServeFile, Text: b.Bytes()}}, nil
}
