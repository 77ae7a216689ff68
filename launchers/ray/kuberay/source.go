package kuberay

import (
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

var index = regexp.MustCompile(`\[\d+\]`)

// source is the field of the experiment that a field of the object comes from,
// as far as that is plain; else the block.
func source(p *plan.Plan, field string) string {
	plain := strings.TrimPrefix(index.ReplaceAllString(field, "[]"), "spec.")
	for _, s := range []struct{ prefix, path string }{
		{"ttlSecondsAfterFinished", "kuberay.ttl"},
		{"activeDeadlineSeconds", "kuberay.deadline"},
		{"preRunningDeadlineSeconds", "kuberay.startup_deadline"},
		{"submissionMode", "kuberay.submissionMode"},
		{"backoffLimit", "kuberay.backoff_limit"},
		{"suspend", "kuberay.suspend"},
		{"shutdownAfterJobFinishes", "kuberay.shutdown_after_finish"},
		{"entrypointNumGpus", "kuberay.entrypoint_num_gpus"},
		{"entrypointNumCpus", "kuberay.entrypoint_num_cpus"},
		{"serveConfigV2", "serve.instances"},
		{"serveService", "kuberay.serve_service"},
		{"excludeHeadPodFromServeSvc", "kuberay.exclude_head_from_serve"},
		{"upgradeStrategy", "kuberay.upgrade_strategy"},
		{"rayClusterDeletionDelaySeconds", "kuberay.cluster_deletion_delay"},
	} {
		if strings.HasPrefix(plain, s.prefix) {
			return s.path
		}
	}
	for _, root := range []string{"rayClusterSpec.", "rayClusterConfig."} {
		rest, ok := strings.CutPrefix(plain, root)
		if !ok {
			continue
		}
		for _, s := range []struct{ prefix, path string }{
			{"gcsFaultToleranceOptions", "kuberay.gcs_fault_tolerance"},
			{"headServiceAnnotations", "kuberay.head_service.annotations"},
			{"headGroupSpec.serviceType", "kuberay.head_service.type"},
			{"headGroupSpec.rayStartParams", "kuberay.head_ray_start_params"},
			{"workerGroupSpecs[].rayStartParams", "kuberay.worker_ray_start_params"},
			{"autoscalerOptions.version", "kuberay.autoscaling.version"},
			{"autoscalerOptions.upscalingMode", "kuberay.autoscaling.upscaling_mode"},
			{"headGroupSpec", "kuberay.head"}, {"workerGroupSpecs", "kuberay.worker"}, {"rayVersion", "kuberay.rayVersion"}, {"autoscalerOptions", "kuberay.autoscaling"}, {"enableInTreeAutoscaling", "kuberay.autoscaling"},
		} {
			tail, ok := strings.CutPrefix(rest, s.prefix)
			if !ok {
				continue
			}
			// The template's own fields are the user's where the user wrote them.
			if at := strings.Index(tail, "template."); at >= 0 {
				full := s.path + "." + tail[at+len("template."):]
				if _, ok := p.Positions[full]; ok {
					return full
				}
			}
			return s.path
		}
	}
	return "kuberay"
}

// mention is where the user wrote a text within the block of the target, else
// the path that is given.
func mention(p *plan.Plan, text, otherwise string) string {
	block, _ := p.Settings.Get("kuberay")
	var walk func(v *tree.Value, path string) string
	walk = func(v *tree.Value, path string) string {
		if !v.OK() {
			return ""
		}
		switch v.Kind {
		case tree.String:
			if v.Text == text {
				return path
			}
		case tree.Struct:
			for _, f := range v.Fields {
				if at := walk(f.Value, tree.Join(path, f.Name)); at != "" {
					return at
				}
			}
		case tree.List:
			if slices.ContainsFunc(v.Items, func(i *tree.Value) bool { return walk(i, path) != "" }) {
				return path
			}
		}
		return ""
	}
	if at := walk(block, "kuberay"); at != "" {
		return at
	}
	return otherwise
}
