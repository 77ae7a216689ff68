//go:build e2e

package kube

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// fields are what the block says of the objects beside templates of their pods.
// The first are known to all releases.
const (
	fields = `gcs_fault_tolerance: {redis_address: "rediss://redis.ml:6380", redis_username: {name: "redis", key: "user"}, redis_password: {name: "redis", key: "password"}, external_storage_namespace: "shared"}
	head_ray_start_params: {"num-cpus": "0", "object-store-memory": "20000000000"}
	worker_ray_start_params: resources: "{\"judge\": 1}"
	labels: "volcano.sh/queue-name": "rl"
	annotations: "site/owner": "rl team"
	head_service: {type: "NodePort", annotations: "cloud/internal": "true"}
	autoscaling: {min: 1, max: 2, idle_timeout: 120, upscaling_mode: "Conservative", cpus: 1}`
	serveFields = `
	serve_service: {type: "LoadBalancer", labels: team: "rl", annotations: "cloud/internal": "true"}
	exclude_head_from_serve: true
	upgrade_strategy: "None"`
)

// TestFields: each release of KubeRay takes them, strictly, but for those that are
// said to be newer, which are named; and what holds the password of the Redis is
// looked for.
func TestFields(t *testing.T) {
	r := newRig(t, "")
	write := func(name, text, more string) string {
		if !strings.Contains(text, "MORE") {
			text += "kuberay: {\n\tMORE\n}\n"
		}
		return r.file(name+".cue", strings.Replace(text, "MORE", more, 1))
	}
	job, service := write("job", training, fields), write("service", judges, fields+serveFields)
	newer := []struct{ kind, file, field, at, release string }{
		{"job", write("job-version", training, fields+`, autoscaling: version: "v2"`), "spec.rayClusterSpec.autoscalerOptions.version", "version", "1.4"},
		{"service", write("service-delay", judges, fields+serveFields+"\n\tcluster_deletion_delay: 30"), "spec.rayClusterDeletionDelaySeconds", "cluster_deletion_delay", "1.5"},
	}
	manifest := func(file string) string {
		dir := filepath.Join(r.dir, "out", filepath.Base(file))
		r.ends(0, nil, "emit", "--target", "kuberay", "--force", "-o", dir, file)
		return filepath.Join(dir, "kuberay.yaml")
	}
	secret := false
	for _, release := range releases {
		t.Run(release, func(t *testing.T) {
			needs(t, release, "", "hold", 64)
			r.t = t
			if !secret {
				for _, file := range []string{job, service} {
					r.launch(3, []string{"GRM8429", r.namespace + " has no secret redis", "redis_username"}, "--dry-run=server", file)
				}
				kubectl(t, "-n", r.namespace, "create", "secret", "generic", "redis", "--from-literal=user=u", "--from-literal=password=p")
				secret = true
			}
			took := func(file string) {
				t.Helper()
				if out := r.launch(0, []string{"the API server would take", "nothing was changed"}, "--dry-run=server", file); strings.Contains(out, "GRM8435") {
					t.Errorf("the API server warns:\n%s", out)
				}
				kubectl(t, "-n", r.namespace, "create", "--validate=strict", "--dry-run=server", "-f", manifest(file))
			}
			took(job)
			took(service)
			for _, n := range newer {
				if release >= n.release {
					took(n.file)
					continue
				}
				r.launch(3, []string{"GRM8423", "the cluster's KubeRay does not know " + n.field, "KubeRay " + n.release + " or later", n.at + ":"}, "--dry-run=server", n.file)
				if out, err := tryKubectl("-n", r.namespace, "create", "--validate=strict", "--dry-run=server", "-f", manifest(n.file)); err == nil || !strings.Contains(out, `unknown field "`+n.field+`"`) {
					t.Errorf("the API server takes it: %v\n%s", err, out)
				}
			}
		})
	}
	r.t = t
	if left := r.objects(); len(left) > 0 {
		t.Errorf("a dry run made %q", left)
	}
}

// TestRedis: the operator hands the Redis to the head; when the run goes, it
// empties it by a pod that starts although the run's files are gone, and stop
// waits for that.
func TestRedis(t *testing.T) {
	needs(t, "1.5.1", "1.5.1", "hold", 64)
	r := newRig(t, "")
	kubectl(t, "-n", r.namespace, "create", "secret", "generic", "redis", "--from-literal=user=u", "--from-literal=password=p")
	object, _ := r.launched(example{args: []string{r.training(fields)}})
	r.acceptsIt(object)
	pod := strings.TrimSpace(kubectl(t, "-n", r.namespace, "get", "pods", "-l", "ray.io/node-type=head", "-o", "name"))
	env := r.field(pod, `range .spec.containers[0].env[*]}{.name}={.value}{.valueFrom.secretKeyRef.key}{"\n"}{end`)
	for _, want := range []string{"RAY_REDIS_ADDRESS=rediss://redis.ml:6380", "REDIS_USERNAME=user", "REDIS_PASSWORD=password", "RAY_external_storage_namespace=shared"} {
		if !slices.Contains(strings.Split(env, "\n"), want) {
			t.Errorf("no %s in\n%s", want, env)
		}
	}
	cluster := strings.TrimSpace(kubectl(t, "-n", r.namespace, "get", "rayclusters", "-o", "name"))
	if owner, queue := r.field(cluster, `.metadata.annotations.site/owner`), r.field(cluster, `.metadata.labels.volcano\.sh/queue-name`); owner != "rl team" || queue != "rl" {
		t.Errorf("the cluster has %q %q", owner, queue)
	}
	if kind := r.field("service/"+strings.TrimPrefix(cluster, "raycluster.ray.io/")+"-head-svc", ".spec.type"); kind != "NodePort" {
		t.Errorf("the head's service is %s", kind)
	}
	stopped := make(chan error, 1)
	stop := r.command("stop")
	go func() { stopped <- stop.Run() }()
	cleanup := func() string {
		return strings.TrimSpace(kubectl(t, "-n", r.namespace, "get", "pods", "-l", "ray.io/node-type=redis-cleanup", "-o", "name"))
	}
	r.wait("a pod that empties the Redis", func() bool { return cleanup() != "" })
	if optional := r.field(cleanup(), `.spec.volumes[?(@.name=="genrm")].configMap.optional`); optional != "true" {
		t.Errorf("it waits for the files of the run, which are gone: optional is %q", optional)
	}
	ctl(t, "pods", "succeed", r.namespace+"/*redis-cleanup*", "0")
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
	r.wait("the end", func() bool { return len(r.objects()) == 0 })
}
