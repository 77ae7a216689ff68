//go:build e2e

package kube

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// releases of KubeRay of which the custom resources are tried; the operator and
// what the other tests do are of the last.
var releases = []string{"1.3.2", "1.4.2", "1.6.1", "1.5.1"}

// block is what an example lacks for Kubernetes.
var block = []string{"--set", `kuberay.image="registry.example/relax-ray:2.60.0"`, "--set", `kuberay.head_memory="16Gi"`}

// refused are examples that are not for this target, and why.
var refused = map[string]string{"quickstart": "GRM8301", "serve-sglang-two-nodes": "GRM8301"}

type example struct {
	name string
	args []string // of launch and emit
	kind string
}

// examples are all that the target takes; of a sweep one.
func (r *rig) examples() (out []example) {
	r.t.Helper()
	dirs, err := filepath.Glob("../../examples/*")
	if err != nil {
		r.t.Fatal(err)
	}
	dirs = append(dirs, "../../examples/site/nightly", "../../examples/site/weekly")
	for _, dir := range dirs {
		dir, err := filepath.Abs(dir)
		if err != nil {
			r.t.Fatal(err)
		}
		e := example{name: filepath.Base(dir), args: append([]string{dir}, block...), kind: "rayjob"}
		switch files, _ := filepath.Glob(filepath.Join(dir, "*.cue")); {
		case len(files) == 0 || e.name == "cue.mod": // not an experiment
			continue
		case e.name == "sweep":
			text, err := os.ReadFile(filepath.Join(dir, "sweep.cue"))
			if err != nil {
				r.t.Fatal(err)
			}
			r.file("sweep/sweep.cue", string(text))
			more := r.file("sweep/kuberay.cue", "package sweep\n\n_experiment: kuberay: {image: \"registry.example/relax-ray:2.60.0\", head_memory: \"16Gi\"}\n")
			e.args = []string{filepath.Dir(more), "--name", "judge-tp2-len16"}
		}
		if strings.HasPrefix(e.name, "serve-") {
			e.kind = "rayservice"
		}
		if code := refused[e.name]; code != "" {
			r.ends(1, []string{code}, append([]string{"vet", "--target", "kuberay"}, e.args...)...)
			continue
		}
		out = append(out, e)
	}
	if len(out) < 12 {
		r.t.Fatalf("only %d examples", len(out))
	}
	return out
}

// emit writes the manifest of an example for GitOps.
func (r *rig) emit(e example) string {
	r.t.Helper()
	dir := filepath.Join(r.dir, "out", e.name)
	if _, err := os.Stat(dir); err != nil {
		r.ends(0, nil, append([]string{"emit", "--target", "kuberay", "-o", dir}, e.args...)...)
	}
	return filepath.Join(dir, "kuberay.yaml")
}

// TestNoKubeRay comes first, as long as the API server has never seen it.
func TestNoKubeRay(t *testing.T) {
	needs(t, "none", "", "hold", 64)
	r := newRig(t, "")
	for _, e := range r.examples() {
		if e.name == "relax-split" || e.name == "serve-two-vllm" {
			r.launch(3, []string{"GRM8422", "KubeRay is not installed in the cluster"}, e.args...)
		}
	}
}

// TestUnknownField: what an older custom resource does not know is named before
// anything is sent.
func TestUnknownField(t *testing.T) {
	needs(t, "1.3.2", "", "hold", 64)
	r := newRig(t, "")
	var patch []string
	for _, field := range []string{"backoffLimit", "rayClusterSpec/properties/rayVersion"} {
		patch = append(patch, `{"op":"remove","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/`+field+`"}`)
	}
	kubectl(t, "patch", "crd", "rayjobs.ray.io", "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
	cluster.crds = "1.3.2, changed"
	e := example{name: "relax-split", args: append([]string{abs(t, "../../examples/relax-split")}, append(block, "--set", "kuberay.backoff_limit=2", "--set", `kuberay.rayVersion="2.60.0"`)...)}
	r.wait("the schema", func() bool {
		out, _ := tryKubectl("explain", "rayjobs.spec.backoffLimit")
		return strings.Contains(out, "does not exist")
	})
	r.launch(3, []string{"GRM8423", "the cluster's KubeRay does not know spec.backoffLimit", "the cluster's KubeRay does not know spec.rayClusterSpec.rayVersion"}, e.args...)
	if out, err := tryKubectl("-n", r.namespace, "create", "--validate=strict", "-f", r.emit(e)); err == nil || !strings.Contains(out, `unknown field "spec.backoffLimit"`) {
		t.Errorf("the API server takes it: %v\n%s", err, out)
	}
	_, _ = tryKubectl("-n", r.namespace, "delete", "configmap", "-l", "app.kubernetes.io/managed-by=genrm")
	runs, _ := filepath.Glob(filepath.Join(r.dir, "runs", "*"))
	if len(runs) > 0 {
		t.Errorf("folders are left: %q", runs)
	}
}

// TestReleases: each release of KubeRay takes each example, strictly.
func TestReleases(t *testing.T) {
	r := newRig(t, "")
	all := r.examples()
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			needs(t, release, "", "hold", 64)
			for _, e := range all {
				t.Run(e.name, func(t *testing.T) {
					r.t = t
					out := r.launch(0, []string{"the API server would take", "nothing was changed"}, append([]string{"--dry-run=server"}, e.args...)...)
					if strings.Contains(out, "GRM8435") {
						t.Errorf("the API server warns:\n%s", out)
					}
					kubectl(t, "-n", r.namespace, "create", "--validate=strict", "--dry-run=server", "-f", r.emit(e))
				})
			}
		})
	}
	r.t = t
	if left := r.objects(); len(left) > 0 {
		t.Errorf("a dry run made %q", left)
	}
}

func abs(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var objectLine = regexp.MustCompile(`(?m)^(ray(?:job|service)/\S+) in \S+, run (\S+) in `)

// TestExamples: the operator takes each example up and complains of nothing; a
// second launch does not get in its way, and stop removes what was made, and
// nothing else.
func TestExamples(t *testing.T) {
	for _, release := range strings.Fields(os.Getenv("GENRM_E2E_OPERATORS")) {
		t.Run(release, func(t *testing.T) {
			needs(t, release, release, "hold", 64)
			r := newRig(t, "")
			foreign := strings.ReplaceAll(rayCluster, "NAME", "foreign")
			kubectl(t, "-n", r.namespace, "apply", "-f", r.file("foreign.yaml", foreign))
			r.wait("pods of the foreign cluster", func() bool { return len(r.objects()) == 4 }) // itself, two pods, a service
			before := r.objects()
			for _, e := range r.examples() {
				t.Run(e.name, func(t *testing.T) {
					r.t = t
					object, first := r.launched(e)
					r.acceptsIt(object)
					again := []string{}
					if e.kind == "rayservice" {
						r.launch(3, []string{"GRM8432", "--replace"}, e.args...)
						again = append(again, "--replace")
					}
					uid, generation := r.field(object, ".metadata.uid"), r.field(object, ".metadata.generation")
					second, run := r.launched(e, again...)
					r.acceptsIt(second)
					if e.kind == "rayservice" {
						if second != object || r.field(object, ".metadata.uid") != uid || r.field(object, ".metadata.generation") != generation {
							t.Errorf("%s of %s is another object than %s, or was changed by the same plan", second, run, object)
						}
						if st := r.status(first); st.State != "stopped" || st.Reason != "replaced by "+run {
							t.Errorf("%+v", st)
						}
					} else {
						if second == object {
							t.Errorf("two runs are %s", object)
						}
						r.ends(0, []string{"has ended: stopped"}, "stop", first)
						if left := strings.Join(r.objects(), " "); strings.Contains(left, strings.TrimPrefix(object, "rayjob/")) {
							t.Errorf("left of %s: %s", object, left)
						}
						if st := r.status(run); st.State != "pending" {
							t.Errorf("the second run: %+v", st)
						}
					}
					r.ends(0, []string{"has ended: stopped"}, "stop", run)
					r.wait("the end", func() bool { return len(r.objects()) <= len(before) })
					if after := r.objects(); strings.Join(after, " ") != strings.Join(before, " ") {
						t.Errorf("%q, and before %q", after, before)
					}
				})
			}
			r.t = t
			kubectl(t, "-n", r.namespace, "delete", "-f", filepath.Join(r.dir, "foreign.yaml"))
			r.wait("the end", func() bool { return len(r.objects()) == 0 })
		})
	}
}

const rayCluster = `{apiVersion: ray.io/v1, kind: RayCluster, metadata: {name: NAME}, spec: {
  headGroupSpec: {rayStartParams: {}, template: {spec: {containers: [{name: ray-head, image: "rayproject/ray:2.60.0", resources: {limits: {memory: 8Gi}}}]}}},
  workerGroupSpecs: [{groupName: w, replicas: 1, minReplicas: 1, maxReplicas: 1, rayStartParams: {}, template: {spec: {containers: [{name: ray-worker, image: "rayproject/ray:2.60.0", resources: {limits: {memory: 8Gi}}}]}}}]}}
`

// launched launches an example and returns its object and its run.
func (r *rig) launched(e example, more ...string) (object, run string) {
	r.t.Helper()
	out := r.launch(0, nil, append(more, e.args...)...)
	m := objectLine.FindStringSubmatch(out)
	if m == nil {
		r.t.Fatalf("no object is named in:\n%s", out)
	}
	if strings.Contains(out, "GRM8431") {
		r.t.Errorf("the operator was not seen:\n%s", out)
	}
	return m[1], m[2]
}

// acceptsIt waits until the operator has made a Ray cluster of an object, with
// all pods that its groups tell, and complains if it did.
func (r *rig) acceptsIt(object string) {
	r.t.Helper()
	kind, name, _ := strings.Cut(object, "/")
	crd := map[string]string{"rayjob": "RayJob", "rayservice": "RayService"}[kind]
	label := "ray.io/originated-from-cr-name=" + name + ",ray.io/originated-from-crd=" + crd
	var ray string
	r.wait(object+" as a cluster", func() bool {
		ray = strings.TrimSpace(kubectl(r.t, "-n", r.namespace, "get", "rayclusters", "-l", label, "-o", "name"))
		return ray != ""
	})
	want := 1
	for _, line := range strings.Fields(r.field(ray, `range .spec.workerGroupSpecs[*]}{.replicas},{.numOfHosts}{"\n"}{end`)) {
		replicas, hosts, _ := strings.Cut(line, ",")
		want += number(replicas, 1) * number(hosts, 1)
	}
	selector := "ray.io/cluster=" + strings.TrimPrefix(ray, "raycluster.ray.io/")
	r.wait("pods of "+object, func() bool {
		return len(strings.Fields(kubectl(r.t, "-n", r.namespace, "get", "pods", "-l", selector, "-o", "name"))) == want
	})
	r.wait("a status of "+object, func() bool { return len(r.field(object, ".status")) > 2 })
	if w := r.warnings(); len(w) > 0 {
		r.t.Errorf("%s: %q", object, w)
	}
	for _, condition := range strings.Fields(r.field(object, ".status.jobDeploymentStatus")) {
		if condition == "ValidationFailed" {
			r.t.Errorf("%s: %s", object, r.field(object, ".status.message"))
		}
	}
}

func number(s string, other int) int {
	n := 0
	for _, c := range s {
		n = 10*n + int(c-'0')
	}
	if n == 0 {
		return other
	}
	return n
}

// TestGitOps: kubectl takes what emit writes, again and again; what is not a run
// stays somebody else's.
func TestGitOps(t *testing.T) {
	needs(t, releases[3], "", "hold", 64)
	r := newRig(t, "")
	var some []example
	for _, e := range r.examples() {
		if e.name == "relax-split" || e.name == "gym-openai" || e.name == "serve-two-vllm" {
			some = append(some, e)
		}
	}
	unchanged := func(out string) {
		r.t.Helper()
		for line := range strings.Lines(out) {
			if !strings.HasSuffix(strings.TrimSpace(line), " unchanged") {
				r.t.Errorf("the second time: %s", line)
			}
		}
	}
	for _, e := range some {
		t.Run(e.name, func(t *testing.T) {
			r.t = t
			file := r.emit(e)
			kubectl(t, "-n", r.namespace, "apply", "-f", file)
			object := r.main(file)
			generation := r.field(object, ".metadata.generation")
			unchanged(kubectl(t, "-n", r.namespace, "apply", "-f", file))
			kubectl(t, "-n", r.namespace, "apply", "--server-side", "-f", file)
			kubectl(t, "-n", r.namespace, "apply", "--server-side", "--field-manager=genrm", "-f", file)
			if e.kind == "rayservice" { // which has the name that a launch would take
				for _, args := range [][]string{nil, {"--replace"}} {
					r.launch(3, []string{"GRM8432", "is not a run of genrm"}, append(args, e.args...)...)
				}
			} else {
				r.launch(0, nil, e.args...)
				r.ends(0, nil, "stop")
			}
			if now := r.field(object, ".metadata.generation"); now != generation {
				t.Errorf("the same manifest changed %s: generation %s, then %s", object, generation, now)
			}
			kubectl(t, "-n", r.namespace, "delete", "-f", file)
		})
	}
	// The operator writes the objects that it touches as its own types have them:
	// that must not make fields its own, which would be conflicts.
	needs(t, releases[3], releases[3], "hold", 64)
	for _, e := range some {
		t.Run(e.name+" with the operator", func(t *testing.T) {
			r.t = t
			file := r.emit(e)
			kubectl(t, "-n", r.namespace, "apply", "--server-side", "-f", file)
			object := r.main(file)
			r.acceptsIt(object)
			before, generation := r.objects(), r.field(object, ".metadata.generation")
			kubectl(t, "-n", r.namespace, "apply", "--server-side", "-f", file)
			r.acceptsIt(object)
			if after := r.objects(); strings.Join(after, " ") != strings.Join(before, " ") {
				t.Errorf("%q, and before %q", after, before)
			}
			if now := r.field(object, ".metadata.generation"); now != generation {
				t.Errorf("the same manifest changed %s: generation %s, then %s", object, generation, now)
			}
			kubectl(t, "-n", r.namespace, "delete", "-f", file)
			r.wait("the end", func() bool { return len(r.objects()) == 0 })
			kubectl(t, "-n", r.namespace, "apply", "-f", file)
			r.acceptsIt(object)
			unchanged(kubectl(t, "-n", r.namespace, "apply", "-f", file))
			kubectl(t, "-n", r.namespace, "delete", "-f", file)
			r.wait("the end", func() bool { return len(r.objects()) == 0 })
		})
	}
	r.t = t
}

// main is the object of Ray in a manifest.
func (r *rig) main(file string) string {
	r.t.Helper()
	for name := range strings.Lines(kubectl(r.t, "-n", r.namespace, "get", "-f", file, "-o", "name")) {
		if kind, name, _ := strings.Cut(strings.TrimSpace(name), "/"); strings.HasPrefix(kind, "ray") {
			return strings.TrimSuffix(kind, ".ray.io") + "/" + name
		}
	}
	r.t.Fatalf("no object of Ray in %s", file)
	return ""
}
