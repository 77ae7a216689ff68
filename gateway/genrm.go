package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// ownNames may not be sampling parameters: the gateway sets them.
var ownNames = []string{"model", "messages", "stream", "n"}

// generate is POST /genrm/generate: {messages, sampling_params?, route_key?} →
// {response}. Like Relax's service it passes over fields that it does not know,
// and takes the blanks around an answer away.
// Source: relax/components/genrm.py at 1875a69d.
func (g *Gateway) generate(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Messages json.RawMessage `json:"messages"`
		Sampling fields          `json:"sampling_params"`
		RouteKey *string         `json:"route_key"`
	}
	if !body(w, r, &in) {
		return
	}
	if !isList(in.Messages) {
		fail(w, http.StatusUnprocessableEntity, problem{Message: `messages is missing or no list: want [{"role": "user", "content": "…"}]`, Type: "invalid_request_error"})
		return
	}
	for _, name := range ownNames {
		if _, ok := in.Sampling[name]; ok {
			fail(w, http.StatusUnprocessableEntity, problem{Message: "sampling_params." + name + " cannot be set", Type: "invalid_request_error"})
			return
		}
	}
	rt, err := g.route(in.RouteKey)
	if err != nil {
		fail(w, http.StatusNotFound, problem{Message: err.Error(), Type: "not_found"})
		return
	}
	x := g.exchange(rt, w, r)
	defer x.end()
	request := fields{"messages": in.Messages}
	rt.sample(request, in.Sampling)
	if c, ok := x.verdict(request); ok {
		reply(w, http.StatusOK, map[string]string{"response": strings.TrimSpace(*c.Choices[0].Message.Content)})
	}
}

func isList(data json.RawMessage) bool {
	var list []json.RawMessage
	return json.Unmarshal(data, &list) == nil && len(list) > 0
}

// probeTime bounds how long a judge may take to say that it is well.
const probeTime = 2 * time.Second

type health struct {
	Status string `json:"status"` // healthy or unhealthy
	Error  string `json:"error,omitempty"`
}

// health is GET /genrm/health: every replica of every judge is asked. The
// status is 200 also when some are not well, as with Relax's service: the body
// says which. Source: relax/components/genrm.py at 1875a69d.
func (g *Gateway) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTime)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([][]error, len(g.routes))
	for i, rt := range g.routes {
		errs[i] = make([]error, len(rt.replicas))
		for k, rep := range rt.replicas {
			wg.Go(func() { errs[i][k] = rt.well(ctx, rep) })
		}
	}
	wg.Wait()
	overall := "healthy"
	each := &ordered{}
	for i, rt := range g.routes {
		h := health{Status: "healthy"}
		var bad []string
		for k, err := range errs[i] {
			if err != nil {
				bad = append(bad, fmt.Sprintf("replica %d: %v", k, err))
			}
		}
		if len(bad) > 0 {
			h = health{"unhealthy", strings.Join(bad, "; ")}
			overall = "unhealthy"
		}
		each.add(rt.RouteKey, h)
	}
	reply(w, http.StatusOK, struct {
		Status    string   `json:"status"`
		Service   string   `json:"service"`
		Instances *ordered `json:"instances"`
	}{overall, "genrm", each})
}

// ordered is a JSON object in the order of the file.
type ordered struct{ buf []byte }

func (o *ordered) add(key string, v any) {
	k, _ := json.Marshal(key)
	data, _ := json.Marshal(v)
	if len(o.buf) > 0 {
		o.buf = append(o.buf, ',')
	}
	o.buf = append(append(append(o.buf, k...), ':'), data...)
}

// MarshalJSON writes the object.
func (o *ordered) MarshalJSON() ([]byte, error) {
	return append(append([]byte{'{'}, o.buf...), '}'), nil
}
