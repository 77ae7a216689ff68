package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/plan"
)

const (
	examplesDir = "../../examples"
	goldenDir   = "../../golden"
)

// onClusters are the targets for which every example that compiles for them has
// a golden plan.
var onClusters = []plan.Target{plan.Ray, plan.KubeRay}

// perTarget are the examples that have a golden plan for each target: one a
// workload.
var perTarget = []string{"relax-dual-judge", "gym-genrm", "serve-two-vllm"}

// anyImage is what examples are given where target kuberay wants an image: they
// name none, since it is the reader's own.
const anyImage = `kuberay.image="registry.example/ray:2.60.0"`

// exampleDirs lists the folders of experiments among the examples.
func exampleDirs(t *testing.T) []string {
	t.Helper()
	dirs, err := experimentDirs([]string{examplesDir + "/..."})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, d := range dirs {
		if !slices.Contains(out, d.path) {
			out = append(out, d.path)
		}
	}
	return out
}

// TestGoldenExamples compares plan and emitted files of every example with the
// golden files. GENRM_UPDATE=1 writes them; without it a missing one fails.
func TestGoldenExamples(t *testing.T) {
	mode := "--check"
	if os.Getenv("GENRM_UPDATE") != "" {
		mode = "--update"
	}
	want := map[string]bool{}
	for _, dir := range exampleDirs(t) {
		name := filepath.Base(dir)
		want[name] = true
		targets := []string{""}
		for _, target := range plan.Targets {
			if slices.Contains(perTarget, name) {
				targets = append(targets, string(target))
			} else if slices.Contains(onClusters, target) {
				args := []string{"vet", dir, "--target", string(target)}
				if target == plan.KubeRay {
					args = append(args, "--set", anyImage)
				}
				if code, _, _ := call(t, args...); code == 0 {
					targets = append(targets, string(target))
				}
			}
		}
		for _, target := range targets {
			t.Run(name+"/"+target, func(t *testing.T) {
				args := []string{"golden", dir, "--dir", goldenDir, mode}
				if target != "" {
					args = append(args, "--target", target)
				}
				if target == string(plan.KubeRay) {
					args = append(args, "--set", anyImage)
				}
				if code, out, errs := call(t, args...); code != 0 {
					t.Errorf("exit status %d\n%s%s", code, out, errs)
				}
			})
		}
	}
	entries, err := os.ReadDir(goldenDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !want[e.Name()] {
			t.Errorf("golden/%s belongs to no example", e.Name())
		}
	}
}

// TestExamples: every example is formatted, vets without an error, is drawn, and
// is emitted for every target that takes it, as scripts that bash can read.
func TestExamples(t *testing.T) {
	for _, dir := range exampleDirs(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			if code, out, errs := call(t, "fmt", "-d", dir); code != 0 || out != "" {
				t.Errorf("fmt: exit status %d\n%s%s", code, out, errs)
			}
			if code, out, errs := call(t, "vet", dir); code != 0 {
				t.Fatalf("vet: exit status %d\n%s%s", code, out, errs)
			}
			if code, out, errs := call(t, "plan", dir); code != 0 || !strings.Contains(out, "Command") {
				t.Errorf("plan: exit status %d\n%s%s", code, out, errs)
			}
			taken := 0
			for _, target := range plan.Targets {
				args := []string{dir, "--target", string(target)}
				if target == plan.KubeRay {
					args = append(args, "--set", anyImage)
				}
				if code, _, _ := call(t, append([]string{"vet"}, args...)...); code != 0 {
					continue
				}
				taken++
				out := t.TempDir()
				if code, _, errs := call(t, append(append([]string{"emit"}, args...), "-o", out)...); code != 0 {
					t.Fatalf("emit for %s: exit status %d\n%s", target, code, errs)
				}
				if exists(out, "serve.json") || target == plan.KubeRay && !exists(out, "launch.json") {
					continue // Ray Serve starts the judges itself
				}
				checkScripts(t, out)
			}
			if taken == 0 {
				t.Error("no target takes it")
			}
		})
	}
}

func exists(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return err == nil
}

func checkScripts(t *testing.T, dir string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal("the scripts need bash: ", err)
	}
	n := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".sh" {
			return err
		}
		n++
		if out, err := exec.Command(bash, "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		t.Errorf("%s: no script", dir)
	}
}
