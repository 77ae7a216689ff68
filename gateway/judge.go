package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// fields is a JSON object whose values are kept as they came.
type fields map[string]json.RawMessage

func (f fields) set(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and numbers only
	}
	f[name] = data
}

// encode writes the object, names sorted, values byte for byte.
func (f fields) encode() []byte {
	names := make([]string, 0, len(f))
	size := 2
	for name, v := range f {
		names = append(names, name)
		size += len(name) + len(v) + 4
	}
	slices.Sort(names)
	b := append(make([]byte, 0, size), '{')
	for i, name := range names {
		if i > 0 {
			b = append(b, ',')
		}
		q, _ := json.Marshal(name)
		b = append(append(append(b, q...), ':'), f[name]...)
	}
	return append(b, '}')
}

// lengthNames are the names of the longest answer: genrm's own and that of
// SGLang's native API, both of which GenRM clients send, and OpenAI's two. All
// engines are asked by their chat API, which knows the last two.
var lengthNames = []string{"max_response_len", "max_new_tokens", "max_tokens", "max_completion_tokens"}

// sample fills request with sampling parameters: what it has stays, own comes
// next, the judge's defaults come last.
func (rt *route) sample(request, own fields) {
	given := func(f fields, name string) bool { return len(f[name]) > 0 && string(f[name]) != "null" }
	long := slices.ContainsFunc(lengthNames, func(n string) bool { return given(request, n) })
	add := func(from fields) {
		for _, name := range lengthNames {
			if !long && given(from, name) {
				long = true
				if name != "max_completion_tokens" {
					request["max_tokens"] = from[name]
				} else {
					request[name] = from[name]
				}
			}
		}
		for name, v := range from {
			if _, ok := request[name]; ok || slices.Contains(lengthNames, name) {
				continue
			}
			if name == "top_k" && string(v) == "-1" && rt.Engine == "openai" {
				continue // off, and no key of OpenAI's own API
			}
			request[name] = v
		}
	}
	add(own)
	add(rt.SamplingConfig)
}

// exchange is one request of a client to a judge.
type exchange struct {
	g      *Gateway
	rt     *route
	w      http.ResponseWriter
	r      *http.Request
	ctx    context.Context
	cancel context.CancelFunc
	start  time.Time
}

func (g *Gateway) exchange(rt *route, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{g: g, rt: rt, w: w, r: r, start: time.Now()}
	x.ctx, x.cancel = context.WithTimeout(r.Context(), g.timeout) // ends as well when the client goes away
	rt.stats.requests.Add(1)
	rt.stats.running.Add(1)
	return x
}

func (x *exchange) end() {
	x.cancel()
	x.rt.stats.running.Add(-1)
	x.rt.stats.took(time.Since(x.start))
}

// failed answers for a judge that failed: an error, never a score.
func (x *exchange) failed(status int, format string, args ...any) {
	if x.r.Context().Err() != nil {
		x.rt.stats.abandoned.Add(1)
		return
	}
	x.rt.stats.errors.Add(1)
	fail(x.w, status, problem{Message: "judge " + x.rt.RouteKey + ": " + fmt.Sprintf(format, args...), Type: "judge_error", RouteKey: x.rt.RouteKey, FailurePolicy: x.g.policy})
}

// ask asks the judge, and answers for it unless its answer has status 200,
// which it returns for the caller to close. Faults of the request that the judge
// names (400, 413, 422) and its plea to wait (429) reach the client with the
// judge's own words.
func (x *exchange) ask(path string, body []byte) (*http.Response, bool) {
	res, err := x.g.ask(x.ctx, x.rt, path, body, x.r.Header)
	if err != nil {
		if errors.Is(x.ctx.Err(), context.DeadlineExceeded) {
			x.failed(http.StatusGatewayTimeout, "no answer within %s", x.g.timeout)
		} else {
			x.failed(http.StatusBadGateway, "it cannot be reached: %v", err)
		}
		return nil, false
	}
	if res.StatusCode == http.StatusOK {
		return res, true
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity, http.StatusTooManyRequests:
		x.rt.stats.refused.Add(1)
		for _, name := range []string{"Content-Type", "Retry-After"} {
			if v := res.Header.Get(name); v != "" {
				x.w.Header().Set(name, v)
			}
		}
		said, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
		x.w.WriteHeader(res.StatusCode)
		_, _ = x.w.Write(refusal(said))
		return nil, false
	}
	said, _ := io.ReadAll(io.LimitReader(res.Body, 2<<10))
	x.failed(http.StatusBadGateway, "it answered with status %d%s", res.StatusCode, quote(said))
	return nil, false
}

// refusal is an engine's error in the form that OpenAI's API and the gateway's
// own errors have, {"error": {"message": …}}, whichever engine it is: SGLang
// writes the inner object alone. What is neither stays as it is.
// Source: sglang/srt/entrypoints/openai/serving_base.py of 0.5.15.post1.
func refusal(said []byte) []byte {
	var doc fields
	if json.Unmarshal(said, &doc) != nil || doc["error"] != nil || doc["message"] == nil {
		return said
	}
	delete(doc, "object")
	return fields{"error": doc.encode()}.encode()
}

// quote is the start of an engine's error text, on one line.
func quote(said []byte) string {
	var doc struct {
		Message string          `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	text := string(said)
	if json.Unmarshal(said, &doc) == nil {
		var inner struct {
			Message string `json:"message"`
		}
		switch {
		case json.Unmarshal(doc.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case doc.Message != "":
			text = doc.Message
		}
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	if r := []rune(text); len(r) > 300 {
		text = string(r[:300]) + "…"
	}
	if text != "" {
		text = ": " + text
	}
	return text
}

// completion is what is read of a chat completion.
type completion struct {
	ID      string `json:"id"`
	Choices []struct {
		FinishReason string `json:"finish_reason"`
		Message      struct {
			Content          *string `json:"content"`
			Reasoning        string  `json:"reasoning"`         // vLLM
			ReasoningContent string  `json:"reasoning_content"` // SGLang, earlier vLLM
		} `json:"message"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	} `json:"usage"`
}

// verdict asks for a chat completion and returns it if it has an answer.
func (x *exchange) verdict(request fields) (*completion, bool) {
	request.set("model", x.rt.Model)
	res, ok := x.ask("/chat/completions", request.encode())
	if !ok {
		return nil, false
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, MaxBody+1))
	switch {
	case err != nil:
		x.failed(http.StatusBadGateway, "its answer broke off: %v", err)
		return nil, false
	case len(data) > MaxBody:
		x.failed(http.StatusBadGateway, "its answer is larger than %d bytes", MaxBody)
		return nil, false
	}
	c := new(completion)
	if err := json.Unmarshal(data, c); err != nil {
		x.failed(http.StatusBadGateway, "its answer is no chat completion: %v", err)
		return nil, false
	}
	if len(c.Choices) == 0 || c.Choices[0].Message.Content == nil {
		why := "its answer has no text"
		if len(c.Choices) > 0 && c.Choices[0].FinishReason == "length" {
			why += ": it reached the most tokens that it may write (max_response_len) before the verdict"
		}
		x.failed(http.StatusBadGateway, "%s", why)
		return nil, false
	}
	return c, true
}
