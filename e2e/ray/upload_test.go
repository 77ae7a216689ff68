//go:build e2e

package ray

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"genrm.dev/genrm/e2e/internal/suite"
)

// TestUpload runs a driver out of a folder that only this machine has.
func TestUpload(t *testing.T) {
	t.Parallel()
	r := newRig(t, `
import helper
(here / "seen").write_text(json.dumps([helper.text, sorted(os.listdir(".")), os.access("run.sh", os.X_OK), open("link").read()]))
`)
	file := r.relax(2, `ray: {working_dir: "code", runtime_env: py_modules: ["modules/helper"]}`)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r.file("experiment.cue", strings.Replace(string(data), "root: ", "// ", 1)) // else it would change into that
	for name, text := range map[string]string{
		"code/train.py": fmt.Sprintf(driver, suite.CUE(r.dir)), "code/run.sh": "#!/bin/sh\n", "code/größe ' $HOME": "",
		"code/.git/HEAD": "ref: x", "code/.gitignore": "*.bin\n", "code/weights.bin": "x", "code/.rayignore": "/secrets/\n", "code/secrets/key.pem": "x",
		"modules/helper/__init__.py": "text = 'of the module'\n", "target": "behind the link",
	} {
		path := filepath.Join(r.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../target", filepath.Join(r.dir, "code/link")); err != nil {
		t.Fatal(err)
	}
	out := r.ends(0, []string{"code uploaded: 6 files, ", "modules/helper uploaded: 1 file, ", "succeeded"}, "launch", "experiment.cue", "--wait")
	if strings.Contains(out, "GRM8326") || strings.Contains(out, "\r") {
		t.Errorf("%s", out)
	}
	seen, err := os.ReadFile(filepath.Join(r.dir, "seen"))
	if err != nil {
		t.Fatal(err)
	}
	if want := `["of the module", [".gitignore", ".rayignore", "gr\u00f6\u00dfe ' $HOME", "link", "run.sh", "train.py"], true, "behind the link"]`; string(seen) != want {
		t.Errorf("the driver sees %s, want %s", seen, want)
	}
	r.ends(0, []string{"code is there already: 6 files", "modules/helper is there already", "succeeded"}, "launch", "experiment.cue", "--wait")
	r.file("code/.env", "API_KEY=x")
	r.ends(0, []string{"warning[GRM8326]", ".env", "code uploaded: 7 files"}, "launch", "experiment.cue")
	if err := os.Remove(filepath.Join(r.dir, "code/.env")); err != nil {
		t.Fatal(err)
	}

	// On a terminal it is shown how far it is.
	part := make([]byte, 8<<20)
	_, _ = rand.Read(part) // never fails
	r.file("code/part", string(part))
	cmd := exec.Command("script", "-qec", `exec "$GENRM" launch experiment.cue`, "/dev/null")
	cmd.Dir, cmd.Env = r.dir, append(r.command().Env, "GENRM="+r.genrm, "TERM=xterm")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "\r\x1b[Kcode [") || !strings.Contains(string(out), "of 8.0 MiB") || !strings.Contains(string(out), "code uploaded: 7 files, 8.0 MiB") {
		t.Errorf("%v\n%q", err, out)
	}
	if err := os.Remove(filepath.Join(r.dir, "code/part")); err != nil {
		t.Fatal(err)
	}

	// One upload breaks halfway, and a proxy takes none.
	direct := r.address
	var puts atomic.Int32
	r.file("code/new", "content")
	r.address = r.front(func(w http.ResponseWriter, req *http.Request, ahead http.Handler) {
		if req.Method == http.MethodPut && puts.Add(1) == 1 {
			_, _ = io.CopyN(io.Discard, req.Body, 100)
			panic(http.ErrAbortHandler)
		}
		ahead.ServeHTTP(w, req)
	})
	r.ends(0, []string{"code uploaded: 7 files", "succeeded"}, "launch", "experiment.cue", "--wait")
	if puts.Load() != 2 {
		t.Errorf("%d uploads", puts.Load())
	}
	r.file("code/new", "other content")
	r.address = direct
	r.address = r.front(func(w http.ResponseWriter, req *http.Request, ahead http.Handler) {
		if req.Method == http.MethodPut {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			_, _ = io.WriteString(w, "<html><title>413 Request Entity Too Large</title>")
			return
		}
		ahead.ServeHTTP(w, req)
	})
	r.ends(3, []string{"error[GRM8325]: the Ray cluster does not take the folder", "413"}, "launch", "experiment.cue")
	r.address = direct

	before := len(r.jobs(r.mark()))
	big := make([]byte, 100<<20+1)
	_, _ = rand.Read(big) // never fails
	if err := os.MkdirAll(filepath.Join(r.dir, "code/checkpoints/last"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.file("code/checkpoints/last/model", string(big))
	r.ends(3, []string{"error[GRM8325]: the folder is too large to be uploaded", "The biggest: checkpoints/last/model 100.0 MiB."}, "launch", "experiment.cue")
	if jobs := r.jobs(r.mark()); len(jobs) != before {
		t.Errorf("%d jobs, %d before", len(jobs), before)
	}
	// The limit is Ray's.
	req, err := http.NewRequest(http.MethodPut, r.address+"/api/packages/gcs/_ray_pkg_0123.zip", bytes.NewReader(big))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("a package of 100 MiB and a byte: %s %.200s", resp.Status, text)
	}
}
