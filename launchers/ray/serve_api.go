package ray

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

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

// checkVersion compares the cluster's Ray with the one that the plan states, or
// that a serve workload was checked against.
func checkVersion(p *plan.Plan, got string, l *diag.List) {
	s, _ := p.Settings.Get("ray")
	want, stated := s.Field("version").AsString()
	if !stated && p.Workload == plan.Serve {
		want = engines.LatestRay()
	}
	remedy := fmt.Sprintf("write ray: version: %q, and vet again; or use a cluster of %s", got, want)
	switch {
	case want == "", got == want:
		return
	case p.Workload != plan.Serve:
		l.Add(p.Finding("GRM8333", diag.Error, "ray.version", fmt.Sprintf("the cluster runs Ray %s, and the experiment states %s", got, want), "The driver brings a Ray of its own, which has to be the cluster's.", remedy))
		return
	}
	pins := func(v string) string {
		if pin := PinnedVLLM(v); pin != "" {
			return fmt.Sprintf("ray[llm] %s runs vLLM %s", v, pin)
		}
		return fmt.Sprintf("which vLLM ray[llm] %s runs is not known here", v)
	}
	l.Add(p.Finding("GRM8333", diag.Error, "ray.version", fmt.Sprintf("the cluster runs Ray %s, and the experiment was checked for %s", got, want),
		pins(got)+"; "+pins(want)+", whose flags were checked.", remedy))
}
