package kuberay

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/ray"
)

// template merges the user's pod template, head or worker, over the generated
// one, and returns the generated one where the user's is faulty.
func (b *builder) template(field string, generated corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	user := b.s.Field(field)
	if !user.OK() || len(user.Fields) == 0 {
		return generated
	}
	path := "kuberay." + field
	before := len(b.found)
	c := strict{patch: true, add: func(at, summary, detail, remedy string) {
		b.add("GRM8411", diag.Error, at, summary, detail, remedy)
	}}
	c.walk(user, reflect.TypeFor[corev1.PodTemplateSpec](), path)
	b.unnamed(user.Field("spec"), generated.Spec.Containers[0].Name, path+".spec")
	if len(b.found) > before {
		return generated
	}
	merged, err := merge(generated, []byte(user.JSON()))
	if err != nil {
		b.add("GRM8411", diag.Error, path, fmt.Sprintf("the %s template cannot be merged over the generated one", field), oneLine(err.Error()), "write it as a strategic merge patch of a pod template")
		return generated
	}
	if user.Lookup("spec", "$setElementOrder/containers") == nil { // a merge puts new ones first
		first := func(c corev1.Container) int {
			if c.Name == generated.Spec.Containers[0].Name {
				return 0
			}
			return 1
		}
		slices.SortStableFunc(merged.Spec.Containers, func(x, y corev1.Container) int { return first(x) - first(y) })
	}
	b.contradictions(field, user, generated, merged)
	if len(b.found) == before {
		b.incomplete(field, user, generated, merged)
	}
	if len(b.found) > before {
		return generated
	}
	for _, text := range replaced(generated, merged) {
		b.facts = append(b.facts, plan.Fact{Path: path, Text: "the template " + text})
	}
	return merged
}

// merge applies a strategic merge patch.
func merge(generated corev1.PodTemplateSpec, patch []byte) (corev1.PodTemplateSpec, error) {
	var out corev1.PodTemplateSpec
	original, err := json.Marshal(generated)
	if err != nil {
		return out, err
	}
	text, err := strategicpatch.StrategicMergePatch(original, patch, corev1.PodTemplateSpec{})
	if err != nil {
		return out, err
	}
	return out, json.Unmarshal(text, &out)
}

// unnamed reports items without the name by which they are merged.
func (b *builder) unnamed(spec *tree.Value, container, path string) {
	list := func(v *tree.Value, path, key, example string) {
		if v == nil || v.Kind != tree.List {
			return
		}
		seen := map[string]bool{}
		for i, x := range v.Items {
			if k := x.Field(key); k.OK() && x.Field("$patch") == nil {
				if seen[k.Text] {
					b.add("GRM8411", diag.Error, tree.Index(path, i), fmt.Sprintf("a second item has the %s %s", key, short(k.JSON())), "Templates are merged item by item, and what one of the two says would be lost.", "write it once")
				}
				seen[k.Text] = true
			}
			if x.OK() && x.Kind == tree.Struct && x.Field(key) == nil && x.Field("$patch") == nil {
				b.add("GRM8411", diag.Error, tree.Index(path, i), "this item has no "+key, "Templates are merged item by item, and the "+key+" says which is which.", fmt.Sprintf("add %s: %s", key, example))
			}
		}
	}
	list(spec.Field("containers"), path+".containers", "name", fmt.Sprintf("%q, which is the container of Ray", container))
	list(spec.Field("initContainers"), path+".initContainers", "name", "\"setup\"")
	list(spec.Field("volumes"), path+".volumes", "name", "\"models\"")
	for _, kind := range []string{"containers", "initContainers"} {
		v := spec.Field(kind)
		if v == nil || v.Kind != tree.List {
			continue
		}
		for i, x := range v.Items {
			at := tree.Index(path+"."+kind, i)
			list(x.Field("env"), at+".env", "name", "\"NAME\"")
			list(x.Field("volumeMounts"), at+".volumeMounts", "mountPath", "\"/models\"")
			list(x.Field("ports"), at+".ports", "containerPort", "9000")
			b.literalSecrets(x.Field("env"), at+".env")
		}
	}
}

// literalSecrets refuses values of variables whose names are like secrets'.
func (b *builder) literalSecrets(env *tree.Value, path string) {
	if env == nil || env.Kind != tree.List {
		return
	}
	for i, e := range env.Items {
		name, _ := e.Field("name").AsString()
		value, _ := e.Field("value").AsString()
		if ray.Secret(name, value) {
			d := b.p.Finding("GRM8418", diag.Error, tree.Index(path, i)+".value", "a literal secret in "+name, "Everybody who may read the objects of the namespace would see it.",
				fmt.Sprintf("refer to a secret of Kubernetes: secrets: %s: {name: \"…\", key: \"…\"}", name))
			d.Secret = true
			b.found.Add(d)
		}
	}
}

// contradictions reports what a merged template says against the plan.
func (b *builder) contradictions(field string, user *tree.Value, generated, merged corev1.PodTemplateSpec) {
	path := "kuberay." + field
	add := func(at, summary, detail, remedy string) { b.add("GRM8414", diag.Error, at, summary, detail, remedy) }
	name := generated.Spec.Containers[0].Name
	containers := path + ".spec.containers"
	i := slices.IndexFunc(merged.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	switch {
	case i < 0:
		add(containers, "the template removes the container "+name, "It is the one in which the operator starts Ray.", "keep it")
		return
	case i > 0:
		add(containers, fmt.Sprintf("%s is not the first container", name), "The operator starts Ray in the first one, whatever its name. Source: RayContainerIndex in controllers/ray/utils/constant.go of ray-operator v1.5.1.",
			"leave out $setElementOrder, or begin it with "+name)
		return
	}
	c, own := merged.Spec.Containers[0], generated.Spec.Containers[0]
	if c.Image == "" && own.Image != "" {
		add(containers, "the template takes the image of "+name+" away", "Kubernetes starts no container without one.", "leave image out: it is that of kuberay.image")
	}
	limitsOf := func(name string) string { // of a container, as far as the user wrote them
		at := containers
		if items := user.Lookup("spec", "containers"); items.OK() {
			for i, x := range items.Items {
				if n, _ := x.Field("name").AsString(); n == name {
					at = tree.Index(containers, i)
					for _, step := range []string{"resources", "limits"} {
						if x = x.Field(step); x.OK() {
							at += "." + step
						}
					}
				}
			}
		}
		return at
	}
	limits := limitsOf(name)
	gpu := b.gpuResource()
	for i, x := range merged.Spec.Containers {
		for r, q := range x.Resources.Limits { // findings are sorted
			if ours := r == gpu && i == 0; !ours && !q.IsZero() && (r == gpu || strings.HasSuffix(string(r), "/gpu")) {
				add(tree.Join(limitsOf(x.Name), string(r)), fmt.Sprintf("the template gives %s %s %s besides the plan's GPUs", x.Name, q.String(), r),
					"The scheduler wants them for each pod, and the plan knows nothing of them.", "leave them out; what GPUs are called is kuberay.gpu_resource")
			}
		}
	}
	have, want := c.Resources.Limits[gpu], own.Resources.Limits[gpu]
	if have.Cmp(want) != 0 {
		remedy := "leave it out: it is written from the plan"
		detail := fmt.Sprintf("The plan puts %s into each worker pod (cluster.gpus_per_node, and what the run uses of it).", count(int(want.Value()), "GPU"))
		if field == "head" {
			remedy, detail = "state one number, in kuberay.head_gpus", "kuberay.head_gpus says otherwise."
		}
		add(tree.Join(limits, string(gpu)), fmt.Sprintf("the template gives %s %s, but the plan %s", name, count(int(have.Value()), "GPU"), count(int(want.Value()), "GPU")), detail, remedy)
	}
	for r, by := range map[corev1.ResourceName]string{corev1.ResourceCPU: "cpus", corev1.ResourceMemory: "memory"} { // findings are sorted
		limit, limited := c.Resources.Limits[r]
		if request, ok := c.Resources.Requests[r]; ok && limited && request.Cmp(limit) > 0 {
			add(tree.Join(limits, string(r)), fmt.Sprintf("%s is asked for %s of %s and limited to %s", name, request.String(), r, limit.String()),
				"Kubernetes refuses a request above the limit.", fmt.Sprintf("set kuberay.%s_%s, which sets both", field, by))
		}
	}
	for _, m := range own.VolumeMounts {
		kept := slices.ContainsFunc(c.VolumeMounts, func(x corev1.VolumeMount) bool { return x.MountPath == m.MountPath && x.Name == m.Name })
		if !kept && m.MountPath == filesDir {
			add(path, "the template takes away "+filesDir, "The run's files are there.", "mount other things elsewhere")
		}
	}
	if field == "worker" && merged.Spec.RestartPolicy != "" && merged.Spec.RestartPolicy != corev1.RestartPolicyAlways && merged.Spec.RestartPolicy != corev1.RestartPolicyNever {
		add(path+".spec.restartPolicy", fmt.Sprintf("restartPolicy %s for a worker", merged.Spec.RestartPolicy),
			"A worker's `ray start` ends with 0 when the head goes away; only Always starts it again, and with Never the operator makes a new pod.", "write Always or Never, or leave it out")
	}
}

// incomplete reports what a merged template names and does not have: Kubernetes
// takes the object of KubeRay with it, and refuses each pod.
func (b *builder) incomplete(field string, user *tree.Value, generated, merged corev1.PodTemplateSpec) {
	path := "kuberay." + field + ".spec"
	ours := generated.Spec.Containers[0]
	var volumes []string
	for _, v := range merged.Spec.Volumes {
		volumes = append(volumes, v.Name)
	}
	each := func(kind string, containers []corev1.Container) {
		items := user.Lookup("spec", kind)
		for _, c := range containers {
			at, item := path+"."+kind, (*tree.Value)(nil)
			if items.OK() && items.Kind == tree.List {
				for i, x := range items.Items {
					if n, _ := x.Field("name").AsString(); n == c.Name {
						at, item = tree.Index(path+"."+kind, i), x
					}
				}
			}
			if c.Name != ours.Name && c.Image == "" {
				remedy := diag.DidYouMean(c.Name, []string{ours.Name})
				if remedy == "" {
					remedy = fmt.Sprintf("add image: \"REGISTRY/NAME:TAG\"; the container of Ray is %s", ours.Name)
				}
				b.add("GRM8411", diag.Error, at, fmt.Sprintf("the container %s has no image", c.Name), "It is one beside that of Ray, and Kubernetes starts no container without an image.", remedy)
			}
			for _, m := range c.VolumeMounts {
				if slices.Contains(volumes, m.Name) || c.Name == ours.Name && slices.ContainsFunc(b.mounts, func(x corev1.VolumeMount) bool { return x.Name == m.Name }) {
					continue // or reported with kuberay.volume_mounts
				}
				where := at
				if list := item.Field("volumeMounts"); list.OK() && list.Kind == tree.List {
					for i, x := range list.Items {
						if n, _ := x.Field("name").AsString(); n == m.Name {
							where = tree.Join(tree.Index(at+".volumeMounts", i), "name")
						}
					}
				}
				remedy := diag.DidYouMean(m.Name, volumes)
				if remedy == "" {
					remedy = "add it to the template's volumes, or to kuberay.volumes"
				}
				b.add("GRM8417", diag.Error, where, fmt.Sprintf("no volume is called %s", m.Name), "A mount names one of the pod's volumes.", remedy)
			}
		}
	}
	each("containers", merged.Spec.Containers)
	each("initContainers", merged.Spec.InitContainers)
}

// replaced says what of the generated template the user's replaces or removes:
// one text each, in the order of the paths.
func replaced(generated, merged corev1.PodTemplateSpec) []string {
	var out []string
	var diff func(path string, a, b any)
	diff = func(path string, a, b any) {
		switch a := a.(type) {
		case map[string]any:
			m, ok := b.(map[string]any)
			if !ok {
				out = append(out, "replaces "+path)
				return
			}
			keys := make([]string, 0, len(a))
			for k := range a {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			for _, k := range keys {
				at := tree.Join(path, k)
				if _, there := m[k]; !there {
					out = append(out, "removes "+at)
					continue
				}
				diff(at, a[k], m[k])
			}
		case []any:
			list, _ := b.([]any)
			key := mergeKey(a)
			for i, x := range a {
				if key == "" {
					if !reflect.DeepEqual(a, b) {
						out = append(out, "replaces "+path)
					}
					return
				}
				item, _ := x.(map[string]any)
				at := fmt.Sprintf("%s[%v]", path, item[key])
				j := slices.IndexFunc(list, func(y any) bool { m, _ := y.(map[string]any); return m[key] == a[i].(map[string]any)[key] })
				if j < 0 {
					out = append(out, "removes "+at)
					continue
				}
				diff(at, x, list[j])
			}
		default:
			if !reflect.DeepEqual(a, b) {
				out = append(out, fmt.Sprintf("replaces %s, %s, by %s", path, short(fmt.Sprint(a)), short(fmt.Sprint(b))))
			}
		}
	}
	diff("", plain(generated), plain(merged))
	return out
}

// mergeKey is the field that tells the items of a list apart, "" if none does.
func mergeKey(list []any) string {
	for _, key := range []string{"mountPath", "containerPort", "name"} {
		if !slices.ContainsFunc(list, func(x any) bool { m, ok := x.(map[string]any); return !ok || m[key] == nil }) {
			return key
		}
	}
	return ""
}

// plain is a template as JSON has it.
func plain(t corev1.PodTemplateSpec) any {
	var out map[string]any
	text, err := json.Marshal(t)
	if err != nil || json.Unmarshal(text, &out) != nil {
		return nil // a template that was decoded encodes
	}
	prune(out)
	return out
}

// decode reads a list of the user's block into objects of Kubernetes. What the
// type does not have is reported, and the item left out.
func decode[T any](b *builder, field string) []T {
	v := b.s.Field(field)
	if !v.OK() || v.Kind != tree.List {
		return nil
	}
	var out []T
	for i, item := range v.Items {
		before := len(b.found)
		at := tree.Index("kuberay."+field, i)
		c := strict{add: func(at, summary, detail, remedy string) { b.add("GRM8411", diag.Error, at, summary, detail, remedy) }}
		c.walk(item, reflect.TypeFor[T](), at)
		if len(b.found) > before || !item.OK() {
			continue
		}
		var x T
		if err := json.Unmarshal([]byte(item.JSON()), &x); err != nil {
			b.add("GRM8411", diag.Error, at, "Kubernetes cannot read this", oneLine(err.Error()), "write it as Kubernetes does")
			continue
		}
		out = append(out, x)
	}
	return out
}
