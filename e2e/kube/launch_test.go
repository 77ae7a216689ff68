//go:build e2e

package kube

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// training is a relax run on one pod of eight GPUs.
const training = `name:   "training"
target: "kuberay"
kuberay: {
	image:       "registry.example/relax-ray:2.60.0"
	head_memory: "16Gi"
	MORE
}
relax: {
	root:       "/opt/relax"
	entrypoint: "train.py"
	colocate:   true
	resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
	genrm_model_path: "/models/judge"
	rm_type:          "dapo-genrm"
	reward_key:       "score"
	args: hf_checkpoint: "/models/policy"
}
cluster: gpus_per_node: 8
`

const judges = `name:   "judges"
target: "kuberay"
kuberay: image: "rayproject/ray-llm:2.60.0-py312-cu129"
serve: instances: quality: {engine: "vllm", model_path: "/models/judge", num_gpus: 2}
cluster: gpus_per_node: 8
`

func (r *rig) training(more string) string {
	return r.file("training.cue", strings.Replace(training, "MORE", more, 1))
}

// following is a command that follows a run.
type following struct {
	r    *rig
	out  *suite.Buffer
	done chan int
	kill func(os.Signal)
}

func (r *rig) follow(args ...string) *following {
	r.t.Helper()
	return r.start(append([]string{"launch", "--target", "kuberay", "--namespace", r.namespace, "--wait"}, args...)...)
}

// start runs a command beside the test.
func (r *rig) start(args ...string) *following {
	r.t.Helper()
	f := &following{r: r, out: &suite.Buffer{}, done: make(chan int, 1)}
	cmd := r.command(args...)
	cmd.Stdout, cmd.Stderr = f.out, f.out
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	f.kill = func(s os.Signal) { _ = cmd.Process.Signal(s) }
	r.t.Cleanup(func() { f.kill(syscall.SIGKILL) })
	go func() {
		_ = cmd.Wait()
		f.done <- cmd.ProcessState.ExitCode()
	}()
	return f
}

// says waits for texts of what the command prints.
func (f *following) says(texts ...string) {
	f.r.t.Helper()
	for _, text := range texts {
		for start := time.Now(); !strings.Contains(f.out.String(), text); time.Sleep(100 * time.Millisecond) {
			if time.Since(start) > limit {
				f.r.t.Fatalf("no %q in\n%s", text, f.out)
			}
		}
	}
}

// ends waits for the exit status.
func (f *following) ends(want int, texts ...string) {
	f.r.t.Helper()
	select {
	case got := <-f.done:
		if got != want {
			f.r.t.Errorf("exit status %d, want %d\n%s", got, want, f.out)
		}
	case <-time.After(limit):
		f.r.t.Fatalf("it does not end:\n%s", f.out)
	}
	for _, text := range texts {
		if !strings.Contains(f.out.String(), text) {
			f.r.t.Errorf("no %q in\n%s", text, f.out)
		}
	}
}

// TestPending: why pods do not start is shown once each, and Ctrl-C leaves the
// run alone.
func TestPending(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	f := r.follow(r.training(""))
	f.says("its Ray cluster starts")
	glob := r.namespace + "/training-*"
	ctl(t, "pods", "image", glob+"head*", "no such host")
	f.says("ImagePullBackOff", "no such host")
	ctl(t, "pods", "run", glob+"head*")
	ctl(t, "pods", "oom", glob+"worker*")
	f.says("ray-worker: ended with status 137 (OOMKilled)")
	ctl(t, "pods", "run", glob+"worker*")
	f.says("its Ray cluster is up, and the job is being submitted")
	f.kill(os.Interrupt)
	f.ends(130, "goes on as rayjob/training-", "genrm stop training-")
	if n := strings.Count(f.out.String(), "its Ray cluster is up"); n != 1 {
		t.Errorf("said %d times:\n%s", n, f.out)
	}
	r.ends(0, []string{"has ended: stopped"}, "stop")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestUnschedulable: the scheduler's words are shown, the start-up deadline
// removes the run, and its last reason stays.
func TestUnschedulable(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 1)
	r := newRig(t, "")
	file := r.training("startup_deadline: 25")
	r.launch(0, nil, file) // takes the node
	r.wait("its pods", func() bool { return strings.Contains(ctl(t, "pods"), "worker") })
	f := r.follow(file)
	f.says("GRM8426", "Unschedulable: 0/1 nodes are available")
	f.ends(3, "not started within 25s: it is removed", "kuberay.startup_deadline", "Insufficient nvidia.com/gpu")
	if st := r.status(); st.State != "failed" || !strings.Contains(st.Reason, "Unschedulable") {
		t.Errorf("%+v", st)
	}
	r.ends(0, nil, "stop", "--all")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestAway: an API server that is away is told, and waited for; other commands
// say so, and list shows what is known.
func TestAway(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	f := r.follow(r.training(""))
	f.says("its Ray cluster starts")
	ctl(t, "apiserver", "hang")
	up := false
	defer func() {
		if !up {
			ctl(t, "apiserver", "go")
		}
	}()
	f.says("Kubernetes does not answer")
	r.ends(3, []string{"did not answer"}, "status")
	r.ends(0, []string{"training-", "pending"}, "list")
	r.ends(3, []string{"did not answer"}, "launch", "--target", "kuberay", r.training(""))
	ctl(t, "apiserver", "go")
	up = true
	f.says("Kubernetes answers again after")
	r.ends(0, nil, "stop")
	f.ends(143, "stopped by ")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestGone: an object that somebody deletes makes the run unknown, with what was
// seen last.
func TestGone(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	f := r.follow(r.training(""))
	f.says("its Ray cluster starts")
	kubectl(t, "-n", r.namespace, "delete", "rayjobs", "--all")
	f.ends(3, "unknown", "is gone: somebody deleted it", "last seen", "Initializing")
	r.ends(0, []string{"unknown"}, "stop")
}

// TestDeadline: KubeRay's own deadline is told as what it is.
func TestDeadline(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	r.follow(r.training("deadline: 8")).ends(3, "failed", "its deadline was over (kuberay.deadline), and KubeRay ended it")
	r.ends(0, []string{"was still there, and is removed"}, "stop")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestOperator: one that is away is told, for a launch and for stop.
func TestOperator(t *testing.T) {
	needs(t, "1.5.1", "", "hold", 64)
	r := newRig(t, "")
	f := r.follow(r.training(""))
	f.says("GRM8431", "the KubeRay operator has not taken it up")
	r.ends(0, nil, "stop") // nobody has put a finalizer on it
	f.ends(143)
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestChecks: what a launch would fail for is told before anything is made.
func TestChecks(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 1)
	r := newRig(t, "")
	file := r.training("")
	more := `service_account: "trainer"
	queue:              "team"
	secrets: HF_TOKEN: {name: "hf", key: "token"}
	volumes: [{name: "m", persistentVolumeClaim: claimName: "models"}]
	volume_mounts: [{name: "m", mountPath: "/models"}]`
	refs := r.file("refs.cue", strings.Replace(training, "MORE", more, 1))
	big := r.file("big.cue", strings.NewReplacer("MORE", "", "[1, 8]", "[1, 16]", "[1, 4]", "[1, 8]").Replace(training))
	for _, c := range []struct {
		texts []string
		args  []string
	}{
		{[]string{"GRM8420", "the context stranger"}, []string{file, "--context", "stranger"}},
		{[]string{"another authority"}, []string{file, "--context", "untrusted"}},
		{[]string{"GRM8424", "create rayjobs.ray.io, patch rayjobs.ray.io", "create configmaps", "What is lost without it"}, []string{file, "--context", "nobody"}},
		{[]string{`has no context "none": it has`, "launcher"}, []string{file, "--context", "none"}},
		{[]string{"GRM8425", "the run needs 16 GPUs, and the cluster has 8", "16 for actor"}, []string{big}},
		{[]string{"GRM8429", "no service account trainer", "no secret hf", "no persistent volume claim models", "GRM8430", "Kueue is not installed"}, []string{refs}},
	} {
		r.launch(3, c.texts, c.args...)
	}
	r.launch(0, []string{"GRM8425", "the API server would take"}, big, "--grows", "--dry-run=server")
	r.ends(3, []string{"GRM8421", "did you mean"}, "launch", "--namespace", "mll", file)
	kubectl(t, "-n", r.namespace, "create", "quota", "q", "--hard=count/rayjobs.ray.io=0")
	r.wait("the quota", func() bool { return strings.Contains(r.field("quota/q", ".status.hard"), "rayjobs") })
	r.launch(3, []string{"GRM8433", "exceeded quota"}, file)
	if runs, err := os.ReadDir(r.dir + "/runs"); err == nil && len(runs) > 0 {
		t.Errorf("folders are left: %v", runs)
	}
}

// TestSweepChecks: none of several experiments is applied when one is refused, what
// is the same of them is told once, and what was applied before a refusal is named.
func TestSweepChecks(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 1)
	r := newRig(t, "")
	once := func(out, text string) {
		t.Helper()
		if n := strings.Count(out, text); n != 1 {
			t.Errorf("%d times %q in\n%s", n, text, out)
		}
	}
	file := r.sweep("", 0, 3, 7)
	once(r.launch(0, nil, file, "--dry-run=server"), "the 3 runs need 24 GPUs together, and 8 of the cluster's are free now")
	once(r.ends(3, nil, "launch", "--target", "kuberay", "--namespace", "mll", file), "error[GRM8421]")
	once(r.launch(3, nil, file, "--context", "nobody"), "error[GRM8424]")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bad := r.file("bad.cue", string(text)+"experiments: exit3: kuberay: secrets: HF_TOKEN: {name: \"hf\", key: \"token\"}\n")
	r.launch(3, []string{"GRM8429", "no secret hf", "in experiment exit3"}, bad)
	if runs, err := os.ReadDir(r.dir + "/runs"); err == nil && len(runs) > 0 || len(r.objects()) > 0 {
		t.Errorf("left: %v, %q", runs, r.objects())
	}
	kubectl(t, "-n", r.namespace, "create", "quota", "q", "--hard=count/rayjobs.ray.io=2")
	r.wait("the quota", func() bool { return strings.Contains(r.field("quota/q", ".status.hard"), "rayjobs") })
	r.launch(3, []string{"GRM8433", "exceeded quota", "2 of 3 were applied; exit7 was not", "rayjob/exit0-", "rayjob/exit3-"}, file)
	r.ends(0, nil, "stop", "--all")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestSweepLate: the start-up deadline is each run's own, and Ctrl-C leaves all.
func TestSweepLate(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 1)
	r := newRig(t, "")
	f := r.follow(r.sweep("startup_deadline: 25", 0, 3))
	f.says("GRM8426", "Unschedulable: 0/1 nodes are available") // one of them has the node
	f.ends(3, "stopping: not started within 25s: it is removed", "kuberay.startup_deadline")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
	f = r.follow(r.sweep("", 0, 3))
	f.says("pending")
	f.kill(os.Interrupt)
	f.ends(130, "2 of 2 go on as RayJobs; `genrm stop RUN` ends one")
	r.ends(0, nil, "stop", "--all")
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}

// TestService: a failing application, another manager's change, and an object
// that is not genrm's any more.
func TestService(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	file := r.file("judges.cue", judges)
	r.launch(0, []string{"rayservice/judges in"}, file)
	first := r.status()
	r.ends(0, []string{"http://judges-serve-svc." + r.namespace + ".svc:8000/judges", "gateway --run"}, "endpoint")
	kubectl(t, "-n", r.namespace, "patch", "rayservice", "judges", "--type=merge", "--field-manager=kubectl-edit", "-p", `{"spec":{"rayClusterConfig":{"rayVersion":"2.59.0"}}}`)
	r.launch(3, []string{"GRM8434", "spec.rayClusterConfig.rayVersion", `"kubectl-edit"`}, file, "--replace")
	kubectl(t, "-n", r.namespace, "patch", "rayservice", "judges", "--type=merge", "--field-manager=kubectl-edit", "-p", `{"spec":{"rayClusterConfig":{"rayVersion":"2.60.0"}}}`)
	r.launch(0, nil, file, "--replace")
	second := r.status()
	if st := r.status(first.RunID); st.State != "stopped" || st.Reason != "replaced by "+second.RunID {
		t.Errorf("%+v", st)
	}
	r.ends(0, nil, "stop", first.RunID)
	if got := r.field("rayservice/judges", ".metadata.name"); got != "judges" {
		t.Errorf("stop of a run that was replaced has removed it: %q", got)
	}
	// From another machine: by the labels.
	other := newRig(t, r.namespace)
	other.ends(0, []string{second.RunID, "serve"}, "list", "--namespace", r.namespace)
	other.ends(0, []string{second.RunID}, "status", second.RunID, "--namespace", r.namespace)
	other.ends(0, []string{"has ended: stopped"}, "stop", second.RunID, "--namespace", r.namespace)
	if st := r.status(second.RunID); st.State != "unknown" {
		t.Errorf("%+v", st)
	}
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}
