// Package ray is the target of Ray clusters that exist, by their REST API.
//
// Its rules need no cluster.
package ray

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
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
	if p.Workload != plan.Serve {
		jobFields(s, p, &l)
		runtime(p, s, &l)
	}
	if key := need.DriverGPU(p); key != "" {
		if _, stated := wanted(s); !stated {
			l.Add(p.Finding("GRM8308", diag.Note, tree.Join("gym.config", key), "the driver wants a GPU on the cluster's head", DriverGPU(key)+" Ray starts drivers on the head, unless the entrypoint asks for something. genrm launch looks at the head.", "if it has none, "+driverRemedy))
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

// jobFields checks what a job asks of its node, as Ray does when it starts the
// job, and that metadata leaves what genrm finds its runs by. Source:
// ray/_common/ray_option_utils.py at 2.60.0.
func jobFields(s *tree.Value, p *plan.Plan, l *diag.List) {
	const summary = "Ray refuses what the entrypoint asks for: "
	quantity := func(path, name string, v *tree.Value) {
		n, ok := v.AsFloat()
		switch {
		case !ok:
		case n > 0 && n < 0.0001:
			l.Add(p.Finding("GRM8310", diag.Error, path, fmt.Sprintf(summary+"%s of %s", v.Text, name), "Less than 0.0001 of a resource cannot be asked for.", "write at least 0.0001, or 0"))
		case name == "GPU" && n > 1 && n != math.Trunc(n):
			l.Add(p.Finding("GRM8310", diag.Error, path, fmt.Sprintf(summary+"%s GPUs", v.Text), "More than one GPU is a whole number.", "write a whole number"))
		}
	}
	quantity("ray.entrypoint_num_cpus", "CPU", s.Field("entrypoint_num_cpus"))
	quantity("ray.entrypoint_num_gpus", "GPU", s.Field("entrypoint_num_gpus"))
	if m := s.Field("entrypoint_resources"); m.OK() {
		for _, f := range m.Fields {
			path := tree.Join("ray.entrypoint_resources", f.Name)
			own, named := map[string]string{"CPU": "entrypoint_num_cpus", "GPU": "entrypoint_num_gpus", "memory": "entrypoint_memory"}[f.Name]
			switch {
			case !f.Value.OK():
			case named:
				l.Add(p.Finding("GRM8310", diag.Error, path, summary+f.Name+" is no custom resource", "Custom resources are those that nodes are started with beside CPU, GPU and memory.", fmt.Sprintf("write %s: %s, beside entrypoint_resources", own, f.Value.Text)))
			case f.Name == "object_store_memory":
				l.Add(p.Finding("GRM8310", diag.Error, path, summary+f.Name+" is no custom resource", "An entrypoint cannot ask for memory of the object store.", "remove it"))
			default:
				quantity(path, f.Name, f.Value)
			}
		}
	}
	if m := s.Field("metadata"); m.OK() {
		for _, f := range m.Fields {
			if f.Value.Kind == tree.String && Secret(f.Name, f.Value.Text) {
				d := p.Finding("GRM8304", diag.Error, tree.Join("ray.metadata", f.Name), "a secret in metadata", "Ray keeps metadata with the job and shows it in its dashboard.", "remove it")
				d.Secret = true
				l.Add(d)
			}
			if slices.Contains(metaOwn, f.Name) {
				l.Add(p.Finding("GRM8311", diag.Error, tree.Join("ray.metadata", f.Name), f.Name+" is written by genrm", "It finds a run and tells whose it is, from any machine.", "use another name"))
			}
		}
	}
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

var (
	secretName = regexp.MustCompile(`(?i)(^|_)(token|secret|passw(or)?d|api_?key|access_?key|secret_?key|credentials?)$`)
	noSecret   = regexp.MustCompile(`(?i)^(|empty|none|dummy.*|⟨redacted⟩)$`) // what stands where a key is asked for and not needed, or for a secret that is reported already
)

// Secret reports whether a variable looks like one that holds a secret, by its
// name, and holds one.
func Secret(name, value string) bool {
	return secretName.MatchString(name) && !noSecret.MatchString(value)
}

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
	for _, want := range []struct {
		field, what string
		kinds       []tree.Kind
	}{
		{"env_vars", "a struct of strings", []tree.Kind{tree.Struct}},
		{"config", "a struct", []tree.Kind{tree.Struct}},
		{"working_dir", "a string", []tree.Kind{tree.String}},
		{"py_modules", "a list of strings", []tree.Kind{tree.List}},
		{"excludes", "a list of strings", []tree.Kind{tree.List}},
		{"pip", "a list of packages, a struct, or the path of a requirements file", []tree.Kind{tree.List, tree.Struct, tree.String}},
	} {
		v := env.Field(want.field)
		switch {
		case !v.OK(), v.Kind == tree.Null:
		case !slices.Contains(want.kinds, v.Kind):
			l.Add(p.Finding("GRM8305", diag.Error, "ray.runtime_env."+want.field, want.field+" is "+v.Kind.String()+", not "+want.what, "Ray refuses it when the job starts.", "write "+want.what))
		case v.Kind == tree.List && want.what == "a list of strings":
			for i, e := range v.Items {
				if e.OK() && e.Kind != tree.String {
					l.Add(p.Finding("GRM8305", diag.Error, fmt.Sprintf("ray.runtime_env.%s[%d]", want.field, i), want.field+" holds "+e.Kind.String()+", and wants strings", "Ray refuses it when the job starts.", fmt.Sprintf("write %q", e.Text)))
				}
			}
		}
	}
	vars := env.Field("env_vars")
	if !vars.OK() || vars.Kind != tree.Struct {
		return
	}
	for _, f := range vars.Fields {
		path := tree.Join("ray.runtime_env.env_vars", f.Name)
		switch {
		case !f.Value.OK():
		case f.Value.Kind == tree.Struct, f.Value.Kind == tree.String && Secret(f.Name, f.Value.Text):
			d := p.Finding("GRM8304", diag.Error, path, "a secret in runtime_env", "Ray keeps env_vars with the job and shows them in its dashboard and logs.",
				fmt.Sprintf("set %s in the environment of the nodes or pods, and remove it here", f.Name))
			d.Secret = true
			l.Add(d)
		case f.Value.Kind != tree.String:
			l.Add(p.Finding("GRM8305", diag.Error, path, f.Name+" is "+f.Value.Kind.String()+", not a string", "Ray refuses environment values that are no strings.", fmt.Sprintf("write %s: %q", f.Name, f.Value.Text)))
		}
	}
}

// ObjectName is the name of what a run is in Kubernetes and in Ray Serve, without
// the run's own suffix: the experiment's, in lower case, with "-" for "." and
// "_".
func ObjectName(name string) string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(strings.ToLower(name))
}
