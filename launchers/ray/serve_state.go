package ray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/rundir"
)

// ServeSession is the access to the application of a run.
type ServeSession struct {
	run     *rundir.Run
	serving Serving
	plan    *plan.Plan // nil for a run that was launched from another machine
	c       *client
	headers http.Header // of ray.headers, without the token of the environment, which is for the dashboard alone

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
	getenv := bind.Getenv(env)
	h, err := headers(s.block(), getenv)
	if err != nil {
		return nil, err
	}
	s.headers, err = headers(s.block(), func(name string) string {
		if strings.HasPrefix(name, "RAY_AUTH_TOKEN") {
			return ""
		}
		return getenv(name)
	})
	s.c = newClient(s.serving.Address, h, version)
	return s, err
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
	all, err := s.c.served(ctx)
	if err != nil {
		return "", nil, err
	}
	base := all.Applications[s.serving.Application].vars()[varAsked]
	stated := base != ""
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
	var h http.Header // what guards the dashboard's host may guard the application, too
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
		if text := GatewayText(s.plan); text != "" {
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
