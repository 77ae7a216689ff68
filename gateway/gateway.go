// Package gateway owns the GenRM service API in front of the judges of a serve
// workload: it chooses a judge by route_key, a replica by load, and passes the
// question and the answer on.
//
// It may not start or stop engines, decide what is served (gateway.json says it),
// make up an answer (a judge that fails is an error, never a score), keep what
// passes through, or print a secret.
package gateway

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"genrm.dev/genrm/gateway/internal/httpd"
)

// Options is what the gateway has to be told besides its file.
type Options struct {
	Upstreams map[string][]string                  // by route_key: base addresses of the replicas of vllm, sglang and sim
	Fronts    map[string]Front                     // by route_key, in place of its Upstreams: a server that passes requests on to the judge
	Getenv    func(string) string                  // resolves secrets
	Timeout   time.Duration                        // of a judge's whole answer, retries included; 0 means [DefaultTimeout]
	Transport http.RoundTripper                    // to the judges; nil means one of its own
	sleep     func(context.Context, time.Duration) // between attempts; tests replace it
}

// Front is an OpenAI-style server of several models in front of a judge, such as
// the ingress of Ray Serve LLM. It is well when it lists its models.
type Front struct {
	Base   string      // address before /v1
	Header http.Header // of every request
}

// DefaultTimeout bounds an answer where [Options] does not.
const DefaultTimeout = 30 * time.Minute

// MaxBody is the largest request that is taken, and the largest answer of a
// judge that is read, in bytes. Streamed answers have no limit.
const MaxBody = 32 << 20

// Gateway is an [http.Handler]. It is safe for use by several goroutines.
type Gateway struct {
	mux     *http.ServeMux
	routes  []*route
	byKey   map[string]*route
	byModel map[string][]*route
	policy  string
	key     *[sha256.Size]byte // hash of the clients' key; nil when none is wanted
	timeout time.Duration
	sleep   func(context.Context, time.Duration)
	started time.Time
}

// New builds a gateway and resolves its secrets. The error holds everything
// that is wrong: judges without an address, addresses of judges that there are
// not, secrets that cannot be read.
func New(c *Config, o Options) (*Gateway, error) {
	g := &Gateway{
		mux: http.NewServeMux(), byKey: map[string]*route{}, byModel: map[string][]*route{},
		policy: c.FailurePolicy, timeout: o.Timeout, sleep: o.sleep, started: time.Now(),
	}
	if g.timeout <= 0 {
		g.timeout = DefaultTimeout
	}
	if g.sleep == nil {
		g.sleep = sleep
	}
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	var errs []error
	if c.APIKey != nil {
		key, err := c.APIKey.resolve(o.Getenv)
		if err != nil {
			errs = append(errs, fmt.Errorf("api_key: %w", err))
		}
		sum := sha256.Sum256([]byte(key))
		g.key = &sum
	}
	local, remote := o.Transport, o.Transport
	if o.Transport == nil {
		local, remote = newTransport(false), newTransport(true)
	}
	var missing []string
	for i := range c.Routes {
		rt, err := newRoute(&c.Routes[i], o.Upstreams[c.Routes[i].RouteKey], o.Getenv)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Routes[i].RouteKey, err))
			continue
		}
		rt.transport = local
		if rt.Engine == "openai" {
			rt.transport = remote
		}
		if front, ok := o.Fronts[rt.RouteKey]; ok && rt.Engine != "openai" {
			base := strings.TrimRight(front.Base, "/") + "/v1"
			rt.replicas = []*replica{{base: base, probe: base + "/models"}}
			for name, values := range front.Header {
				rt.header[name] = values
			}
			rt.transport = remote
		}
		if len(rt.replicas) == 0 {
			missing = append(missing, rt.RouteKey)
		}
		g.routes = append(g.routes, rt)
		g.byKey[rt.RouteKey] = rt
		g.byModel[rt.Model] = append(g.byModel[rt.Model], rt)
	}
	if len(missing) > 0 {
		errs = append(errs, &NoAddress{missing})
	}
	var strangers []string
	for key := range o.Upstreams {
		if !slices.ContainsFunc(c.Routes, func(r Route) bool { return r.RouteKey == key && r.Engine != "openai" }) {
			strangers = append(strangers, key)
		}
	}
	if slices.Sort(strangers); len(strangers) > 0 {
		errs = append(errs, fmt.Errorf("addresses for %s, which the configuration does not have or has with a base_url", strings.Join(strangers, ", ")))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	g.mux.HandleFunc("POST /genrm/generate", g.generate)
	g.mux.HandleFunc("GET /genrm/health", g.health)
	g.mux.HandleFunc("GET /genrm/metrics", g.metrics)
	g.mux.HandleFunc("GET /v1/models", g.models)
	g.mux.HandleFunc("POST /v1/chat/completions", g.chat)
	g.mux.HandleFunc("POST /v1/responses", g.responses)
	return g, nil
}

// NoAddress is the error for judges whose engines have no address.
type NoAddress struct{ RouteKeys []string }

func (e *NoAddress) Error() string {
	return "no address is known of the judges " + strings.Join(e.RouteKeys, ", ")
}

// ServeHTTP answers one request. GET /health says without a key that the
// gateway lives; everything else wants the key, if there is one.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/health" {
		w.WriteHeader(http.StatusOK)
		return
	}
	if !g.admitted(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		fail(w, http.StatusUnauthorized, problem{Message: "this gateway wants its API key: send the header Authorization: Bearer KEY", Type: "authentication_error"})
		return
	}
	if _, pattern := g.mux.Handler(r); pattern == "" {
		g.unknown(w, r)
		return
	}
	g.mux.ServeHTTP(w, r)
}

// paths are the routes with their methods, for answers to those who miss them.
var paths = []struct{ path, method string }{
	{"/genrm/generate", "POST"}, {"/genrm/health", "GET"}, {"/genrm/metrics", "GET"},
	{"/v1/models", "GET"}, {"/v1/chat/completions", "POST"}, {"/v1/responses", "POST"},
}

func (g *Gateway) unknown(w http.ResponseWriter, r *http.Request) {
	var all []string
	for _, p := range paths {
		if p.path == r.URL.Path {
			w.Header().Set("Allow", p.method)
			fail(w, http.StatusMethodNotAllowed, problem{Message: p.path + " takes " + p.method, Type: "invalid_request_error"})
			return
		}
		all = append(all, p.method+" "+p.path)
	}
	fail(w, http.StatusNotFound, problem{Message: "nothing is served here; there are " + strings.Join(all, ", "), Type: "not_found"})
}

// admitted compares hashes, so that neither length nor content of the key shows
// in the time that it takes.
func (g *Gateway) admitted(r *http.Request) bool {
	if g.key == nil {
		return true
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	return subtle.ConstantTimeCompare(sum[:], g.key[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}

// DefaultKey is the route_key of requests that give none, where there are
// several judges.
const DefaultKey = "__default__"

// route finds the judge of a route_key as Relax's service does: none and a sole
// judge mean that judge, none or "" otherwise means [DefaultKey].
// Source: relax/components/genrm.py at 1875a69d, _resolve_instance_key.
func (g *Gateway) route(key *string) (*route, error) {
	if key == nil && len(g.routes) == 1 {
		return g.routes[0], nil
	}
	k := DefaultKey
	if key != nil && *key != "" {
		k = *key
	}
	if rt, ok := g.byKey[k]; ok {
		return rt, nil
	}
	var known []string
	for _, rt := range g.routes {
		known = append(known, repr(rt.RouteKey))
	}
	return nil, unknownKey("No GenRM instance registered for route_key=" + repr(k) + "; available=[" + strings.Join(known, ", ") + "]")
}

// unknownKey is the service's own text, on which clients rely.
type unknownKey string

func (e unknownKey) Error() string { return string(e) }

// repr writes a string as Python does, whose text for an unknown route_key this
// API keeps.
func repr(s string) string {
	q := `'`
	if strings.Contains(s, `'`) && !strings.Contains(s, `"`) {
		q = `"`
	}
	var b strings.Builder
	b.WriteString(q)
	for _, r := range s {
		switch {
		case r == '\\' || string(r) == q:
			b.WriteString(`\` + string(r))
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + q
}

// problem is an error as clients see it, in the form of OpenAI's API.
type problem struct {
	Message       string `json:"message"`
	Type          string `json:"type"`
	Code          int    `json:"code"` // the HTTP status
	RouteKey      string `json:"route_key,omitempty"`
	FailurePolicy string `json:"failure_policy,omitempty"` // with a judge's failure: what the experiment wants clients to do
}

func fail(w http.ResponseWriter, status int, p problem) {
	p.Code = status
	reply(w, status, map[string]problem{"error": p})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // a client that went away is nobody to report to
}

// body reads a request whole and as JSON, or answers what is wrong with it.
func body(w http.ResponseWriter, r *http.Request, v any) bool {
	data, err := httpd.Body(w, r, MaxBody)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		fail(w, http.StatusRequestEntityTooLarge, problem{Message: fmt.Sprintf("the request is larger than %d bytes", MaxBody), Type: "invalid_request_error"})
		return false
	case err != nil:
		fail(w, http.StatusBadRequest, problem{Message: "the request did not arrive whole", Type: "invalid_request_error"})
		return false
	}
	if err := json.Unmarshal(data, v); err != nil {
		fail(w, http.StatusBadRequest, problem{Message: "the request is not the JSON that is wanted here: " + err.Error(), Type: "invalid_request_error"})
		return false
	}
	return true
}

// Serve answers on l until ctx ends; requests under way then get the grace time.
func (g *Gateway) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	return httpd.Serve(ctx, l, g, grace, nil)
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
