package node

import (
	"context"
	"net"
	neturl "net/url"
	"os"
	"strings"
	"time"

	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/rundir"
)

// await watches a started process get ready, and then that it stays well.
func (s *supervisor) await(t *task) {
	if t.p.Ready == nil {
		s.ready(t)
		return
	}
	ctx, cancel := context.WithCancel(s.ctx)
	t.cancel = cancel
	base, err := s.graph.URL(t.p, t.p.Ready.URL, s.context(graph.Masked))
	if err != nil {
		s.lost(t, err.Error())
		return
	}
	prober := newProber()
	switch t.p.Ready.Probe {
	case graph.ProbeRemote:
		prober.key = s.gatewayKey()
	case graph.ProbeRay:
		prober.key = s.token()
	}
	go func() {
		err := prober.awaitReady(ctx, t.p, base, func(what string) {
			s.post(func() { t.st.Awaits, s.dirty = what, true })
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.post(func() { s.lost(t, err.Error()) })
			return
		}
		s.post(func() { s.ready(t) })
		if t.p.Live == nil {
			return
		}
		address, err := s.graph.URL(t.p, t.p.Live.URL, s.context(graph.Masked))
		if err == nil {
			err = prober.watch(ctx, t.p, address)
		}
		if err != nil {
			s.post(func() { s.lost(t, err.Error()) })
		}
	}()
}

// token is that of the run's Ray; on other nodes than the first it is read.
func (s *supervisor) token() string {
	if s.rayToken == "" {
		data, _ := os.ReadFile(s.Run.Path(graph.TokenFile)) // without one Ray answers what is wrong
		s.rayToken = string(data)
	}
	return s.rayToken
}

// gatewayKey is the key that clients of the gateway send, or "".
func (s *supervisor) gatewayKey() string {
	var c struct {
		APIKey struct{ Env, File string } `json:"api_key"`
	}
	if s.Run.Read(rundir.Artifacts+"/gateway.json", &c) != nil {
		return ""
	}
	var key string
	switch {
	case c.APIKey.Env != "":
		key, _ = s.secret("env", c.APIKey.Env)
	case c.APIKey.File != "":
		key, _ = s.secret("file", c.APIKey.File)
	}
	return key
}

func (s *supervisor) ready(t *task) {
	if t.st.State != rundir.Starting {
		return
	}
	now := s.Now().UTC()
	t.st.State, t.st.ReadyAt, t.st.Awaits, t.st.ReadyAfter, s.dirty = rundir.Ready, &now, "", since(t.began), true
	s.event("process.ready", t, "")
}

func since(t time.Time) float64 { return float64(time.Since(t).Milliseconds()) / 1000 }

// progress notices that the run as a whole is ready.
func (s *supervisor) progress() {
	if !s.lead || s.status.State != rundir.Starting || s.end != nil {
		return
	}
	for _, t := range s.tasks {
		if t.st.State != rundir.Ready {
			return
		}
	}
	if s.graph.Peer("gateway") != nil {
		e, err := s.endpoints()
		if err == nil {
			err = s.Run.Write(rundir.EndpointsFile, e)
		}
		if err != nil {
			s.settle(rundir.Failed, ExitService, "the endpoints could not be written: "+err.Error())
			return
		}
	}
	now := s.Now().UTC()
	s.status.State, s.status.ReadyAt, s.status.ReadyAfter, s.dirty = rundir.Ready, &now, since(s.began), true
	s.event("run.ready", nil, "")
}

// endpoints says where the judges are asked.
func (s *supervisor) endpoints() (*rundir.Endpoints, error) {
	gateway := s.graph.Peer("gateway")
	c := s.context(graph.Masked)
	url, err := s.graph.URL(gateway, gateway.Ready.URL, c)
	if err != nil {
		return nil, err
	}
	url = strings.TrimSuffix(url, "/health")
	e := &rundir.Endpoints{RunID: s.Run.ID, Gateway: rundir.Gateway{URL: url}, FailurePolicy: s.graph.FailurePolicy}
	var config struct {
		Host   string            `json:"host"`
		APIKey map[string]string `json:"api_key"`
	}
	if err := s.Run.Read(rundir.Artifacts+"/gateway.json", &config); err != nil {
		return nil, err
	}
	e.Gateway.APIKey = config.APIKey
	if ip := net.ParseIP(strings.Trim(config.Host, "[]")); s.Name != "" && ip.IsUnspecified() {
		at, err := neturl.Parse(url)
		if err != nil {
			return nil, err
		}
		at.Host = net.JoinHostPort(s.Name, at.Port())
		url, e.Gateway.URL = at.String(), at.String()
	}
	for _, p := range s.graph.Processes {
		if p.RouteKey == "" || p.NodeRank > 0 {
			continue
		}
		in, ok := e.Instances.Get(p.RouteKey)
		if !ok {
			in = rundir.Endpoint{URL: url, Model: p.RouteKey, Engine: p.Engine, FailurePolicy: s.graph.FailurePolicy}
		}
		if p.Role == graph.Engine {
			base, err := s.graph.URL(p, p.Ready.URL, c)
			if err != nil {
				return nil, err
			}
			in.Replicas = append(in.Replicas, base)
		}
		e.Instances.Set(p.RouteKey, in)
	}
	return e, nil
}
