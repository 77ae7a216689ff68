//go:build e2e

package slurm

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

var block = regexp.MustCompile("(?ms)^```(cue|sh) (\\S+)\n(.*?)^```$")

// TestReadme runs the commands that README.md shows for Slurm, one by one.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	on(t, both, func(t *testing.T, r *rig) {
		ran := 0
		for _, m := range block.FindAllStringSubmatch(string(text), -1) {
			if m[1] == "cue" {
				r.file(m[2], m[3])
				continue
			}
			if m[2] != "slurm" {
				continue
			}
			for line := range strings.Lines(m[3]) {
				if strings.HasPrefix(line, "genrm logs") { // there is one once the job runs
					r.untilReady()
				}
				r.run("bash", "-c", "cd "+shellWord(r.dir)+" && "+line)
				ran++
			}
		}
		if ran == 0 {
			t.Error("README.md shows no command for Slurm")
		}
		r.checkGone()
	})
}

// shellWord quotes a text without a NUL byte for a shell.
func shellWord(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
