// Package compiler turns a user's .cue files into checked plans, or into every
// mistake at once, each in the file's own lines.
//
// The stages, each with one type of its own:
//
//	load       files on disk         → *source: bytes, syntax, positions
//	evaluate   source                → *tree.Value: what CUE makes of the files
//	check      tree + schema         → tree whose faulty fields are stand-ins
//	workload   tree                  → plan: normalise, mode, place, command
//	targets    plan                  → findings of the launchers' pure checks
//
// It may not touch network, processes, the clock or any fact of the machine it
// runs on: the same files give the same plan everywhere. Only load reads files,
// and only the user's.
package compiler

import (
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// Options are what a caller may say beside the files.
type Options struct {
	Tags   []string       // -t key=value: values of @tag attributes
	Sets   []string       // --set path=value: unified with the files
	Name   string         // --name: compile this experiment only
	Target plan.Target    // --target: "" takes the file's own
	Strict bool           // warnings are errors
	Checks []plan.Checker // the launchers' checks, by target
}

// Result is the outcome of one compilation.
type Result struct {
	// Plans holds one plan per accepted experiment, in the user's order.
	Plans []*plan.Plan
	// Refused names the experiments that have errors, in the user's order.
	Refused []string
	// Diagnostics holds every finding of every file, sorted, each once.
	Diagnostics diag.List
}

// experiment is one experiment on its way from tree to plan.
type experiment struct {
	root  *tree.Value // checked: known names, right kinds; tree.Bad stands in for what was reported
	plan  *plan.Plan
	diags diag.List
}

// workloads is where a workload is registered: its field at the top of an
// experiment, and the stage that fills the plan from it.
var workloads = []struct {
	name    plan.Workload
	compile func(e *experiment, w *tree.Value)
}{
	{plan.Relax, compileRelax},
	{plan.Gym, compileGym},
	{plan.Serve, compileServe},
}

// report adds a finding at v. A nil or stand-in v is placed at its nearest
// known parent by the caller; see [experiment.at].
func (e *experiment) report(code string, sev diag.Severity, v *tree.Value, summary, detail, remedy string, related ...diag.Related) {
	d := diag.Diagnostic{Code: code, Severity: sev, Summary: summary, Detail: detail, Remedy: remedy, Related: related}
	if v != nil {
		d.Pos, d.Path = v.Pos, v.Path
	}
	e.diags.Add(d)
}

// reportKey adds a finding at the key of the member name of v: for what is
// wrong with the presence of a field and not with its value.
func (e *experiment) reportKey(code string, sev diag.Severity, v *tree.Value, name, summary, detail, remedy string, related ...diag.Related) {
	e.diags.Add(diag.Diagnostic{Code: code, Severity: sev, Pos: v.KeyPos(name), Path: tree.Join(v.Path, name),
		Summary: summary, Detail: detail, Remedy: remedy, Related: related})
}

// fact adds a decision or circumstance that the plan shows.
func (e *experiment) fact(path, text string) {
	e.plan.Facts = append(e.plan.Facts, plan.Fact{Path: path, Text: text})
}

// compileExperiment runs the workload stage on one checked experiment.
func compileExperiment(root *tree.Value, prefix, name string, opts Options) *experiment {
	e := &experiment{root: root, plan: &plan.Plan{Name: name, Mode: plan.NoGenRM, Target: opts.Target, Prefix: prefix, Positions: positions(root, prefix)}}
	if t, ok := root.Field("target").AsString(); ok && e.plan.Target == "" {
		e.plan.Target = plan.Target(t)
	}
	e.secretWords("", root)
	e.cluster()
	for _, t := range plan.Targets {
		if v := root.Field(string(t)); v.OK() {
			e.plan.Settings.Set(string(t), v)
		}
	}
	var found []plan.Workload
	for _, f := range root.Fields { // in the user's order, so that the second is the one that came later
		for _, w := range workloads {
			if f.Name != string(w.name) {
				continue
			}
			if found = append(found, w.name); len(found) > 1 {
				e.reportKey("GRM2006", diag.Error, root, f.Name, "a second workload: "+f.Name+" beside "+string(found[0]),
					"An experiment runs exactly one of relax, gym and serve.", "keep one, or make two experiments under experiments:",
					diag.Related{Pos: root.KeyPos(string(found[0])), Message: "the first workload"})
				continue
			}
			e.plan.Workload = w.name
			if f.Value.OK() {
				w.compile(e, f.Value)
			}
		}
	}
	if len(found) == 0 {
		e.report("GRM2006", diag.Error, root, "no workload", "An experiment runs exactly one of relax, gym and serve.", "add a relax, gym or serve block")
	}
	if !e.diags.HasErrors() {
		e.checkTargets(opts)
	}
	return e
}

// cluster copies what the file states of the machines.
func (e *experiment) cluster() {
	c, p := e.root.Field("cluster"), &e.plan.Cluster
	p.Nodes = c.Size("nodes")
	p.GPUsPerNode = c.Size("gpus_per_node")
	p.CPUsPerNode = c.Size("cpus_per_node")
	p.GPUMemoryGiB, _ = c.Field("gpu_memory_gib").AsFloat()
	p.RunRoot, _ = c.Field("run_root").AsString()
}

// checkTargets asks the launchers: that of the chosen target, or, when none is
// chosen, of every target that has a block.
func (e *experiment) checkTargets(opts Options) {
	for _, c := range opts.Checks {
		_, block := e.plan.Settings.Get(string(c.Target()))
		switch t, tells := c.(plan.Teller); {
		case c.Target() == e.plan.Target && tells:
			found, facts := t.Tell(e.plan)
			e.diags, e.plan.Facts = append(e.diags, found...), append(e.plan.Facts, facts...)
		case c.Target() == e.plan.Target, e.plan.Target == "" && block:
			e.diags = append(e.diags, c.Check(e.plan)...)
		}
	}
}

// positions indexes every field of the experiment by its path relative to it.
func positions(root *tree.Value, prefix string) map[string]diag.Pos {
	m := map[string]diag.Pos{"": root.Pos}
	cut := 0
	if prefix != "" {
		cut = len(prefix) + 1
	}
	var walk func(v *tree.Value)
	walk = func(v *tree.Value) {
		for _, f := range v.Fields {
			m[f.Value.Path[cut:]] = f.Value.Pos
			walk(f.Value)
		}
		for _, x := range v.Items {
			m[x.Path[cut:]] = x.Pos
			walk(x)
		}
	}
	walk(root)
	return m
}

// setEnv adds a user's environment block to env, in his order: text literally,
// secrets as the references that they are.
func setEnv(env *plan.Env, block *tree.Value) {
	if !block.OK() {
		return
	}
	for _, f := range block.Fields {
		switch {
		case f.Value.Kind == tree.String:
			env.Set(f.Name, plan.EnvValue{Text: plan.Lit(f.Value.Text)})
		case f.Value.Field("env").OK():
			env.Set(f.Name, plan.EnvValue{SecretEnv: f.Value.Field("env").Text})
		case f.Value.Field("file").OK():
			env.Set(f.Name, plan.EnvValue{SecretFile: f.Value.Field("file").Text})
		}
	}
}
