package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// route is a judge with its replicas, secrets resolved.
type route struct {
	*Route
	replicas  []*replica
	transport http.RoundTripper
	header    http.Header // of every request to the judge
	next      atomic.Uint32
	stats     stats
}

// replica is one running copy of a judge's engine.
type replica struct {
	base    string       // address up to and with /v1
	probe   string       // address that answers 200 while the engine is well
	load    atomic.Int64 // requests under way
	resting atomic.Int64 // Unix nanoseconds until which it is asked only if no other is there
}

// rest is how long a replica that could not be reached stands back.
const rest = time.Second

// attempts bounds how often a judge is asked for one answer.
const attempts = 3

func newRoute(c *Route, upstreams []string, getenv func(string) string) (*route, error) {
	rt := &route{Route: c, header: http.Header{"Content-Type": {"application/json"}}}
	if c.Engine == "openai" {
		base := strings.TrimRight(c.BaseURL, "/")
		if u, err := url.Parse(base); err != nil || u.Host == "" || u.User != nil {
			return nil, errors.New("base_url is no address of the form https://host/v1") // it is not shown: it may hold a credential
		}
		rt.replicas = []*replica{{base: base, probe: base + "/models"}}
	}
	for _, u := range upstreams {
		rt.replicas = append(rt.replicas, &replica{base: u + "/v1", probe: u + "/health"})
	}
	var errs []error
	if c.APIKey != nil {
		key, err := c.APIKey.resolve(getenv)
		if err != nil {
			errs = append(errs, fmt.Errorf("api_key: %w", err))
		}
		rt.header.Set("Authorization", "Bearer "+key)
	}
	for name, text := range c.DefaultHeaders {
		v, err := text.resolve(getenv)
		if err != nil {
			errs = append(errs, fmt.Errorf("default_headers.%s: %w", name, err))
		}
		rt.header.Set(name, v)
	}
	return rt, errors.Join(errs...)
}

// newTransport has no limit of connections: the load is the clients' to choose.
// Engines of the run are on its own network, where no proxy is asked.
func newTransport(proxy bool) *http.Transport {
	t := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: 1024,
		IdleConnTimeout:     30 * time.Second,
		DisableCompression:  true, // what an engine sends is passed on as it is
	}
	if proxy {
		t.Proxy = http.ProxyFromEnvironment
		t.ForceAttemptHTTP2 = true
	}
	return t
}

// pick returns the replica with the fewest requests under way, the next in turn
// among equals. One that was tried for this request, or that rests, is taken
// only if there is no other.
func (rt *route) pick(tried []*replica) *replica {
	var best *replica
	var bestRank, bestLoad int64
	now := time.Now().UnixNano()
	n := len(rt.replicas)
	start := int(rt.next.Add(1)) % n
	for i := range n {
		r := rt.replicas[(start+i)%n]
		var rank int64
		if r.resting.Load() > now {
			rank = 1
		}
		for _, t := range tried {
			if t == r {
				rank += 2
			}
		}
		if load := r.load.Load(); best == nil || rank < bestRank || rank == bestRank && load < bestLoad {
			best, bestRank, bestLoad = r, rank, load
		}
	}
	return best
}

// ask posts body to a replica and returns its answer, whatever its status. It
// asks again, elsewhere if there is an elsewhere, when no connection or no
// answer came and on 502, 503 and 504: never on another status, and never once
// an answer has begun. The caller closes the answer's body, until which the
// replica counts as loaded.
func (g *Gateway) ask(ctx context.Context, rt *route, path string, body []byte, client http.Header) (*http.Response, error) {
	var tried []*replica
	for n := 1; ; n++ {
		r := rt.pick(tried)
		res, err := rt.post(ctx, r, path, body, client)
		again := err != nil
		if err == nil {
			switch res.StatusCode {
			case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
				again = true
			}
		} else if ctx.Err() == nil {
			r.resting.Store(time.Now().Add(rest).UnixNano())
		}
		if !again || n == attempts || ctx.Err() != nil {
			return res, err
		}
		if res != nil {
			_, _ = io.CopyN(io.Discard, res.Body, 64<<10) // so that the connection is used again
			_ = res.Body.Close()
		}
		rt.stats.retries.Add(1)
		tried = append(tried, r)
		if len(tried) >= len(rt.replicas) {
			g.sleep(ctx, time.Duration(n)*100*time.Millisecond)
		}
	}
}

func (rt *route) post(ctx context.Context, r *replica, path string, body []byte, client http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = rt.header.Clone()
	for _, name := range rt.SessionKeyHeaders {
		for _, v := range client.Values(name) {
			req.Header.Add(name, v)
		}
	}
	r.load.Add(1)
	res, err := rt.transport.RoundTrip(req)
	if err != nil {
		r.load.Add(-1)
		return nil, err
	}
	res.Body = &counted{ReadCloser: res.Body, r: r}
	return res, nil
}

// counted takes a request off its replica's load when its answer is closed.
type counted struct {
	io.ReadCloser
	r    *replica
	done atomic.Bool
}

func (c *counted) Close() error {
	if !c.done.Swap(true) {
		c.r.load.Add(-1)
	}
	return c.ReadCloser.Close()
}

// well reports why a replica is not well, or nil.
func (rt *route) well(ctx context.Context, r *replica) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.probe, nil)
	if err != nil {
		return err
	}
	req.Header = rt.header.Clone()
	res, err := rt.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}
