package diag

import (
	"fmt"
	"strconv"
	"strings"
)

// group is a finding with the experiments of a sweep that have it at the same
// place, in the same words.
type group struct {
	Diagnostic
	in []string // names of the experiments; nil outside of experiments
}

// shownExperiments is how many experiments of a group are named.
const shownExperiments = 8

// where names the experiments of a group, or returns "" outside of a sweep.
func (g group) where() string {
	names := g.in
	switch {
	case len(names) == 0:
		return ""
	case len(names) == 1:
		return "in experiment " + names[0]
	case len(names) > shownExperiments:
		return fmt.Sprintf("in %d experiments: %s and %d more", len(names), strings.Join(names[:shownExperiments], ", "), len(names)-shownExperiments)
	}
	return fmt.Sprintf("in %d experiments: %s", len(names), strings.Join(names, ", "))
}

// grouped joins the findings that differ in nothing but the experiment, in the
// order of each group's first.
func (l List) grouped() []group {
	type key struct {
		code, rest, summary, detail, remedy, related string
		severity                                     Severity
		pos                                          Pos
	}
	var out []group
	at := map[key]int{}
	for _, d := range l {
		name, rest := SplitExperiment(d.Path)
		if name == "" {
			out = append(out, group{Diagnostic: d})
			continue
		}
		k := key{d.Code, rest, d.Summary, d.Detail, d.Remedy, fmt.Sprint(d.Related), d.Severity, d.Pos}
		if i, ok := at[k]; ok {
			out[i].in = append(out[i].in, name)
			continue
		}
		at[k] = len(out)
		out = append(out, group{d, []string{name}})
	}
	return out
}

// SplitExperiment splits the path of a field in experiments.NAME into the name
// and the rest; the name is "" for any other path.
func SplitExperiment(path string) (name, rest string) {
	path, ok := strings.CutPrefix(path, "experiments.")
	if !ok {
		return "", path
	}
	if quoted, err := strconv.QuotedPrefix(path); err == nil {
		name, _ = strconv.Unquote(quoted)
		return name, strings.TrimPrefix(path[len(quoted):], ".")
	}
	name, rest, _ = strings.Cut(path, ".")
	return name, rest
}
