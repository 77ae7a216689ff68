package kuberay

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/common"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// stub is what the test binary does when it stands in for a program.
const stub = "GENRM_TEST_STUB"

func TestMain(m *testing.M) {
	switch os.Getenv(stub) {
	case "":
		os.Exit(m.Run())
	default:
		os.Exit(standIn())
	}
}

// standIn is `ray` or the driver. As ray it does with the words of `job submit`
// what ray 2.60.0 does: it joins them by the rules of Windows, and the cluster
// gives the text to /bin/sh. As the driver it records its arguments and
// environment.
func standIn() int {
	if filepath.Base(os.Args[0]) != "ray" {
		text, err := json.Marshal(map[string]any{"argv": os.Args, "env": os.Environ()})
		if err == nil {
			err = os.WriteFile(os.Getenv(stub), text, 0o600)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	args := os.Args[1:]
	switch i := slices.Index(args, "--"); {
	case len(args) > 1 && args[1] == "status":
		return 1 // not known yet
	case len(args) > 1 && args[1] == "logs":
		return 0
	case i < 0:
		return 64
	default:
		cmd := exec.Command("/bin/sh", "-c", list2cmdline(args[i+1:]))
		cmd.Stderr = os.Stderr
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// list2cmdline joins words as Python's subprocess does: those with a blank or
// nothing in double quotes, a double quote as \".
func list2cmdline(words []string) string {
	var out []string
	for _, w := range words {
		quoted := strings.ReplaceAll(w, `"`, `\"`)
		if w == "" || strings.ContainsAny(w, " \t") {
			quoted = `"` + quoted + `"`
		}
		out = append(out, quoted)
	}
	return strings.Join(out, " ")
}

const relaxBody = `
relax: {
	resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
	colocate: true
	genrm_instances: quality: {model_path: "/models/judge", num_gpus: 4, num_gpus_per_engine: 4, sampling_config: {temperature: 0.1, max_response_len: 64}}
	custom_rm_path: "rewards.judge.score"
	reward_key:     "score"
	root:           "/opt/Relax"
	args: {hf_checkpoint: "/models/policy", enable_affinity: false}
}
cluster: gpus_per_node: 8
`

const serveBody = `
serve: instances: quality: {engine: "vllm", model_path: "/m/j", num_gpus: 4, num_gpus_per_engine: 2}
cluster: gpus_per_node: 8
`

const imageField = `image: "site/ray:2.60.0", `

// compile returns the plan of a source, and what was found.
func compile(t testing.TB, src string) (*plan.Plan, diag.List) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "experiment.cue")
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	r := compiler.Compile([]string{file}, compiler.Options{Checks: []plan.Checker{Checker()}, Target: plan.KubeRay})
	if len(r.Plans) == 1 {
		return r.Plans[0], r.Diagnostics
	}
	return nil, r.Diagnostics
}

func accepted(t testing.TB, src string) *plan.Plan {
	t.Helper()
	p, l := compile(t, src)
	if p == nil {
		t.Fatalf("refused: %+v", l)
	}
	return p
}

func relax(block string) string {
	return "name: \"judged\"\nkuberay: {" + imageField + block + "}\n" + relaxBody
}

func serve(block string) string {
	return "name: \"judges\"\nkuberay: {" + imageField + block + "}\n" + serveBody
}

var testRun = Run{ID: "judged-20260102-150405-0a1b2c", User: "ada", Host: "desk", Version: "1.2.3", Created: time.Date(2026, 1, 2, 15, 4, 5, 0, time.UTC)}

func built(t testing.TB, p *plan.Plan, run Run) *Objects {
	t.Helper()
	o, l, err := Build(p, run)
	if err != nil || len(l) > 0 {
		t.Fatal(err, l)
	}
	return o
}

// rich is a block with nearly every field.
const rich = `namespace: "rl", rayVersion: "2.60.0", head_cpus: 8, head_memory: "32Gi", worker_cpus: "95500m", worker_memory: "900Gi", shm_size: "64Gi",
	service_account: "trainer", node_selector: {"gpu.site/kind": "h100"}, tolerations: [{key: "nvidia.com/gpu", operator: "Exists", effect: "NoSchedule"}],
	image_pull_secrets: ["registry"], secrets: HF_TOKEN: {name: "hub", key: "token"}, env: NCCL_DEBUG: "INFO",
	volumes: [{name: "models", persistentVolumeClaim: {claimName: "models", readOnly: true}}, {name: "scratch", emptyDir: {}}],
	volume_mounts: [{name: "models", mountPath: "/models", readOnly: true}, {name: "scratch", mountPath: "/scratch"}],
	autoscaling: {min: 0, max: 2, idle_timeout: 120, upscaling_mode: "Conservative", version: "v2", memory: "1Gi"}, backoff_limit: 2,
	gcs_fault_tolerance: {redis_address: "rediss://redis.ml:6380", redis_username: {name: "redis", key: "user"}, redis_password: {name: "redis", key: "password"}, external_storage_namespace: "judges"},
	head_ray_start_params: {"num-cpus": "0", "object-store-memory": "20000000000"}, worker_ray_start_params: resources: "{\"judge\": 1}",
	labels: "volcano.sh/queue-name": "rl", annotations: "site/owner": "rl team", head_service: {type: "LoadBalancer", annotations: "cloud/internal": "true"}, deadline: 86400, ttl: 600, entrypoint_num_cpus: 2,
	head: {metadata: labels: team: "rl", spec: containers: [{name: "ray-head", env: [{name: "A", value: "b"}]}]}, worker: spec: hostNetwork: true`

func TestBuildJob(t *testing.T) {
	p := accepted(t, relax(rich))
	o := built(t, p, testRun)
	if o.RayService != nil || o.Main() != o.RayJob || len(o.All()) != 2 || o.All()[0] != o.ConfigMap {
		t.Fatalf("%+v", o.All())
	}
	j := o.RayJob
	for _, m := range o.All() {
		if m.GetName() != "judged-0a1b2c" || m.GetNamespace() != "rl" || m.GetObjectKind().GroupVersionKind().Empty() {
			t.Errorf("%s %s %v", m.GetNamespace(), m.GetName(), m.GetObjectKind())
		}
		l, a := m.GetLabels(), m.GetAnnotations()
		if main := m == o.Main(); (l["volcano.sh/queue-name"] == "rl") != main || (a["site/owner"] == "rl team") != main {
			t.Errorf("%v %v", l, a)
		}
		delete(a, "site/owner")
		if l[LabelRun] != testRun.ID || l[LabelExperiment] != "judged" || l[ManagedBy] != Manager {
			t.Errorf("labels %v", l)
		}
		for k, v := range l {
			if e := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(e) > 0 {
				t.Errorf("%s: %s: %v", k, v, e)
			}
		}
		hash, _ := p.Hash()
		want := map[string]string{AnnotationPlanHash: hash, AnnotationVersion: "1.2.3", AnnotationUser: "ada", AnnotationHost: "desk", AnnotationName: "judged", AnnotationWorkload: "relax", AnnotationCreated: "2026-01-02T15:04:05Z"}
		if !equality.Semantic.DeepEqual(a, want) {
			t.Errorf("annotations %v", a)
		}
	}
	if j.Spec.JobId != testRun.ID+"-1" || j.Spec.Entrypoint != "bash /etc/genrm/launch.sh" || j.Spec.TTLSecondsAfterFinished != 600 || *j.Spec.BackoffLimit != 2 || *j.Spec.ActiveDeadlineSeconds != 86400 || !j.Spec.ShutdownAfterJobFinishes {
		t.Errorf("%+v", j.Spec)
	}
	c := j.Spec.RayClusterSpec
	w := c.WorkerGroupSpecs[0]
	if *w.Replicas != 1 || *w.MinReplicas != 0 || *w.MaxReplicas != 2 || *c.AutoscalerOptions.IdleTimeoutSeconds != 120 || !*c.EnableInTreeAutoscaling {
		t.Errorf("%+v %+v", w, c.AutoscalerOptions)
	}
	head, worker := c.HeadGroupSpec.Template.Spec, w.Template.Spec
	if got := c.HeadGroupSpec.RayStartParams; got["num-gpus"] != "0" || got["num-cpus"] != "0" || got["object-store-memory"] != "20000000000" || got["dashboard-host"] != "0.0.0.0" {
		t.Errorf("head %v", got)
	}
	secret := func(key string) *rayv1.RedisCredential {
		return &rayv1.RedisCredential{ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "redis"}, Key: key}}}
	}
	if want := (&rayv1.GcsFaultToleranceOptions{RedisAddress: "rediss://redis.ml:6380", RedisUsername: secret("user"), RedisPassword: secret("password"), ExternalStorageNamespace: "judges"}); !equality.Semantic.DeepEqual(c.GcsFaultToleranceOptions, want) {
		t.Errorf("%+v", c.GcsFaultToleranceOptions)
	}
	if c.HeadGroupSpec.ServiceType != corev1.ServiceTypeLoadBalancer || c.HeadServiceAnnotations["cloud/internal"] != "true" {
		t.Errorf("%v %v", c.HeadGroupSpec.ServiceType, c.HeadServiceAnnotations)
	}
	// The operator takes these resources in the place of its own.
	auto := c.AutoscalerOptions
	if *auto.UpscalingMode != "Conservative" || *auto.Version != rayv1.AutoscalerVersionV2 || auto.Resources.Limits.Memory().String() != "1Gi" || auto.Resources.Limits.Cpu().String() != "500m" || !equality.Semantic.DeepEqual(auto.Resources.Limits, auto.Resources.Requests) {
		t.Errorf("%+v", auto)
	}
	// Ray counts whole CPUs, as the operator rounds them.
	if got := w.RayStartParams; got["num-gpus"] != "8" || got["num-cpus"] != "96" || got["resources"] != `'{"judge": 1}'` {
		t.Errorf("worker %v", got)
	}
	gpus := worker.Containers[0].Resources.Limits[defaultGPU]
	if gpus.Value() != 8 || !equality.Semantic.DeepEqual(worker.Containers[0].Resources.Limits, worker.Containers[0].Resources.Requests) {
		t.Errorf("%+v", worker.Containers[0].Resources)
	}
	if _, ok := head.Containers[0].Resources.Limits[defaultGPU]; ok || !worker.HostNetwork || head.HostNetwork || c.HeadGroupSpec.Template.Labels["team"] != "rl" {
		t.Errorf("%+v", head)
	}
	var names []string
	for _, e := range head.Containers[0].Env {
		names = append(names, e.Name)
		if e.Name == "HF_TOKEN" && (e.ValueFrom == nil || e.ValueFrom.SecretKeyRef.Name != "hub") {
			t.Errorf("%+v", e)
		}
	}
	if !slices.Contains(names, "A") || !slices.Contains(names, "PYTHONPATH") || !slices.Contains(names, "NCCL_DEBUG") {
		t.Errorf("%v", names)
	}
	// The submitter pulls the same image, by the same secret, as the same account.
	s := j.Spec.SubmitterPodTemplate.Spec
	if s.Containers[0].Image != "site/ray:2.60.0" || s.ServiceAccountName != "trainer" || s.ImagePullSecrets[0].Name != "registry" || s.RestartPolicy != corev1.RestartPolicyNever || len(s.Tolerations) != 1 {
		t.Errorf("%+v", s)
	}
}

// TestBuildShape: pods and GPUs of head and workers.
func TestBuildShape(t *testing.T) {
	two := strings.NewReplacer("[1, 8]", "[1, 16]", "rollout: [1, 4]", "rollout: [1, 8]", "genrm: [1, 4]", "genrm: [1, 8]", "num_gpus: 4, num_gpus_per_engine: 4", "num_gpus: 8, num_gpus_per_engine: 4")
	one := strings.NewReplacer("[1, 8]", "[1, 4]", "rollout: [1, 4]", "rollout: [1, 2]", "genrm: [1, 4]", "genrm: [1, 2]", "num_gpus: 4, num_gpus_per_engine: 4", "num_gpus: 2, num_gpus_per_engine: 2")
	gym := "name: \"g\"\nkuberay: {" + imageField + "}\n" + `gym: config: judge: responses_api_models: openai_model: {entrypoint: "app.py", openai_base_url: "https://h/v1", openai_api_key: "${oc.env:K}", openai_model: "m"}` + "\n"
	for _, c := range []struct {
		name, src    string
		head         int
		workers, per int
	}{
		{"one node", relax(""), 0, 1, 8},
		{"two nodes", two.Replace(relax("")), 0, 2, 8},
		{"half a node", one.Replace(relax("")), 0, 1, 4},
		{"half a node of a stated one", one.Replace(relax("")) + "\ncluster: nodes: 1\n", 0, 1, 4},
		{"the head is the first node", two.Replace(relax("head_gpus: 8")), 8, 1, 8},
		{"the head is the only node", relax("head_gpus: 8"), 8, 0, 0},
		{"a GPU for the driver", relax("head_gpus: 1"), 1, 1, 8},
		{"a GPU for the driver, by the template", relax(`head: spec: containers: [{name: "ray-head", resources: limits: "nvidia.com/gpu": 1}]`), 1, 1, 8},
		{"served judges", serve(""), 0, 1, 4},
		{"no GPU at all", gym, 0, 0, 0},
		{"a vLLM of Gym's on half a node", "name: \"g\"\nkuberay: {" + imageField + "}\ncluster: gpus_per_node: 8\n" + gymVLLM(4), 0, 1, 4},
		{"a vLLM of Gym's, and a GPU for the driver", "name: \"g\"\nkuberay: {head_gpus: 1, entrypoint_num_gpus: 1, " + imageField + "}\ncluster: gpus_per_node: 8\n" + gymVLLM(4), 1, 1, 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, l := compile(t, c.src)
			if p == nil {
				t.Fatal(l)
			}
			o := built(t, p, testRun)
			spec := &rayv1.RayClusterSpec{}
			if o.RayJob != nil {
				spec = o.RayJob.Spec.RayClusterSpec
			} else {
				spec = &o.RayService.Spec.RayClusterSpec
			}
			check := func(t2 corev1.PodTemplateSpec, params map[string]string, want int) {
				t.Helper()
				q := t2.Spec.Containers[0].Resources.Limits[defaultGPU]
				r := t2.Spec.Containers[0].Resources.Requests[defaultGPU]
				if int(q.Value()) != want || params["num-gpus"] != fmt.Sprint(want) || want > 0 && r.Cmp(q) != 0 && o.RayJob != nil {
					t.Errorf("limit %v, request %v, num-gpus %s, want %d", &q, &r, params["num-gpus"], want)
				}
			}
			check(spec.HeadGroupSpec.Template, spec.HeadGroupSpec.RayStartParams, c.head)
			if c.workers == 0 {
				if len(spec.WorkerGroupSpecs) != 0 {
					t.Errorf("%+v", spec.WorkerGroupSpecs)
				}
				return
			}
			w := spec.WorkerGroupSpecs[0]
			if int(*w.Replicas) != c.workers || *w.MinReplicas != *w.Replicas || *w.MaxReplicas != *w.Replicas {
				t.Errorf("%d %d %d", *w.Replicas, *w.MinReplicas, *w.MaxReplicas)
			}
			check(w.Template, w.RayStartParams, c.per)
		})
	}
}

// TestServiceUnchanged: a second launch of the same experiment changes metadata
// alone, so that nothing is restarted.
func TestServiceUnchanged(t *testing.T) {
	p := accepted(t, serve(rich))
	a, b := built(t, p, testRun), built(t, p, Run{ID: "judges-20260203-150405-ffffff", Version: "9"})
	if !equality.Semantic.DeepEqual(a.RayService.Spec, b.RayService.Spec) || a.RayService.Name != "judges" || b.RayService.Name != "judges" || a.ConfigMap != nil {
		t.Errorf("%+v\n%+v", a.RayService, b.RayService)
	}
	for _, tmpl := range []corev1.PodTemplateSpec{a.RayService.Spec.RayClusterSpec.HeadGroupSpec.Template, a.RayService.Spec.RayClusterSpec.WorkerGroupSpecs[0].Template} {
		for k := range tmpl.Labels {
			if strings.HasPrefix(k, "genrm.dev/") {
				t.Errorf("label %s in a pod template", k)
			}
		}
	}
}

// TestService: what is said of a RayService beside its application and its pods.
func TestService(t *testing.T) {
	spec := built(t, accepted(t, serve(`serve_service: {type: "NodePort", labels: team: "rl", annotations: "cloud/internal": "true"}, exclude_head_from_serve: true, upgrade_strategy: "None", cluster_deletion_delay: 0, gcs_fault_tolerance: redis_address: "redis:6379"`)), testRun).RayService.Spec
	if s := spec.ServeService; s.Spec.Type != corev1.ServiceTypeNodePort || s.Labels["team"] != "rl" || s.Annotations["cloud/internal"] != "true" || s.Name != "" {
		t.Errorf("%+v", s)
	}
	if !spec.ExcludeHeadPodFromServeSvc || *spec.UpgradeStrategy.Type != rayv1.None || *spec.RayClusterDeletionDelaySeconds != 0 {
		t.Errorf("%+v", spec)
	}
	// The operator's own way to what its pods get.
	if o := spec.RayClusterSpec.GcsFaultToleranceOptions; o == nil || *o != (rayv1.GcsFaultToleranceOptions{RedisAddress: "redis:6379"}) || !utils.IsGCSFaultToleranceEnabled(&spec.RayClusterSpec, nil) {
		t.Errorf("%+v", o)
	}
	plain := built(t, accepted(t, serve("")), testRun).RayService.Spec
	if plain.ServeService != nil || plain.UpgradeStrategy != nil || plain.RayClusterDeletionDelaySeconds != nil || plain.ExcludeHeadPodFromServeSvc || plain.RayClusterSpec.GcsFaultToleranceOptions != nil || plain.RayClusterSpec.HeadServiceAnnotations != nil || plain.RayClusterSpec.HeadGroupSpec.ServiceType != "" {
		t.Errorf("%+v", plain)
	}
}

// TestOperator: what the operator's own code makes of the fields: the head's
// variables, the command of its container, the services.
func TestOperator(t *testing.T) {
	ctx := context.Background()
	service := built(t, accepted(t, serve(rich+`, serve_service: annotations: "cloud/internal": "true"`)), testRun).RayService
	cluster := rayv1.RayCluster{ObjectMeta: *service.ObjectMeta.DeepCopy(), Spec: *service.Spec.RayClusterSpec.DeepCopy()}
	cluster.UID = "uid"
	pod := func(t corev1.PodTemplateSpec, kind rayv1.RayNodeType, params map[string]string) corev1.Container {
		return common.BuildPod(ctx, t, kind, params, "6379", true, utils.RayServiceCRD, "head", nil).Spec.Containers[0]
	}
	head := pod(common.DefaultHeadPodTemplate(ctx, cluster, cluster.Spec.HeadGroupSpec, "head", "6379"), rayv1.HeadNode, cluster.Spec.HeadGroupSpec.RayStartParams)
	env := map[string]string{}
	for _, e := range head.Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			env[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	for name, want := range map[string]string{utils.RAY_REDIS_ADDRESS: "rediss://redis.ml:6380", utils.REDIS_USERNAME: "redis/user", utils.REDIS_PASSWORD: "redis/password", utils.RAY_EXTERNAL_STORAGE_NS: "judges"} {
		if env[name] != want {
			t.Errorf("%s is %q, want %q", name, env[name], want)
		}
	}
	worker := pod(common.DefaultWorkerPodTemplate(ctx, cluster, cluster.Spec.WorkerGroupSpecs[0], "w", "head", "6379", "", 0, 0), rayv1.WorkerNode, cluster.Spec.WorkerGroupSpecs[0].RayStartParams)
	for _, c := range []struct {
		got  corev1.Container
		want string
	}{{head, "--num-cpus=0 "}, {head, "--object-store-memory=20000000000 "}, {worker, `--resources='{"judge": 1}' `}} {
		if line := strings.Join(c.got.Args, " ") + " "; !strings.Contains(line, c.want) {
			t.Errorf("no %s in %s", c.want, line)
		}
	}
	of, err := common.BuildServiceForHeadPod(ctx, cluster, nil, cluster.Spec.HeadServiceAnnotations)
	if err != nil || of.Spec.Type != corev1.ServiceTypeLoadBalancer || of.Annotations["cloud/internal"] != "true" {
		t.Errorf("%+v, %v", of, err)
	}
	judges, err := common.BuildServeServiceForRayService(ctx, *service, cluster)
	if err != nil || judges.Name != "judges-serve-svc" || judges.Spec.Type != corev1.ServiceTypeLoadBalancer || judges.Annotations["cloud/internal"] != "true" || len(judges.Spec.Ports) != 1 || judges.Spec.Ports[0].Port != 8000 {
		t.Errorf("%+v, %v", judges, err)
	}
}

// TestTold: the plan tells where the state of the head is kept, and whose it is, and
// how many workers there may be, and where secrets come from.
func TestTold(t *testing.T) {
	for _, c := range []struct{ src, path, want string }{
		{serve(`gcs_fault_tolerance: redis_address: "redis:6379"`), "kuberay.gcs_fault_tolerance", "the Redis at redis:6379 keeps the state of the head, for each Ray cluster by itself"},
		{serve(`gcs_fault_tolerance: {redis_address: "redis:6379", external_storage_namespace: "ns"}`), "kuberay.gcs_fault_tolerance.external_storage_namespace", "the Redis at redis:6379 keeps the state of the head as ns, which the old and the new Ray cluster share while the RayService is upgraded, and whoever else names it"},
		{relax(`gcs_fault_tolerance: {redis_address: "redis:6379", external_storage_namespace: "ns"}`), "kuberay.gcs_fault_tolerance.external_storage_namespace", "the Redis at redis:6379 keeps the state of the head as ns, which every run that names it shares, and each try of this one"},
		{serve("") + "\nserve: instances: quality: env: HF_TOKEN: env: \"T\"\n", "serve.instances.quality.env.HF_TOKEN", "its replicas read it from T of their pods: kuberay.secrets, a template or the image must set it"},
		{serve(`secrets: T: {name: "n", key: "k"}`) + "\nserve: instances: quality: env: HF_TOKEN: env: \"T\"\n", "serve.instances.quality.env.HF_TOKEN", "its replicas read it from T of their pods, where kuberay.secrets sets it"},
		{serve(`autoscaling: {min: 0, max: 4}`), "kuberay", "RayService judges: a head with no GPU, 0 to 4 workers with 4 GPUs each, at first 1"},
	} {
		if p := accepted(t, c.src); !slices.Contains(p.Facts, plan.Fact{Path: c.path, Text: c.want}) {
			t.Errorf("%q is not among %q", c.want, p.Facts)
		}
	}
}

// TestRedisSecrets: what holds a user or a password of the Redis is looked for.
func TestRedisSecrets(t *testing.T) {
	got := built(t, accepted(t, serve(`secrets: A: {name: "hub", key: "a"}, gcs_fault_tolerance: {redis_address: "r:1", redis_username: {name: "who", key: "u"}, redis_password: {name: "redis", key: "p"}}`)), testRun).references()
	want := []reference{{"secrets", "who", "head"}, {"secrets", "redis", "head"}, {"secrets", "hub", "head"}}
	if !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// TestCleanup: the pod by which the operator empties the Redis, made as the head's
// is, starts without the run's files, which are gone by then; without a Redis
// there is no such pod, and no pod starts without them.
func TestCleanup(t *testing.T) {
	for src, want := range map[string]bool{relax(""): false, relax(`gcs_fault_tolerance: redis_address: "redis:6379"`): true} {
		c := built(t, accepted(t, src), testRun).RayJob.Spec.RayClusterSpec
		for _, pod := range []struct {
			spec corev1.PodSpec
			want bool
		}{{c.HeadGroupSpec.Template.Spec, want}, {c.WorkerGroupSpecs[0].Template.Spec, false}} {
			i := slices.IndexFunc(pod.spec.Volumes, func(v corev1.Volume) bool { return v.ConfigMap != nil })
			if i < 0 || (pod.spec.Volumes[i].ConfigMap.Optional != nil) != pod.want {
				t.Errorf("%+v", pod.spec.Volumes)
			}
		}
	}
}

// TestSource: fields of the objects lead to the user's.
func TestSource(t *testing.T) {
	p := accepted(t, serve(rich))
	for field, want := range map[string]string{
		"spec.rayClusterConfig.gcsFaultToleranceOptions":               "kuberay.gcs_fault_tolerance",
		"spec.rayClusterSpec.autoscalerOptions.version":                "kuberay.autoscaling.version",
		"spec.rayClusterSpec.autoscalerOptions.idleTimeoutSeconds":     "kuberay.autoscaling",
		"spec.rayClusterConfig.headGroupSpec.serviceType":              "kuberay.head_service.type",
		"spec.rayClusterConfig.headServiceAnnotations":                 "kuberay.head_service.annotations",
		"spec.rayClusterConfig.headGroupSpec.rayStartParams.num-cpus":  "kuberay.head_ray_start_params",
		"spec.rayClusterConfig.workerGroupSpecs[0].rayStartParams.x":   "kuberay.worker_ray_start_params",
		"spec.rayClusterConfig.workerGroupSpecs[0].template.spec.x":    "kuberay.worker",
		"spec.rayClusterConfig.headGroupSpec.template.metadata.labels": "kuberay.head.metadata.labels",
		"spec.serveService.spec.type":                                  "kuberay.serve_service",
		"spec.upgradeStrategy":                                         "kuberay.upgrade_strategy",
		"spec.excludeHeadPodFromServeSvc":                              "kuberay.exclude_head_from_serve",
		"spec.rayClusterDeletionDelaySeconds":                          "kuberay.cluster_deletion_delay",
	} {
		if got := source(p, field); got != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}
}

// TestServeConfig: the application and the settings of the cluster's proxies, and
// the port that services lead to.
func TestServeConfig(t *testing.T) {
	o := built(t, accepted(t, serve(`serve: {health_check_timeout_s: 240, http_options: {port: 9000, request_timeout_s: 900}, proxy_location: "HeadOnly"}`)), testRun)
	var got struct {
		Proxy string         `json:"proxy_location"`
		HTTP  map[string]int `json:"http_options"`
		Apps  []struct {
			Name string
			Args struct {
				Configs []struct {
					Deployment map[string]int `json:"deployment_config"`
				} `json:"llm_configs"`
			}
		} `json:"applications"`
	}
	if err := yaml.Unmarshal([]byte(o.RayService.Spec.ServeConfigV2), &got); err != nil {
		t.Fatal(err)
	}
	if got.Proxy != "HeadOnly" || got.HTTP["port"] != 9000 || got.HTTP["request_timeout_s"] != 900 || len(got.Apps) != 1 || got.Apps[0].Name != "judges" || got.Apps[0].Args.Configs[0].Deployment["health_check_timeout_s"] != 240 {
		t.Errorf("%+v\n%s", got, o.RayService.Spec.ServeConfigV2)
	}
	ports := o.RayService.Spec.RayClusterSpec.HeadGroupSpec.Template.Spec.Containers[0].Ports
	if !slices.Contains(ports, corev1.ContainerPort{Name: "serve", ContainerPort: 9000, Protocol: corev1.ProtocolTCP}) {
		t.Errorf("%+v", ports)
	}
}

// TestDerivedNames: with the longest name that is accepted, everything that the
// operator names after the object fits.
func TestDerivedNames(t *testing.T) {
	name := strings.Repeat("a", maxName-suffix)
	p := accepted(t, strings.Replace(relax(""), `"judged"`, `"`+name+`"`, 1))
	o := built(t, p, Run{ID: name + "-20060102-150405-0a1b2c"})
	object := o.RayJob.Name
	if len(object) != maxName {
		t.Fatalf("%s has %d characters", object, len(object))
	}
	cluster := utils.GenerateRayClusterName(object)
	headService, err := utils.GenerateHeadServiceName(utils.RayClusterCRD, rayv1.RayClusterSpec{}, cluster)
	if err != nil {
		t.Fatal(err)
	}
	jobHead, err := utils.GenerateHeadServiceName(utils.RayJobCRD, rayv1.RayClusterSpec{}, object)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{cluster, headService, jobHead, utils.GenerateServeServiceName(object), utils.GenerateServeServiceName(cluster), object + "-abcde", o.ConfigMap.Name,
		utils.CheckName(cluster), utils.GenerateIdentifier(cluster, rayv1.HeadNode), utils.GenerateIdentifier(cluster, rayv1.WorkerNode), utils.GenerateIdentifier(object, rayv1.HeadNode)} {
		if len(n) > 63 {
			t.Errorf("%s has %d characters", n, len(n))
		}
	}
	if err := utils.ValidateRayJobMetadata(o.RayJob.ObjectMeta); err != nil {
		t.Error(err)
	}
	if e := validation.IsValidLabelValue(o.RayJob.Labels[LabelRun]); len(e) > 0 {
		t.Error(e)
	}
}

// odd are texts that YAML reads as something else, or refuses, as they are.
const odd = `labels: {a: "yes", b: "1e3", c: "", d: "No", e: "0x1f", f: "1_000", y: "y", "no": "n"}, annotations: {` +
	`a: "on", b: " x ", c: "a\nb\n---\nc", d: "---", e: "~", f: "\u2028x\u0085y\u0085\u0085z", g: "#c", h: "a: b", i: "\t", j: "\u001b[31m", k: "1:30", l: "'\"\\n", m: "\r\n",` +
	`n: "<<", o: "=", p: "!!str a", q: "*a", r: "%@|>-", s: "\ufeff", t: "\u007f\u0080\u009f", u: "\ufffe\uffff", v: "\n\n x\n\n", w: "é😀\u2029"}`

// TestRoundTrip: what is written is read by a strict decoder of the operator's
// types, and says the same.
func TestRoundTrip(t *testing.T) {
	for name, src := range map[string]string{"job": relax(""), "rich job": relax(rich), "service": serve(""), "rich service": serve(rich), "sidecar": relax(`submissionMode: "SidecarMode"`), "own services": serve(`serve_service: annotations: "a/b": "c", upgrade_strategy: "None", cluster_deletion_delay: 5`),
		"what YAML takes for something else": serve(odd + `, serve_service: {` + odd + `}`), "that of a job": relax(odd + `, env: {A: "\u007f\u0085\u2028\ufffe"}`)} {
		t.Run(name, func(t *testing.T) {
			p := accepted(t, src)
			o := built(t, p, testRun)
			text, err := Manifest(p, o)
			if err != nil {
				t.Fatal(err)
			}
			again, err := Manifest(p, built(t, p, testRun))
			if err != nil || !bytes.Equal(text, again) {
				t.Error("two calls differ", err)
			}
			for _, noise := range []string{"null", "creationTimestamp", "status:"} {
				if bytes.Contains(text, []byte(noise)) {
					t.Errorf("%s in\n%s", noise, text)
				}
			}
			docs := strings.Split(string(text), "\n---\n")
			if len(docs) != len(o.All()) {
				t.Fatalf("%d documents", len(docs))
			}
			for i, want := range o.All() {
				got := want.DeepCopyObject()
				switch got := got.(type) {
				case *corev1.ConfigMap:
					*got = corev1.ConfigMap{}
				case *rayv1.RayJob:
					*got = rayv1.RayJob{}
				case *rayv1.RayService:
					*got = rayv1.RayService{}
				}
				if err := yaml.UnmarshalStrict([]byte(docs[i]), got); err != nil {
					t.Fatalf("%v\n%s", err, docs[i])
				}
				if !equality.Semantic.DeepEqual(got, want) {
					t.Errorf("got  %+v\nwant %+v", got, want)
				}
				if err := yaml.UnmarshalStrict([]byte(docs[i]+"\nsurprise: 1\n"), got); err == nil {
					t.Error("an unknown field is not seen")
				}
			}
		})
	}
}

// hostile are texts that other tools' backends were bitten by.
var hostile = []string{
	`{"method":"qwen3_next_mtp","num_speculative_tokens":2}`,
	`{"architectures":["ApertusForCausalLM"]}`,
	`{'ps-auc':{'cnt':1}}`,
	"'\"`touch marker`$HOME;&&{{x}}\\\né$(HOME)$$",
	"", " ", "~", "*", "a=b", "-", "#x", "$(RAY_IP)", "{file:gym.yaml}", "\\", "!", "%PATH%", "\t\n",
}

// expand replaces $(NAME) as Kubernetes does in values of a container: known names
// by their values, $$ by $.
func expand(s string, known map[string]string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '$' || i+1 == len(s):
			b.WriteByte(s[i])
		case s[i+1] == '$':
			b.WriteByte('$')
			i++
		case s[i+1] == '(':
			end := strings.IndexByte(s[i:], ')')
			if end < 0 {
				b.WriteByte('$')
				continue
			}
			name := s[i+2 : i+end]
			if v, ok := known[name]; ok {
				b.WriteString(v)
			} else {
				b.WriteString(s[i : i+end+1])
			}
			i += end
		default:
			b.WriteByte('$')
		}
	}
	return b.String()
}

// TestHostile sends hostile arguments and variables by the way that a job takes:
// the pod's environment as Kubernetes expands it; the operator's own submit
// command, run by its own shell; ray's joining of the words; the cluster's
// /bin/sh; and our script.
func TestHostile(t *testing.T) {
	p := accepted(t, relax(rich))
	p.Launch.Argv = []plan.Arg{"driver"}
	p.Launch.Env = plan.Env{}
	for i, h := range hostile {
		p.Launch.Argv = append(p.Launch.Argv, plan.Lit(h))
		p.Launch.Env.Set(fmt.Sprintf("HOSTILE_%d", i), plan.EnvValue{Text: plan.Lit(h)})
	}
	p.Launch.Argv = append(p.Launch.Argv, "--key="+"{secret:env:JUDGE_KEY}", plan.File("gym.yaml"))
	p.Launch.Env.Set("COPY", plan.EnvValue{SecretEnv: "JUDGE_KEY"})
	p.Artifacts = []plan.Artifact{{Name: "gym.yaml", Text: "a: 1\n"}}
	p.Launch.WorkDir = ""
	for _, mode := range []rayv1.JobSubmissionMode{rayv1.K8sJobMode, rayv1.SidecarMode, rayv1.HTTPMode} {
		t.Run(string(mode), func(t *testing.T) {
			o := built(t, p, testRun)
			dir := t.TempDir()
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			bin := filepath.Join(dir, "bin")
			if err := os.MkdirAll(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"ray", "driver"} {
				if err := os.Symlink(self, filepath.Join(bin, name)); err != nil {
					t.Fatal(err)
				}
			}
			// The sidecar waits for the dashboard first.
			if err := os.WriteFile(filepath.Join(bin, "wget"), []byte("#!/bin/sh\necho success\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			files := strings.NewReplacer(filesDir, dir)
			if err := os.WriteFile(filepath.Join(dir, scriptName), []byte(files.Replace(o.ConfigMap.Data[scriptName])), 0o644); err != nil {
				t.Fatal(err)
			}
			job := o.RayJob.DeepCopy()
			job.Spec.Entrypoint = files.Replace(job.Spec.Entrypoint)
			job.Status.JobId, job.Status.DashboardURL = job.Spec.JobId, "head:8265"
			for _, op := range []string{";", "&&", "|", "\n", "$", "`", "'", "\""} {
				if strings.Contains(job.Spec.Entrypoint, op) {
					t.Errorf("%q in the entrypoint %s", op, job.Spec.Entrypoint)
				}
			}
			line := []string{"/bin/sh", "-c", job.Spec.Entrypoint} // HTTPMode hands it on as it is
			if mode != rayv1.HTTPMode {
				words, err := common.BuildJobSubmitCommand(job, mode)
				if err != nil {
					t.Fatal(err)
				}
				line = append(utils.GetContainerCommand([]string{"e"}), strings.Join(words, " "))
			}
			record := filepath.Join(dir, "record.json")
			cmd := exec.Command(line[0], line[1:]...)
			cmd.Dir = dir
			cmd.Env = []string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=/nowhere", "JUDGE_KEY=s3cr't \"$x\"", stub + "=" + record, "RAY_IP=1.2.3.4"}
			known := map[string]string{"RAY_IP": "1.2.3.4", "HOME": "/nowhere"}
			for _, e := range o.RayJob.Spec.RayClusterSpec.HeadGroupSpec.Template.Spec.Containers[0].Env {
				if e.ValueFrom == nil {
					v := expand(e.Value, known)
					known[e.Name] = v
					cmd.Env = append(cmd.Env, e.Name+"="+v)
				}
			}
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s\n%q", err, out, line)
			}
			var got struct{ Argv, Env []string }
			text, err := os.ReadFile(record)
			if err == nil {
				err = json.Unmarshal(text, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
			want := append(append([]string{"driver"}, hostile...), "--key=s3cr't \"$x\"", filepath.Join(dir, "gym.yaml"))
			if !slices.Equal(got.Argv, want) {
				t.Errorf("got  %q\nwant %q", got.Argv, want)
			}
			for i, h := range hostile {
				if e := fmt.Sprintf("HOSTILE_%d=%s", i, h); !slices.Contains(got.Env, e) {
					t.Errorf("%q did not arrive", e)
				}
			}
			if !slices.Contains(got.Env, "COPY=s3cr't \"$x\"") {
				t.Error("the secret did not arrive")
			}
			if _, err := os.Stat(filepath.Join(dir, "marker")); err == nil {
				t.Error("backticks were run")
			}
			if all, err := Manifest(p, o); err != nil || bytes.Contains(all, []byte("s3cr")) {
				t.Error("a secret in the objects", err)
			}
		})
	}
}

// TestSimple: one plain command is the entrypoint itself; anything else goes by
// the script.
func TestSimple(t *testing.T) {
	base := accepted(t, relax(""))
	for _, c := range []struct {
		argv []plan.Arg
		env  plan.EnvValue
		dir  string
		want string
	}{
		{[]plan.Arg{"gym", "env", "start", "--config", plan.File("gym.yaml")}, plan.EnvValue{}, "", "gym env start --config /etc/genrm/gym.yaml"},
		{[]plan.Arg{"gym", "+skip=true", "a@b%c:d,e"}, plan.EnvValue{}, "", "gym +skip=true a@b%c:d,e"},
		{[]plan.Arg{"gym", "a b"}, plan.EnvValue{}, "", ""},
		{[]plan.Arg{"gym", "~"}, plan.EnvValue{}, "", ""},
		{[]plan.Arg{"gym", ""}, plan.EnvValue{}, "", ""},
		{[]plan.Arg{"A=b"}, plan.EnvValue{}, "", ""},
		{[]plan.Arg{"gym"}, plan.EnvValue{}, "/opt", ""},
		{[]plan.Arg{"gym"}, plan.EnvValue{Text: "x y"}, "", "gym"}, // in the pods
		{[]plan.Arg{"gym"}, plan.EnvValue{SecretEnv: "TOKEN"}, "", ""},
		{[]plan.Arg{"gym"}, plan.EnvValue{SecretFile: "/run/secret"}, "", ""},
		{[]plan.Arg{"gym", "{secret:file:/run/x}"}, plan.EnvValue{}, "", ""},
	} {
		p := *base
		p.Launch = plan.Launch{Argv: c.argv, WorkDir: c.dir}
		if c.env != (plan.EnvValue{}) {
			p.Launch.Env.Set("TOKEN", c.env)
		}
		p.Artifacts = []plan.Artifact{{Name: "gym.yaml", Text: "a: 1\n"}}
		o := built(t, &p, testRun)
		want, script := c.want, ""
		if want == "" {
			want, script = "bash /etc/genrm/launch.sh", "x"
		}
		if got := o.RayJob.Spec.Entrypoint; got != want || (o.ConfigMap.Data[scriptName] == "") != (script == "") {
			t.Errorf("%q: entrypoint %q, script %q", c.argv, got, o.ConfigMap.Data[scriptName])
		}
	}
}

// TestMetadata: job metadata is sent where the operator's submit command takes it,
// and left out where that would fail.
func TestMetadata(t *testing.T) {
	for release, want := range map[string]bool{"2.60.0": true, "2.6.0": true, "2.5.1": false, "2.60.0rc1": false, "3.0.0": true, "": false} {
		src := strings.Replace(relax(""), "site/ray:2.60.0", "site/other:1", 1)
		if release != "" {
			src = strings.Replace(src, "kuberay: {", "kuberay: {rayVersion: \""+release+"\", ", 1)
		}
		j := built(t, accepted(t, src), testRun).RayJob
		if got := len(j.Spec.Metadata) > 0; got != want {
			t.Errorf("%q: %v", release, j.Spec.Metadata)
		}
		j.Status.JobId, j.Status.DashboardURL = j.Spec.JobId, "head:8265"
		if _, err := common.BuildJobSubmitCommand(j, rayv1.K8sJobMode); err != nil {
			t.Errorf("%q: %v", release, err)
		}
	}
}

func TestOpenSecret(t *testing.T) {
	src := strings.Replace(relax("%s"), "root:", `env: WANDB_API_KEY: {env: "KEY"}`+"\n\troot:", 1)
	p := accepted(t, fmt.Sprintf(src, `secrets: KEY: {name: "wandb", key: "api"}`))
	o := built(t, p, testRun)
	refs := map[string]bool{}
	for _, e := range o.RayJob.Spec.RayClusterSpec.WorkerGroupSpecs[0].Template.Spec.Containers[0].Env {
		if e.ValueFrom != nil {
			refs[e.Name] = e.ValueFrom.SecretKeyRef.Name == "wandb" && e.ValueFrom.SecretKeyRef.Key == "api"
		}
	}
	if !refs["WANDB_API_KEY"] || !refs["KEY"] {
		t.Errorf("%v", refs)
	}
	open := accepted(t, fmt.Sprintf(src, ""))
	if !strings.Contains(built(t, open, testRun).ConfigMap.Data[scriptName], "${KEY:?") {
		t.Error("a missing secret is not said")
	}
	if !slices.ContainsFunc(open.Facts, func(f plan.Fact) bool { return strings.HasPrefix(f.Text, "KEY is read in the pod") }) {
		t.Errorf("%v", open.Facts)
	}
}

// TestRules: what is found, as CODE path.
func TestRules(t *testing.T) {
	for _, c := range []struct {
		name, src string
		want      []string
	}{
		{"everything", relax(rich), nil},
		{"everything, served", serve(`shm_size: "1Gi", worker_cpus: 4`), nil},
		{"no image", strings.Replace(relax(""), imageField, "", 1), []string{"GRM8410 kuberay"}},
		{"an image by templates", strings.Replace(relax(`head: spec: containers: [{name: "ray-head", image: "a/ray:2.60.0"}], worker: spec: containers: [{name: "ray-worker", image: "a/ray:2.60.0"}]`), imageField, "", 1), nil},
		{"the worker's image is of another release", relax(`rayVersion: "2.60.0", worker: spec: containers: [{name: "ray-worker", image: "a/ray:2.40.0"}]`), []string{"GRM8403 kuberay.rayVersion"}},
		{"many mistakes", relax(`head: spec: {hostNetwrok: true, containers: [{name: "ray-head", imagePullPolicy: 1}]}, worker: {sepc: {}}, worker_cpus: "4 cores", suspend: true, queue: "q", node_selector: {"a b": "c"}`),
			[]string{"GRM8411 kuberay.head.spec.containers[0].imagePullPolicy", "GRM8411 kuberay.head.spec.hostNetwrok", "GRM8411 kuberay.worker.sepc", "GRM8412 kuberay.worker_cpus", "GRM8415 kuberay.suspend", "GRM8417 kuberay.node_selector.\"a b\""}},
		{"no name", relax(`worker: spec: containers: [{image: "x:1"}]`), []string{"GRM8411 kuberay.worker.spec.containers[0]"}},
		{"a quantity in a template", relax(`worker: spec: containers: [{name: "ray-worker", resources: limits: memory: "64GB"}]`), []string{"GRM8411 kuberay.worker.spec.containers[0].resources.limits.memory"}},
		{"a volume of no kind", relax(`volumes: [{name: "v", persistentVolumeClam: {}}]`), []string{"GRM8411 kuberay.volumes[0].persistentVolumeClam"}},
		{"fewer GPUs", relax(`worker: spec: containers: [{name: "ray-worker", resources: limits: "nvidia.com/gpu": "4"}]`), []string{`GRM8414 kuberay.worker.spec.containers[0].resources.limits."nvidia.com/gpu"`}},
		{"the head is removed", relax(`head: spec: containers: [{name: "ray-head", "$patch": "delete"}]`), []string{"GRM8414 kuberay.head.spec.containers"}},
		{"a second container", relax(`head: spec: containers: [{name: "proxy", image: "p:1"}]`), nil},
		{"another first container", relax(`head: spec: {"$setElementOrder/containers": [{name: "proxy"}, {name: "ray-head"}], containers: [{name: "proxy", image: "p:1"}]}`), []string{"GRM8414 kuberay.head.spec.containers"}},
		{"a limit below the request", relax(`worker_cpus: 8, worker: spec: containers: [{name: "ray-worker", resources: limits: cpu: 4}]`), []string{"GRM8414 kuberay.worker.spec.containers[0].resources.limits.cpu"}},
		{"more GPUs than a node has", relax("head_gpus: 16"), []string{"GRM8414 kuberay.head_gpus"}},
		{"two numbers for the head", relax(`head_gpus: 2, head: spec: containers: [{name: "ray-head", resources: limits: "nvidia.com/gpu": 1}]`), []string{`GRM8414 kuberay.head.spec.containers[0].resources.limits."nvidia.com/gpu"`}},
		{"a driver without GPUs for it", relax("entrypoint_num_gpus: 1"), []string{"GRM8414 kuberay.entrypoint_num_gpus"}},
		{"a driver with its own", relax("entrypoint_num_gpus: 1, head_gpus: 1"), nil},
		{"suspend without shutdown", relax("suspend: true, shutdown_after_finish: false"), []string{"GRM8415 kuberay.shutdown_after_finish"}},
		{"a queue without shutdown", relax(`queue: "q", shutdown_after_finish: false`), []string{"GRM8415 kuberay.shutdown_after_finish"}},
		{"a queue and autoscaling", relax(`queue: "q", autoscaling: {min: 1, max: 1}`), []string{"GRM8415 kuberay.autoscaling"}},
		{"more than 32 bits", relax(`autoscaling: {min: 4294967296, max: 4294967297, idle_timeout: 4294967296}, entrypoint_num_cpus: 1e300`), []string{"GRM2004 kuberay.autoscaling.idle_timeout", "GRM2004 kuberay.autoscaling.max", "GRM2004 kuberay.autoscaling.min", "GRM2004 kuberay.entrypoint_num_cpus"}},
		{"bounds the wrong way round", relax(`autoscaling: {min: 2, max: 1}`), []string{"GRM8416 kuberay.autoscaling.max"}},
		{"a mount of nothing", relax(`volumes: [{name: "models", emptyDir: {}}], volume_mounts: [{name: "model", mountPath: "/m"}, {name: "models", mountPath: "/dev/shm"}]`), []string{"GRM8417 kuberay.volume_mounts[0].name", "GRM8417 kuberay.volume_mounts[1].mountPath"}},
		{"our volume", relax(`volumes: [{name: "genrm", emptyDir: {}}]`), []string{"GRM8417 kuberay.volumes[0].name"}},
		{"names", relax(`service_account: "A B", image_pull_secrets: ["x", "y/z"], secrets: K: {name: "ok", key: "a b"}`), []string{"GRM8417 kuberay.image_pull_secrets[1]", "GRM8417 kuberay.secrets.K.key", "GRM8417 kuberay.service_account"}},
		{"set twice", relax(`env: {OMP_NUM_THREADS: "1", X: "1"}, secrets: X: {name: "n", key: "k"}`), []string{"GRM8418 kuberay.env.OMP_NUM_THREADS", "GRM8418 kuberay.env.X"}},
		{"a literal secret in a template", relax(`worker: spec: containers: [{name: "ray-worker", env: [{name: "HF_TOKEN", value: "abc"}]}]`), []string{"GRM8418 kuberay.worker.spec.containers[0].env[0].value"}},
		{"no secrets", relax(`env: {TOKENIZERS_PARALLELISM: "false", MAX_TOKENS: "8"}, worker: spec: containers: [{name: "ray-worker", env: [{name: "OPENAI_API_KEY", value: "EMPTY"}]}]`), nil},
		{"the operator's variables", strings.Replace(relax(`env: RAY_CLUSTER_NAME: "x"`), "root:", "env: FQ_RAY_IP: \"1.1.1.1\"\n\troot:", 1), []string{"GRM8418 kuberay.env.RAY_CLUSTER_NAME", "GRM8418 relax.env.FQ_RAY_IP"}},
		{"ttl without shutdown", relax("shutdown_after_finish: false, ttl: 5"), []string{"GRM8419 kuberay.ttl"}},
		{"the operator's word", relax(`head: spec: containers: [{name: "ray-head", env: [{name: "RAY_enable_autoscaler_v2", value: "1"}]}]`), []string{"GRM8419 kuberay.head.spec.containers[0].env[0]"}},
		{"the operator's word on env", relax(`env: RAY_enable_autoscaler_v2: "1"`), []string{"GRM8419 kuberay.env.RAY_enable_autoscaler_v2"}},
		{"the autoscaler's release twice", relax(`autoscaling: {min: 0, max: 1, version: "v1"}, env: RAY_enable_autoscaler_v2: "0"`), []string{"GRM8419 kuberay.autoscaling.version"}},
		{"a restarted head beside the autoscaler's v2", relax(`autoscaling: {min: 0, max: 1, version: "v2"}, head: spec: restartPolicy: "Always"`), []string{"GRM8419 kuberay.head.spec.restartPolicy"}},
		{"no quantity for the autoscaler", relax(`autoscaling: {min: 0, max: 1, cpus: "x", memory: 1}`), []string{"GRM8412 kuberay.autoscaling.cpus", "GRM8412 kuberay.autoscaling.memory"}},
		{"a Redis", relax(`gcs_fault_tolerance: redis_address: "redis:6379"`), nil},
		{"a Redis without its block", relax(`env: {RAY_REDIS_ADDRESS: "redis:6379", REDIS_USERNAME: "ray"}, secrets: REDIS_PASSWORD: {name: "n", key: "k"}, head_ray_start_params: "redis-username": "ray"`),
			[]string{"GRM8419 kuberay.env.RAY_REDIS_ADDRESS", "GRM8419 kuberay.env.REDIS_USERNAME", "GRM8419 kuberay.head_ray_start_params.\"redis-username\""}},
		{"a Redis in the old way", relax(`annotations: {"ray.io/ft-enabled": "true", "ray.io/external-storage-namespace": "x"}, env: RAY_REDIS_ADDRESS: "redis:6379", secrets: REDIS_PASSWORD: {name: "n", key: "k"}`), nil},
		{"a Redis in both ways", strings.Replace(relax(`gcs_fault_tolerance: redis_address: "redis:6379", annotations: {"ray.io/ft-enabled": "true", "ray.io/external-storage-namespace": "x"}, secrets: REDIS_PASSWORD: {name: "n", key: "k"},
			head_ray_start_params: {"redis-password": "${REDIS_PASSWORD}", "redis-username": "ray"}, head: spec: containers: [{name: "ray-head", env: [{name: "REDIS_USERNAME", value: "ray"}]}]`), "root:", `env: RAY_REDIS_ADDRESS: "redis:1"`+"\n\troot:", 1),
			[]string{"GRM8419 kuberay.annotations.\"ray.io/external-storage-namespace\"", "GRM8419 kuberay.annotations.\"ray.io/ft-enabled\"", "GRM8419 kuberay.head.spec.containers[0].env[0]", "GRM8419 kuberay.head_ray_start_params.\"redis-password\"",
				"GRM8419 kuberay.head_ray_start_params.\"redis-username\"", "GRM8419 kuberay.secrets.REDIS_PASSWORD", "GRM8419 relax.env.RAY_REDIS_ADDRESS"}},
		{"a Redis of the workers alone", relax(`worker: spec: containers: [{name: "ray-worker", env: [{name: "RAY_REDIS_ADDRESS", value: "r:1"}]}]`), nil},
		{"a driver's own password", strings.Replace(relax(`gcs_fault_tolerance: redis_address: "redis:6379"`), "root:", `env: REDIS_PASSWORD: {env: "REDIS_PASSWORD"}`+"\n\troot:", 1), nil},
		{"a variable is taken away", relax(`env: RAY_REDIS_ADDRESS: "r:1", head: spec: containers: [{name: "ray-head", env: [{name: "RAY_REDIS_ADDRESS", "$patch": "delete"}]}]`), nil},
		{"a Redis' name twice", serve(`gcs_fault_tolerance: {redis_address: "redis:6379", external_storage_namespace: "a"}, env: RAY_external_storage_namespace: "b"`), []string{"GRM8418 kuberay.env.RAY_external_storage_namespace"}},
		{"secrets of the Redis", relax(`gcs_fault_tolerance: {redis_address: "redis:6379", redis_username: {name: "A", key: "u"}, redis_password: {name: "r", key: "a b"}}`), []string{"GRM8417 kuberay.gcs_fault_tolerance.redis_password.key", "GRM8417 kuberay.gcs_fault_tolerance.redis_username.name"}},
		{"literal secrets of the Redis", relax(`gcs_fault_tolerance: {redis_address: "redis://:hidden@redis:6379", redis_username: "ray", redis_password: "hidden"}, env: REDIS_PASSWORD: "hidden", head_ray_start_params: "redis-password": "hidden"`),
			[]string{"GRM1008 kuberay.env.REDIS_PASSWORD", "GRM1008 kuberay.gcs_fault_tolerance.redis_address", "GRM1008 kuberay.gcs_fault_tolerance.redis_password", "GRM1008 kuberay.head_ray_start_params.redis-password", "GRM2003 kuberay.gcs_fault_tolerance.redis_username"}},
		{"literal secrets beside a Redis", relax(`gcs_fault_tolerance: redis_address: "redis:6379", env: REDIS_PASSWORD: "hidden", head_ray_start_params: "redis-password": "hidden"`), []string{"GRM1008 kuberay.env.REDIS_PASSWORD", "GRM1008 kuberay.head_ray_start_params.redis-password"}},
		{"no address of a Redis", relax(`gcs_fault_tolerance: redis_address: "redis"`), []string{"GRM2004 kuberay.gcs_fault_tolerance.redis_address"}},
		{"no port of a Redis", relax(`gcs_fault_tolerance: redis_address: "redis:0"`), []string{"GRM2004 kuberay.gcs_fault_tolerance.redis_address"}},
		{"NULs", relax(`context: "a\u0000", head_ray_start_params: a: "\u0000", worker_ray_start_params: a: "\u0000", volumes: [{name: "v", emptyDir: {}}], volume_mounts: [{name: "v", mountPath: "/\u0000"}],
			gcs_fault_tolerance: {redis_address: "r\u0000:1", external_storage_namespace: "a\u0000"}`),
			[]string{"GRM2004 kuberay.context", "GRM2004 kuberay.gcs_fault_tolerance.external_storage_namespace", "GRM2004 kuberay.gcs_fault_tolerance.redis_address", "GRM2004 kuberay.head_ray_start_params.a",
				"GRM2004 kuberay.volume_mounts[0].mountPath", "GRM2004 kuberay.worker_ray_start_params.a"}},
		{"a label that is a secret", relax(`labels: password: "hidden !"`), []string{"GRM1008 kuberay.labels.password"}},
		{"autoscaling without the size of nodes", strings.Replace(relax(`autoscaling: {min: 0, max: 1}`), "cluster: gpus_per_node: 8", "", 1), []string{"GRM8404 cluster"}},
		{"flags of ray start in quotes", relax(`head_ray_start_params: {a: "'{\"judge\": 1}'", b: "\"x\""}, worker_ray_start_params: a: "'x y'"`),
			[]string{"GRM2004 kuberay.head_ray_start_params.a", "GRM2004 kuberay.head_ray_start_params.b", "GRM2004 kuberay.worker_ray_start_params.a"}},
		{"flags of ray start that a shell would take apart", relax(`head_ray_start_params: {a: "{\"judge\": 1}", b: "x; y", c: "$MY_POD_IP", d: "'x", e: "a\nb", g: "", k: "true"}`), nil},
		{"flags of ray start", relax(`head_ray_start_params: {"num-gpus": "1", labels: "a=b"}, worker_ray_start_params: "num-gpus": "1"`), []string{"GRM8414 kuberay.head_ray_start_params.\"num-gpus\"", "GRM8414 kuberay.worker_ray_start_params.\"num-gpus\"", "GRM8419 kuberay.head_ray_start_params.labels"}},
		{"marks of genrm's", relax(`labels: {"genrm.dev/run": "x", "kueue.x-k8s.io/queue-name": "q", "a b": "c", d: "e f"}, annotations: {"genrm.dev/x": "y", "": "z"}`),
			[]string{"GRM8417 kuberay.annotations.\"\"", "GRM8417 kuberay.annotations.\"genrm.dev/x\"", "GRM8417 kuberay.labels.\"a b\"", "GRM8417 kuberay.labels.\"genrm.dev/run\"", "GRM8417 kuberay.labels.\"kueue.x-k8s.io/queue-name\"", "GRM8417 kuberay.labels.d"}},
		{"marks of services", serve(`head_service: annotations: "a b": "", serve_service: {labels: "x": "y z", annotations: "c d": ""}`), []string{"GRM8417 kuberay.head_service.annotations.\"a b\"", "GRM8417 kuberay.serve_service.annotations.\"c d\"", "GRM8417 kuberay.serve_service.labels.x"}},
		{"a time that is none", serve(`annotations: "ray.io/initializing-timeout": "soon"`), []string{"GRM8419 kuberay.annotations.\"ray.io/initializing-timeout\""}},
		{"fields of services", relax(`serve_service: type: "NodePort", upgrade_strategy: "None", exclude_head_from_serve: true, cluster_deletion_delay: 1`), []string{"GRM8405 kuberay.cluster_deletion_delay", "GRM8405 kuberay.exclude_head_from_serve", "GRM8405 kuberay.serve_service", "GRM8405 kuberay.upgrade_strategy"}},
		{"sidecar", relax(`submissionMode: "SidecarMode", head: spec: restartPolicy: "OnFailure"`), []string{"GRM8407 kuberay.head.spec.restartPolicy"}},
		{"a name of a container with a typo", relax(`worker: spec: containers: [{name: "ray-worke", resources: limits: cpu: 4}]`), []string{"GRM8411 kuberay.worker.spec.containers[0]"}},
		{"items of one name", relax(`worker: spec: containers: [{name: "ray-worker", env: [{name: "A", value: "1"}, {name: "A", value: "2"}]}, {name: "ray-worker"}]`), []string{"GRM8411 kuberay.worker.spec.containers[0].env[1]", "GRM8411 kuberay.worker.spec.containers[1]"}},
		{"mounts of nothing in a template", relax(`volumes: [{name: "m", emptyDir: {}}], worker: spec: containers: [{name: "ray-worker", volumeMounts: [{name: "m", mountPath: "/m"}, {name: "n", mountPath: "/n"}]}]`), []string{"GRM8417 kuberay.worker.spec.containers[0].volumeMounts[1].name"}},
		{"the image is taken away", relax(`head: spec: containers: [{name: "ray-head", image: null}]`), []string{"GRM8414 kuberay.head.spec.containers"}},
		{"images of two releases", relax(`worker: spec: containers: [{name: "ray-worker", image: "a/ray:2.59.0"}]`), []string{"GRM8403 kuberay.worker"}},
		{"names in a template", relax(`head: {metadata: annotations: "a b": "c", spec: {nodeSelector: "": "x", serviceAccountName: "A"}}`), []string{"GRM8417 kuberay.head.metadata.annotations.\"a b\"", "GRM8417 kuberay.head.spec.nodeSelector.\"\"", "GRM8417 kuberay.head.spec.serviceAccountName"}},
		{"GPUs besides the plan's", relax(`worker: spec: containers: [{name: "ray-worker", resources: limits: "amd.com/gpu": 8}, {name: "dcgm", image: "x:1", resources: limits: "nvidia.com/gpu": 1}]`), []string{"GRM8414 kuberay.worker.spec.containers[0].resources.limits.\"amd.com/gpu\"", "GRM8414 kuberay.worker.spec.containers[1].resources.limits.\"nvidia.com/gpu\""}},
		{"more shared memory than memory", relax(`worker_memory: "1Gi", shm_size: "2Gi"`), []string{"GRM8412 kuberay.shm_size"}},
		{"bytes", relax(`head_memory: 64, shm_size: "16"`), []string{"GRM8412 kuberay.head_memory", "GRM8412 kuberay.shm_size"}},
		{"volumes beside a faulty one", relax(`volumes: [{name: "v", emptyDi: {}}, {name: "w", emptyDir: {}}, {name: "w", emptyDir: {}}], volume_mounts: [{name: "v", mountPath: "/etc/genrm/"}, {name: "x", mountPath: "/x"}]`),
			[]string{"GRM8411 kuberay.volumes[0].emptyDi", "GRM8417 kuberay.volume_mounts[0].mountPath", "GRM8417 kuberay.volume_mounts[1].name", "GRM8417 kuberay.volumes[2].name"}},
		{"a token among the variables", relax(`env: HF_TOKEN: "hf_abcdefghijklmnopqrstuvwx"`), []string{"GRM1008 kuberay.env.HF_TOKEN"}},
		{"a token in a template", relax(`worker: spec: containers: [{name: "ray-worker", env: [{name: "HF_TOKEN", value: "hf_abcdefghijklmnopqrstuvwx"}]}]`), []string{"GRM1008 kuberay.worker.spec.containers.env.value"}},
		{"no name for an object", strings.Replace(relax(""), `"judged"`, `"Ünï"`, 1), []string{"GRM2004 name"}},
		{"ends with a dash", strings.Replace(relax(""), `"judged"`, `"j-"`, 1), []string{"GRM8402 name"}},
		{"an object that is too large", relax(`env: {for i in list.Range(0, 13, 1) {"V\(i)": strings.Repeat("x", 100000)}}`), []string{"GRM8413 relax"}},
		{"fields of jobs", serve("backoff_limit: 1, suspend: true"), []string{"GRM8405 kuberay.backoff_limit", "GRM8405 kuberay.suspend"}},
		{"too long", strings.Replace(relax(""), "enable_affinity: false", "enable_affinity: false, wandb_group: strings.Repeat(\"x\", 140000)", 1), []string{"GRM8413 relax"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			src := c.src
			if strings.Contains(src, "strings.") {
				src = "import \"strings\"\n" + src
			}
			if strings.Contains(src, "list.") {
				src = "import \"list\"\n" + src
			}
			_, l := compile(t, src)
			var got []string
			for _, d := range l.Sorted() {
				if d.Severity == diag.Note || !strings.HasPrefix(d.Code, "GRM84") && d.Severity == diag.Warning {
					continue
				}
				if d.Severity == diag.Error && (d.Remedy == "" || !d.Pos.IsValid()) {
					t.Errorf("no place or remedy: %+v", d)
				}
				got = append(got, d.Code+" "+d.Path)
			}
			slices.Sort(got)
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q\n%+v", got, c.want, l)
			}
		})
	}
}

// gymVLLM is a gym run with a vLLM of so many GPUs.
func gymVLLM(gpus int) string {
	return fmt.Sprintf(`gym: config: judge: responses_api_models: local_vllm_model: {
	entrypoint: "app.py", model: "/models/judge", return_token_id_information: false, uses_reasoning_parser: false
	vllm_serve_env_vars: VLLM_RAY_DP_PACK_STRATEGY: "strict", vllm_serve_kwargs: {data_parallel_size: 1, tensor_parallel_size: %d, pipeline_parallel_size: 1}
}
`, gpus)
}

// TestDriverGPU: the driver of a gym run with a vLLM of its own wants a GPU on the
// head, which has none unless it is given one.
func TestDriverGPU(t *testing.T) {
	for block, want := range map[string]bool{"": true, "head_gpus: 0": true, "head_gpus: 1": false, "head_gpus: 8": false, "entrypoint_num_gpus: 1, head_gpus: 1": false} {
		_, l := compile(t, "name: \"g\"\nkuberay: {"+imageField+block+"}\ncluster: gpus_per_node: 8\n"+gymVLLM(4))
		if got := slices.ContainsFunc(l, func(d diag.Diagnostic) bool { return d.Code == "GRM8308" && d.Path == "gym.config.judge" }); got != want || l.HasErrors() {
			t.Errorf("%s: %+v", block, l)
		}
	}
}

func TestDidYouMean(t *testing.T) {
	_, l := compile(t, relax(`worker: spec: containers: [{name: "ray-worker", volumeMount: []}]`))
	if len(l) != 1 || l[0].Remedy != `did you mean "volumeMounts"?` || l[0].Pos.Line != 2 {
		t.Errorf("%+v", l)
	}
}

// TestReplaced: the plan tells what a template changes of what is generated.
func TestReplaced(t *testing.T) {
	p := accepted(t, relax(`worker_cpus: 8, worker: spec: {volumes: [{name: "shared-mem", emptyDir: {medium: "Memory", sizeLimit: "1Gi"}}], containers: [{name: "ray-worker", image: "site/other:2.60.0", resources: {limits: cpu: 16, requests: cpu: 16}}]}`))
	var got []string
	for _, f := range p.Facts {
		if f.Path == "kuberay.worker" {
			got = append(got, f.Text)
		}
	}
	want := []string{
		"the template replaces spec.containers[ray-worker].image, site/ray:2.60.0, by site/other:2.60.0",
		"the template replaces spec.containers[ray-worker].resources.limits.cpu, 8, by 16",
		"the template replaces spec.containers[ray-worker].resources.requests.cpu, 8, by 16",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	// One source: what Ray is told is what the container has in the end.
	if n := built(t, p, testRun).RayJob.Spec.RayClusterSpec.WorkerGroupSpecs[0].RayStartParams["num-cpus"]; n != "16" {
		t.Errorf("num-cpus %s", n)
	}
}

// FuzzTemplate: a template is merged, or refused with a finding; it never changes
// which container is Ray's or its GPUs unnoticed.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{`{}`, `{"spec":{"hostNetwork":true}}`, `{"spec":{"containers":[{"name":"ray-worker","image":"x"}]}}`, `{"spec":{"containers":[{"name":"a"}]}}`, `{"spec":null}`, `{"spec":{"$patch":"replace"}}`,
		`{"spec":{"containers":[{"name":"ray-worker","resources":{"limits":{"nvidia.com/gpu":1}}}]}}`, `{"spec":{"containers":[{"$patch":"replace"}]}}`, `{"metadata":{"labels":{"a":"b"}}}`, `{"spec":{"volumes":[{"name":"shared-mem","$retainKeys":["name"]}]}}`} {
		f.Add(s)
	}
	base := accepted(f, relax(""))
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parse(s)
		if err != nil {
			return
		}
		p := *base
		b := &builder{p: &p, s: block("worker", v), objects: &Objects{}}
		generated := b.podTemplate(WorkerContainer, 8, false)
		got := b.template("worker", generated)
		if b.found.HasErrors() {
			return
		}
		q := got.Spec.Containers[0].Resources.Limits[defaultGPU]
		if got.Spec.Containers[0].Name != WorkerContainer || q.Cmp(resource.MustParse("8")) != 0 {
			t.Errorf("%s: %+v", s, got)
		}
	})
}

// FuzzScript: any text reaches the program as it is.
func FuzzScript(f *testing.F) {
	for _, h := range hostile {
		f.Add(h)
	}
	base := accepted(f, relax(""))
	f.Fuzz(func(t *testing.T, s string) {
		p := *base
		p.Launch = plan.Launch{Argv: []plan.Arg{"printf", "%s", plan.Lit(s)}}
		c, err := start(&p, "0", nil)
		if err != nil {
			return // a NUL, or no UTF-8
		}
		text := c.script
		if text == "" {
			text = c.entrypoint
		}
		out, err := exec.Command("bash", "-c", text).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q: got %q, %v", s, out, err)
		}
	})
}

func parse(s string) (*tree.Value, error) { return tree.ParseJSON(s) }

// block is a kuberay block with one field.
func block(name string, v *tree.Value) *tree.Value {
	return &tree.Value{Kind: tree.Struct, Fields: []tree.Field{{Name: name, Value: v}}}
}
