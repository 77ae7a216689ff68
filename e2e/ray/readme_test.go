//go:build e2e

package ray

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"genrm.dev/genrm/e2e/internal/suite"
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
	if err := os.Mkdir(filepath.Join(r.dir, "code"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.file("code/train.py", fmt.Sprintf(driver, suite.CUE(r.dir)))
	ran := 0
	for _, m := range block.FindAllStringSubmatch(string(text), -1) {
		if m[1] == "cue" && (m[2] == "job.cue" || m[2] == "code.cue") {
			r.file(m[2], strings.NewReplacer(`"/opt/relax"`, suite.CUE(filepath.Join(r.dir, "relax"))).Replace(m[3]))
		}
		if m[1] != "sh" || m[2] != "ray" {
			continue
		}
		for line := range strings.Lines(m[3]) {
			cmd := r.command()
			sh := exec.Command("bash", "-c", strings.ReplaceAll(line, "http://ray-head:8265", r.address))
			sh.Dir, sh.Env = r.dir, append(cmd.Env, "PATH="+filepath.Dir(r.genrm)+":"+os.Getenv("PATH"), "no_proxy=127.0.0.1") // curl's
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
