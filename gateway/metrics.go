package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// stats counts what a judge was asked since the gateway started.
type stats struct {
	requests  atomic.Int64 // all
	errors    atomic.Int64 // the judge failed
	refused   atomic.Int64 // the judge said that the request is at fault, or to wait
	abandoned atomic.Int64 // the client went away first
	retries   atomic.Int64 // further attempts
	running   atomic.Int64
	ended     atomic.Int64
	latency   atomic.Int64 // nanoseconds, summed over ended
	longest   atomic.Int64 // nanoseconds
}

func (s *stats) took(d time.Duration) {
	s.ended.Add(1)
	s.latency.Add(int64(d))
	for {
		was := s.longest.Load()
		if int64(d) <= was || s.longest.CompareAndSwap(was, int64(d)) {
			return
		}
	}
}

type counts struct {
	Engine    string  `json:"engine"`
	Model     string  `json:"model"`
	Replicas  int     `json:"replicas"`
	Requests  int64   `json:"requests"`
	Errors    int64   `json:"errors"`
	Refused   int64   `json:"refused"`
	Abandoned int64   `json:"abandoned"`
	Retries   int64   `json:"retries"`
	Running   int64   `json:"running"`
	Sum       float64 `json:"latency_seconds_sum"`
	Count     int64   `json:"latency_seconds_count"`
	Max       float64 `json:"latency_seconds_max"`
}

func (rt *route) counts() counts {
	s := &rt.stats
	return counts{
		rt.Engine, rt.Model, len(rt.replicas), s.requests.Load(), s.errors.Load(), s.refused.Load(), s.abandoned.Load(), s.retries.Load(), s.running.Load(),
		time.Duration(s.latency.Load()).Seconds(), s.ended.Load(), time.Duration(s.longest.Load()).Seconds(),
	}
}

// metrics is GET /genrm/metrics. Clients of Relax's service read JSON with a
// field for each judge at this path, so JSON is what comes unasked; Prometheus
// asks for its own format and gets it.
func (g *Gateway) metrics(w http.ResponseWriter, r *http.Request) {
	if accept := r.Header.Get("Accept"); strings.Contains(accept, "text/plain") || strings.Contains(accept, "openmetrics") {
		g.prometheus(w)
		return
	}
	each := &ordered{}
	for _, rt := range g.routes {
		each.add(rt.RouteKey, rt.counts())
	}
	reply(w, http.StatusOK, struct {
		Service   string   `json:"service"`
		Uptime    float64  `json:"uptime_seconds"`
		Instances *ordered `json:"instances"`
	}{"genrm", time.Since(g.started).Seconds(), each})
}

func (g *Gateway) prometheus(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	var b strings.Builder
	family := func(name, kind, help string, value func(counts) any) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, rt := range g.routes {
			fmt.Fprintf(&b, "%s{route_key=%q} %v\n", name, rt.RouteKey, value(rt.counts()))
		}
	}
	family("genrm_requests_total", "counter", "Requests to a judge.", func(c counts) any { return c.Requests })
	family("genrm_errors_total", "counter", "Requests for which the judge failed.", func(c counts) any { return c.Errors })
	family("genrm_refused_total", "counter", "Requests that the judge refused.", func(c counts) any { return c.Refused })
	family("genrm_abandoned_total", "counter", "Requests whose client went away.", func(c counts) any { return c.Abandoned })
	family("genrm_retries_total", "counter", "Further attempts.", func(c counts) any { return c.Retries })
	family("genrm_running", "gauge", "Requests under way.", func(c counts) any { return c.Running })
	family("genrm_latency_seconds_sum", "counter", "Seconds of all ended requests.", func(c counts) any { return c.Sum })
	family("genrm_latency_seconds_count", "counter", "Ended requests.", func(c counts) any { return c.Count })
	_, _ = w.Write([]byte(b.String()))
}
