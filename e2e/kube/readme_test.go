//go:build e2e

package kube

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var fenced = regexp.MustCompile("(?ms)^```(cue|sh) (\\S+)\n(.*?)^```$")

// TestReadme runs the commands that README.md shows for KubeRay, one by one.
func TestReadme(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "ml") // as the README says
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(os.Getenv("GENRM_E2E_GENRM"), filepath.Join(bin, "genrm")); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, m := range fenced.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "cue" {
			r.file(m[2], m[3])
			continue
		}
		if m[2] != "kuberay" {
			continue
		}
		for line := range strings.Lines(m[3]) {
			cmd := exec.Command("bash", "-c", line)
			base := r.command()
			cmd.Dir, cmd.Env = base.Dir, append(base.Env, "PATH="+bin+":"+os.Getenv("PATH"))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s%v\n%s", line, err, out)
			}
			ran++
		}
	}
	if ran == 0 {
		t.Error("README.md shows no command for KubeRay")
	}
}
