package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// dashboard is a stand-in of a Ray cluster of one node with 8 GPUs. A job ends as
// soon as it is looked at, with the status that its name says.
type dashboard struct {
	mu      sync.Mutex
	jobs    map[string]map[string]any
	refuses string // part of the id of a job that is not taken
}

func (d *dashboard) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch id := strings.TrimPrefix(req.URL.Path, "/api/jobs/"); {
	case req.URL.Path == "/api/version":
		answer(map[string]any{"ray_version": "2.60.0"})
	case req.URL.Path == "/nodes":
		_, _ = io.WriteString(w, `{"data": {"summary": [{"raylet": {"state": "ALIVE", "isHeadNode": true, "resourcesTotal": {"GPU": 8, "CPU": 8}}}]}}`)
	case req.Method == http.MethodPost && id == "":
		var job map[string]any
		if err := json.NewDecoder(req.Body).Decode(&job); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id := job["submission_id"].(string)
		if d.refuses != "" && strings.Contains(id, d.refuses) {
			http.Error(w, "ValueError: no", http.StatusBadRequest)
			return
		}
		d.jobs[id] = job
		answer(map[string]any{"submission_id": id})
	case d.jobs[id] != nil:
		code := 0
		_, _ = fmt.Sscanf(id, "exit%d-", &code)
		job := map[string]any{"status": "SUCCEEDED", "driver_exit_code": code}
		if code != 0 {
			job["status"] = "FAILED"
		}
		answer(job)
	default:
		http.NotFound(w, req)
	}
}

// TestRaySweep launches several experiments at once.
func TestRaySweep(t *testing.T) {
	const text = `
experiments: {
	for n in [3, 137, 0] {"exit\(n)": {
		target: "ray"
		relax: {
			root:       "/opt/relax"
			entrypoint: "train.py"
			colocate:   true
			resource: {actor: [1, GPUS], rollout: [1, 2], genrm: [1, GPUS - 2]}
			genrm_model_path: "/models/judge"
			genrm_num_gpus:   GPUS - 2
			rm_type:          "dapo-genrm"
			reward_key:       "score"
			args: hf_checkpoint: "/models/policy"
		}
	}}
}
`
	for _, c := range []struct {
		name    string
		gpus    string
		refuses string
		args    []string
		code    int
		says    []string
		jobs    int
	}{
		{"no wait", "4", "", nil, 0, []string{"job exit0-", "job exit3-", "job exit137-", "the 3 runs need 12 GPUs together, and the Ray cluster has 8"}, 3},
		{"wait", "4", "", []string{"--wait"}, 137, []string{"succeeded", "failed, exit status 3: the driver ended with status 3", "exit status 137"}, 3},
		{"one", "4", "", []string{"--name", "exit3"}, 0, []string{"job exit3-"}, 1},
		{"json", "4", "", []string{"-o", "json"}, 0, []string{`"run_id": "exit0-`, "]"}, 3},
		{"all are too large", "16", "", nil, 3, []string{"GRM8320"}, 0},
		{"one is not taken", "4", "exit137", nil, 3, []string{"1 of 3 were submitted; exit137 was not"}, 1},
		{"follow", "4", "", []string{"--follow"}, 2, []string{"choose by --name"}, 0},
		{"of kuberay", "4", "", []string{"--dry-run=server"}, 2, []string{"belong to target kuberay"}, 0},
		{"dry run", "4", "", []string{"--dry-run"}, 0, []string{`"entrypoint": "exec`, "]"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &dashboard{jobs: map[string]map[string]any{}, refuses: c.refuses}
			s := httptest.NewServer(d)
			defer s.Close()
			dir := t.TempDir()
			file := filepath.Join(dir, "sweep.cue")
			if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "GPUS", c.gpus)), 0o600); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			code := Main(append([]string{"launch", file, "--address", s.URL}, c.args...), strings.NewReader(""), &out, &out, []string{"GENRM_RUNS=" + filepath.Join(dir, "runs")})
			if code != c.code || len(d.jobs) != c.jobs {
				t.Errorf("exit status %d, want %d; %d jobs, want %d\n%s", code, c.code, len(d.jobs), c.jobs, out.String())
			}
			for _, text := range c.says {
				if !strings.Contains(out.String(), text) {
					t.Errorf("no %q in\n%s", text, out.String())
				}
			}
			runs, _ := os.ReadDir(filepath.Join(dir, "runs"))
			if len(runs) != c.jobs {
				t.Errorf("%d runs", len(runs))
			}
		})
	}
}

// TestRayStopJSON wants nothing but JSON on stdout, of a run that has ended too.
func TestRayStopJSON(t *testing.T) {
	s := httptest.NewServer(&dashboard{jobs: map[string]map[string]any{}})
	defer s.Close()
	dir := t.TempDir()
	env := []string{"GENRM_RUNS=" + filepath.Join(dir, "runs")}
	file := filepath.Join(dir, "a.cue")
	if err := os.WriteFile(file, []byte(`name: "exit3"
target: "ray"
relax: {
	root: "/opt/relax", entrypoint: "train.py", colocate: true
	resource: {actor: [1, 4], rollout: [1, 2], genrm: [1, 2]}
	genrm_model_path: "/models/judge", genrm_num_gpus: 2, rm_type: "dapo-genrm", reward_key: "score"
	args: hf_checkpoint: "/models/policy"
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"launch", file, "--address", s.URL, "-o", "json"}, {"stop", "-o", "json"}, {"status", "-o", "json"}, {"list", "-o", "json"}} {
		var out, errs bytes.Buffer
		code := Main(args, strings.NewReader(""), &out, &errs, env)
		if code != 0 || !json.Valid(out.Bytes()) {
			t.Errorf("%v: exit status %d\n%s%s", args, code, out.String(), errs.String())
		}
	}
}

// TestLastLines writes texts in pieces of each size.
func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\n", 5, "a\n"}, {"", 3, ""}, {"a\nb\n", 0, ""}, {"\n\n\n", 2, "\n\n"},
	} {
		for size := 1; size <= len(c.text)+1; size++ {
			l := &lastLines{most: c.most}
			for rest := c.text; rest != ""; rest = rest[min(size, len(rest)):] {
				if _, err := l.Write([]byte(rest[:min(size, len(rest))])); err != nil {
					t.Fatal(err)
				}
			}
			if l.text() != c.want || l.n != len(c.text) {
				t.Errorf("%q by %d: %q of %d", c.text, size, l.text(), l.n)
			}
		}
	}
	l := &lastLines{most: 3}
	for i := range 3_000_000 {
		fmt.Fprintf(l, "%d\n", i)
		if cap(l.kept) > 8*lineWorth {
			t.Fatalf("%d bytes are kept of %d", cap(l.kept), l.n)
		}
	}
	if want := "2999997\n2999998\n2999999\n"; l.text() != want {
		t.Errorf("%q", l.text())
	}
}

// stopping is a dashboard whose jobs run until they are asked to stop, and the
// first ones until as many as are stopped at once have been asked.
type stopping struct {
	dashboard
	asked   map[string]bool
	ended   map[string]bool
	most    int    // that were asked and had not ended
	refuses string // part of the id of a job that is not stopped
	at      func() // each request to stop
	never   bool   // nothing ends
}

func (d *stopping) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	id, stop := strings.CutSuffix(strings.TrimPrefix(req.URL.Path, "/api/jobs/"), "/stop")
	d.mu.Lock()
	if d.jobs[id] == nil || req.Method == http.MethodPost && !stop {
		d.mu.Unlock()
		d.dashboard.ServeHTTP(w, req)
		return
	}
	defer d.mu.Unlock()
	switch {
	case stop && d.refuses != "" && strings.Contains(id, d.refuses):
		http.Error(w, "no", http.StatusForbidden)
	case stop:
		d.asked[id] = true
		d.most = max(d.most, len(d.asked)-len(d.ended))
		_, _ = io.WriteString(w, `{"stopped": true}`)
		if d.at != nil {
			d.at()
		}
	case d.asked[id] && len(d.asked) >= stopsAtOnce-1 && !d.never: // one of them is refused
		d.ended[id] = true
		_, _ = io.WriteString(w, `{"status": "STOPPED"}`)
	default:
		_, _ = io.WriteString(w, `{"status": "RUNNING"}`)
	}
}

// launchMany submits jobs n0 to n9, and returns the environment that has their
// runs.
func launchMany(t *testing.T, address string) []string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "many.cue")
	if err := os.WriteFile(file, []byte(`experiments: {
	for n in [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] {"n\(n)": {
		target: "ray"
		relax: {
			root: "/opt/relax", entrypoint: "train.py", colocate: true
			resource: {actor: [1, 4], rollout: [1, 2], genrm: [1, 2]}
			genrm_model_path: "/models/judge", genrm_num_gpus: 2, rm_type: "dapo-genrm", reward_key: "score"
			args: hf_checkpoint: "/models/policy"
		}
	}}
}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	env := []string{"GENRM_RUNS=" + filepath.Join(dir, "runs")}
	var out bytes.Buffer
	if code := Main([]string{"launch", file, "--address", address}, strings.NewReader(""), &out, &out, env); code != 0 {
		t.Fatalf("exit status %d\n%s", code, out.String())
	}
	return env
}

// TestStopAll ends ten jobs, of which one can't be stopped: the others end side
// by side, and what is said has the order of the list.
func TestStopAll(t *testing.T) {
	d := &stopping{dashboard: dashboard{jobs: map[string]map[string]any{}}, asked: map[string]bool{}, ended: map[string]bool{}, refuses: "n4-"}
	s := httptest.NewServer(d)
	defer s.Close()
	env := launchMany(t, s.URL)
	var out, errs bytes.Buffer
	code := Main([]string{"stop", "--all"}, strings.NewReader(""), &out, &errs, env)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if code != 3 || len(lines) != 9 || !strings.HasPrefix(errs.String(), "genrm: n4-") || strings.Count(errs.String(), "\n") != 1 {
		t.Fatalf("exit status %d\n%s%s", code, out.String(), errs.String())
	}
	for i, n := range []int{9, 8, 7, 6, 5, 3, 2, 1, 0} {
		if !strings.HasPrefix(lines[i], fmt.Sprintf("n%d-", n)) || !strings.HasSuffix(lines[i], " has ended: stopped, exit status 143") {
			t.Errorf("line %d: %s", i, lines[i])
		}
	}
	if d.most > stopsAtOnce {
		t.Errorf("%d are stopped at once", d.most)
	}
	out.Reset()
	if code = Main([]string{"stop", "--all", "-o", "json"}, strings.NewReader(""), &out, io.Discard, env); code != 3 || strings.Count(out.String(), `"run_id"`) != 1 {
		t.Errorf("of what is left: exit status %d\n%s", code, out.String())
	}
}

// TestStopAllInterrupted: a signal ends it, whatever is being waited for, and
// each run that may go on is told.
func TestStopAllInterrupted(t *testing.T) {
	d := &stopping{dashboard: dashboard{jobs: map[string]map[string]any{}}, asked: map[string]bool{}, ended: map[string]bool{}, never: true}
	s := httptest.NewServer(d)
	defer s.Close()
	env := launchMany(t, s.URL)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	d.at = func() {
		if len(d.asked) == stopsAtOnce {
			cancel()
		}
	}
	var out, errs bytes.Buffer
	code := run(&app{ctx: ctx, stdout: &out, stderr: &errs, env: env}, []string{"stop", "--all"})
	if code != 3 || out.Len() > 0 || strings.Count(errs.String(), "was not seen to end\n") != stopsAtOnce {
		t.Errorf("exit status %d\n%s%s", code, out.String(), errs.String())
	}
}
