package compiler

import (
	"fmt"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// defaultJudge is the key under which Relax registers the single judge. Source:
// relax/utils/arguments.py, _resolve_genrm_instances.
const defaultJudge = "__default__"

// relaxSGLang is the SGLang release that Relax pins. Source: its Dockerfile at
// the revision of the guide.
const relaxSGLang = "0.5.15.post1"

// relaxRun is a relax block on its way to a plan. Its stages run in the order
// of [compileRelax]; each reports what it finds and goes on with what it knows.
type relaxRun struct {
	e *experiment
	w *tree.Value // the relax block

	version string // relax_version
	stated  bool   // the user wrote relax_version

	judges []*relaxJudge // in the user's order
	known  bool          // every judge's size is known
	orphan bool          // a judge is configured but not given, which was reported
	genrm  int           // Σ num_gpus, when known

	layout relaxLayout
}

// relaxJudge is one judge after normalisation: with what it falls back to.
type relaxJudge struct {
	key       string
	at        *tree.Value // the instance, or the relax block for the single judge
	model     *tree.Value
	path      string // model_path with its alias resolved; "" when faulty
	num       *tree.Value
	numGPUs   int // 0 when unknown
	per       *tree.Value
	perEngine int // 0 when faulty
	engine    *tree.Value
	sampling  *tree.Value
}

// compileRelax fills the plan of a relax block. Sources: the Relax GenRM guide
// and relax/utils/arguments.py at 5c0807d5.
func compileRelax(e *experiment, w *tree.Value) {
	r := &relaxRun{e: e, w: w, version: "guide"}
	if v := w.Field("relax_version"); v != nil {
		r.stated = true
		if s, ok := v.AsString(); ok {
			r.version = s
		}
	}
	r.normalise()
	r.resources()
	r.mode()
	r.memory()
	r.reward()
	r.asynchronous()
	r.divisibility()
	r.engines()
	r.place()
	r.command()
}

// fields returns those of the named fields that the user wrote.
func (r *relaxRun) fields(names ...string) []string {
	var out []string
	for _, n := range names {
		if r.w.Field(n) != nil {
			out = append(out, n)
		}
	}
	return out
}

// related points at the key of a field of the relax block.
func (r *relaxRun) related(name, message string) diag.Related {
	return diag.Related{Pos: r.w.KeyPos(name), Message: message}
}

// faulty reports whether one of the named fields was found faulty, so that what
// depends on it is not known.
func (r *relaxRun) faulty(names ...string) bool {
	for _, n := range names {
		if v := r.w.Field(n); v != nil && !v.OK() {
			return true
		}
	}
	return false
}

// str returns a string field of the relax block, "" when absent or faulty.
func (r *relaxRun) str(name string) string {
	s, _ := r.w.Field(name).AsString()
	return s
}

// arg returns what args sets a flag to, or nil.
func (r *relaxRun) arg(name string) *tree.Value { return r.w.Lookup("args", name) }

// normalise brings both forms of a GenRM configuration to judges. Fall-back to
// the genrm_* fields is by absence and of the whole object: {} and null block
// it, as Relax's look-up does.
func (r *relaxRun) normalise() {
	e, w := r.e, r.w
	r.known = true
	block := w.Field("genrm_instances")
	if block == nil {
		r.single()
	} else {
		for _, name := range r.fields("genrm_model_path", "genrm_num_gpus") {
			e.reportKey("GRM4003", diag.Warning, w, name, name+" is ignored, since genrm_instances is given",
				"Relax uses the single-judge fields only when there is no genrm_instances.",
				"remove "+name+", or make it an instance of its own", r.related("genrm_instances", "the judges that are used"))
		}
		if !block.OK() {
			r.known = false
		} else if len(block.Fields) == 0 && block.Kind == tree.Struct {
			e.report("GRM4002", diag.Error, block, "genrm_instances has no judge", "Relax refuses an empty object. A name that begins with \"_\" is hidden in CUE unless it is quoted.", "add a judge, or remove genrm_instances to run without GenRM")
			r.known = false
		}
		for _, f := range block.Fields {
			if f.Name == defaultJudge {
				e.reportKey("GRM4001", diag.Error, block, f.Name, "the route_key __default__ is reserved",
					"Relax keeps it for the judge of genrm_model_path.", "choose another key, or use genrm_model_path for a single judge")
			}
			r.instance(f)
		}
	}
	for _, j := range r.judges {
		if j.numGPUs > maxGPUs {
			e.report("GRM7006", diag.Error, j.num, fmt.Sprintf("num_gpus %d of %s is more than genrm places", j.numGPUs, j.key),
				fmt.Sprintf("The limit is %d GPUs.", maxGPUs), "check the number for a typing mistake")
			j.numGPUs = 0
		}
		if j.numGPUs == 0 {
			r.known = false
		}
		r.genrm += j.numGPUs
	}
}

// instance adds one judge of genrm_instances.
func (r *relaxRun) instance(f tree.Field) {
	v := f.Value
	j := &relaxJudge{key: f.Name, at: v}
	r.judges = append(r.judges, j)
	if !v.OK() {
		return
	}
	j.model = v.Field("model_path")
	j.path = r.e.modelPath(j.model)
	j.num, j.numGPUs = v.Field("num_gpus"), v.Size("num_gpus")
	j.per = fallback(v, "num_gpus_per_engine", r.w, "genrm_num_gpus_per_engine")
	j.perEngine = sizeOr(j.per, 1)
	j.engine = fallback(v, "engine_config", r.w, "genrm_engine_config")
	j.sampling = fallback(v, "sampling_config", r.w, "genrm_sampling_config")
}

// single adds the judge of genrm_model_path, if there is one.
func (r *relaxRun) single() {
	e, w := r.e, r.w
	model := w.Field("genrm_model_path")
	if model == nil {
		r.orphan = true
		if idle := r.fields("genrm_num_gpus", "genrm_num_gpus_per_engine", "genrm_engine_config", "genrm_sampling_config"); len(idle) > 0 {
			e.reportKey("GRM4004", diag.Error, w, idle[0], idle[0]+" configures a judge, but no judge is given",
				"GenRM is off without genrm_model_path or genrm_instances; Relax starts the run without a word.",
				"add genrm_model_path or genrm_instances, or remove "+idle[0])
		} else if genrm := w.Lookup("resource", "genrm"); genrm.OK() {
			e.reportKey("GRM4004", diag.Error, w.Field("resource"), "genrm", "resource.genrm sets GPUs aside, but no judge is given",
				"GenRM is off without genrm_model_path or genrm_instances.", "add genrm_model_path or genrm_instances, or remove resource.genrm")
		} else {
			r.orphan = false
		}
		return
	}
	j := &relaxJudge{key: defaultJudge, at: w, model: model, path: e.modelPath(model)}
	r.judges = append(r.judges, j)
	j.num = w.Field("genrm_num_gpus")
	j.numGPUs = w.Size("genrm_num_gpus")
	// Relax takes 1 for "not given" and then derives the number from --resource.
	if total, ok := groups(w.Lookup("resource", "genrm")); ok && total > 0 && (j.num == nil || j.numGPUs == 1 && total != 1) {
		if j.num != nil {
			e.report("GRM4011", diag.Error, j.num, fmt.Sprintf("genrm_num_gpus is 1, but Relax would use the %d of resource.genrm", total),
				"1 is the flag's default, which Relax cannot tell from a 1 that was asked for: it then takes resource.genrm.",
				"remove genrm_num_gpus, or set both to the same number", diag.Related{Pos: w.Lookup("resource", "genrm").Pos, Message: fmt.Sprintf("%d GPUs", total)})
		}
		j.numGPUs = total
	}
	j.per = w.Field("genrm_num_gpus_per_engine")
	j.perEngine = sizeOr(j.per, 1)
	j.engine = w.Field("genrm_engine_config")
	j.sampling = w.Field("genrm_sampling_config")
}

// fallback returns the field of v, or when it is absent the field of w.
func fallback(v *tree.Value, name string, w *tree.Value, global string) *tree.Value {
	if x := v.Field(name); x != nil {
		return x
	}
	return w.Field(global)
}

// sizeOr returns the integer v, def when v is absent, 0 when v is faulty.
func sizeOr(v *tree.Value, def int) int {
	if v == nil {
		return def
	}
	n, ok := v.AsInt()
	if !ok || int64(int(n)) != n {
		return 0
	}
	return int(n)
}

// groups returns the GPUs of a resource role, [num_groups, num_gpus_per_group];
// ok is false for a faulty role and for more GPUs than are placed.
func groups(v *tree.Value) (total int, ok bool) {
	if v == nil || v.Kind != tree.List || len(v.Items) != 2 {
		return 0, false
	}
	n, ok1 := v.Items[0].AsInt()
	m, ok2 := v.Items[1].AsInt()
	// Both far below overflow.
	if !ok1 || !ok2 || n < 0 || m < 0 || n > maxGPUs || m > maxGPUs || n*m > maxGPUs {
		return 0, false
	}
	return int(n * m), true
}

// sglangOwned are the SGLang flags that Relax sets for every judge. Source:
// relax/backends/sglang/sglang_engine.py, _compute_genrm_server_args.
var sglangOwned = map[string]string{
	"model_path":          "Relax sets it from the judge's model_path",
	"host":                "Relax sets it",
	"port":                "Relax sets it",
	"nccl_port":           "Relax sets it",
	"dist_init_addr":      "Relax sets it",
	"nnodes":              "Relax sets it from num_gpus_per_engine",
	"node_rank":           "Relax sets it",
	"base_gpu_id":         "Relax sets it from the judge's bundles",
	"gpu_id_step":         "Relax sets it",
	"tp_size":             "Relax sets it from num_gpus_per_engine",
	"enable_memory_saver": "Relax sets it from the mode",
}

// engines checks every engine_config against the SGLang release that runs the
// judges, and what a judge is asked to do.
func (r *relaxRun) engines() {
	if len(r.judges) == 0 {
		return
	}
	e := r.e
	version, why := relaxSGLang, "the release that Relax pins"
	if v := r.w.Field("engine_version"); v != nil {
		s, ok := v.AsString()
		if !ok {
			version = ""
		} else {
			version, why = s, "set by engine_version"
		}
	}
	cat, ok := engines.Get("sglang", version)
	if !ok && version != "" {
		known := engines.Versions("sglang")
		remedy := "known: " + diag.OrList(known)
		e.report("GRM4033", diag.Error, r.w.Field("engine_version"), fmt.Sprintf("no flag catalogue for SGLang %s", version),
			"engine_config cannot be checked against a release that genrm does not know.", remedy)
	}
	if ok {
		e.fact("relax.engine_version", fmt.Sprintf("engine_config is checked against SGLang %s, %s", version, why))
	}
	checked := map[*tree.Value]bool{}
	for _, j := range r.judges {
		if j.engine.OK() && !checked[j.engine] {
			checked[j.engine] = true
			if cat != nil {
				e.checkFlags(flagRules{cat: cat, others: otherCatalogues("vllm"), owned: sglangOwned,
					skip: map[string]bool{"max_context_len": true, "server_concurrency": true}, style: equals}, j.engine, nil)
			}
			r.engineNotes(j)
		}
		r.sanity(j)
	}
}

// engineNotes tells where Relax's engine code differs from its guide.
func (r *relaxRun) engineNotes(j *relaxJudge) {
	if v := j.engine.Field("max_context_len"); v.OK() && j.engine.Field("context_length") == nil {
		r.e.reportKey("GRM4031", diag.Note, j.engine, "max_context_len", "max_context_len is documented by Relax's guide, but its engine code drops it",
			"It is no server argument of SGLang; the engine then takes the model's own context length. Read in relax/backends/sglang/sglang_engine.py at 5c0807d5.",
			"give context_length: "+v.Text+" as well, or instead")
	}
}

// sanity asks the shared judge rules, with Relax's own names and defaults.
func (r *relaxRun) sanity(j *relaxJudge) {
	e := r.e
	context := j.engine.Field("context_length")
	if context == nil {
		context = j.engine.Field("max_context_len")
	}
	strict := r.str("rm_type") == "dapo-genrm" && r.w.Field("custom_rm_path") == nil
	s := judge{at: j.at, model: j.model, context: context, sampling: j.sampling, strict: strict}
	// dapo-genrm shows the judge at most the end of an answer; other rewards
	// show all of it.
	if answer, ok := r.arg("rollout_max_response_len").AsInt(); ok && !strict {
		s.prompt, s.promptOf = answer, fmt.Sprintf("%d (rollout_max_response_len)", answer)
		if q, ok := r.arg("rollout_max_prompt_len").AsInt(); ok {
			s.prompt, s.promptOf = answer+q, fmt.Sprintf("%d (rollout_max_prompt_len) + %d (rollout_max_response_len)", q, answer)
		}
	}
	e.judgeSanity(s)
	var defaults []string
	for _, d := range []struct{ key, text string }{
		{"temperature", "temperature 0.1 (0.2 in its engine code at 5c0807d5)"},
		{"top_p", "top_p 1.0"},
		{"top_k", "top_k -1"},
		{"max_response_len", "max_response_len 4096 (1024 in its engine code at 5c0807d5)"},
	} {
		if j.sampling.Field(d.key) == nil {
			defaults = append(defaults, d.text)
		}
	}
	if len(defaults) > 0 {
		e.fact(r.judgePath(j), "Relax's defaults for "+j.key+" by its guide: "+strings.Join(defaults, ", "))
	}
}

// judgePath is the path of a judge relative to the experiment.
func (r *relaxRun) judgePath(j *relaxJudge) string {
	if j.at == r.w {
		return "relax"
	}
	return tree.Join("relax.genrm_instances", j.key)
}

// otherCatalogues returns the newest catalogue of each engine that is known.
func otherCatalogues(names ...string) []*engines.Catalogue {
	var out []*engines.Catalogue
	for _, n := range names {
		if c := engines.Latest(n); c != nil {
			out = append(out, c)
		}
	}
	return out
}

// planInstance adds a judge to the plan.
func (r *relaxRun) planInstance(j *relaxJudge, bundles []int, placement []plan.Placement) {
	engine, sampling := j.engine, j.sampling
	empty := &tree.Value{Kind: tree.Struct}
	if engine == nil || engine.Kind != tree.Struct {
		engine = empty
	}
	if sampling == nil || sampling.Kind != tree.Struct {
		sampling = empty
	}
	version := r.str("engine_version")
	if version == "" {
		version = relaxSGLang
	}
	inst := &plan.Instance{Engine: "sglang", EngineVersion: version, ModelPath: j.path, NumGPUs: j.numGPUs, NumGPUsPerEngine: j.perEngine,
		TensorParallel: j.perEngine, PipelineParallel: max(1, engine.Size("pp_size")), DataParallel: max(1, engine.Size("dp_size")),
		Bundles: bundles, EngineConfig: engine, SamplingConfig: sampling, Argv: [][]plan.Arg{}, Placement: placement}
	if j.perEngine > 0 {
		inst.Replicas = j.numGPUs / j.perEngine
	}
	if inst.Bundles == nil {
		inst.Bundles = []int{}
	}
	if inst.Placement == nil {
		inst.Placement = []plan.Placement{}
	}
	r.e.plan.Instances.Set(j.key, inst)
}
