package kuberay

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/ray"
)

// look compares a live cluster with what is to be sent, everything at once. An
// error means that the cluster could not be asked.
type look struct {
	c       *conn
	p       *plan.Plan
	objects *Objects
	grows   bool // the cluster gets nodes when it is asked
	replace bool
	user    string
	known   *answers // what was asked for other runs; nil if there is only this one
}

// all asks the cluster. Findings with errors mean that a launch would fail.
func (l *look) all(ctx context.Context) (diag.List, error) {
	var found diag.List
	ns, err := read[metav1.PartialObjectMetadata](ctx, l, request{path: "/api/v1/namespaces/" + url.PathEscape(l.c.namespace), accept: asMetadata})
	switch {
	case err == nil:
		if ns.DeletionTimestamp != nil {
			found.Add(l.p.Finding("GRM8421", diag.Error, "kuberay.namespace", fmt.Sprintf("the namespace %s is being removed", l.c.namespace), "Kubernetes takes no new object in it.", "wait until it is gone and make it anew, or name another"))
		}
	case status(err) == http.StatusNotFound:
		found.Add(l.missingNamespace(ctx))
	case status(err) == http.StatusForbidden: // who may work within a namespace need not see it
	default:
		return l.failed(err)
	}
	checks := []func(context.Context) (diag.List, error){l.schema, l.rights, l.gpus, l.references, l.queue, l.operator, l.existing}
	lists, errs := make([]diag.List, len(checks)), make([]error, len(checks))
	var wg sync.WaitGroup
	for i, check := range checks {
		wg.Go(func() { lists[i], errs[i] = check(ctx) })
	}
	wg.Wait()
	for i := range checks {
		if errs[i] != nil {
			return l.failed(errs[i])
		}
		found = append(found, lists[i]...)
	}
	return found, nil
}

// failed makes a finding of credentials that are refused.
func (l *look) failed(err error) (diag.List, error) {
	if _, ok := err.(*Denied); ok {
		return diag.List{l.p.Finding("GRM8420", diag.Error, "kuberay", "the Kubernetes API server refuses the credentials",
			fmt.Sprintf("%s answers 401 to those of %s. They may be of yesterday, or of another cluster.", l.c.base, l.c.who()), deniedRemedy)}, nil
	}
	return nil, err
}

// who is where the credentials come from.
func (c *conn) who() string {
	if c.context == "" {
		return "the pod's service account"
	}
	return "the context " + c.context
}

func (l *look) missingNamespace(ctx context.Context) diag.Diagnostic {
	remedy := "kubectl create namespace " + l.c.namespace
	if all, err := read[metav1.PartialObjectMetadataList](ctx, l, request{path: "/api/v1/namespaces", accept: asList, query: url.Values{"limit": {"500"}}}); err == nil {
		var names []string
		for _, n := range all.Items {
			names = append(names, n.Name)
		}
		if hint := diag.DidYouMean(l.c.namespace, names); hint != "" {
			remedy = hint + " Or: " + remedy
		}
	}
	return l.p.Finding("GRM8421", diag.Error, "kuberay.namespace", fmt.Sprintf("the cluster has no namespace %s", l.c.namespace),
		"It is that of --namespace, else of kuberay.namespace, else of the context.", remedy)
}

// kind is that of the main object.
func (l *look) kind() string { return l.objects.Main().GetObjectKind().GroupVersionKind().Kind }

// schema holds the object's fields against those that the cluster's definition
// of its kind has: a field of a newer KubeRay would be refused by strict
// validation one by one, or dropped without it.
func (l *look) schema(ctx context.Context) (diag.List, error) {
	missing := func(summary, detail string) (diag.List, error) {
		return diag.List{l.p.Finding("GRM8422", diag.Error, "kuberay", summary, detail, "install the KubeRay operator with its CRDs (https://docs.ray.io, Getting Started with KubeRay), or choose another context")}, nil
	}
	groups, err := read[metav1.APIGroup](ctx, l, request{path: "/apis/ray.io"})
	switch {
	case status(err) == http.StatusNotFound:
		return missing("KubeRay is not installed in the cluster", "The API server knows no ray.io objects.")
	case status(err) == http.StatusForbidden:
		return nil, nil // the dry run tells
	case err != nil:
		return nil, err
	}
	var versions []string
	for _, v := range groups.Versions {
		versions = append(versions, v.Version)
	}
	if !slices.Contains(versions, "v1") {
		return missing("the cluster's KubeRay is too old", "It serves ray.io/"+strings.Join(versions, ", ray.io/")+", and genrm writes ray.io/v1, which is of KubeRay 1.0 and later.")
	}
	kinds, err := read[metav1.APIResourceList](ctx, l, request{path: "/apis/ray.io/v1"})
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(kinds.APIResources, func(r metav1.APIResource) bool { return r.Kind == l.kind() }) {
		return missing(fmt.Sprintf("the cluster has no %s objects", l.kind()), "The API server knows ray.io/v1, without this kind: its CRD is missing.")
	}
	doc, err := read[schemas](ctx, l, request{path: "/openapi/v3/apis/ray.io/v1"})
	if err != nil {
		if n := status(err); n == http.StatusNotFound || n == http.StatusForbidden {
			return nil, nil // the dry run tells
		}
		return nil, err
	}
	var root *schema
	for _, s := range doc.Components.Schemas {
		for _, k := range s.GVK {
			if k.Group == "ray.io" && k.Version == "v1" && k.Kind == l.kind() {
				root = s
			}
		}
	}
	if root == nil {
		return nil, nil
	}
	u, err := Unstructured(l.objects.Main())
	if err != nil {
		return nil, err
	}
	m := u.Object
	delete(m, "apiVersion")
	delete(m, "kind")
	delete(m, "metadata")
	var found diag.List
	for _, field := range root.unknown(m, "") {
		detail := fmt.Sprintf("The %s has this field, and the cluster's definition of %s has it not: Kubernetes would refuse the object.", l.kind(), l.kind())
		remedy := "use a newer KubeRay in the cluster, or leave the field out"
		if since := release(field); since != "" {
			remedy = "use KubeRay " + since + " or later in the cluster, or leave the field out"
		}
		found.Add(l.p.Finding("GRM8423", diag.Error, source(l.p, field), "the cluster's KubeRay does not know "+field, detail, remedy))
	}
	if j := l.objects.RayJob; j != nil && j.Spec.SubmissionMode == rayv1.SidecarMode && !root.knowsSidecar() {
		found.Add(l.p.Finding("GRM8423", diag.Error, "kuberay.submissionMode", "the cluster's KubeRay does not know SidecarMode",
			"Its definition of RayJob takes any text for submissionMode, and the operator would wait for ever for somebody to submit the job.", "use KubeRay 1.5 or later in the cluster, or leave submissionMode out"))
	}
	return found, nil
}

// knowsSidecar tells by a field that came with the same release, 1.5: the mode
// itself is any text in all of them.
func (s *schema) knowsSidecar() bool {
	spec := s.Properties["spec"]
	return spec == nil || len(spec.Properties) == 0 || spec.Properties["deletionStrategy"] != nil
}

// schemas is what is needed of an OpenAPI document.
type schemas struct {
	Components struct {
		Schemas map[string]*schema `json:"schemas"`
	} `json:"components"`
}

// schema is what is needed of an OpenAPI schema.
type schema struct {
	Properties map[string]*schema `json:"properties"`
	Additional json.RawMessage    `json:"additionalProperties"`
	Items      *schema            `json:"items"`
	Preserve   bool               `json:"x-kubernetes-preserve-unknown-fields"`
	GVK        []struct {
		Group, Version, Kind string
	} `json:"x-kubernetes-group-version-kind"`
}

// unknown lists the fields of a value that the schema has not, in order.
func (s *schema) unknown(v any, at string) []string {
	if s == nil || s.Preserve {
		return nil
	}
	var out []string
	switch v := v.(type) {
	case map[string]any:
		if len(s.Properties) == 0 { // a map, or what is described elsewhere
			var each *schema
			if len(s.Additional) > 0 && json.Unmarshal(s.Additional, &each) == nil {
				for _, k := range slices.Sorted(maps.Keys(v)) {
					out = append(out, each.unknown(v[k], at+"."+k)...)
				}
			}
			return out
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			path := strings.TrimPrefix(at+"."+k, ".")
			if p, ok := s.Properties[k]; ok {
				out = append(out, p.unknown(v[k], path)...)
			} else {
				out = append(out, path)
			}
		}
	case []any:
		for i, x := range v {
			out = append(out, s.Items.unknown(x, fmt.Sprintf("%s[%d]", at, i))...)
		}
	}
	return out
}

// since says with which release of KubeRay a field came. Source: the CRDs of
// ray-operator 1.2.2, 1.3.2, 1.4.2, 1.5.1 and 1.6.1 side by side.
var since = []struct{ field, release string }{
	{"gcsFaultToleranceOptions", "1.3"},
	{"excludeHeadPodFromServeSvc", "1.3"},
	{"spec.upgradeStrategy", "1.3"}, // of a RayService
	{"autoscalerOptions.version", "1.4"},
	{"deletionStrategy", "1.5"},
	{"authOptions", "1.5"},
	{"headGroupSpec.labels", "1.5"},
	{"headGroupSpec.resources", "1.5"},
	{"workerGroupSpecs[].labels", "1.5"},
	{"workerGroupSpecs[].resources", "1.5"},
	{"rayClusterDeletionDelaySeconds", "1.5"},
	{"upgradeStrategy.clusterUpgradeOptions", "1.5"},
	{"preRunningDeadlineSeconds", "1.6"},
	{"spec.managedBy", "1.6"}, // of a RayService
	{"authOptions.enableK8sTokenAuth", "1.6"},
	{"authOptions.secretName", "1.6"},
	{"rayClusterSpec.upgradeStrategy", "1.6"},
	{"rayClusterConfig.upgradeStrategy", "1.6"},
}

func release(field string) string {
	plain := index.ReplaceAllString(field, "[]")
	for _, s := range since {
		if strings.HasSuffix(plain, s.field) {
			return s.release
		}
	}
	return ""
}

// right is one thing that must be allowed.
type right struct {
	group, resource, sub string
	verbs                []string
	what                 string // that fails without it; "" if the launch does
}

func (r right) name() string {
	s := r.resource
	if r.group != "" {
		s += "." + r.group
	}
	if r.sub != "" {
		s += "/" + r.sub
	}
	return s
}

// rights asks for each permission that the launch and the commands about its run
// need, and names what is missing at once.
func (l *look) rights(ctx context.Context) (diag.List, error) {
	main := plural[l.kind()]
	list := []right{{group: "ray.io", resource: main, verbs: []string{"create", "patch", "get"}},
		{group: "ray.io", resource: main, verbs: []string{"watch"}, what: "seeing changes at once"},
		{group: "ray.io", resource: main, verbs: []string{"delete"}, what: "stop"},
		{resource: "pods", verbs: []string{"list", "get"}, what: "reasons of pods that do not start, and logs"},
		{resource: "pods", sub: "log", verbs: []string{"get"}, what: "logs"},
		{resource: "events", verbs: []string{"list"}, what: "reasons that only events tell"}}
	if l.objects.ConfigMap != nil {
		list = append(list, right{resource: "configmaps", verbs: []string{"create", "patch"}})
	}
	type answer struct {
		ok  bool
		err error
	}
	var asked []struct {
		right
		verb string
	}
	for _, r := range list {
		for _, v := range r.verbs {
			asked = append(asked, struct {
				right
				verb string
			}{r, v})
		}
	}
	answers := make([]answer, len(asked))
	var wg sync.WaitGroup
	for i, a := range asked {
		wg.Go(func() { answers[i].ok, answers[i].err = l.may(ctx, a.right, a.verb) })
	}
	wg.Wait()
	var needed, useful, lost []string
	for i, a := range asked {
		switch {
		case status(answers[i].err) == http.StatusForbidden:
			return nil, nil // it may not even be asked: the dry run tells
		case answers[i].err != nil:
			return nil, answers[i].err
		case answers[i].ok:
		case a.what == "":
			needed = append(needed, a.verb+" "+a.name())
		default:
			useful = append(useful, a.verb+" "+a.name())
			if !slices.Contains(lost, a.what) {
				lost = append(lost, a.what)
			}
		}
	}
	var found diag.List
	remedy := fmt.Sprintf("bind a role that allows it in %s; kubectl auth can-i --list -n %s shows what there is", l.c.namespace, l.c.namespace)
	add := func(severity diag.Severity, verbs []string, detail string) {
		if len(verbs) > 0 {
			found.Add(l.p.Finding("GRM8424", severity, "kuberay", fmt.Sprintf("not allowed in %s: %s", l.c.namespace, strings.Join(verbs, ", ")), detail+" Asked as "+l.c.who()+".", remedy))
		}
	}
	add(diag.Error, needed, "A launch makes these objects.")
	add(diag.Warning, useful, "What is lost without it: "+strings.Join(lost, "; ")+".")
	return found, nil
}

// may asks for one permission in the namespace.
func (l *look) may(ctx context.Context, r right, verb string) (bool, error) {
	return ask(l, "may "+verb+" "+r.name()+" in "+l.c.namespace, func() (bool, error) {
		review := authv1.SelfSubjectAccessReview{TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Spec: authv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authv1.ResourceAttributes{Namespace: l.c.namespace, Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.sub}}}
		err := l.c.do(ctx, request{method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body: review}, &review)
		return review.Status.Allowed, err
	})
}

// group is a set of equal pods.
type group struct {
	name  string // head, or that of the worker group
	count int
	gpus  int64 // of each pod
	kind  corev1.ResourceName
	spec  *corev1.PodSpec
}

// groups are the pods that the object becomes and that want GPUs.
func (o *Objects) groups() []group {
	var spec *rayv1.RayClusterSpec
	if o.RayJob != nil {
		spec = o.RayJob.Spec.RayClusterSpec
	} else if o.RayService != nil {
		spec = &o.RayService.Spec.RayClusterSpec
	}
	if spec == nil {
		return nil
	}
	var out []group
	add := func(name string, n int32, t *corev1.PodTemplateSpec) {
		g := group{name: name, count: int(n), spec: &t.Spec}
		for _, c := range t.Spec.Containers {
			for _, list := range []corev1.ResourceList{c.Resources.Limits, c.Resources.Requests} {
				for name, q := range list {
					if strings.HasSuffix(string(name), "/gpu") && q.Value() > 0 && (g.kind == "" || g.kind == name) {
						g.kind, g.gpus = name, max(g.gpus, q.Value())
					}
				}
			}
		}
		if g.gpus > 0 && g.count > 0 {
			out = append(out, g)
		}
	}
	add("head", 1, &spec.HeadGroupSpec.Template)
	for i := range spec.WorkerGroupSpecs {
		w := &spec.WorkerGroupSpecs[i]
		n := int32(1)
		if w.Replicas != nil {
			n = *w.Replicas
		}
		if w.NumOfHosts > 1 {
			n *= w.NumOfHosts
		}
		add(w.GroupName, n, &w.Template)
	}
	return out
}

// machine is what is needed of a node.
type machine struct {
	corev1.Node
	used map[corev1.ResourceName]int64
}

func (m *machine) gpus(kind corev1.ResourceName) int64 {
	q := m.Status.Allocatable[kind]
	return q.Value()
}

// takes reports whether pods of a template may be put on the node: it is ready
// and not closed, has the labels that are selected, and its taints are
// tolerated. Affinities are not looked at.
func (m *machine) takes(spec *corev1.PodSpec) bool {
	if m.Spec.Unschedulable {
		return false
	}
	for _, c := range m.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return false
		}
	}
	for k, v := range spec.NodeSelector {
		if m.Labels[k] != v {
			return false
		}
	}
	for _, t := range m.Spec.Taints {
		if t.Effect == corev1.TaintEffectPreferNoSchedule {
			continue
		}
		if !slices.ContainsFunc(spec.Tolerations, func(tol corev1.Toleration) bool { return tolerates(tol, t) }) {
			return false
		}
	}
	return true
}

func tolerates(tol corev1.Toleration, t corev1.Taint) bool {
	switch {
	case tol.Effect != "" && tol.Effect != t.Effect, tol.Key != "" && tol.Key != t.Key:
		return false
	case tol.Operator == corev1.TolerationOpExists:
		return true
	}
	return tol.Key != "" && tol.Value == t.Value
}

// census is what there is of nodes.
type census struct {
	nodes []*machine
	told  bool // that the pods of others could be listed: what is in use is known
}

// nodes counts the nodes of the cluster, and what pods hold of them.
func (l *look) nodes(ctx context.Context) (*census, error) {
	return ask(l, "nodes", func() (*census, error) {
		out := &census{told: true}
		byName := map[string]*machine{}
		err := pages(ctx, l.c, "/api/v1/nodes", nil, func(items []corev1.Node) {
			for _, n := range items {
				m := &machine{Node: n, used: map[corev1.ResourceName]int64{}}
				out.nodes = append(out.nodes, m)
				byName[n.Name] = m
			}
		})
		if err != nil {
			return nil, err
		}
		err = pages(ctx, l.c, "/api/v1/pods", url.Values{"fieldSelector": {"spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"}}, func(items []corev1.Pod) {
			for i := range items {
				if n := byName[items[i].Spec.NodeName]; n != nil {
					for _, c := range items[i].Spec.Containers {
						for name, q := range c.Resources.Requests {
							n.used[name] += q.Value()
						}
					}
				}
			}
		})
		if status(err) == http.StatusForbidden {
			out.told, err = false, nil
		}
		return out, err
	})
}

// room is what there is of one sort of GPU.
type room struct {
	have, free int64
	closed     int64 // on nodes that take none of the pods
	nodes      int   // that have them
	told       bool  // that free is known
}

func (r room) String() string {
	s := fmt.Sprintf("%d on %s", r.have, need.Count(r.nodes, "node"))
	if r.told {
		s += fmt.Sprintf(", %d of them free", r.free)
	}
	s += "."
	if r.closed > 0 {
		s += fmt.Sprintf(" %d more are on nodes that are not ready, closed, tainted, or lack the selected labels.", r.closed)
	}
	return s
}

// room counts one sort of GPU over the nodes that take a pod of any group.
func (c *census) room(kind corev1.ResourceName, groups []group) room {
	r := room{told: c.told}
	for _, n := range c.nodes {
		k := n.gpus(kind)
		switch {
		case k == 0:
		case !slices.ContainsFunc(groups, func(g group) bool { return g.kind == kind && n.takes(g.spec) }):
			r.closed += k
		default:
			r.nodes++
			r.have += k
			r.free += max(0, k-n.used[kind])
		}
	}
	return r
}

// wanted counts one sort of GPU in groups.
func wanted(kind corev1.ResourceName, groups []group) (n int64) {
	for _, g := range groups {
		if g.kind == kind {
			n += g.gpus * int64(g.count)
		}
	}
	return n
}

// gpus compares the GPUs of the nodes with the plan's.
func (l *look) gpus(ctx context.Context) (diag.List, error) {
	groups := l.objects.groups()
	if len(groups) == 0 {
		return nil, nil
	}
	got, err := l.nodes(ctx)
	at, roles := ray.Roles(l.p)
	var pods []string
	for _, g := range groups {
		pods = append(pods, fmt.Sprintf("%s of %d (%s)", need.Count(g.count, "pod"), g.gpus, g.name))
	}
	switch {
	case status(err) == http.StatusForbidden:
		return diag.List{l.p.Finding("GRM8428", diag.Note, at, "whether the cluster has enough GPUs cannot be told",
			"Its nodes may not be listed: "+l.c.who()+" is not allowed to.", "")}, nil
	case err != nil:
		return nil, err
	}
	var found diag.List
	severity, remedy := diag.Error, "use a larger cluster or a smaller run; for a cluster that gets nodes when it is asked, --grows"
	if l.grows {
		severity, remedy = diag.Warning, ""
	}
	who := strings.Join(roles, ", ")
	if who == "" {
		who = strings.Join(pods, ", ")
	} else {
		who += "; as " + strings.Join(pods, ", ")
	}
	for _, kind := range kinds(groups) {
		want, r := wanted(kind, groups), got.room(kind, groups)
		detail := fmt.Sprintf("Needed: %s. Present: %s", who, r)
		if r.have < want {
			found.Add(l.p.Finding("GRM8425", severity, at, fmt.Sprintf("the run needs %d %s, and the cluster has %d", want, gpuName(kind, want), r.have), detail, remedy))
			continue
		}
		fits := true
		for _, g := range groups {
			if g.kind != kind {
				continue
			}
			largest, room := int64(0), int64(0)
			for _, n := range got.nodes {
				if n.takes(g.spec) {
					largest = max(largest, n.gpus(kind))
					room += n.gpus(kind) / g.gpus
				}
			}
			switch {
			case largest < g.gpus:
				fits = false
				found.Add(l.p.Finding("GRM8427", severity, "cluster.gpus_per_node", fmt.Sprintf("a pod of the run needs %d GPUs, and the largest node has %d", g.gpus, largest),
					detail+" A pod lies on one node.", fmt.Sprintf("write cluster: gpus_per_node: %d, or use larger nodes", max(1, largest))))
			case room < int64(g.count):
				fits = false
				found.Add(l.p.Finding("GRM8427", severity, "cluster.gpus_per_node", fmt.Sprintf("the run has %s of %d GPUs, and the nodes have room for %d", need.Count(g.count, "pod"), g.gpus, room),
					detail+" A pod lies on one node, so what is left of each node is lost to it.", "write cluster: gpus_per_node: what the nodes have, or use more nodes"))
			}
		}
		if fits && r.told && r.free < want && !l.queued() {
			found.Add(l.p.Finding("GRM8426", diag.Warning, at, fmt.Sprintf("the run needs %d %s, and %d of the cluster's are free now", want, gpuName(kind, want), r.free),
				detail+" Others use the rest: its pods wait until there is room.", ""))
		}
	}
	return found, nil
}

// queued reports whether the run waits in a queue of Kueue until there is room.
func (l *look) queued() bool { return l.objects.Main().GetLabels()[LabelQueue] != "" }

func kinds(groups []group) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, g := range groups {
		if !slices.Contains(out, g.kind) {
			out = append(out, g.kind)
		}
	}
	return out
}

// gpuName is "GPUs", unless they are not NVIDIA's.
func gpuName(kind corev1.ResourceName, n int64) string {
	s := "GPUs"
	if n == 1 {
		s = "GPU"
	}
	if kind != "nvidia.com/gpu" {
		s += " (" + string(kind) + ")"
	}
	return s
}

// pages reads a list that may be long.
func pages[T any](ctx context.Context, c *conn, path string, query url.Values, each func([]T)) error {
	q := url.Values{"limit": {"500"}}
	maps.Copy(q, query)
	for {
		var list struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []T             `json:"items"`
		}
		if err := c.do(ctx, request{method: http.MethodGet, path: path, query: q}, &list); err != nil {
			return err
		}
		each(list.Items)
		if list.Metadata.Continue == "" {
			return nil
		}
		q.Set("continue", list.Metadata.Continue)
	}
}

// reference is an object that the pods want.
type reference struct{ resource, name, by string }

// references lists the objects that must be there before the pods can start.
func (o *Objects) references() []reference {
	own := ""
	if o.ConfigMap != nil {
		own = o.ConfigMap.Name
	}
	var out []reference
	seen := map[reference]bool{}
	add := func(resource, name, by string, optional *bool) {
		r := reference{resource, name, by}
		key := reference{resource, name, ""}
		if name == "" || optional != nil && *optional || resource == "configmaps" && name == own || seen[key] {
			return
		}
		seen[key] = true
		out = append(out, r)
	}
	pod := func(by string, t *corev1.PodTemplateSpec) {
		if t == nil {
			return
		}
		add("serviceaccounts", t.Spec.ServiceAccountName, by, nil)
		for _, s := range t.Spec.ImagePullSecrets {
			add("secrets", s.Name, by, nil)
		}
		for _, c := range append(slices.Clone(t.Spec.InitContainers), t.Spec.Containers...) {
			for _, e := range c.Env {
				if e.ValueFrom == nil {
					continue
				}
				if s := e.ValueFrom.SecretKeyRef; s != nil {
					add("secrets", s.Name, by, s.Optional)
				}
				if s := e.ValueFrom.ConfigMapKeyRef; s != nil {
					add("configmaps", s.Name, by, s.Optional)
				}
			}
			for _, e := range c.EnvFrom {
				if e.SecretRef != nil {
					add("secrets", e.SecretRef.Name, by, e.SecretRef.Optional)
				}
				if e.ConfigMapRef != nil {
					add("configmaps", e.ConfigMapRef.Name, by, e.ConfigMapRef.Optional)
				}
			}
		}
		for _, v := range t.Spec.Volumes {
			switch {
			case v.Secret != nil:
				add("secrets", v.Secret.SecretName, by, v.Secret.Optional)
			case v.ConfigMap != nil:
				add("configmaps", v.ConfigMap.Name, by, v.ConfigMap.Optional)
			case v.PersistentVolumeClaim != nil:
				add("persistentvolumeclaims", v.PersistentVolumeClaim.ClaimName, by, nil)
			case v.Projected != nil:
				for _, s := range v.Projected.Sources {
					if s.Secret != nil {
						add("secrets", s.Secret.Name, by, s.Secret.Optional)
					}
					if s.ConfigMap != nil {
						add("configmaps", s.ConfigMap.Name, by, s.ConfigMap.Optional)
					}
				}
			}
		}
	}
	var spec *rayv1.RayClusterSpec
	if o.RayJob != nil {
		spec = o.RayJob.Spec.RayClusterSpec
		pod("submitter", o.RayJob.Spec.SubmitterPodTemplate)
	} else if o.RayService != nil {
		spec = &o.RayService.Spec.RayClusterSpec
	}
	if spec != nil {
		if o := spec.GcsFaultToleranceOptions; o != nil { // variables of the head
			for _, c := range []*rayv1.RedisCredential{o.RedisUsername, o.RedisPassword} {
				if c != nil && c.ValueFrom != nil && c.ValueFrom.SecretKeyRef != nil {
					add("secrets", c.ValueFrom.SecretKeyRef.Name, "head", c.ValueFrom.SecretKeyRef.Optional)
				}
			}
		}
		pod("head", &spec.HeadGroupSpec.Template)
		for i := range spec.WorkerGroupSpecs {
			pod("worker", &spec.WorkerGroupSpecs[i].Template)
		}
	}
	return out
}

var one = map[string]string{"secrets": "secret", "configmaps": "config map", "serviceaccounts": "service account", "persistentvolumeclaims": "persistent volume claim"}

// references looks whether what the pods want is there. Of a secret nothing but
// its name is asked.
func (l *look) references(ctx context.Context) (diag.List, error) {
	var found diag.List
	for _, r := range l.objects.references() {
		_, err := read[metav1.PartialObjectMetadata](ctx, l, request{path: l.c.in("/api/v1", r.resource, r.name), accept: asMetadata})
		switch {
		case err == nil, status(err) == http.StatusForbidden: // a pod may read what its launcher may not
		case status(err) == http.StatusNotFound:
			remedy := "make it, or name another"
			if all, e := read[metav1.PartialObjectMetadataList](ctx, l, request{path: l.c.in("/api/v1", r.resource), accept: asList, query: url.Values{"limit": {"500"}}}); e == nil {
				var names []string
				for _, n := range all.Items {
					names = append(names, n.Name)
				}
				if hint := diag.DidYouMean(r.name, names); hint != "" {
					remedy = hint
				}
			}
			found.Add(l.p.Finding("GRM8429", diag.Error, mention(l.p, r.name, "kuberay."+r.by), fmt.Sprintf("%s has no %s %s", l.c.namespace, one[r.resource], r.name),
				fmt.Sprintf("The %s pods want it, and would wait for it.", r.by), remedy))
		default:
			return nil, err
		}
	}
	return found, nil
}

// queue looks for the LocalQueue of Kueue that the object names.
func (l *look) queue(ctx context.Context) (diag.List, error) {
	name := l.objects.Main().GetLabels()[LabelQueue]
	if name == "" {
		return nil, nil
	}
	g, err := read[metav1.APIGroup](ctx, l, request{path: "/apis/kueue.x-k8s.io"})
	switch {
	case status(err) == http.StatusNotFound:
		return diag.List{l.p.Finding("GRM8430", diag.Error, "kuberay.queue", fmt.Sprintf("there is no queue %s: Kueue is not installed in the cluster", name),
			"The object names its queue by a label, which nobody would read: the run would start at once, beside every queue.", "remove kuberay.queue, or install Kueue")}, nil
	case status(err) == http.StatusForbidden:
		return nil, nil
	case err != nil:
		return nil, err
	}
	path := l.c.in("/apis/"+g.PreferredVersion.GroupVersion, "localqueues")
	_, err = read[metav1.PartialObjectMetadata](ctx, l, request{path: path + "/" + url.PathEscape(name), accept: asMetadata})
	if status(err) == http.StatusNotFound {
		remedy := "kubectl get localqueues -n " + l.c.namespace + " shows what there is"
		if all, e := read[metav1.PartialObjectMetadataList](ctx, l, request{path: path, accept: asList}); e == nil {
			var names []string
			for _, n := range all.Items {
				names = append(names, n.Name)
			}
			if hint := diag.DidYouMean(name, names); hint != "" {
				remedy = hint
			} else if len(names) > 0 {
				remedy = "there are " + strings.Join(names, ", ")
			}
		}
		return diag.List{l.p.Finding("GRM8430", diag.Error, "kuberay.queue", fmt.Sprintf("%s has no queue %s", l.c.namespace, name),
			"Kueue keeps an object suspended whose LocalQueue is not in its namespace.", remedy)}, nil
	}
	if err != nil && status(err) != http.StatusForbidden {
		return nil, err
	}
	return nil, nil
}

// deployments is what is needed of a list of Deployments.
type deployments struct {
	Items []struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Status   struct {
			Available int `json:"availableReplicas"`
		} `json:"status"`
	} `json:"items"`
}

// operator looks for who works on the objects.
func (l *look) operator(ctx context.Context) (diag.List, error) {
	list, err := read[deployments](ctx, l, request{path: "/apis/apps/v1/deployments", query: url.Values{"labelSelector": {"app.kubernetes.io/name in (kuberay-operator, kuberay)"}}})
	switch {
	case status(err) == http.StatusForbidden:
		return nil, nil
	case err != nil:
		return nil, err
	case len(list.Items) == 0:
		return diag.List{l.p.Finding("GRM8431", diag.Note, "kuberay", "no KubeRay operator was seen", "There is no Deployment with the label app.kubernetes.io/name=kuberay-operator. If none runs by another name, the objects are kept and nothing happens.", "")}, nil
	}
	for _, d := range list.Items {
		if d.Status.Available > 0 {
			return nil, nil
		}
	}
	d := list.Items[0].Metadata
	return diag.List{l.p.Finding("GRM8431", diag.Warning, "kuberay", fmt.Sprintf("the KubeRay operator %s/%s has no pod that is up", d.Namespace, d.Name), "The objects are kept, and nothing happens until it is back.", fmt.Sprintf("kubectl -n %s get pods; kubectl -n %s describe deployment %s", d.Namespace, d.Namespace, d.Name))}, nil
}

// existing looks for an object with the name of the run's. One that is not of
// genrm, or of another user's run, is never changed.
func (l *look) existing(ctx context.Context) (diag.List, error) {
	main := l.objects.Main()
	had := new(metav1.PartialObjectMetadata)
	err := l.c.do(ctx, request{method: http.MethodGet, path: l.c.path(main), accept: asMetadata}, had)
	switch {
	case status(err) == http.StatusNotFound, status(err) == http.StatusForbidden:
		return nil, nil
	case err != nil:
		return nil, err
	}
	name := l.kind() + " " + l.c.namespace + "/" + had.Name
	refuse := func(summary, detail, remedy string) (diag.List, error) {
		return diag.List{l.p.Finding("GRM8432", diag.Error, "name", summary, detail, remedy)}, nil
	}
	run, user := had.Labels[LabelRun], had.Annotations[AnnotationUser]
	since := had.CreationTimestamp.UTC().Format(time.RFC3339)
	switch {
	case had.Labels[ManagedBy] != Manager || run == "":
		return refuse(name+" is there, and is not a run of genrm", fmt.Sprintf("It was made %s%s. genrm changes no object that is not its own.", since, managers(had)), "use another name for the experiment, or another namespace")
	case had.DeletionTimestamp != nil:
		return refuse(name+" is being removed", fmt.Sprintf("It is of run %s (%s).", run, user), "wait until it is gone, and launch again")
	case !l.replace:
		return refuse(name+" is there: it is run "+run, fmt.Sprintf("It was launched by %s, made %s. A serve experiment has one object, so that its address stays.", orElse(user, "somebody"), since),
			"launch with --replace, which changes it in place, or end it by genrm stop "+run)
	case user != "" && l.user != "" && user != l.user:
		return diag.List{l.p.Finding("GRM8432", diag.Warning, "name", name+" is changed: it is run "+run+" of "+user, "--replace was given.", "")}, nil
	}
	return nil, nil
}

// managers says who set the fields of an object.
func managers(o *metav1.PartialObjectMetadata) string {
	var names []string
	for _, m := range o.ManagedFields {
		if m.Subresource == "" && !slices.Contains(names, m.Manager) {
			names = append(names, m.Manager)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " by " + strings.Join(names, " and ")
}
