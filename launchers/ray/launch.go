package ray

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/rundir"
)

// Options is what a launch is told.
type Options struct {
	Plan    *plan.Plan
	Address string   // of the dashboard; see [Address]
	Root    string   // of runs
	WorkDir string   // where it is launched
	Env     []string // of the caller
	Version string   // of genrm
	Replace bool     // serve: an application of an older run of the experiment is updated in place
	Grows   bool     // the cluster gets nodes when it is asked: too few GPUs now are a warning

	// Progress is told how much of an upload is sent; nil tells nobody.
	Progress func(u Upload, sent int64)
}

// Job is ray.json of a run: the job that runs it.
type Job struct {
	ID        string     `json:"submission_id"`
	Address   string     `json:"address"`
	Submitted *time.Time `json:"submitted"` // null until Ray has said that it has the job
	Uploads   []Upload   `json:"uploads,omitempty"`
}

// JobFile is where a run keeps its [Job].
const JobFile = "ray.json"

// Request is what POST /api/jobs/ is given.
type Request struct {
	Entrypoint   string             `json:"entrypoint"`
	SubmissionID string             `json:"submission_id,omitempty"`
	RuntimeEnv   map[string]any     `json:"runtime_env,omitempty"`
	Metadata     map[string]string  `json:"metadata"`
	CPUs         *float64           `json:"entrypoint_num_cpus,omitempty"`
	GPUs         *float64           `json:"entrypoint_num_gpus,omitempty"`
	Memory       *int64             `json:"entrypoint_memory,omitempty"`
	Resources    map[string]float64 `json:"entrypoint_resources,omitempty"`
}

// submissionID is what Ray can store and find again: an id with a blank or a
// slash is refused, and leaves a record behind. Observed in 2.60.0.
var submissionID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,190}$`)

// SubmissionID names the job of an attempt of a run.
func SubmissionID(runID string, attempt int) (string, error) {
	id := runID + "-" + strconv.Itoa(attempt)
	if !submissionID.MatchString(id) {
		return "", fmt.Errorf("%q is no id for a Ray job: want at most 190 letters, digits, dots, dashes and underscores", id)
	}
	return id, nil
}

// NewRequest makes the request of a run's job, as far as the plan tells. It needs
// no cluster; see [Request.For].
func NewRequest(p *plan.Plan) (Request, error) {
	s, _ := p.Settings.Get("ray")
	line, err := Entrypoint(p)
	if err != nil {
		return Request{}, err
	}
	hash, err := p.Hash()
	if err != nil {
		return Request{}, err
	}
	r := Request{Entrypoint: line, Metadata: map[string]string{}}
	if m := s.Field("metadata"); m.OK() {
		for _, f := range m.Fields {
			r.Metadata[f.Name] = f.Value.Text
		}
	}
	r.Metadata[metaHash] = hash
	if v, ok := s.Field("entrypoint_num_cpus").AsFloat(); ok {
		r.CPUs = &v
	}
	if v, ok := s.Field("entrypoint_num_gpus").AsFloat(); ok {
		r.GPUs = &v
	}
	if v, ok := s.Field("entrypoint_memory").AsInt(); ok {
		r.Memory = &v
	}
	if m := s.Field("entrypoint_resources"); m.OK() {
		r.Resources = map[string]float64{}
		for _, f := range m.Fields {
			r.Resources[f.Name], _ = f.Value.AsFloat()
		}
	}
	r.RuntimeEnv = runtime(p, s, new(diag.List)) // Check has told
	return r, nil
}

// JobBody is the file that [Files] writes.
const JobBody = "job.json"

// Files are what [emit.Files] of a plan lacks. For relax and gym that is the body
// of POST /api/jobs/ as it is submitted, without the id and the metadata of a
// run, and with a local folder by its path, not yet as the package that it
// becomes; for serve see [ServeFiles].
func Files(p *plan.Plan) ([]emit.File, error) {
	if p.Workload == plan.Serve {
		return ServeFiles(p)
	}
	r, err := NewRequest(p)
	if err != nil {
		return nil, err
	}
	text, err := rundir.Text(r)
	if err != nil {
		return nil, err
	}
	return []emit.File{{Name: JobBody, Text: text}}, nil
}

// For is the request of an attempt of a run: with its id, and with what finds and
// tells the run from any machine.
func (r Request) For(run rundir.Info, attempt int) (Request, error) {
	var err error
	if r.SubmissionID, err = SubmissionID(run.ID, attempt); err != nil {
		return Request{}, err
	}
	r.Metadata = maps.Clone(r.Metadata)
	maps.Copy(r.Metadata, map[string]string{metaRun: run.ID, metaVersion: run.Version, metaName: run.Name, metaWorkload: run.Workload,
		metaUser: run.User, metaHost: run.Host, metaCreated: run.Created.Format(time.RFC3339Nano)})
	return r, nil
}

// runtime is the runtime environment: the user's, and the variables of the plan,
// which Ray's workers would not get from the driver. Ray expands $NAME in them
// (ray/_private/utils.py, update_envs), so a value with a dollar reaches the
// driver alone, by its command. Secrets are never in it.
func runtime(p *plan.Plan, s *tree.Value, l *diag.List) map[string]any {
	env := map[string]any{}
	if own, ok := s.Field("runtime_env").Any().(map[string]any); ok {
		env = own
	}
	vars := map[string]any{}
	if own, ok := env["env_vars"].(map[string]any); ok {
		vars = own
	}
	for _, e := range p.Launch.Env {
		if _, given := vars[e.Key]; given || e.Value.SecretEnv != "" || e.Value.SecretFile != "" || len(e.Value.Text.Placeholders()) > 0 {
			continue
		}
		v, err := e.Value.Text.Bind(nil) // no placeholder is left but {brace}
		switch {
		case err != nil:
		case strings.Contains(v, "$"):
			l.Add(p.Finding("GRM8324", diag.Note, tree.Join(string(p.Workload)+".env", e.Key), e.Key+" reaches the driver, and not Ray's workers",
				"Ray would replace the $NAME in it by a node's variable, so it is not put into runtime_env.env_vars; the driver gets it as it is.", ""))
		default:
			vars[e.Key] = v
		}
	}
	if len(vars) > 0 {
		env["env_vars"] = vars
	}
	if dir, ok := s.Field("working_dir").AsString(); ok { // the package's URI once it is uploaded
		env["working_dir"] = dir
	}
	if len(env) == 0 {
		return nil
	}
	return env
}

// cluster is what a live Ray says of itself.
type cluster struct {
	version  string
	auth     string    // disabled, token, or "" where it does not say
	nodes    []machine // that live
	gpus     float64
	free     float64 // GPUs
	freeTold bool
}

// machine is a node of a cluster.
type machine struct {
	head      bool
	resources map[string]float64 // in all, by resourceKey
}

func (m machine) gpus() float64 { return m.resources[resourceKey("GPU")] }

// resourceKey is what the dashboard leaves of a resource's name: it writes
// accelerator_type:H100 as acceleratorType:h100.
func resourceKey(name string) string { return strings.ToLower(strings.ReplaceAll(name, "_", "")) }

func (c *client) look(ctx context.Context) (cluster, error) {
	var out cluster
	var v struct {
		Ray string `json:"ray_version"`
	}
	err := c.do(ctx, http.MethodGet, "/api/version", nil, &v)
	var no *answered
	switch {
	case errors.As(err, &no):
		return out, &Unreachable{fmt.Errorf("%s is no Ray dashboard, or the path prefix is missing: /api/version answers %d", c.base, no.status)}
	case err != nil:
		return out, err
	case v.Ray == "":
		return out, &Unreachable{fmt.Errorf("%s is no Ray dashboard: /api/version has no ray_version", c.base)}
	}
	out.version = v.Ray
	var mode struct {
		Mode string `json:"authentication_mode"`
	}
	if err := c.do(ctx, http.MethodGet, "/api/authentication_mode", nil, &mode); err == nil { // releases before 2.52 have none
		out.auth = mode.Mode
	}
	var nodes struct {
		Data struct {
			Summary []struct {
				Raylet struct {
					State     string             `json:"state"`
					Head      bool               `json:"isHeadNode"`
					Resources map[string]float64 `json:"resourcesTotal"`
				} `json:"raylet"`
			} `json:"summary"`
		} `json:"data"`
	}
	if err := c.do(ctx, http.MethodGet, "/nodes?view=summary", nil, &nodes); err != nil {
		return out, err
	}
	for _, n := range nodes.Data.Summary {
		if n.Raylet.State == "ALIVE" {
			m := machine{head: n.Raylet.Head, resources: map[string]float64{}}
			for name, v := range n.Raylet.Resources {
				m.resources[resourceKey(name)] = v
			}
			m.head = m.head || m.resources[headResource] > 0
			out.nodes = append(out.nodes, m)
			out.gpus += m.gpus()
		}
	}
	var status struct {
		Data struct {
			Status struct {
				Load struct {
					Usage map[string][]float64 `json:"usage"`
				} `json:"loadMetricsReport"`
			} `json:"clusterStatus"`
		} `json:"data"`
	}
	if err := c.do(ctx, http.MethodGet, "/api/cluster_status", nil, &status); err == nil {
		if u := status.Data.Status.Load.Usage["GPU"]; len(u) == 2 {
			out.free, out.freeTold = math.Max(0, out.gpus-u[0]), true
		}
	}
	return out, nil
}

// headResource is what Ray gives to a head and to no other node.
var headResource = resourceKey("node:__internal_head__")

// oldest is the Ray release whose job routes were read and found to be the same.
const oldest = "2.9"

// check compares a live cluster with the plan.
func check(p *plan.Plan, got cluster, grows bool) diag.List {
	var l diag.List
	if before(got.version, oldest) {
		l.Add(p.Finding("GRM8322", diag.Warning, "ray", "the cluster runs Ray "+got.version, "genrm speaks the job API of "+oldest+" and later; this one may lack what it needs.", "use a newer Ray"))
	}
	checkVersion(p, got.version, &l)
	want := float64(need.GPUs(p))
	s, _ := p.Settings.Get("ray")
	entrypoint(p, s, got, &l)
	own, _ := s.Field("entrypoint_num_gpus").AsFloat()
	waits := "the driver starts, and Ray lets it wait for them."
	if p.Workload == plan.Serve { // it has no entrypoint
		own, waits = 0, "Ray Serve waits for them."
	}
	all := want + own
	if all == 0 {
		return l
	}
	at, roles := Roles(p)
	if own > 0 {
		roles = append(roles, fmt.Sprintf("%g for the entrypoint", own))
	}
	detail := fmt.Sprintf("Needed: %s. Present: %s.", strings.Join(roles, ", "), present(got))
	switch {
	case got.gpus < all:
		severity, remedy := diag.Error, "use a larger cluster or a smaller run; for a cluster that grows when it is asked, --grows"
		if grows {
			severity, remedy = diag.Warning, ""
		}
		l.Add(p.Finding("GRM8320", severity, at, fmt.Sprintf("the run needs %g GPUs, and the Ray cluster has %g", all, got.gpus), detail, remedy))
	case got.freeTold && got.free < all:
		l.Add(p.Finding("GRM8321", diag.Warning, at, fmt.Sprintf("the run needs %g GPUs, and %g of the Ray cluster's are free now", all, got.free),
			detail+" Others use the rest: "+waits, ""))
	}
	return l
}

// entrypoint checks that the driver comes to a node that suits it.
func entrypoint(p *plan.Plan, s *tree.Value, got cluster, l *diag.List) {
	wants, stated := wanted(s)
	var fit []machine
	for _, m := range got.nodes {
		if stated && !slices.ContainsFunc(wants, func(w resource) bool { return m.resources[w.key] < w.amount }) || !stated && m.head {
			fit = append(fit, m)
		}
	}
	if len(fit) == 0 {
		if stated && len(got.nodes) > 0 {
			var all []string
			for _, w := range wants {
				all = append(all, fmt.Sprintf("%g %s", w.amount, w.name))
			}
			l.Add(p.Finding("GRM8329", diag.Warning, wants[0].field, "no node of the Ray cluster has what the entrypoint asks for",
				fmt.Sprintf("It asks for %s on one node. Ray lets the job wait (PENDING) until there is such a node, and gives up after 15 minutes.", strings.Join(all, ", ")), "ask for what a node has"))
		}
		return
	}
	key := need.DriverGPU(p)
	without := 0
	for _, m := range fit {
		if m.gpus() == 0 {
			without++
		}
	}
	if key == "" || without == 0 {
		return
	}
	severity, summary := diag.Error, "the driver comes to the head, which has no GPU"
	switch {
	case stated && without < len(fit):
		severity, summary = diag.Warning, fmt.Sprintf("the driver may come to one of %d nodes without a GPU", without)
	case stated:
		summary = "the driver comes to a node without a GPU"
	}
	l.Add(p.Finding("GRM8327", severity, tree.Join("gym.config", key), summary, DriverGPU(key), driverRemedy))
}

// DriverGPU says why a gym driver wants a node with GPUs.
func DriverGPU(key string) string {
	return fmt.Sprintf("NeMo Gym reads the vLLM flags of %s in a process beside the driver, and without a GPU vLLM cannot tell its device there.", key)
}

const driverRemedy = `write ray: entrypoint_resources: "accelerator_type:H100": 0.001, or what GPU the nodes have: that chooses such a node and holds no GPU`

// resource is what an entrypoint asks of its node.
type resource struct {
	name, key, field string
	amount           float64
}

// wanted is what the entrypoint asks of its node. stated is false where it asks
// for nothing: then it comes to the head.
func wanted(s *tree.Value) (out []resource, stated bool) {
	for field, name := range map[string]string{"entrypoint_num_cpus": "CPU", "entrypoint_num_gpus": "GPU", "entrypoint_memory": "memory"} {
		if v, ok := s.Field(field).AsFloat(); ok && v > 0 {
			out = append(out, resource{name, resourceKey(name), "ray." + field, v})
		}
	}
	slices.SortFunc(out, func(a, b resource) int { return strings.Compare(a.name, b.name) })
	if m := s.Field("entrypoint_resources"); m.OK() {
		for _, f := range m.Fields {
			if v, ok := f.Value.AsFloat(); ok && v > 0 {
				out = append(out, resource{f.Name, resourceKey(f.Name), tree.Join("ray.entrypoint_resources", f.Name), v})
			}
		}
	}
	return out, len(out) > 0
}

func present(c cluster) string {
	s := fmt.Sprintf("%g on %s", c.gpus, need.Count(len(c.nodes), "node"))
	if c.freeTold {
		s += fmt.Sprintf(", %g of them free", c.free)
	}
	return s
}

// Roles says who of a run needs how many GPUs, and at which field that is stated.
func Roles(p *plan.Plan) (at string, needs []string) {
	if p.Workload == plan.Relax {
		for _, r := range p.Roles {
			t := fmt.Sprintf("%d for %s", r.Value.NumGPUs, r.Key)
			if pool := r.Value.Pool; pool != "" && pool != r.Key {
				t += " (in those of " + pool + ")"
			}
			needs = append(needs, t)
		}
		return "relax.resource", needs
	}
	for _, i := range p.Instances {
		if i.Value.NumGPUs > 0 {
			needs = append(needs, fmt.Sprintf("%d for %s", i.Value.NumGPUs, i.Key))
		}
	}
	return string(p.Workload), needs
}

// before reports whether a release is older than another of two numbers.
func before(release, than string) bool {
	a, b := numbers(release), numbers(than)
	return slices.Compare(a[:min(len(a), 2)], b) < 0
}

func numbers(s string) []int {
	var out []int
	for part := range strings.SplitSeq(s, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		out = append(out, n)
	}
	return out
}

// Preview is the request of a run as it would be submitted but for the run's id
// and metadata, with the packages that its folders would be. It asks no cluster
// and sends nothing.
func Preview(ctx context.Context, p *plan.Plan, workDir string) (Request, diag.List, error) {
	r, err := NewRequest(p)
	if err != nil {
		return r, nil, err
	}
	folders, found, err := uploads(ctx, p, workDir, nil)
	for _, u := range folders {
		u.set(r.RuntimeEnv, u.URI)
		u.pack.close()
	}
	return r, found, err
}

// Prepared is a launch that has been found to be possible.
type Prepared struct {
	o       Options
	c       *client
	req     Request
	folders []*upload
	cluster cluster
}

// Close gives up what is kept for a launch.
func (p *Prepared) Close() {
	for _, u := range p.folders {
		u.pack.close()
	}
}

// Prepare compares a run with the cluster, and packs its folders. Findings with
// errors mean that it cannot be launched; then it is nil, as after an error. What
// the others have found out and packed, which are launched with it, is not done
// again.
func Prepare(ctx context.Context, o Options, others []*Prepared) (p *Prepared, found diag.List, err error) {
	p = &Prepared{o: o}
	defer func() {
		if err != nil || found.HasErrors() {
			p.Close()
			p = nil
		}
	}()
	if p.req, err = NewRequest(o.Plan); err != nil {
		return p, nil, err
	}
	if p.folders, found, err = uploads(ctx, o.Plan, o.WorkDir, others); err != nil {
		return p, nil, err
	}
	if found.HasErrors() {
		return p, found, nil
	}
	for _, q := range others {
		if q.o.Address == o.Address && reflect.DeepEqual(headersOf(q.o.Plan), headersOf(o.Plan)) {
			p.c, p.cluster = q.c, q.cluster
			break
		}
	}
	if p.c == nil {
		if p.c, p.cluster, err = access(ctx, o, &found); err != nil || found.HasErrors() {
			return p, found, err
		}
	}
	return p, append(found, check(o.Plan, p.cluster, o.Grows)...), nil
}

func headersOf(p *plan.Plan) any {
	s, _ := p.Settings.Get("ray")
	return s.Field("headers").Any()
}

// Together is what there is to say of runs that are launched at the same time
// besides what there is of each.
func Together(all []*Prepared) diag.List {
	var l diag.List
	seen := map[string]bool{}
	for i, p := range all {
		if seen[p.o.Address] {
			continue
		}
		seen[p.o.Address] = true
		sum, n := 0, 0
		for _, other := range all[i:] {
			if other.o.Address == p.o.Address {
				sum += need.GPUs(other.o.Plan)
				n++
			}
		}
		have, what := p.cluster.gpus, "has %g"
		if p.cluster.freeTold {
			have, what = p.cluster.free, "has %g that are free"
		}
		if n > 1 && float64(sum) > have {
			at, _ := Roles(p.o.Plan)
			l.Add(p.o.Plan.Finding("GRM8321", diag.Warning, at, fmt.Sprintf("the %d runs need %d GPUs together, and the Ray cluster "+what, n, sum, have),
				fmt.Sprintf("Present: %s. Their drivers start at once, and Ray lets some wait for GPUs.", present(p.cluster)), ""))
		}
	}
	return l
}

// Launch uploads the folders of a run, freezes it and submits its job. Findings
// with errors mean that nothing was submitted; then there is no folder. After an
// error there is a run if Ray may have got the job nevertheless.
func (p *Prepared) Launch(ctx context.Context) (run *rundir.Run, job *Job, found diag.List, err error) {
	o, req := p.o, p.req
	job = &Job{Address: o.Address}
	for _, u := range p.folders {
		err := p.c.send(ctx, u, o.Progress)
		var refused *answered
		switch {
		case errors.As(err, &refused):
			found.Add(o.Plan.Finding("GRM8325", diag.Error, u.Field, "the Ray cluster does not take the folder", refused.Error(), ignoreRemedy))
			return nil, nil, found, nil
		case err != nil:
			return nil, nil, nil, err
		}
		u.set(req.RuntimeEnv, u.URI)
		job.Uploads = append(job.Uploads, u.Upload)
	}
	info := newInfo(o)
	if req, err = req.For(info, 1); err != nil {
		return nil, nil, nil, err
	}
	if run, err = freeze(o, info, req); err != nil {
		return nil, nil, nil, err
	}
	job.ID = req.SubmissionID
	if err = run.Write(JobFile, job); err == nil {
		err = p.c.submit(ctx, req)
	}
	var refused *answered
	var denied *Denied
	switch {
	case err == nil:
		now := time.Now().UTC()
		job.Submitted = &now
		if err = run.Write(JobFile, job); err != nil {
			err = fmt.Errorf("the job %s was submitted, and that cannot be noted: %w; `genrm stop %s` ends it", job.ID, err, run.ID)
		}
		return run, job, nil, err
	case errors.As(err, &refused), errors.As(err, &denied):
		return nil, nil, nil, errors.Join(err, run.Remove())
	}
	return run, job, nil, fmt.Errorf("%w; whether it has the job is not known: `genrm status %s` tells", err, run.ID)
}

// retries are the waits before a request whose answer was lost is made again.
var retries = []time.Duration{500 * time.Millisecond, 2 * time.Second, 5 * time.Second}

// submit posts a job once: where the answer is lost, the id tells whether Ray
// has it. A job with this id that is another's is an error.
func (c *client) submit(ctx context.Context, r Request) error {
	for i := 0; ; i++ {
		err := c.do(ctx, http.MethodPost, "/api/jobs/", r, nil)
		var no *answered
		var gone *Unreachable
		switch {
		case err == nil:
			return nil
		case errors.As(err, &no) && no.status == http.StatusInternalServerError, errors.As(err, &gone):
			have, e := c.job(ctx, r.SubmissionID)
			if e == nil {
				if have.Metadata[metaRun] != r.Metadata[metaRun] || have.Entrypoint != r.Entrypoint {
					return fmt.Errorf("the Ray cluster has another job with the id %s", r.SubmissionID)
				}
				return nil
			}
			if gone == nil {
				return err // Ray's own refusal
			}
			var missing *answered
			if !errors.As(e, &missing) || missing.status != http.StatusNotFound {
				err = e
			}
		default:
			return err
		}
		if i == len(retries) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retries[i]):
		}
	}
}

// newInfo is what a new run is.
func newInfo(o Options) rundir.Info {
	host, _ := os.Hostname()
	now := time.Now().UTC()
	return rundir.Info{ID: rundir.NewID(o.Plan.Name, now), Name: o.Plan.Name, Workload: string(o.Plan.Workload), Target: string(plan.Ray), Created: now,
		Version: o.Version, Host: host, User: rundir.UserName(), WorkDir: o.WorkDir}
}

func freeze(o Options, info rundir.Info, req any) (*rundir.Run, error) {
	files, err := rundir.Files(o.Plan, map[string]any{"request.json": req})
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, err
	}
	if info.PlanHash, err = o.Plan.Hash(); err != nil {
		return nil, err
	}
	return rundir.Create(root, info, files)
}

// readPlan reads the plan of a run, which is nil for one that was launched from
// another machine.
func readPlan(run *rundir.Run) (*plan.Plan, error) {
	p := new(plan.Plan)
	err := run.Read(rundir.PlanFile, p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return p, err
}
