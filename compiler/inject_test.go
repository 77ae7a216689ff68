package compiler_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/launchers"
)

// site is a field that an example writes out, by byte offsets.
type site struct{ label, labelEnd, value, valueEnd int }

// mistake is one change of a file's text that keeps every line where it is.
type mistake struct {
	kind     string
	from, to int    // bytes that go
	with     string // what comes instead
	at       int    // where the finding must be
}

// sites finds the fields of every struct that is written out.
func sites(t *testing.T, data []byte) (out []site) {
	f, err := parser.ParseFile("x.cue", data)
	if err != nil {
		t.Fatal(err)
	}
	var decls func(list []ast.Decl, braces bool)
	decls = func(list []ast.Decl, braces bool) {
		for _, d := range list {
			f, ok := d.(*ast.Field)
			if !ok {
				continue
			}
			id, ok := f.Label.(*ast.Ident)
			if ok && strings.HasPrefix(id.Name, "_") {
				continue
			}
			if s, ok := f.Value.(*ast.StructLit); ok {
				decls(s.Elts, s.Lbrace.IsValid())
			}
			if braces {
				out = append(out, site{f.Label.Pos().Offset(), f.Label.End().Offset(), f.Value.Pos().Offset(), f.Value.End().Offset()})
			}
		}
	}
	decls(f.Decls, true)
	return out
}

// mistakes are those that can be made at a site.
func mistakes(data []byte, s site) []mistake {
	value := func(kind, with string) mistake {
		return mistake{kind, s.value, s.valueEnd, with + strings.Repeat("\n", strings.Count(string(data[s.value:s.valueEnd]), "\n")), s.value}
	}
	return []mistake{
		{"unknown", s.label, s.label, fmt.Sprintf("zzz_%d: 1, ", s.label), s.label},
		{"typo", s.labelEnd, s.labelEnd, "x", s.label},
		value("null", "null"),
		value("list", "[[[]]]"),
		value("bool", "true"),
		value("text", `"zzz"`),
		value("negative", "-7"),
		value("huge", "1e30"),
		value("reference", "zzz_nothing"),
		value("condition", "string"),
		value("division", "(1 / 0)"),
		value("conflict", `"zzz" & 1`),
	}
}

func apply(data []byte, ms ...mistake) []byte {
	ms = slices.Clone(ms)
	slices.SortFunc(ms, func(a, b mistake) int { return b.from - a.from })
	out := string(data)
	for _, m := range ms {
		out = out[:m.from] + m.with + out[m.to:]
	}
	return []byte(out)
}

// TestInjectedMistakes puts one, two or three mistakes into every example, at
// fields drawn by a fixed seed. What CUE refuses is found at its own place, and
// what schema or evaluation found of a mistake alone is found beside others.
func TestInjectedMistakes(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../examples")); err != nil {
		t.Fatal(err)
	}
	internals := regexp.MustCompile(`_\|_|\badt\b|mismatched types|field not allowed|empty disjunction|\*ast\.|runtime error`)
	byCUE := map[string]string{"reference": "GRM1005", "condition": "GRM1006", "conflict": "GRM1004", "division": "GRM1007"}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.cue"))
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		// run compiles the example with mistakes and returns "CODE@line" of every error.
		run := func(ms ...mistake) (found []string) {
			text := apply(data, ms...)
			if err := os.WriteFile(path, text, 0o644); err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, d := range compiler.Compile([]string{filepath.Dir(path)}, compiler.Options{Checks: launchers.Checkers()}).Diagnostics {
				key := fmt.Sprintf("%s %s %s %s", d.Code, d.Pos, d.Path, d.Summary)
				if !d.Pos.IsValid() || d.Pos.Line == 0 || seen[key] || internals.MatchString(d.Summary+d.Detail+d.Remedy) {
					t.Errorf("no place, a second time, or in words of CUE's: %+v\n%s", d, text)
				}
				if seen[key] = true; d.Severity == diag.Error && d.Pos.File == path {
					found = append(found, fmt.Sprintf("%s@%d", d.Code, d.Pos.Line))
				}
			}
			return found
		}
		if filepath.Base(filepath.Dir(path)) == "cue.mod" || len(run()) > 0 {
			continue // no experiment by itself
		}
		line := func(at int) int { return strings.Count(string(data[:at]), "\n") + 1 }
		all := sites(t, data)
		type known struct {
			mistake
			by string
		}
		var alone []known
		for range 80 {
			ms := mistakes(data, all[rng.IntN(len(all))])
			m := ms[rng.IntN(len(ms))]
			found := run(m)
			at := fmt.Sprintf("@%d", line(m.at))
			if code := byCUE[m.kind]; code != "" && !slices.Contains(found, code+at) && !slices.Contains(found, "GRM1008"+at) {
				t.Errorf("%s:%d: %s: want %s, got %v", filepath.Base(path), line(m.at), m.kind, code, found)
			}
			for _, k := range found {
				if strings.HasSuffix(k, at) && (strings.HasPrefix(k, "GRM1") || strings.HasPrefix(k, "GRM2")) && !strings.HasPrefix(k, "GRM1001") {
					alone = append(alone, known{m, k})
				}
			}
		}
		for range 60 {
			var ms []mistake
			var want []string
			for range 2 + rng.IntN(2) {
				x := alone[rng.IntN(len(alone))]
				if !slices.ContainsFunc(ms, func(m mistake) bool { return x.from <= m.to && m.from <= x.to }) {
					ms, want = append(ms, x.mistake), append(want, x.by)
				}
			}
			found := run(ms...)
			for i, k := range want {
				if !slices.Contains(found, k) {
					t.Errorf("%s: %s at line %d is hidden by another: want %v, got %v\n%s", filepath.Base(path), ms[i].kind, line(ms[i].at), want, found, apply(data, ms...))
				}
			}
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
