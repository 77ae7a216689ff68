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
// one must raise its code, the right one must be accepted without it.
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
			is := func(d diag.Diagnostic) bool { return d.Code == code }
			if got := run(page.Wrong); !slices.ContainsFunc(got, is) {
				t.Errorf("the wrong example does not raise it: %+v", got)
			}
			if code == "GRM1010" {
				return // the mistake is in the flag
			}
			if got := run(page.Right); slices.ContainsFunc(got, is) || got.HasErrors() {
				t.Errorf("the right example raises %+v", got)
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
