package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/rundir"
)

// prober asks processes how they are. It uses no proxy and keeps no connection.
type prober struct {
	http *http.Client
	key  string // of the gateway, if it wants one
}

func newProber() *prober {
	return &prober{http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil}}}
}

// refused is an answer that asking again does not change: a client's error.
type refused struct{ text string }

func (e refused) Error() string { return e.text }

// ready makes one probe. A nil error means ready.
func (p *prober) ready(ctx context.Context, pr *graph.Process, base string) error {
	switch pr.Ready.Probe {
	case graph.ProbeJudge:
		if err := p.get(ctx, base+"/health", nil); err != nil {
			return fmt.Errorf("health: %w", err)
		}
		return p.token(ctx, base, pr.Model)
	case graph.ProbeRay:
		return p.nodes(ctx, base, pr.Ready.Nodes)
	case graph.ProbeRemote:
		return p.remote(ctx, base, pr.RouteKey)
	case graph.ProbeRun:
		return runReady(base)
	}
	return p.get(ctx, base, nil)
}

// runReady wants another run to be ready.
func runReady(dir string) error {
	run, err := rundir.Open(dir)
	if err != nil {
		return err
	}
	st, err := run.Status()
	switch {
	case err != nil:
		return err
	case st.State == rundir.Ready:
		return nil
	case st.State.Ended():
		return refused{fmt.Sprintf("run %s has ended: %s", run.ID, st.State)}
	}
	return fmt.Errorf("run %s is %s", run.ID, st.State)
}

// get wants status 200, and decodes the answer into v unless that is nil.
func (p *prober) get(ctx context.Context, address string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	return p.do(req, v)
}

func (p *prober) do(req *http.Request, v any) error {
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	res, err := p.http.Do(req)
	if err != nil {
		return plain(err)
	}
	defer func() { _ = res.Body.Close() }() // only read
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	switch {
	case res.StatusCode >= 400 && res.StatusCode < 500 && !slices.Contains(later, res.StatusCode):
		return refused{fmt.Sprintf("status %d: %s", res.StatusCode, short(body))}
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("status %d: %s", res.StatusCode, short(body))
	case err != nil:
		return plain(err)
	case v == nil:
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("an answer that is no JSON: %s", short(body))
	}
	return nil
}

// later are the client's errors that mean "not now".
var later = []int{http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests}

// plain is an error of the network in few words.
func plain(err error) error {
	var u *url.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New("it does not listen yet")
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("no answer in time")
	case errors.As(err, &u):
		return u.Err
	}
	return err
}

func short(b []byte) string {
	s := strings.Join(strings.Fields(string(b)), " ")
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200]) + " …"
	}
	return s
}

// token generates one token under the served name: health alone is answered by
// engines whose workers are gone, and by one that serves another model.
func (p *prober) token(ctx context.Context, base, model string) error {
	var out struct {
		Choices []json.RawMessage `json:"choices"`
		Usage   struct {
			CompletionTokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	body, err := json.Marshal(map[string]any{
		"model": model, "max_tokens": 1, "temperature": 0,
		"messages": []any{map[string]string{"role": "user", "content": "1"}},
	})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if err := p.do(req, &out); err != nil {
		return wrapped("a first token", err)
	}
	if len(out.Choices) == 0 || out.Usage.CompletionTokens < 1 {
		return errors.New("a first token: the answer has none")
	}
	return nil
}

func wrapped(what string, err error) error {
	var r refused
	if errors.As(err, &r) {
		return refused{what + ": " + r.text}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// nodes wants a Ray head to count n living nodes.
// Source: GET /nodes?view=summary of the dashboard of Ray 2.60.0.
func (p *prober) nodes(ctx context.Context, base string, n int) error {
	var out struct {
		Data struct {
			Summary []struct {
				Raylet struct {
					State string `json:"state"`
				} `json:"raylet"`
			} `json:"summary"`
		} `json:"data"`
	}
	if err := p.get(ctx, base+"/nodes?view=summary", &out); err != nil {
		return fmt.Errorf("the nodes of Ray: %w", err)
	}
	alive := 0
	for _, s := range out.Data.Summary {
		if s.Raylet.State == "ALIVE" {
			alive++
		}
	}
	if alive < n {
		return fmt.Errorf("%d of %d Ray nodes are there", alive, n)
	}
	return nil
}

// remote asks the gateway about an endpoint that somebody else runs.
func (p *prober) remote(ctx context.Context, base, key string) error {
	var out struct {
		Instances map[string]struct{ Status, Error string } `json:"instances"`
	}
	if err := p.get(ctx, base+"/genrm/health", &out); err != nil {
		return fmt.Errorf("the gateway's health: %w", err)
	}
	if in, ok := out.Instances[key]; !ok {
		return errors.New("the gateway does not know it")
	} else if in.Status != "healthy" {
		return errors.New(in.Error)
	}
	return nil
}

// awaitReady probes until the process is ready. progress hears each new answer.
// The error is what a user reads: what was awaited, for how long, and the field
// that gives more time.
func (p *prober) awaitReady(ctx context.Context, pr *graph.Process, base string, progress func(string)) error {
	r := pr.Ready
	limit := seconds(r.Timeout)
	whole, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	every := time.NewTicker(seconds(r.Interval)) // from start to start: a probe's own time delays nothing
	defer every.Stop()
	said, refusals := "no answer yet", 0
	var refusedSince time.Time
	for {
		probe, cancel := context.WithTimeout(whole, seconds(r.ProbeTimeout))
		err := p.ready(probe, pr, base)
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if whole.Err() == nil {
			var no refused
			if errors.As(err, &no) {
				if refusals++; refusals == 1 {
					refusedSince = time.Now()
				}
				if refusals >= 5 && time.Since(refusedSince) > refusalPatience {
					return fmt.Errorf("it will not get ready: %w", err)
				}
			} else {
				refusals = 0
			}
			if err.Error() != said {
				said = err.Error()
				progress(said)
			}
		}
		select {
		case <-whole.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("not ready %s after its start (%s); if it only needs longer, raise %s", limit, said, r.Field)
		case <-every.C:
		}
	}
}

// refusalPatience is how long an engine may refuse its first token: a server may
// answer before it knows its model. A variable for tests.
var refusalPatience = 10 * time.Second

// watch probes a ready process until it counts as dead, and returns why; or
// until ctx ends, and returns nil. Ray has to have the nodes that it had when it
// got ready.
func (p *prober) watch(ctx context.Context, pr *graph.Process, address string) error {
	l := pr.Live
	for failures := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(seconds(l.Interval)):
		}
		probe, cancel := context.WithTimeout(ctx, seconds(l.ProbeTimeout))
		var err error
		switch {
		case pr.Ready != nil && pr.Ready.Probe == graph.ProbeRay:
			err = p.nodes(probe, address, pr.Ready.Nodes)
		case pr.Ready != nil && pr.Ready.Probe == graph.ProbeRun:
			if err := runReady(address); err != nil && ctx.Err() == nil {
				cancel()
				return err
			}
		default:
			err = p.get(probe, address, nil)
		}
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			failures = 0
		default:
			if failures++; failures >= l.FailureThreshold {
				return fmt.Errorf("its health check failed %d times in a row (%w); if it is only slow, raise %s", failures, err, l.Field)
			}
		}
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
