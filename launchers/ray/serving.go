package ray

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/rundir"
	"genrm.dev/genrm/schema/engines"
)

// Serving is serve.json of a run: the application that it is.
type Serving struct {
	Application string     `json:"application"`
	RoutePrefix string     `json:"route_prefix"`
	Address     string     `json:"address"`            // of the dashboard
	Endpoint    string     `json:"endpoint,omitempty"` // where clients ask, without /v1, as far as it was seen
	Submitted   *time.Time `json:"submitted"`          // null until Ray has said that it has the application
}

// ServeFile is where a run keeps its [Serving].
const ServeFile = "serve.json"

// Variables of an application that tell whose it is, from any machine. Nothing
// in them is a secret.
const (
	varRun     = "GENRM_RUN_ID"
	varName    = "GENRM_RUN_NAME"
	varUser    = "GENRM_RUN_USER"
	varHost    = "GENRM_RUN_HOST"
	varCreated = "GENRM_RUN_CREATED" // RFC 3339
	varVersion = "GENRM_RUN_VERSION"
	varHash    = "GENRM_RUN_PLAN_HASH"
	varGateway = "GENRM_RUN_GATEWAY" // gateway.json in one line
)

// For is the application as a run's launch submits it.
func (a Application) For(run rundir.Info, gateway string) Application {
	env := maps.Clone(a.RuntimeEnv)
	if vars, ok := env["env_vars"].(map[string]any); ok {
		env["env_vars"] = maps.Clone(vars)
	}
	for _, v := range [][2]string{{varRun, run.ID}, {varName, run.Name}, {varUser, run.User}, {varHost, run.Host},
		{varCreated, run.Created.Format(time.RFC3339Nano)}, {varVersion, run.Version}, {varHash, run.PlanHash}, {varGateway, strings.TrimSpace(gateway)}} {
		if v[1] != "" {
			set(&env, v[0], v[1])
		}
	}
	a.RuntimeEnv = env
	return a
}

// GatewayFile is the artifact that configures the gateway of a serve plan.
const GatewayFile = "gateway.json"

func gatewayText(p *plan.Plan) string {
	for _, a := range p.Artifacts {
		if a.Name == GatewayFile {
			return a.Text
		}
	}
	return ""
}

// served is what GET /api/serve/applications/ answers.
type served struct {
	Location string                `json:"proxy_location"`
	HTTP     json.RawMessage       `json:"http_options"` // absent until there was a first application
	GRPC     json.RawMessage       `json:"grpc_options"`
	Capacity json.RawMessage       `json:"target_capacity"`
	Proxies  map[string]serveProxy `json:"proxies"`
	Head     struct {
		Node string `json:"node_id"`
		IP   string `json:"node_ip"`
		Log  string `json:"log_file_path"`
	} `json:"controller_info"`
	Applications map[string]servedApp `json:"applications"`
}

type serveProxy struct {
	IP     string `json:"node_ip"`
	Status string `json:"status"`
}

type servedApp struct {
	Name        string                      `json:"name"`
	RoutePrefix string                      `json:"route_prefix"`
	Status      string                      `json:"status"` // NOT_STARTED, DEPLOYING, RUNNING, DEPLOY_FAILED, UNHEALTHY, DELETING
	Message     string                      `json:"message"`
	Deployed    float64                     `json:"last_deployed_time_s"`
	Config      json.RawMessage             `json:"deployed_app_config"` // null for what serve.run made
	Source      string                      `json:"source"`
	Deployments map[string]servedDeployment `json:"deployments"`
}

type servedDeployment struct {
	Name     string `json:"name"`
	Status   string `json:"status"`
	Message  string `json:"message"`
	Want     int    `json:"target_num_replicas"`
	Replicas []struct {
		ID     string `json:"replica_id"`
		State  string `json:"state"`
		Node   string `json:"node_id"`
		IP     string `json:"node_ip"`
		Worker string `json:"worker_id"`
		Log    string `json:"log_file_path"`
	} `json:"replicas"`
}

type httpOptions struct {
	Host    string   `json:"host"`
	Port    int      `json:"port"`
	Root    string   `json:"root_path"`
	Request *float64 `json:"request_timeout_s"`
	Keep    *float64 `json:"keep_alive_timeout_s"`
	Key     *string  `json:"ssl_keyfile"`
}

func null(m json.RawMessage) bool { return len(m) == 0 || string(m) == "null" }

// declared reports whether the application is part of what PUT replaces.
func (a servedApp) declared() bool { return a.Source != "imperative" && !null(a.Config) }

// vars are the variables of an application.
func (a servedApp) vars() map[string]string {
	var c struct {
		Env struct {
			Vars map[string]string `json:"env_vars"`
		} `json:"runtime_env"`
	}
	_ = json.Unmarshal(a.Config, &c) // what is no such config has no variables
	return c.Env.Vars
}

// run is the id of the run that an application is, "" for one that genrm did not
// launch.
func (a servedApp) run() string {
	id := a.vars()[varRun]
	if !submissionID.MatchString(id) { // it may become the name of a folder
		return ""
	}
	return id
}

// created is when the run was launched that the application is.
func (a servedApp) created() time.Time {
	t, err := time.Parse(time.RFC3339, a.vars()[varCreated])
	if err != nil {
		t = time.Unix(int64(a.Deployed), 0)
	}
	return t.UTC()
}

const applications = "/api/serve/applications/"

func (c *client) served(ctx context.Context) (served, error) {
	var s served
	err := c.do(ctx, http.MethodGet, applications, nil, &s)
	if err == nil && s.Applications == nil {
		err = &Unreachable{fmt.Errorf("%s does not answer as Ray's Serve API does: there is no list of applications", c.base)}
	}
	return s, err
}

// putBody is what PUT takes.
type putBody struct {
	Location     string            `json:"proxy_location,omitempty"`
	HTTP         json.RawMessage   `json:"http_options,omitempty"`
	GRPC         json.RawMessage   `json:"grpc_options,omitempty"`
	Capacity     json.RawMessage   `json:"target_capacity,omitempty"`
	Applications []json.RawMessage `json:"applications"`
}

// redacted stands in place of values that a dashboard does not show. Source:
// ray/dashboard/runtime_env_redaction.py of 2.60.0.
const redacted = "<redacted>"

// hides reports whether a config has values that were redacted.
func hides(config json.RawMessage) bool {
	var found func(v any) bool
	found = func(v any) bool {
		switch v := v.(type) {
		case string:
			return v == redacted
		case []any:
			return slices.ContainsFunc(v, found)
		case map[string]any:
			return slices.ContainsFunc(slices.Collect(maps.Values(v)), found)
		}
		return false
	}
	var v any
	_ = json.Unmarshal(config, &v) // it was read as JSON
	return found(v)
}

// body is the set of a cluster's applications with one of them replaced or, by a
// nil config, left out: every other one exactly as the cluster told it.
func (s served) body(name string, config json.RawMessage) (putBody, error) {
	b := putBody{Location: s.Location, Applications: []json.RawMessage{}}
	for _, o := range []struct {
		to   *json.RawMessage
		from json.RawMessage
	}{{&b.HTTP, s.HTTP}, {&b.GRPC, s.GRPC}, {&b.Capacity, s.Capacity}} {
		if !null(o.from) {
			*o.to = o.from
		}
	}
	for _, other := range slices.Sorted(maps.Keys(s.Applications)) {
		a := s.Applications[other]
		if other == name || !a.declared() {
			continue
		}
		if hides(a.Config) {
			return b, fmt.Errorf("the dashboard hides variables of the application %s, which would be lost: ask it without what makes it do so", other)
		}
		b.Applications = append(b.Applications, a.Config)
	}
	if config != nil {
		b.Applications = append(b.Applications, config)
	}
	return b, nil
}

// others are the applications besides one that PUT replaces, as told.
func (s served) others(name string) map[string]string {
	out := map[string]string{}
	for other, a := range s.Applications {
		if other != name && a.declared() {
			var b bytes.Buffer
			_ = json.Compact(&b, a.Config) // it was read as JSON
			out[other] = b.String()
		}
	}
	return out
}

// mostPuts bounds how often a set of applications is written that others write
// over.
const mostPuts = 3

// race is an application that another writer touched while the set was changed.
type race struct{ name, what, remedy string }

// change writes the set of applications with one replaced or left out. Each time
// it is read first; ready may end the change before it is written. After it was
// written it is read again, until done finds there what was meant: an answer
// that was lost, and another writer in between, are told apart by what is there.
// raced are applications of others that another writer touched meanwhile.
func (c *client) change(ctx context.Context, name string, config json.RawMessage, ready func(served) error, done func(served) bool, first func(*putBody)) (raced []race, err error) {
	var failed error
	for try := 0; try < mostPuts; try++ {
		before, err := c.served(ctx)
		if err != nil {
			return raced, errors.Join(failed, err)
		}
		if try > 0 && done(before) {
			return raced, nil
		}
		if err := ready(before); err != nil {
			return raced, err
		}
		body, err := before.body(name, config)
		if err != nil {
			return raced, err
		}
		if null(before.HTTP) && first != nil {
			first(&body)
		}
		failed = c.do(ctx, http.MethodPut, applications, body, nil)
		var gone *Unreachable
		if failed != nil && !errors.As(failed, &gone) {
			return raced, failed
		}
		after, err := c.again(ctx)
		if err != nil {
			return raced, errors.Join(failed, err)
		}
		for _, other := range slices.Sorted(maps.Keys(after.Applications)) {
			if _, known := before.Applications[other]; !known && other != name && after.Applications[other].Status == "DELETING" {
				raced = append(raced, race{other, "came between reading and writing, and was taken away", "tell its owner to deploy it again"})
			}
		}
		was, is := before.others(name), after.others(name)
		for _, other := range slices.Sorted(maps.Keys(was)) {
			switch text, there := is[other]; {
			case !there:
				raced = append(raced, race{other, "is gone", "look whether its owner removed it"})
			case text != was[other]:
				raced = append(raced, race{other, "was changed", "look whether its owner changed it"})
			}
		}
		if done(after) {
			return raced, nil
		}
		if failed == nil {
			failed = errors.New("another writer of the cluster's applications, who had read them before, took it away again")
		}
		select {
		case <-ctx.Done():
			return raced, ctx.Err()
		case <-time.After(retries[min(try, len(retries)-1)]):
		}
	}
	return raced, fmt.Errorf("%w; tried %d times", failed, mostPuts)
}

// again reads after a write whose answer may be lost: a dashboard that comes
// back within some seconds is waited for.
func (c *client) again(ctx context.Context) (served, error) {
	for i := 0; ; i++ {
		s, err := c.served(ctx)
		var gone *Unreachable
		if err == nil || !errors.As(err, &gone) || i == len(retries) {
			return s, err
		}
		select {
		case <-ctx.Done():
			return s, err
		case <-time.After(retries[i]):
		}
	}
}

// taken is a name or a route prefix that another application has.
type taken struct{ found diag.Diagnostic }

func (e *taken) Error() string { return e.found.Summary }

// free reports what stands in the way of an application.
func free(p *plan.Plan, app Application, s served, replace bool) error {
	if a, there := s.Applications[app.Name]; there && a.Status != "DELETING" {
		id := a.run()
		switch {
		case id == "":
			return &taken{p.Finding("GRM8330", diag.Error, "name", fmt.Sprintf("the cluster has an application %s that genrm did not launch", app.Name),
				fmt.Sprintf("It is %s at %s. An application of another tool is never changed, not by --replace either.", a.Status, orSlash(a.RoutePrefix)), "use another name")}
		case !replace:
			return &taken{p.Finding("GRM8331", diag.Error, "name", fmt.Sprintf("the application %s is the run %s already", app.Name, id),
				fmt.Sprintf("It is %s; %s launched it. Its address stays the same from launch to launch, so that there is one at a time.", a.Status, by(a.vars())),
				"launch with --replace, which updates it in place; or genrm stop "+id)}
		}
	}
	for _, other := range slices.Sorted(maps.Keys(s.Applications)) {
		a := s.Applications[other]
		if other != app.Name && a.RoutePrefix == app.RoutePrefix && a.Status != "DELETING" {
			return &taken{p.Finding("GRM8332", diag.Error, "name", fmt.Sprintf("the route prefix %s belongs to the application %s", app.RoutePrefix, other),
				"The prefix is made of the experiment's name, and Ray Serve gives each to one application.", "use another name")}
		}
	}
	return nil
}

func orSlash(prefix string) string {
	if prefix == "" {
		return "no route"
	}
	return prefix
}

// by says who launched an application where.
func by(vars map[string]string) string {
	user, host := vars[varUser], vars[varHost]
	switch {
	case user == "":
		return "nobody says who"
	case host == "":
		return user
	}
	return user + "@" + host
}

// httpSettings are the stated options of proxies, which only the first
// application of a cluster can set, and whether there are any.
func httpSettings(s *tree.Value) (options json.RawMessage, location string) {
	if o := s.Lookup("serve", "http_options"); o.OK() && len(o.Fields) > 0 {
		options = json.RawMessage(o.JSON())
	}
	location, _ = s.Lookup("serve", "proxy_location").AsString()
	return options, location
}

// fixed reports stated options of proxies that a cluster's differ from.
func fixed(p *plan.Plan, s *tree.Value, got served, l *diag.List) {
	if null(got.HTTP) {
		return
	}
	have := map[string]any{}
	_ = json.Unmarshal(got.HTTP, &have) // it was read as JSON
	differs := func(path, name, want, is string) {
		l.Add(p.Finding("GRM8339", diag.Warning, path, fmt.Sprintf("%s is %s on this cluster, and stays so", name, is),
			fmt.Sprintf("%s was stated, but the first application of a cluster sets the options of its proxies, and Ray Serve has to be shut down to change them.", want), "remove it, or use a cluster whose Serve has not begun"))
	}
	if o := s.Lookup("serve", "http_options"); o.OK() {
		for _, f := range o.Fields {
			want, is := f.Value.Text, fmt.Sprint(have[f.Name])
			a, errA := strconv.ParseFloat(want, 64)
			b, errB := strconv.ParseFloat(is, 64)
			if want != is && (errA != nil || errB != nil || a != b) {
				differs(tree.Join("ray.serve.http_options", f.Name), f.Name, want, is)
			}
		}
	}
	if want, ok := s.Lookup("serve", "proxy_location").AsString(); ok && got.Location != "" && want != got.Location {
		differs("ray.serve.proxy_location", "proxy_location", want, got.Location)
	}
}

// checkVersion compares the cluster's Ray with the one that the plan was checked
// against.
func checkVersion(p *plan.Plan, got string, l *diag.List) {
	s, _ := p.Settings.Get("ray")
	want, stated := s.Field("version").AsString()
	if !stated {
		want = engines.LatestRay()
	}
	if got == want {
		return
	}
	pins := func(v string) string {
		if pin := PinnedVLLM(v); pin != "" {
			return fmt.Sprintf("ray[llm] %s runs vLLM %s", v, pin)
		}
		return fmt.Sprintf("which vLLM ray[llm] %s runs is not known here", v)
	}
	l.Add(p.Finding("GRM8333", diag.Error, "ray.version", fmt.Sprintf("the cluster runs Ray %s, and the experiment was checked for %s", got, want),
		pins(got)+"; "+pins(want)+", whose flags were checked.", fmt.Sprintf("write ray: version: %q, and vet again; or use a cluster of %s", got, want)))
}

// access is what a launch needs of a cluster: a client, and what it says of
// itself. Findings with errors mean that nothing may be sent.
func access(ctx context.Context, o Options, found *diag.List) (c *client, got cluster, err error) {
	s, _ := o.Plan.Settings.Get("ray")
	h, err := headers(s, bind.Getenv(o.Env))
	var no *unset
	switch {
	case errors.As(err, &no):
		found.Add(o.Plan.Finding("GRM8117", diag.Error, tree.Join("ray.headers", no.header), no.what, "It is read where the run is launched.", "set it, and keep it set for status, logs and stop"))
		return nil, got, nil
	case err != nil:
		return nil, got, err
	}
	c = newClient(o.Address, h, o.Version)
	got, err = c.look(ctx)
	var denied *Denied
	if errors.As(err, &denied) {
		summary, detail := "the Ray cluster wants a token, and none was sent", "It runs with token authentication; /nodes answers 401."
		if denied.Status == http.StatusForbidden {
			summary, detail = "the Ray cluster refuses the token", "It runs with token authentication; /nodes answers 403."
		}
		found.Add(o.Plan.Finding("GRM8323", diag.Error, "ray", summary, detail, tokenRemedy))
		err = nil
	}
	return c, got, err
}

// LaunchServe looks at the cluster, freezes a run and makes its application one
// of the cluster's; every other one stays as it is. With o.Replace the
// application of an older run of the experiment is updated in place. Findings
// with errors mean that nothing was sent; then there is no folder. After an error
// there is a run if Ray may have got the application nevertheless.
func LaunchServe(ctx context.Context, o Options) (run *rundir.Run, serving *Serving, found diag.List, err error) {
	p := o.Plan
	s, _ := p.Settings.Get("ray")
	app, found, err := ServeApplicationFor(p, plan.Ray)
	if err != nil {
		return nil, nil, nil, err
	}
	found = append(found, folders(p, s)...)
	if found = slices.DeleteFunc(found, func(d diag.Diagnostic) bool { return d.Severity != diag.Error }); len(found) > 0 {
		return nil, nil, found, nil // warnings were printed when it was compiled
	}
	c, got, err := access(ctx, o, &found)
	if err != nil || found.HasErrors() {
		return nil, nil, found, err
	}
	checkVersion(p, got.version, &found)
	found = append(found, check(p, got, o.Grows)...)
	now, err := c.served(ctx)
	if err != nil {
		return nil, nil, nil, err
	}
	var no *taken
	if errors.As(free(p, app, now, o.Replace), &no) {
		found.Add(no.found)
	}
	fixed(p, s, now, &found)
	if found.HasErrors() {
		return nil, nil, found, nil
	}
	info := newInfo(o)
	if info.PlanHash, err = p.Hash(); err != nil {
		return nil, nil, nil, err
	}
	app = app.For(info, gatewayText(p))
	config, err := json.Marshal(app)
	if err != nil {
		return nil, nil, nil, err
	}
	if run, err = freeze(o, info, app); err != nil {
		return nil, nil, nil, err
	}
	serving = &Serving{Application: app.Name, RoutePrefix: app.RoutePrefix, Address: o.Address}
	if err := run.Write(ServeFile, serving); err != nil {
		return nil, nil, nil, errors.Join(err, run.Remove())
	}
	ours := func(s served) bool {
		a, there := s.Applications[app.Name]
		return there && a.run() == info.ID
	}
	raced, err := c.change(ctx, app.Name, config, func(s served) error {
		if ours(s) {
			return nil
		}
		return free(p, app, s, o.Replace)
	}, ours, func(b *putBody) {
		options, location := httpSettings(s)
		b.HTTP, b.Location = options, location
	})
	for _, r := range raced {
		found.Add(p.Finding("GRM8338", diag.Warning, "ray", fmt.Sprintf("while this was launched, the application %s %s", r.name, r.what),
			"Ray Serve's API replaces the whole set of applications, and another writer did so in the same moment.", r.remedy))
	}
	var refused *answered
	var denied *Denied
	switch {
	case err == nil:
		at := time.Now().UTC()
		serving.Submitted = &at
		return run, serving, found, run.Write(ServeFile, serving)
	case errors.As(err, &no):
		found.Add(no.found)
		return nil, nil, found, run.Remove()
	case errors.As(err, &refused), errors.As(err, &denied):
		return nil, nil, found, errors.Join(err, run.Remove())
	}
	return run, serving, found, fmt.Errorf("%w; whether it has the application is not known: `genrm status %s` tells", err, run.ID)
}

// ServeSession is the access to the application of a run.
type ServeSession struct {
	run     *rundir.Run
	serving Serving
	plan    *plan.Plan // nil for a run that was launched from another machine
	c       *client
	headers http.Header // of ray.headers and the token

	Notes []string // what Stop saw of other writers
}

// OpenServe is [Open] for a serve workload.
func OpenServe(run *rundir.Run, address string, env []string, version string) (*ServeSession, error) {
	s := &ServeSession{run: run}
	if err := run.Read(ServeFile, &s.serving); err != nil {
		return nil, err
	}
	if address != "" {
		s.serving.Address = address
	}
	var err error
	if s.plan, err = readPlan(run); err != nil {
		return nil, err
	}
	if s.headers, err = headers(s.block(), bind.Getenv(env)); err != nil {
		return nil, err
	}
	s.c = newClient(s.serving.Address, s.headers, version)
	return s, nil
}

func (s *ServeSession) block() *tree.Value {
	if s.plan == nil {
		return nil
	}
	v, _ := s.plan.Settings.Get("ray")
	return v
}

// Address is that of the dashboard.
func (s *ServeSession) Address() string { return s.serving.Address }

// Application is the name of the run's application.
func (s *ServeSession) Application() string { return s.serving.Application }

// Deadline is how long the judges may take until they are ready: the longest
// readiness.timeout.
func (s *ServeSession) Deadline() time.Duration {
	const usual = 1800 // the schema states it, too
	longest := 0.0
	if s.plan != nil {
		for _, i := range s.plan.Instances {
			t, ok := i.Value.Settings.Lookup("readiness", "timeout").AsFloat()
			if !ok {
				t = usual
			}
			if i.Value.Engine == "vllm" {
				longest = max(longest, t)
			}
		}
	}
	if longest == 0 {
		longest = usual
	}
	return time.Duration(longest * float64(time.Second))
}

// Status is how a run is: what Ray Serve says of its application, and how it
// ended once that was seen, even if the cluster is gone by then.
func (s *ServeSession) Status(ctx context.Context) (*rundir.Status, error) {
	own, err := s.run.Status()
	if err != nil || own.State.Told() {
		return own, err
	}
	own.JobID = s.serving.Application
	all, err := s.c.served(ctx)
	if err != nil {
		return own, err
	}
	a, there := all.Applications[s.serving.Application]
	id := a.run()
	switch {
	case there && id == s.run.ID:
		mergeServed(own, a)
		return own, nil
	case there && id != "" && a.created().After(s.run.Created):
		end := seconds(a.Deployed)
		code := 0
		own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Stopped, "replaced by "+id, &code, end
		return own, s.run.WriteStatus(own)
	case s.serving.Submitted == nil && !there:
		code := 3
		own.State, own.Reason, own.ExitCode = rundir.Failed, "Ray Serve never got its application", &code
		return own, nil // not kept: a request may still be on its way
	case there && a.Status == "DELETING":
		own.State, own.Reason, own.JobState = rundir.Stopping, "", a.Status
		return own, nil
	case there:
		own.State, own.Reason = rundir.Unknown, "the application "+s.serving.Application+" is another's by now"
		return own, nil
	}
	own.State, own.Reason = rundir.Unknown, "Ray Serve has no application "+s.serving.Application+" any more: somebody removed it, or the cluster was started anew"
	return own, nil
}

func seconds(s float64) *time.Time {
	if s == 0 {
		return nil
	}
	return at(int64(s * 1000))
}

// mergeServed puts an application into a status, its deployments as processes.
func mergeServed(own *rundir.Status, a servedApp) {
	own.JobState, own.StartedAt = a.Status, seconds(a.Deployed)
	own.Processes = []rundir.Process{}
	ids := modelIDs(a.Config)
	for _, name := range slices.Sorted(maps.Keys(a.Deployments)) {
		d := a.Deployments[name]
		p := rundir.Process{Name: name, Kind: "service", Role: "engine", Reason: why(d.Message)}
		if key, ok := ids[name]; ok {
			p.RouteKey = key
		} else {
			p.Role = "gateway"
		}
		running := 0
		var hosts []string
		for _, r := range d.Replicas {
			if r.State == "RUNNING" {
				running++
			}
			if r.IP != "" && !slices.Contains(hosts, r.IP) {
				hosts = append(hosts, r.IP)
			}
		}
		p.Host = strings.Join(hosts, " ")
		p.Awaits = fmt.Sprintf("%d of %s", running, need.Count(d.Want, "replica"))
		switch d.Status {
		case "HEALTHY":
			p.State, p.Awaits, p.Reason = rundir.Ready, "", ""
		case "DEPLOY_FAILED":
			p.State, p.Awaits = rundir.Failed, ""
		case "UNHEALTHY":
			p.State, p.Awaits = rundir.Starting, p.Awaits+", and Ray Serve starts the others again"
		default:
			p.State = rundir.Starting
		}
		own.Processes = append(own.Processes, p)
	}
	switch a.Status {
	case "RUNNING":
		own.State, own.Reason = rundir.Ready, ""
	case "DEPLOY_FAILED":
		code := 3
		own.State, own.Reason, own.ExitCode = rundir.Failed, reason(a), &code
	case "DELETING":
		own.State, own.Reason = rundir.Stopping, ""
	default: // NOT_STARTED, DEPLOYING, UNHEALTHY, and what later releases add
		own.State, own.Reason = rundir.Starting, reason(a)
	}
}

// modelIDs are the judges of an application by their deployments.
func modelIDs(config json.RawMessage) map[string]string {
	var c struct {
		Args struct {
			Configs []struct {
				Model struct {
					ID string `json:"model_id"`
				} `json:"model_loading_config"`
			} `json:"llm_configs"`
		} `json:"args"`
	}
	_ = json.Unmarshal(config, &c) // what is no such config has no judges
	out := map[string]string{}
	for _, m := range c.Args.Configs {
		out["LLMServer:"+strings.NewReplacer("/", "--", ".", "_").Replace(m.Model.ID)] = m.Model.ID
	}
	return out
}

// reason is the useful line about an application: of a deployment that fails,
// else its own.
func reason(a servedApp) string {
	for _, bad := range []string{"DEPLOY_FAILED", "UNHEALTHY", "UPDATING"} {
		for _, name := range slices.Sorted(maps.Keys(a.Deployments)) {
			if d := a.Deployments[name]; d.Status == bad && why(d.Message) != "" {
				return name + ": " + why(d.Message)
			}
		}
	}
	if said := why(a.Message); said != "" {
		return said
	}
	if a.Status == "UNHEALTHY" {
		return "UNHEALTHY"
	}
	return ""
}

var colours = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// why is the last line of a message, which of a Python traceback is the one that
// tells.
func why(message string) string { return colours.ReplaceAllString(lastLine(message), "") }

// Stop takes the run's application out of the cluster's, and waits until nothing
// of it is left. Others stay; so does Ray Serve itself, also after the last
// application. It gives up after grace.
func (s *ServeSession) Stop(ctx context.Context, who string, grace time.Duration) (*rundir.Status, error) {
	name := s.serving.Application
	if err := s.run.RequestStop(who); err != nil {
		return nil, err
	}
	ours := func(a served) bool { return a.Applications[name].run() == s.run.ID }
	now, err := s.c.served(ctx)
	if err != nil {
		return nil, err
	}
	if ours(now) {
		gone := errors.New("gone")
		var raced []race
		raced, err = s.c.change(ctx, name, nil, func(a served) error {
			if !ours(a) { // somebody replaced or removed it in between
				return gone
			}
			return nil
		}, func(a served) bool { return !ours(a) || a.Applications[name].Status == "DELETING" }, nil)
		for _, r := range raced {
			s.Notes = append(s.Notes, fmt.Sprintf("meanwhile the application %s %s: %s", r.name, r.what, r.remedy))
		}
		if err != nil && !errors.Is(err, gone) {
			return nil, err
		}
	} else if st, err := s.Status(ctx); err != nil || st.State != rundir.Stopping {
		return st, err // replaced, or gone already
	}
	for start := time.Now(); ; {
		all, err := s.c.again(ctx)
		if err != nil {
			return nil, err
		}
		a, there := all.Applications[name]
		if !there || a.Status != "DELETING" && a.run() != s.run.ID {
			own, err := s.run.Status()
			if err != nil {
				return nil, err
			}
			code, end := 0, time.Now().UTC()
			own.JobID = name
			own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Stopped, "stopped by "+who, &code, &end
			return own, s.run.WriteStatus(own)
		}
		if time.Since(start) > grace {
			return nil, fmt.Errorf("the application %s was taken out %d s ago and is %s: %s", name, int(grace.Seconds()), a.Status, reason(a))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// ErrLoopback says that the address of an application is of its own machine.
type ErrLoopback struct{ URL string }

func (e *ErrLoopback) Error() string {
	return e.URL + " is an address of the cluster's own node: nobody else reaches Ray Serve there\nState ray.serve.endpoint, the address by which clients reach its proxies"
}

// Endpoint is where the run's application is asked, without /v1, and the headers
// that its dashboard's host wants there, too. It is ray.serve.endpoint if that is
// stated, else that of a proxy: the head's, else the first healthy one. An
// address of a node that only the node itself reaches is an [*ErrLoopback],
// which has it.
func (s *ServeSession) Endpoint(ctx context.Context) (string, http.Header, error) {
	base, stated := s.block().Lookup("serve", "endpoint").AsString()
	all, err := s.c.served(ctx)
	if err != nil {
		return "", nil, err
	}
	if a, there := all.Applications[s.serving.Application]; !there || a.run() != s.run.ID {
		st, err := s.Status(ctx)
		if err != nil {
			return "", nil, err
		}
		return "", nil, fmt.Errorf("%s has no endpoint: it is %s: %s", s.run.ID, st.State, st.Reason)
	}
	var o httpOptions
	if err := json.Unmarshal(all.HTTP, &o); err != nil {
		return "", nil, &Unreachable{fmt.Errorf("%s does not say where Ray Serve listens", s.c.base)}
	}
	if !stated {
		p, ok := all.Proxies[all.Head.Node]
		if !ok || p.Status != "HEALTHY" {
			ok = false
			for _, id := range slices.Sorted(maps.Keys(all.Proxies)) {
				if p = all.Proxies[id]; p.Status == "HEALTHY" {
					ok = true
					break
				}
			}
		}
		if !ok {
			return "", nil, &Unreachable{errors.New("no proxy of Ray Serve is healthy")}
		}
		host, scheme := p.IP, "http"
		if o.Host != "" && o.Host != "0.0.0.0" && o.Host != "::" {
			host = o.Host
		}
		if o.Key != nil && *o.Key != "" {
			scheme = "https"
		}
		base = scheme + "://" + net.JoinHostPort(host, strconv.Itoa(o.Port))
	}
	base = strings.TrimRight(base, "/") + strings.TrimRight(o.Root, "/") + s.serving.RoutePrefix
	if s.serving.Endpoint != base {
		s.serving.Endpoint = base
		if err := s.run.Write(ServeFile, s.serving); err != nil {
			return "", nil, err
		}
	}
	var h http.Header
	at, _ := url.Parse(base)
	dash, _ := url.Parse(s.serving.Address)
	if at != nil && dash != nil && at.Hostname() == dash.Hostname() {
		h = s.headers
	}
	if !stated && at != nil && dash != nil && loopback(at.Hostname()) && !loopback(dash.Hostname()) {
		return base, h, &ErrLoopback{base}
	}
	return base, h, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Gateway is the gateway's configuration of the run: of its plan, else as the
// application has it.
func (s *ServeSession) Gateway(ctx context.Context) ([]byte, error) {
	if s.plan != nil {
		if text := gatewayText(s.plan); text != "" {
			return []byte(text), nil
		}
	}
	all, err := s.c.served(ctx)
	if err != nil {
		return nil, err
	}
	a := all.Applications[s.serving.Application]
	if text := a.vars()[varGateway]; a.run() == s.run.ID && text != "" {
		return []byte(text), nil
	}
	return nil, fmt.Errorf("the gateway's configuration of %s is not known here: nor does the cluster have it any more", s.run.ID)
}

// ServeRuns are the runs that are applications of a cluster, whoever launched
// them, the newest last; foreign are the names of the other applications.
func ServeRuns(ctx context.Context, address string, env []string, version string) (runs []FoundServe, foreign []string, err error) {
	h, err := headers(nil, bind.Getenv(env))
	if err != nil {
		return nil, nil, err
	}
	all, err := newClient(address, h, version).served(ctx)
	var no *answered
	if errors.As(err, &no) && (no.status == http.StatusNotFound || no.status == http.StatusNotImplemented) {
		return nil, nil, nil // a Ray without Serve
	}
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all.Applications)) {
		a := all.Applications[name]
		id, vars := a.run(), a.vars()
		if id == "" {
			foreign = append(foreign, name)
			continue
		}
		deployed := seconds(a.Deployed)
		f := FoundServe{
			Info: rundir.Info{ID: id, Name: vars[varName], Workload: string(plan.Serve), Target: string(plan.Ray), Created: a.created(),
				PlanHash: vars[varHash], Version: vars[varVersion], Host: vars[varHost], User: vars[varUser]},
			Serving: Serving{Application: name, RoutePrefix: a.RoutePrefix, Address: address, Submitted: deployed},
			Status:  &rundir.Status{RunID: id, Name: vars[varName], Workload: string(plan.Serve), Target: string(plan.Ray), Attempt: 1, JobID: name, Processes: []rundir.Process{}},
		}
		mergeServed(f.Status, a)
		runs = append(runs, f)
	}
	slices.SortStableFunc(runs, func(a, b FoundServe) int { return a.Info.Created.Compare(b.Info.Created) })
	return runs, foreign, nil
}

// FoundServe is a serve run that a cluster knows.
type FoundServe struct {
	Info    rundir.Info
	Serving Serving
	Status  *rundir.Status
}

// ServeLog is a file of a replica, on its node.
type ServeLog struct {
	Name string // of the deployment and the replica
	node string
	file string
}

// Logs are the files of the application's replicas: what Ray Serve logs of each,
// and what its process prints. process names a deployment or one of its judges,
// "controller" what decides for all applications of the cluster; "" is every
// deployment. An application without replicas has none but the controller's.
func (s *ServeSession) Logs(ctx context.Context, process string) ([]ServeLog, error) {
	all, err := s.c.served(ctx)
	if err != nil {
		return nil, err
	}
	controller := ServeLog{"controller", all.Head.Node, strings.TrimPrefix(all.Head.Log, "/")}
	if process == "controller" && all.Head.Node != "" {
		return []ServeLog{controller}, nil
	}
	a, there := all.Applications[s.serving.Application]
	if !there || a.run() != s.run.ID {
		return nil, fmt.Errorf("Ray Serve has no replicas of %s any more; their logs lie on the nodes, in logs/serve of Ray's session", s.run.ID)
	}
	var out []ServeLog
	var names []string
	ids := modelIDs(a.Config)
	for _, name := range slices.Sorted(maps.Keys(a.Deployments)) {
		names = append(names, name)
		if process != "" && process != name && process != ids[name] {
			continue
		}
		for _, r := range a.Deployments[name].Replicas {
			if r.Node == "" {
				continue // it has no process yet
			}
			label := name + " " + r.ID
			out = append(out, ServeLog{label, r.Node, strings.TrimPrefix(r.Log, "/")})
			if r.Worker != "" {
				files, err := s.files(ctx, r.Node, "worker-"+r.Worker+"*")
				if err != nil {
					return nil, err
				}
				for _, f := range files {
					out = append(out, ServeLog{label, r.Node, f})
				}
			}
		}
	}
	switch {
	case process != "" && !slices.Contains(names, process) && !slices.Contains(slices.Collect(maps.Values(ids)), process):
		return nil, fmt.Errorf("%s has no process %s; there are %s", s.run.ID, process, strings.Join(append(names, "controller"), ", "))
	case len(out) == 0 && all.Head.Node != "":
		return []ServeLog{controller}, nil // what failed before a replica had a process
	}
	return out, nil
}

// files lists logs of a node.
func (s *ServeSession) files(ctx context.Context, node, glob string) ([]string, error) {
	var found struct {
		Data struct {
			Result map[string][]string `json:"result"`
		} `json:"data"`
	}
	q := url.Values{"node_id": {node}, "glob": {glob}}
	if err := s.c.do(ctx, http.MethodGet, "/api/v0/logs?"+q.Encode(), nil, &found); err != nil {
		return nil, err
	}
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(found.Data.Result)) {
		out = append(out, found.Data.Result[kind]...)
	}
	slices.Sort(out)
	return out, nil
}

// Log gives the lines of a log from the last n on (all of them for -1), and with
// follow those that are added until ctx is done.
func (s *ServeSession) Log(ctx context.Context, l ServeLog, n int, follow bool, line func(string) error) error {
	media := "file"
	if follow {
		media = "stream"
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
	}
	q := url.Values{"node_id": {l.node}, "filename": {l.file}, "lines": {strconv.Itoa(n)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.c.base+"/api/v0/logs/"+media+"?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	req.Header = s.c.headers.Clone()
	resp, err := s.c.http.Do(req)
	if err != nil {
		return s.c.gone(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	if resp.StatusCode != http.StatusOK {
		data, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return s.c.judge(resp, data, nil)
	}
	in := bufio.NewReader(resp.Body)
	for {
		text, err := in.ReadString('\n')
		if text != "" {
			if err := line(colours.ReplaceAllString(strings.TrimRight(text, "\r\n"), "")); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF, ctx.Err() != nil && follow:
			return nil
		case err != nil:
			return s.c.gone(ctx, err)
		}
	}
}
