package compiler

import (
	"os"
	"path/filepath"
	"testing"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// cueText evaluates CUE source as one experiment, without the schema, so that a
// rule can be tested on what check would have stopped.
func cueText(t testing.TB, src string) *tree.Value {
	t.Helper()
	path := filepath.Join(t.TempDir(), "case.cue")
	if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	return cueDir(t, path)
}

// cueDir evaluates the package in a folder.
func cueDir(t testing.TB, path string) *tree.Value {
	t.Helper()
	var found diag.List
	src := expand([]string{path}, &found)
	if len(src) != 1 {
		t.Fatal(found)
	}
	root, _ := evaluate(src[0], Options{}, &found)
	if root == nil || found.HasErrors() {
		t.Fatal(found)
	}
	return root
}
