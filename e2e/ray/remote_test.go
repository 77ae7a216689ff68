//go:build e2e

package ray

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRemote looks at runs from a machine that did not launch them: one with
// another folder of runs.
func TestRemote(t *testing.T) {
	t.Parallel()
	here := newRig(t, "print('said by the driver', flush=True)\ntime.sleep(3600)")
	here.ends(0, nil, "launch", here.relax(2, ""))
	here.recorded()
	id := here.status().RunID
	there := newRig(t, "")
	address := there.address
	there.address = "" // no variable names the cluster
	there.ends(1, []string{"no run " + id}, "status", id)
	there.ends(0, []string{id, "ready", "@"}, "list", "--address", address)
	if n := there.folders(); n != 0 {
		t.Errorf("list made %d folders", n)
	}
	there.ends(0, []string{"relax on ray", id + "-1, RUNNING"}, "status", id, "--address", address)
	there.ends(0, []string{"said by the driver"}, "logs", id) // it is known from now on
	there.ends(1, []string{"is a relax run"}, "endpoint", id)
	there.ends(0, []string{"has ended: stopped"}, "stop", id[:len(id)-1])
	here.ends(0, []string{"stopped"}, "status")

	third := newRig(t, "")
	third.ends(0, []string{"said by the driver"}, "logs", "-f", id) // RAY_ADDRESS names it
	third.ends(1, []string{"no run nothing-like-it"}, "status", "nothing-like-it")
}

// TestTwoUsers launches the same experiment as two users at the same time.
func TestTwoUsers(t *testing.T) {
	t.Parallel()
	first, second := newRig(t, "while not (here / 'go').exists(): time.sleep(0.1)"), newRig(t, "while not (here / 'go').exists(): time.sleep(0.1)")
	// The second may look into no folder of the test.
	dir, err := os.MkdirTemp("/tmp", "genrm-user.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary, err := os.ReadFile(second.genrm)
	if err != nil {
		t.Fatal(err)
	}
	second.genrm = filepath.Join(dir, "genrm")
	text := second.relax(2, "")
	data, err := os.ReadFile(text)
	if err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(dir, "experiment.cue")
	const nobody = 65534
	for _, err := range []error{os.WriteFile(second.genrm, binary, 0o755), os.WriteFile(mine, data, 0o644), os.Chown(dir, nobody, nobody), os.Chmod(dir, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(args ...string) string {
		t.Helper()
		cmd := second.command(args...)
		cmd.Dir = dir
		cmd.Env = append(cmd.Env, "HOME="+dir, "GENRM_RUNS="+dir+"/runs")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%q as nobody: %v", args, err)
		}
		return string(out)
	}
	done := make(chan string)
	go func() { done <- as("launch", mine) }()
	first.ends(0, nil, "launch", first.relax(2, ""))
	if out := <-done; !strings.Contains(out, "run training-") {
		t.Fatal(out)
	}
	first.recorded()
	second.recorded()
	a, b := first.jobs(first.mark()), second.jobs(second.mark())
	if len(a) != 1 || len(b) != 1 || a[0] == b[0] {
		t.Fatalf("the jobs are %q and %q", a, b)
	}
	runOf := func(job string) string { return strings.TrimSuffix(job, "-1") }
	elsewhere := newRig(t, "")
	elsewhere.ends(0, []string{"a run of nobody@", "ready"}, "status", runOf(b[0]), "--address", first.address)
	out := elsewhere.ends(0, []string{runOf(a[0]), runOf(b[0]), "nobody@"}, "list", "--address", first.address)
	if strings.Count(out, "nobody@") != 1 {
		t.Errorf("%s", out)
	}
	if out := as("status", "--address", first.address); !strings.HasPrefix(out, runOf(b[0])) { // the newest of one's own
		t.Errorf("the last run of nobody is %s", out)
	}
	first.file("go", "")
	first.until("succeeded")
	if out := as("stop"); !strings.Contains(out, "has ended: stopped") {
		t.Error(out)
	}
}
