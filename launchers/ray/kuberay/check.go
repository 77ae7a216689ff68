package kuberay

import (
	"encoding/json"
	"fmt"
	"math"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/image"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/schema/engines"
)

type checker struct{}

// Checker returns the rules of the kuberay target. Sources: ray-operator v1.5.1,
// whose own validation is run on the objects; the validation of names, labels and
// quantities of k8s.io/apimachinery; the webhooks of Kueue.
func Checker() plan.Checker { return checker{} }

func (checker) Target() plan.Target { return plan.KubeRay }

// suffix is the length of what a run adds to the name of its object: a dash
// and six letters of the run id.
const suffix = 7

// maxName is the operator's limit for names of RayJob and RayService objects. It
// leaves room for what is named after them: the RayCluster (a dash and five
// letters), and the services of that (-head-svc and -serve-svc, 63 in all).
const maxName = utils.MaxRayJobNameLength

// anyRun is the id of a run for checks of what it is part of.
const anyRun = "20060102-150405-000000"

// anyHash stands for the hash of the plan, which is not settled yet, in checks.
var anyHash = strings.Repeat("0", 64)

var (
	label = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`) // DNS-1035, of any length

	// pattern is what the validation of Kubernetes appends to its messages, within
	// the parentheses of its examples or in its own.
	pattern = regexp.MustCompile(`( \(|, )regex used for validation is '.*?'\)`)

	// jobOnly are the fields that belong to RayJob objects.
	jobOnly = []string{"ttl", "submissionMode", "deadline", "shutdown_after_finish", "suspend", "backoff_limit", "entrypoint_num_cpus", "entrypoint_num_gpus"}

	// serveOnly are the fields that belong to RayService objects.
	serveOnly = []string{"serve_service", "exclude_head_from_serve", "upgrade_strategy", "cluster_deletion_delay"}
)

// operatorEnv are variables that the operator adds to the containers of Ray
// whether they are there or not. Source: setContainerEnvVars in
// controllers/ray/common/pod.go of ray-operator v1.5.1.
var operatorEnv = []string{utils.FQ_RAY_IP, utils.RAY_IP, utils.RAY_CLUSTER_NAME, utils.RAY_CLOUD_INSTANCE_ID, utils.RAY_NODE_TYPE_NAME, utils.KUBERAY_GEN_RAY_START_CMD, utils.RAY_USAGE_STATS_EXTRA_TAGS}

func (c checker) Check(p *plan.Plan) diag.List {
	found, _ := c.Tell(p)
	return found
}

// Tell implements [plan.Teller].
func (checker) Tell(p *plan.Plan) (diag.List, []plan.Fact) {
	b, err := build(p, Run{ID: anyRun}, anyHash)
	if err != nil {
		b.add("GRM8419", diag.Error, string(p.Workload), "the command cannot be written for Kubernetes", oneLine(err.Error()), "change the value, or use another target")
	}
	ray.CheckServe(p, plan.KubeRay, b.rayV, &b.found)
	b.names()
	b.image()
	b.sizes()
	b.environment()
	b.headState()
	b.startParams()
	b.autoscaling()
	b.kueue()
	if key := need.DriverGPU(p); key != "" && b.shape.gpus == 0 {
		if g, _ := b.s.Field("entrypoint_num_gpus").AsFloat(); g == 0 {
			b.add("GRM8308", diag.Note, tree.Join("gym.config", key), "the driver wants a GPU on the head, which has none", ray.DriverGPU(key)+" The driver runs on the head.",
				"write kuberay: head_gpus: 1, or as many as a worker has: the head is the first of the nodes then")
		}
	}
	if p.Workload == plan.Serve {
		for _, f := range jobOnly {
			if b.s.Field(f).OK() {
				b.add("GRM8405", diag.Warning, "kuberay."+f, f+" has no effect on a serve workload", "It belongs to RayJob objects; judges are a RayService, which runs until it is stopped.", "remove it")
			}
		}
	} else {
		for _, f := range serveOnly {
			if b.s.Field(f).OK() {
				b.add("GRM8405", diag.Warning, "kuberay."+f, fmt.Sprintf("%s has no effect on a %s workload", f, p.Workload), "It belongs to RayService objects; a run that ends is a RayJob.", "remove it")
			}
		}
		b.submission()
	}
	b.size()
	if err != nil || b.found.HasErrors() || ray.ObjectName(p.Name) == "" { // a name that is reported already
		return b.found, nil
	}
	b.operator()
	return b.found, b.tell()
}

// names checks the names of what is made and of what is referred to.
func (b *builder) names() {
	p := b.p
	kind := "RayJob"
	if p.Workload == plan.Serve {
		kind = "RayService"
	}
	name := ray.ObjectName(p.Name)
	switch {
	case name == "":
	case !label.MatchString(name):
		became := ""
		if name != p.Name {
			became = fmt.Sprintf("%q becomes %q. ", p.Name, name)
		}
		remedy := "begin the name with a letter"
		if name[0] >= 'a' && name[0] <= 'z' {
			remedy = "end the name with a letter or a digit"
		}
		b.add("GRM8402", diag.Error, "name", fmt.Sprintf("%s is no name for a %s", name, kind),
			became+"Names of Ray objects begin with a letter, end with a letter or digit, and hold nothing but letters, digits and dashes.", remedy)
	case len(name)+suffix > maxName:
		detail := fmt.Sprintf("%d characters + %d for the run = %d > %d: Kubernetes would take it and the operator refuse it, because of the RayCluster (53) and labels (63) that it names after it.", len(name), suffix, len(name)+suffix, maxName)
		if p.Workload == plan.Serve { // the object has no suffix, but a label of it
			id := len(anyRun) + 1
			detail = fmt.Sprintf("%d characters + %d for the run's id = %d > %d, which is what a label holds: the object is found by that of its run.", len(name), id, len(name)+id, validation.LabelValueMaxLength)
		}
		b.add("GRM8401", diag.Error, "name", fmt.Sprintf("the name is too long for a %s by %d", kind, len(name)+suffix-maxName),
			detail,
			fmt.Sprintf("use a name of at most %d characters", maxName-suffix))
	}
	if q, ok := b.s.Field("queue").AsString(); ok && len(q) > validation.LabelValueMaxLength {
		b.add("GRM8409", diag.Error, "kuberay.queue", fmt.Sprintf("the queue's name has %d characters, and a label holds 63", len(q)),
			"The object names its queue by the label kueue.x-k8s.io/queue-name; Kubernetes refuses a longer value.", "use a queue with a shorter name")
	}
	bad := func(path, what, text string, errs []string) {
		if len(errs) > 0 {
			b.add("GRM8417", diag.Error, path, fmt.Sprintf("%q is no %s", short(text), what), "Kubernetes: "+oneLine(reason(strings.Join(errs, "; ")))+".", "write another one")
		}
	}
	object := func(v *tree.Value, path, what string) {
		if v.OK() {
			bad(path, what, v.Text, validation.IsDNS1123Subdomain(v.Text))
		}
	}
	object(b.s.Field("service_account"), "kuberay.service_account", "name of a service account")
	if v := b.s.Field("image_pull_secrets"); v.OK() {
		for i, x := range v.Items {
			object(x, tree.Index("kuberay.image_pull_secrets", i), "name of a secret")
		}
	}
	secret := func(v *tree.Value, at string) {
		object(v.Field("name"), at+".name", "name of a secret")
		if k := v.Field("key"); k.OK() {
			bad(at+".key", "key of a secret", k.Text, validation.IsConfigMapKey(k.Text))
		}
	}
	if v := b.s.Field("secrets"); v.OK() {
		for _, f := range v.Fields {
			secret(f.Value, tree.Join("kuberay.secrets", f.Name))
		}
	}
	for _, field := range []string{"redis_username", "redis_password"} {
		secret(b.s.Lookup("gcs_fault_tolerance", field), "kuberay.gcs_fault_tolerance."+field)
	}
	marks := func(steps ...string) {
		v := b.s.Lookup(steps...)
		if !v.OK() {
			return
		}
		for _, f := range v.Fields {
			at := tree.Join("kuberay."+strings.Join(steps, "."), f.Name)
			switch {
			case !f.Value.OK():
			case len(steps) == 1 && steps[0] != "node_selector" && b.ours(at, f.Name):
			case steps[len(steps)-1] == "annotations":
				bad(at, "key of an annotation", f.Name, validation.IsQualifiedName(strings.ToLower(f.Name)))
			default:
				bad(at, "key of a label", f.Name, validation.IsQualifiedName(f.Name))
				bad(at, "value of a label", f.Value.Text, validation.IsValidLabelValue(f.Value.Text))
			}
		}
	}
	marks("node_selector")
	marks("labels")
	marks("annotations")
	marks("head_service", "annotations")
	marks("serve_service", "labels")
	marks("serve_service", "annotations")
	for _, field := range []string{"head", "worker"} {
		marks(field, "metadata", "labels")
		marks(field, "metadata", "annotations")
		marks(field, "spec", "nodeSelector")
		object(b.s.Lookup(field, "spec", "serviceAccountName"), "kuberay."+field+".spec.serviceAccountName", "name of a service account")
	}
	// As the user wrote them: positions are right beside faulty items, too.
	items := func(field string) []*tree.Value {
		if v := b.s.Field(field); v.OK() && v.Kind == tree.List {
			return v.Items
		}
		return nil
	}
	taken := map[string]string{"shared-mem": "kuberay", "genrm": "kuberay"}
	var volumes []string
	nameless := false // a volume whose name is reported already
	for i, v := range items("volumes") {
		name, ok := v.Field("name").AsString()
		if !ok {
			nameless = true
			continue
		}
		at := tree.Index("kuberay.volumes", i)
		if other, ok := taken[name]; ok {
			d := b.p.Finding("GRM8417", diag.Error, at+".name", fmt.Sprintf("a second volume is called %s", name), "Names of volumes are unique in a pod; shared-mem and genrm are genrm's own.", "use another name")
			d.Related = []diag.Related{{Pos: b.p.Pos(other), Message: "the first"}}
			b.found.Add(d)
		}
		taken[name] = at
		volumes = append(volumes, name)
	}
	paths := map[string]string{"/dev/shm": "kuberay", filesDir: "kuberay"}
	for i, m := range items("volume_mounts") {
		at := tree.Index("kuberay.volume_mounts", i)
		if name, ok := m.Field("name").AsString(); ok && taken[name] == "" && !nameless {
			remedy := diag.DidYouMean(name, volumes)
			if remedy == "" {
				remedy = "add it to kuberay.volumes"
			}
			b.add("GRM8417", diag.Error, at+".name", fmt.Sprintf("no volume is called %s", name), "A mount names one of kuberay.volumes.", remedy)
		}
		where, ok := m.Field("mountPath").AsString()
		if !ok {
			continue
		}
		where = path.Clean(where)
		if other, ok := paths[where]; ok {
			d := b.p.Finding("GRM8417", diag.Error, at+".mountPath", "two mounts at "+where, "Of two at one place one is not seen, and Kubernetes refuses the second; "+filesDir+" and /dev/shm are genrm's own.", "mount it elsewhere")
			d.Related = []diag.Related{{Pos: b.p.Pos(other), Message: "the first"}}
			b.found.Add(d)
		}
		paths[where] = at
	}
}

// reason is a message of the validation of Kubernetes without the pattern.
func reason(message string) string {
	return pattern.ReplaceAllStringFunc(message, func(s string) string {
		if strings.HasPrefix(s, ",") {
			return ")"
		}
		return ""
	})
}

// ours reports a label or annotation of the object that is genrm's to set.
func (b *builder) ours(at, name string) bool {
	remedy := "remove it"
	switch {
	case name == LabelQueue && strings.HasPrefix(at, "kuberay.labels"):
		remedy = "write kuberay: queue: \"NAME\""
	case name != ManagedBy && !strings.HasPrefix(name, "genrm.dev/"):
		return false
	}
	b.add("GRM8417", diag.Error, at, name+" is genrm's to set", "By it runs and their queues are known.", remedy)
	return true
}

// pod is one of the run's pod templates as the user may name it.
type pod struct {
	field string // head or worker
	spec  *corev1.PodTemplateSpec
}

// podTemplates lists the templates of the built objects.
func (b *builder) podTemplates() []pod {
	var out []pod
	add := func(head *corev1.PodTemplateSpec, groups int, worker func(int) *corev1.PodTemplateSpec) {
		out = append(out, pod{"head", head})
		for i := range groups {
			out = append(out, pod{"worker", worker(i)})
		}
	}
	if j := b.objects.RayJob; j != nil {
		c := j.Spec.RayClusterSpec
		add(&c.HeadGroupSpec.Template, len(c.WorkerGroupSpecs), func(i int) *corev1.PodTemplateSpec { return &c.WorkerGroupSpecs[i].Template })
	}
	if s := b.objects.RayService; s != nil {
		c := &s.Spec.RayClusterSpec
		add(&c.HeadGroupSpec.Template, len(c.WorkerGroupSpecs), func(i int) *corev1.PodTemplateSpec { return &c.WorkerGroupSpecs[i].Template })
	}
	return out
}

// image checks that every pod has an image, and that the release in its tag is
// the stated one.
func (b *builder) image() {
	version, _ := b.s.Field("rayVersion").AsString()
	if ref, ok := b.s.Field("image").AsString(); ok {
		if what := image.Floating(ref); what != "" {
			b.add("GRM6007", diag.Warning, "kuberay.image", "the image "+what, "The same file may start other releases tomorrow.", "name a release's tag, or a digest (@sha256:…)")
		}
	} else if v := b.s.Field("image"); v != nil {
		return // faulty
	}
	missing := false
	var first, firstAt string // release that the first image's tag names
	for _, t := range b.podTemplates() {
		c := t.spec.Spec.Containers[0]
		at := "kuberay." + t.field
		own, _ := b.s.Field("image").AsString()
		if c.Image == own {
			at = "kuberay.image"
		}
		if c.Image == "" {
			if !missing {
				remedy := "add kuberay: image: \"REGISTRY/NAME:TAG\", an image with Ray and what the run needs"
				if b.p.Workload == plan.Serve {
					remedy = fmt.Sprintf("add kuberay: image: \"rayproject/ray-llm:%s\", or your own with ray[llm]", engines.LatestRay())
				}
				b.add("GRM8410", diag.Error, "kuberay", "no image is stated for the pods", "Kubernetes starts no container without one, and the operator none of its own choice.", remedy)
			}
			missing = true
			continue
		}
		if tag := image.Ray(c.Image); version == "" && tag != "" {
			if first == "" {
				first, firstAt = tag, at
			} else if tag != first {
				d := b.p.Finding("GRM8403", diag.Error, at, fmt.Sprintf("the images of the pods are of two releases of Ray, %s and %s", first, tag),
					"Workers of another release than the head's do not join it.", "use images of one release; where a tag is none of Ray, state rayVersion")
				d.Related = []diag.Related{{Pos: b.p.Pos(firstAt), Message: "the other"}}
				b.found.Add(d)
				return
			}
		}
		if tag := image.Ray(c.Image); version != "" && tag != "" && tag != version && !strings.HasPrefix(version, tag+".") {
			d := b.p.Finding("GRM8403", diag.Error, "kuberay.rayVersion", fmt.Sprintf("rayVersion is %s, but the image is tagged %s", version, tag),
				"The operator writes commands for rayVersion, and clients of another release are refused.", fmt.Sprintf("write rayVersion: %q", tag))
			d.Related = []diag.Related{{Pos: b.p.Pos(at), Message: "the image"}}
			b.found.Add(d)
			return
		}
	}
}

// sizes checks what depends on the sizes of nodes and pods.
func (b *builder) sizes() {
	if b.shape.used > 0 && b.p.Cluster.GPUsPerNode == 0 {
		b.add("GRM8404", diag.Error, "cluster", "cluster.gpus_per_node is not stated",
			fmt.Sprintf("The run needs %s; how many worker pods that are, and the GPUs of each, depends on it.", need.Count(b.shape.used, "GPU")), "add cluster: gpus_per_node: 8, or what the nodes have")
	}
	if per := b.p.Cluster.GPUsPerNode; per > 0 && b.shape.gpus > per {
		b.add("GRM8414", diag.Error, "kuberay.head_gpus", fmt.Sprintf("the head is given %s, but a node has %d", need.Count(b.shape.gpus, "GPU"), per),
			"No node could take the pod.", fmt.Sprintf("use at most %d", per))
	}
	if v := b.s.Field("entrypoint_num_gpus"); v.OK() && b.p.Workload != plan.Serve {
		g, _ := v.AsFloat()
		most := max(b.shape.gpus, b.shape.perWorker)
		if g > float64(most) {
			b.add("GRM8414", diag.Error, "kuberay.entrypoint_num_gpus", fmt.Sprintf("the driver reserves %g GPUs, but no pod has more than %d", g, most),
				"Ray would wait for such a pod for ever.", "give the head as many by kuberay.head_gpus")
		} else if g > 0 && b.shape.used > 0 && float64(b.shape.used)+g > float64(b.shape.gpus+b.shape.workers*b.shape.perWorker) {
			b.add("GRM8414", diag.Error, "kuberay.entrypoint_num_gpus", fmt.Sprintf("the driver's %g GPUs are missing to the run", g),
				fmt.Sprintf("%d (run) + %g (driver) > %d (pods): Ray would wait for the rest for ever.", b.shape.used, g, b.shape.gpus+b.shape.workers*b.shape.perWorker),
				"give the head as many of its own by kuberay.head_gpus")
		}
	}
}

// environment checks the variables of the pods.
func (b *builder) environment() {
	where := map[string]string{} // variable → path of who sets it
	owned := func(at, name string) bool {
		if !slices.Contains(operatorEnv, name) {
			return false
		}
		b.add("GRM8418", diag.Error, at, name+" is the operator's own", "It adds the variable to each container, and of two the last counts.", "remove it")
		return true
	}
	for _, e := range b.p.Launch.Env {
		if b.p.Workload != plan.Serve {
			where[e.Key] = tree.Join(string(b.p.Workload)+".env", e.Key)
			owned(where[e.Key], e.Key)
		}
	}
	set := func(field string) {
		v := b.s.Field(field)
		if !v.OK() {
			return
		}
		for _, f := range v.Fields {
			at := tree.Join("kuberay."+field, f.Name)
			other, taken := where[f.Name]
			switch {
			case owned(at, f.Name):
			case taken && b.same(f.Name, field):
			case taken:
				d := b.p.Finding("GRM8418", diag.Error, at, f.Name+" is set twice", "Server-side apply refuses a second variable of a name.", "keep one of the two")
				d.Related = []diag.Related{{Pos: b.p.Pos(other), Message: "the other"}}
				b.found.Add(d)
			case field == "env" && ray.Secret(f.Name, f.Value.Text):
				d := b.p.Finding("GRM8418", diag.Error, at, "a literal secret in "+f.Name, "Everybody who may read the objects of the namespace would see it.",
					fmt.Sprintf("refer to a secret of Kubernetes: secrets: %s: {name: \"…\", key: \"…\"}", f.Name))
				d.Secret = true
				b.found.Add(d)
			}
			where[f.Name] = at
		}
	}
	set("secrets")
	set("env")
}

// same says whether a variable of the run refers to the secret of Kubernetes of
// the same name: that is one variable, said twice.
func (b *builder) same(name, field string) bool {
	v, _ := b.p.Launch.Env.Get(name)
	return field == "secrets" && v.SecretEnv == name
}

// headState checks that the state of the head is kept in one way, by
// gcs_fault_tolerance. The operator refuses each of these, and names the first.
// Source: ValidateRayClusterSpec of ray-operator v1.5.1.
func (b *builder) headState() {
	const block = "kuberay.gcs_fault_tolerance"
	stated := b.s.Field("gcs_fault_tolerance") != nil
	refuse := func(at, summary, detail, remedy string) {
		d := b.p.Finding("GRM8419", diag.Error, at, summary, detail, remedy)
		if stated {
			d.Related = []diag.Related{{Pos: b.p.Pos(block), Message: "gcs_fault_tolerance"}}
		}
		b.found.Add(d)
	}
	field := func(name string) string {
		if stated {
			return "remove it: that is " + name + " of gcs_fault_tolerance"
		}
		return "write kuberay: gcs_fault_tolerance: " + name + ", or remove it"
	}
	annotation := func(name string) (string, string) {
		t, _ := b.s.Lookup("annotations", name).AsString()
		return tree.Join("kuberay.annotations", name), t
	}
	at, old := annotation(utils.RayFTEnabledAnnotationKey)
	if stated && old != "" {
		refuse(at, utils.RayFTEnabledAnnotationKey+" beside gcs_fault_tolerance", "They are the old and the new way to say that a Redis keeps the state of the head, and the operator refuses both together.", "remove the annotation")
	}
	if at, t := annotation(utils.RayExternalStorageNSAnnotationKey); stated && t != "" {
		refuse(at, utils.RayExternalStorageNSAnnotationKey+" beside gcs_fault_tolerance", "The operator takes it from gcs_fault_tolerance, and refuses the annotation beside it.", field("external_storage_namespace"))
	}
	for _, v := range []struct {
		name, field string
		refused     bool
	}{
		{utils.RAY_REDIS_ADDRESS, "redis_address", stated || !strings.EqualFold(old, "true")},
		{utils.REDIS_USERNAME, "redis_username", true},
		{utils.REDIS_PASSWORD, "redis_password", stated},
	} {
		if at := b.headVariable(v.name); at != "" && v.refused {
			refuse(at, v.name+" is set in the head's pod", "The operator sets it from gcs_fault_tolerance, and refuses it elsewhere.", field(v.field))
		}
	}
	for _, p := range []struct {
		name, field string
		refused     bool
	}{{"redis-username", "redis_username", true}, {"redis-password", "redis_password", stated}} {
		if v := b.s.Lookup("head_ray_start_params", p.name); v.OK() && v.Text != "" && p.refused {
			refuse(tree.Join("kuberay.head_ray_start_params", p.name), p.name+" is among the flags of ray start", "The operator sets it from gcs_fault_tolerance, and refuses it elsewhere.", field(p.field))
		}
	}
	if at := b.headVariable(utils.RAY_EXTERNAL_STORAGE_NS); at != "" && b.s.Lookup("gcs_fault_tolerance", "external_storage_namespace") != nil {
		d := b.p.Finding("GRM8418", diag.Error, at, utils.RAY_EXTERNAL_STORAGE_NS+" is set twice", "Where the variable is set, the operator leaves it, whatever gcs_fault_tolerance says.", "remove it")
		d.Related = []diag.Related{{Pos: b.p.Pos(block + ".external_storage_namespace"), Message: "the other"}}
		b.found.Add(d)
	}
}

// headVariable is where the user sets a variable of the head's container, "" where
// it is not set.
func (b *builder) headVariable(name string) string {
	pods := b.podTemplates()
	if len(pods) == 0 || !utils.EnvVarExists(name, pods[0].spec.Spec.Containers[0].Env) {
		return ""
	}
	if items := b.s.Lookup("head", "spec", "containers"); items.OK() {
		for i, c := range items.Items {
			env := c.Field("env")
			if n, _ := c.Field("name").AsString(); n != HeadContainer || !env.OK() {
				continue
			}
			for j, e := range env.Items {
				if n, _ := e.Field("name").AsString(); n == name {
					return tree.Index(tree.Index("kuberay.head.spec.containers", i)+".env", j)
				}
			}
		}
	}
	for _, field := range []string{"secrets", "env"} {
		if b.s.Lookup(field, name) != nil {
			return tree.Join("kuberay."+field, name)
		}
	}
	return tree.Join(string(b.p.Workload)+".env", name)
}

// startParams checks the flags of ray start that the user adds.
func (b *builder) startParams() {
	for field, gpus := range map[string]string{"head_ray_start_params": "it is what kuberay.head_gpus says", "worker_ray_start_params": "it is what the plan puts into each worker pod"} { // findings are sorted
		for name, f := range map[string]struct{ code, summary, detail, remedy string }{
			"num-gpus": {"GRM8414", "num-gpus is the plan's", "Ray would count other GPUs than the pod has: " + gpus + ".", "remove it"},
			"labels":   {"GRM8419", "labels is among the flags of ray start", "The operator refuses it: it has a field of its own for labels of Ray's nodes. Source: validateRayGroupLabels of ray-operator v1.5.1.", "remove it"},
		} {
			if b.s.Lookup(field, name) != nil {
				b.add(f.code, diag.Error, tree.Join("kuberay."+field, name), f.summary, f.detail, f.remedy)
			}
		}
	}
}

// autoscaling checks the bounds of workers that come and go.
func (b *builder) autoscaling() {
	a := b.s.Field("autoscaling")
	if !a.OK() {
		return
	}
	low, okLow := a.Field("min").AsInt()
	high, okHigh := a.Field("max").AsInt()
	n := b.shape.workers
	switch {
	case !okLow || !okHigh:
	case low > high:
		d := b.p.Finding("GRM8416", diag.Error, "kuberay.autoscaling.max", fmt.Sprintf("max is %d, and min %d", high, low), "Kubernetes takes it, and the operator then makes max of them.", "write a max of at least min")
		d.Related = []diag.Related{{Pos: b.p.Pos("kuberay.autoscaling.min"), Message: "min"}}
		b.found.Add(d)
	case b.shape.used > 0 && b.p.Cluster.GPUsPerNode == 0: // reported by sizes
	case b.shape.perWorker == 0:
		b.add("GRM8416", diag.Warning, "kuberay.autoscaling", "autoscaling without workers", "The plan uses no GPUs, so the run has a head alone.", "remove autoscaling")
	case high < int64(n):
		b.add("GRM8416", diag.Error, "kuberay.autoscaling.max", fmt.Sprintf("max is %s, but the run needs %d", need.Count(int(high), "worker"), n),
			fmt.Sprintf("%s at %d a pod; Ray would wait for the rest for ever.", need.Count(b.shape.used, "GPU"), b.shape.perWorker), fmt.Sprintf("write max: %d, or more", n))
	}
}

// maxObject is the most bytes that an object may have. Source: the default of
// --max-request-bytes of etcd; the API server's own limit is larger, and the
// error of the former says nothing of the object.
const maxObject = 3 << 19

// size checks that the main object can be kept.
func (b *builder) size() {
	if b.objects.RayJob == nil && b.objects.RayService == nil {
		return
	}
	main := b.objects.Main()
	text, err := json.Marshal(main)
	if err != nil || len(text) <= maxObject {
		return
	}
	b.add("GRM8413", diag.Error, string(b.p.Workload), fmt.Sprintf("the %s has %d bytes, and Kubernetes keeps objects of at most %d", main.GetObjectKind().GroupVersionKind().Kind, len(text), maxObject),
		"Variables stand in it twice, for the head and for the workers.", "put long values into files on a volume (kuberay.volumes)")
}

// kueue checks what Kueue asks of an object with a queue. Source: the webhooks of
// Kueue, pkg/controller/jobs/{rayjob,raycluster}/*_webhook.go.
func (b *builder) kueue() {
	queue := b.s.Field("queue")
	suspend, shutdown := b.s.Field("suspend").IsTrue(), b.s.Field("shutdown_after_finish")
	keeps := shutdown.OK() && !shutdown.IsTrue()
	add := func(sev diag.Severity, path, summary, detail, remedy, other string) {
		d := b.p.Finding("GRM8415", sev, path, summary, detail, remedy)
		if other != "" {
			d.Related = []diag.Related{{Pos: b.p.Pos(other), Message: strings.TrimPrefix(other, "kuberay.")}}
		}
		b.found.Add(d)
	}
	if b.p.Workload != plan.Serve {
		switch {
		case queue.OK() && b.s.Field("suspend").OK():
			add(diag.Error, "kuberay.suspend", "suspend beside a queue", "Kueue sets suspend itself: it holds the run until there is room for it, and then lets it go, whatever is written here.", "remove suspend", "kuberay.queue")
		case suspend && keeps:
			add(diag.Error, "kuberay.shutdown_after_finish", "shutdown_after_finish false beside suspend", "The operator refuses to suspend a RayJob whose pods stay. Source: ValidateRayJobSpec of ray-operator v1.5.1.", "write shutdown_after_finish: true", "kuberay.suspend")
		}
		if queue.OK() && keeps {
			add(diag.Error, "kuberay.shutdown_after_finish", "shutdown_after_finish false beside a queue", "Kueue refuses it: the pods of the ended run would hold the quota of the queue.", "write shutdown_after_finish: true", "kuberay.queue")
		}
	}
	if queue.OK() && b.s.Field("autoscaling").OK() {
		add(diag.Warning, "kuberay.autoscaling", "autoscaling beside a queue", "Kueue refuses it, unless its feature gate ElasticJobsViaWorkloadSlices is on, which came to RayJobs with 0.14 and 0.15 (kubernetes-sigs/kueue#8082, #8282).", "remove autoscaling, or ask who runs Kueue", "kuberay.queue")
	}
}

// submission checks how the job is submitted, retried and ended.
func (b *builder) submission() {
	switch mode, _ := b.s.Field("submissionMode").AsString(); mode {
	case "HTTPMode":
		if !b.s.Field("deadline").OK() {
			b.add("GRM8406", diag.Warning, "kuberay.submissionMode", "HTTPMode without a deadline", "If the head pod dies in this mode, the status may stay RUNNING and the pods stay.", "add a deadline, or use K8sJobMode")
		}
	case "SidecarMode":
		path := "kuberay.head.spec.restartPolicy"
		if r, ok := b.s.Field("head").Lookup("spec", "restartPolicy").AsString(); ok && r != string(corev1.RestartPolicyNever) {
			b.add("GRM8407", diag.Error, path, "restartPolicy "+r+" with SidecarMode", "The operator refuses it: a restarted head would submit the job again.", "write restartPolicy: \"Never\", or leave it out")
		}
	case "InteractiveMode":
		b.add("GRM8408", diag.Error, "kuberay.submissionMode", "InteractiveMode does not start the run", "The operator brings the cluster up and waits for someone to submit a job.", "use K8sJobMode, SidecarMode or HTTPMode")
	}
	ttl, _ := b.s.Field("ttl").AsInt()
	if v := b.s.Field("shutdown_after_finish"); ttl > 0 && v.OK() && !v.IsTrue() {
		d := b.p.Finding("GRM8419", diag.Error, "kuberay.ttl", "ttl beside shutdown_after_finish false", "The operator refuses it: the pods of the ended run stay anyway. Source: ValidateRayJobSpec of ray-operator v1.5.1.", "remove one of the two")
		d.Related = []diag.Related{{Pos: b.p.Pos("kuberay.shutdown_after_finish"), Message: "shutdown_after_finish"}}
		b.found.Add(d)
	}
}

// refusals are messages of the operator, told by a part of them, with the field
// that causes each; "" is where RAY_enable_autoscaler_v2 is set.
var refusals = []struct{ part, path, summary, remedy string }{
	{"restartPolicy for head Pod", "kuberay.head.spec.restartPolicy", "the head may not be restarted", "write restartPolicy: \"Never\", or leave it out"},
	{"restartPolicy for worker group", "kuberay.worker.spec.restartPolicy", "workers may not be restarted", "write restartPolicy: \"Never\", or leave it out"},
	{"autoscalerOptions.version", "kuberay.autoscaling.version", "autoscaling.version and RAY_enable_autoscaler_v2 are both set", "remove the variable"},
	{utils.RAY_ENABLE_AUTOSCALER_V2, "", "RAY_enable_autoscaler_v2 is set", "remove the variable, or add autoscaling"},
	{"TTLSecondsAfterFinished", "kuberay.ttl", "ttl beside shutdown_after_finish false", "remove one of the two"},
	{"initializing-timeout", tree.Join("kuberay.annotations", utils.RayServiceInitializingTimeoutAnnotation), "the annotation ray.io/initializing-timeout is no time", "write seconds, or a time such as 30m"},
}

// operator asks the operator's own validation what it would say of the objects.
func (b *builder) operator() {
	refuse := func(kind string, err error) {
		if err == nil {
			return
		}
		path, summary, remedy := "kuberay", "the operator would refuse the "+kind, "change the field that it names"
		for _, r := range refusals {
			if strings.Contains(err.Error(), r.part) {
				path, summary, remedy = r.path, r.summary, r.remedy
				if path == "" {
					path = b.headVariable(utils.RAY_ENABLE_AUTOSCALER_V2)
				}
				break
			}
		}
		b.add("GRM8419", diag.Error, path, summary, "ray-operator v1.5.1 says: "+oneLine(err.Error())+".", remedy)
	}
	if j := b.objects.RayJob; j != nil {
		refuse("RayJob", utils.ValidateRayJobMetadata(j.ObjectMeta))
		refuse("RayJob", utils.ValidateRayJobSpec(j))
	}
	if s := b.objects.RayService; s != nil {
		refuse("RayService", utils.ValidateRayServiceMetadata(s.ObjectMeta))
		refuse("RayService", utils.ValidateRayServiceSpec(s))
	}
}

// tell says what a plan becomes in Kubernetes.
func (b *builder) tell() []plan.Fact {
	p := b.p
	var out []plan.Fact
	add := func(path, format string, args ...any) {
		out = append(out, plan.Fact{Path: path, Text: fmt.Sprintf(format, args...)})
	}
	head, s := "no GPU", b.shape
	if s.gpus > 0 {
		head = need.Count(s.gpus, "GPU")
	}
	kind := "RayJob"
	if p.Workload == plan.Serve {
		kind = "RayService"
	}
	pods := "no workers"
	if s.workers > 0 {
		pods = fmt.Sprintf("%s with %s each", need.Count(s.workers, "worker"), need.Count(s.perWorker, "GPU"))
	}
	if auto := b.s.Field("autoscaling"); auto.OK() && s.perWorker > 0 {
		low, _ := auto.Field("min").AsInt()
		high, _ := auto.Field("max").AsInt()
		pods = fmt.Sprintf("%d to %s with %s each, at first %d", low, need.Count(int(high), "worker"), need.Count(s.perWorker, "GPU"), s.workers)
	}
	add("kuberay", "%s %s: a head with %s, %s", kind, ray.ObjectName(p.Name), head, pods)
	if idle := s.gpus + s.workers*s.perWorker - s.used; s.workers > 0 && idle > 0 && s.used > 0 && (s.first || s.gpus == 0) {
		add("kuberay", "%s of the pods stay idle: those of a run that needs several are whole nodes", need.Count(idle, "GPU"))
	}
	if s.first {
		add("kuberay.head_gpus", "the head is the first of the nodes")
	}
	if p.Workload != plan.Serve {
		switch {
		case b.s.Field("entrypoint_num_gpus").OK() || b.s.Field("entrypoint_num_cpus").OK():
			add("kuberay", "the driver reserves resources, so Ray may start it on any pod")
		case s.gpus == 0:
			add("kuberay", "the driver runs on the head, which has no GPU: what uses one itself, outside Ray's tasks and actors, needs head_gpus or entrypoint_num_gpus")
		default:
			add("kuberay", "the driver runs on the head; Ray hides the GPUs of it from the driver unless entrypoint_num_gpus reserves some")
		}
	}
	if v := b.s.Field("rayVersion"); !v.OK() {
		if b.rayV != "" {
			add("kuberay.image", "Ray %s, as the image's tag says", b.rayV)
		} else {
			add("kuberay", "the Ray release is not known: state rayVersion, by which the operator chooses its commands, and which job metadata needs")
		}
	}
	var open []string
	for _, t := range b.podTemplates() {
		r := t.spec.Spec.Containers[0].Resources
		for _, x := range []struct {
			r    corev1.ResourceName
			name string
		}{{corev1.ResourceCPU, "cpus"}, {corev1.ResourceMemory, "memory"}} {
			_, limited := r.Limits[x.r]
			if _, asked := r.Requests[x.r]; !limited && !asked {
				open = append(open, t.field+"_"+x.name)
			}
		}
	}
	if len(open) > 0 {
		add("kuberay", "nothing is asked of Kubernetes for %s: Ray counts what the node has, and the pods are the first to be evicted", strings.Join(open, ", "))
	}
	if v := b.s.Field("gcs_fault_tolerance"); v.OK() {
		b.kept(v, add)
	}
	if p.Workload != plan.Serve {
		b.life(add)
	}
	for _, ref := range b.openSecrets() {
		add("kuberay.secrets", "%s is read in the pod where the driver starts: its image, template or kuberay.secrets must set it", ref)
	}
	return append(out, b.facts...)
}

// kept tells where the state of the head is kept, and with whom it is shared.
func (b *builder) kept(v *tree.Value, add func(path, format string, args ...any)) {
	address, _ := v.Field("redis_address").AsString()
	name, ok := v.Field("external_storage_namespace").AsString()
	switch {
	case !ok:
		add("kuberay.gcs_fault_tolerance", "the Redis at %s keeps the state of the head, for each Ray cluster by itself", address)
	case b.p.Workload == plan.Serve:
		add("kuberay.gcs_fault_tolerance.external_storage_namespace", "the Redis at %s keeps the state of the head as %s, which the old and the new Ray cluster share while the RayService is upgraded, and whoever else names it", address, name)
	default:
		add("kuberay.gcs_fault_tolerance.external_storage_namespace", "the Redis at %s keeps the state of the head as %s, which every run that names it shares, and each try of this one", address, name)
	}
}

// life tells when the run ends and what is kept of it.
func (b *builder) life(add func(path, format string, args ...any)) {
	spec := b.objects.RayJob.Spec
	if spec.ShutdownAfterJobFinishes {
		add("kuberay.ttl", "the pods go %s after the end", seconds(int64(spec.TTLSecondsAfterFinished)))
	} else {
		add("kuberay.shutdown_after_finish", "the pods stay after the end, with their GPUs, until the RayJob is deleted")
	}
	if d := spec.ActiveDeadlineSeconds; d != nil {
		text := "the run is ended after " + seconds(int64(*d)) + ", start included, however well it does"
		if n := spec.BackoffLimit; n != nil && *n > 0 {
			text += "; that is not tried again, whatever backoff_limit says, and each try has the time anew"
		}
		add("kuberay.deadline", "%s", text)
	}
}

func seconds(n int64) string {
	switch {
	case n == 0:
		return "at once"
	case n == 1:
		return "1 second"
	}
	return strconv.FormatInt(n, 10) + " seconds"
}

// openSecrets lists the variables that the pods must have by other means than
// this block.
func (b *builder) openSecrets() []string {
	var out []string
	add := func(name string) {
		if _, ok := b.secrets[name]; name != "" && !ok && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	arg := func(a plan.Arg) {
		for _, h := range a.Placeholders() {
			if kind, name, _ := strings.Cut(h.Name, ":"); h.Kind == "secret" && kind == "env" {
				add(name)
			}
		}
	}
	if b.p.Workload == plan.Serve {
		return nil
	}
	for _, e := range b.p.Launch.Env {
		add(e.Value.SecretEnv)
		arg(e.Value.Text)
	}
	for _, a := range b.p.Launch.Argv {
		arg(a)
	}
	return out
}

// count is a number with its word, "no GPU" for none.
func count(n int, word string) string {
	if n == 0 {
		return "no " + word
	}
	return need.Count(min(n, math.MaxInt32), word)
}
