package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers"
)

// compileFlags are the arguments of every command that compiles experiments.
type compileFlags struct {
	Paths  []string   `arg:"" optional:"" name:"path" help:"A .cue file, a folder (one CUE package), or ./... for every package below. Default: the current folder."`
	Tag    []string   `short:"t" sep:"none" placeholder:"KEY=VALUE" help:"Set the field that has the attribute @tag(KEY). Repeatable."`
	Set    []string   `sep:"none" placeholder:"PATH=VALUE" help:"Unify a field with a CUE value. A conflict with the file is an error that names both places. Repeatable."`
	Name   string     `placeholder:"NAME" help:"Only the experiment of that name."`
	Target targetFlag `placeholder:"TARGET" help:"Where it runs: ${targets}. Overrides the file's target."`
	Strict bool       `help:"Warnings are errors."`
}

// targetFlag is the value of --target.
type targetFlag string

func targetNames() string {
	names := make([]string, len(plan.Targets))
	for i, t := range plan.Targets {
		names[i] = string(t)
	}
	return diag.OrList(names)
}

// Validate is called by kong while it parses the command line.
func (t targetFlag) Validate() error {
	if t == "" || slices.Contains(plan.Targets, plan.Target(t)) {
		return nil
	}
	names := make([]string, len(plan.Targets))
	for i, t := range plan.Targets {
		names[i] = string(t)
	}
	msg := fmt.Sprintf("unknown target %q: want %s", string(t), targetNames())
	if hint := diag.DidYouMean(string(t), names); hint != "" {
		msg += "; " + hint
	}
	return fmt.Errorf("%s", msg)
}

// Validate checks the forms of -t and --set.
func (f *compileFlags) Validate() error {
	for _, s := range f.Set {
		if path, _, ok := strings.Cut(s, "="); !ok || path == "" {
			return fmt.Errorf("--set %q: want PATH=VALUE, such as --set relax.colocate=true", s)
		}
	}
	for _, s := range f.Tag {
		if strings.HasPrefix(s, "=") || s == "" {
			return fmt.Errorf("-t %q: want KEY=VALUE", s)
		}
	}
	return nil
}

func (f *compileFlags) compile() *compiler.Result {
	paths := f.Paths
	if len(paths) == 0 {
		paths = []string{"."}
	}
	return compiler.Compile(paths, compiler.Options{
		Tags: f.Tag, Sets: f.Set, Name: f.Name, Target: plan.Target(f.Target), Strict: f.Strict, Checks: launchers.Checkers(),
	})
}

// report prints the findings to stderr for people, and after them the refused
// experiments of a sweep.
func (a *app) report(r *compiler.Result) error {
	if err := a.print(r.Diagnostics); err != nil {
		return err
	}
	if total := len(r.Plans) + len(r.Refused); total > 1 && len(r.Refused) > 0 {
		fmt.Fprintf(a.stderr, "refused %d of %d experiments: %s\n", len(r.Refused), total, strings.Join(r.Refused, ", "))
	}
	return nil
}

// print writes findings to stderr for people.
func (a *app) print(l diag.List) error {
	return l.Text(a.stderr, diag.TextOptions{Source: os.ReadFile, Hide: compiler.LooksSecret, Colour: a.colour(a.stderr)})
}

// accepted prints the findings and returns the plans to go on with. Refused
// experiments end the command, unless skip is set and others are left.
func (a *app) accepted(r *compiler.Result, skip bool) ([]*plan.Plan, error) {
	if err := a.report(r); err != nil {
		return nil, err
	}
	if r.Diagnostics.HasErrors() && !(skip && len(r.Refused) > 0 && len(r.Plans) > 0) {
		return nil, errReported
	}
	return r.Plans, nil
}
