package slurm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/graph"
)

// Directive is one #SBATCH line.
type Directive struct {
	Name, Value string // Value is "" for a switch
	Field       string // of the experiment, from which it comes
}

func (d Directive) String() string {
	if d.Value == "" {
		return "--" + d.Name
	}
	return "--" + d.Name + "=" + d.Value
}

// exported are the variables that a job gets from the shell that launches it.
// Everything else of that shell stays behind: sbatch is run without it, so that a
// job does not depend on who submits it, and no SLURM_ variable of an enclosing
// job leaks in. (--export=NAMES is not for this: Slurm then runs the user's login
// shell on the node, and takes what that exports.)
var exported = []string{"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX"}

// Exported lists the variables that the job of a plan gets from the submitting
// shell: the user's list or the usual ones, and those that hold its secrets.
func Exported(p *plan.Plan) []string {
	s, _ := p.Settings.Get("slurm")
	out := slices.Clone(exported)
	if v := s.Field("export"); v.OK() {
		out = nil
		for _, item := range v.Items {
			out = append(out, item.Text)
		}
	}
	for _, name := range secretNames(p) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// secretNames lists the variables that hold secrets of the run, each once, in
// the order of the plan.
func secretNames(p *plan.Plan) []string {
	var out []string
	add := func(name string) {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	arg := func(a plan.Arg) {
		for _, h := range a.Placeholders() {
			if kind, name, _ := strings.Cut(h.Name, ":"); h.Kind == "secret" && kind == "env" {
				add(name)
			}
		}
	}
	env := func(e plan.Env) {
		for _, v := range e {
			add(v.Value.SecretEnv)
			arg(v.Value.Text)
		}
	}
	reference := func(v *tree.Value) {
		if v != nil && v.Kind == tree.Struct {
			name, _ := v.Field("env").AsString()
			add(name)
		}
	}
	env(p.Launch.Env)
	for _, a := range p.Launch.Argv {
		arg(a)
	}
	for _, i := range p.Instances {
		env(i.Value.Env)
		if p.Workload != plan.Serve {
			continue
		}
		reference(i.Value.Settings.Field("api_key"))
		if h := i.Value.Settings.Field("default_headers"); h.OK() {
			for _, f := range h.Fields {
				reference(f.Value)
			}
		}
	}
	if p.Gateway != nil {
		reference(p.Gateway.Settings.Field("api_key"))
	}
	return out
}

// Directives are the #SBATCH lines of a plan, in their order.
func Directives(p *plan.Plan) []Directive {
	s, _ := p.Settings.Get("slurm")
	var out []Directive
	add := func(name, value, field string) { out = append(out, Directive{name, value, field}) }
	word := func(name, field string) {
		if v := s.Field(field); v.OK() {
			add(name, v.Text, "slurm."+field)
		}
	}
	add("job-name", p.Name, "name")
	word("partition", "partition")
	word("account", "account")
	word("qos", "qos")
	word("reservation", "reservation")
	word("constraint", "constraint")
	word("time", "time")
	nodes := max(1, p.Cluster.NodesNeeded)
	if n := s.Size("nodes"); n > nodes {
		nodes = n
	}
	add("nodes", strconv.Itoa(nodes), "slurm.nodes")
	add("ntasks-per-node", "1", "")
	if n := graph.GPUs(p); n > 0 {
		count := strconv.Itoa(n)
		if v, ok := s.Field("gres_type").AsString(); ok {
			count = v + ":" + count
		}
		switch form, _ := s.Field("gpu_request").AsString(); form {
		case "none":
		case "gres":
			add("gres", "gpu:"+count, "slurm.gpu_request")
		default:
			add("gpus-per-node", count, "slurm.gpu_request")
		}
	}
	if n := CPUs(p); n > 0 {
		field := "slurm.cpus"
		if s.Field("cpus") == nil {
			field = "cluster.cpus_per_node"
		}
		add("cpus-per-task", strconv.Itoa(n), field)
	}
	word("mem", "mem")
	if s.Field("exclusive").IsTrue() {
		add("exclusive", "", "slurm.exclusive")
	}
	if v, ok := s.Field("requeue").AsBool(); ok && v {
		add("requeue", "", "slurm.requeue")
		add("open-mode", "append", "slurm.requeue")
	} else if ok {
		add("no-requeue", "", "slurm.requeue")
	}
	word("signal", "signal")
	if d := s.Field("directives"); d.OK() {
		for _, f := range d.Fields {
			at := tree.Join("slurm.directives", f.Name)
			switch on, isBool := f.Value.AsBool(); {
			case isBool && on:
				add(f.Name, "", at)
			case !isBool:
				add(f.Name, f.Value.Text, at)
			}
		}
	}
	// A list of names would run the user's login shell on the node.
	add("export", "ALL", "")
	return out
}

// CPUs is the number of cores of each node that the job asks for, 0 for the
// site's default.
func CPUs(p *plan.Plan) int {
	s, _ := p.Settings.Get("slurm")
	if n := s.Size("cpus"); n > 0 {
		return n
	}
	return p.Cluster.CPUsPerNode
}

// Script is the name of the file that sbatch is given.
const Script = "job.sbatch"

// Files are what [emit.Files] of a plan lacks for a job that is submitted by
// hand.
func Files(p *plan.Plan) ([]emit.File, error) {
	text, err := script(p)
	if err != nil {
		return nil, err
	}
	return []emit.File{{Name: Script, Text: text, Exec: true}}, nil
}

// script renders the job: directives, a short set-up, one srun of the
// supervisor, and as comments what that starts. sbatch reads directives up to
// the first command, so comments with text of the user's come after it.
func script(p *plan.Plan) ([]byte, error) {
	g, err := graph.Build(p, graph.Options{Block: "slurm"})
	if err != nil {
		return nil, err
	}
	w := &writer{}
	w.line("#!/usr/bin/env bash")
	w.line("# %s from experiment %s, plan sha256:%s. Do not edit.", emit.Header, p.Name, g.PlanHash)
	w.line("# By hand: sbatch %s, in this folder, with genrm in PATH.", Script)
	w.directives(Directives(p))
	w.line("set -euo pipefail\n")
	w.overview(g)
	w.line("%s", unbind)
	w.line("# `genrm launch` gives the folder of the run and the genrm that it keeps beside it.")
	w.line(`run=${1:-}`)
	w.line(`genrm=${2:-genrm}`)
	w.line(`if [[ -z $run ]]; then`)
	w.line(`  run=$("$genrm" node --prepare="${SLURM_SUBMIT_DIR:?}")`)
	w.line("fi\n")
	step, err := w.step(p, g, "run", "")
	if err != nil {
		return nil, err
	}
	w.line("# One supervisor on each node.")
	w.line("%s &", step)
	w.line("step=$!")
	w.await(`"$step"`)
	return []byte(w.b.String()), nil
}

// besideScript renders the heterogeneous job of a training run and of the judges
// that stand beside it: two components that start together, each with nodes of
// its own. Its arguments are the folder of the training run, genrm, and the
// folder of the judges' run.
func besideScript(train, judges *plan.Plan, tg, jg *graph.Graph) ([]byte, error) {
	w := &writer{}
	w.line("#!/usr/bin/env bash")
	w.line("# %s: experiment %s beside the judges of %s. Do not edit.", emit.Header, train.Name, judges.Name)
	w.directives(Directives(train))
	w.line("#SBATCH hetjob")
	for _, d := range Directives(judges) {
		// What is asked for each component by itself; the others are the job's.
		if !slices.Contains([]string{"job-name", "export", "open-mode", "requeue", "no-requeue", "signal"}, d.Name) {
			w.line("#SBATCH %s", d)
		}
	}
	w.line("set -euo pipefail\n")
	w.line("# The training run.")
	w.overview(tg)
	w.line("# The judges.")
	w.overview(jg)
	w.line("%s", unbind)
	w.line(`run=${1:?} genrm=${2:?} judges=${3:?}`)
	w.line("")
	beside, err := w.step(judges, jg, "judges", "1")
	if err != nil {
		return nil, err
	}
	w.line("# One supervisor on each node. The driver waits for the judges, and they end with it.")
	w.line("%s &", beside)
	w.line("beside=$!")
	step, err := w.step(train, tg, "run", "0")
	if err != nil {
		return nil, err
	}
	w.line("%s &", step)
	w.line("step=$!")
	w.await(`"$step" "$beside"`)
	return []byte(w.b.String()), nil
}

const unbind = `# An enclosing job's binding of cores is not this one's.
unset SLURM_CPU_BIND SLURM_CPU_BIND_LIST SLURM_CPU_BIND_TYPE SLURM_CPU_BIND_VERBOSE
`

// writer builds one script.
type writer struct{ b strings.Builder }

func (w *writer) line(format string, args ...any) { fmt.Fprintf(&w.b, format+"\n", args...) }

func (w *writer) directives(in []Directive) {
	for _, d := range in {
		w.line("#SBATCH %s", d)
	}
}

// step is the srun of the supervisors of the run whose folder a variable holds.
// group is its component of a heterogeneous job, or "". What the site sets up on
// each node is written before.
func (w *writer) step(p *plan.Plan, g *graph.Graph, variable, group string) (string, error) {
	s, _ := p.Settings.Get("slurm")
	step := []string{"srun"}
	if group != "" {
		step = append(step, "--het-group="+group)
	}
	step = append(step, "--nodes="+strconv.Itoa(g.Nodes), "--ntasks="+strconv.Itoa(g.Nodes), "--ntasks-per-node=1")
	if n := CPUs(p); n > 0 { // since 22.05 a step does not inherit it
		step = append(step, "--cpus-per-task="+strconv.Itoa(n))
	}
	step = append(step, "--cpu-bind=none", "--kill-on-bad-exit=1", "--export=ALL")
	if image, ok := s.Field("container").Field("image").AsString(); ok {
		q, err := shell.Quote("--container-image=" + image)
		if err != nil {
			return "", err
		}
		step = append(step, q)
		root := `"$(dirname -- "$` + variable + `")"`
		mounts := []string{root + ":" + root}
		for _, m := range items(s.Field("container").Field("mounts")) {
			q, err := shell.Quote(m.Text)
			if err != nil {
				return "", err
			}
			mounts = append(mounts, q)
		}
		step = append(step, "--container-mounts="+strings.Join(mounts, ","))
		// An image's own value of a variable would win over the job's otherwise.
		if names := containerEnv(p); len(names) > 0 {
			step = append(step, "--container-env="+strings.Join(names, ","))
		}
	}
	command := `"$genrm" node --run="$` + variable + `"`
	if setup := items(s.Field("setup")); len(setup) > 0 {
		var lines []string
		for _, l := range setup {
			lines = append(lines, l.Text)
		}
		q, err := shell.Quote(strings.Join(append(lines, `exec "$@"`), "\n"))
		if err != nil {
			return "", err
		}
		w.line("# On each node, before anything of $%s starts.", variable)
		w.line("setup_%s=%s\n", variable, q)
		command = `bash -euo pipefail -c "$setup_` + variable + `" setup ` + command
	}
	return strings.Join(append(step, command), " \\\n  "), nil
}

// await waits for the steps and ends with the status of the run.
func (w *writer) await(steps string) {
	w.line("# A signal to this script alone (--signal=B:…) ends the run: srun passes USR1 on, and kills at TERM.")
	w.line(`trap 'told=1; kill -USR1 %s 2>/dev/null || true' TERM INT USR1 USR2`, steps)
	w.line("while :; do")
	w.line("  told='' rc=0")
	for _, step := range strings.Fields(steps) {
		w.line(`  wait %s || rc=$?`, step)
	}
	w.line(`  [[ -n $told ]] || break # else the signal ended the wait, not the step`)
	w.line("done")
	w.line("# The job's status is the run's: that of the driver.")
	w.line(`exec "$genrm" node --run="$run" --result="$rc"`)
}

// containerEnv are the variables whose values are the job's and not the image's.
// The image's own PATH and library path stay.
func containerEnv(p *plan.Plan) []string {
	return slices.DeleteFunc(Exported(p), func(name string) bool {
		return slices.Contains([]string{"PATH", "LD_LIBRARY_PATH", "HOME", "SHELL", "USER", "LOGNAME", "VIRTUAL_ENV", "CONDA_PREFIX"}, name)
	})
}

// overview lists, as comments, what each node runs.
func (w *writer) overview(g *graph.Graph) {
	b := &w.b
	for n := range g.Nodes {
		fmt.Fprintf(b, "# Node %d runs\n", n)
		for _, p := range g.On(n) {
			what := []string{}
			if len(p.GPUs) > 0 {
				what = append(what, "GPUs "+numbers(p.GPUs))
			}
			if ports := p.Ports(); len(ports) > 0 {
				what = append(what, "ports "+strings.Join(ports, " "))
			}
			if len(p.After) > 0 {
				what = append(what, "after "+strings.Join(p.After, " "))
			}
			detail := ""
			if len(what) > 0 {
				detail = ": " + strings.Join(what, "; ")
			}
			fmt.Fprintf(b, "#   %s (%s)%s\n", p.Name, p.Kind, detail)
			if p.Kind == graph.Remote {
				continue
			}
			for _, e := range p.Env {
				switch v := e.Value; {
				case v.SecretEnv != "":
					fmt.Fprintf(b, "#     %s=$%s (a secret)\n", e.Key, v.SecretEnv)
				case v.SecretFile != "":
					fmt.Fprintf(b, "#     %s=<%s (a secret)\n", e.Key, comment(plan.Lit(v.SecretFile)))
				default:
					fmt.Fprintf(b, "#     %s=%s\n", e.Key, comment(v.Text))
				}
			}
			words := make([]string, len(p.Argv))
			for i, a := range p.Argv {
				words[i] = comment(a)
			}
			for i, l := range emit.Lines(p.Argv, words) {
				indent := "#     "
				if i > 0 {
					indent = "#       "
				}
				fmt.Fprintf(b, "%s%s\n", indent, l)
			}
		}
	}
	fmt.Fprintln(b)
}

// comment is an argument for people, on one line whatever it holds;
// placeholders are shown as they are.
func comment(a plan.Arg) string {
	bare, err := a.Bind(func(plan.Placeholder) (string, error) { return "x", nil })
	if err != nil {
		return strconv.Quote(string(a))
	}
	text, err := a.Bind(func(h plan.Placeholder) (string, error) {
		if h.Name == "" {
			return "{" + h.Kind + "}", nil
		}
		return "{" + h.Kind + ":" + h.Name + "}", nil
	})
	if err != nil {
		return strconv.Quote(string(a))
	}
	if q, err := shell.Quote(bare); err == nil && q == bare {
		return text
	}
	if q, err := shell.Quote(text); err == nil && !strings.ContainsFunc(q, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u2028' || r == '\u2029' }) {
		return q
	}
	return strconv.Quote(text)
}

func numbers(in []int) string {
	out := make([]string, len(in))
	for i, n := range in {
		out[i] = strconv.Itoa(n)
	}
	return strings.Join(out, ",")
}
