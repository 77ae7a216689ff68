// Package diag owns the one kind of message that genrm shows about a user's
// files: a [Diagnostic] with a stable code, a position in the user's own file
// and a remedy.
//
// It may not read files, print to a terminal it was not given, or know any
// rule: which codes exist is the business of compiler/rules, and when one is
// raised is the business of the stage that raises it.
package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Pos is a place in a file. Line and Column count from 1; a column counts code
// points, not bytes, so that a caret lands under what a reader sees. The zero
// Pos means that no place is known.
type Pos struct {
	File   string // as the user named it: relative stays relative
	Line   int
	Column int
}

// IsValid reports whether the position names a file.
func (p Pos) IsValid() bool { return p.File != "" }

// String returns "file:line:column", the form that editors and terminals link.
func (p Pos) String() string {
	switch {
	case p.File == "":
		return "-"
	case p.Line == 0:
		return p.File
	default:
		return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
	}
}

// Compare orders positions by file, line and column.
func (p Pos) Compare(q Pos) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// Severity says what a diagnostic means for the exit status.
type Severity string

const (
	Error   Severity = "error"   // the input is refused: exit status 1, nothing written
	Warning Severity = "warning" // works, but likely not as meant; an error under --strict
	Note    Severity = "note"    // a fact worth knowing
)

// Diagnostic is one finding about the user's input.
type Diagnostic struct {
	Code     string // GRMnnnn, has a page in compiler/rules
	Severity Severity
	Pos      Pos
	Path     string // field path, such as relax.genrm_instances.quality.num_gpus
	Summary  string // what is wrong, in the user's words; one line, no final stop
	Detail   string // the arithmetic or the circumstances; may be empty
	Remedy   string // what to do; may be empty only for notes
	Related  []Related

	// Secret says that the line at Pos holds a secret: no printer shows it.
	Secret bool
}

// Related is another place that explains a diagnostic.
type Related struct {
	Pos     Pos
	Message string
}

// List collects diagnostics. The zero List is ready for use.
type List []Diagnostic

// Add appends d.
func (l *List) Add(d Diagnostic) { *l = append(*l, d) }

// Sorted returns the diagnostics in a total order (file, line, column, path,
// severity, code, text), each once.
func (l List) Sorted() List {
	s := slices.Clone(l)
	slices.SortStableFunc(s, func(a, b Diagnostic) int {
		return cmp.Or(
			a.Pos.Compare(b.Pos),
			cmp.Compare(a.Path, b.Path),
			cmp.Compare(a.Severity.rank(), b.Severity.rank()),
			cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Summary, b.Summary),
			cmp.Compare(a.Detail, b.Detail),
		)
	})
	return slices.CompactFunc(s, func(a, b Diagnostic) bool {
		return a.Code == b.Code && a.Severity == b.Severity && a.Pos == b.Pos && a.Path == b.Path && a.Summary == b.Summary && a.Detail == b.Detail
	})
}

// HasErrors reports whether any diagnostic refuses the input.
func (l List) HasErrors() bool {
	return slices.ContainsFunc(l, func(d Diagnostic) bool { return d.Severity == Error })
}

// Strict returns the list with every warning turned into an error.
func (l List) Strict() List {
	s := slices.Clone(l)
	for i := range s {
		if s[i].Severity == Warning {
			s[i].Severity = Error
		}
	}
	return s
}

func (s Severity) rank() int { return slices.Index([]Severity{Error, Warning, Note}, s) }

// Nearest returns at most n of the candidates that a writer of word may have
// meant, nearest first: by edit distance with transpositions, and by shared
// prefix or containment for words that are cut short. It returns nothing when
// nothing is near.
func Nearest(word string, candidates []string, n int) []string {
	type hit struct {
		name string
		cost int
	}
	var hits []hit
	w := fold(word)
	for _, c := range candidates {
		f := fold(c)
		limit := max(1, min(len(w), len(f))/3)
		d := distance(w, f, limit)
		switch {
		case d <= limit:
			hits = append(hits, hit{c, d * 2})
		case len(w) >= 4 && (strings.HasPrefix(f, w) || strings.HasPrefix(w, f) && len(f) >= 4):
			hits = append(hits, hit{c, limit*2 + 1})
		case len(w) >= 5 && (strings.HasSuffix(f, "_"+w) || strings.HasSuffix(w, "_"+f)):
			hits = append(hits, hit{c, limit*2 + 2})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(a.name, b.name)) })
	if len(hits) > n {
		hits = hits[:n]
	}
	out := make([]string, len(hits))
	for i, h := range hits {
		out[i] = h.name
	}
	return out
}

// DidYouMean renders the names that [Nearest] finds as a remedy, such as
// `did you mean "model_path"?`, or returns "" when nothing is near.
func DidYouMean(word string, candidates []string) string {
	near := Nearest(word, candidates, 3)
	if len(near) == 0 {
		return ""
	}
	for i := range near {
		near[i] = fmt.Sprintf("%q", near[i])
	}
	return "did you mean " + OrList(near) + "?"
}

// OrList joins words as "a", "a or b", "a, b or c".
func OrList(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// fold makes spellings comparable that users do not tell apart.
func fold(s string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimLeft(s, "-")), "-", "_")
}

// distance is the optimal string alignment distance of a and b in code points
// (insert, delete, replace, swap of neighbours cost 1 each), or limit+1 as soon
// as it must exceed limit.
func distance(a, b string, limit int) int {
	r, s := []rune(a), []rune(b)
	if abs(len(r)-len(s)) > limit {
		return limit + 1
	}
	prev2, prev, cur := make([]int, len(s)+1), make([]int, len(s)+1), make([]int, len(s)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(r); i++ {
		cur[0] = i
		best := i
		for j := 1; j <= len(s); j++ {
			c := 1
			if r[i-1] == s[j-1] {
				c = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+c)
			if i > 1 && j > 1 && r[i-1] == s[j-2] && r[i-2] == s[j-1] {
				cur[j] = min(cur[j], prev2[j-2]+1)
			}
			best = min(best, cur[j])
		}
		if best > limit {
			return limit + 1
		}
		prev2, prev, cur = prev, cur, prev2
	}
	return prev[len(s)]
}

func abs(n int) int { return max(n, -n) }

// Sort orders the list and drops repetitions, in place; with strict, every
// warning becomes an error first.
func (l *List) Sort(strict bool) {
	if strict {
		*l = l.Strict()
	}
	*l = l.Sorted()
}
