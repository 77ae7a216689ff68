package schema

import (
	"fmt"
	"strings"
)

// Entry is what [Lookup] finds: a field of the vocabulary.
type Entry struct {
	Path     string // as asked for, with * for names that the user chooses
	Doc      string
	Required bool
	Type     *Type
}

// UnknownFieldError says which step of a path does not exist, and what does.
type UnknownFieldError struct {
	Path  string   // the part that exists
	Name  string   // the step that does not
	Known []string // the fields that exist there
}

func (e *UnknownFieldError) Error() string {
	at := e.Path
	if at == "" {
		at = "an experiment"
	}
	return fmt.Sprintf("%s has no field %q", at, e.Name)
}

// Lookup finds a field by its dotted path, such as
// relax.genrm_instances.*.num_gpus; a name that the user chooses (a route_key,
// say) may be written as * or as any name. It returns an *UnknownFieldError for
// a path that does not exist.
func Lookup(path string) (Entry, error) {
	e := Entry{Type: Package(), Doc: Package().Doc}
	if path == "" {
		return e, nil
	}
	for _, step := range strings.Split(path, ".") {
		step, _, _ = strings.Cut(step, "[")
		step = strings.Trim(step, `"`)
		next, ok := e.step(step)
		if !ok {
			return e, &UnknownFieldError{Path: e.Path, Name: step, Known: e.Type.FieldNames()}
		}
		next.Path = strings.TrimPrefix(e.Path+"."+step, ".")
		e = next
	}
	return e, nil
}

func (e Entry) step(name string) (Entry, bool) {
	for _, a := range e.Type.Alts {
		s := a.Struct
		if a.Elem != nil && len(a.Elem.Alts) > 0 {
			s = a.Elem.Alts[0].Struct
		}
		if s == nil {
			continue
		}
		if f := s.Field(name); f != nil {
			return Entry{Doc: f.Doc, Required: f.Required, Type: f.Type}, true
		}
		for _, p := range s.Patterns {
			if _, ok := s.Pattern(name); ok || name == "*" {
				doc := p.Doc
				if doc == "" {
					doc = p.Type.Doc
				}
				return Entry{Doc: doc, Type: p.Type}, true
			}
		}
	}
	return Entry{}, false
}

// FieldNames lists the names of the named fields of all alternatives, in the
// order of the schema.
func (t *Type) FieldNames() []string {
	var out []string
	seen := map[string]bool{}
	for _, a := range t.Alts {
		if a.Struct == nil {
			continue
		}
		for _, f := range a.Struct.Fields {
			if !seen[f.Name] {
				seen[f.Name] = true
				out = append(out, f.Name)
			}
		}
	}
	return out
}

// Default returns the text of the default value, and whether there is one.
func (t *Type) Default() (string, bool) {
	for _, a := range t.Alts {
		if a.Default && a.Lit != nil {
			return *a.Lit, true
		}
	}
	return "", false
}

// Describe says in the user's words what the type takes, such as
// `an integer, at least 1`.
func (t *Type) Describe() string {
	var parts, literals []string
	seen := map[string]bool{}
	add := func(s string) {
		if s != "" && !seen[s] {
			seen[s] = true
			parts = append(parts, s)
		}
	}
	for _, a := range t.Alts {
		if a.Lit != nil {
			if a.Default && len(t.Alts) > 1 && !t.onlyLiterals() {
				continue // the default is a value of another alternative
			}
			lit := *a.Lit
			if a.Kinds == String {
				lit = fmt.Sprintf("%q", lit)
			}
			literals = append(literals, lit)
			continue
		}
		add(a.Describe())
	}
	if len(literals) == 1 {
		add(literals[0])
	} else if len(literals) > 1 {
		add("one of " + strings.Join(literals, ", "))
	}
	return strings.Join(parts, ", or ")
}

func (t *Type) onlyLiterals() bool {
	for _, a := range t.Alts {
		if a.Lit == nil {
			return false
		}
	}
	return true
}

// Describe says in the user's words what the alternative takes.
func (a *Alt) Describe() string {
	switch a.Def {
	case "SecretEnv":
		return `a secret reference {env: "NAME"}`
	case "SecretFile":
		return `a secret reference {file: "/path"}`
	}
	if a.Def != "" && len(a.Match) > 0 && a.doc != "" {
		first, _, _ := strings.Cut(strings.ReplaceAll(a.doc, "\n", " ")+" ", ". ")
		return strings.ToLower(first[:1]) + strings.TrimSuffix(first[1:], ". ")
	}
	names := []struct {
		k    Kind
		text string
	}{{Int, "an integer"}, {Number, "a number"}, {Bool, "true or false"}, {String, "a string"}, {List, "a list"}, {Object, "a struct"}, {Null, "null"}, {Any, "anything"}}
	var text string
	for _, n := range names {
		if a.Kinds == n.k {
			text = n.text
		}
	}
	if len(a.Tuple) > 0 {
		var items []string
		for _, t := range a.Tuple {
			items = append(items, t.Describe())
		}
		text = fmt.Sprintf("a list of %d: [%s]", len(a.Tuple), strings.Join(items, "; "))
	} else if a.Elem != nil {
		if d := a.Elem.Describe(); d != "anything" {
			text = "a list, each " + d
		}
	}
	words := map[string]string{">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
	for _, b := range a.Bounds {
		text += ", " + words[b.Op] + " " + b.Text
	}
	for _, m := range a.Match {
		verb := "matching"
		if m.Not {
			verb = "not matching"
		}
		text += " " + verb + " " + m.Text
	}
	return text
}
