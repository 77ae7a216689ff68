package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func judge(t *testing.T, script string) *httptest.Server {
	t.Helper()
	s, err := ParseScript([]byte(script))
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(New(s))
	t.Cleanup(srv.Close)
	return srv
}

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	res, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data)
}

func chat(last, more string) string {
	q, _ := json.Marshal(last)
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":"poison"},{"role":"user","content":%s}]%s}`, q, more)
}

func TestAnswers(t *testing.T) {
	const match = `{"model":"m","match":[{"pattern":"(?i)poison","answer":"un safe"},{"pattern":"^b","answer":"b"}]}`
	for _, c := range []struct{ name, script, in, content, finish string }{
		{"constant", `{"model":"m","constant":"1"}`, chat("x", ""), "1", "stop"},
		{"empty", `{"model":"m","constant":""}`, chat("x", ""), "", "stop"},
		{"echo", `{"model":"m","echo":true}`, chat(" a\n<b> ", ""), " a\n<b> ", "stop"},
		{"match", match, chat("POISON", ""), "un safe", "stop"},
		{"match the second", match, chat("bread", ""), "b", "stop"},
		{"parts", match, `{"messages":[{"role":"user","content":[{"type":"text","text":"poi"},{"type":"text","text":"son"}]}]}`, "un safe", "stop"},
		{"cut", match, chat("poison", `,"max_tokens":1`), "un", "length"},
		{"cut, the new name", match, chat("poison", `,"max_completion_tokens":1`), "un", "length"},
		{"not cut", match, chat("poison", `,"max_tokens":2`), "un safe", "stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := judge(t, c.script)
			code, text := post(t, s.URL+"/v1/chat/completions", c.in)
			var got struct {
				Model   string
				Choices []struct {
					Message      struct{ Content *string }
					FinishReason string `json:"finish_reason"`
				}
			}
			if err := json.Unmarshal([]byte(text), &got); err != nil || code != 200 || len(got.Choices) != 1 || got.Choices[0].Message.Content == nil {
				t.Fatalf("%d %s %v", code, text, err)
			}
			if ch := got.Choices[0]; *ch.Message.Content != c.content || ch.FinishReason != c.finish || got.Model != "m" {
				t.Errorf("%s", text)
			}
			// The same in pieces.
			_, text = post(t, s.URL+"/v1/chat/completions", c.in[:len(c.in)-1]+`,"stream":true,"stream_options":{"include_usage":true}}`)
			var content, finish string
			usage, last := false, ""
			for line := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
				last = line
				var chunk struct {
					Choices []struct {
						Delta        struct{ Content string }
						FinishReason *string `json:"finish_reason"`
					}
					Usage map[string]int
				}
				if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &chunk) != nil {
					continue
				}
				usage = usage || chunk.Usage["total_tokens"] > 0
				for _, ch := range chunk.Choices {
					content += ch.Delta.Content
					if ch.FinishReason != nil {
						finish = *ch.FinishReason
					}
				}
			}
			if content != c.content || finish != c.finish || last != "data: [DONE]" || !usage {
				t.Errorf("in pieces: %s", text)
			}
		})
	}
}

func TestPlainCompletion(t *testing.T) {
	s := judge(t, `{"model":"m","echo":true}`)
	if code, text := post(t, s.URL+"/v1/completions", `{"model":"m","prompt":"say this","max_tokens":1,"n":2}`); code != 200 || strings.Count(text, `"text":"say"`) != 2 || !strings.Contains(text, `"object":"text_completion"`) {
		t.Errorf("%d %s", code, text)
	}
}

func TestRefusals(t *testing.T) {
	s := judge(t, `{"model":"m","match":[{"pattern":"a","answer":"1"}]}`)
	for _, c := range []struct {
		body string
		code int
		text string
	}{
		{`{`, 400, "BadRequestError"},
		{`{}`, 400, "no text"},
		{`{"messages":[{"role":"user"}]}`, 400, "no text"},
		{chat("b", ""), 500, "no pattern"},
		{strings.Replace(chat("a", ""), `"m"`, `"other"`, 1), 404, "does not exist"},
		{chat("a", `,"max_tokens":0`), 400, "max_tokens"},
		{chat("a", `,"n":0`), 400, "n must be"},
	} {
		if code, text := post(t, s.URL+"/v1/chat/completions", c.body); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d %s, want %d %s", c.body, code, text, c.code, c.text)
		}
	}
}

// Failures come at the same requests each time, and as many as the rate says.
func TestFailureRate(t *testing.T) {
	for rate, want := range map[string]string{"0": "..........", "0.3": "...x..x..x", "0.5": ".x.x.x.x.x", "1": "xxxxxxxxxx"} {
		s := judge(t, `{"model":"m","constant":"1","failure_rate":`+rate+`}`)
		var got string
		for range 10 {
			if code, _ := post(t, s.URL+"/v1/chat/completions", chat("x", "")); code == 500 {
				got += "x"
			} else {
				got += "."
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", rate, got, want)
		}
	}
}

func TestSurface(t *testing.T) {
	s := judge(t, `{"model":"m","constant":"two words"}`)
	post(t, s.URL+"/v1/chat/completions", chat("one two three", ""))
	for path, want := range map[string]string{
		"/health": "", "/v1/models": `"id":"m"`,
		"/metrics": `vllm:prompt_tokens_total{model_name="m"} 4` + "\n# TYPE vllm:generation_tokens_total counter\n" + `vllm:generation_tokens_total{model_name="m"} 2`,
	} {
		res, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		data, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != 200 || !strings.Contains(string(data), want) {
			t.Errorf("%s: %d %s", path, res.StatusCode, data)
		}
	}
}

func TestCrash(t *testing.T) {
	script, err := ParseScript([]byte(`{"model":"m","constant":"1","crash_after":2}`))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { ended <- New(script).Serve(t.Context(), l, time.Minute) }()
	url := "http://" + l.Addr().String() + "/v1/chat/completions"
	for range 2 {
		if code, text := post(t, url, chat("x", "")); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
	if res, err := http.Post(url, "", strings.NewReader(chat("x", ""))); err == nil {
		t.Errorf("answered after its crash: %s", res.Status)
	}
	if err := <-ended; !errors.Is(err, ErrCrash) {
		t.Error(err)
	}
}

// The script's times pass before it listens and before an answer, to the second
// (of a clock of the test's own).
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		script, err := ParseScript([]byte(`{"model":"m","constant":"1","latency":2.5,"startup_time":90}`))
		if err != nil {
			t.Fatal(err)
		}
		j, start := New(script), time.Now()
		if err := j.Startup(t.Context()); err != nil || time.Since(start) != 90*time.Second {
			t.Errorf("started after %s: %v", time.Since(start), err)
		}
		start = time.Now()
		w := httptest.NewRecorder()
		j.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(chat("x", ""))))
		if w.Code != 200 || time.Since(start) != 2500*time.Millisecond {
			t.Errorf("%d after %s", w.Code, time.Since(start))
		}
	})
}

// Waiting ends when who waits goes away.
func TestLatencyEnds(t *testing.T) {
	script, err := ParseScript([]byte(`{"model":"m","constant":"1","latency":100000,"startup_time":100000}`))
	if err != nil {
		t.Fatal(err)
	}
	j := New(script)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := j.Startup(ctx); err == nil {
		t.Error("started up at once")
	}
	w := httptest.NewRecorder()
	j.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/v1/chat/completions", strings.NewReader(chat("x", ""))))
	if w.Body.Len() > 0 {
		t.Errorf("answered at once: %s", w.Body)
	}
}

func TestParseScript(t *testing.T) {
	for bad, want := range map[string]string{
		`{"model":"m"}`: "0 of constant",
		`{"model":"m","constant":"1","echo":true}`:             "2 of constant",
		`{"constant":"1"}`:                                     "no model",
		`{"model":"m","constantt":"1"}`:                        "constantt",
		`{"model":"m","constant":"1","failure_rate":1.5}`:      "failure_rate",
		`{"model":"m","constant":"1","latency":-1}`:            "latency",
		`{"model":"m","constant":"1","crash_after":-1}`:        "crash_after",
		`{"model":"m","match":[{"pattern":"(","answer":"1"}]}`: "match[0]",
		`{"model":"m","constant":"1"} {}`:                      "after the end",
	} {
		if _, err := ParseScript([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", bad, err, want)
		}
	}
	names, err := filepath.Glob("../../golden/*/sim-*.json")
	if err != nil || len(names) < 2 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseScript(data); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
