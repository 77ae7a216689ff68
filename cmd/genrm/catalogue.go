package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/schema/engines"
)

type catalogueCmd struct {
	Show catalogueShowCmd `cmd:"" help:"Show the flags of an engine's release, or one flag."`
}

type catalogueShowCmd struct {
	Engine string `arg:"" name:"engine" help:"relax, sglang or vllm, with @VERSION for a release. Default: the newest known."`
	Flag   string `arg:"" optional:"" help:"A flag in any spelling: tp_size, --tp-size."`
	Output string `short:"o" enum:"text,json" default:"text" help:"${enum}."`
}

func (catalogueShowCmd) Help() string {
	return `The catalogues are generated from the released programs' own argument parsers and are part of the binary: nothing is asked over the network.

Examples:

  genrm catalogue show vllm
  genrm catalogue show vllm@0.29.0 tensor_parallel_size
  genrm catalogue show relax advantage_estimator
  genrm catalogue show sglang -o json | jq '.flags[].name'`
}

func (c *catalogueShowCmd) Run(a *app) error {
	name, release, pinned := strings.Cut(c.Engine, "@")
	if !slices.Contains(engineNames, name) {
		return usagef("unknown engine %q: want %s", name, diag.OrList(engineNames))
	}
	cat := engines.Latest(name)
	if pinned {
		var ok bool
		if cat, ok = engines.Get(name, release); !ok {
			return usagef("no flags are known of %s %s; known: %s", name, release, strings.Join(engines.Versions(name), ", "))
		}
	}
	if c.Flag != "" {
		return c.one(a, cat)
	}
	if c.Output == "json" {
		return printJSON(a.stdout, map[string]any{"engine": cat.Engine, "version": cat.Version, "flags": slices.Collect(cat.Flags())})
	}
	fmt.Fprintf(a.stdout, "%s %s\n", cat.Engine, cat.Version)
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTYPE\tDEFAULT\tREMARKS")
	for f := range cat.Flags() {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.Name, flagType(f), orDash(string(f.Default)), remarks(f))
	}
	return w.Flush()
}

func (c *catalogueShowCmd) one(a *app, cat *engines.Catalogue) error {
	f, ok := cat.Lookup(c.Flag)
	if !ok {
		hint := diag.DidYouMean(engines.Key(c.Flag), slices.Collect(cat.Names()))
		if hint != "" {
			hint = "; " + hint
		}
		return fmt.Errorf("%s %s has no flag %q%s", cat.Engine, cat.Version, c.Flag, hint)
	}
	spelt := f.Name
	if of := f.AliasOf + f.NegativeOf; of != "" {
		f, _ = cat.Lookup(of)
	}
	if c.Output == "json" {
		return printJSON(a.stdout, map[string]any{"engine": cat.Engine, "version": cat.Version, "flag": f})
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	row := func(k, v string) {
		if v != "" {
			fmt.Fprintf(w, "%s\t%s\n", k, v)
		}
	}
	row("name", f.Name)
	if spelt != f.Name {
		row("", "("+spelt+" is another spelling of it)")
	}
	row("flag", f.Flag)
	row("release", cat.Engine+" "+cat.Version)
	row("type", flagType(f))
	var choices []string
	for _, ch := range f.Choices {
		choices = append(choices, string(ch))
	}
	row("choices", strings.Join(choices, ", "))
	row("default", orDash(string(f.Default)))
	if forms, ok := f.BoolForms(); ok {
		row("true", forms.True)
		switch {
		case forms.NoFalse != "":
			row("false", "cannot be written: "+forms.NoFalse)
		case forms.False == "":
			row("false", "by leaving the flag out")
		default:
			row("false", forms.False)
		}
	}
	row("aliases", strings.Join(f.Aliases, ", "))
	row("remarks", remarks(f))
	return w.Flush()
}

func flagType(f engines.Flag) string {
	t := string(f.Type)
	switch {
	case f.Shape != "":
		t += " " + f.Shape
	case f.Action == engines.Append || f.NArgs != "" && f.NArgs != "?":
		t = "list of " + t
	}
	return t
}

func remarks(f engines.Flag) string {
	var out []string
	if f.Required {
		out = append(out, "required")
	}
	if f.Deprecated {
		out = append(out, "deprecated")
	}
	if f.Action == engines.NoOp {
		out = append(out, "without effect")
	}
	if f.Source != "" {
		out = append(out, "from "+f.Source)
	}
	return strings.Join(out, ", ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
