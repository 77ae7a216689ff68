package kuberay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/rundir"
)

// Options is what a launch is told.
type Options struct {
	Plan    *plan.Plan
	Where   Where
	Root    string   // of runs
	WorkDir string   // where it is launched
	Env     []string // of the caller
	Version string   // of genrm
	Grows   bool     // the cluster gets nodes when it is asked: too few GPUs now are a warning
	Replace bool     // change the object of an earlier run of the experiment
}

// Object is kuberay.json of a run: the object that it is.
type Object struct {
	Context    string     `json:"context,omitempty"`    // of the kubeconfig; "" within a pod
	Kubeconfig string     `json:"kubeconfig,omitempty"` // its path, where one was stated; nothing of what is in it is kept
	Server     string     `json:"server"`               // URL of the API server
	Namespace  string     `json:"namespace"`
	Kind       string     `json:"kind"` // RayJob or RayService
	Name       string     `json:"name"`
	UID        string     `json:"uid"` // "" until Kubernetes has said that it has the object
	ConfigMap  string     `json:"configmap,omitempty"`
	Applied    *time.Time `json:"applied"` // null until then
}

// ObjectFile is where a run keeps its [Object]; what was sent is in [FileName].
const ObjectFile = "kuberay.json"

// String names the object as kubectl does.
func (o Object) String() string {
	return strings.ToLower(o.Kind) + "/" + o.Name + " in " + o.Namespace
}

// Prepared is a launch before anything is sent.
type Prepared struct {
	o       Options
	info    rundir.Info
	c       *conn
	Objects *Objects
}

// Prepare makes the objects of a new run and finds the cluster; it asks nothing.
// Findings with errors mean that there is none. The connection of one of the others,
// which are launched with it, is shared where it leads to the same place.
func Prepare(o Options, others []*Prepared) (*Prepared, diag.List, error) {
	c := shared(o, others)
	if c == nil {
		var err error
		if c, err = connect(o.Where, settings(o.Plan), o.Env, o.Version); err != nil {
			return nil, nil, err
		}
	}
	hash, err := o.Plan.Hash()
	if err != nil {
		return nil, nil, err
	}
	host, _ := os.Hostname()
	now := time.Now().UTC()
	p := &Prepared{o: o, c: c, info: rundir.Info{ID: rundir.NewID(o.Plan.Name, now), Name: o.Plan.Name, Workload: string(o.Plan.Workload), Target: string(plan.KubeRay),
		Created: now, PlanHash: hash, Version: o.Version, Host: host, User: rundir.UserName(), WorkDir: o.WorkDir}}
	objects, found, err := Build(o.Plan, Run{ID: p.info.ID, User: p.info.User, Host: host, Version: o.Version, Created: now})
	if err != nil || found.HasErrors() {
		return nil, found, err
	}
	for _, x := range objects.All() {
		x.SetNamespace(c.namespace)
	}
	p.Objects = objects
	return p, found, nil
}

// Namespace is where the objects go.
func (p *Prepared) Namespace() string { return p.c.namespace }

// check asks the cluster whether the run can start in it, and the API server
// whether it takes the objects; nothing is changed. Findings with errors mean
// that it cannot.
func (p *Prepared) check(ctx context.Context, l *look) (diag.List, error) {
	found, err := l.all(ctx)
	if err != nil || found.HasErrors() {
		return found, err
	}
	warned := map[string]bool{}
	for _, x := range p.Objects.All() {
		_, _, err := p.c.apply(ctx, x, true, func(text string) {
			if !warned[text] {
				warned[text] = true
				found.Add(p.o.Plan.Finding("GRM8435", diag.Warning, "kuberay", "the API server warns: "+text, "It is about "+name(x)+".", "follow it, or leave it: the object is taken as it is"))
			}
		})
		if err != nil {
			refusals, err := p.refusals(x, err)
			if err != nil {
				return found, err
			}
			found = append(found, refusals...)
		}
	}
	return found, nil
}

// name is that of an object for people.
func name(o client.Object) string {
	return o.GetObjectKind().GroupVersionKind().Kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// refusals puts Kubernetes' refusal of an object into findings; errors that are
// none come back.
func (p *Prepared) refusals(o client.Object, err error) (diag.List, error) {
	var no *apierrors.StatusError
	if !errors.As(err, &no) {
		return (&look{c: p.c, p: p.o.Plan}).failed(err)
	}
	st := no.ErrStatus
	var found diag.List
	add := func(code, path, summary, detail, remedy string) {
		found.Add(p.o.Plan.Finding(code, diag.Error, path, summary, detail, remedy))
	}
	var causes []metav1.StatusCause
	if st.Details != nil {
		causes = st.Details.Causes
	}
	switch {
	case st.Code == http.StatusConflict && len(causes) > 0:
		for _, c := range causes {
			if c.Type != metav1.CauseTypeFieldManagerConflict {
				continue
			}
			other := strings.TrimPrefix(c.Message, "conflict with ")
			add("GRM8434", source(p.o.Plan, strings.TrimPrefix(c.Field, ".")), fmt.Sprintf("%s of %s is set by %s", strings.TrimPrefix(c.Field, "."), name(o), other),
				"Somebody changed the object beside genrm, which takes no field away.", "undo that change, or put it into the experiment; kubectl get -o yaml --show-managed-fields shows who set what")
		}
		if len(found) > 0 {
			return found, nil
		}
	case st.Code == http.StatusUnprocessableEntity && len(causes) > 0:
		for _, c := range causes {
			add("GRM8433", source(p.o.Plan, c.Field), fmt.Sprintf("Kubernetes refuses %s of %s: %s", orElse(c.Field, "a field"), name(o), firstLine(c.Message)), "The API server's own validation says so.", "change the field that it comes from")
		}
		return found, nil
	case st.Code == http.StatusNotFound:
		add("GRM8421", "kuberay.namespace", firstLine(st.Message), "The API server has no place for "+name(o)+".", "kubectl create namespace "+p.c.namespace+", or name another")
		return found, nil
	}
	text := st.Message
	if at := strings.Index(text, "strict decoding error: "); at >= 0 {
		text = text[at+len("strict decoding error: "):]
	}
	add("GRM8433", "kuberay", fmt.Sprintf("Kubernetes refuses %s: %s", name(o), firstLine(text)), fmt.Sprintf("It answers %d (%s) to a request that changes nothing yet.", st.Code, st.Reason), "change what it names; quotas, policies and webhooks are the cluster's")
	return found, nil
}

// Launch freezes the run and applies its objects: what they read first, and that
// is then owned by the main one, so that it goes with it. After an error there is
// a run if Kubernetes may have got the object nevertheless.
func (p *Prepared) Launch(ctx context.Context) (run *rundir.Run, object *Object, found diag.List, err error) {
	main := p.Objects.Main()
	object = &Object{Context: p.c.context, Kubeconfig: p.c.kubeconfig, Server: p.c.base, Namespace: p.c.namespace, Kind: main.GetObjectKind().GroupVersionKind().Kind, Name: main.GetName()}
	if p.Objects.ConfigMap != nil {
		object.ConfigMap = p.Objects.ConfigMap.Name
	}
	if run, err = p.freeze(); err != nil {
		return nil, nil, nil, err
	}
	if err = run.Write(ObjectFile, object); err != nil {
		return nil, nil, nil, errors.Join(err, run.Remove())
	}
	made := false // the config map, by this launch
	if m := p.Objects.ConfigMap; m != nil {
		had := p.c.do(ctx, request{method: http.MethodGet, path: p.c.path(m), accept: asMetadata}, nil)
		_, _, err = p.c.apply(ctx, m, false, nil)
		made = err == nil && status(had) == http.StatusNotFound
	}
	var got client.Object
	first := false // the object was not there
	if err == nil {
		got, first, err = p.c.apply(ctx, main, false, nil)
	}
	switch {
	case err == nil:
	case again(err), ctx.Err() != nil:
		return run, object, nil, fmt.Errorf("%w; whether it has the object is not known: `genrm status %s` tells", err, run.ID)
	default:
		refused, e := p.refusals(main, err)
		if made {
			e = errors.Join(e, p.c.remove(ctx, p.c.path(p.Objects.ConfigMap), "", metav1.DeletePropagationBackground))
		}
		return nil, nil, refused, errors.Join(e, run.Remove())
	}
	if !first && !p.o.Replace { // Check saw none: server-side apply cannot ask to make one only
		found.Add(p.o.Plan.Finding("GRM8432", diag.Warning, "name", name(main)+" was made by another launch at the same moment", "It is this run's now, as --replace would have made it; the other run has ended.", "genrm list --namespace "+p.c.namespace+" shows whose is there"))
	}
	now := time.Now().UTC()
	object.UID, object.Applied = string(got.GetUID()), &now
	if err = run.Write(ObjectFile, object); err != nil {
		return run, object, nil, err
	}
	if m := p.Objects.ConfigMap; m != nil {
		gvk := main.GetObjectKind().GroupVersionKind()
		owned := m.DeepCopy()
		owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind, Name: main.GetName(), UID: got.GetUID()}}
		if _, _, err := p.c.apply(ctx, owned, false, nil); err != nil {
			found.Add(p.o.Plan.Finding("GRM8436", diag.Warning, "kuberay", fmt.Sprintf("%s stays when the run is removed", name(m)), "It could not be put below "+name(main)+": "+err.Error()+".", "kubectl -n "+p.c.namespace+" delete configmap "+m.Name+", after the run"))
		}
	}
	return run, object, found, nil
}

func (p *Prepared) freeze() (*rundir.Run, error) {
	files, err := rundir.Files(p.o.Plan, nil)
	if err != nil {
		return nil, err
	}
	if files[FileName], err = Manifest(p.o.Plan, p.Objects); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(p.o.Root)
	if err != nil {
		return nil, err
	}
	return rundir.Create(root, p.info, files)
}

// remove deletes an object, if it is the one with this UID ("": any).
func (c *conn) remove(ctx context.Context, path, uid string, how metav1.DeletionPropagation) error {
	body := map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": how}
	if uid != "" {
		body["preconditions"] = map[string]any{"uid": uid}
	}
	err := c.do(ctx, request{method: http.MethodDelete, path: path, body: body}, nil)
	if status(err) == http.StatusNotFound {
		return nil
	}
	return err
}
