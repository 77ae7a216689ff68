//go:build e2e

package ray

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var block = regexp.MustCompile("(?ms)^```(cue|sh) (\\S+)\n(.*?)^```$")

// TestReadme runs the commands that README.md shows for Ray, one by one.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, "time.sleep(2)")
	ran := 0
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "cue" && m[2] == "job.cue" {
			r.file(m[2], strings.NewReplacer(`"/opt/relax"`, cueText(filepath.Join(r.dir, "relax"))).Replace(m[3]))
		}
		if m[1] != "sh" || m[2] != "ray" {
			continue
		}
		for line := range strings.Lines(m[3]) {
			cmd := r.command()
			sh := exec.Command("bash", "-c", strings.ReplaceAll(line, "http://ray-head:8265", r.address))
			sh.Dir, sh.Env = r.dir, append(cmd.Env, "PATH="+filepath.Dir(r.genrm)+":"+os.Getenv("PATH"))
			if out, err := sh.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", line, err, out)
			}
			ran++
		}
	}
	if ran == 0 {
		t.Error("README.md shows no command for Ray")
	}
}
