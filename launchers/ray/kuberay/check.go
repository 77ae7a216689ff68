package kuberay

import (
	"fmt"
	"regexp"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/image"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/ray"
)

type checker struct{}

// Checker returns the rules of the kuberay target. Source: ray-operator
// v1.5, controllers/ray/utils/validation.go and constant.go.
func Checker() plan.Checker { return checker{} }

func (checker) Target() plan.Target { return plan.KubeRay }

// maxName is the operator's limit for names of RayJob and RayService objects;
// it leaves room for what it derives from them: a RayCluster (53) and labels
// and services (63).
const maxName = 47

// suffix is the length of what a run adds to the name of its object: a dash
// and six letters of the run id.
const suffix = 7

var (
	label    = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`) // DNS-1035
	tagged   = regexp.MustCompile(`(?:^|/)ray[a-z-]*:v?([0-9]+\.[0-9]+\.[0-9]+)(?:[^0-9.].*)?$`)
	jobOnly  = []string{"ttl", "submissionMode", "deadline"}
	neverRun = "Never"
)

func (checker) Check(p *plan.Plan) diag.List {
	var l diag.List
	s, _ := p.Settings.Get("kuberay")
	version, _ := s.Field("rayVersion").AsString()
	ray.CheckServe(p, plan.KubeRay, version, &l)

	kind := "RayJob"
	if p.Workload == plan.Serve {
		kind = "RayService"
	}
	name := ray.ObjectName(p.Name)
	switch {
	case name == "":
	case !label.MatchString(name):
		l.Add(p.Finding("GRM8402", diag.Error, "name", fmt.Sprintf("%s is no name for a %s", name, kind),
			fmt.Sprintf("%q becomes %q. Names of Ray objects begin with a letter, end with a letter or digit, and hold nothing but letters, digits and dashes.", p.Name, name), "begin the name with a letter"))
	case len(name)+suffix > maxName:
		l.Add(p.Finding("GRM8401", diag.Error, "name", fmt.Sprintf("the name is too long for a %s by %d", kind, len(name)+suffix-maxName),
			fmt.Sprintf("%d characters + %d for the run = %d > %d: Kubernetes would take it and the operator refuse it, because of the RayCluster (53) and labels (63) that it names after it.", len(name), suffix, len(name)+suffix, maxName),
			fmt.Sprintf("use a name of at most %d characters", maxName-suffix)))
	}
	if q, ok := s.Field("queue").AsString(); ok && len(q) > 63 {
		l.Add(p.Finding("GRM8409", diag.Error, "kuberay.queue", fmt.Sprintf("the queue's name has %d characters, and a label holds 63", len(q)),
			"The object names its queue by the label kueue.x-k8s.io/queue-name; Kubernetes refuses a longer value.", "use a queue with a shorter name"))
	}
	if ref, ok := s.Field("image").AsString(); ok {
		if what := image.Floating(ref); what != "" {
			l.Add(p.Finding("GRM6007", diag.Warning, "kuberay.image", "the image "+what, "The same file may start other releases tomorrow.", "name a release's tag, or a digest (@sha256:…)"))
		}
		if m := tagged.FindStringSubmatch(ref); version != "" && m != nil && m[1] != version && !strings.HasPrefix(version, m[1]+".") {
			d := p.Finding("GRM8403", diag.Error, "kuberay.rayVersion", fmt.Sprintf("rayVersion is %s, but the image is tagged %s", version, m[1]),
				"The operator writes commands for rayVersion, and clients of another release are refused.", fmt.Sprintf("write rayVersion: %q", m[1]))
			d.Related = []diag.Related{{Pos: p.Pos("kuberay.image"), Message: "the image"}}
			l.Add(d)
		}
	}
	if gpus := need.GPUs(p); gpus > 0 && p.Cluster.GPUsPerNode == 0 {
		l.Add(p.Finding("GRM8404", diag.Error, "cluster", "cluster.gpus_per_node is not stated",
			fmt.Sprintf("The run needs %s; how many worker pods that are, and the GPUs of each, depends on it.", need.Count(gpus, "GPU")), "add cluster: gpus_per_node: 8, or what the nodes have"))
	}
	if p.Workload == plan.Serve {
		for _, f := range jobOnly {
			if s.Field(f).OK() {
				l.Add(p.Finding("GRM8405", diag.Warning, "kuberay."+f, f+" has no effect on a serve workload", "It belongs to RayJob objects; judges are a RayService, which runs until it is stopped.", "remove it"))
			}
		}
		return l
	}
	switch mode, _ := s.Field("submissionMode").AsString(); mode {
	case "HTTPMode":
		if !s.Field("deadline").OK() {
			l.Add(p.Finding("GRM8406", diag.Warning, "kuberay.submissionMode", "HTTPMode without a deadline", "If the head pod dies in this mode, the status may stay RUNNING and the pods stay.", "add a deadline, or use K8sJobMode"))
		}
	case "SidecarMode":
		path := "kuberay.head.spec.restartPolicy"
		if r, ok := s.Field("head").Lookup("spec", "restartPolicy").AsString(); ok && r != neverRun {
			l.Add(p.Finding("GRM8407", diag.Error, path, "restartPolicy "+r+" with SidecarMode", "The operator refuses it: a restarted head would submit the job again.", "write restartPolicy: \"Never\", or leave it out"))
		}
	case "InteractiveMode":
		l.Add(p.Finding("GRM8408", diag.Error, "kuberay.submissionMode", "InteractiveMode does not start the run", "The operator brings the cluster up and waits for someone to submit a job.", "use K8sJobMode, SidecarMode or HTTPMode"))
	}
	return l
}
