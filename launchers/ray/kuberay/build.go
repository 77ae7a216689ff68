package kuberay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/image"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/ray"
)

const (
	// defaultTTL is for how many seconds the pods of an ended run are kept: long
	// enough for whoever follows it to read the end of the log.
	defaultTTL = 60

	// defaultMode is the operator's own default.
	defaultMode = rayv1.K8sJobMode

	// defaultGPU is the resource that GPUs are in Kubernetes.
	defaultGPU = "nvidia.com/gpu"

	// What the operator gives the autoscaler's container. Source:
	// BuildAutoscalerContainer in controllers/ray/common/pod.go of ray-operator v1.5.1.
	autoscalerCPU    = "500m"
	autoscalerMemory = "512Mi"

	// maxConfigMap is the most bytes that a ConfigMap's values may have together.
	// Source: MaxSecretSize of k8s.io/api/core/v1, which it shares.
	maxConfigMap = corev1.MaxSecretSize
)

// Ports of the head, which the operator's services lead to. Source:
// controllers/ray/utils/constant.go of ray-operator v1.5.1. The protocol is the
// API server's default, stated so that the same manifest is no change to kubectl.
var headPorts = []corev1.ContainerPort{
	{Name: "gcs-server", ContainerPort: 6379, Protocol: corev1.ProtocolTCP},
	{Name: "dashboard", ContainerPort: 8265, Protocol: corev1.ProtocolTCP},
	{Name: "client", ContainerPort: 10001, Protocol: corev1.ProtocolTCP},
}

// servePort is where Ray Serve listens.
var servePort = corev1.ContainerPort{Name: "serve", ContainerPort: 8000, Protocol: corev1.ProtocolTCP}

type secretKey struct{ name, key string }

func asSecretKey(v *tree.Value) secretKey {
	name, _ := v.Field("name").AsString()
	key, _ := v.Field("key").AsString()
	return secretKey{name, key}
}

func fromSecret(k secretKey) *corev1.EnvVarSource {
	return &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: k.name}, Key: k.key}}
}

// builder makes the objects of one run.
type builder struct {
	p       *plan.Plan
	hash    string      // of the plan
	s       *tree.Value // the user's block, nil if there is none
	run     Run
	found   diag.List
	objects *Objects
	cmd     command
	secrets map[string]secretKey
	shape   shape
	rayV    string      // Ray release, "" if nothing tells it
	facts   []plan.Fact // what the user's templates replace

	tolerations []corev1.Toleration
	volumes     []corev1.Volume
	mounts      []corev1.VolumeMount
}

// shape is what pods a run has.
type shape struct {
	gpus      int  // of the head
	workers   int  // pods
	perWorker int  // GPUs of each
	used      int  // GPUs that the run holds, as far as the plan tells
	first     bool // the head stands in for the first of the workers
}

func build(p *plan.Plan, run Run, hash string) (*builder, error) {
	b := &builder{p: p, hash: hash, s: settings(p), run: run, objects: &Objects{}, secrets: map[string]secretKey{}}
	if v := b.s.Field("secrets"); v.OK() {
		for _, f := range v.Fields {
			b.secrets[f.Name] = asSecretKey(f.Value)
		}
	}
	b.tolerations = decode[corev1.Toleration](b, "tolerations")
	b.volumes = decode[corev1.Volume](b, "volumes")
	b.mounts = decode[corev1.VolumeMount](b, "volume_mounts")
	b.rayV = b.rayVersion()
	b.shape = b.pods()
	if p.Workload == plan.Serve {
		return b, b.service()
	}
	return b, b.job()
}

// rayVersion is the stated Ray release, or the one that the image's tag names.
func (b *builder) rayVersion() string {
	if v, ok := b.s.Field("rayVersion").AsString(); ok {
		return v
	}
	ref, _ := b.s.Field("image").AsString()
	return image.Ray(ref)
}

// pods says how many pods the run has and the GPUs of each: of one node what it
// uses there, of several the whole nodes, since Ray, and not the plan, decides
// which engine goes to which.
func (b *builder) pods() shape {
	p, c := b.p, b.p.Cluster
	var s shape
	s.used = need.GPUs(p)
	n := c.NodesNeeded
	stated := p.Positions["cluster.nodes"].IsValid()
	if p.Workload == plan.Gym && stated {
		n = max(n, c.Nodes) // other servers of Gym's may use what the plan does not know
	}
	switch {
	case s.used == 0 && !(p.Workload == plan.Gym && stated), c.GPUsPerNode == 0:
		n = 0
	case n == 1 && !stated && s.used < c.GPUsPerNode, n == 1 && p.Workload != plan.Gym:
		s.perWorker = min(s.used, c.GPUsPerNode)
	default:
		s.perWorker = c.GPUsPerNode
	}
	s.workers = n
	s.gpus = b.headGPUs()
	if s.gpus > 0 && n > 0 && s.gpus >= s.perWorker {
		s.first = true
		s.workers--
	}
	return s
}

// headGPUs is what head_gpus, or the head's template, gives the head.
func (b *builder) headGPUs() int {
	if v := b.s.Field("head_gpus"); v != nil {
		return b.s.Size("head_gpus")
	}
	items := b.s.Lookup("head", "spec", "containers")
	if !items.OK() {
		return 0
	}
	for _, c := range items.Items {
		if name, _ := c.Field("name").AsString(); name != HeadContainer {
			continue
		}
		if v := c.Lookup("resources", "limits", string(b.gpuResource())); v.OK() {
			if q, err := resource.ParseQuantity(v.Text); err == nil {
				return int(q.Value())
			}
		}
	}
	return 0
}

func (b *builder) meta() metav1.ObjectMeta {
	name := ray.ObjectName(b.p.Name)
	m := metav1.ObjectMeta{Name: Name(b.p, b.run.ID), Labels: map[string]string{ManagedBy: Manager, LabelExperiment: name}, Annotations: map[string]string{}}
	m.Namespace, _ = b.s.Field("namespace").AsString()
	if b.run.ID != "" {
		m.Labels[LabelRun] = b.run.ID
	}
	created := ""
	if !b.run.Created.IsZero() {
		created = b.run.Created.UTC().Format(time.RFC3339)
	}
	for _, a := range [][2]string{
		{AnnotationPlanHash, b.hash}, {AnnotationVersion, b.run.Version}, {AnnotationUser, b.run.User}, {AnnotationHost, b.run.Host},
		{AnnotationName, b.p.Name}, {AnnotationWorkload, string(b.p.Workload)}, {AnnotationCreated, created},
	} {
		if a[1] != "" {
			m.Annotations[a[0]] = a[1]
		}
	}
	return m
}

// maxWord is the longest argument or variable that Linux gives to a program.
// Source: MAX_ARG_STRLEN, less the byte that ends it.
const maxWord = 128<<10 - 1

// lengths reports words and variables that no program can be given.
func (b *builder) lengths() {
	long := func(path, what string, n int) {
		if n > maxWord {
			b.add("GRM8413", diag.Error, path, fmt.Sprintf("%s has %d bytes, and Linux hands a program at most %d", what, n, maxWord), "", "put the value into a file on a volume (kuberay.volumes)")
		}
	}
	for i, a := range b.p.Launch.Argv {
		long(string(b.p.Workload), fmt.Sprintf("word %d of the command", i+1), len(a))
	}
	for _, e := range b.cmd.pods {
		long(tree.Join(string(b.p.Workload)+".env", e.name), e.name, len(e.name)+1+len(e.text))
	}
}

// configMap holds the run's files.
func (b *builder) configMap() {
	data, binary := map[string]string{}, map[string][]byte{}
	size := 0
	put := func(name, text string) {
		size += len(text)
		if utf8.ValidString(text) {
			data[name] = text
		} else {
			binary[name] = []byte(text)
		}
	}
	for _, a := range b.p.Artifacts {
		put(a.Name, a.Text)
	}
	if b.cmd.script != "" {
		put(scriptName, b.cmd.script)
	}
	if len(data)+len(binary) == 0 {
		return
	}
	if size > maxConfigMap {
		b.add("GRM8413", diag.Error, string(b.p.Workload), fmt.Sprintf("the run's files have %d bytes, and a ConfigMap holds %d", size, maxConfigMap),
			"The command and the files that it reads reach the pods by a ConfigMap.", "put long values into files on a volume (kuberay.volumes)")
	}
	b.objects.ConfigMap = &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: b.meta()}
	if len(data) > 0 {
		b.objects.ConfigMap.Data = data
	}
	if len(binary) > 0 {
		b.objects.ConfigMap.BinaryData = binary
	}
}

func (b *builder) add(code string, sev diag.Severity, path, summary, detail, remedy string) {
	b.found.Add(b.p.Finding(code, sev, path, summary, detail, remedy))
}

// queued is the metadata of the main object.
func (b *builder) queued() metav1.ObjectMeta {
	m := b.meta()
	maps.Copy(m.Labels, texts(b.s.Field("labels"))) // genrm's own are refused
	maps.Copy(m.Annotations, texts(b.s.Field("annotations")))
	if q, ok := b.s.Field("queue").AsString(); ok {
		m.Labels[LabelQueue] = q
	}
	return m
}

// texts are the fields of a struct of texts, nil if there are none.
func texts(v *tree.Value) map[string]string {
	if !v.OK() || len(v.Fields) == 0 {
		return nil
	}
	m := map[string]string{}
	for _, f := range v.Fields {
		if t, ok := f.Value.AsString(); ok {
			m[f.Name] = t
		}
	}
	return m
}

// words are the fields of a struct of texts, each as one word of a shell: the
// operator writes them as they are to the line of bash that starts Ray. Source:
// convertParamMap in controllers/ray/common/pod.go of ray-operator v1.5.1.
func (b *builder) words(field string) map[string]string {
	m := texts(b.s.Field(field))
	for name, text := range m {
		word, err := shell.Quote(text)
		if err != nil { // a NUL, which was found before
			continue
		}
		m[name] = word
	}
	return m
}

func (b *builder) mode() rayv1.JobSubmissionMode {
	if m, ok := b.s.Field("submissionMode").AsString(); ok {
		return rayv1.JobSubmissionMode(m)
	}
	return defaultMode
}

func (b *builder) job() error {
	var err error
	if b.cmd, err = start(b.p, b.hash, b.secrets); err != nil {
		return err
	}
	b.lengths()
	b.configMap()
	cluster := b.cluster()
	spec := rayv1.RayJobSpec{
		Entrypoint: b.cmd.entrypoint, SubmissionMode: b.mode(), RayClusterSpec: &cluster,
		ShutdownAfterJobFinishes: true, TTLSecondsAfterFinished: defaultTTL,
	}
	if b.run.ID != "" {
		if spec.JobId, err = ray.SubmissionID(b.run.ID, 1); err != nil {
			return err
		}
	}
	if v, ok := b.s.Field("shutdown_after_finish").AsBool(); ok {
		spec.ShutdownAfterJobFinishes = v
		if !v {
			spec.TTLSecondsAfterFinished = 0
		}
	}
	if v, ok := b.s.Field("ttl").AsInt(); ok {
		spec.TTLSecondsAfterFinished = int32(v)
	}
	if v, ok := b.s.Field("deadline").AsInt(); ok {
		n := int32(v)
		spec.ActiveDeadlineSeconds = &n
	}
	if v, ok := b.s.Field("backoff_limit").AsInt(); ok {
		n := int32(v)
		spec.BackoffLimit = &n
	}
	spec.Suspend = b.s.Field("suspend").IsTrue()
	if v, ok := b.s.Field("entrypoint_num_gpus").AsFloat(); ok {
		spec.EntrypointNumGpus = float32(v)
	}
	if v, ok := b.s.Field("entrypoint_num_cpus").AsFloat(); ok {
		spec.EntrypointNumCpus = float32(v)
	}
	if b.run.ID != "" && takesMetadata(b.rayV) {
		spec.Metadata = map[string]string{"genrm_run_id": b.run.ID, "genrm_plan_hash": b.hash}
	}
	if spec.SubmissionMode == rayv1.K8sJobMode {
		spec.SubmitterPodTemplate = b.submitter(cluster.HeadGroupSpec.Template.Spec.Containers[0].Image)
	}
	b.objects.RayJob = &rayv1.RayJob{TypeMeta: metav1.TypeMeta{APIVersion: rayv1.GroupVersion.String(), Kind: "RayJob"}, ObjectMeta: b.queued(), Spec: spec}
	return nil
}

// takesMetadata says whether the operator can hand metadata to a Ray of that
// release: without a plain release of 2.6.0 or newer it cannot submit such a job.
// Source: GetMetadataJson in controllers/ray/common/job.go of ray-operator v1.5.1.
func takesMetadata(release string) bool {
	if !plainRelease.MatchString(release) {
		return false
	}
	v, err := version.ParseGeneric(release)
	return err == nil && v.AtLeast(version.MajorMinor(2, 6))
}

var plainRelease = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)

func (b *builder) service() error {
	app, _, err := ray.ServeApplicationFor(b.p, plan.KubeRay)
	if err != nil {
		return err
	}
	deploy := map[string]any{"applications": []any{app}}
	for _, field := range []string{"http_options", "proxy_location"} {
		if v := b.s.Lookup("serve", field); v.OK() {
			deploy[field] = v
		}
	}
	config, err := asYAML(deploy)
	if err != nil {
		return err
	}
	b.objects.RayService = &rayv1.RayService{
		TypeMeta: metav1.TypeMeta{APIVersion: rayv1.GroupVersion.String(), Kind: "RayService"}, ObjectMeta: b.queued(),
		Spec: rayv1.RayServiceSpec{ServeConfigV2: string(config), RayClusterSpec: b.cluster(), ExcludeHeadPodFromServeSvc: b.s.Field("exclude_head_from_serve").IsTrue()},
	}
	spec := &b.objects.RayService.Spec
	if v := b.s.Field("serve_service"); v.OK() {
		spec.ServeService = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: texts(v.Field("labels")), Annotations: texts(v.Field("annotations"))}}
		if t, ok := v.Field("type").AsString(); ok {
			spec.ServeService.Spec.Type = corev1.ServiceType(t)
		}
	}
	if t, ok := b.s.Field("upgrade_strategy").AsString(); ok {
		kind := rayv1.RayServiceUpgradeType(t)
		spec.UpgradeStrategy = &rayv1.RayServiceUpgradeStrategy{Type: &kind}
	}
	if v, ok := b.s.Field("cluster_deletion_delay").AsInt(); ok {
		n := int32(v)
		spec.RayClusterDeletionDelaySeconds = &n
	}
	if b.run.ID != "" {
		line := new(bytes.Buffer)
		if err := json.Compact(line, []byte(ray.GatewayText(b.p))); err == nil { // "" is no JSON: a plan for a check has none
			b.objects.RayService.Annotations[AnnotationGateway] = line.String()
		}
	}
	return nil
}

func (b *builder) cluster() rayv1.RayClusterSpec {
	c := rayv1.RayClusterSpec{RayVersion: b.rayV}
	head := b.template("head", b.podTemplate(HeadContainer, b.shape.gpus, true))
	c.HeadGroupSpec = rayv1.HeadGroupSpec{Template: head, RayStartParams: b.params(head, b.shape.gpus)}
	c.HeadGroupSpec.RayStartParams["dashboard-host"] = "0.0.0.0"
	maps.Copy(c.HeadGroupSpec.RayStartParams, b.words("head_ray_start_params"))
	c.GcsFaultToleranceOptions = b.faultTolerance()
	if t, ok := b.s.Lookup("head_service", "type").AsString(); ok {
		c.HeadGroupSpec.ServiceType = corev1.ServiceType(t)
	}
	c.HeadServiceAnnotations = texts(b.s.Lookup("head_service", "annotations"))
	auto := b.s.Field("autoscaling")
	if b.shape.workers > 0 || auto.OK() && b.shape.perWorker > 0 {
		n := int32(b.shape.workers)
		low, high := n, n
		if auto.OK() {
			yes := true
			c.EnableInTreeAutoscaling = &yes
			if v, ok := auto.Field("min").AsInt(); ok {
				low = int32(v)
			}
			if v, ok := auto.Field("max").AsInt(); ok {
				high = int32(v)
			}
			c.AutoscalerOptions = b.autoscaler(auto)
		}
		worker := b.template("worker", b.podTemplate(WorkerContainer, b.shape.perWorker, false))
		c.WorkerGroupSpecs = []rayv1.WorkerGroupSpec{{
			GroupName: "workers", Replicas: &n, MinReplicas: &low, MaxReplicas: &high, NumOfHosts: 1,
			Template: worker, RayStartParams: b.params(worker, b.shape.perWorker),
		}}
		maps.Copy(c.WorkerGroupSpecs[0].RayStartParams, b.words("worker_ray_start_params"))
	}
	return c
}

// faultTolerance is the Redis that keeps the state of the head, nil if there is
// none. What is secret is referred to.
func (b *builder) faultTolerance() *rayv1.GcsFaultToleranceOptions {
	v := b.s.Field("gcs_fault_tolerance")
	if !v.OK() {
		return nil
	}
	o := &rayv1.GcsFaultToleranceOptions{}
	o.RedisAddress, _ = v.Field("redis_address").AsString()
	o.ExternalStorageNamespace, _ = v.Field("external_storage_namespace").AsString()
	credential := func(field string) *rayv1.RedisCredential {
		if !v.Field(field).OK() {
			return nil
		}
		return &rayv1.RedisCredential{ValueFrom: fromSecret(asSecretKey(v.Field(field)))}
	}
	o.RedisUsername, o.RedisPassword = credential("redis_username"), credential("redis_password")
	return o
}

// autoscaler is what is stated of Ray's autoscaler, nil if nothing is.
func (b *builder) autoscaler(v *tree.Value) *rayv1.AutoscalerOptions {
	var o rayv1.AutoscalerOptions
	if n, ok := v.Field("idle_timeout").AsInt(); ok {
		idle := int32(n)
		o.IdleTimeoutSeconds = &idle
	}
	if t, ok := v.Field("upscaling_mode").AsString(); ok {
		mode := rayv1.UpscalingMode(t)
		o.UpscalingMode = &mode
	}
	if t, ok := v.Field("version").AsString(); ok {
		release := rayv1.AutoscalerVersion(t)
		o.Version = &release
	}
	cpu, okCPU := b.quantity("autoscaling", "cpus")
	memory, okMemory := b.quantity("autoscaling", "memory")
	if okCPU || okMemory {
		// The operator takes this in the place of its own: what is left out would be no limit.
		limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(autoscalerCPU), corev1.ResourceMemory: resource.MustParse(autoscalerMemory)}
		if okCPU {
			limits[corev1.ResourceCPU] = cpu
		}
		if okMemory {
			limits[corev1.ResourceMemory] = memory
		}
		o.Resources = &corev1.ResourceRequirements{Limits: limits, Requests: limits.DeepCopy()}
	}
	if o.IdleTimeoutSeconds == nil && o.UpscalingMode == nil && o.Version == nil && o.Resources == nil {
		return nil
	}
	return &o
}

// params are the flags of ray start that say what the pod has: read from the
// limits of the container, so that Ray's numbers and those of Kubernetes are the
// same.
func (b *builder) params(t corev1.PodTemplateSpec, gpus int) map[string]string {
	params := map[string]string{"num-gpus": strconv.Itoa(gpus)}
	if len(t.Spec.Containers) == 0 {
		return params
	}
	limits := t.Spec.Containers[0].Resources.Limits
	if cpu := limits[corev1.ResourceCPU]; !cpu.IsZero() {
		params["num-cpus"] = strconv.FormatInt(cpu.Value(), 10)
	}
	return params
}

// gpuResource is what GPUs are called in the cluster.
func (b *builder) gpuResource() corev1.ResourceName {
	if v, ok := b.s.Field("gpu_resource").AsString(); ok {
		return corev1.ResourceName(v)
	}
	return defaultGPU
}

// quantity reads a quantity that Check has found good, or reports it.
func (b *builder) quantity(steps ...string) (resource.Quantity, bool) {
	v, field := b.s.Lookup(steps...), strings.Join(steps, ".")
	if !v.OK() || v.Text == "" {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(v.Text)
	if err != nil || q.Sign() <= 0 {
		b.add("GRM8412", diag.Error, "kuberay."+field, fmt.Sprintf("%s is %q, which is no quantity", field, v.Text),
			"Kubernetes takes a positive number with a unit: m for thousandths, k, M, G or T, and Ki, Mi, Gi or Ti for powers of 1024.", "write 8 or \"500m\" for CPUs, \"64Gi\" for memory")
		return resource.Quantity{}, false
	}
	if !strings.HasSuffix(field, "cpus") && q.Cmp(resource.MustParse("1Mi")) < 0 {
		b.add("GRM8412", diag.Error, "kuberay."+field, fmt.Sprintf("%s is %s, which are bytes", field, v.Text),
			"No program starts in less than a mebibyte.", fmt.Sprintf("write a unit: %q", v.Text+"Gi"))
		return resource.Quantity{}, false
	}
	return q, true
}

// podTemplate is the generated template of head or workers.
func (b *builder) podTemplate(name string, gpus int, head bool) corev1.PodTemplateSpec {
	c := corev1.Container{Name: name, Env: b.env()}
	c.Image, _ = b.s.Field("image").AsString()
	prefix := "worker_"
	if head {
		prefix = "head_"
		c.Ports = slices.Clone(headPorts)
		if b.p.Workload == plan.Serve {
			port := servePort
			if n := b.s.Lookup("serve", "http_options").Size("port"); n > 0 {
				port.ContainerPort = int32(n)
			}
			c.Ports = append(c.Ports, port)
		}
	}
	limits := corev1.ResourceList{}
	if q, ok := b.quantity(prefix + "cpus"); ok {
		limits[corev1.ResourceCPU] = q
	}
	if q, ok := b.quantity(prefix + "memory"); ok {
		limits[corev1.ResourceMemory] = q
	}
	if gpus > 0 {
		limits[b.gpuResource()] = *resource.NewQuantity(int64(gpus), resource.DecimalSI)
	}
	if len(limits) > 0 {
		c.Resources = corev1.ResourceRequirements{Limits: limits, Requests: limits.DeepCopy()}
	}
	shm := corev1.Volume{Name: "shared-mem", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}}
	if q, ok := b.quantity("shm_size"); ok {
		shm.EmptyDir.SizeLimit = &q
		if memory, limited := limits[corev1.ResourceMemory]; limited && !head && q.Cmp(memory) > 0 {
			b.add("GRM8412", diag.Warning, "kuberay.shm_size", fmt.Sprintf("shm_size is %s, and worker_memory %s", q.String(), memory.String()),
				"Shared memory counts as memory of the container, which is killed before it has so much.", "use less, or set kuberay.worker_memory above it")
		}
	}
	spec := corev1.PodSpec{Volumes: []corev1.Volume{shm}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: shm.Name, MountPath: "/dev/shm"}}
	if m := b.objects.ConfigMap; m != nil {
		files := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: m.Name}}
		if head && b.s.Field("gcs_fault_tolerance").OK() {
			// The operator empties the Redis by a pod made after the head's, when the run has
			// been removed, and with it the config map: the pod would wait for it, and the end
			// of the Ray cluster for the pod. Source: buildRedisCleanupJob in
			// controllers/ray/raycluster_controller.go of ray-operator v1.5.1.
			optional := true
			files.Optional = &optional
		}
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "genrm", VolumeSource: corev1.VolumeSource{ConfigMap: files}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "genrm", MountPath: filesDir, ReadOnly: true})
	}
	spec.Volumes = append(spec.Volumes, b.volumes...)
	c.VolumeMounts = append(c.VolumeMounts, b.mounts...)
	spec.Containers = []corev1.Container{c}
	b.scheduling(&spec)
	return corev1.PodTemplateSpec{Spec: spec}
}

// scheduling sets what every pod has, the submitter's too.
func (b *builder) scheduling(spec *corev1.PodSpec) {
	spec.ServiceAccountName, _ = b.s.Field("service_account").AsString()
	if v := b.s.Field("node_selector"); v.OK() && len(v.Fields) > 0 {
		spec.NodeSelector = map[string]string{}
		for _, f := range v.Fields {
			spec.NodeSelector[f.Name] = f.Value.Text
		}
	}
	spec.Tolerations = slices.Clone(b.tolerations)
	if v := b.s.Field("image_pull_secrets"); v.OK() {
		for _, item := range v.Items {
			spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: item.Text})
		}
	}
}

// env is the environment of every Ray pod, in the order: the plan's, the user's
// secrets, the user's own.
func (b *builder) env() []corev1.EnvVar {
	var out []corev1.EnvVar
	seen := map[string]bool{}
	put := func(e corev1.EnvVar) {
		if !seen[e.Name] { // Kubernetes refuses a second one of a name
			seen[e.Name] = true
			out = append(out, e)
		}
	}
	secret := func(name string, k secretKey) {
		put(corev1.EnvVar{Name: name, ValueFrom: fromSecret(k)})
	}
	for _, e := range b.cmd.pods {
		if e.secret != "" {
			secret(e.name, secretKey{e.secret, e.key})
			continue
		}
		put(corev1.EnvVar{Name: e.name, Value: unexpanded(e.text)})
	}
	if v := b.s.Field("secrets"); v.OK() {
		for _, f := range v.Fields {
			secret(f.Name, b.secrets[f.Name])
		}
	}
	if v := b.s.Field("env"); v.OK() {
		for _, f := range v.Fields {
			if t, ok := f.Value.AsString(); ok {
				put(corev1.EnvVar{Name: f.Name, Value: unexpanded(t)})
			}
		}
	}
	return out
}

// submitter is the pod that submits the job. The operator's own would have
// neither the account nor the pull secrets, so a registry or a node that needs
// them refuses it.
func (b *builder) submitter(image string) *corev1.PodTemplateSpec {
	var spec corev1.PodSpec
	b.scheduling(&spec)
	if spec.ServiceAccountName == "" && len(spec.NodeSelector)+len(spec.ImagePullSecrets)+len(spec.Tolerations) == 0 {
		return nil
	}
	spec.RestartPolicy = corev1.RestartPolicyNever
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)}
	}
	spec.Containers = []corev1.Container{{ // as the operator's own
		Name: SubmitterContainer, Image: image,
		Resources: corev1.ResourceRequirements{Limits: list("1", "1Gi"), Requests: list("500m", "200Mi")},
	}}
	return &corev1.PodTemplateSpec{Spec: spec}
}
