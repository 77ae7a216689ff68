package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/plan"
)

// TestGoldenScripts holds the job of every example against testdata/*.sbatch,
// which GENRM_UPDATE=1 rewrites, and bash against its syntax.
func TestGoldenScripts(t *testing.T) {
	dirs, err := filepath.Glob("../../examples/*-*") // and not the modules that they share
	if err != nil || len(dirs) == 0 {
		t.Fatal("no examples", err)
	}
	update := os.Getenv("GENRM_UPDATE") != ""
	seen := map[string]bool{}
	for _, dir := range append(dirs, "../../examples/quickstart") {
		r := compiler.Compile([]string{dir}, compiler.Options{Target: plan.Slurm, Checks: []plan.Checker{Checker()}})
		if len(r.Plans) == 0 {
			t.Errorf("%s: %+v", dir, r.Diagnostics)
		}
		for _, p := range r.Plans {
			if seen[p.Name] || len(r.Plans) > 3 {
				continue // variants of a sweep differ little
			}
			name := filepath.Join("testdata", p.Name+".sbatch")
			seen[name] = true
			got, err := script(p)
			if err != nil {
				t.Errorf("%s: %v", p.Name, err)
				continue
			}
			if update {
				if err := os.WriteFile(name, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(name)
			if err != nil || string(got) != string(want) {
				t.Errorf("%s is not what is written now (%v): see GENRM_UPDATE=1\n%s", name, err, got)
			}
			if out, err := exec.Command("bash", "-n", name).CombinedOutput(); err != nil {
				t.Errorf("bash -n %s: %v\n%s", name, err, out)
			}
		}
	}
	have, _ := filepath.Glob("testdata/*.sbatch") // a fixed pattern
	for _, name := range have {
		if !seen[name] {
			if !update {
				t.Errorf("%s belongs to no example", name)
			} else if err := os.Remove(name); err != nil {
				t.Error(err)
			}
		}
	}
}
