// Package sim owns the scripted judge: a program that speaks vLLM's HTTP surface
// and answers from a script, so that clients, gateways and supervisors can be
// tried without a model or a GPU, faults included.
//
// It may not guess: what the script does not say is an error, never an answer.
// The same requests in the same order get the same answers and the same faults.
package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"genrm.dev/genrm/gateway/internal/httpd"
)

// Script is what the judge does, as a serve plan carries it.
type Script struct {
	Model    string  `json:"model"`              // the name that it serves
	Constant *string `json:"constant,omitempty"` // always this answer
	Echo     bool    `json:"echo,omitempty"`     // the last message
	Match    []Match `json:"match,omitempty"`    // the first pattern that the last message matches

	Latency     float64 `json:"latency,omitempty"`      // seconds before each answer
	FailureRate float64 `json:"failure_rate,omitempty"` // share of requests that fail with status 500, evenly spread
	StartupTime float64 `json:"startup_time,omitempty"` // seconds before it listens
	CrashAfter  int64   `json:"crash_after,omitempty"`  // requests after which it ends; 0 means never
}

// Match is one line of a script.
type Match struct {
	Pattern string `json:"pattern"` // RE2
	Answer  string `json:"answer"`
}

// ParseScript reads a script. It refuses fields that it does not know, a script
// with no way to answer or several, and patterns that are none.
func ParseScript(data []byte) (*Script, error) {
	s := new(Script)
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(s); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("text after the end of the script")
	}
	var errs []error
	ways := 0
	for _, way := range []bool{s.Constant != nil, s.Echo, len(s.Match) > 0} {
		if way {
			ways++
		}
	}
	if ways != 1 {
		errs = append(errs, fmt.Errorf("%d of constant, echo and match are given: want one", ways))
	}
	if s.Model == "" {
		errs = append(errs, errors.New("no model"))
	}
	for _, x := range []struct {
		name     string
		v, limit float64
	}{{"latency", s.Latency, 1e6}, {"failure_rate", s.FailureRate, 1}, {"startup_time", s.StartupTime, 1e6}, {"crash_after", float64(s.CrashAfter), math.MaxInt64}} {
		if x.v < 0 || x.v > x.limit {
			errs = append(errs, fmt.Errorf("%s is %v: want 0 to %v", x.name, x.v, x.limit))
		}
	}
	for i, m := range s.Match {
		if _, err := regexp.Compile(m.Pattern); err != nil {
			errs = append(errs, fmt.Errorf("match[%d]: %w", i, err))
		}
	}
	return s, errors.Join(errs...)
}

// ErrCrash is how a judge ends whose script says crash_after.
var ErrCrash = errors.New("crashed, as crash_after in its script says")

// Judge is a running script, an [http.Handler]. It is safe for use by several
// goroutines.
type Judge struct {
	script   *Script
	patterns []*regexp.Regexp
	mux      *http.ServeMux
	born     time.Time
	crash    chan error

	arrived, running, succeeded, failed, promptTokens, answerTokens atomic.Int64
}

// New makes a judge of a script that [ParseScript] took.
func New(s *Script) *Judge {
	j := &Judge{script: s, mux: http.NewServeMux(), born: time.Now(), crash: make(chan error, 1)}
	for _, m := range s.Match {
		j.patterns = append(j.patterns, regexp.MustCompile(m.Pattern))
	}
	j.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	j.mux.HandleFunc("GET /ping", func(http.ResponseWriter, *http.Request) {})
	j.mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { reply(w, 200, map[string]string{"version": "sim"}) })
	j.mux.HandleFunc("GET /v1/models", j.models)
	j.mux.HandleFunc("GET /metrics", j.metrics)
	j.mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) { j.complete(w, r, true) })
	j.mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) { j.complete(w, r, false) })
	return j
}

// Startup waits as long as the script says that the judge takes to load.
func (j *Judge) Startup(ctx context.Context) error { return wait(ctx, j.script.StartupTime) }

// Serve answers on l until ctx ends, or returns [ErrCrash], cutting off
// everything, when the script says so.
func (j *Judge) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	return httpd.Serve(ctx, l, j, grace, j.crash)
}

// ServeHTTP answers one request.
func (j *Judge) ServeHTTP(w http.ResponseWriter, r *http.Request) { j.mux.ServeHTTP(w, r) }

func wait(ctx context.Context, seconds float64) error {
	if seconds <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *Judge) models(w http.ResponseWriter, _ *http.Request) {
	reply(w, 200, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": j.script.Model, "object": "model", "created": j.born.Unix(), "owned_by": "vllm", "root": j.script.Model, "parent": nil, "max_model_len": 1 << 20,
	}}})
}

// metrics has the families of vLLM's that say whether it works.
func (j *Judge) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, m := range []struct {
		name, kind, labels string
		n                  int64
	}{
		{"vllm:num_requests_running", "gauge", "", j.running.Load()},
		{"vllm:num_requests_waiting", "gauge", "", 0},
		{"vllm:request_success_total", "counter", `,finished_reason="stop"`, j.succeeded.Load()},
		{"vllm:prompt_tokens_total", "counter", "", j.promptTokens.Load()},
		{"vllm:generation_tokens_total", "counter", "", j.answerTokens.Load()},
		{"sim:failures_total", "counter", "", j.failed.Load()},
	} {
		fmt.Fprintf(w, "# TYPE %s %s\n%s{model_name=%q%s} %d\n", m.name, m.kind, m.name, j.script.Model, m.labels, m.n)
	}
}

// request is what is read of a request for a completion.
type request struct {
	Model     *string         `json:"model"`
	Messages  []message       `json:"messages"`
	Prompt    json.RawMessage `json:"prompt"`
	Stream    bool            `json:"stream"`
	Options   *streamOptions  `json:"stream_options"`
	MaxTokens *int            `json:"max_tokens"`
	MaxNew    *int            `json:"max_completion_tokens"`
	N         *int            `json:"n"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// text is the content of a message: a text, or the text parts of a list.
func text(content json.RawMessage) (string, bool) {
	var s string
	if len(content) > 0 && json.Unmarshal(content, &s) == nil {
		return s, true
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if len(content) == 0 || json.Unmarshal(content, &parts) != nil {
		return "", false
	}
	for _, p := range parts {
		s += p.Text
	}
	return s, true
}

const maxBody = 32 << 20

// complete answers a chat completion, or a plain one.
func (j *Judge) complete(w http.ResponseWriter, r *http.Request, chat bool) {
	n := j.arrived.Add(1)
	if c := j.script.CrashAfter; c > 0 && n > c {
		select {
		case j.crash <- ErrCrash:
		default:
		}
		panic(http.ErrAbortHandler)
	}
	j.running.Add(1)
	defer j.running.Add(-1)
	data, err := httpd.Body(w, r, maxBody)
	if err != nil {
		refuse(w, 400, "BadRequestError", "the request is too large or did not arrive whole")
		return
	}
	var in request
	if err := json.Unmarshal(data, &in); err != nil {
		refuse(w, 400, "BadRequestError", err.Error())
		return
	}
	if in.Model != nil && *in.Model != j.script.Model {
		refuse(w, 404, "NotFoundError", fmt.Sprintf("The model `%s` does not exist.", *in.Model))
		return
	}
	asked, ok := "", false
	switch {
	case !chat:
		asked, ok = text(in.Prompt)
	case len(in.Messages) > 0:
		asked, ok = text(in.Messages[len(in.Messages)-1].Content)
	}
	if !ok {
		refuse(w, 400, "BadRequestError", "there is no text to answer: want messages with a text content, or for plain completions a prompt")
		return
	}
	if wait(r.Context(), j.script.Latency) != nil {
		return // the client went away
	}
	// The n-th request fails when n times the rate passes a whole number.
	if rate := j.script.FailureRate; math.Floor(float64(n)*rate) > math.Floor(float64(n-1)*rate) {
		j.failed.Add(1)
		refuse(w, 500, "InternalServerError", "failed, as failure_rate in its script says")
		return
	}
	answer, ok := j.answer(asked)
	if !ok {
		j.failed.Add(1)
		refuse(w, 500, "InternalServerError", "no pattern of the script matches the last message")
		return
	}
	pieces := words(answer)
	finish, most := "stop", in.MaxTokens
	if in.MaxNew != nil {
		most = in.MaxNew
	}
	if most != nil && *most < 1 {
		refuse(w, 400, "BadRequestError", fmt.Sprintf("max_tokens must be at least 1, got %d.", *most))
		return
	}
	if most != nil && len(pieces) > *most {
		pieces, finish = pieces[:*most], "length"
	}
	copies := 1
	if in.N != nil {
		copies = *in.N
	}
	if copies < 1 || copies > 128 {
		refuse(w, 400, "BadRequestError", fmt.Sprintf("n must be from 1 to 128, got %d.", copies))
		return
	}
	prompt := 0
	for _, m := range in.Messages {
		if s, ok := text(m.Content); ok {
			prompt += len(words(s))
		}
	}
	if !chat {
		prompt = len(words(asked))
	}
	j.promptTokens.Add(int64(prompt))
	j.answerTokens.Add(int64(len(pieces) * copies))
	j.succeeded.Add(1)
	o := output{
		id: fmt.Sprintf("chatcmpl-%016x", n), kind: "chat.completion", model: j.script.Model, created: time.Now().Unix(), pieces: pieces, finish: finish, copies: copies,
		usage: map[string]int{"prompt_tokens": prompt, "completion_tokens": len(pieces) * copies, "total_tokens": prompt + len(pieces)*copies},
	}
	if !chat {
		o.id, o.kind = fmt.Sprintf("cmpl-%016x", n), "text_completion"
	}
	if in.Stream {
		o.stream(w, chat, in.Options != nil && in.Options.IncludeUsage)
		return
	}
	o.whole(w, chat)
}

func (j *Judge) answer(asked string) (string, bool) {
	switch s := j.script; {
	case s.Constant != nil:
		return *s.Constant, true
	case s.Echo:
		return asked, true
	}
	for i, p := range j.patterns {
		if p.MatchString(asked) {
			return j.script.Match[i].Answer, true
		}
	}
	return "", false
}

// words splits a text into what counts as its tokens: each word with the blanks
// before it.
func words(s string) []string {
	var out []string
	start, inWord := 0, false
	for i, r := range s {
		blank := strings.ContainsRune(" \t\n\r", r)
		if blank && inWord {
			out = append(out, s[start:i])
			start = i
		}
		inWord = !blank
	}
	if start < len(s) {
		out = append(out, s[start:])
	}
	return out
}

// output is an answer in the forms of OpenAI's API.
type output struct {
	id, kind, model, finish string
	created                 int64
	pieces                  []string
	copies                  int
	usage                   map[string]int
}

func (o *output) envelope(kind string, choices []any, usage any) map[string]any {
	m := map[string]any{"id": o.id, "object": kind, "created": o.created, "model": o.model, "choices": choices}
	if usage != nil {
		m["usage"] = usage
	}
	return m
}

func (o *output) whole(w http.ResponseWriter, chat bool) {
	answer := strings.Join(o.pieces, "")
	var choices []any
	for i := range o.copies {
		c := map[string]any{"index": i, "finish_reason": o.finish, "logprobs": nil}
		if chat {
			c["message"] = map[string]any{"role": "assistant", "content": answer}
		} else {
			c["text"] = answer
		}
		choices = append(choices, c)
	}
	reply(w, 200, o.envelope(o.kind, choices, o.usage))
}

func (o *output) stream(w http.ResponseWriter, chat, usage bool) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flush := http.NewResponseController(w)
	kind := o.kind
	if chat {
		kind += ".chunk"
	}
	send := func(choices []any, usage any) {
		data, _ := json.Marshal(o.envelope(kind, choices, usage))
		fmt.Fprintf(w, "data: %s\n\n", data)
		_ = flush.Flush()
	}
	each := func(piece string, first bool, finish any) {
		for i := range o.copies {
			c := map[string]any{"index": i, "finish_reason": finish}
			switch {
			case !chat:
				c["text"] = piece
			case first:
				c["delta"] = map[string]any{"role": "assistant", "content": piece}
			case finish != nil && piece == "":
				c["delta"] = map[string]any{}
			default:
				c["delta"] = map[string]any{"content": piece}
			}
			send([]any{c}, nil)
		}
	}
	if chat {
		each("", true, nil)
	}
	for _, p := range o.pieces {
		each(p, false, nil)
	}
	each("", false, o.finish)
	if usage {
		send([]any{}, o.usage)
	}
	fmt.Fprint(w, "data: [DONE]\n\n")
}

func refuse(w http.ResponseWriter, status int, kind, message string) {
	reply(w, status, map[string]any{"error": map[string]any{"message": message, "type": kind, "param": nil, "code": status}})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that went away is nobody to report to
}
