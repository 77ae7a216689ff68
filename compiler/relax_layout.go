package compiler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// gpusPerNode is Relax's own node size for the actor, whatever the cluster has.
// Source: --actor-num-gpus-per-node, default 8.
const gpusPerNode = 8

// relaxLayout is what the GPU numbers of a relax block say.
type relaxLayout struct {
	resource *tree.Value
	actor    int // A: actor GPUs, the critic's added; 0 when unknown
	critic   int // the critic's part of actor
	floored  int // resource.actor, where Relax rounds it down; else 0
	rollout  int // R; 0 when unknown
	// Values that may be meant where two fields disagree, or where a role has
	// several groups, so that this is not reported a second time as a bad layout.
	// The first is the one that the user wrote.
	actors, rollouts, genrms []int
	shared                   bool // colocated, R == G == A
}

// resources checks the GPU numbers of each role on their own and against the
// judges. Source: relax/utils/arguments.py, _validate_genrm_resource_config.
func (r *relaxRun) resources() {
	e, w, l := r.e, r.w, &r.layout
	l.resource = w.Field("resource")
	on := len(r.judges) > 0
	if l.resource == nil && on {
		e.report("GRM4005", diag.Error, w, "no resource: Relax is not told which GPUs each role gets",
			"With GenRM on, --resource needs at least actor, rollout and genrm.",
			fmt.Sprintf("add resource: {actor: [1, …], rollout: [1, …], genrm: [1, %s]}", orDots(r.genrm, r.known)))
	}
	for _, role := range l.resource.Names() {
		v := l.resource.Field(role)
		total, ok := groups(v)
		if !ok {
			if v.OK() && len(v.Items) == 2 && v.Items[0].OK() && v.Items[1].OK() { // else reported
				e.report("GRM7006", diag.Error, v, "resource."+role+" is more GPUs than genrm places", fmt.Sprintf("The limit is %d GPUs.", maxGPUs), "check the numbers for a typing mistake")
			}
			continue
		}
		if n, _ := v.Items[0].AsInt(); n > 1 {
			e.report("GRM4007", diag.Error, v.Items[0], fmt.Sprintf("resource.%s has %d groups, but Relax accepts one per role", role, n),
				fmt.Sprintf("[num_groups, num_gpus_per_group] = [%d, %s] is %d GPUs.", n, v.Items[1].Text, total),
				fmt.Sprintf("write resource: %s: [1, %d]", role, total))
		}
		if total == 0 && on && (role == "actor" || role == "rollout") {
			e.report("GRM4009", diag.Error, v, "resource."+role+" is 0 GPUs", "A run with GenRM needs GPUs for actor, rollout and genrm.", "write "+role+": [1, GPUs]")
		}
	}
	if on && l.resource.OK() {
		for _, role := range []string{"actor", "rollout"} {
			if l.resource.Field(role) == nil && !(role == "actor" && r.arg("actor_num_nodes") != nil) {
				e.report("GRM4009", diag.Error, l.resource, "resource has no "+role, "A run with GenRM needs GPUs for actor, rollout and genrm.", "add "+role+": [1, GPUs]")
			}
		}
	}
	r.actorGPUs()
	r.rolloutGPUs()
	r.genrmGPUs()
}

// meant returns the GPUs that a role may be meant to have: the product, and for
// several groups, which were reported, the GPUs of one.
func meant(v *tree.Value) []int {
	total, ok := groups(v)
	if !ok {
		return nil
	}
	if one := v.Items[1]; v.Items[0].Text != "1" {
		n, _ := one.AsInt()
		return []int{total, int(n)}
	}
	return []int{total}
}

// actorGPUs works out A as Relax does: from the actor flags, or from resource
// rounded down to whole nodes of 8.
func (r *relaxRun) actorGPUs() {
	e, l := r.e, &r.layout
	total, ok := groups(l.resource.Field("actor"))
	nodes, per := r.arg("actor_num_nodes"), r.arg("actor_num_gpus_per_node")
	switch {
	case nodes != nil || per != nil:
		n, p := sizeOr(nodes, 1), sizeOr(per, gpusPerNode)
		at := nodes
		if at == nil {
			at = per
		}
		_, ok1 := nodes.AsInt()
		_, ok2 := per.AsInt()
		flags := 0
		if n > 0 && p > 0 && n <= maxGPUs && p <= maxGPUs {
			flags = n * p
		}
		switch {
		case nodes != nil && !ok1 || per != nil && !ok2:
			total = 0 // no number, which the check of flags reports
		case !ok:
			total = min(flags, maxGPUs)
		case !slices.Contains(meant(l.resource.Field("actor")), flags):
			e.report("GRM4029", diag.Error, at, fmt.Sprintf("the actor flags give %d × %d GPUs, but resource.actor is %d", n, p, total),
				"Relax sizes training by the flags actor_num_nodes and actor_num_gpus_per_node, and the placement group by resource.",
				"remove the flags from args, or make them agree", diag.Related{Pos: l.resource.Field("actor").Pos, Message: gpus(total)})
			total = 0
		}
	case ok && total > gpusPerNode && total%gpusPerNode != 0 && len(meant(l.resource.Field("actor"))) == 1:
		l.floored = total
		total = total / gpusPerNode * gpusPerNode
		e.report("GRM4028", diag.Warning, l.resource.Field("actor"), fmt.Sprintf("resource.actor is %d GPUs, of which Relax trains on %d", l.floored, total),
			fmt.Sprintf("Without actor flags Relax rounds the actor down to whole nodes of %d: %d / %d = %d nodes. The layout is checked with %d.", gpusPerNode, l.floored, gpusPerNode, total/gpusPerNode, total),
			fmt.Sprintf("use %d or %d, or set args: {actor_num_nodes: …, actor_num_gpus_per_node: …}", total, total+gpusPerNode))
	}
	if s, _ := r.arg("advantage_estimator").AsString(); s == "ppo" && total > 0 {
		l.critic = total
		if v := l.resource.Field("critic"); v != nil {
			n, ok := groups(v)
			if !ok {
				total = 0
			}
			l.critic = n
		}
		if total > 0 {
			total += l.critic
		}
	}
	l.actor = total
	for _, a := range meant(l.resource.Field("actor")) {
		if total > 0 && l.floored == 0 && a+l.critic > 0 && a+l.critic != total {
			l.actors = append(l.actors, a+l.critic)
		}
	}
	if total > 0 {
		l.actors = append([]int{total}, l.actors...)
	}
}

// rolloutGPUs works out R: the flag wins over resource in Relax, so they must
// agree.
func (r *relaxRun) rolloutGPUs() {
	l := &r.layout
	total, ok := groups(l.resource.Field("rollout"))
	all := meant(l.resource.Field("rollout"))
	flag := r.w.Field("rollout_num_gpus")
	n := r.w.Size("rollout_num_gpus")
	switch {
	case flag == nil && ok:
		l.rollout, l.rollouts = total, all[1:]
	case n > 0 && (!ok || slices.Contains(all, n)):
		l.rollout = n
	case n > 0 && total > 0:
		r.e.report("GRM4010", diag.Error, flag, fmt.Sprintf("rollout_num_gpus is %d, but resource.rollout is %d GPUs", n, total),
			"Relax lets the flag win and places the role by resource.",
			fmt.Sprintf("remove rollout_num_gpus (it is derived), or set both to the same number, such as %d", total),
			diag.Related{Pos: l.resource.Field("rollout").Pos, Message: fmt.Sprintf("%d GPUs", total)})
		l.rollout = n
		l.rollouts = []int{total}
	}
	if l.rollout > 0 {
		l.rollouts = append([]int{l.rollout}, l.rollouts...)
	}
}

// genrmGPUs checks resource.genrm against the judges.
func (r *relaxRun) genrmGPUs() {
	e, l := r.e, &r.layout
	if len(r.judges) == 0 {
		return
	}
	v := l.resource.Field("genrm")
	if v == nil && l.resource.OK() {
		e.report("GRM4005", diag.Error, l.resource, "resource has no genrm, but GenRM is on",
			"Relax refuses a run with judges that has no GPUs for them.",
			"add genrm: [1, "+orDots(r.genrm, r.known)+"]", r.judgeField())
	}
	total, ok := groups(v)
	if r.known {
		l.genrms = []int{r.genrm}
	}
	if !ok {
		return
	}
	all := meant(v)
	l.genrms = append(l.genrms, all...)
	if !r.known || slices.Contains(all, r.genrm) {
		return
	}
	if j := r.judges[0]; j.at == r.w {
		e.report("GRM4006", diag.Error, v, fmt.Sprintf("resource.genrm is %s, but genrm_num_gpus is %d", gpus(total), r.genrm),
			"Relax refuses: resource.genrm must be the sum of all judges' GPUs.",
			fmt.Sprintf("write resource: genrm: [1, %d], or genrm_num_gpus: %d", r.genrm, total),
			diag.Related{Pos: j.num.Pos, Message: fmt.Sprintf("%d GPUs", r.genrm)})
		return
	}
	need := "the instances need"
	if len(r.judges) == 1 {
		need = "the instance needs"
	}
	var related []diag.Related
	for _, j := range r.judges[:min(8, len(r.judges))] {
		related = append(related, diag.Related{Pos: j.num.Pos, Message: fmt.Sprintf("%s: %s", j.key, gpus(j.numGPUs))})
	}
	e.report("GRM4006", diag.Error, v, fmt.Sprintf("resource.genrm is %s, but %s %d", gpus(total), need, r.genrm),
		r.sum()+". Relax refuses: resource.genrm must be the sum of all instances' num_gpus.",
		fmt.Sprintf("write resource: genrm: [1, %d], or change num_gpus", r.genrm), related...)
}

// sum itemises the judges' GPUs.
func (r *relaxRun) sum() string {
	var parts []string
	for _, j := range r.judges {
		parts = append(parts, fmt.Sprintf("%s %d", j.key, j.numGPUs))
	}
	if len(parts) > 8 {
		parts = append(parts[:7], "…")
	}
	return fmt.Sprintf("%s = %d", strings.Join(parts, " + "), r.genrm)
}

// judgeField points at the field that turns GenRM on.
func (r *relaxRun) judgeField() diag.Related {
	name := "genrm_model_path"
	if r.w.Field("genrm_instances") != nil {
		name = "genrm_instances"
	}
	return r.related(name, "turns GenRM on")
}

// mode finds how GenRM shares the GPUs. Source: relax/utils/arguments.py, the
// colocate check, and the guide's section on resource allocation.
func (r *relaxRun) mode() {
	e, w, p := r.e, r.w, r.e.plan
	colocate, async, hybrid := w.Field("colocate").IsTrue(), w.Field("fully_async").IsTrue(), w.Field("hybrid").IsTrue()
	if async && colocate && !hybrid {
		e.reportKey("GRM4014", diag.Error, w, "fully_async", "fully_async and colocate exclude each other",
			"colocate shares the actor's GPUs; fully_async gives every role its own. Relax refuses both together.",
			"remove one, or use hybrid: true for its hybrid training mode", r.related("colocate", "set here"))
	}
	switch {
	case r.faulty("colocate", "fully_async", "hybrid"):
		p.Mode = plan.Split // not known; only the errors matter
	case len(r.judges) == 0:
		p.Mode, p.ModeReason = plan.NoGenRM, "no judge is given"
	case hybrid:
		p.Mode, p.ModeReason = plan.Hybrid, "hybrid: rollout and judges have GPUs of their own"
	case async:
		p.Mode, p.ModeReason = plan.FullyAsync, "fully_async: every role has GPUs of its own"
	case !colocate:
		p.Mode, p.ModeReason = plan.Separate, "none of colocate, fully_async and hybrid: every role has GPUs of its own"
	default:
		r.colocated()
	}
}

// colocated finds the mode of a colocated run from the GPU numbers.
func (r *relaxRun) colocated() {
	l, p := &r.layout, r.e.plan
	if l.actor == 0 || len(l.rollouts) == 0 || len(l.genrms) == 0 {
		p.Mode = plan.Split // only its error matters: some number is missing or faulty
		return
	}
	for _, a := range l.actors {
		for _, rollout := range l.rollouts {
			for _, genrm := range l.genrms {
				switch {
				case rollout+genrm == a:
					p.Mode, p.ModeReason = plan.Split, fmt.Sprintf("colocate, R + G = %d + %d = %d = A", rollout, genrm, a)
				case rollout+genrm < a && r.version == "inference-defer":
					p.Mode, p.ModeReason = plan.Split, fmt.Sprintf("colocate, R + G = %d + %d = %d ≤ %d = A (relax_version inference-defer)", rollout, genrm, rollout+genrm, a)
				case rollout == a && genrm == a:
					l.shared = true
					p.Mode, p.ModeReason = plan.CoResident, fmt.Sprintf("colocate, R = G = A = %d", a)
					if r.w.Field("defer_reward_to_post_process").IsTrue() {
						p.Mode, p.ModeReason = plan.DeferSwap, p.ModeReason+", and the reward is deferred"
					}
				default:
					continue
				}
				r.advise()
				return
			}
		}
	}
	a := l.actor
	rollout, genrm := l.rollouts[0], l.genrms[0]
	detail := fmt.Sprintf("R + G = %d + %d = %d, A = %d", rollout, genrm, rollout+genrm, a)
	if l.critic > 0 {
		detail += fmt.Sprintf(" (the critic's %d included)", l.critic)
	}
	if l.floored > 0 {
		detail += fmt.Sprintf(" (%d rounded down to whole nodes of %d)", l.floored, gpusPerNode)
	}
	relation := "="
	if r.version == "inference-defer" {
		relation = "≤"
	}
	detail += ". Split needs R + G " + relation + " A; shared needs R = G = A. Relax refuses anything else."
	remedy := "nearest valid: " + strings.Join(nearestLayouts(a, rollout, genrm, l.critic), "; or ")
	if rollout+genrm < a && r.version != "inference-defer" {
		remedy += `. With relax_version: "inference-defer" R + G may be less than A`
	}
	p.Mode = plan.Split
	r.e.report("GRM4008", diag.Error, l.resource, fmt.Sprintf("no colocated layout has %d rollout and %d genrm GPUs on %d actor GPUs", rollout, genrm, a), detail, remedy,
		r.related("colocate", "rollout and genrm must fill the actor's GPUs"))
}

// nearestLayouts returns the two valid layouts that change the fewest GPUs.
func nearestLayouts(a, rollout, genrm, critic int) []string {
	type layout struct {
		a, r, g, cost int
		kind          string
	}
	var all []layout
	add := func(na, nr, ng int, kind string) {
		if na-critic > 0 && nr > 0 && ng > 0 {
			all = append(all, layout{na, nr, ng, max(na-a, a-na) + max(nr-rollout, rollout-nr) + max(ng-genrm, genrm-ng), kind})
		}
	}
	add(a, a-genrm, genrm, "split")
	add(a, rollout, a-rollout, "split")
	add(a, a, a, "shared")
	if sum := rollout + genrm; sum <= gpusPerNode || sum%gpusPerNode == 0 {
		add(sum, rollout, genrm, "split")
	}
	if a > 1 {
		add(a, a/2, a-a/2, "split")
	}
	slices.SortStableFunc(all, func(x, y layout) int { return cmp.Compare(x.cost, y.cost) })
	var out []string
	for _, l := range all {
		s := fmt.Sprintf("resource: {actor: [1, %d], rollout: [1, %d], genrm: [1, %d]} (%s)", l.a-critic, l.r, l.g, l.kind)
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out[:min(2, len(out))]
}

// advise says when the mode suits, and which lines of Relax have it.
func (r *relaxRun) advise() {
	e := r.e
	switch e.plan.Mode {
	case plan.Split:
		e.fact("relax", "split suits a small judge, and rollouts of very different length: both run side by side and rewards come one by one")
	case plan.CoResident:
		e.fact("relax", "co-resident suits a judge of medium size that gains from all GPUs and still fits beside the rollout engines")
		const detail = "The line without co-resident mode takes R = G = A only with the deferred reward; the documented line takes it with memory fractions that fit."
		at := r.layout.resource
		switch {
		case r.version == "no-coresident":
			e.report("GRM4027", diag.Error, at, "this line of Relax has no co-resident mode", detail,
				"use a split layout (R + G = A) or defer-swap, or set relax_version to the line that you run", r.related("relax_version", "the line"))
		case !r.stated:
			e.report("GRM4027", diag.Warning, at, "one line of Relax refuses a co-resident layout", detail,
				`set relax_version: "guide" if yours is the documented line`)
		}
	case plan.DeferSwap:
		e.fact("relax", "defer-swap suits a judge much larger than the policy, and short answers: rollout and judges take turns, each with nearly all memory")
	}
}

// memory checks that what shares a GPU fits it. Source: the guide's warning on
// mem_fraction_static.
func (r *relaxRun) memory() {
	e, w := r.e, r.w
	if e.plan.Mode != plan.CoResident || r.faulty("defer_reward_to_post_process") {
		return
	}
	rv := w.Field("sglang_mem_fraction_static")
	rollout, known := rv.AsFloat()
	const why = "In co-resident mode a rollout engine and a judge live on the same GPU; without a fraction each takes nearly all of its memory, and the second one fails to start."
	if rv == nil {
		if w.Field("sglang_config") != nil {
			e.fact("relax.sglang_config", "the memory check was skipped: the rollout's fraction may be in the file of sglang_config")
		} else {
			e.reportKey("GRM4012", diag.Error, w, "sglang_mem_fraction_static", "no sglang_mem_fraction_static for the rollout engines that share GPUs with judges", why, "set sglang_mem_fraction_static, such as 0.6, and mem_fraction_static of the judges, such as 0.3")
		}
	}
	seen := map[*tree.Value]bool{}
	for _, j := range r.judges {
		if !j.at.OK() || j.engine != nil && !j.engine.OK() && j.engine.Kind != tree.Null {
			continue
		}
		at := j.engine
		if at == nil {
			at = j.at
		}
		if seen[at] {
			continue
		}
		seen[at] = true
		v := j.engine.Field("mem_fraction_static")
		if v == nil {
			summary, remedy := "no mem_fraction_static for the judge "+j.key+", which shares GPUs with the rollout engines", "set mem_fraction_static in its engine configuration, such as 0.3"
			if j.at == w && j.engine == nil {
				e.reportKey("GRM4012", diag.Error, w, "genrm_engine_config", summary, why, remedy, r.judgeField())
			} else {
				e.report("GRM4012", diag.Error, at, summary, why, remedy)
			}
			continue
		}
		genrm, ok := v.AsFloat()
		if !ok || !known {
			continue
		}
		const eps = 1e-9
		sum := rollout + genrm
		detail := fmt.Sprintf("%s (rollout) + %s (%s) = %.4g of each GPU's memory. CUDA graphs and activations need the rest: the guide asks for a sum below 1.0 and recommends at most 0.9.", rv.Text, v.Text, j.key, sum)
		related := diag.Related{Pos: rv.Pos, Message: "the rollout's fraction"}
		switch {
		case sum > 1-eps:
			e.report("GRM4013", diag.Error, v, fmt.Sprintf("the memory fractions on a GPU add up to %.4g", sum), detail,
				fmt.Sprintf("lower one: with a rollout fraction of %s the judge has room for less than %.4g", rv.Text, max(0, 1-rollout)), related)
		case sum > 0.9+eps:
			e.report("GRM4013", diag.Warning, v, fmt.Sprintf("the memory fractions on a GPU add up to %.4g", sum), detail, "lower one so that the sum is at most 0.9", related)
		}
	}
}

// divisibility checks that GPUs divide into engines and ranks.
func (r *relaxRun) divisibility() {
	e, w := r.e, r.w
	for _, j := range r.judges {
		at := j.num
		if at == nil {
			at = j.per
		}
		e.wholeEngines(j.key, at, j.per, j.numGPUs, j.perEngine)
		r.ranks(j)
	}
	per := w.Field("rollout_num_gpus_per_engine")
	if n := sizeOr(per, 1); n > 0 && r.layout.rollout%n != 0 {
		e.report("GRM7011", diag.Error, per, fmt.Sprintf("%s of rollout do not divide into engines of %d", gpus(r.layout.rollout), n),
			fmt.Sprintf("%d %% %d = %d.", r.layout.rollout, n, r.layout.rollout%n), "use a rollout_num_gpus_per_engine that divides the rollout's GPUs")
	}
	tp, pp, cp := sizeOr(r.arg("tensor_model_parallel_size"), 1), sizeOr(r.arg("pipeline_model_parallel_size"), 1), sizeOr(r.arg("context_parallel_size"), 1)
	ranks := tp * pp * cp
	if actor := r.layout.actor - r.layout.critic; ranks > 1 && actor > 0 && tp < 1<<16 && pp < 1<<16 && cp < 1<<16 && actor%ranks != 0 {
		at := r.arg("tensor_model_parallel_size")
		if at == nil {
			at = w.Field("args")
		}
		e.report("GRM7013", diag.Error, at, fmt.Sprintf("%s of the actor do not divide by tp × pp × cp = %d", gpus(actor), ranks),
			fmt.Sprintf("%d (tensor) × %d (pipeline) × %d (context) = %d; %d %% %d = %d. Megatron refuses to start.", tp, pp, cp, ranks, actor, ranks, actor%ranks),
			"choose parallel sizes whose product divides the actor's GPUs")
	}
}

// ranks checks the ranks of a judge's engine against its GPUs, its model and
// the machines. Relax takes num_gpus_per_engine for SGLang's tp_size; attention
// data parallelism shares those ranks.
func (r *relaxRun) ranks(j *relaxJudge) {
	e := r.e
	at := j.per
	if at == nil {
		at = j.num
	}
	if at == nil {
		at = j.at
	}
	if j.perEngine == 0 || !e.engineFits(j.key, j.perEngine, gpus(j.perEngine), at) {
		return
	}
	pp, dp := j.engine.Size("pp_size"), j.engine.Size("dp_size")
	inside := j.engine.Field("enable_dp_attention").IsTrue()
	var dpAt *tree.Value
	if inside {
		dpAt = j.engine.Field("dp_size")
	} else if dp > 1 {
		r.tooManyRanks(j, "dp_size", dp, "Without enable_dp_attention each of SGLang's data parallel replicas has tensor parallel ranks of its own.")
		dp = 0
	}
	if _, ok := e.tensorParallel(j.key, j.perEngine, pp, dp, inside, at, j.engine.Field("pp_size"), dpAt); !ok {
		return
	}
	if pp > 1 {
		r.tooManyRanks(j, "pp_size", pp, "Relax does not divide num_gpus_per_engine by pp_size.")
	}
	attention := j.perEngine
	if inside && dp > 1 {
		attention /= dp
	}
	e.modelFits(j.key, j.model, attention, max(1, pp), at)
}

// tooManyRanks reports a size that multiplies the ranks of an engine.
func (r *relaxRun) tooManyRanks(j *relaxJudge, key string, n int, why string) {
	for _, other := range r.judges {
		if other == j {
			break
		}
		if other.engine == j.engine {
			return // the common genrm_engine_config, reported already
		}
	}
	r.e.reportKey("GRM4032", diag.Warning, j.engine, key, fmt.Sprintf("Relax starts tp_size %d × %s %d ranks on the %s of an engine of %s", j.perEngine, key, n, gpus(j.perEngine), j.key),
		"Its engine code takes num_gpus_per_engine for tp_size. "+why+" Read in relax/backends/sglang/sglang_engine.py at 5c0807d5.",
		"leave "+key+" at 1 unless your Relax differs")
}

func perEngineRelated(j *relaxJudge) []diag.Related {
	if j.per == nil {
		return nil
	}
	return []diag.Related{{Pos: j.per.Pos, Message: fmt.Sprintf("%d GPUs per engine", j.perEngine)}}
}

// place gives out bundles: to the roles of the actor's pool from 0, to judges
// one after another in declaration order. Source: placement_planner.py at
// d0296000.
func (r *relaxRun) place() {
	p, l := r.e.plan, &r.layout
	if l.resource == nil {
		return
	}
	colocate := r.w.Field("colocate").IsTrue() || p.Mode == plan.Split || p.Mode == plan.CoResident || p.Mode == plan.DeferSwap
	inActor := func(role string) bool {
		switch role {
		case "rollout", "genrm":
			return colocate && p.Mode != plan.Hybrid
		case "reference", "actor_fwd", "advantages", "critic":
			return colocate || p.Mode == plan.Hybrid
		}
		return role == "actor"
	}
	offset := map[string]int{} // first GPU of each pool, all pools packed in the order of resource
	total := 0
	size := func(role string) int {
		n, _ := groups(l.resource.Field(role))
		switch {
		case role == "actor" && l.actor > 0:
			n = l.actor - l.critic
		case role == "rollout" && l.rollout > 0:
			n = l.rollout
		}
		return n
	}
	for _, role := range l.resource.Names() {
		if !inActor(role) {
			offset[role] = total
			total += size(role)
		} else if role == "actor" {
			offset[role] = total
			total += max(l.actor, l.floored)
		}
	}
	genrmStart := 0
	for _, role := range l.resource.Names() {
		n, start, pool := size(role), 0, role
		if inActor(role) {
			pool = "actor"
			switch {
			case role == "genrm" && !l.shared:
				start = l.rollout
			case role == "critic" && l.critic > 0:
				start = l.actor - l.critic
			}
		}
		if role == "genrm" {
			genrmStart = start
		}
		p.Roles.Set(role, plan.Role{NumGPUs: n, Bundles: bundleRange(start, start+n), Pool: pool})
	}
	perNode := p.Cluster.GPUsPerNode
	if perNode > 0 && total > 0 {
		p.Cluster.NodesNeeded = (total + perNode - 1) / perNode
		if p.Cluster.Nodes == 0 {
			p.Cluster.Nodes = p.Cluster.NodesNeeded
		} else if p.Cluster.Nodes < p.Cluster.NodesNeeded {
			r.e.report("GRM7014", diag.Error, r.e.root.Lookup("cluster", "nodes"), fmt.Sprintf("the run needs %d GPUs, but the cluster has %d", total, p.Cluster.Nodes*perNode),
				fmt.Sprintf("%s = %d GPUs; %s × %d = %d. Ray would wait for the rest for ever.", r.pools(offset, size), total, nodes(p.Cluster.Nodes), perNode, p.Cluster.Nodes*perNode),
				fmt.Sprintf("use %d nodes, or give the roles fewer GPUs", p.Cluster.NodesNeeded), diag.Related{Pos: l.resource.Pos, Message: "the GPUs of the roles"})
		}
	}
	if len(offset) > 1 && perNode > 0 {
		r.e.fact("relax.resource", "Ray chooses the GPUs of each pool; the map packs the pools in the order of resource")
	}
	if r.genrm > maxGPUs {
		return
	}
	shift := offset["genrm"]
	if inActor("genrm") {
		shift = offset["actor"]
	}
	// Where sizes are wrong already, bundles are not where they will be.
	misfit := slices.ContainsFunc(r.e.diags, func(d diag.Diagnostic) bool {
		return slices.Contains([]string{"GRM4006", "GRM4007", "GRM4008", "GRM4010", "GRM4029", "GRM7002", "GRM7011"}, d.Code)
	})
	start := genrmStart
	for _, j := range r.judges {
		bundles := bundleRange(start, start+j.numGPUs)
		start += j.numGPUs
		where := bundles
		if perNode > 0 {
			where = bundleRange(shift+bundles0(bundles), shift+bundles0(bundles)+len(bundles))
		}
		placement := spread(where, 0, perNode, j.perEngine)
		if inActor("genrm") && !misfit {
			r.straddle(j, placement)
		}
		r.planInstance(j, bundles, placement)
	}
}

// straddle reports the first engine of a judge that lies on more nodes than it
// has to: Relax starts an engine of up to a node's GPUs as one process from its
// first GPU upwards, and finds too few there. Source: get_base_gpu_id and
// nnodes in relax/backends/sglang/sglang_engine.py.
func (r *relaxRun) straddle(j *relaxJudge, placement []plan.Placement) {
	perNode := r.e.plan.Cluster.GPUsPerNode
	if perNode == 0 || j.perEngine == 0 || j.perEngine > perNode && j.perEngine%perNode != 0 {
		return // the last is reported as an engine that does not fill whole nodes
	}
	nodes := map[int]int{}
	for _, p := range placement {
		nodes[p.Replica]++
	}
	need := (j.perEngine + perNode - 1) / perNode
	for i, p := range placement {
		if nodes[p.Replica] <= need {
			continue
		}
		last := placement[i+nodes[p.Replica]-1]
		first := p.Node*perNode + p.GPUs[0]
		at := j.num
		if at == nil {
			at = j.at
		}
		r.e.report("GRM4034", diag.Error, at, fmt.Sprintf("an engine of %s straddles nodes %d to %d", j.key, p.Node, last.Node),
			fmt.Sprintf("Its bundles are %d to %d, on nodes of %d GPUs; bundles are given out to the judges in the order in which they stand, after the rollout's %d. Relax starts the engine on the node of its first GPU, where it finds too few.", first, first+j.perEngine-1, perNode, r.layout.rollout),
			"put the judges with the largest engines where a node begins, or change the sizes before this one", perEngineRelated(j)...)
		return
	}
}

// pools itemises the GPUs of the pools, in the order of resource.
func (r *relaxRun) pools(offset map[string]int, size func(string) int) string {
	var parts []string
	for _, role := range r.layout.resource.Names() {
		if _, ok := offset[role]; ok && size(role) > 0 {
			n := size(role)
			if role == "actor" {
				n = max(n, r.layout.actor)
			}
			parts = append(parts, fmt.Sprintf("%s %d", role, n))
		}
	}
	return strings.Join(parts, " + ")
}

func bundles0(b []int) int {
	if len(b) == 0 {
		return 0
	}
	return b[0]
}

// gpus renders a number of GPUs.
func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

func orDots(n int, known bool) string {
	if !known || n == 0 {
		return "…"
	}
	return fmt.Sprint(n)
}
