package launchers

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/rules"
)

func vet(t *testing.T, src string, target plan.Target) diag.List {
	t.Helper()
	file := filepath.Join(t.TempDir(), "experiment.cue")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return compiler.Compile([]string{file}, compiler.Options{Checks: Checkers(), Target: target}).Diagnostics
}

// TestTargetPages runs the examples of the targets' rules: the wrong one raises
// the code and nothing else that is not a note, the right one nothing.
func TestTargetPages(t *testing.T) {
	n := 0
	for _, code := range rules.Codes() {
		if !strings.HasPrefix(code, "GRM8") {
			continue
		}
		n++
		t.Run(code, func(t *testing.T) {
			p, ok := rules.Lookup(code)
			if !ok {
				t.Fatal("the page cannot be read")
			}
			others := func(d diag.Diagnostic) bool {
				// Every vLLM of the catalogue is older than the one that Ray pins.
				return d.Code != code && d.Severity != diag.Note && d.Code != "GRM8302"
			}
			wrong := vet(t, p.Wrong, "")
			if i := slices.IndexFunc(wrong, func(d diag.Diagnostic) bool { return d.Code == code }); i < 0 || !wrong[i].Pos.IsValid() || wrong[i].Remedy == "" {
				t.Errorf("the wrong example does not raise it, with a place and a remedy: %+v", wrong)
			}
			if slices.ContainsFunc(wrong, others) {
				t.Errorf("the wrong example raises more: %+v", wrong)
			}
			if right := vet(t, p.Right, ""); slices.ContainsFunc(right, func(d diag.Diagnostic) bool { return d.Code == code }) || slices.ContainsFunc(right, others) {
				t.Errorf("the right example: %+v", right)
			}
		})
	}
	if n < 25 {
		t.Errorf("only %d pages", n)
	}
}
