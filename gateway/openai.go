package gateway

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// models is GET /v1/models: one model for each judge, called by its route_key.
func (g *Gateway) models(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
		Root    string `json:"root"` // the name by which the engine serves it
	}
	list := []model{}
	for _, rt := range g.routes {
		list = append(list, model{rt.RouteKey, "model", g.started.Unix(), "genrm", rt.Model})
	}
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": list})
}

// named finds the judge of a model: a route_key, or a served name that one judge
// alone has. Without a model it is the judge of a request without a route_key.
func (g *Gateway) named(model json.RawMessage) (*route, error) {
	var name *string
	if len(model) > 0 && json.Unmarshal(model, &name) != nil {
		return nil, errors.New("model is no string")
	}
	if name != nil && g.byKey[*name] == nil {
		switch list := g.byModel[*name]; {
		case len(list) == 1:
			return list[0], nil
		case len(list) > 1:
			var keys []string
			for _, rt := range list {
				keys = append(keys, rt.RouteKey)
			}
			return nil, fmt.Errorf("several judges serve the model %s: name one by its route_key: %s", *name, strings.Join(keys, ", "))
		}
	}
	return g.route(name)
}

// chat is POST /v1/chat/completions: the judge's own chat API with its sampling
// defaults under the request's parameters. The answer, streamed or not, is
// passed on as it comes.
func (g *Gateway) chat(w http.ResponseWriter, r *http.Request) {
	var in fields
	if !body(w, r, &in) {
		return
	}
	if in == nil {
		fail(w, http.StatusBadRequest, problem{Message: "the request is null", Type: "invalid_request_error"})
		return
	}
	rt, err := g.named(in["model"])
	if err != nil {
		fail(w, http.StatusNotFound, problem{Message: err.Error(), Type: "not_found"})
		return
	}
	x := g.exchange(rt, w, r)
	defer x.end()
	in.set("model", rt.Model)
	rt.sample(in, nil)
	res, ok := x.ask("/chat/completions", in.encode())
	if !ok {
		return
	}
	defer res.Body.Close()
	for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control"} {
		if v := res.Header.Get(name); v != "" {
			w.Header().Set(name, v)
		}
	}
	w.WriteHeader(http.StatusOK)
	if err := pass(w, res.Body); err != nil {
		// The status is out: a broken connection is the only way left to say that
		// the answer is not whole.
		if r.Context().Err() != nil {
			rt.stats.abandoned.Add(1)
		} else {
			rt.stats.errors.Add(1)
		}
		panic(http.ErrAbortHandler)
	}
}

// pass copies an answer, each piece as soon as it is there.
func pass(w http.ResponseWriter, from io.Reader) error {
	flush := http.NewResponseController(w)
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
			if err := flush.Flush(); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// metadataRoles are the keys of a Responses request's metadata that become
// messages, in this order, behind the input.
var metadataRoles = []string{"principle", "response_1", "response_2"}

// message is one message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// responses is POST /v1/responses for judges: text in, text out, with the GenRM
// roles principle, response_1 and response_2 as roles of the input or as
// metadata. It is translated to the judge's chat API, whose template knows the
// roles. Source: responses_api_models/genrm_model/app.py of NeMo Gym 0.7.0.
func (g *Gateway) responses(w http.ResponseWriter, r *http.Request) {
	var in fields
	if !body(w, r, &in) {
		return
	}
	refuse := func(err error) {
		fail(w, http.StatusBadRequest, problem{Message: err.Error(), Type: "invalid_request_error"})
	}
	messages, metadata, err := conversation(in)
	if err != nil {
		refuse(err)
		return
	}
	rt, err := g.named(in["model"])
	if err != nil {
		fail(w, http.StatusNotFound, problem{Message: err.Error(), Type: "not_found"})
		return
	}
	request, own := fields{}, fields{}
	request.set("messages", messages)
	for from, to := range map[string]string{"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "max_output_tokens": "max_tokens"} {
		if v := in[from]; len(v) > 0 && string(v) != "null" {
			own[to] = v
		}
	}
	x := g.exchange(rt, w, r)
	defer x.end()
	rt.sample(request, own)
	if c, ok := x.verdict(request); ok {
		reply(w, http.StatusOK, response(c, rt.RouteKey, in, metadata))
	}
}

// conversation turns a Responses request into messages. What is left of the
// metadata comes back, too.
func conversation(in fields) ([]message, map[string]string, error) {
	if s := string(in["stream"]); s == "true" {
		return nil, nil, errors.New("/v1/responses does not stream; /v1/chat/completions does")
	}
	for _, name := range []string{"previous_response_id", "conversation", "prompt"} {
		if v := in[name]; len(v) > 0 && string(v) != "null" {
			return nil, nil, fmt.Errorf("%s asks for something that is kept here, and nothing is", name)
		}
	}
	if isList(in["tools"]) {
		return nil, nil, errors.New("tools are not for judges: use /v1/chat/completions")
	}
	var out []message
	if text, ok := plain(in["instructions"]); ok {
		out = append(out, message{"system", text})
	}
	if text, ok := plain(in["input"]); ok {
		out = append(out, message{"user", text})
	} else {
		var items []struct {
			Type    string          `json:"type"`
			Role    string          `json:"role"`
			Content json.RawMessage `json:"content"`
		}
		if v := in["input"]; len(v) > 0 && json.Unmarshal(v, &items) != nil {
			return nil, nil, errors.New("input is neither a text nor a list of messages")
		}
		for i, it := range items {
			if it.Type != "" && it.Type != "message" || it.Role == "" {
				return nil, nil, fmt.Errorf("input[%d] is no message", i)
			}
			text, err := textOf(it.Content)
			if err != nil {
				return nil, nil, fmt.Errorf("input[%d].content: %w", i, err)
			}
			out = append(out, message{it.Role, text})
		}
	}
	var metadata map[string]string
	if v := in["metadata"]; len(v) > 0 && json.Unmarshal(v, &metadata) != nil {
		return nil, nil, errors.New("metadata is no object of texts")
	}
	for _, role := range metadataRoles {
		if text, ok := metadata[role]; ok {
			out = append(out, message{role, text})
			delete(metadata, role)
		}
	}
	if len(out) == 0 {
		return nil, nil, errors.New("input is missing")
	}
	return out, metadata, nil
}

func plain(data json.RawMessage) (string, bool) {
	var s *string
	if len(data) == 0 || json.Unmarshal(data, &s) != nil || s == nil {
		return "", false
	}
	return *s, true
}

// textOf joins the text parts of a message's content.
func textOf(data json.RawMessage) (string, error) {
	if s, ok := plain(data); ok {
		return s, nil
	}
	var parts []struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	if err := json.Unmarshal(data, &parts); err != nil || parts == nil {
		return "", errors.New("want a text or a list of text parts")
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Text == nil {
			return "", fmt.Errorf("a part of type %q: want text alone", p.Type)
		}
		b.WriteString(*p.Text)
	}
	return b.String(), nil
}

// response is a Responses object of a verdict.
func response(c *completion, model string, in fields, metadata map[string]string) map[string]any {
	choice := c.Choices[0]
	output := []map[string]any{}
	if text := cmp.Or(choice.Message.Reasoning, choice.Message.ReasoningContent); text != "" {
		output = append(output, map[string]any{"type": "reasoning", "id": "rs_" + rand.Text(), "summary": []map[string]any{{"type": "summary_text", "text": text}}})
	}
	status, incomplete := "completed", any(nil)
	if choice.FinishReason == "length" {
		status, incomplete = "incomplete", map[string]any{"reason": "max_output_tokens"}
	}
	output = append(output, map[string]any{"type": "message", "id": "msg_" + rand.Text(), "role": "assistant", "status": status,
		"content": []map[string]any{{"type": "output_text", "text": *choice.Message.Content, "annotations": []any{}}}})
	out := map[string]any{
		"id": "resp_" + rand.Text(), "object": "response", "created_at": time.Now().Unix(), "model": model, "output": output,
		"status": status, "incomplete_details": incomplete, "error": nil, "instructions": nil,
		"parallel_tool_calls": true, "tool_choice": "auto", "tools": []any{}, "metadata": metadata,
		"usage": map[string]any{
			"input_tokens": c.Usage.Prompt, "output_tokens": c.Usage.Completion, "total_tokens": c.Usage.Total,
			"input_tokens_details": map[string]int{"cached_tokens": 0}, "output_tokens_details": map[string]int{"reasoning_tokens": 0},
		},
	}
	for _, name := range []string{"temperature", "top_p", "max_output_tokens", "instructions"} {
		if v := in[name]; len(v) > 0 {
			out[name] = v
		}
	}
	return out
}
