package compiler

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// The release of vLLM that NeMo Gym pins at 07d6b0d, in
// responses_api_models/local_vllm_model/setup.py. nemo-gym 0.7.0 pins gymNext.
const (
	gymVLLM = "0.24.0"
	gymNext = "0.25.1"
)

// gymArtifact is the name of the YAML file that the command reads.
const gymArtifact = "gym.yaml"

// gymKinds are the keys that make an entry a server. Source:
// nemo_gym/config_types.py of 0.7.0.
var gymKinds = []string{"responses_api_models", "responses_api_agents", "resources_servers", "environment_servers"}

// gymModels are the model servers that nemo-gym 0.7.0 brings, the parser's own
// dummy_model included.
var gymModels = []string{"genrm_model", "local_vllm_model", "vllm_model", "openai_model",
	"azure_openai_model", "dummy_model", "inference_provider", "litellm_model", "local_vllm_model_proxy", "switchyard_model", "vllm_model_with_compaction"}

// gymRequired lists the fields that a server's class demands. NeMo Gym starts
// no server for a block without entrypoint, and a server without one of the
// others dies when it starts; `gym env validate` notices neither.
var gymRequired = map[string][]string{
	"genrm_model":      {"entrypoint", "model", "return_token_id_information", "uses_reasoning_parser", "vllm_serve_kwargs", "vllm_serve_env_vars"},
	"local_vllm_model": {"entrypoint", "model", "return_token_id_information", "uses_reasoning_parser", "vllm_serve_kwargs", "vllm_serve_env_vars"},
	"vllm_model":       {"entrypoint", "base_url", "api_key", "model", "return_token_id_information", "uses_reasoning_parser"},
	"openai_model":     {"entrypoint", "openai_base_url", "openai_api_key", "openai_model"},
}

// gymSamples shows what a required field looks like.
var gymSamples = map[string]string{
	"entrypoint": `"app.py"`, "model": `"/models/judge"`, "return_token_id_information": "false", "uses_reasoning_parser": "true",
	"vllm_serve_kwargs":   "{data_parallel_size: 1, tensor_parallel_size: 8, pipeline_parallel_size: 1}",
	"vllm_serve_env_vars": `VLLM_RAY_DP_PACK_STRATEGY: "strict"`,
	"base_url":            `"http://judge:8000/v1"`, "api_key": `"EMPTY", or {env: "JUDGE_API_KEY"}`,
	"openai_base_url": `"https://judge.example.com/v1"`, "openai_api_key": `{env: "JUDGE_API_KEY"}`, "openai_model": `"judge"`,
}

// gymDomains are the values of a resources server's domain. Source: Domain in
// nemo_gym/config_types.py of 0.7.0.
var gymDomains = []string{"math", "coding", "agent", "knowledge", "instruction_following", "long_context", "safety", "games", "translation", "e2e", "rlhf", "other"}

// gymOwned are arguments that LocalVLLMModel sets itself. Source:
// _configure_vllm_serve in responses_api_models/local_vllm_model/app.py.
var gymOwned = map[string]string{
	"model":                        "NeMo Gym sets it from the server's model",
	"host":                         "NeMo Gym sets it to 0.0.0.0",
	"port":                         "NeMo Gym takes a free port",
	"download_dir":                 "NeMo Gym sets it from hf_home",
	"distributed_executor_backend": "NeMo Gym sets it to ray",
	"data_parallel_backend":        "NeMo Gym sets it to ray",
}

// gymSizes are the arguments whose product is a model's GPUs. All three must be
// given, since the server asserts each.
var gymSizes = []string{"data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size"}

// gymRun is one gym workload on its way to the plan.
type gymRun struct {
	e      *experiment
	w      *tree.Value
	config *tree.Value // as the user wrote it: what gym.yaml holds
	eff    *tree.Value // config with overrides: what NeMo Gym sees, and what is checked
	open   bool        // config_paths brings in what cannot be seen here

	servers []*gymServer
	vllm    string             // release
	cat     *engines.Catalogue // its flags; nil when unknown
}

// gymServer is one implementation of one server entry.
type gymServer struct {
	name  string
	kind  string // one of gymKinds
	impl  string
	at    *tree.Value // the entry
	block *tree.Value
	// partial says that fields may come from elsewhere: a missing one is no
	// mistake.
	partial bool
}

// gymLocal is a model that starts its own vLLM.
type gymLocal struct {
	s          *gymServer
	dp, tp, pp int // 0 when not known
	pack       string
	inst       *plan.Instance
}

// compileGym checks a NeMo Gym server tree and plans `gym env start`.
//
// Instances are the model servers of the four known implementations, by server
// name. A model that starts its own vLLM has num_gpus = tp·pp·dp, its
// num_gpus_per_engine is tp·pp, and its replicas are the dp ranks, which Ray
// places as one group of GPUs each. Which GPUs those are is known only to Ray:
// bundles and placement show one that fits. The others need no GPU. None has an
// argv: the one command of the run starts them all.
func compileGym(e *experiment, w *tree.Value) {
	r := &gymRun{e: e, w: w, config: w.Field("config")}
	e.plan.Launch = plan.Launch{Argv: r.command(), Env: gymEnv(w.Field("env"))}
	e.plan.Launch.WorkDir, _ = w.Field("root").AsString()
	if r.config == nil || r.config.Kind != tree.Struct {
		return
	}
	r.eff = r.withOverrides()
	if r.eff.Field("config_paths") != nil {
		r.open = true
		e.fact(e.relative(r.eff.Field("config_paths")), "NeMo Gym merges the files of config_paths below this config; what they define is not checked")
	}
	r.release()
	r.findServers()
	for _, s := range r.servers {
		r.required(s)
		r.references(s, s.block)
		r.exclusive(s)
	}
	r.deferred()
	r.ports()
	r.models()
	e.plan.Artifacts = append(e.plan.Artifacts, plan.Artifact{Name: gymArtifact, Text: r.yaml()})
}

// command is the one process of the run. Source: `gym env start --help` of
// nemo-gym 0.7.0; what follows --config is read by Hydra, where ++ sets a key
// whether it exists or not.
func (r *gymRun) command() []plan.Arg {
	argv := []plan.Arg{"gym", "env", "start", "--config", plan.File(gymArtifact)}
	if o := r.w.Field("overrides"); o.OK() {
		for _, f := range o.Fields {
			if f.Value.OK() {
				argv = append(argv, plan.Lit("++"+f.Name+"="+hydraValue(f.Value)))
			}
		}
	}
	return argv
}

var hydraPlain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_/.-]*$`)

// hydraValue spells a scalar so that Hydra's override grammar reads the same
// kind and value: a string is quoted unless it can only be a string.
func hydraValue(v *tree.Value) string {
	if v.Kind != tree.String {
		return v.Text
	}
	if hydraPlain.MatchString(v.Text) && !slices.Contains([]string{"true", "false", "null", "nan", "inf"}, strings.ToLower(v.Text)) {
		return v.Text
	}
	var b strings.Builder
	b.WriteByte('\'')
	slashes := 0 // a run of backslashes is doubled only before a quote
	for i := 0; i < len(v.Text); i++ {
		switch c := v.Text[i]; c {
		case '\\':
			slashes++
			b.WriteByte(c)
		case '\'':
			b.WriteString(strings.Repeat(`\`, slashes) + `\'`)
			slashes = 0
		default:
			b.WriteByte(c)
			slashes = 0
		}
	}
	b.WriteString(strings.Repeat(`\`, slashes) + "'")
	return b.String()
}

func gymEnv(v *tree.Value) plan.Env {
	env := plan.Env{}
	setEnv(&env, v)
	return env
}

// release picks the catalogue of vllm_serve_kwargs.
func (r *gymRun) release() {
	r.vllm = gymVLLM
	v := r.w.Field("engine_version")
	if text, ok := v.AsString(); ok {
		r.vllm = text
	}
	cat, ok := engines.Get("vllm", r.vllm)
	if !ok {
		r.e.report("GRM5022", diag.Warning, v, "the flags of vLLM "+r.vllm+" are not known, so vllm_serve_kwargs is not checked",
			"NeMo Gym ignores an argument that vLLM does not have.", "known: "+strings.Join(engines.Versions("vllm"), ", "))
		return
	}
	r.cat = cat
}

// findServers lists the servers and reports entries that NeMo Gym would pass
// over or half read.
func (r *gymRun) findServers() {
	starts := false
	for _, f := range r.eff.Fields {
		if gymReserved[f.Name] || !f.Value.OK() || f.Value.Kind != tree.Struct {
			continue
		}
		starts = r.entry(f.Name, f.Value) || starts
	}
	if !starts && !r.open {
		r.e.report("GRM5023", diag.Error, r.config, "no server in gym.config",
			"NeMo Gym refuses to start when nothing is to be started.", "add a server, such as judge: responses_api_models: genrm_model: {entrypoint: \"app.py\", …}")
	}
}

// entry reads one top-level struct and reports whether it is meant as a server.
func (r *gymRun) entry(name string, v *tree.Value) bool {
	var kinds []tree.Field
	for _, f := range v.Fields {
		if slices.Contains(gymKinds, f.Name) {
			kinds = append(kinds, f)
		}
	}
	found := len(kinds) > 0
	for _, f := range v.Fields {
		if !slices.Contains(gymKinds, f.Name) && f.Value.OK() && f.Value.Kind == tree.Struct {
			if near := gymNear(f.Name, gymKinds); near != "" && v.Field(near) == nil {
				found = true
				r.e.reportKey("GRM5003", diag.Error, v, f.Name, fmt.Sprintf("%s of %s is no kind of server", f.Name, name),
					"NeMo Gym takes the entry for a global and starts no server, without a word.", fmt.Sprintf("did you mean %q?", near))
			}
		}
	}
	for i, k := range kinds {
		if i > 0 {
			r.e.reportKey("GRM5001", diag.Error, v, k.Name, fmt.Sprintf("%s is both %s and %s", name, kinds[0].Name, k.Name),
				"NeMo Gym starts one server for an entry and drops the other, without a word.", "make it two entries",
				diag.Related{Pos: kinds[0].Pos, Message: "the first kind"})
		}
		if k.Value.OK() && k.Value.Kind == tree.Struct {
			r.implementations(name, v, k)
		}
	}
	return found
}

func (r *gymRun) implementations(name string, entry *tree.Value, k tree.Field) {
	first := ""
	for _, f := range k.Value.Fields {
		if f.Name == "dummy_model" || gymDirective(f.Name) {
			continue
		}
		if first != "" {
			r.e.reportKey("GRM5002", diag.Error, k.Value, f.Name, fmt.Sprintf("%s has two implementations, %s and %s", name, first, f.Name),
				"A server has exactly one; NeMo Gym refuses to start.", "keep one, or make two entries",
				diag.Related{Pos: k.Value.KeyPos(first), Message: "the first implementation"})
			continue
		}
		first = f.Name
		if k.Name == "responses_api_models" && !slices.Contains(gymModels, f.Name) {
			if near := gymNear(f.Name, gymModels); near != "" {
				r.e.reportKey("GRM5003", diag.Error, k.Value, f.Name, fmt.Sprintf("there is no model server %s", f.Name),
					"NeMo Gym looks for a folder responses_api_models/"+f.Name+" when it starts; nothing checks it before.", fmt.Sprintf("did you mean %q?", near))
				continue
			}
			r.e.fact(r.e.relative(f.Value), f.Name+" is no model server of nemo-gym 0.7.0: its fields are passed on unchecked")
		}
		if !f.Value.OK() || f.Value.Kind != tree.Struct {
			continue
		}
		s := &gymServer{name: name, kind: k.Name, impl: f.Name, at: entry, block: f.Value, partial: r.open}
		for _, v := range []*tree.Value{entry, k.Value, f.Value} {
			for _, n := range v.Names() {
				s.partial = s.partial || gymDirective(n)
			}
		}
		r.servers = append(r.servers, s)
	}
}

// gymNear returns the name that word is a slip of the pen for. Only a name of
// nearly the same length counts, since genrm_model_v2 is a folder of one's own
// and not a typo.
func gymNear(word string, names []string) string {
	for _, n := range diag.Nearest(word, names, 3) {
		if d := len(n) - len(word); -1 <= d && d <= 1 {
			return n
		}
	}
	return ""
}

func gymDirective(name string) bool {
	return name == "_inherit_from" || name == "_copy" || name == "_delete_key"
}

// required reports fields that the server's class demands.
func (r *gymRun) required(s *gymServer) {
	if s.partial {
		return
	}
	names := gymRequired[s.impl]
	if s.kind != "responses_api_models" || names == nil {
		names = []string{"entrypoint"}
	}
	for _, n := range names {
		if s.block.Field(n) != nil {
			continue
		}
		detail := fmt.Sprintf("The class of %s demands it: the server dies when it starts, and gym env validate does not notice.", s.impl)
		if n == "entrypoint" {
			detail = "NeMo Gym starts no server for a block without entrypoint, without a word."
		}
		r.e.report("GRM5004", diag.Error, s.block, fmt.Sprintf("%s has no %s", s.name, n), detail, "add it, such as "+n+": "+gymSamples[n])
	}
	if s.kind != "resources_servers" {
		return
	}
	d := s.block.Field("domain")
	switch text, ok := r.resolve(d).AsString(); {
	case d == nil || d.Kind == tree.Null:
		r.e.report("GRM5020", diag.Error, s.block, fmt.Sprintf("%s has no domain", s.name), "NeMo Gym refuses a resources server without one.",
			"add domain: one of "+strings.Join(gymDomains, ", "))
	case ok && !gymText(text) && !slices.Contains(gymDomains, text):
		r.e.report("GRM5020", diag.Error, d, fmt.Sprintf("%q is no domain", text), "NeMo Gym refuses it.",
			cmp.Or(diag.DidYouMean(text, gymDomains), "use one of "+strings.Join(gymDomains, ", ")))
	}
}

// references checks {type, name} structs at any depth of a server.
func (r *gymRun) references(s *gymServer, v *tree.Value) {
	if !v.OK() {
		return
	}
	for _, x := range v.Items {
		r.references(s, x)
	}
	kind, isRef := v.Field("type").AsString()
	name, named := r.resolve(v.Field("name")).AsString()
	if isRef && named && slices.Contains(gymKinds, kind) {
		if gymText(name) || r.open {
			return
		}
		var same []string
		for _, f := range r.eff.Fields {
			if f.Value.Field(kind) != nil {
				same = append(same, f.Name)
			}
		}
		if slices.Contains(same, name) {
			return
		}
		other := r.eff.Field(name)
		remedy := diag.DidYouMean(name, same)
		for _, k := range gymKinds {
			if other.Field(k) != nil {
				remedy = fmt.Sprintf("%s is one of %s: change the type", name, k)
			}
		}
		if remedy == "" {
			remedy = "there is none of that type"
			if len(same) > 0 {
				remedy = "use " + diag.OrList(same)
			}
		}
		r.e.report("GRM5006", diag.Error, v.Field("name"), fmt.Sprintf("%s refers to %s, but there is no such server under %s", s.name, name, kind),
			"NeMo Gym refuses to start with a reference to a server that is not in its config.", remedy)
		return
	}
	for _, f := range v.Fields {
		r.references(s, f.Value)
	}
}

// exclusive reports fields of a vLLM client that cannot go together. Source:
// _validate_prefix_supply and _responses_native in
// responses_api_models/vllm_model/app.py of 0.7.0.
func (r *gymRun) exclusive(s *gymServer) {
	if s.kind != "responses_api_models" {
		return
	}
	if s.impl == "openai_model" {
		if v := s.block.Field("session_key_headers"); v.OK() {
			r.e.report("GRM5018", diag.Note, v, "session_key_headers has no effect in nemo-gym 0.7.0",
				"The openai_model of that release does not read it, and NeMo Gym ignores what a server does not read.", "make sure that your NeMo Gym has it")
		}
		return
	}
	if s.impl != "genrm_model" && s.impl != "local_vllm_model" && s.impl != "vllm_model" {
		return
	}
	is := func(name string, def bool) (v *tree.Value, on, known bool) {
		v = s.block.Field(name)
		if v == nil {
			return nil, def, !s.partial
		}
		on, known = r.resolve(v).AsBool()
		return v, on, known
	}
	clash := func(v *tree.Value, other *tree.Value, summary, detail, remedy string) {
		var rel []diag.Related
		if other != nil {
			rel = []diag.Related{{Pos: other.Pos, Message: "set here"}}
		}
		r.e.report("GRM5016", diag.Error, v, summary, detail, remedy, rel...)
	}
	const dies = "The server dies when it starts; gym env validate does not notice."
	const fails = "Every request to /v1/responses fails with NotImplementedError."
	ids, idsOn, idsKnown := is("return_token_id_information", false)
	native, nativeOn, _ := is("is_responses_native", false)
	completions, completionsOn, completionsKnown := is("use_completions_api", false)
	if v, on, _ := is("supply_prefix_token_ids", false); on {
		if idsKnown && !idsOn {
			clash(v, ids, "supply_prefix_token_ids needs return_token_id_information", dies, "set return_token_id_information: true")
		}
		if completionsOn {
			clash(v, completions, "supply_prefix_token_ids does not go with use_completions_api", dies, "set one of them to false")
		}
		if nativeOn {
			clash(v, native, "supply_prefix_token_ids does not go with is_responses_native", dies, "set one of them to false")
		}
	}
	if nativeOn {
		if idsOn {
			clash(native, ids, "is_responses_native does not go with return_token_id_information", fails, "set one of them to false")
		}
		if v, on, _ := is("replace_developer_role_with_system", false); on {
			clash(native, v, "is_responses_native does not go with replace_developer_role_with_system", fails, "set one of them to false")
		}
		if v, on, known := is("sequential_reasoning_allowed", true); known && !on {
			clash(native, v, "is_responses_native does not go with sequential_reasoning_allowed: false", fails, "leave out one of them")
		}
	}
	if v, on, _ := is("render_chat_template", false); on && completionsKnown && !completionsOn {
		clash(v, completions, "render_chat_template has no effect without use_completions_api", "Only calls to /v1/completions render the template.", "set use_completions_api: true, or leave it out")
	}
}

// ports reports servers that want one address. NeMo Gym checks only ports that
// it gives out itself.
func (r *gymRun) ports() {
	host := func(v *tree.Value) string {
		if h, ok := r.resolve(v).AsString(); ok {
			return h
		}
		if h, ok := r.resolve(r.eff.Field("default_host")).AsString(); ok {
			return h
		}
		return "127.0.0.1"
	}
	type holder struct {
		who string
		pos diag.Pos
	}
	taken := map[string]holder{}
	head := r.eff.Field("head_server")
	port := int64(11000) // DEFAULT_HEAD_SERVER_PORT
	if n, ok := r.resolve(head.Field("port")).AsInt(); ok {
		port = n
	}
	headPos := head.KeyPos("port")
	taken[host(head.Field("host"))+":"+strconv.FormatInt(port, 10)] = holder{"the head server", headPos}
	for _, s := range r.servers {
		v := s.block.Field("port")
		n, ok := r.resolve(v).AsInt()
		if !ok {
			continue
		}
		key := host(s.block.Field("host")) + ":" + strconv.FormatInt(n, 10)
		prev, dup := taken[key]
		if !dup {
			taken[key] = holder{s.name, v.Pos}
			continue
		}
		var rel []diag.Related
		if prev.pos.IsValid() {
			rel = []diag.Related{{Pos: prev.pos, Message: prev.who}}
		}
		r.e.report("GRM5005", diag.Error, v, fmt.Sprintf("%s and %s both want port %d", prev.who, s.name, n),
			fmt.Sprintf("Both listen on %s. NeMo Gym does not compare given ports: the second server dies when it starts.", key),
			"choose another port, or leave it out and NeMo Gym takes a free one", rel...)
	}
}

// models checks and plans the model servers.
func (r *gymRun) models() {
	var locals []*gymLocal
	flags := false
	for _, s := range r.servers {
		if s.kind != "responses_api_models" {
			continue
		}
		empty := &tree.Value{Kind: tree.Struct}
		inst := &plan.Instance{Engine: "openai", EngineConfig: empty, SamplingConfig: empty, Bundles: []int{},
			Argv: [][]plan.Arg{}, Placement: []plan.Placement{}, Settings: r.published(s.block)}
		if v := s.block.Field("sampling_overrides"); v.OK() && v.Kind == tree.Struct {
			inst.SamplingConfig = v
		}
		switch s.impl {
		case "genrm_model", "local_vllm_model":
			if s.impl == "local_vllm_model" && s.name == "genrm_model" {
				r.e.fact(r.e.relative(s.block), "local_vllm_model does not turn metadata into the GenRM roles; genrm_model does")
			}
			if r.external(s.block) {
				inst.Model = r.modelName(s.block.Field("model"))
				r.e.fact(r.e.relative(s.block), "base_url is set: NeMo Gym starts no vLLM for "+s.name)
				break
			}
			flags = true
			l := r.local(s)
			l.inst = inst
			locals = append(locals, l)
			inst.Engine, inst.EngineVersion = "vllm", r.vllm
			inst.ModelPath = r.e.modelPath(r.resolve(s.block.Field("model")))
			inst.TensorParallel, inst.PipelineParallel, inst.DataParallel = l.tp, l.pp, l.dp
			inst.NumGPUsPerEngine, inst.Replicas = l.tp*l.pp, l.dp
			inst.NumGPUs = l.tp * l.pp * l.dp
			if v := s.block.Field("vllm_serve_kwargs"); v.OK() && v.Kind == tree.Struct {
				inst.EngineConfig = v
			}
		case "vllm_model":
			inst.Model = r.modelName(s.block.Field("model"))
		case "openai_model":
			inst.Model = r.modelName(s.block.Field("openai_model"))
		default:
			continue
		}
		r.e.plan.Instances.Set(s.name, inst)
	}
	if flags && r.cat != nil {
		why := "as engine_version says"
		if r.w.Field("engine_version") == nil {
			why = "which NeMo Gym pins at 07d6b0d (nemo-gym 0.7.0 pins " + gymNext + "; engine_version picks another)"
		}
		r.e.fact("gym", "vllm_serve_kwargs is checked against vLLM "+r.vllm+", "+why)
	}
	r.capacity(locals)
}

// modelName is the text of a model's name, after interpolation where that can
// be done here.
func (r *gymRun) modelName(v *tree.Value) string {
	s, _ := r.resolve(v).AsString()
	return s
}

// external reports whether a local model is told to use an endpoint instead.
func (r *gymRun) external(block *tree.Value) bool {
	v := block.Field("base_url")
	return v.OK() && (v.Kind == tree.String && v.Text != "" || v.Kind == tree.List && len(v.Items) > 0)
}

// local checks a model that starts its own vLLM. Source: _configure_vllm_serve
// in local_vllm_model/app.py and create_dp_placement_groups in
// local_vllm_model_actor.py of nemo-gym 0.7.0.
func (r *gymRun) local(s *gymServer) *gymLocal {
	l := &gymLocal{s: s}
	kwargs, env := s.block.Field("vllm_serve_kwargs"), s.block.Field("vllm_serve_env_vars")
	if kwargs.OK() && kwargs.Kind == tree.Struct {
		for i, p := range []*int{&l.dp, &l.tp, &l.pp} {
			*p = r.size(s, kwargs, gymSizes[i])
		}
		r.serveKwargs(kwargs, env)
	}
	l.pack, _ = r.resolve(env.Field("VLLM_RAY_DP_PACK_STRATEGY")).AsString()
	r.packing(l, env)
	if model := r.resolve(s.block.Field("model")); model.OK() && !gymText(model.Text) {
		r.e.modelFits(s.name, model, l.tp, l.pp, r.resolve(kwargs.Field("tensor_parallel_size")))
	}
	return l
}

// size returns a parallel size, or 0 when it is unknown or was reported.
func (r *gymRun) size(s *gymServer, kwargs *tree.Value, name string) int {
	const detail = "NeMo Gym asserts that data_parallel_size, tensor_parallel_size and pipeline_parallel_size are all set and not 0."
	v := kwargs.Field(name)
	if v == nil {
		if !s.partial {
			r.e.report("GRM5010", diag.Error, kwargs, "vllm_serve_kwargs of "+s.name+" has no "+name, detail, "add "+name+": 1, or what the model needs")
		}
		return 0
	}
	x := r.resolve(v)
	n, ok := x.AsInt()
	if !ok || n >= 1 && n <= 1<<16 {
		return int(n) // what is no integer is for the flag check
	}
	r.e.report("GRM5010", diag.Error, v, fmt.Sprintf("%s of %s is %s", name, s.name, x.Text), detail, "use at least 1, and a number of GPUs that exists")
	return 0
}

// serveKwargs checks vllm_serve_kwargs against the catalogue. NeMo Gym puts the
// struct into vLLM's parsed arguments as it is: nothing converts a value, only
// the full name counts, and false is false.
func (r *gymRun) serveKwargs(kwargs, env *tree.Value) {
	if v := kwargs.Field("data_parallel_size_local"); v != nil {
		detail := "It sets 1 in its place."
		if s, _ := env.Field("VLLM_RAY_DP_PACK_STRATEGY").AsString(); s == "span" {
			detail = "It drops the value under the pack strategy span."
		}
		r.e.reportKey("GRM5012", diag.Warning, kwargs, "data_parallel_size_local", "NeMo Gym overrides data_parallel_size_local", detail, "leave it out")
	}
	if r.cat == nil {
		for _, f := range kwargs.Fields {
			if who, owned := gymOwned[f.Name]; owned {
				r.e.reportKey("GRM5025", diag.Error, kwargs, f.Name, "vllm_serve_kwargs may not set "+f.Name, who+".", "leave it out")
			}
		}
		return
	}
	rules := flagRules{cat: r.cat, others: []*engines.Catalogue{engines.Latest("sglang")}, owned: gymOwned, skip: map[string]bool{"data_parallel_size_local": true}}
	seen := *kwargs
	seen.Fields = slices.Clone(kwargs.Fields)
	for i, f := range seen.Fields {
		v := f.Value
		if !v.OK() {
			continue
		}
		flag, ok := r.cat.Lookup(f.Name)
		full := cmp.Or(flag.AliasOf, flag.NegativeOf)
		_, owned := gymOwned[engines.Key(f.Name)]
		switch {
		case ok && !owned && (full != "" || strings.Contains(f.Name, "-")):
			rules.skip[f.Name] = true
			full = cmp.Or(full, flag.Name)
			remedy := "write " + full
			if flag.NegativeOf != "" {
				remedy += ": false"
			}
			r.e.reportKey("GRM5011", diag.Error, kwargs, f.Name, f.Name+" has no effect, since vLLM keeps the value under "+full,
				"NeMo Gym does not pass a command line but sets the parsed arguments by name; any other spelling is ignored.", remedy)
			continue
		case v.Kind == tree.String && gymText(v.Text):
			// The type is known only after interpolation; the name is still checked.
		case !ok || full != "":
			continue
		case v.Kind == tree.Bool && flag.Type == engines.Bool:
			// Also where the command line has no way to write false.
		case v.Kind == tree.String && (flag.Type == engines.JSON || flag.Type == engines.Int || flag.Type == engines.Float):
			want := map[engines.Type]string{engines.JSON: "an object or a list", engines.Int: "an integer", engines.Float: "a number"}[flag.Type]
			r.e.report("GRM5021", diag.Error, v, f.Name+" is text, but vLLM wants "+want,
				"NeMo Gym hands values to vLLM unparsed, so that what its command line would convert stays text.", "write "+want+" without quotes")
		default:
			continue
		}
		bad := *v
		bad.Kind = tree.Bad
		seen.Fields[i].Value = &bad
	}
	r.e.checkFlags(rules, &seen, nil)
}

// packing checks the pack strategy of a model against the nodes.
func (r *gymRun) packing(l *gymLocal, env *tree.Value) {
	const name = "VLLM_RAY_DP_PACK_STRATEGY"
	if !env.OK() || env.Kind != tree.Struct {
		return
	}
	v := env.Field(name)
	if v == nil {
		if !l.s.partial {
			r.e.report("GRM5013", diag.Error, env, "vllm_serve_env_vars of "+l.s.name+" has no "+name,
				"NeMo Gym asserts it when it starts the server.", `add `+name+`: "strict", or "span" when one replica is larger than a node`)
		}
		return
	}
	if l.pack == "" && !v.OK() || gymText(l.pack) {
		return
	}
	if l.pack != "strict" && l.pack != "fill" && l.pack != "span" {
		r.e.report("GRM5013", diag.Error, v, fmt.Sprintf("%q is no pack strategy", l.pack), "vLLM knows strict, fill and span.",
			cmp.Or(diag.DidYouMean(l.pack, []string{"strict", "fill", "span"}), "use strict, fill or span"))
		return
	}
	kwargs := l.s.block.Field("vllm_serve_kwargs")
	if all2all, _ := kwargs.Field("all2all_backend").AsString(); l.pack == "fill" && strings.HasPrefix(all2all, "deepep_") {
		r.e.report("GRM5013", diag.Error, v, "fill does not go with all2all_backend "+all2all,
			"DeepEP wants eight expert-parallel ranks on one node, which fill does not promise. vLLM refuses to start.", `use "strict"`,
			diag.Related{Pos: kwargs.KeyPos("all2all_backend"), Message: "the all-to-all backend"})
	}
	perNode, size := r.e.plan.Cluster.GPUsPerNode, l.tp*l.pp
	if size == 0 {
		return
	}
	if perNode == 0 {
		r.e.fact(r.e.relative(v), "cluster.gpus_per_node is not stated: whether "+l.pack+" suits a replica of "+gpus(size)+" is not checked")
		return
	}
	related := diag.Related{Pos: kwargs.KeyPos("tensor_parallel_size"), Message: fmt.Sprintf("%d (tensor) × %d (pipeline) = %s a replica", l.tp, l.pp, gpus(size))}
	switch {
	case l.pack != "span" && size > perNode:
		r.e.report("GRM5014", diag.Error, v, fmt.Sprintf("a replica of %s has %s, but %s wants it on one node of %d", l.s.name, gpus(size), l.pack, perNode),
			fmt.Sprintf("%d × %d = %d > %d. Ray waits for such a node for ever.", l.tp, l.pp, size, perNode), `use "span", or smaller parallel sizes`, related)
	case l.pack == "span" && size <= perNode:
		r.e.report("GRM5014", diag.Error, v, fmt.Sprintf("span is for replicas larger than a node, but one of %s has %s of %d", l.s.name, gpus(size), perNode),
			fmt.Sprintf("%d × %d = %d ≤ %d. vLLM refuses to start.", l.tp, l.pp, size, perNode), `use "strict"`, related)
	case l.pack == "span" && size%perNode != 0:
		r.e.report("GRM5014", diag.Error, v, fmt.Sprintf("a replica of %s has %s, which is no whole number of nodes of %d", l.s.name, gpus(size), perNode),
			fmt.Sprintf("%d × %d = %d; %d %% %d = %d. vLLM refuses to start.", l.tp, l.pp, size, size, perNode, size%perNode), "use sizes whose product is a multiple of the GPUs of a node", related)
	}
}

// capacity compares what the local models need with the cluster, and derives
// the number of nodes where it is not stated.
func (r *gymRun) capacity(locals []*gymLocal) {
	c := &r.e.plan.Cluster
	total, sums := 0, []string{}
	for _, l := range locals {
		n := l.tp * l.pp * l.dp
		if n == 0 {
			return // unknown or reported
		}
		if total+n > 1<<16 {
			kwargs := l.s.block.Field("vllm_serve_kwargs")
			r.e.report("GRM5010", diag.Error, kwargs, fmt.Sprintf("with %s the models need %d GPUs", l.s.name, total+n),
				fmt.Sprintf("%d (data) × %d (tensor) × %d (pipeline) = %d.", l.dp, l.tp, l.pp, n), "use sizes whose product is a number of GPUs that exists")
			return
		}
		total += n
		sums = append(sums, fmt.Sprintf("%s %d × %d × %d = %d", l.s.name, l.dp, l.tp, l.pp, n))
	}
	if total == 0 {
		return
	}
	if c.GPUsPerNode == 0 {
		r.e.fact("gym", fmt.Sprintf("the models need %s (%s); cluster.gpus_per_node is not stated, so nodes are not counted", gpus(total), strings.Join(sums, ", ")))
		first := 0
		for _, l := range locals {
			l.inst.Bundles = bundleRange(first, first+l.inst.NumGPUs)
			l.inst.Placement = spread(l.inst.Bundles, 0, 0, l.inst.NumGPUsPerEngine)
			first += l.inst.NumGPUs
		}
		return
	}
	// The largest first, each replica on the first node with room.
	slices.SortStableFunc(locals, func(a, b *gymLocal) int { return cmp.Compare(b.tp*b.pp, a.tp*a.pp) })
	var used []int // GPUs of each node that are given out
	for _, l := range locals {
		from, last := 0, 0 // no node before from has room for last
		for replica := range l.dp {
			rank := 0
			for left := l.tp * l.pp; left > 0; rank++ {
				part := min(left, c.GPUsPerNode)
				if part != last {
					from, last = 0, part
				}
				node := from
				for node < len(used) && used[node]+part > c.GPUsPerNode {
					node++
				}
				if node == len(used) {
					used = append(used, 0)
				}
				from = node
				l.inst.Placement = append(l.inst.Placement, plan.Placement{Replica: replica, NodeRank: rank, Node: node, GPUs: bundleRange(used[node], used[node]+part)})
				first := node*c.GPUsPerNode + used[node]
				l.inst.Bundles = append(l.inst.Bundles, bundleRange(first, first+part)...)
				used[node] += part
				left -= part
			}
		}
	}
	r.e.fact("gym", "Ray chooses the GPUs of each replica; the map shows the largest placed first")
	c.NodesNeeded = len(used)
	if c.Nodes == 0 {
		c.Nodes = c.NodesNeeded
		return
	}
	if c.NodesNeeded <= c.Nodes {
		return
	}
	rooms, sev, detail := c.Nodes*c.GPUsPerNode, diag.Error, "Ray waits for the rest for ever."
	if total <= rooms {
		sev, detail = diag.Warning, "There are enough GPUs, but replicas that must stay on one node may not fit between each other."
	}
	for _, l := range locals {
		if l.pack != "span" && l.tp*l.pp <= c.GPUsPerNode && l.dp > c.Nodes*(c.GPUsPerNode/(l.tp*l.pp)) {
			sev = diag.Error
		}
	}
	r.e.report("GRM5015", sev, r.e.root.Lookup("cluster", "nodes"), fmt.Sprintf("the models need %s on %d nodes, but the cluster has %d on %d", gpus(total), c.NodesNeeded, rooms, c.Nodes),
		fmt.Sprintf("%s (data × tensor × pipeline); %d × %d = %d. %s", strings.Join(sums, ", "), c.Nodes, c.GPUsPerNode, rooms, detail),
		fmt.Sprintf("use %d nodes, or smaller sizes", c.NodesNeeded))
}
