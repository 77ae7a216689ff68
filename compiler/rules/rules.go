// Package rules owns the catalogue of diagnostic codes: one page a code, which
// `genrm explain CODE` prints.
//
// It may not raise a diagnostic. A page is a file pages/GRMnnnn.md of this form:
//
//	# GRMnnnn: title
//
//	- severity: error | warning | note | error or warning …
//	- verdict: same | stricter | version-bound | own
//	- source: where the fact can be checked
//	- flags: --target=slurm   (optional: flags of the `genrm vet` that the examples need)
//	- raised: when the run is launched   (optional: the rule needs the machine, so `genrm vet` accepts both examples)
//
//	What is wrong, why it matters, in a few sentences.
//
//	## Wrong
//
//	```cue
//	…   // an experiment file that raises the code; ←  marks nothing: the test only wants the code
//	```
//
//	## Right
//
//	```cue
//	…   // one that does not raise it, and has no error at all
//	```
//
// Verdicts compare with the real system: same (it refuses too), stricter (it
// accepts what cannot work), version-bound (depends on its release), own (a
// rule of genrm's file format). A test runs both examples of every page, wants
// a page for every code that the program can raise, and no page beside those.
package rules

import (
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

//go:embed pages/*.md
var pages embed.FS

// Page is the explanation of one code.
type Page struct {
	Code     string
	Title    string
	Severity string
	Verdict  string // same, stricter, version-bound, own
	Source   string
	Launch   bool     // raised when a run is launched, and not before
	Flags    []string // of the `genrm vet` that runs the examples
	Text     string   // Markdown between the facts and the examples
	Wrong    string   // CUE that raises the code
	Right    string   // CUE that is accepted
	Raw      string   // the whole page
}

// Lookup returns the page of a code; upper and lower case are the same.
func Lookup(code string) (Page, bool) {
	data, err := pages.ReadFile("pages/" + strings.ToUpper(code) + ".md")
	if err != nil {
		return Page{}, false
	}
	p, err := parse(string(data))
	return p, err == nil
}

// Codes lists every code that has a page, sorted.
func Codes() []string {
	entries, _ := fs.ReadDir(pages, "pages") // an embedded folder always reads
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimSuffix(e.Name(), ".md"))
	}
	slices.Sort(out)
	return out
}

// parse reads a page. It is strict, so that a page that `explain` could not
// show whole fails the tests.
func parse(raw string) (Page, error) {
	p := Page{Raw: raw}
	head, rest, ok := strings.Cut(raw, "\n")
	code, title, ok2 := strings.Cut(strings.TrimPrefix(head, "# "), ": ")
	if !ok || !ok2 || !strings.HasPrefix(head, "# GRM") {
		return p, fmt.Errorf("the first line is not `# GRMnnnn: title`: %q", head)
	}
	p.Code, p.Title = code, title
	body, examples, ok := strings.Cut(rest, "\n## Wrong\n")
	if !ok {
		return p, fmt.Errorf("%s: no `## Wrong`", code)
	}
	wrong, right, ok := strings.Cut(examples, "\n## Right\n")
	if !ok {
		return p, fmt.Errorf("%s: no `## Right`", code)
	}
	var text []string
	for line := range strings.Lines(body) {
		key, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), ": ")
		switch {
		case ok && key == "severity" && p.Severity == "":
			p.Severity = value
		case ok && key == "verdict" && p.Verdict == "":
			p.Verdict = value
		case ok && key == "source" && p.Source == "":
			p.Source = value
		case ok && key == "raised" && value == "when the run is launched":
			p.Launch = true
		case ok && key == "flags" && p.Flags == nil:
			p.Flags = strings.Fields(value)
		default:
			text = append(text, line)
		}
	}
	p.Text = strings.TrimSpace(strings.Join(text, ""))
	if !slices.Contains([]string{"same", "stricter", "version-bound", "own"}, p.Verdict) || p.Severity == "" || p.Source == "" || p.Text == "" {
		return p, fmt.Errorf("%s: severity, verdict, source or text is missing or wrong", code)
	}
	var err error
	if p.Wrong, err = block(wrong); err != nil {
		return p, fmt.Errorf("%s: wrong example: %w", code, err)
	}
	if p.Right, err = block(right); err != nil {
		return p, fmt.Errorf("%s: right example: %w", code, err)
	}
	return p, nil
}

// block returns the content of the only ```cue block of s.
func block(s string) (string, error) {
	_, s, ok := strings.Cut(s, "```cue\n")
	s, _, ok2 := strings.Cut(s, "```")
	if !ok || !ok2 {
		return "", fmt.Errorf("no ```cue block")
	}
	return s, nil
}
