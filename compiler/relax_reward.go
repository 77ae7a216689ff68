package compiler

import (
	"fmt"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
)

// reward checks that the judges are asked, and that what asks them can. Source:
// relax/engine/rewards, relax/utils/arguments.py and the guide.
func (r *relaxRun) reward() {
	e, w := r.e, r.w
	rm, custom, post := w.Field("rm_type"), w.Field("custom_rm_path"), w.Field("custom_reward_post_process_path")
	deferred := w.Field("defer_reward_to_post_process").IsTrue()
	on := len(r.judges) > 0
	kind := r.str("rm_type")
	if deferred && !r.orphan {
		r.deferred()
	}
	if r.orphan || r.faulty("rm_type", "genrm_instances", "defer_reward_to_post_process") {
		return
	}
	switch {
	case kind == "dapo-genrm" && custom == nil && !on:
		e.report("GRM4021", diag.Error, rm, "dapo-genrm asks a judge, but no judge is given",
			"Every reward would fail.", "add genrm_model_path")
	case kind == "dapo-genrm" && custom == nil && len(r.judges) > 1:
		e.report("GRM4020", diag.Error, rm, fmt.Sprintf("dapo-genrm sends no route_key, but there are %d judges", len(r.judges)),
			"Without a route_key Relax takes the judge __default__, which only genrm_model_path makes: every call fails.",
			"use custom_rm_path with a function that names the route_key, or keep one judge", r.related("genrm_instances", "the judges"))
	case kind == "dummy" && on && custom == nil && post == nil && !deferred:
		e.report("GRM4019", diag.Error, rm, "rm_type dummy gives every answer the reward 0, and nothing asks the judges",
			"It is a placeholder for custom_rm_path or for a deferred reward.", "add custom_rm_path, or use rm_type: \"dapo-genrm\"")
	case on && custom == nil && post == nil && kind != "dapo-genrm" && !deferred:
		at := "the reward may still ask them by a type in each sample's metadata"
		if rm == nil {
			e.reportKey("GRM4023", diag.Warning, w, r.judgeField0(), "judges are started, but no reward asks them", "Neither rm_type nor custom_rm_path is set; "+at+".",
				`set rm_type: "dapo-genrm" or custom_rm_path`)
		} else {
			e.report("GRM4023", diag.Warning, rm, "judges are started, but rm_type "+kind+" does not ask them", "Of Relax's own reward types only dapo-genrm asks a judge; "+at+".",
				`set rm_type: "dapo-genrm" or custom_rm_path`, r.judgeField())
		}
	}
	if custom != nil && rm != nil && kind != "dummy" {
		e.report("GRM4024", diag.Warning, rm, "rm_type "+kind+" has no effect beside custom_rm_path",
			"Relax asks the custom function first, whatever rm_type is.", `remove rm_type, or set it to "dummy" as the published scripts do`, r.related("custom_rm_path", "takes priority"))
	}
	if kind == "dapo-genrm" && custom == nil && len(r.judges) == 1 && w.Field("reward_key") == nil {
		e.report("GRM4025", diag.Warning, rm, "dapo-genrm returns several values, and reward_key does not say which is the reward",
			"It returns score, acc and pred.", `set reward_key: "score"`)
	}
}

func (r *relaxRun) judgeField0() string {
	if r.w.Field("genrm_instances") != nil {
		return "genrm_instances"
	}
	return "genrm_model_path"
}

// deferred checks the deferred reward: it needs a layout in which rollout and
// judges can take turns, and all of its three parts.
func (r *relaxRun) deferred() {
	e, w := r.e, r.w
	const flag = "defer_reward_to_post_process"
	switch e.plan.Mode {
	case plan.DeferSwap:
	case plan.Split:
		if e.plan.ModeReason != "" { // else the layout is unknown or already refused
			e.reportKey("GRM4016", diag.Error, w, flag, flag+" has no effect in a split layout",
				e.plan.ModeReason+": judges have GPUs beside the rollout's and need not take turns.",
				"remove it, or share all GPUs: resource.rollout and resource.genrm equal to resource.actor")
		}
		return
	case plan.NoGenRM:
		e.reportKey("GRM4016", diag.Error, w, flag, flag+" without a judge", "There is no judge to take turns with.", "remove it, or add a judge")
		return
	default:
		e.reportKey("GRM4016", diag.Error, w, flag, flag+" needs judges that share the rollout's GPUs",
			e.plan.ModeReason+": there is nothing to take turns with.", "remove it, or use colocate with rollout and genrm on all of the actor's GPUs")
		return
	}
	const detail = "Defer-swap lets the rollout finish, swaps the judges in and scores all samples in the post-process function; it needs defer_reward_to_post_process, custom_reward_post_process_path and rm_type dummy together."
	if w.Field("custom_reward_post_process_path") == nil {
		e.reportKey("GRM4015", diag.Error, w, flag, "the reward is deferred, but custom_reward_post_process_path does not say what computes it", detail,
			`set custom_reward_post_process_path, such as "examples.generate_reward_model.post_process_genrm_swap.custom_reward_post_process"`)
	}
	rm := w.Field("rm_type")
	if rm == nil {
		e.reportKey("GRM4015", diag.Error, w, flag, "the reward is deferred, but rm_type is not dummy", detail, `set rm_type: "dummy"`)
	} else if s, ok := rm.AsString(); ok && s != "dummy" {
		e.report("GRM4015", diag.Error, rm, "the reward is deferred, but rm_type "+s+" asks during the rollout, when the judges sleep", detail, `set rm_type: "dummy"`, r.related(flag, "the reward is deferred"))
	}
	if v := w.Field("custom_rm_path"); v.OK() {
		e.report("GRM4015", diag.Error, v, "the reward is deferred, but custom_rm_path asks during the rollout, when the judges sleep", detail, "remove custom_rm_path", r.related(flag, "the reward is deferred"))
	}
}

// asynchronous checks that the roles which produce what training waits for are
// there: without them it would wait for ever. Source: relax/utils/arguments.py,
// the check of --resource in fully-async mode.
func (r *relaxRun) asynchronous() {
	e, w, l := r.e, r.w, &r.layout
	if !w.Field("fully_async").IsTrue() || w.Field("hybrid").IsTrue() || !l.resource.OK() {
		return
	}
	kl := r.arg("use_kl_loss")
	why := "use_kl_loss"
	on := kl.IsTrue()
	if v := r.arg("kl_coef"); !on && v != nil {
		if f, ok := v.AsFloat(); ok && f != 0 {
			kl, why, on = v, "kl_coef", true
		}
	}
	if s, _ := r.arg("advantage_estimator").AsString(); on && s != "ppo" && l.resource.Field("reference") == nil {
		e.report("GRM4018", diag.Error, l.resource, "resource has no reference, but "+why+" needs one",
			"In fully-async mode the reference role computes the log-probabilities that the KL term compares with. Relax refuses.",
			"add reference: [1, GPUs], or drop "+why, diag.Related{Pos: kl.Pos, Message: why})
	}
	batch, ok1 := r.arg("rollout_batch_size").AsInt()
	samples, ok2 := r.arg("n_samples_per_prompt").AsInt()
	global, ok3 := r.arg("global_batch_size").AsInt()
	if l.resource.Field("actor_fwd") == nil && ok1 && ok2 && ok3 && r.arg("true_on_policy_mode") == nil && batch < 1<<30 && samples < 1<<30 && batch*samples != global {
		e.report("GRM4022", diag.Error, l.resource, "resource has no actor_fwd, but training is not exactly on policy",
			fmt.Sprintf("rollout_batch_size × n_samples_per_prompt = %d × %d = %d, global_batch_size = %d. Only when they are equal can fully-async training do without the forward pass of actor_fwd. Relax refuses.", batch, samples, batch*samples, global),
			"add actor_fwd: [1, GPUs], or make the numbers equal", diag.Related{Pos: r.arg("global_batch_size").Pos, Message: "the global batch"})
	}
}
