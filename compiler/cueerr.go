package compiler

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"cuelang.org/go/cue"
	cueerrors "cuelang.org/go/cue/errors"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// errors translates errors of CUE's into diagnostics, each once, in the user's
// words and at the user's places. fallback is used where CUE knows no place.
func (ev *evaluator) errors(err error, fallback diag.Pos) {
	for _, e := range cueerrors.Errors(err) {
		format, args := e.Msg()
		path := cuePath(e.Path())
		msg := strings.TrimSpace(fmt.Sprintf(format, args...))
		if strings.Contains(format, "errors in empty disjunction") {
			continue // its branches follow
		}
		var places []diag.Pos
		for _, p := range append(cueerrors.Positions(e), e.InputPositions()...) {
			if q := ev.src.pos(p); q.IsValid() && !slices.Contains(places, q) {
				places = append(places, q)
			}
		}
		if slices.ContainsFunc(places, func(p diag.Pos) bool { return ev.standin[p] }) {
			continue
		}
		slices.SortStableFunc(places, func(a, b diag.Pos) int { return fromFlag(b) - fromFlag(a) })
		d := translate(format, args, msg, strings.ReplaceAll(e.Error(), ev.src.dir+string(filepath.Separator), ""), path)
		d.Severity, d.Path, d.Pos = diag.Error, path, fallback
		if len(places) > 0 {
			d.Pos = ev.best(path, places)
			if fromFlag(places[0]) == 1 && d.Pos != places[0] { // --set against the file: name these two
				places = []diag.Pos{d.Pos, places[0]}
			}
		}
		for _, p := range places {
			if p != d.Pos {
				d.Related = append(d.Related, diag.Related{Pos: p, Message: "also here"})
			}
		}
		if d.Code == "GRM1004" && len(d.Related) > 0 {
			d.Detail = fmt.Sprintf("%s and %s both set it.", d.Pos, d.Related[0].Pos)
		}
		if secretPath(path) && (d.Code == "GRM1004" || d.Code == "GRM1007") { // these quote values
			d.Secret, d.Detail = true, ""
			d.Summary = path + ": this expression of a secret has no value"
			d.Remedy = secretRemedy
		}
		d.Summary = tokenLike.ReplaceAllString(d.Summary, secretText)
		// One finding a path: CUE reports each branch of a failed disjunction
		// and each step of a chain of references.
		key := d.Code + "\x00" + path
		if path == "" {
			key += msg + d.Pos.String()
		}
		if !ev.reported[key] {
			ev.reported[key] = true
			ev.diags.Add(d)
		}
	}
}

// fromFlag is 1 for a place in a command line flag such as --set.
func fromFlag(p diag.Pos) int {
	if strings.HasPrefix(p.File, "--") {
		return 1
	}
	return 0
}

// best picks the place to show: the value behind the key that the files write out
// for the path, so that a mistake is shown where it is made and not at the
// definition or pattern that it breaks; else the first in the user's own package.
func (ev *evaluator) best(path string, places []diag.Pos) diag.Pos {
	if n, ok := ev.index()[path]; ok {
		key, at := ev.src.pos(n.Pos()), diag.Pos{}
		for _, p := range places {
			if p.File == key.File && p.Line == key.Line && p.Column > key.Column && (at.Column == 0 || p.Column < at.Column) {
				at = p
			}
		}
		if at.Column > 0 {
			return at
		}
	}
	for _, abs := range ev.src.order {
		for _, p := range places {
			if p.File == ev.src.files[abs].shown {
				return p
			}
		}
	}
	return places[0]
}

// translate finds code and words for an error of CUE's by its message format.
func translate(format string, args []any, msg, full, path string) diag.Diagnostic {
	has := func(s string) bool { return strings.Contains(format, s) || strings.Contains(msg, s) }
	arg := func(i int) string {
		if i >= len(args) {
			return ""
		}
		switch s := fmt.Sprint(args[i]); {
		case strings.HasPrefix(s, "{"): // its members may be long, or secret
			return "a struct"
		case strings.HasPrefix(s, "["):
			return "a list"
		case utf8.RuneCountInString(s) > 60:
			return string([]rune(s)[:57]) + "…"
		default:
			return s
		}
	}
	name := lastName(path)
	switch {
	case has("injection tag"):
		return diag.Diagnostic{Code: "GRM1009", Summary: "-t: " + firstLine(msg), Remedy: "give a value of the type that the tag declares (type=int, number, bool)"}
	case has("no tag for"), has("tag \""), has("cannot set value") && has("tag"):
		return diag.Diagnostic{Code: "GRM1009", Summary: "-t: " + msg, Remedy: "declare the tag in the file: `name: string @tag(key)`, and pass it as -t key=value"}
	case has("conflicting values") && len(args) >= 2:
		return diag.Diagnostic{Code: "GRM1004", Summary: fmt.Sprintf("%s is given two values that conflict: %s and %s", name, arg(0), arg(1)), Remedy: "remove one, or make them equal"}
	case has("conflicting"):
		return diag.Diagnostic{Code: "GRM1004", Summary: name + " is given values that conflict", Remedy: "remove one, or make them equal"}
	case has("reference") && has("not found"):
		return diag.Diagnostic{Code: "GRM1005", Summary: fmt.Sprintf("nothing is named %s here", arg(0)), Remedy: `define it, or put quotes around it if text is meant`}
	case has("undefined field"):
		return diag.Diagnostic{Code: "GRM1005", Summary: fmt.Sprintf("%s refers to the field %s, which does not exist", name, arg(0)), Remedy: "define that field, or correct the reference"}
	case has("structural cycle"), has("cycle error"), has("cyclic"):
		return diag.Diagnostic{Code: "GRM1007", Summary: name + " depends on itself", Remedy: "break the circle: one of the fields needs a value of its own"}
	case has("field is required but not present"):
		return diag.Diagnostic{Code: "GRM1006", Summary: name + " is missing: your own package requires it", Remedy: "set it in the experiment, or by --set"}
	case has("field not allowed"):
		return diag.Diagnostic{Code: "GRM1007", Summary: name + " is not allowed by a definition of your own package", Remedy: "correct the name, or add the field to that definition"}
	case has("out of bound"), has("invalid value"):
		return diag.Diagnostic{Code: "GRM1007", Summary: name + " breaks a condition of your own package: " + msg, Remedy: "change the value, or the condition"}
	case has("build constraints"):
		return diag.Diagnostic{Code: "GRM1003", Summary: "no file is left: an @if attribute leaves out each", Remedy: "pass the tag that it asks for, -t NAME, or remove the attribute"}
	case has("found packages"), has("import"), has("package"), has("module"), has("no files"):
		return diag.Diagnostic{Code: "GRM1003", Summary: regexp.MustCompile(`^(import failed: ([^ ]+:[0-9]+:[0-9]+: )?)+`).ReplaceAllString(firstLine(full), "import failed: "), Remedy: "check the package clauses and imports; imports need a cue.mod folder at the root of the module"}
	case has("incomplete"), has("non-concrete"), has("unresolved"):
		return diag.Diagnostic{Code: "GRM1006", Summary: name + " has no concrete value: " + firstLine(msg), Remedy: "give it a value here, by --set, or by a tag (-t)"}
	default:
		return diag.Diagnostic{Code: "GRM1007", Summary: name + ": " + firstLine(msg), Remedy: "correct the expression"}
	}
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.TrimSuffix(s, ":")
}

// cuePath renders the path of an error as tree paths are.
func cuePath(steps []string) string {
	out := ""
	for _, s := range steps {
		if isIndex(s) && out != "" {
			out += "[" + s + "]"
			continue
		}
		sels := cue.ParsePath(s).Selectors()
		if len(sels) == 1 && sels[0].LabelType() == cue.StringLabel {
			s = sels[0].Unquoted()
		}
		out = tree.Join(out, s)
	}
	return out
}

func isIndex(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
