package kuberay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/rundir"
)

// config writes a kubeconfig with the context c for a server.
func config(t *testing.T, server string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "clusters": [{"name": "k", "cluster": {"server": %q, "insecure-skip-tls-verify": true}}],
"users": [{"name": "u", "user": {"token": "hidden"}}], "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "of-context"}}]}`, server)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"KUBECONFIG=" + path}
}

func dial(t *testing.T, h http.HandlerFunc) *conn {
	t.Helper()
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	c, err := connect(Where{}, nil, config(t, s.URL), "v")
	if err != nil {
		t.Fatal(err)
	}
	c.timeout = 300 * time.Millisecond
	return c
}

func TestConnect(t *testing.T) {
	env := config(t, "https://api.example:6443/prefix/")
	c, err := connect(Where{}, nil, env, "v")
	if err != nil || c.base != "https://api.example:6443/prefix" || c.context != "c" || c.namespace != "of-context" {
		t.Errorf("%+v, %v", c, err)
	}
	if c, err = connect(Where{Namespace: "flag"}, nil, env, "v"); err != nil || c.namespace != "flag" {
		t.Errorf("%+v, %v", c, err)
	}
	misfits := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(misfits, []byte("apiVersion: v1\nkind: Config\nclusters: 3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		where Where
		env   []string
		want  string
	}{
		{Where{Context: "other"}, env, `has no context "other": it has c`},
		{Where{}, []string{"HOME=" + t.TempDir()}, "no cluster is known"},
		{Where{Kubeconfig: "/nowhere/config"}, env, "/nowhere/config"},
		{Where{Namespace: "Bad Ns"}, env, `"Bad Ns" is no name of a namespace`},
		{Where{Kubeconfig: misfits}, nil, "clusters is a number, which a kubeconfig does not have there"},
	} {
		if _, err := connect(c.where, nil, c.env, "v"); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestPlugin: what a credential plugin does is told in the kubeconfig's words, and
// one that does not end is not waited for.
func TestPlugin(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"/nowhere/plugin", "", "the credential plugin /nowhere/plugin of the kubeconfig"},
		{"nowhere-plugin", "", "the credential plugin nowhere-plugin of the kubeconfig is not in PATH: install it by hand"},
		{"sh", "exit 3", "the credential plugin sh of the kubeconfig failed with exit code 3"},
		{"sh", "echo hi", "the credential plugin sh of the kubeconfig printed no ExecCredential"},
		{"sh", "exec sleep 5", "or the credential plugin sh of the kubeconfig did not"},
	} {
		conn := dial(t, func(http.ResponseWriter, *http.Request) { t.Error("asked without credentials") })
		conn.config.BearerToken, conn.config.BearerTokenFile = "", ""
		conn.config.ExecProvider = &clientcmdapi.ExecConfig{Command: c.name, Args: []string{"-c", c.script}, APIVersion: "client.authentication.k8s.io/v1", InstallHint: "install it\nby hand", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
		var err error
		if conn.http, err = rest.HTTPClientFor(conn.config); err != nil {
			t.Fatal(err)
		}
		conn.timeout = 100 * time.Millisecond
		if c.script != "exec sleep 5" {
			conn.timeout = time.Minute
		}
		if err := conn.get(context.Background(), "/x", nil); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "Go ") || !again(err) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
}

// TestAnswers has what a server may answer, or something else in its place.
func TestAnswers(t *testing.T) {
	refusal := `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403}`
	for _, c := range []struct {
		name, kind string
		code       int
		body, want string
		status     int // of the error, if it is a refusal
		again      bool
	}{
		{"fine", "application/json", 200, `{}`, "", 0, false},
		{"no JSON", "application/json", 200, `{`, "not answer as Kubernetes does", 0, true},
		{"a login page", "text/html", 200, `<title>Sign in</title>`, "is it the API server?", 0, true},
		{"refused", "application/json", 403, refusal, "no", 403, false},
		{"no token", "application/json", 401, refusal, "refuses the credentials", 0, false},
		{"no such part", "text/plain", 404, "404 page not found\n", "404 page not found", 404, false},
		{"another server", "text/plain", 404, "nothing here", "is it the API server?", 0, true},
		{"a gateway", "text/html", 502, "<h1>bad gateway</h1>", "is not there (502 Bad Gateway)", 0, true},
		{"elsewhere", "", 302, "", "redirects to", 0, true},
		{"too many", "application/json", 429, strings.ReplaceAll(refusal, "403", "429"), "no", 429, true},
		{"hangs", "", 0, "", "did not answer within 300ms", 0, true},
		{"resets", "", -1, "", "cannot be asked", 0, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
				if req.Header.Get("Authorization") != "Bearer hidden" {
					t.Errorf("%v", req.Header)
				}
				switch c.code {
				case 0:
					<-t.Context().Done() // an answer that comes when the client gives up may be read
					return
				case -1:
					panic(http.ErrAbortHandler)
				case 302:
					w.Header().Set("Location", "https://login.example/")
				}
				w.Header().Set("Content-Type", c.kind)
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			})
			var out map[string]any
			err := conn.get(context.Background(), "/x", &out)
			if c.name == "resets" && err != nil && strings.Contains(err.Error(), "closed the connection") {
				err = fmt.Errorf("cannot be asked: %w", err)
			}
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hidden")) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if status(err) != c.status || again(err) != c.again {
				t.Errorf("status %d, again %v", status(err), again(err))
			}
		})
	}
}

func TestWarning(t *testing.T) {
	for h, want := range map[string]string{`299 - "a \"b\" c"`: `a "b" c`, "nothing": ""} {
		if got := warning(h); got != want {
			t.Errorf("%q", got)
		}
	}
}

func TestUnknownFields(t *testing.T) {
	var s schema
	if err := json.Unmarshal([]byte(`{"properties": {"a": {"type": "string"}, "list": {"items": {"properties": {"b": {}}}}, "map": {"additionalProperties": {"properties": {"c": {}}}},
"open": {"x-kubernetes-preserve-unknown-fields": true, "properties": {"d": {}}}, "free": {"additionalProperties": true}, "labels": {"additionalProperties": {"type": "string"}}}}`), &s); err != nil {
		t.Fatal(err)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(`{"a": "x", "z": {"y": 1}, "list": [{"b": 1}, {"x": 1}], "map": {"k": {"c": 1, "w": 2}}, "open": {"q": 1}, "free": {"q": 1}, "labels": {"l": "1"}}`), &v); err != nil {
		t.Fatal(err)
	}
	want := []string{"list[1].x", "map.k.w", "z"}
	if got := s.unknown(v, ""); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for text, want := range map[string]bool{`{"properties": {"spec": {"properties": {"submissionMode": {}}}}}`: false, `{"properties": {"spec": {"properties": {"submissionMode": {}, "deletionStrategy": {}}}}}`: true, `{}`: true} {
		var s schema
		if err := json.Unmarshal([]byte(text), &s); err != nil || s.knowsSidecar() != want {
			t.Errorf("%s: %v, %v", text, s.knowsSidecar(), err)
		}
	}
	for field, want := range map[string]string{"preRunningDeadlineSeconds": "1.6", "rayClusterSpec.workerGroupSpecs[0].labels": "1.5", "rayClusterSpec.workerGroupSpecs[0].template.spec.x": "", "spec.rayClusterConfig.authOptions.secretName": "1.6"} {
		if got := release(field); got != want {
			t.Errorf("%s: %q, want %q", field, got, want)
		}
	}
}

func TestMergeJob(t *testing.T) {
	type wanted struct {
		state  rundir.State
		code   int // -1: none
		reason string
	}
	failed := func(s rayv1.RayJobStatus) rayv1.RayJobStatus {
		s.JobDeploymentStatus = rayv1.JobDeploymentStatusFailed
		return s
	}
	for name, c := range map[string]struct {
		st   rayv1.RayJobStatus
		want wanted
	}{
		"new":          {rayv1.RayJobStatus{}, wanted{rundir.Pending, -1, "operator has not taken it up"}},
		"initializing": {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusInitializing, RayClusterStatus: rayv1.RayClusterStatus{DesiredWorkerReplicas: 3, ReadyWorkerReplicas: 1}}, wanted{rundir.Pending, -1, "1 of 3 workers"}},
		"suspended":    {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusSuspended}, wanted{rundir.Pending, -1, "the queue team"}},
		"retrying":     {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusRetrying, Failed: ptr(int32(1))}, wanted{rundir.Pending, -1, "attempt 1 failed"}},
		"submitting":   {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusRunning}, wanted{rundir.Pending, -1, "being submitted"}},
		"pending":      {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusRunning, JobStatus: rayv1.JobStatusPending, Message: "x\ny"}, wanted{rundir.Pending, -1, "starts its driver: x"}},
		"running":      {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusRunning, JobStatus: rayv1.JobStatusRunning}, wanted{rundir.Ready, -1, ""}},
		"no answer":    {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusRunning, JobStatus: "Failure"}, wanted{rundir.Pending, -1, "being submitted"}},
		"over in Ray":  {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusRunning, JobStatus: rayv1.JobStatusSucceeded}, wanted{rundir.Stopping, -1, "waits for its submitter"}},
		"newer":        {rayv1.RayJobStatus{JobDeploymentStatus: "Later", JobStatus: rayv1.JobStatusRunning}, wanted{rundir.Ready, -1, ""}},
		"complete":     {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusComplete, JobStatus: rayv1.JobStatusSucceeded}, wanted{rundir.Succeeded, 0, ""}},
		"stopped":      {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusComplete, JobStatus: rayv1.JobStatusStopped}, wanted{rundir.Stopped, 143, "stopped in Ray"}},
		"3":            {failed(rayv1.RayJobStatus{Reason: rayv1.AppFailed, JobStatus: rayv1.JobStatusFailed, Message: "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\nexit code 9"}), wanted{rundir.Failed, 3, "ended with status 3"}},
		"-9":           {failed(rayv1.RayJobStatus{Reason: rayv1.AppFailed, Message: "Job entrypoint command failed with exit code -9"}), wanted{rundir.Failed, 137, "killed by signal 9"}},
		"127":          {failed(rayv1.RayJobStatus{Reason: rayv1.AppFailed, Message: "Job entrypoint command failed with exit code 127"}), wanted{rundir.Failed, 127, "a program was not found"}},
		"deadline":     {failed(rayv1.RayJobStatus{Reason: rayv1.DeadlineExceeded, Message: "The RayJob has passed the activeDeadlineSeconds. StartTime: x"}), wanted{rundir.Failed, 3, "kuberay.deadline"}},
		"submission":   {failed(rayv1.RayJobStatus{Reason: rayv1.SubmissionFailed, Message: "Job submission has failed. Reason: BackoffLimitExceeded."}), wanted{rundir.Failed, 3, "could not be submitted to its Ray cluster: Job submission"}},
		"other":        {failed(rayv1.RayJobStatus{Reason: rayv1.AppFailed, Message: "Ray head pod not found."}), wanted{rundir.Failed, 3, "Ray head pod not found."}},
		"invalid":      {rayv1.RayJobStatus{JobDeploymentStatus: rayv1.JobDeploymentStatusValidationFailed, Message: "backoffLimit must be >= 0"}, wanted{rundir.Failed, 3, "the KubeRay operator refuses it: backoffLimit"}},
	} {
		t.Run(name, func(t *testing.T) {
			job := &rayv1.RayJob{Status: c.st}
			job.Labels = map[string]string{LabelQueue: "team"}
			own := &rundir.Status{}
			mergeJob(own, job)
			code := -1
			if own.ExitCode != nil {
				code = *own.ExitCode
			}
			if own.State != c.want.state || code != c.want.code || !strings.Contains(own.Reason, c.want.reason) || c.want.reason == "" && own.Reason != "" {
				t.Errorf("%s %d %q, want %+v", own.State, code, own.Reason, c.want)
			}
		})
	}
}

func ptr[T any](v T) *T { return &v }

func TestMergeService(t *testing.T) {
	condition := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.Unix(100, 0)}
	}
	apps := func(status, message string) rayv1.RayServiceStatus {
		return rayv1.RayServiceStatus{Applications: map[string]rayv1.AppStatus{"judges": {Status: status, Message: message}}}
	}
	for name, c := range map[string]struct {
		st      rayv1.RayServiceStatuses
		state   rundir.State
		reason  string
		failing bool
	}{
		"new":      {rayv1.RayServiceStatuses{}, rundir.Pending, "has not taken it up", false},
		"starting": {rayv1.RayServiceStatuses{ObservedGeneration: 2, Conditions: []metav1.Condition{condition("Ready", "False", "Initializing", "RayService is initializing")}}, rundir.Starting, "Initializing: RayService is initializing", false},
		"deploy failed": {rayv1.RayServiceStatuses{ObservedGeneration: 2, PendingServiceStatus: apps("DEPLOY_FAILED", "Traceback\n  x\nValueError: no such model\n"), Conditions: []metav1.Condition{condition("Ready", "False", "Initializing", "")}},
			rundir.Starting, "application judges: DEPLOY_FAILED: ValueError: no such model", true},
		"ready":         {rayv1.RayServiceStatuses{ObservedGeneration: 2, ActiveServiceStatus: apps("RUNNING", ""), Conditions: []metav1.Condition{condition("Ready", "True", "NonZeroServeEndpoints", "")}}, rundir.Ready, "", false},
		"ready, older":  {rayv1.RayServiceStatuses{ObservedGeneration: 1, Conditions: []metav1.Condition{condition("Ready", "True", "NonZeroServeEndpoints", "")}}, rundir.Starting, "NonZeroServeEndpoints", false},
		"failed before": {rayv1.RayServiceStatuses{ObservedGeneration: 1, PendingServiceStatus: apps("DEPLOY_FAILED", "x")}, rundir.Starting, "its Ray cluster starts", false},
		"unhealthy":     {rayv1.RayServiceStatuses{ObservedGeneration: 2, ActiveServiceStatus: apps("UNHEALTHY", "a\nlast"), Conditions: []metav1.Condition{condition("Ready", "True", "NonZeroServeEndpoints", "")}}, rundir.Ready, "application judges: UNHEALTHY: last", false},
		"given up":      {rayv1.RayServiceStatuses{ObservedGeneration: 2, Conditions: []metav1.Condition{condition("Ready", "False", "InitializingTimeout", "after 5m")}}, rundir.Failed, "KubeRay gave up: InitializingTimeout: after 5m", false},
	} {
		t.Run(name, func(t *testing.T) {
			service := &rayv1.RayService{Status: c.st}
			service.Generation = 2
			own := &rundir.Status{}
			mergeService(own, service)
			if own.State != c.state || !strings.Contains(own.Reason, c.reason) || c.reason == "" && own.Reason != "" || Failing(own) != c.failing {
				t.Errorf("%s %q", own.State, own.Reason)
			}
		})
	}
}

func TestTakes(t *testing.T) {
	ready := corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	node := func(change func(*machine)) *machine {
		m := &machine{Node: corev1.Node{Status: ready}}
		m.Labels = map[string]string{"pool": "gpu"}
		change(m)
		return m
	}
	taint := corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}
	for name, c := range map[string]struct {
		node *machine
		spec corev1.PodSpec
		want bool
	}{
		"plain":  {node(func(*machine) {}), corev1.PodSpec{}, true},
		"closed": {node(func(m *machine) { m.Spec.Unschedulable = true }), corev1.PodSpec{}, false},
		"not ready": {node(func(m *machine) {
			m.Status = corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}}
		}), corev1.PodSpec{}, false},
		"selected":    {node(func(*machine) {}), corev1.PodSpec{NodeSelector: map[string]string{"pool": "gpu"}}, true},
		"other label": {node(func(*machine) {}), corev1.PodSpec{NodeSelector: map[string]string{"pool": "cpu"}}, false},
		"tainted":     {node(func(m *machine) { m.Spec.Taints = []corev1.Taint{taint} }), corev1.PodSpec{}, false},
		"preferred": {node(func(m *machine) {
			m.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectPreferNoSchedule}}
		}), corev1.PodSpec{}, true},
		"tolerated":   {node(func(m *machine) { m.Spec.Taints = []corev1.Taint{taint} }), corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists}}}, true},
		"by value":    {node(func(m *machine) { m.Spec.Taints = []corev1.Taint{taint} }), corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}}}, true},
		"other value": {node(func(m *machine) { m.Spec.Taints = []corev1.Taint{taint} }), corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Value: "absent"}}}, false},
	} {
		if got := c.node.takes(&c.spec); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestGPUs compares a run of pods with nodes.
func TestGPUs(t *testing.T) {
	pod := func(gpus int64) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(gpus, resource.DecimalSI)}}}}}}
	}
	for name, c := range map[string]struct {
		count int32
		each  int64
		nodes []int64
		used  int64 // on the first node
		may   bool  // list nodes
		grows bool
		want  string
	}{
		"fits":         {2, 8, []int64{8, 8}, 0, true, false, ""},
		"too few":      {2, 8, []int64{8}, 0, true, false, "GRM8425 error"},
		"grows":        {2, 8, []int64{8}, 0, true, true, "GRM8425 warning"},
		"in use":       {2, 8, []int64{8, 8}, 1, true, false, "GRM8426 warning"},
		"in a queue":   {2, 8, []int64{8, 8}, 1, true, false, ""},
		"small nodes":  {1, 8, []int64{4, 4}, 0, true, false, "GRM8427 error"},
		"no room":      {4, 3, []int64{8, 4}, 0, true, false, "GRM8427 error"}, // 12 GPUs, and room for 3 pods
		"not told":     {2, 8, nil, 0, false, false, "GRM8428 note"},
		"none wanted":  {2, 0, nil, 0, true, false, ""},
		"no GPU there": {1, 1, []int64{0}, 0, true, false, "GRM8425 error"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				var items []any
				switch {
				case !c.may:
					w.WriteHeader(403)
					_, _ = io.WriteString(w, `{"kind": "Status", "code": 403, "reason": "Forbidden"}`)
					return
				case req.URL.Path == "/api/v1/nodes":
					for i, n := range c.nodes {
						node := corev1.Node{}
						node.Name, node.Status.Allocatable = fmt.Sprint("n", i), corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(n, resource.DecimalSI)}
						items = append(items, node)
					}
				case req.URL.Path == "/api/v1/pods":
					p := corev1.Pod{}
					p.Spec.NodeName = "n0"
					p.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": *resource.NewQuantity(c.used, resource.DecimalSI)}}}}
					items = append(items, p)
				}
				_ = json.NewEncoder(w).Encode(map[string]any{"items": items})
			})
			worker := pod(c.each)
			objects := &Objects{RayJob: &rayv1.RayJob{Spec: rayv1.RayJobSpec{RayClusterSpec: &rayv1.RayClusterSpec{WorkerGroupSpecs: []rayv1.WorkerGroupSpec{{GroupName: "workers", Replicas: &c.count, Template: worker}}}}}}
			if name == "in a queue" {
				objects.RayJob.Labels = map[string]string{LabelQueue: "team"}
			}
			l := look{c: conn, p: &plan.Plan{Workload: plan.Relax}, objects: objects, grows: c.grows}
			found, err := l.gpus(context.Background())
			var got []string
			for _, d := range found {
				got = append(got, d.Code+" "+string(d.Severity))
			}
			if err != nil || strings.Join(got, ", ") != c.want {
				t.Errorf("%v, %v, want %q: %+v", got, err, c.want, found)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	p := &Prepared{o: Options{Plan: &plan.Plan{}}, c: &conn{namespace: "ml", base: "https://k"}}
	o := &rayv1.RayJob{TypeMeta: metav1.TypeMeta{Kind: "RayJob"}}
	o.Name, o.Namespace = "j", "ml"
	refusal := func(code int32, message string, causes ...metav1.StatusCause) error {
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: code, Message: message, Details: &metav1.StatusDetails{Causes: causes}}}
	}
	for _, c := range []struct {
		err  error
		want []string
	}{
		{refusal(409, "Apply failed", metav1.StatusCause{Type: metav1.CauseTypeFieldManagerConflict, Message: `conflict with "kubectl-edit" using ray.io/v1`, Field: ".spec.suspend"}),
			[]string{`GRM8434 spec.suspend of RayJob ml/j is set by "kubectl-edit" using ray.io/v1`}},
		{refusal(422, "invalid", metav1.StatusCause{Message: "Too long", Field: "metadata.name"}, metav1.StatusCause{Message: "Required", Field: "spec.x"}),
			[]string{"GRM8433 Kubernetes refuses metadata.name of RayJob ml/j: Too long", "GRM8433 Kubernetes refuses spec.x of RayJob ml/j: Required"}},
		{refusal(400, `x in version "v1" cannot be handled: strict decoding error: unknown field "spec.foo"`), []string{`GRM8433 Kubernetes refuses RayJob ml/j: unknown field "spec.foo"`}},
		{refusal(403, "exceeded quota: q, requested: count/rayjobs.ray.io=1"), []string{"GRM8433 Kubernetes refuses RayJob ml/j: exceeded quota: q, requested: count/rayjobs.ray.io=1"}},
		{refusal(404, `namespaces "ml" not found`), []string{`GRM8421 namespaces "ml" not found`}},
		{&Denied{"https://k"}, []string{"GRM8420 the Kubernetes API server refuses the credentials"}},
	} {
		found, err := p.refusals(o, c.err)
		var got []string
		for _, d := range found {
			got = append(got, d.Code+" "+d.Summary)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%q, %v, want %q", got, err, c.want)
		}
	}
	lost := &Unreachable{errors.New("x")}
	if found, err := p.refusals(o, lost); len(found) > 0 || err != error(lost) {
		t.Errorf("%v, %v", found, err)
	}
}

// TestFollow breaks the stream of a submitter's log at every byte, and goes over
// to a second submitter, which repeats what the first has followed.
func TestFollow(t *testing.T) {
	stamp := func(i int) string { return fmt.Sprintf("2026-01-02T03:04:%02d.%09dZ ", i/3, i%3*100) } // three lines a second
	const submitting = "2026-11-30 00:58:45,638	INFO cli.py:42 -- \x1b[37mJob submission server address\x1b[39m: http://x:8265"
	head := []string{submitting, "submitted", submitting}
	lines := append(slices.Clone(head), "one", "one", "zwölf", "", "four")
	again := append([]string{submitting}, "one", "one", "zwölf", "", "four", "five")
	text := func(lines []string) string {
		var b strings.Builder
		for i, l := range lines {
			b.WriteString(stamp(i) + l + "\n")
		}
		return b.String()
	}
	first, second := text(lines), strings.TrimSuffix(text(again), "\n") // its last line has no end
	var mu sync.Mutex
	breaks, over := 0, false
	since := func(q, all string) string { // what the node has from a second on
		t0, err := time.Parse(time.RFC3339, q)
		if err != nil {
			return all
		}
		var b strings.Builder
		for line := range strings.Lines(all) {
			stamp, _, _ := strings.Cut(line, " ")
			if at, _ := time.Parse(time.RFC3339Nano, stamp); !at.Before(t0) {
				b.WriteString(line)
			}
		}
		return b.String()
	}
	pod := func(name string, ended bool, age int64) map[string]any {
		state := map[string]any{"running": map[string]any{}}
		if ended {
			state = map[string]any{"terminated": map[string]any{"exitCode": 1}}
		}
		return map[string]any{"metadata": map[string]any{"name": name, "namespace": "ml", "creationTimestamp": time.Unix(age, 0).UTC().Format(time.RFC3339)},
			"status": map[string]any{"containerStatuses": []any{map[string]any{"name": SubmitterContainer, "state": state}}}}
	}
	conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		send := func(v any) { _ = json.NewEncoder(w).Encode(v) }
		a := pod("a", breaks > len(first), 1)
		b := pod("b", over, 2)
		switch path := req.URL.Path; {
		case strings.HasSuffix(path, "/rayjobs/j"):
			st := "Running"
			if over {
				st = "Failed"
			}
			send(map[string]any{"metadata": map[string]any{"uid": "u"}, "status": map[string]any{"jobDeploymentStatus": st}})
		case strings.HasSuffix(path, "/pods"):
			items := []any{a}
			if breaks > len(first) {
				items = append(items, b)
			}
			send(map[string]any{"items": items})
		case strings.HasSuffix(path, "/pods/a"):
			send(a)
		case strings.HasSuffix(path, "/pods/b"):
			send(b)
		case strings.HasSuffix(path, "/pods/a/log"):
			n := breaks
			breaks++
			w.Header().Set("Content-Type", "text/plain")
			all := first[:min(n, len(first))]
			_, _ = io.WriteString(w, since(req.URL.Query().Get("sinceTime"), all))
			w.(http.Flusher).Flush()
			if n < len(first) && n%2 == 0 {
				panic(http.ErrAbortHandler)
			}
		case strings.HasSuffix(path, "/pods/b/log"):
			over = true
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, second)
		default:
			t.Errorf("%s", path)
		}
	})
	conn.namespace = "ml"
	lookAgain = time.Millisecond
	defer func() { lookAgain = lookEvery }()
	s := &Session{c: conn, object: Object{Kind: "RayJob", Name: "j", UID: "u"}, run: &rundir.Run{}}
	var out strings.Builder
	broken := 0
	if err := s.Follow(context.Background(), &out, func(err error) error {
		if err != nil {
			broken++
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := strings.Join(lines, "\n") + "\n" + again[0] + "\nfive"
	if out.String() != want || broken == 0 {
		t.Errorf("after %d breaks %q, want %q", broken, out.String(), want)
	}
	failing := errors.New("no")
	breaks, over = len(first)+1, false
	if err := s.Follow(context.Background(), brokenWriter{failing}, func(error) error { return nil }); !errors.Is(err, failing) {
		t.Errorf("%v", err)
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestApplyAgain: an apply whose answer is lost is sent again as it was; a
// refusal is not.
func TestApplyAgain(t *testing.T) {
	was := retries
	retries = []time.Duration{time.Millisecond, time.Millisecond}
	defer func() { retries = was }()
	for name, c := range map[string]struct {
		lost, code int // answers that are lost, and then the status
		asked      int
		fails      bool
	}{
		"fine": {0, 200, 1, false}, "lost once": {1, 200, 2, false}, "lost for good": {9, 200, 3, true}, "refused": {0, 403, 1, true}, "busy": {0, 429, 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			var bodies []string
			conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
				body, _ := io.ReadAll(req.Body)
				bodies = append(bodies, string(body))
				q := req.URL.Query()
				if req.Method != http.MethodPatch || q.Get("fieldManager") != "genrm" || q.Get("fieldValidation") != "Strict" || q.Get("force") != "false" || q.Get("dryRun") != "" ||
					req.Header.Get("Content-Type") != "application/apply-patch+yaml" || req.URL.Path != "/apis/ray.io/v1/namespaces/of-context/rayjobs/j" {
					t.Errorf("%s %s %v", req.Method, req.URL, req.Header)
				}
				if len(bodies) <= c.lost {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.code)
				if c.code == 200 {
					_, _ = io.WriteString(w, `{"metadata": {"uid": "u"}}`)
					return
				}
				_, _ = fmt.Fprintf(w, `{"kind": "Status", "code": %d}`, c.code)
			})
			o := &rayv1.RayJob{TypeMeta: metav1.TypeMeta{APIVersion: "ray.io/v1", Kind: "RayJob"}}
			o.Name, o.Annotations = "j", map[string]string{"a": "\x7f \u0085 \ufffe"}
			got, made, err := conn.apply(context.Background(), o, false, nil)
			if made != (err == nil && c.asked > 1) { // 200 says that it was there, unless an answer was lost before
				t.Errorf("made: %t", made)
			}
			if (err != nil) != c.fails || err == nil && got.GetUID() != "u" || len(bodies) != c.asked {
				t.Errorf("%v, %v after %d requests", got, err, len(bodies))
			}
			for _, b := range bodies {
				var sent rayv1.RayJob // the server reads YAML
				if err := yaml.Unmarshal([]byte(b), &sent); err != nil || sent.Annotations["a"] != o.Annotations["a"] {
					t.Errorf("%q: %v", sent.Annotations, err)
				}
				if b != bodies[0] || strings.Contains(b, "status") || strings.Contains(b, "null") {
					t.Errorf("%s", b)
				}
			}
		})
	}
}

// TestStatusOfWhatIsGone: an object that is not there, or that is another's.
func TestStatusOfWhatIsGone(t *testing.T) {
	object := func(uid, run string) string {
		return fmt.Sprintf(`{"metadata": {"name": "j", "uid": %q, "labels": {"genrm.dev/run": %q}}, "status": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}}`, uid, run)
	}
	for name, c := range map[string]struct {
		uid    string // that the run knows
		stop   bool   // was asked for
		there  string // "" is a 404
		state  rundir.State
		reason string
		kept   bool
	}{
		"running":        {"u", false, object("u", "r-1"), rundir.Ready, "", true},
		"deleted":        {"u", false, "", rundir.Unknown, "RayJob ml/j is gone: somebody deleted it", true},
		"another's name": {"u", false, object("v", "r-2"), rundir.Unknown, "is another object now, of run r-2", true},
		"stopped":        {"u", true, "", rundir.Stopped, "stopped by me", true},
		"never there":    {"", false, "", rundir.Failed, "Kubernetes never got its object", false},
		"lost answer":    {"", false, object("u", "r-1"), rundir.Ready, "", true},
		"replaced":       {"u", false, object("u", "r-2"), rundir.Stopped, "replaced by r-2", true},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case strings.HasSuffix(req.URL.Path, "/pods"):
					_, _ = io.WriteString(w, `{"items": []}`)
				case c.there == "":
					w.WriteHeader(404)
					_, _ = io.WriteString(w, `{"kind": "Status", "code": 404, "reason": "NotFound"}`)
				default:
					_, _ = io.WriteString(w, c.there)
				}
			})
			run, err := rundir.Create(t.TempDir(), rundir.Info{ID: "r-1", Target: "kuberay", Workload: "relax"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if c.stop {
				if err := run.RequestStop("me"); err != nil {
					t.Fatal(err)
				}
			}
			s := &Session{run: run, c: conn, object: Object{Server: conn.base, Namespace: "ml", Kind: "RayJob", Name: "j", UID: c.uid}}
			st, err := s.Status(context.Background())
			if err != nil || st.State != c.state || !strings.Contains(st.Reason, c.reason) || c.reason == "" && st.Reason != "" {
				t.Errorf("%+v, %v", st, err)
			}
			if kept, err := run.Status(); err != nil || (kept.State == c.state) != c.kept {
				t.Errorf("kept: %+v, %v", kept, err)
			}
			if c.there == "" && c.uid != "" {
				s.object.Server = "https://elsewhere"
				again, err := rundir.Create(t.TempDir(), rundir.Info{ID: "r-1", Target: "kuberay"}, nil)
				if err != nil {
					t.Fatal(err)
				}
				s.run = again
				var gone *Unreachable
				if _, err := s.Status(context.Background()); !errors.As(err, &gone) || !strings.Contains(err.Error(), "https://elsewhere") {
					t.Errorf("on another cluster: %v", err)
				}
			}
		})
	}
}

// TestStopOrder: an object goes in the foreground, so that all of it has gone with
// it; one whose Ray cluster keeps its state in a Redis in the background, and then
// the cluster is waited for.
func TestStopOrder(t *testing.T) {
	for name, c := range map[string]struct{ spec, how string }{
		"plain": {`{"rayClusterSpec": {}}`, "Foreground"},
		"redis": {`{"rayClusterSpec": {"gcsFaultToleranceOptions": {"redisAddress": "redis:6379"}}}`, "Background"},
	} {
		t.Run(name, func(t *testing.T) {
			var how []string
			gone, waits := false, 3 // how often the cluster is still there
			conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				no := func() {
					w.WriteHeader(404)
					_, _ = io.WriteString(w, `{"kind": "Status", "code": 404, "reason": "NotFound"}`)
				}
				switch {
				case strings.HasSuffix(req.URL.Path, "/pods"):
					_, _ = io.WriteString(w, `{"items": []}`)
				case strings.HasSuffix(req.URL.Path, "/rayclusters/j-abc"):
					if waits--; waits < 0 {
						no()
						return
					}
					_, _ = io.WriteString(w, `{"metadata": {"name": "j-abc", "uid": "c"}}`)
				case gone:
					no()
				case req.Method == http.MethodDelete:
					var o struct {
						How string `json:"propagationPolicy"`
					}
					if err := json.NewDecoder(req.Body).Decode(&o); err != nil {
						t.Error(err)
					}
					how, gone = append(how, o.How), true
					_, _ = io.WriteString(w, `{"kind": "Status", "status": "Success"}`)
				default:
					_, _ = fmt.Fprintf(w, `{"metadata": {"name": "j", "uid": "u", "labels": {"genrm.dev/run": "r-1"}}, "spec": %s, "status": {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "rayClusterName": "j-abc"}}`, c.spec)
				}
			})
			run, err := rundir.Create(t.TempDir(), rundir.Info{ID: "r-1", Target: "kuberay", Workload: "relax"}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := &Session{run: run, c: conn, object: Object{Server: conn.base, Namespace: "ml", Kind: "RayJob", Name: "j", UID: "u"}}
			st, err := s.Stop(context.Background(), "me", time.Minute)
			if err != nil || st.State != rundir.Stopped {
				t.Errorf("%+v, %v", st, err)
			}
			if !slices.Equal(how, []string{c.how}) {
				t.Errorf("removed in %q, want %s", how, c.how)
			}
			if (c.how == "Background") != (waits < 0) {
				t.Errorf("%d looks at the Ray cluster were left", waits)
			}
		})
	}
}

// TestAdopted: what a RayService carries is enough for its gateway on another
// machine.
func TestAdopted(t *testing.T) {
	p := accepted(t, serve(""))
	service := built(t, p, testRun).RayService
	f := (&conn{namespace: "ml"}).found("RayService", &service.ObjectMeta)
	if f.Info.ID != testRun.ID || f.Info.Name != "judges" || f.Info.User != "ada" || f.Info.Workload != "serve" || !f.Info.Created.Equal(testRun.Created) {
		t.Errorf("%+v", f.Info)
	}
	files, err := f.Files()
	if err != nil {
		t.Fatal(err)
	}
	got := string(files["artifacts/gateway.json"])
	if want := ray.GatewayText(p); want == "" || got == "" || strings.Join(strings.Fields(got), "") != strings.Join(strings.Fields(want), "") {
		t.Errorf("%q, want %q", got, want)
	}
	if _, there := built(t, p, Run{}).RayService.Annotations[AnnotationGateway]; there {
		t.Error("an object for GitOps is no run's")
	}
}
