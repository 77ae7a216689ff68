//go:build e2e

package slurm

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// A sweep is one job array, with a run for each variant: the tasks beyond the
// throttle wait, and each is stopped by itself, also in the queue.
func TestSweep(t *testing.T) {
	on(t, both, func(t *testing.T, r *rig) {
		file := r.file("sweep.cue", `
experiments: [string]: {target: "slurm", slurm: {time: "10", array_throttle: 2}}
experiments: {
	for answer in ["1", "2", "3"] {"sweep-\(answer)": serve: instances: judge: {engine: "sim", constant: answer}}
}
`)
		out := r.run("genrm", "launch", file)
		if strings.Count(out, "job ") != 3 || !strings.Contains(out, "_2, run sweep-3-") {
			t.Errorf("launch says %s", out)
		}
		state := func(n int) string {
			var s struct{ State string }
			if err := json.Unmarshal([]byte(r.run("genrm", "status", r.runOf(n), "-o", "json")), &s); err != nil {
				t.Fatal(err)
			}
			return s.State
		}
		r.until("two tasks are ready", func() bool { return state(0) == "ready" && state(1) == "ready" })
		if s := state(2); s != "pending" {
			t.Errorf("the third, beyond the throttle, is %s", s)
		}
		var e struct{ Gateway struct{ URL string } }
		if err := json.Unmarshal([]byte(r.run("genrm", "endpoint", r.runOf(1), "-o", "json")), &e); err != nil {
			t.Fatal(err)
		}
		res, err := http.Post(e.Gateway.URL+"/genrm/generate", "application/json", strings.NewReader(`{"messages": [{"role": "user", "content": "x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(answer), `"2"`) {
			t.Errorf("the second variant answers %s, %v", answer, err)
		}
		_ = res.Body.Close() // only read
		for _, n := range []int{2, 0, 1} {
			r.run("genrm", "stop", r.runOf(n))
			if s := state(n); s != "stopped" {
				t.Errorf("task %d is %s", n, s)
			}
		}
		if left := r.alive(); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// runOf is the run of a variant, from 0.
func (r *rig) runOf(n int) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.runsGlob(), "sweep-"+string(rune('1'+n))+"-*"))
	if err != nil || len(found) != 1 {
		r.t.Fatalf("runs of variant %d: %q, %v", n, found, err)
	}
	return filepath.Base(found[0])
}

// runsGlob is the folder of runs as a pattern that means itself.
func (r *rig) runsGlob() string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(r.runs())
}
