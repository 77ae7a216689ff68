package kuberay

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
)

// member is one of several runs: a RayJob with one pod of so many GPUs.
func member(c *conn, name string, gpus int64, kind corev1.ResourceName, queue string) *look {
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{kind: *resource.NewQuantity(gpus, resource.DecimalSI)}}}}}}
	job := &rayv1.RayJob{Spec: rayv1.RayJobSpec{RayClusterSpec: &rayv1.RayClusterSpec{WorkerGroupSpecs: []rayv1.WorkerGroupSpec{{GroupName: "workers", Template: pod}}}}}
	job.Name = name
	if queue != "" {
		job.Labels = map[string]string{LabelQueue: queue}
	}
	return &look{c: c, p: &plan.Plan{Name: name, Prefix: "experiments." + name, Workload: plan.Relax}, objects: &Objects{RayJob: job}}
}

// TestTogether: GPUs are summed over the runs that want the same sort at the same
// cluster now, and told once, in the place of what is told of each.
func TestTogether(t *testing.T) {
	const nvidia, amd = corev1.ResourceName("nvidia.com/gpu"), corev1.ResourceName("amd.com/gpu")
	for name, c := range map[string]struct {
		forbidden string // what may not be listed
		runs      []*look
		want      []string
		left      int // findings of each that stay
	}{
		"room":          {"", []*look{member(nil, "a", 4, nvidia, ""), member(nil, "b", 4, nvidia, "")}, nil, 2},
		"too few":       {"", []*look{member(nil, "a", 8, nvidia, ""), member(nil, "b", 4, nvidia, "")}, []string{"the 2 runs need 12 GPUs together, and 8 of the cluster's are free now"}, 0},
		"use not known": {"/api/v1/pods", []*look{member(nil, "a", 8, nvidia, ""), member(nil, "b", 4, nvidia, "")}, []string{"the 2 runs need 12 GPUs together, and the cluster has 8"}, 0},
		"not known":     {"/api/v1/nodes", []*look{member(nil, "a", 8, nvidia, ""), member(nil, "b", 4, nvidia, "")}, nil, 2},
		"one in queue":  {"", []*look{member(nil, "a", 8, nvidia, ""), member(nil, "b", 4, nvidia, "team")}, nil, 2},
		"two sorts":     {"", []*look{member(nil, "a", 8, nvidia, ""), member(nil, "b", 2, amd, ""), member(nil, "c", 1, amd, "")}, []string{"the 2 runs need 3 GPUs (amd.com/gpu) together, and 2 of the cluster's are free now"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, func(w http.ResponseWriter, req *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch req.URL.Path {
				case c.forbidden:
					w.WriteHeader(403)
					_, _ = io.WriteString(w, `{"kind": "Status", "code": 403, "reason": "Forbidden"}`)
				case "/api/v1/nodes":
					node := corev1.Node{}
					node.Name, node.Status.Allocatable = "n", corev1.ResourceList{nvidia: resource.MustParse("8"), amd: resource.MustParse("2")}
					_ = json.NewEncoder(w).Encode(map[string]any{"items": []any{node}})
				default:
					_, _ = io.WriteString(w, `{"items": []}`)
				}
			})
			found := make([]diag.List, len(c.runs))
			for i, l := range c.runs {
				l.c, l.known = conn, new(answers)
				found[i].Add(l.p.Finding("GRM8426", diag.Warning, "relax.resource", "of its own", "", ""))
			}
			got, err := together(context.Background(), c.runs, found)
			if err != nil {
				t.Fatal(err)
			}
			var says []string
			for _, d := range got {
				if d.Code != "GRM8426" || d.Path != "relax.resource" {
					t.Errorf("%+v", d)
				}
				says = append(says, d.Summary)
			}
			left := 0
			for _, l := range found {
				left += len(l)
			}
			if !slices.Equal(says, c.want) || left != c.left {
				t.Errorf("%q, want %q; %d are left, want %d", says, c.want, left, c.left)
			}
		})
	}
}

// TestOnce: what is the same but for the run's own name is one finding, with the
// names of those at its place, and some of the other places.
func TestOnce(t *testing.T) {
	var all []*Prepared
	var found []diag.List
	for i := range 14 {
		name := fmt.Sprintf("r%02d", i)
		l := member(nil, name+"-abcdef", 1, "nvidia.com/gpu", "")
		l.p.Name, l.p.Prefix = name, "experiments."+name
		at := diag.Pos{File: "a.cue", Line: max(1, i-1), Column: 1} // r00 to r02 at one place
		all = append(all, &Prepared{o: Options{Plan: l.p}, Objects: l.objects})
		found = append(found, diag.List{
			{Code: "GRM8433", Severity: diag.Error, Pos: at, Path: l.p.FullPath("kuberay"), Summary: "Kubernetes refuses RayJob ml/" + name + "-abcdef"},
			{Code: "GRM8435", Severity: diag.Warning, Pos: at, Path: l.p.FullPath("kuberay"), Summary: "only " + name},
		})
	}
	var text strings.Builder
	got := once(all, found)
	if err := got.Text(&text, diag.TextOptions{}); err != nil {
		t.Fatal(err)
	}
	want := `a.cue:1:1: error[GRM8433]: Kubernetes refuses RayJob ml/r00-abcdef
  in 3 experiments: r00, r01, r02
`
	for i := 3; i < 11; i++ {
		want += fmt.Sprintf("  see: a.cue:%d:1: of experiment r%02d, too\n", i-1, i)
	}
	want += "  see: of 3 experiments more\n\n"
	if first, rest, _ := strings.Cut(text.String(), "\n\n"); first+"\n\n" != want || strings.Contains(rest, "GRM8433") || strings.Count(rest, "GRM8435") != 14 {
		t.Errorf("%s", text.String())
	}
	if got := once(all[:1], found[:1]); len(got) != 2 || got[0].Related != nil {
		t.Errorf("of one run: %+v", got)
	}
}

// TestAsk: a question is asked once at one place, whoever asks at the same time,
// and a refusal is an answer, too.
func TestAsk(t *testing.T) {
	var asked atomic.Int32
	server := func() *conn {
		return dial(t, func(w http.ResponseWriter, req *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(req.URL.Path, "/hf") {
				w.WriteHeader(404)
				_, _ = io.WriteString(w, `{"kind": "Status", "code": 404}`)
				return
			}
			_, _ = io.WriteString(w, `{"metadata": {"name": "ml"}}`)
		})
	}
	here, there, known := server(), server(), new(answers)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			l := &look{c: here, known: known}
			ns, err := read[metav1.PartialObjectMetadata](t.Context(), l, request{path: "/api/v1/namespaces/ml"})
			if err != nil || ns.Name != "ml" {
				t.Errorf("%+v, %v", ns, err)
			}
			if _, err := read[metav1.PartialObjectMetadata](t.Context(), l, request{path: "/api/v1/namespaces/ml/secrets/hf"}); status(err) != 404 {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != 2 {
		t.Errorf("%d requests for two questions", n)
	}
	for _, l := range []*look{{c: there, known: known}, {c: here, known: new(answers)}, {c: here}, {c: here}} {
		if ns, err := read[metav1.PartialObjectMetadata](t.Context(), l, request{path: "/api/v1/namespaces/ml"}); err != nil || ns.Name != "ml" {
			t.Errorf("%+v, %v", ns, err)
		}
	}
	if n := asked.Load(); n != 6 {
		t.Errorf("%d requests: other clusters, launches and single runs ask for themselves", n)
	}
}
