// Package kuberay is the target of clusters on which the KubeRay operator runs: a
// relax or gym run becomes a RayJob, served judges a RayService.
//
// Objects are values of the operator's own Go types, never text. What needs no
// cluster, [Build], [Files] and the rules of [Checker], touches none.
package kuberay

import (
	"fmt"
	"time"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/ray"
)

// Names of what marks an object as a run's. Labels and annotations stand at the
// objects alone, never in pod templates: a RayService whose templates change is
// built anew.
const (
	ManagedBy       = "app.kubernetes.io/managed-by" // label: [Manager]
	LabelRun        = "genrm.dev/run"                // label: the run's id
	LabelExperiment = "genrm.dev/experiment"         // label: [ray.ObjectName] of the experiment

	AnnotationPlanHash = "genrm.dev/plan-hash"
	AnnotationVersion  = "genrm.dev/version" // of genrm
	AnnotationUser     = "genrm.dev/user"
	AnnotationHost     = "genrm.dev/host" // from which it was launched
	AnnotationName     = "genrm.dev/name" // of the experiment
	AnnotationWorkload = "genrm.dev/workload"
	AnnotationCreated  = "genrm.dev/created" // RFC 3339, in UTC
	AnnotationGateway  = "genrm.dev/gateway" // of a serve run: gateway.json in one line, for `genrm gateway --run` elsewhere

	// LabelQueue is what Kueue knows an object's queue by.
	LabelQueue = "kueue.x-k8s.io/queue-name"

	// Manager is the name by which genrm owns fields of what it applies.
	Manager = "genrm"
)

// Names of containers.
const (
	HeadContainer      = "ray-head"
	WorkerContainer    = "ray-worker"
	SubmitterContainer = "ray-job-submitter" // the operator's name of it
)

// Run says whose run the objects are. With ID "" they are nobody's: as emit
// writes them, to be applied by other tools, named after the experiment alone.
type Run struct {
	ID, User, Host string
	Version        string // of genrm
	Created        time.Time
}

// Objects are what a run is made of in Kubernetes, in the order of creation.
type Objects struct {
	ConfigMap  *corev1.ConfigMap // nil if there are no files and no script
	RayJob     *rayv1.RayJob     // relax, gym
	RayService *rayv1.RayService // serve
}

// All lists the objects in the order of creation. Each has its TypeMeta.
func (o *Objects) All() []client.Object {
	var out []client.Object
	if o.ConfigMap != nil {
		out = append(out, o.ConfigMap)
	}
	if m := o.Main(); m != nil {
		out = append(out, m)
	}
	return out
}

// Main is the RayJob or RayService, nil if there is none.
func (o *Objects) Main() client.Object {
	switch {
	case o.RayJob != nil:
		return o.RayJob
	case o.RayService != nil:
		return o.RayService
	}
	return nil
}

// Build makes the objects of a run of a plan. It changes nothing in the plan,
// and needs no cluster. The list holds the errors that show while building, with
// which the objects are not to be used; it is empty for a plan that [Checker]
// accepts. An error is returned for text that no program can be given.
func Build(p *plan.Plan, run Run) (*Objects, diag.List, error) {
	hash, err := p.Hash()
	if err != nil {
		return nil, nil, err
	}
	b, err := build(p, run, hash)
	if err != nil {
		return nil, nil, err
	}
	if b.found.HasErrors() {
		return b.objects, b.found, nil
	}
	return b.objects, nil, nil
}

// Name is the name of the object of a run: the experiment's, and for a RayJob the
// last six characters of the run's id behind it. A RayService keeps its name, so
// that its address stays.
func Name(p *plan.Plan, runID string) string {
	name := ray.ObjectName(p.Name)
	if p.Workload == plan.Serve || runID == "" {
		return name
	}
	return name + "-" + runID[max(0, len(runID)-6):]
}

// Unstructured is an object as it is sent and written: without status and without
// the fields that the Go types write although nobody set them.
func Unstructured(o client.Object) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.GetName(), err)
	}
	delete(m, "status")
	prune(m)
	return &unstructured.Unstructured{Object: m}, nil
}

// prune drops nulls, and the structs that Go writes empty because they are no
// pointers. An empty struct elsewhere means something, such as emptyDir: {}.
// Within lists they stay: the operator writes them, too, and a list is one field
// to Kubernetes, which would then be the operator's: a conflict for whoever
// applies the same manifest again.
func prune(m map[string]any) {
	for k, x := range m {
		switch x := x.(type) {
		case nil:
			delete(m, k)
		case map[string]any:
			prune(x)
			if len(x) == 0 && (k == "resources" || k == "metadata" || k == "loadBalancer" || k == "status") {
				delete(m, k)
			}
		case []any:
			pruneNulls(x)
		}
	}
}

func pruneNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if x == nil {
				delete(v, k)
				continue
			}
			pruneNulls(x)
		}
	case []any:
		for _, x := range v {
			pruneNulls(x)
		}
	}
}

// settings is the plan's kuberay block, nil if there is none.
func settings(p *plan.Plan) *tree.Value {
	s, _ := p.Settings.Get("kuberay")
	return s
}
