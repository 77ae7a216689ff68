//go:build e2e

package slurm

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A training run and its judges are one heterogeneous job: the driver is told
// where they are and asks them, and they end with it.
func TestBeside(t *testing.T) {
	on(t, both, func(t *testing.T, r *rig) {
		judges := filepath.Join(r.dir, "judges.cue")
		if err := os.WriteFile(judges, []byte(`
name:   "beside"
target: "slurm"
slurm: time: "10"
serve: {
	instances: judge: {engine: "sim", constant: "7", startup_time: 2}
	gateway: {host: "0.0.0.0", api_key: {env: "GENRM_API_KEY"}}
}
`), 0o600); err != nil {
			t.Fatal(err)
		}
		train := r.relax("3", "")
		r.start("launch", train, "--judges", judges, "--wait").ends(3, "judges: run beside-", "the driver ended with status 3")
		var runs []struct {
			Name   string
			Dir    string
			State  string
			Reason string
		}
		if err := json.Unmarshal([]byte(r.run("genrm", "list", "-o", "json")), &runs); err != nil || len(runs) != 2 {
			t.Fatalf("%+v %v", runs, err)
		}
		for _, run := range runs {
			switch run.Name {
			case "training":
				rec, err := r.recordOf(filepath.Base(run.Dir), "driver", 1)
				if err != nil {
					t.Fatal(err)
				}
				if url := rec.Env["GENRM_JUDGES_URL"]; !strings.HasPrefix(url, "http://node") {
					t.Errorf("the driver is told %q", url)
				}
				if _, err := os.Stat(rec.Env["GENRM_JUDGES_ENDPOINTS"]); err != nil {
					t.Error(err)
				}
			case "beside":
				r.until("the judges have ended", func() bool {
					_ = json.Unmarshal([]byte(r.run("genrm", "status", filepath.Base(run.Dir), "-o", "json")), &run)
					return run.State == "stopped"
				})
				if !strings.Contains(run.Reason, "run training-") {
					t.Errorf("the judges ended: %s", run.Reason)
				}
			}
		}
		r.checkGone()
	})
}
