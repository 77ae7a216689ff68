//go:build e2e

package kube

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// limit bounds a hang; it is no promise.
const limit = 3 * time.Minute

// cluster is how the rig is now. The tests share it, so that they come one after
// another, and each says first what it needs.
var cluster = struct {
	crds, operator, mode string
	nodes                int
	ray                  bool
}{crds: "none", mode: "hold", nodes: 64}

// needs brings the rig into a state. operator is its release, or "" for none.
// With the mode run pods run by themselves, on a real Ray.
func needs(t *testing.T, crds, operator, mode string, nodes int) {
	t.Helper()
	if cluster.operator != "" && cluster.operator != operator {
		ctl(t, "operator", "stop")
		cluster.operator = ""
	}
	if cluster.crds != crds {
		ctl(t, "crds", crds)
		cluster.crds = crds
	}
	if operator != cluster.operator {
		ctl(t, "operator", "start", operator)
		cluster.operator = operator
	}
	if mode == "run" && !cluster.ray {
		ctl(t, "ray")
		cluster.ray = true
	}
	if cluster.mode != mode {
		ctl(t, "mode", mode)
		cluster.mode = mode
	}
	if cluster.nodes != nodes {
		ctl(t, "nodes", fmt.Sprint(nodes), "8")
		cluster.nodes = nodes
	}
}

// ctl gives the rig a command.
func ctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("./rig", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("rig %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// kubectl asks as an administrator, and must succeed.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryKubectl(args...)
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, out)
	}
	return out
}

func tryKubectl(args ...string) (string, error) {
	cmd := exec.Command(os.Getenv("GENRM_KUBECTL"), args...)
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// rig is one test's folder and its namespace.
type rig struct {
	t         *testing.T
	dir       string
	namespace string
	env       []string
}

// newRig makes a namespace, unless one is given, and wants it empty again at the
// end but for what the test names.
func newRig(t *testing.T, namespace string) *rig {
	t.Helper()
	if os.Getenv("GENRM_E2E_GENRM") == "" || os.Getenv("GENRM_KUBECTL") == "" || os.Getenv("GENRM_E2E_OPERATORS") == "" {
		t.Fatal("start these tests with e2e/kube/run")
	}
	r := &rig{t: t, namespace: namespace, dir: filepath.Join(t.TempDir(), `user's größe 50%`)} // kubectl takes -f for CSV, so no double quote
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if namespace == "" {
		r.namespace = "t" + fmt.Sprint(time.Now().UnixNano())
		kubectl(t, "create", "namespace", r.namespace)
		r.wait("a service account", func() bool {
			_, err := tryKubectl("-n", r.namespace, "get", "serviceaccount", "default")
			return err == nil
		})
	}
	t.Cleanup(func() {
		r.t = t
		if left := r.objects(); len(left) > 0 && !t.Failed() {
			t.Errorf("left in the namespace: %q", left)
		}
		// What a failed test leaves must not stand in the way of others.
		for _, kind := range []string{"rayjobs", "rayservices", "rayclusters"} {
			if !t.Failed() {
				break
			}
			_, _ = tryKubectl("-n", r.namespace, "delete", kind, "--all", "--timeout=30s")
		}
		if namespace == "" {
			_, _ = tryKubectl("delete", "namespace", r.namespace, "--wait=false")
		}
	})
	return r
}

// objects lists what is in the namespace: all that a run makes or is made into.
func (r *rig) objects() []string {
	r.t.Helper()
	kinds := "configmaps,pods,services,jobs"
	if cluster.crds != "none" {
		kinds += ",rayjobs,rayservices,rayclusters"
	}
	var out []string
	for name := range strings.Lines(kubectl(r.t, "-n", r.namespace, "get", kinds, "-o", "name")) {
		if name = strings.TrimSpace(name); name != "configmap/kube-root-ca.crt" && !strings.HasPrefix(name, "No resources") {
			out = append(out, name)
		}
	}
	return out
}

func (r *rig) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *rig) command(args ...string) *exec.Cmd {
	cmd := exec.Command(os.Getenv("GENRM_E2E_GENRM"), args...)
	cmd.Dir = r.dir
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.dir, "USER=ada", "GENRM_RUNS=" + filepath.Join(r.dir, "runs"), "KUBECONFIG=" + os.Getenv("KUBECONFIG")}, r.env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// ends runs genrm, wants an exit status and texts, and returns what it printed.
func (r *rig) ends(code int, texts []string, args ...string) string {
	r.t.Helper()
	return suite.Ends(r.t, r.command(args...), limit, code, texts...)
}

// launch is ends for a launch into the test's namespace, and into its folder of
// runs, whatever the experiment says of it.
func (r *rig) launch(code int, texts []string, args ...string) string {
	r.t.Helper()
	return r.ends(code, texts, append([]string{"launch", "--target", "kuberay", "--namespace", r.namespace, "--runs", filepath.Join(r.dir, "runs")}, args...)...)
}

type status struct {
	RunID    string `json:"run_id"`
	State    string `json:"state"`
	Reason   string `json:"reason"`
	ExitCode *int   `json:"exit_code"`
	JobID    string `json:"job_id"`
	JobState string `json:"job_state"`
	Dir      string `json:"dir"`
}

func (r *rig) status(args ...string) (st status) {
	r.t.Helper()
	out, err := r.command(append([]string{"status", "-o", "json"}, args...)...).CombinedOutput()
	if err == nil {
		err = json.Unmarshal(out, &st)
	}
	if err != nil {
		r.t.Fatalf("%v: %s", err, out)
	}
	return st
}

// wait waits for a condition.
func (r *rig) wait(what string, ok func() bool) {
	r.t.Helper()
	for start := time.Now(); !ok(); time.Sleep(200 * time.Millisecond) {
		if time.Since(start) > limit {
			r.t.Fatalf("waited in vain for %s; there are %q\n%s", what, r.objects(), kubectl(r.t, "-n", r.namespace, "get", "events"))
		}
	}
}

// reason waits until the last run's state and reason hold these texts.
func (r *rig) reason(state string, texts ...string) {
	r.t.Helper()
	var st status
	r.wait(state+", "+strings.Join(texts, ", "), func() bool {
		st = r.status()
		for _, text := range texts {
			if !strings.Contains(st.Reason, text) {
				return false
			}
		}
		return st.State == state
	})
}

// field is a part of an object by a JSON path.
func (r *rig) field(object, path string) string {
	r.t.Helper()
	return kubectl(r.t, "-n", r.namespace, "get", object, "-o", "jsonpath={"+path+"}")
}

// warnings are what was complained of objects of Ray in the namespace, but for
// what the operator tells about itself when it has not yet seen what it has made.
func (r *rig) warnings() (out []string) {
	r.t.Helper()
	text := kubectl(r.t, "-n", r.namespace, "get", "events", "--field-selector", "type=Warning", "-o",
		`jsonpath={range .items[*]}{.involvedObject.kind}/{.involvedObject.name} {.reason}: {.message}{"\n"}{end}`)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "Ray") && !strings.Contains(line, "already exists") {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}
