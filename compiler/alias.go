package compiler

import (
	"fmt"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// modelPath returns the path that a model_path stands for: itself, or what
// cluster.model_aliases has for it. It returns "" for an absent or faulty
// value.
//
// A name that is near an alias but none is an error, never passed on as text:
// it would reach the engine as a path that does not exist. A name without "/"
// that is near no alias is left alone, since hubs and working folders have
// such names.
func (e *experiment) modelPath(v *tree.Value) string {
	name, ok := v.AsString()
	if !ok {
		return ""
	}
	aliases := e.root.Lookup("cluster", "model_aliases")
	if a := aliases.Field(name); a != nil {
		path, _ := a.AsString()
		return path
	}
	if strings.Contains(name, "/") {
		return name
	}
	if near := diag.DidYouMean(name, aliases.Names()); near != "" {
		first := diag.Nearest(name, aliases.Names(), 1)[0]
		e.report("GRM7010", diag.Error, v,
			fmt.Sprintf("%q is no alias in cluster.model_aliases, and no path", name),
			"A model path has a \"/\" in it; a name without one that is close to an alias is taken for a misspelt alias, since the engine would look for a folder of that name.",
			near+" For a folder of that name write \"./"+name+"\".",
			diag.Related{Pos: aliases.KeyPos(first), Message: fmt.Sprintf("the alias %q", first)})
		return ""
	}
	return name
}

// modelFacts returns what the user states of a model under models, by the path
// as he wrote it or by the path that it stands for; nil if nothing.
func (e *experiment) modelFacts(v *tree.Value) *tree.Value {
	name, ok := v.AsString()
	if !ok {
		return nil
	}
	models := e.root.Field("models")
	if m := models.Field(name); m != nil {
		return m
	}
	if a, ok := e.root.Lookup("cluster", "model_aliases").Field(name).AsString(); ok {
		return models.Field(a)
	}
	return nil
}

// modelText is [experiment.modelPath] without reporting: for the second use of
// a value.
func (e *experiment) modelText(v *tree.Value) string {
	name, _ := v.AsString()
	if a, ok := e.root.Lookup("cluster", "model_aliases").Field(name).AsString(); ok {
		return a
	}
	return name
}
