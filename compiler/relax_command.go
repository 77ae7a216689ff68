package compiler

import (
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// notFlags are the fields of a relax block that are no flags of train.py.
var notFlags = map[string]bool{"args": true, "extra_args": true, "env": true, "entrypoint": true, "root": true,
	"megatron_path": true, "relax_version": true, "engine_version": true}

// relaxFields are the flags that have a field of their own.
var relaxFields = []string{"genrm_instances", "genrm_model_path", "genrm_num_gpus", "genrm_num_gpus_per_engine", "genrm_engine_config",
	"genrm_sampling_config", "resource", "colocate", "fully_async", "hybrid", "rollout_num_gpus", "rollout_num_gpus_per_engine",
	"sglang_mem_fraction_static", "sglang_config", "rm_type", "custom_rm_path", "reward_key", "defer_reward_to_post_process",
	"custom_reward_post_process_path", "max_staleness", "num_rollout"}

// relaxEnv is what the published scripts set for every run. Source:
// scripts/entrypoint/local.sh. PYTHONPATH goes after the first two.
var relaxEnv = []struct{ name, value string }{
	{"PYTHONUNBUFFERED", "1"},
	{"CUDA_DEVICE_MAX_CONNECTIONS", "1"},
	{"RAY_OVERRIDE_JOB_RUNTIME_ENV", "1"},
	{"OMP_NUM_THREADS", "24"},
	{"MKL_NUM_THREADS", "24"},
	{"OPENBLAS_NUM_THREADS", "24"},
	{"NCCL_NVLS_ENABLE", "1"},
	{"SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", "32"},
	{"NVSHMEM_DISABLE_NCCL", "1"},
	{"SGLANG_HEALTH_CHECK_TIMEOUT", "180"},
	{"NVTE_USE_CUTLASS_GROUPED_GEMM", "0"},
	{"NVTE_CUTLASS_GROUPED_GEMM_WARN_FALLBACK", "1"},
	{"INDEXER_ROPE_NEOX_STYLE", "0"},
}

// command builds the command line and environment of train.py.
func (r *relaxRun) command() {
	e, w := r.e, r.w
	argv := []plan.Arg{"python3"}
	if m, ok := w.Lookup("entrypoint", "module").AsString(); ok {
		argv = append(argv, "-m", plan.Lit(m))
	} else if path := r.str("entrypoint"); path != "" {
		argv = append(argv, plan.Lit(path))
	} else {
		argv = append(argv, "relax/entrypoints/train.py")
	}
	for _, f := range w.Fields {
		if !notFlags[f.Name] {
			argv = append(argv, r.flag(f.Name, f.Value)...)
		}
	}
	argv = append(argv, r.args()...)
	launch := &e.plan.Launch
	launch.Argv, launch.WorkDir = argv, r.str("root")
	r.environment()
}

// flag returns the words of a field, none for what Relax would ignore.
func (r *relaxRun) flag(name string, v *tree.Value) []plan.Arg {
	flag := plan.Arg("--" + strings.ReplaceAll(name, "_", "-"))
	both := r.w.Field("genrm_instances") != nil
	switch {
	case !v.OK(), both && (name == "genrm_model_path" || name == "genrm_num_gpus"):
		return nil
	case v.Kind == tree.Bool:
		if v.IsTrue() {
			return []plan.Arg{flag}
		}
		return nil
	case name == "genrm_instances":
		return []plan.Arg{flag, plan.Lit(r.resolved(v).JSON())}
	case name == "genrm_model_path":
		return []plan.Arg{flag, plan.Lit(r.e.modelText(v))}
	case v.Kind == tree.Struct || v.Kind == tree.List:
		return []plan.Arg{flag, plan.Lit(v.JSON())}
	}
	return []plan.Arg{flag, plan.Lit(v.Text)}
}

// resolved returns genrm_instances with every alias replaced by its path, and
// all else as the user wrote it.
func (r *relaxRun) resolved(block *tree.Value) *tree.Value {
	out := *block
	out.Fields = append([]tree.Field(nil), block.Fields...)
	for i, f := range out.Fields {
		if f.Value.Field("model_path") == nil {
			continue
		}
		inst := *f.Value
		inst.Fields = append([]tree.Field(nil), inst.Fields...)
		for k, g := range inst.Fields {
			if g.Name == "model_path" {
				inst.Fields[k].Value = tree.Text(r.e.modelText(g.Value))
			}
		}
		out.Fields[i].Value = &inst
	}
	return &out
}

// args returns the words of args and extra_args. A flag with a field of its own
// may be in neither: the plan is made from the field, and a second value would
// win unseen.
func (r *relaxRun) args() []plan.Arg {
	e, w := r.e, r.w
	cat, ok := engines.Get("relax", "guide")
	if !ok {
		return nil
	}
	rules := flagRules{cat: cat, owned: map[string]string{}, skip: map[string]bool{}, style: words}
	block := w.Field("args")
	for _, name := range relaxFields {
		rules.owned[name] = "it has a field of its own, relax." + name
	}
	for _, key := range block.Names() {
		name := engines.Key(key) // other spellings of an owned flag are left to checkFlags
		if _, ok := rules.owned[name]; !ok {
			continue
		}
		rules.skip[key] = true
		if w.Field(name) != nil {
			e.reportKey("GRM4026", diag.Error, block, key, key+" is set twice, here and as relax."+name,
				"The last of two equal flags wins in Relax, so that one of them would be without effect.", "remove it from args", r.related(name, "the first"))
		} else {
			e.reportKey("GRM4026", diag.Error, block, key, key+" has a field of its own", "The layout is checked by the fields of relax; args holds every other flag.",
				"move it out of args: relax: "+name+": …")
		}
	}
	var after []plan.Arg
	if v := block.Field("inference_defer_roles"); v.OK() && r.version == "inference-defer" {
		// Only that line has the flag, and the catalogue is of the documented one.
		rules.skip["inference_defer_roles"] = true
		after = append(after, "--inference-defer-roles")
		if v.Kind == tree.List {
			for _, x := range v.Items {
				after = append(after, plan.Lit(x.Text))
			}
		} else {
			after = append(after, plan.Lit(v.Text))
		}
	}
	return append(e.checkFlags(rules, block, w.Field("extra_args")), after...)
}

// environment sets what every run needs; what the user sets wins.
func (r *relaxRun) environment() {
	e, env := r.e, &r.e.plan.Launch.Env
	for i, v := range relaxEnv {
		if i == 2 {
			var path []string
			for _, name := range []string{"root", "megatron_path"} {
				if s := r.str(name); s != "" {
					path = append(path, s)
				}
			}
			if len(path) > 0 {
				env.Set("PYTHONPATH", plan.EnvValue{Text: plan.Lit(strings.Join(path, ":"))})
			}
		}
		env.Set(v.name, plan.EnvValue{Text: plan.Arg(v.value)})
	}
	user := r.w.Field("env")
	setEnv(env, user)
	if r.w.Field("root") == nil && user.Field("PYTHONPATH") == nil {
		e.fact("relax.root", "root is not stated: the command must be started in a folder and with a PYTHONPATH where Relax and Megatron are found")
	}
	if user.Field("NCCL_NVLS_ENABLE") == nil {
		e.fact("relax.env", "NCCL_NVLS_ENABLE=1 as on NVLink machines; set env: NCCL_NVLS_ENABLE: \"0\" on others")
	}
	if r.arg("enable_affinity") == nil {
		e.fact("relax.args", "Relax's default is enable_affinity; on Ray clusters without its node labels placement then waits for ever: set args: enable_affinity: false there")
	}
}
