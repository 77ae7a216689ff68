package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"genrm.dev/genrm/launchers/rundir"
)

// TestRemote looks runs up on a stand-in of a dashboard, from a folder of runs
// that has none.
func TestRemote(t *testing.T) {
	me := rundir.UserName()
	job := func(run, user, created, status string) string {
		return fmt.Sprintf(`{"submission_id": "%[1]s-1", "status": %[4]q, "start_time": 1000, "end_time": 2000, "driver_exit_code": 0,
			"metadata": {"genrm_run_id": %[1]q, "genrm_user": %[2]q, "genrm_host": "there", "genrm_name": "n", "genrm_workload": "relax", "genrm_created": %[3]q, "team": "x"}}`, run, user, created, status)
	}
	jobs := map[string]string{
		"mine-1":   job("mine-1", me, "2026-01-01T00:00:00.5Z", "SUCCEEDED"),
		"mine-2":   job("mine-2", me, "2026-01-03T00:00:00Z", "SUCCEEDED"),
		"theirs-1": job("theirs-1", "somebody", "2026-01-04T00:00:00Z", "SUCCEEDED"),
		"old":      `{"submission_id": "raysubmit_x", "status": "SUCCEEDED", "metadata": {}}`,
		"evil":     job("../evil", me, "2026-01-09T00:00:00Z", "SUCCEEDED"),
		"driver":   `{"submission_id": null, "status": "RUNNING", "metadata": null}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch id := strings.TrimSuffix(strings.TrimPrefix(req.URL.Path, "/api/jobs/"), "-1"); {
		case strings.HasPrefix(req.URL.Path, "/api/serve/"):
			_, _ = io.WriteString(w, `{"applications": {}}`)
		case req.URL.Path == "/api/jobs/":
			_, _ = io.WriteString(w, "["+jobs["theirs-1"]+","+jobs["mine-2"]+","+jobs["mine-1"]+","+jobs["old"]+","+jobs["evil"]+","+jobs["driver"]+"]")
		case strings.HasSuffix(req.URL.Path, "/logs"):
			_, _ = io.WriteString(w, `{"logs": "printed\n"}`)
		case jobs[id] != "":
			_, _ = io.WriteString(w, jobs[id])
		default:
			http.NotFound(w, req)
		}
	}))
	defer s.Close()
	empty := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.WriteString(w, map[bool]string{true: "[]", false: `{"applications": {}}`}[req.URL.Path == "/api/jobs/"])
	}))
	defer empty.Close()
	const gone = "http://127.0.0.1:1"
	for _, c := range []struct {
		args []string
		env  string
		code int
		says string
	}{
		{[]string{"status", "mine-1", "--address", s.URL + "/"}, "", 0, "mine-1-1, SUCCEEDED"},
		{[]string{"status", "mine-1"}, "RAY_ADDRESS=" + s.URL, 0, "succeeded"},
		{[]string{"status", "mine-1"}, "", 1, "no run mine-1 in "},
		{[]string{"status", "--address", s.URL}, "", 0, "mine-2\n"}, // the newest of mine
		{[]string{"status", "@last"}, "RAY_API_SERVER_ADDRESS=" + s.URL, 0, "mine-2\n"},
		{[]string{"status", "theirs-1", "--address", s.URL}, "", 0, "note: theirs-1 is a run of somebody@there"},
		{[]string{"status", "mine", "--address", s.URL}, "", 1, "mine is the beginning of 2 runs: mine-1 of " + me + "@there, mine-2"},
		{[]string{"status", "theirs", "--address", s.URL}, "", 0, "theirs-1\n"},
		{[]string{"status", "mine-3", "--address", s.URL}, "", 1, "did you mean"},
		{[]string{"status", "raysubmit_x", "--address", s.URL}, "", 1, "raysubmit_x on " + s.URL + " is not of genrm"},
		{[]string{"status", "../evil", "--address", s.URL}, "", 1, "no run ../evil"},
		{[]string{"status", "--address", empty.URL}, "", 1, "no run in " + empty.URL},
		{[]string{"status", "mine-1", "--address", gone}, "", 3, "connection refused"},
		{[]string{"status", "mine-1"}, "RAY_ADDRESS=" + gone, 3, "no run mine-1 in "},
		{[]string{"status", "mine-1", "--address", "head:6379"}, "", 2, "no URL of a dashboard"},
		{[]string{"logs", "mine-1", "--address", s.URL}, "", 0, "printed"},
		{[]string{"stop", "mine-1", "--address", s.URL}, "", 0, "mine-1 has ended: succeeded"},
		{[]string{"stop", "--all", "--address", s.URL}, "", 2, "one by one"},
		{[]string{"endpoint", "mine-1", "--address", s.URL}, "", 1, "is a relax run"},
		{[]string{"list", "--address", s.URL}, "", 0, "somebody@there"},
		{[]string{"list", "--address", s.URL, "-o", "json"}, "", 0, `"user": "somebody"`},
		{[]string{"list", "--address", empty.URL, "-o", "json"}, "", 0, "[]"},
		{[]string{"list", "--address", gone}, "", 3, "connection refused"},
	} {
		t.Run(strings.Join(c.args, " ")+" "+c.env, func(t *testing.T) {
			runs := t.TempDir()
			var out bytes.Buffer
			code := Main(c.args, strings.NewReader(""), &out, &out, []string{"GENRM_RUNS=" + runs, c.env})
			if code != c.code || !strings.Contains(out.String(), c.says) {
				t.Errorf("exit status %d, want %d with %q\n%s", code, c.code, c.says, out.String())
			}
			entries, err := os.ReadDir(runs)
			if err != nil {
				t.Fatal(err)
			}
			if want := c.code == 0 && c.args[0] != "list" || c.args[0] == "endpoint"; (len(entries) == 1) != want {
				t.Errorf("%d folders of runs", len(entries))
			}
			if c.code == 0 && c.args[0] == "status" { // known from now on, wherever the cluster is
				if code := Main([]string{"status"}, strings.NewReader(""), &out, &out, []string{"GENRM_RUNS=" + runs}); code != 0 {
					t.Errorf("again: exit status %d\n%s", code, out.String())
				}
			}
		})
	}
}
