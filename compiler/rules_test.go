package compiler_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/rules"
	"genrm.dev/genrm/launchers"
)

// TestRulePages runs the wrong and the right example of every page: the wrong
// one raises its code and nothing else, the right one nothing; notes apart.
func TestRulePages(t *testing.T) {
	for _, code := range rules.Codes() {
		t.Run(code, func(t *testing.T) {
			page, ok := rules.Lookup(code)
			if !ok || page.Code != code {
				t.Fatalf("the page does not parse, or is of %q", page.Code)
			}
			run := func(text string) diag.List {
				path := filepath.Join(t.TempDir(), "x.cue")
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
				opts := compiler.Options{Checks: launchers.Checkers()}
				flags := page.Flags
				for i := 0; i < len(flags); i++ {
					name, value, ok := strings.Cut(flags[i], "=")
					if !ok {
						i++
						value = flags[i]
					}
					switch name {
					case "--target":
						opts.Target = plan.Target(value)
					case "--set":
						opts.Sets = append(opts.Sets, value)
					case "--name":
						opts.Name = value
					case "-t":
						opts.Tags = append(opts.Tags, value)
					default:
						t.Fatalf("flag %s", name)
					}
				}
				if text == page.Wrong && code == "GRM1002" {
					path += ".moved"
				}
				return compiler.Compile([]string{path}, opts).Diagnostics
			}
			// Unavoidable company: 5025 needs the unknown release that 5022 warns of.
			others := func(d diag.Diagnostic) bool {
				return d.Code != code && d.Severity != diag.Note && (code != "GRM5025" || d.Code != "GRM5022")
			}
			wrong := run(page.Wrong)
			if page.Launch { // raised there: see the tests of launchers/bind
				for _, text := range []string{page.Wrong, page.Right} {
					if l := run(text); l.HasErrors() {
						t.Errorf("an example has errors before it is launched: %+v", l)
					}
				}
				return
			}
			i := slices.IndexFunc(wrong, func(d diag.Diagnostic) bool {
				return d.Code == code && strings.Contains(page.Severity, string(d.Severity))
			})
			if i < 0 || !wrong[i].Pos.IsValid() || wrong[i].Remedy == "" && wrong[i].Severity != diag.Note {
				t.Errorf("the wrong example does not raise it, with its severity, a place and a remedy: %+v", wrong)
			}
			if j := slices.IndexFunc(wrong, others); j >= 0 {
				t.Errorf("the wrong example raises more: %+v", wrong[j])
			}
			if code == "GRM1010" {
				return // the mistake is in the flag
			}
			right := run(page.Right)
			if j := slices.IndexFunc(right, func(d diag.Diagnostic) bool { return d.Code == code || others(d) }); j >= 0 {
				t.Errorf("the right example raises %+v", right[j])
			}
		})
	}
}

// TestEveryCodeHasAPage compares the codes in the sources with the pages.
func TestEveryCodeHasAPage(t *testing.T) {
	used := map[string]bool{}
	code := regexp.MustCompile(`"(GRM[0-9]{4})"`)
	for _, dir := range []string{".", "../launchers"} {
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
			if err != nil || filepath.Ext(p) != ".go" || strings.HasSuffix(p, "_test.go") {
				return err
			}
			data, err := os.ReadFile(p)
			for _, m := range code.FindAllStringSubmatch(string(data), -1) {
				used[m[1]] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for c := range used {
		if _, ok := rules.Lookup(c); !ok {
			t.Errorf("%s has no page", c)
		}
	}
	for _, c := range rules.Codes() {
		if !used[c] {
			t.Errorf("%s has a page and is never raised", c)
		}
	}
}
