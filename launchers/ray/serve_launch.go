package ray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/rundir"
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
	varGateway = "GENRM_RUN_GATEWAY"  // gateway.json in one line
	varAsked   = "GENRM_RUN_ENDPOINT" // ray.serve.endpoint
)

// For is the application as a run's launch submits it: with what finds and tells
// the run from any machine.
func (a Application) For(run rundir.Info, gateway, endpoint string) Application {
	env := maps.Clone(a.RuntimeEnv)
	if vars, ok := env["env_vars"].(map[string]any); ok {
		env["env_vars"] = maps.Clone(vars)
	}
	for _, v := range [][2]string{{varRun, run.ID}, {varName, run.Name}, {varUser, run.User}, {varHost, run.Host},
		{varCreated, run.Created.Format(time.RFC3339Nano)}, {varVersion, run.Version}, {varHash, run.PlanHash}, {varGateway, strings.TrimSpace(gateway)}, {varAsked, endpoint}} {
		if v[1] != "" {
			set(&env, v[0], v[1])
		}
	}
	a.RuntimeEnv = env
	// A judge's own variables take the place of the application's; its processes
	// carry the run's id, too.
	a.Args.LLMConfigs = slices.Clone(a.Args.LLMConfigs)
	for i, c := range a.Args.LLMConfigs {
		if vars, ok := c.RuntimeEnv["env_vars"].(map[string]any); ok {
			env := maps.Clone(c.RuntimeEnv)
			env["env_vars"] = maps.Clone(vars)
			set(&env, varRun, run.ID)
			a.Args.LLMConfigs[i].RuntimeEnv = env
		}
	}
	return a
}

// GatewayFile is the artifact that configures the gateway of a serve plan.
const GatewayFile = "gateway.json"

// GatewayText is that artifact; "" if the plan has none.
func GatewayText(p *plan.Plan) string {
	for _, a := range p.Artifacts {
		if a.Name == GatewayFile {
			return a.Text
		}
	}
	return ""
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
	endpoint, _ := s.Lookup("serve", "endpoint").AsString()
	app = app.For(info, GatewayText(p), endpoint)
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
		if err = run.Write(ServeFile, serving); err != nil {
			err = fmt.Errorf("the application %s was deployed, and that cannot be noted: %w; `genrm stop %s` removes it", app.Name, err, run.ID)
		}
		return run, serving, found, err
	case errors.As(err, &no):
		found.Add(no.found)
		return nil, nil, found, run.Remove()
	case errors.As(err, &refused), errors.As(err, &denied):
		return nil, nil, found, errors.Join(err, run.Remove())
	}
	return run, serving, found, fmt.Errorf("%w; whether it has the application is not known: `genrm status %s` tells", err, run.ID)
}
