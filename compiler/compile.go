package compiler

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema"
)

// Compile compiles the experiments of PATH arguments: .cue files, folders, or
// folders with /... behind. It reads every file, goes on after every mistake,
// and never fails otherwise than by diagnostics.
func Compile(paths []string, opts Options) *Result {
	res := &Result{}
	for _, t := range opts.Tags {
		if key, value, _ := strings.Cut(t, "="); tokenLike.MatchString(t) || secretName.MatchString(key) && !notSecret(value) {
			res.Diagnostics.Add(diag.Diagnostic{Code: "GRM1008", Severity: diag.Error, Pos: diag.Pos{File: "-t " + key}, Secret: true, Summary: "a literal secret in a tag", Remedy: secretRemedy})
			return res
		}
	}
	named := false
	var known []string
	for _, src := range expand(paths, &res.Diagnostics) {
		if !src.parsed() || !src.clauses() {
			continue
		}
		found := src.found // of the whole package: what loading, evaluation and the top level have to say
		root, hidden := evaluate(src, opts, &found)
		var units []unit
		if root != nil {
			units = experiments(root, hidden, src, &found)
		}
		res.Diagnostics = append(res.Diagnostics, found...)
		for _, e := range units {
			known = append(known, e.name)
			if opts.Name != "" && opts.Name != e.name && opts.Name != e.key {
				continue
			}
			named = true
			if e.root.Kind != tree.Struct { // refused by check
				res.Refused = append(res.Refused, e.name)
				res.Diagnostics = append(res.Diagnostics, e.diags...)
				continue
			}
			x := compileExperiment(e.root, e.prefix, e.name, opts)
			x.diags = append(x.diags, e.diags...)
			x.diags.Sort(opts.Strict)
			x.plan.Diagnostics = x.diags
			res.Diagnostics = append(res.Diagnostics, x.diags...)
			if x.diags.HasErrors() || concerns(found, e.prefix) {
				res.Refused = append(res.Refused, e.name)
			} else {
				res.Plans = append(res.Plans, x.plan)
			}
		}
	}
	if opts.Name != "" && !named && len(known) > 0 {
		remedy := diag.DidYouMean(opts.Name, known)
		if remedy == "" {
			remedy = "experiments here: " + strings.Join(known[:min(len(known), 20)], ", ")
		}
		res.Diagnostics.Add(diag.Diagnostic{Code: "GRM1012", Severity: diag.Error, Pos: diag.Pos{File: "--name"}, Summary: fmt.Sprintf("no experiment is named %q", opts.Name), Remedy: remedy})
	}
	res.Diagnostics.Sort(opts.Strict)
	return res
}

// concerns reports whether an error of the package refuses the experiment at
// prefix: every error does, but for those inside another experiment.
func concerns(found diag.List, prefix string) bool {
	return slices.ContainsFunc(found, func(d diag.Diagnostic) bool {
		other := prefix != "" && strings.HasPrefix(d.Path, "experiments.") && d.Path != prefix && !strings.HasPrefix(d.Path, prefix+".")
		return d.Severity == diag.Error && !other
	})
}

// clauses reports whether every file of a folder has a package clause; what has
// none was reported.
func (s *source) clauses() bool {
	if s.args[0] != "." {
		return true
	}
	for _, abs := range s.order {
		if s.files[abs].syntax.PackageName() == "" {
			return false
		}
	}
	return true
}

// unit is one experiment of a package, checked against the schema.
type unit struct {
	root              *tree.Value
	prefix, key, name string
	diags             diag.List
}

var safeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// experiments finds the experiments of a package: the top level, or the members
// of its field experiments, and checks each against the schema.
func experiments(root *tree.Value, hidden map[string][]tree.Field, src *source, diags *diag.List) []unit {
	if root.Kind != tree.Struct {
		if root.Kind != tree.Bad {
			diags.Add(diag.Diagnostic{Code: "GRM2003", Severity: diag.Error, Pos: root.Pos, Summary: "the file is " + root.Kind.String() + ", not an experiment", Remedy: "write fields: name, and one of relax, gym, serve"})
		}
		return nil
	}
	pkg := schema.Package().Alts[0].Struct
	many := root.Field("experiments")
	for i, f := range root.Fields { // a slip in this name would turn a sweep into one faulty experiment
		if many == nil && pkg.Field(f.Name) == nil && len(diag.Nearest(f.Name, []string{"experiments"}, 1)) == 1 {
			(&checker{diags, hidden}).unknown(root, f, pkg, nil)
			root.Fields[i].Name, many = "experiments", f.Value
		}
	}
	if many == nil {
		if !slices.ContainsFunc(root.Names(), func(n string) bool { return schema.Experiment().Alts[0].Struct.Field(n) != nil }) && (src.skip || len(root.Fields) == 0) {
			if !src.skip && !diags.HasErrors() {
				diags.Add(diag.Diagnostic{Code: "GRM1011", Severity: diag.Error, Pos: diag.Pos{File: src.name}, Summary: "no experiment here", Detail: "The package has no field at its top level.", Remedy: "add name and one of relax, gym, serve; or `genrm init`"})
			}
			return nil
		}
		u := unit{root: root}
		c := checker{&u.diags, hidden}
		c.value(root, schema.Experiment(), "", root.Pos)
		u.name, _ = root.Field("name").AsString()
		if root.Field("name") == nil {
			u.diags.Add(diag.Diagnostic{Code: "GRM2002", Severity: diag.Error, Pos: root.Pos, Path: "name", Summary: "name is missing", Detail: "Run ids, job names and emitted files are made of it.", Remedy: `add name: "…"`})
			u.name = fallbackName(src)
		}
		return []unit{u}
	}
	c := checker{diags, hidden}
	for _, f := range root.Fields {
		switch f.Name {
		case "experiments":
		case "schema_version":
			c.value(f.Value, schema.Experiment().Alts[0].Struct.Field(f.Name).Type, "", f.Pos)
		default:
			if schema.Experiment().Alts[0].Struct.Field(f.Name) == nil {
				c.unknown(root, f, schema.Package().Alts[0].Struct, nil)
				continue
			}
			c.add("GRM2007", f.Pos, f.Value.Path, f.Name+" beside experiments has no effect", "With experiments, the top level is not an experiment.", "move it into each experiment, for example by a hidden field: _base: {"+f.Name+": …}")
		}
	}
	if many.Kind != tree.Struct {
		c.value(many, &schema.Type{Alts: []*schema.Alt{{Kinds: schema.Object}}}, "", root.KeyPos("experiments"))
		return nil
	}
	if len(many.Fields) == 0 && !diags.HasErrors() {
		c.add("GRM1011", root.KeyPos("experiments"), "experiments", "experiments is empty", "", "add an experiment, or check the comprehension that should make them")
	}
	var out []unit
	seen := map[string]diag.Pos{}
	for _, f := range many.Fields {
		u := unit{root: f.Value, prefix: f.Value.Path, key: f.Name, name: f.Name}
		if !safeName.MatchString(f.Name) {
			c.add("GRM2004", f.Pos, f.Value.Path, fmt.Sprintf("%q is not accepted as a name in experiments", f.Name), "Names here match "+safeName.String()+".", "use letters, digits, \".\", \"_\" and \"-\", beginning with a letter or digit")
		}
		uc := checker{&u.diags, hidden}
		uc.value(f.Value, schema.Experiment(), "", f.Pos)
		if n, ok := f.Value.Field("name").AsString(); ok {
			u.name = n
		}
		if at, ok := seen[u.name]; ok {
			u.diags.Add(diag.Diagnostic{Code: "GRM2008", Severity: diag.Error, Pos: f.Pos, Path: tree.Join(f.Value.Path, "name"), Summary: fmt.Sprintf("two experiments have the name %q", u.name),
				Remedy: "leave name out, so that it is the key under experiments, or make it differ", Related: []diag.Related{{Pos: at, Message: "the first one"}}})
		}
		seen[u.name] = f.Pos
		out = append(out, u)
	}
	return out
}

func fallbackName(src *source) string { return filepath.Base(src.dir) }
