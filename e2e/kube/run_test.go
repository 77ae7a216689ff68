//go:build e2e

package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// driver stands for train.py: it records what it was given beside the file end,
// which is Python that says what it does then.
const driver = `import json, os, pathlib, sys, time
here = pathlib.Path(__file__).parent.parent
(here / "record.new").write_text(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd()}))
(here / "record.new").rename(here / "record")
exec((here / "end").read_text())
`

// hostile is a word that no shell may touch.
const hostile = "it's $HOME \"größe\" `id` $(id) \\ %s; * # &"

// running writes a training run whose driver is found in the test's folder, as if
// that were of the image.
func (r *rig) running(end, more string) string {
	r.t.Helper()
	r.file("relax/train.py", driver)
	r.file("end", end)
	_ = os.Remove(filepath.Join(r.dir, "record"))
	text := strings.NewReplacer("MORE", more, `"/opt/relax"`, quoted(filepath.Join(r.dir, "relax")), `hf_checkpoint: "/models/policy"`, `{hf_checkpoint: "/models/policy", wandb_project: `+quoted(hostile)+`}`)
	return r.file("running.cue", text.Replace(training))
}

// quoted spells a text in CUE.
func quoted(s string) string {
	text, _ := json.Marshal(s) // a string always can
	return string(text)
}

// TestRun: the driver runs on a real Ray, which the operator and the submitter
// have found by themselves; what it prints and how it ends are those of the launch.
func TestRun(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "run", 2)
	r := newRig(t, "")
	for _, c := range []struct {
		name, end, more string
		code            int
		state           string
		texts           []string
	}{
		{"succeeds", `print("größe of the judge\nlast line")`, "", 0, "succeeded", []string{"größe of the judge\nlast line\n"}},
		{"fails", `print("before the end"); sys.exit(3)`, "", 3, "failed", []string{"before the end\n", "the driver ended with status 3"}},
		{"killed", `print("soon", flush=True); os.kill(os.getpid(), 9)`, "", 137, "failed", []string{"soon\n", "signal 9"}},
		{"by the operator", `print("without a submitter")`, `submissionMode: "HTTPMode", deadline: 600`, 0, "succeeded", []string{"without a submitter\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.t = t
			r.follow(r.running(c.end, c.more)).ends(c.code, c.texts...)
			st := r.status()
			if st.State != c.state || st.ExitCode == nil || *st.ExitCode != c.code {
				t.Errorf("%+v", st)
			}
			var rec struct {
				Argv []string
				Cwd  string
			}
			text, err := os.ReadFile(filepath.Join(r.dir, "record"))
			if err == nil {
				err = json.Unmarshal(text, &rec)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(rec.Argv, hostile) && !slices.Contains(rec.Argv, "--wandb-project="+hostile) {
				t.Errorf("the driver was given %q", rec.Argv)
			}
			if rec.Cwd != filepath.Join(r.dir, "relax") {
				t.Errorf("it ran in %q", rec.Cwd)
			}
			said, _, _ := strings.Cut(strings.TrimPrefix(c.end, `print("`), `"`)
			said, _, _ = strings.Cut(said, `\n`)
			r.ends(0, []string{said + "\n"}, "logs")
			r.ends(0, nil, "stop")
			if w := r.warnings(); len(w) > 0 && c.code == 0 {
				t.Errorf("%q", w)
			}
			r.wait("the end", func() bool { return len(r.objects()) == 0 })
		})
	}
	r.t = t
}

// sweep is several training runs, whose drivers end with the status that their name
// says. It is from Ray that they know it: the pods of the rig share their files.
func (r *rig) sweep(more string, codes ...int) string {
	r.t.Helper()
	r.file("relax/train.py", `import os, re, sys
code = int(re.search(r"exit(\d+)-", os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])[1])
print("driver of", code)
sys.exit(code)
`)
	one := strings.NewReplacer("name:   \"training\"\n", "", "MORE", more, `"/opt/relax"`, quoted(filepath.Join(r.dir, "relax"))).Replace(training)
	text := ""
	for _, code := range codes {
		text += fmt.Sprintf("experiments: exit%d: {\n%s}\n", code, one)
	}
	return r.file("sweep.cue", text)
}

// TestSweep: several experiments are a RayJob each, followed to their ends.
func TestSweep(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "run", 2)
	r := newRig(t, "")
	file := r.sweep("", 3, 0)
	r.launch(0, []string{"the API server would take configmap/exit3-", " and rayjob/exit0-"}, file, "--dry-run=server")
	all := r.launch(0, nil, file, "--dry-run")
	if err := os.WriteFile(filepath.Join(r.dir, "all.yaml"), []byte(all), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"rayjob.ray.io/exit3-", "rayjob.ray.io/exit0-", "configmap/exit0-"} {
		if out := kubectl(t, "apply", "--server-side", "--dry-run=server", "-f", filepath.Join(r.dir, "all.yaml")); !strings.Contains(out, kind) {
			t.Errorf("no %s in\n%s", kind, out)
		}
	}
	if left := r.objects(); len(left) > 0 {
		t.Errorf("a dry run has made %q", left)
	}
	f := r.follow(file)
	f.ends(3, "  succeeded\n", "  failed, exit status 3: the driver ended with status 3\n")
	for _, code := range []string{"0", "3"} {
		r.ends(0, []string{"driver of " + code + "\n"}, "logs", r.last("exit"+code))
	}
	for _, code := range []string{"0", "3"} {
		r.ends(0, []string{"was still there, and is removed"}, "stop", r.last("exit"+code))
	}
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// last is the newest run of an experiment.
func (r *rig) last(name string) string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir, "runs", name+"-*"))
	if err != nil || len(found) == 0 {
		r.t.Fatalf("no run of %s: %v", name, err)
	}
	return filepath.Base(slices.Max(found))
}

// TestStopRunning: a run that runs is found, followed and stopped by another
// machine, whose driver is asked to end.
func TestStopRunning(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "run", 2)
	r := newRig(t, "")
	f := r.follow(r.running(`import signal
def end(*_):
    (here / "ended").write_text("")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
for i in range(600):
    print("step", i, flush=True)
    time.sleep(1)`, ""))
	f.says("running", "step 3\n")
	id := r.status().RunID
	other := newRig(t, r.namespace)
	other.env = []string{"USER=grace"}
	where := []string{"--namespace", r.namespace}
	other.ends(0, []string{id, "relax", "ready"}, append([]string{"list"}, where...)...)
	tail := other.start(append([]string{"logs", id, "-f", "-n", "1"}, where...)...)
	tail.says("step 6\n")
	other.ends(0, []string{"step 0\n", "step 3\n"}, append([]string{"logs", id, "--lines=-1"}, where...)...)
	other.ends(0, []string{"has ended: stopped"}, append([]string{"stop", id}, where...)...)
	f.ends(3, "unknown", "is gone")
	tail.ends(0)
	if out := tail.out.String(); strings.Contains(out, "step 0\n") || strings.Count(out, "step 6\n") != 1 {
		t.Errorf("the last line, and what came:\n%s", out)
	}
	lines := f.out.String()
	for i := range 4 {
		if n := strings.Count(lines, fmt.Sprintf("step %d\n", i)); n != 1 {
			t.Errorf("step %d was shown %d times", i, n)
		}
	}
	r.wait("the driver's end", func() bool {
		_, err := os.Stat(filepath.Join(r.dir, "ended"))
		return err == nil
	})
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestServed: judges become ready, answer, and are changed in place; an
// application that fails is told by its own words.
func TestServed(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "run", 2)
	r := newRig(t, "")
	file := r.file("judges.cue", judges)
	r.follow(file).ends(0, "ready in", "judges-serve-svc."+r.namespace+".svc:8000/judges")
	if st := r.status(); st.State != "ready" {
		t.Errorf("%+v", st)
	}
	uid, ray := r.field("rayservice/judges", ".metadata.uid"), r.field("rayservice/judges", ".status.activeServiceStatus.rayClusterName")
	models := kubectl(t, "get", "--raw", "/api/v1/namespaces/"+r.namespace+"/services/judges-serve-svc:8000/proxy/judges/v1/models")
	if !strings.Contains(models, `"quality"`) {
		t.Errorf("the judges answer %s", models)
	}
	r.file("judges.cue", strings.ReplaceAll(judges, `"/models/judge"`, `"/models/raises"`))
	r.follow(file, "--replace").ends(3, "DEPLOY_FAILED", "the weights of quality are not there")
	if now := r.field("rayservice/judges", ".status.activeServiceStatus.rayClusterName"); now != ray || r.field("rayservice/judges", ".metadata.uid") != uid {
		t.Errorf("other weights want another cluster: %s, and before %s", now, ray)
	}
	r.file("judges.cue", judges)
	r.follow(file, "--replace").ends(0, "ready in")
	r.ends(0, []string{"has ended: stopped"}, "stop")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// prints appends lines to the logs of pods.
func (r *rig) prints(glob, text string) {
	r.t.Helper()
	cmd := exec.Command("./rig", "log", r.namespace+"/"+glob)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
}

// printsAway is prints without the API server, for a head.
func (r *rig) printsAway(pod, line string) {
	r.t.Helper()
	log, err := os.OpenFile(filepath.Join(os.Getenv("GENRM_KUBE_RIG"), "logs", r.namespace, pod, "ray-head"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = log.WriteString(time.Now().UTC().Format("2006-01-02T15:04:05.000000Z") + " " + line)
		err = errors.Join(err, log.Close())
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// pod is the name of the one pod of which the name has a text, once there is one
// besides others.
func (r *rig) pod(text string, others ...string) (name string) {
	r.t.Helper()
	r.wait("a pod of "+text, func() bool {
		for _, line := range strings.Fields(kubectl(r.t, "-n", r.namespace, "get", "pods", "-o", `jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.name}{"\n"}{end}`)) {
			if strings.Contains(line, text) && !slices.Contains(others, line) {
				name = line
				return true
			}
		}
		return false
	})
	return name
}

// TestServedLogs: what all pods of served judges print, each line once, while the
// API server is away, a pod is replaced, and the run ends.
func TestServedLogs(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "run", 2)
	r := newRig(t, "")
	r.follow(r.file("judges.cue", judges)).ends(0, "ready in")
	head, worker := r.pod("head"), r.pod("worker")
	r.prints(head, "head 1\nhead 2\nhead 3\n")
	r.prints(worker, "worker 1\n")
	if out := r.ends(0, []string{head + " ", " | head 2\n", " | head 3\n", worker + " | worker 1\n"}, "logs", "-n", "2"); strings.Contains(out, "head 1") {
		t.Errorf("more than two lines:\n%s", out)
	}
	r.ends(0, []string{"worker 1\n"}, "logs", "--process", worker)
	r.ends(1, []string{"did you mean", worker}, "logs", "--process", worker+"x")
	r.ends(1, []string{"without --process all its pods"}, "logs", "--process", "driver")
	r.ends(1, []string{"pods, not nodes"}, "logs", "--node", "0")
	f := r.start("logs", "-f", "-n", "1")
	f.says("head 3\n", "worker 1\n")
	ctl(t, "apiserver", "stop")
	r.printsAway(head, "head 4\n")
	f.says("Kubernetes does not answer")
	ctl(t, "apiserver", "start")
	f.says("Kubernetes answers again", "head 4\n")
	kubectl(t, "-n", r.namespace, "delete", "pod", worker)
	next := r.pod("worker", worker)
	r.prints(next, "worker of the other pod\n")
	f.says(next + " | worker of the other pod\n")
	r.ends(0, []string{"has ended: stopped"}, "stop")
	f.ends(0)
	for _, line := range []string{"head 1", "head 2", "head 3", "head 4", "worker 1", "worker of the other pod"} {
		want := 1
		if line < "head 3" {
			want = 0
		}
		if n := strings.Count(f.out.String(), line+"\n"); n != want {
			t.Errorf("%q was shown %d times\n%s", line, n, f.out)
		}
	}
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestLauncher: the permissions that rbac.yaml gives are enough for all of it, and
// those of a reader for looking.
func TestLauncher(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "ml")
	file := r.training("")
	out := r.launch(0, nil, file, "--context", "launcher")
	for _, code := range []string{"GRM8424", "GRM8428", "GRM8431"} {
		if strings.Contains(out, code) {
			t.Errorf("%s in\n%s", code, out)
		}
	}
	r.reason("pending", "its Ray cluster starts")
	reader := newRig(t, "ml")
	reader.ends(0, []string{r.status().RunID}, "list", "--context", "reader", "--namespace", "ml")
	reader.launch(3, []string{"GRM8424", "create rayjobs.ray.io"}, file, "--context", "reader")
	reader.ends(3, []string{"delete"}, "stop", r.status().RunID, "--context", "reader", "--namespace", "ml")
	r.ends(0, []string{"has ended: stopped"}, "stop")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestNoListener: nobody listens where the API server was.
func TestNoListener(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	r.launch(0, nil, r.training(""))
	ctl(t, "apiserver", "stop")
	func() {
		defer ctl(t, "apiserver", "start")
		r.launch(3, []string{"genrm: the API server"}, r.training(""))
		r.ends(3, []string{"genrm: the API server"}, "status")
		r.ends(0, []string{"training-"}, "list")
	}()
	r.ends(0, []string{"has ended: stopped"}, "stop")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}
