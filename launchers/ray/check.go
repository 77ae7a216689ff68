// Package ray is the targets of Ray clusters: ray, an existing cluster by its
// REST API, and kuberay, objects of the KubeRay operator.
//
// Its rules need no cluster.
package ray

import (
	"fmt"
	"regexp"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/image"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/schema/engines"
)

type checker struct{}

// Checker returns the rules of the ray target.
func Checker() plan.Checker { return checker{} }

func (checker) Target() plan.Target { return plan.Ray }

func (checker) Check(p *plan.Plan) diag.List {
	var l diag.List
	s, _ := p.Settings.Get("ray")
	version, _ := s.Field("version").AsString()
	CheckServe(p, plan.Ray, version, &l)
	runtimeEnv(p, s, &l)
	if key := need.DriverGPU(p); key != "" {
		if _, stated := wanted(s); !stated {
			l.Add(p.Finding("GRM8308", diag.Note, tree.Join("gym.config", key), "the driver wants a GPU on the cluster's head", driverGPU(key)+" Ray starts drivers on the head, unless the entrypoint asks for something. genrm launch looks at the head.", "if it has none, "+driverRemedy))
		}
	}
	if p.Workload == plan.Serve {
		for _, f := range []string{"working_dir", "entrypoint_num_cpus", "entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources", "metadata"} {
			if s.Field(f).OK() {
				l.Add(p.Finding("GRM8337", diag.Warning, "ray."+f, f+" has no effect on a serve workload", "It belongs to jobs; judges are an application of Ray Serve.", "remove it"))
			}
		}
	}
	if g, ok := s.Field("entrypoint_num_gpus").AsFloat(); ok && g > 0 && p.Workload != plan.Serve {
		all, used := p.Cluster.Nodes*p.Cluster.GPUsPerNode, need.GPUs(p)
		if p.Positions["cluster.nodes"].IsValid() && all > 0 && used > 0 && float64(used)+g > float64(all) {
			l.Add(p.Finding("GRM8303", diag.Error, "ray.entrypoint_num_gpus", fmt.Sprintf("the entrypoint's %g GPUs are missing to the run", g),
				fmt.Sprintf("%d (run) + %g (entrypoint) > %d (cluster): Ray would wait for the rest for ever. The entrypoint itself uses none.", used, g, all),
				"remove entrypoint_num_gpus"))
		}
	}
	return l
}

// PinnedVLLM is the vLLM release that ray[llm] of a Ray release pins, the newest
// known Ray for ""; "" for one that is not known.
func PinnedVLLM(rayVersion string) string {
	if rayVersion == "" {
		rayVersion = engines.LatestRay()
	}
	pin, _ := engines.RayLLM(rayVersion)
	return pin
}

// CheckServe checks that a serve workload can be a Ray Serve LLM application on
// target ray or kuberay; nothing for other workloads. rayVersion is the stated
// Ray release, or empty.
func CheckServe(p *plan.Plan, target plan.Target, rayVersion string, l *diag.List) {
	if p.Workload != plan.Serve {
		return
	}
	release := rayVersion
	if release == "" {
		release = engines.LatestRay()
	}
	pin := PinnedVLLM(release)
	deployed := 0
	for _, i := range p.Instances {
		path := tree.Join("serve.instances", i.Key)
		switch version := i.Value.EngineVersion; i.Value.Engine {
		case "openai":
			// Nothing is started for it: the gateway asks it.
		case "vllm":
			deployed++
			switch {
			case pin == "" && version != "":
				l.Add(p.Finding("GRM8302", diag.Warning, path+".engine_version", fmt.Sprintf("which vLLM ray[llm] %s runs is not known, and flags are checked against %s", release, version),
					"The cluster's own vLLM serves the judge; a flag may be missing there, or have another meaning.", "use Ray "+engines.LatestRay()+", whose vLLM is known"))
			case version != "" && version != pin:
				l.Add(p.Finding("GRM8302", diag.Error, path+".engine_version", fmt.Sprintf("ray[llm] %s runs vLLM %s, but flags are checked against %s", release, pin, version),
					"The cluster's own vLLM serves the judge, whatever engine_version says; a flag may be missing there.",
					fmt.Sprintf("set engine_version: %q, or leave it out; or use target slurm or local", pin)))
			}
		case "sglang":
			deployed++
			l.Add(p.Finding("GRM8301", diag.Error, path+".engine", "a Ray Serve application cannot run the engine \"sglang\"",
				"Ray Serve LLM knows vLLM alone. Source: ray.serve.llm, LLMConfig.llm_engine.", "use engine \"vllm\", or target slurm or local"))
		default:
			deployed++
			l.Add(p.Finding("GRM8301", diag.Error, path+".engine", fmt.Sprintf("a Ray Serve application cannot run the engine %q", i.Value.Engine),
				"Ray Serve LLM knows vLLM alone, and a gateway that runs where you type has no process to start beside it. Source: ray.serve.llm, LLMConfig.llm_engine.",
				"use target local, where the gateway fronts it; or start it there by itself, and name it here as engine: \"openai\" with its base_url"))
		}
	}
	if deployed == 0 && len(p.Instances) > 0 {
		l.Add(p.Finding("GRM8309", diag.Error, "serve.instances", "nothing to deploy: every judge is a remote endpoint", "Only the gateway is started, and that runs where you type.", "use target local"))
	}
	_, found, err := ServeApplicationFor(p, target)
	if err == nil {
		*l = append(*l, found...)
	}
}

// secretName is what names of secrets are like.
var secretName = regexp.MustCompile(`(?i)(token|secret|passw(or)?d|api_?key|access_?key|credential)`)

// runtimeEnv checks what Ray keeps with the job, and shows in its dashboard.
func runtimeEnv(p *plan.Plan, s *tree.Value, l *diag.List) {
	env := s.Field("runtime_env")
	if !env.OK() {
		return
	}
	if env.Field("working_dir").OK() && s.Field("working_dir").OK() {
		d := p.Finding("GRM8306", diag.Error, "ray.runtime_env.working_dir", "working_dir is given twice", "ray.working_dir is uploaded and put there.", "keep ray.working_dir")
		d.Related = []diag.Related{{Pos: p.Pos("ray.working_dir"), Message: "the folder to upload"}}
		l.Add(d)
	}
	if env.Field("pip").OK() && env.Field("conda").OK() {
		l.Add(p.Finding("GRM8307", diag.Error, "ray.runtime_env.conda", "runtime_env has both pip and conda", "Ray refuses the pair.", "list pip packages within conda's dependencies"))
	}
	vars := env.Field("env_vars")
	if !vars.OK() || vars.Kind != tree.Struct {
		return
	}
	for _, f := range vars.Fields {
		path := tree.Join("ray.runtime_env.env_vars", f.Name)
		switch {
		case !f.Value.OK():
		case f.Value.Kind == tree.Struct, f.Value.Kind == tree.String && f.Value.Text != "" && secretName.MatchString(f.Name):
			d := p.Finding("GRM8304", diag.Error, path, "a secret in runtime_env", "Ray keeps env_vars with the job and shows them in its dashboard and logs.",
				fmt.Sprintf("set %s in the environment of the nodes or pods, and remove it here", f.Name))
			d.Secret = true
			l.Add(d)
		case f.Value.Kind != tree.String:
			l.Add(p.Finding("GRM8305", diag.Error, path, f.Name+" is "+f.Value.Kind.String()+", not a string", "Ray refuses environment values that are no strings.", fmt.Sprintf("write %s: %q", f.Name, f.Value.Text)))
		}
	}
}

type kubeChecker struct{}

// KubeChecker returns the rules of the kuberay target. Source: ray-operator
// v1.5, controllers/ray/utils/validation.go and constant.go.
func KubeChecker() plan.Checker { return kubeChecker{} }

func (kubeChecker) Target() plan.Target { return plan.KubeRay }

// maxName is the operator's limit for names of RayJob and RayService objects;
// it leaves room for what it derives from them: a RayCluster (53) and labels
// and services (63).
const maxName = 47

// suffix is the length of what a run adds to the name of its object: a dash
// and six letters of the run id.
const suffix = 7

// ObjectName is the name of the Kubernetes object of an experiment, without the
// run's own suffix: lower case, with "-" for "." and "_".
func ObjectName(name string) string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(strings.ToLower(name))
}

var (
	label    = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`) // DNS-1035
	tagged   = regexp.MustCompile(`(?:^|/)ray[a-z-]*:v?([0-9]+\.[0-9]+\.[0-9]+)(?:[^0-9.].*)?$`)
	jobOnly  = []string{"ttl", "submissionMode", "deadline"}
	neverRun = "Never"
)

func (kubeChecker) Check(p *plan.Plan) diag.List {
	var l diag.List
	s, _ := p.Settings.Get("kuberay")
	version, _ := s.Field("rayVersion").AsString()
	CheckServe(p, plan.KubeRay, version, &l)

	kind := "RayJob"
	if p.Workload == plan.Serve {
		kind = "RayService"
	}
	name := ObjectName(p.Name)
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
