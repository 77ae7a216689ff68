package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// backend is a judge whose answers a test decides. It keeps what it was sent.
type backend struct {
	*httptest.Server
	mu     sync.Mutex
	bodies []string
	heads  []http.Header
}

func newBackend(t *testing.T, h http.HandlerFunc) *backend {
	b := &backend{}
	b.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		b.bodies = append(b.bodies, r.URL.Path+" "+string(data))
		b.heads = append(b.heads, r.Header)
		b.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(b.Close)
	return b
}

func (b *backend) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.bodies)
}

// says answers every chat completion with a text.
func says(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		data, _ := json.Marshal(text)
		fmt.Fprintf(w, `{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}`, data)
	}
}

// status answers the given statuses in turn, the last for ever, with a verdict
// where it is 200.
func status(list ...int) http.HandlerFunc {
	var n atomic.Int64
	return func(w http.ResponseWriter, r *http.Request) {
		code := list[min(int(n.Add(1)), len(list))-1]
		if code != 200 {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"error":{"message":"said %d"}}`, code)
			return
		}
		says("1")(w, r)
	}
}

func config(t *testing.T, text string) *Config {
	t.Helper()
	c, err := ParseConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// routes is a configuration with a vLLM judge for each key.
func routes(keys ...string) string {
	var list []string
	for _, k := range keys {
		list = append(list, fmt.Sprintf(`{"route_key":%q,"engine":"vllm","model":"m-%s","replicas":1,"sampling_config":{"temperature":0.1,"top_k":-1,"max_response_len":16}}`, k, k))
	}
	return `{"host":"127.0.0.1","port":8088,"failure_policy":"mask","routes":[` + strings.Join(list, ",") + `]}`
}

func start(t *testing.T, c *Config, o Options) *httptest.Server {
	t.Helper()
	if o.sleep == nil {
		o.sleep = func(context.Context, time.Duration) {}
	}
	g, err := New(c, o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	return s
}

func post(t *testing.T, url, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("POST", url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, strings.TrimSpace(string(data))
}

const hello = `"messages":[{"role":"user","content":"<hello> é"}]`

func TestRouteKey(t *testing.T) {
	for _, c := range []struct {
		name string
		keys []string
		body string
		want string // the judge, or the error
	}{
		{"by key", []string{"q", "s"}, `"route_key":"s",`, "s"},
		{"none, and a sole judge", []string{"q"}, ``, "q"},
		{"null, and a sole judge", []string{"q"}, `"route_key":null,`, "q"},
		{"none, and a default", []string{"q", "__default__"}, ``, "__default__"},
		{"empty means the default", []string{"q", "__default__"}, `"route_key":"",`, "__default__"},
		{"empty is not none", []string{"q"}, `"route_key":"",`, "No GenRM instance registered for route_key='__default__'; available=['q']"},
		{"none, and several", []string{"q", "s"}, ``, "No GenRM instance registered for route_key='__default__'; available=['q', 's']"},
		{"unknown", []string{"s", "q"}, `"route_key":"x",`, "No GenRM instance registered for route_key='x'; available=['s', 'q']"},
		{"unknown, and a sole judge", []string{"q"}, `"route_key":"x",`, "No GenRM instance registered for route_key='x'; available=['q']"},
		{"unknown, with a quote", []string{"q"}, `"route_key":"it's\n",`, `No GenRM instance registered for route_key="it's\n"; available=['q']`},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := map[string][]string{}
			for _, k := range c.keys {
				up[k] = []string{newBackend(t, says(" "+k+"\n")).URL}
			}
			s := start(t, config(t, routes(c.keys...)), Options{Upstreams: up})
			code, text := post(t, s.URL+"/genrm/generate", "{"+c.body+hello+"}")
			var got struct {
				Response string
				Error    problem
			}
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatal(err)
			}
			if code == 200 && got.Response != c.want || code == 404 && got.Error.Message != c.want || code != 200 && code != 404 {
				t.Errorf("%d %s, want %s", code, text, c.want)
			}
			// The same by the OpenAI side, where the key is the model.
			code, text = post(t, s.URL+"/v1/chat/completions", "{"+strings.Replace(c.body, "route_key", "model", 1)+hello+"}")
			quoted, _ := json.Marshal(c.want)
			if !strings.Contains(text, strings.Trim(string(quoted), `"`)) {
				t.Errorf("chat: %d %s, want %s", code, text, c.want)
			}
		})
	}
}

// What reaches the judge: the request's parameters over the judge's defaults,
// under the names that the chat API has, and the messages byte for byte.
func TestSampling(t *testing.T) {
	const openai = `{"host":"127.0.0.1","port":8088,"failure_policy":"error","routes":[{"route_key":"q","engine":"openai","model":"m-q","replicas":1,"base_url":"BASE/v1","sampling_config":{"top_k":-1,"max_response_len":16}}]}`
	for _, c := range []struct{ name, config, path, in, want string }{
		{"defaults", routes("q"), "/genrm/generate", `{` + hello + `}`, `{"max_tokens":16,` + hello + `,"model":"m-q","temperature":0.1,"top_k":-1}`},
		{"own", routes("q"), "/genrm/generate", `{` + hello + `,"sampling_params":{"temperature":0,"max_new_tokens":4,"stop":["\n"]}}`,
			`{"max_tokens":4,` + hello + `,"model":"m-q","stop":["\n"],"temperature":0,"top_k":-1}`},
		{"own, genrm's name", routes("q"), "/genrm/generate", `{` + hello + `,"sampling_params":{"max_response_len":4}}`, `{"max_tokens":4,` + hello + `,"model":"m-q","temperature":0.1,"top_k":-1}`},
		{"null is none", routes("q"), "/genrm/generate", `{` + hello + `,"sampling_params":{"max_tokens":null}}`, `{"max_tokens":16,` + hello + `,"model":"m-q","temperature":0.1,"top_k":-1}`},
		{"no top_k for OpenAI", openai, "/genrm/generate", `{` + hello + `,"sampling_params":{"top_k":-1}}`, `{"max_tokens":16,` + hello + `,"model":"m-q"}`},
		{"chat", routes("q"), "/v1/chat/completions", `{"model":"q",` + hello + `,"max_completion_tokens":3,"temperature":1}`,
			`{"max_completion_tokens":3,` + hello + `,"model":"m-q","temperature":1,"top_k":-1}`},
		{"chat by the served name", routes("q", "r"), "/v1/chat/completions", `{"model":"m-q",` + hello + `}`, `{"max_tokens":16,` + hello + `,"model":"m-q","temperature":0.1,"top_k":-1}`},
		{"responses", routes("q"), "/v1/responses", `{"input":"hi","max_output_tokens":2,"temperature":0.5}`,
			`{"max_tokens":2,"messages":[{"role":"user","content":"hi"}],"model":"m-q","temperature":0.5,"top_k":-1}`},
		{"responses, roles and metadata", routes("q"), "/v1/responses",
			`{"instructions":"be fair","input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},{"type":"message","role":"response_1","content":"one"}],"metadata":{"response_2":"two","principle":"p","response_1":"1","k":"v"}}`,
			`{"max_tokens":16,"messages":[{"role":"system","content":"be fair"},{"role":"user","content":"ab"},{"role":"response_1","content":"one"},{"role":"principle","content":"p"},{"role":"response_1","content":"1"},{"role":"response_2","content":"two"}],"model":"m-q","temperature":0.1,"top_k":-1}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBackend(t, says("1"))
			up := map[string][]string{"q": {b.URL}}
			if strings.Contains(c.config, `"r"`) {
				up["r"] = []string{newBackend(t, says("no")).URL}
			}
			if c.config == openai {
				up = nil
			}
			s := start(t, config(t, strings.Replace(c.config, "BASE", b.URL, 1)), Options{Upstreams: up})
			if code, text := post(t, s.URL+c.path, c.in); code != 200 {
				t.Fatalf("%d %s", code, text)
			}
			if got := b.asked(); len(got) != 1 || got[0] != "/v1/chat/completions "+c.want {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestRetries(t *testing.T) {
	for _, c := range []struct {
		name        string
		judge       http.HandlerFunc
		code, asked int
		text        string
	}{
		{"at once", status(200), 200, 1, `"response":"1"`},
		{"second", status(503, 200), 200, 2, `"response":"1"`},
		{"third", status(502, 504, 200), 200, 3, `"response":"1"`},
		{"never", status(503), 502, 3, `judge q: it answered with status 503: said 503`},
		{"400", status(400, 200), 400, 1, `said 400`},
		{"422", status(422, 200), 422, 1, `said 422`},
		{"429", status(429, 200), 429, 1, `said 429`},
		{"401 is the gateway's own fault", status(401, 200), 502, 1, `status 401`},
		{"404 is the gateway's own fault", status(404, 200), 502, 1, `status 404`},
		{"500", status(500, 200), 502, 1, `"failure_policy":"mask"`},
		{"redirect", status(302, 200), 502, 1, `status 302`},
		{"400 of SGLang, in the form of the others", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprint(w, `{"object":"error","message":"too <long>","type":"BadRequestError","param":null,"code":400}`)
		}, 400, 1, `{"error":{"code":400,"message":"too <long>","param":null,"type":"BadRequestError"}}`},
		{"400 without JSON", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(400)
			fmt.Fprint(w, "no")
		}, 400, 1, "no"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "well") }, 502, 1, "no chat completion"},
		{"no choice", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"choices":[]}`) }, 502, 1, "has no text"},
		{"no text", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"choices":[{"message":{"content":null},"finish_reason":"length"}]}`)
		}, 502, 1, "max_response_len"},
		{"breaks off before the answer", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, 502, 3, "cannot be reached"},
		{"breaks off within the answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, `{"choices":`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, 502, 1, "broke off"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBackend(t, c.judge)
			s := start(t, config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {b.URL}}})
			code, text := post(t, s.URL+"/genrm/generate", "{"+hello+"}")
			if code != c.code || !strings.Contains(text, c.text) {
				t.Errorf("%d %s, want %d with %s", code, text, c.code, c.text)
			}
			if n := len(b.asked()); n != c.asked {
				t.Errorf("asked %d times, want %d", n, c.asked)
			}
			if code != 200 && strings.Contains(text, `"response"`) {
				t.Errorf("a failure has a response: %s", text)
			}
		})
	}
}

// A replica that is gone is passed over, without an error for anybody.
func TestDeadReplica(t *testing.T) {
	dead := httptest.NewServer(nil)
	dead.Close()
	b := newBackend(t, says("1"))
	g, err := New(config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {dead.URL, b.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	defer s.Close()
	for range 10 {
		if code, text := post(t, s.URL+"/genrm/generate", "{"+hello+"}"); code != 200 {
			t.Fatalf("%d %s", code, text)
		}
	}
	if r := g.routes[0].replicas[0]; r.load.Load() != 0 || r.resting.Load() == 0 {
		t.Errorf("the dead one: %d under way, rests until %d", r.load.Load(), r.resting.Load())
	}
}

// Among replicas: one that was not tried, then one that does not rest, then the
// least loaded, then the next in turn.
func TestPick(t *testing.T) {
	later := time.Now().Add(time.Hour).UnixNano()
	for _, c := range []struct {
		name    string
		load    [3]int64
		resting [3]int64
		tried   []int
		want    int
	}{
		{"in turn", [3]int64{}, [3]int64{}, nil, 1},
		{"least loaded", [3]int64{2, 3, 1}, [3]int64{}, nil, 2},
		{"not a resting one", [3]int64{2, 0, 1}, [3]int64{0, later, later}, nil, 0},
		{"rested", [3]int64{2, 0, 1}, [3]int64{0, 1, later}, nil, 1},
		{"all rest", [3]int64{2, 1, 0}, [3]int64{later, later, later}, nil, 2},
		{"not a tried one", [3]int64{2, 1, 0}, [3]int64{}, []int{2}, 1},
		{"rather a resting than a tried one", [3]int64{0, 9, 0}, [3]int64{0, later, 0}, []int{0, 2}, 1},
		{"all tried", [3]int64{1, 2, 0}, [3]int64{}, []int{0, 1, 2}, 2},
	} {
		rt := &route{Route: &Route{}}
		for i := range 3 {
			r := &replica{}
			r.load.Store(c.load[i])
			r.resting.Store(c.resting[i])
			rt.replicas = append(rt.replicas, r)
		}
		var tried []*replica
		for _, i := range c.tried {
			tried = append(tried, rt.replicas[i])
		}
		if got := slices.Index(rt.replicas, rt.pick(tried)); got != c.want {
			t.Errorf("%s: replica %d, want %d", c.name, got, c.want)
		}
	}
}

func TestLeastLoaded(t *testing.T) {
	hold, arrived := make(chan struct{}), make(chan struct{}, 1)
	slow := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-hold
		says("slow")(w, r)
	})
	quick := newBackend(t, says("quick"))
	c := config(t, routes("q"))
	g, err := New(c, Options{Upstreams: map[string][]string{"q": {slow.URL, quick.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(g)
	defer s.Close()
	g.routes[0].next.Store(1) // the slow one is next
	done := make(chan string)
	go func() {
		_, text := post(t, s.URL+"/genrm/generate", "{"+hello+"}")
		done <- text
	}()
	<-arrived
	for range 5 {
		if _, text := post(t, s.URL+"/genrm/generate", "{"+hello+"}"); !strings.Contains(text, "quick") {
			t.Errorf("the loaded replica was asked: %s", text)
		}
	}
	close(hold)
	if text := <-done; !strings.Contains(text, "slow") {
		t.Error(text)
	}
	for _, r := range g.routes[0].replicas {
		if n := r.load.Load(); n != 0 {
			t.Errorf("%d requests are counted as under way", n)
		}
	}
}

// A piece reaches the client before the judge writes the next.
func TestStreaming(t *testing.T) {
	next := make(chan struct{})
	b := newBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
	})
	s := start(t, config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {b.URL}}})
	res, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"q","stream":true,`+hello+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := res.Header.Get("Content-Type"); got != "text/event-stream" {
		t.Error(got)
	}
	r := bufio.NewReader(res.Body)
	for i := range 3 {
		line, err := r.ReadString('\n')
		if err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q %v", line, err)
		}
		if _, err := r.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
		next <- struct{}{}
	}
}

// A stream that breaks off at the judge breaks off at the client: it does not
// end as if it were whole.
func TestBrokenStream(t *testing.T) {
	b := newBackend(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	s := start(t, config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {b.URL}}})
	res, err := http.Post(s.URL+"/v1/chat/completions", "application/json", strings.NewReader(`{"model":"q","stream":true,`+hello+`}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if data, err := io.ReadAll(res.Body); err == nil {
		t.Errorf("the answer ended as if it were whole: %q", data)
	}
}

// The judge's request ends when the client goes away, and that is no error of
// the judge.
func TestCancellation(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	b := newBackend(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})
	g, err := New(config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {b.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.ServeHTTP(w, r)
		close(ended)
	}))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-arrived
		cancel()
	}()
	req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/genrm/generate", strings.NewReader("{"+hello+"}"))
	if _, err := http.DefaultClient.Do(req); err == nil {
		t.Error("an answer came")
	}
	<-gone
	<-ended
	if c := g.routes[0].counts(); c.Abandoned != 1 || c.Errors != 0 || c.Running != 0 || len(b.asked()) != 1 {
		t.Errorf("%+v, asked %d times", c, len(b.asked()))
	}
}

func TestTimeout(t *testing.T) {
	b := newBackend(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	s := start(t, config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {b.URL}}, Timeout: time.Millisecond})
	if code, text := post(t, s.URL+"/genrm/generate", "{"+hello+"}"); code != 504 || !strings.Contains(text, "no answer within 1ms") {
		t.Errorf("%d %s", code, text)
	}
}

func TestKeys(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := newBackend(t, says("1"))
	c := config(t, fmt.Sprintf(`{"host":"0.0.0.0","port":"{port:gateway}","failure_policy":"error","api_key":{"env":"CLIENT"},"routes":[{"route_key":"q","engine":"openai","model":"m","replicas":1,
		"base_url":"%s/v1/","api_key":{"env":"REMOTE"},"default_headers":{"X-Project":"p","X-Token":{"file":%q}},"session_key_headers":["X-Session-Id"],"sampling_config":{}}]}`, b.URL, file))
	env := map[string]string{"CLIENT": "client-secret", "REMOTE": "remote-secret"}
	s := start(t, c, Options{Getenv: func(n string) string { return env[n] }})
	for _, h := range []string{"", "Bearer", "Bearer client-secre", "Bearer client-secret2", "Basic client-secret", "client-secret", "Bearer remote-secret"} {
		for _, path := range []string{"/genrm/generate", "/genrm/health", "/v1/models", "/nothing"} {
			if code, text := post(t, s.URL+path, "{"+hello+"}", "Authorization", h); code != 401 || strings.Contains(text, "secret") {
				t.Errorf("%q %s: %d %s", h, path, code, text)
			}
		}
	}
	if n := len(b.asked()); n != 0 {
		t.Errorf("the judge was asked %d times without the key", n)
	}
	res, err := http.Get(s.URL + "/health")
	if err != nil || res.StatusCode != 200 {
		t.Errorf("/health: %v %v", res, err)
	}
	if code, text := post(t, s.URL+"/genrm/generate", "{"+hello+"}", "Authorization", "Bearer client-secret", "X-Session-Id", "s1", "X-Other", "o"); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	h := b.heads[0]
	for name, want := range map[string]string{"Authorization": "Bearer remote-secret", "X-Project": "p", "X-Token": "from-file", "X-Session-Id": "s1", "X-Other": ""} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := b.asked()[0]; !strings.HasPrefix(got, "/v1/chat/completions ") {
		t.Error(got)
	}
}

// Everything that is wrong with a start is told at once.
func TestNew(t *testing.T) {
	c := config(t, `{"host":"h","port":1,"failure_policy":"error","api_key":{"env":"CLIENT"},"routes":[
		{"route_key":"q","engine":"vllm","model":"m","replicas":1,"sampling_config":{}},
		{"route_key":"o","engine":"openai","model":"m","replicas":1,"base_url":"https://user:hunter2@h/v1","sampling_config":{}},
		{"route_key":"p","engine":"openai","model":"m","replicas":1,"base_url":"https://h/v1","api_key":{"file":"/no/such/file"},"sampling_config":{}}]}`)
	_, err := New(c, Options{Upstreams: map[string][]string{"x": {"http://h:1"}, "p": {"http://h:1"}}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"CLIENT holds a secret and is not set", "no address is known of the judges q", "addresses for p, x", "/no/such/file", "o: base_url"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("not told: %s\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "hunter2") {
		t.Error("a credential is shown")
	}
}

func TestHealthAndMetrics(t *testing.T) {
	b := newBackend(t, status(200, 503, 200, 400, 500))
	sick := newBackend(t, status(500))
	s := start(t, config(t, routes("z", "a")), Options{Upstreams: map[string][]string{"z": {b.URL}, "a": {sick.URL}}})
	get := func(path, accept string) string {
		req, _ := http.NewRequest("GET", s.URL+path, nil)
		req.Header.Set("Accept", accept)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		data, _ := io.ReadAll(res.Body)
		return string(data)
	}
	if got := get("/genrm/health", ""); got != `{"status":"unhealthy","service":"genrm","instances":{"z":{"status":"healthy"},"a":{"status":"unhealthy","error":"replica 0: status 500"}}}`+"\n" {
		t.Error(got)
	}
	for range 3 {
		post(t, s.URL+"/genrm/generate", `{"route_key":"z",`+hello+"}")
	}
	var m struct {
		Service   string
		Instances map[string]counts
	}
	if err := json.Unmarshal([]byte(get("/genrm/metrics", "*/*")), &m); err != nil {
		t.Fatal(err)
	}
	z := m.Instances["z"]
	if z.Sum <= 0 || z.Max <= 0 || z.Max > z.Sum {
		t.Errorf("latencies: %+v", z)
	}
	z.Sum, z.Max = 0, 0
	if want := (counts{Engine: "vllm", Model: "m-z", Replicas: 1, Requests: 3, Errors: 1, Refused: 1, Retries: 1, Count: 3}); z != want || m.Service != "genrm" {
		t.Errorf("got %+v\nwant %+v", z, want)
	}
	if got := get("/genrm/metrics", "application/openmetrics-text, text/plain"); !strings.Contains(got, "genrm_requests_total{route_key=\"z\"} 3\n") || strings.Index(got, `"z"`) > strings.Index(got, `"a"`) {
		t.Error(got)
	}
	if got := get("/v1/models", ""); !strings.Contains(got, `"id":"z"`) {
		t.Error(got)
	}
}

func TestBadRequests(t *testing.T) {
	b := newBackend(t, says("1"))
	s := start(t, config(t, strings.ReplaceAll(routes("q", "r"), "m-r", "m-q")), Options{Upstreams: map[string][]string{"q": {b.URL}, "r": {b.URL}}})
	for _, c := range []struct {
		path, body string
		code       int
		text       string
	}{
		{"/genrm/generate", ``, 400, "JSON"},
		{"/genrm/generate", `[]`, 400, "JSON"},
		{"/genrm/generate", `{"route_key":1,` + hello + `}`, 400, "route_key"},
		{"/genrm/generate", `{}`, 422, "messages is missing"},
		{"/genrm/generate", `{"messages":[]}`, 422, "messages is missing"},
		{"/genrm/generate", `{"messages":"hi"}`, 422, "messages is missing"},
		{"/genrm/generate", `{` + hello + `,"sampling_params":{"stream":true}}`, 422, "sampling_params.stream"},
		{"/genrm/generate", `{` + hello + `,"sampling_params":{"model":"x"}}`, 422, "sampling_params.model"},
		{"/genrm/generate", `{"x":"` + strings.Repeat("x", MaxBody) + `"}`, 413, "larger than"},
		{"/v1/chat/completions", `null`, 400, "null"},
		{"/v1/chat/completions", `{"model":7}`, 404, "model is no string"},
		{"/v1/chat/completions", `{"model":"m-q"}`, 404, "name one by its route_key: q, r"},
		{"/v1/responses", `{"model":"q"}`, 400, "input is missing"},
		{"/v1/responses", `{"model":"q","input":7}`, 400, "input is neither"},
		{"/v1/responses", `{"model":"q","input":"a","stream":true}`, 400, "does not stream"},
		{"/v1/responses", `{"model":"q","input":"a","tools":[{}]}`, 400, "tools"},
		{"/v1/responses", `{"model":"q","input":"a","previous_response_id":"x"}`, 400, "previous_response_id"},
		{"/v1/responses", `{"model":"q","input":[{"type":"function_call"}]}`, 400, "input[0] is no message"},
		{"/v1/responses", `{"model":"q","input":[{"role":"user","content":[{"type":"input_image"}]}]}`, 400, "input_image"},
		{"/v1/responses", `{"model":"q","input":"a","metadata":{"principle":1}}`, 400, "metadata"},
		{"/genrm/health", `{}`, 405, "takes GET"},
		{"/v1/completions", `{}`, 404, "there are POST /genrm/generate"},
	} {
		if code, text := post(t, s.URL+c.path, c.body); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s %.80s: %d %s, want %d with %s", c.path, c.body, code, text, c.code, c.text)
		}
	}
	if n := len(b.asked()); n != 0 {
		t.Errorf("the judge was asked %d times", n)
	}
}

// A request under way ends when the gateway is told to; none is taken after.
func TestShutdown(t *testing.T) {
	arrived, hold := make(chan struct{}), make(chan struct{})
	b := newBackend(t, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-hold
		says("late")(w, r)
	})
	g, err := New(config(t, routes("q")), Options{Upstreams: map[string][]string{"q": {b.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served, answer := make(chan error), make(chan string)
	go func() { served <- g.Serve(ctx, l, time.Minute) }()
	go func() {
		_, text := post(t, "http://"+l.Addr().String()+"/genrm/generate", "{"+hello+"}")
		answer <- text
	}()
	<-arrived
	stop()
	for { // until the listener is closed
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			break
		}
		c.Close()
	}
	close(hold)
	if text := <-answer; text != `{"response":"late"}` {
		t.Error(text)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// Every gateway.json among the golden files is read, and nothing of it is lost.
func TestGoldenConfigs(t *testing.T) {
	var names []string
	for _, glob := range []string{"../golden/*/gateway.json", "../golden/*/*/gateway.json"} {
		list, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, list...)
	}
	if len(names) < 4 {
		t.Fatalf("only %v", names)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := ParseConfig(data); err != nil || len(c.Routes) == 0 || c.Routes[0].SamplingConfig == nil {
			t.Errorf("%s: %+v %v", name, c, err)
		}
	}
}

func TestParseConfig(t *testing.T) {
	good := routes("q")
	for _, c := range []struct{ from, to, want string }{
		{`"port":8088`, `"port":"8088"`, "port"},
		{`"port":8088`, `"port":0`, "port"},
		{`"host":"127.0.0.1"`, `"host":""`, "no host"},
		{`"mask"`, `"skip"`, "failure_policy"},
		{`"engine":"vllm"`, `"engine":"vlm"`, "engine"},
		{`"engine":"vllm"`, `"engine":"openai"`, "base_url"},
		{`"replicas":1`, `"replicas":0`, "replicas"},
		{`"model":"m-q"`, `"modell":"m-q"`, "modell"},
		{good, `{"host":"h","port":1,"failure_policy":"error","routes":[]}`, "no routes"},
		{good, good + "{}", "after the end"},
		{`"failure_policy"`, `"api_key":{"env":"A","x":1},"failure_policy"`, "x"},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if _, err := ParseConfig([]byte(bad)); bad == good || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", bad, err, c.want)
		}
	}
	if c, err := ParseConfig([]byte(strings.Replace(good, "8088", `"{port:gateway}"`, 1))); err != nil || c.Port != 0 {
		t.Error(c, err)
	}
}

func TestParseUpstreams(t *testing.T) {
	got, err := ParseUpstreams(" q=http://h:1/, s.2=h:2\nq=https://[::1]:3 ")
	if want := map[string][]string{"q": {"http://h:1", "https://[::1]:3"}, "s.2": {"http://h:2"}}; err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"q", "=http://h:1", "q=", "q=ftp://h", "q=http://u:hunter2@h", "q=http://h?x=1"} {
		if _, err := ParseUpstreams(bad); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// BenchmarkGenerate is the gateway's share of an answer: a request through it
// minus one to the same judge without it (direct).
func BenchmarkGenerate(b *testing.B) {
	judge := httptest.NewServer(says("1"))
	defer judge.Close()
	c, err := ParseConfig([]byte(routes("q")))
	if err != nil {
		b.Fatal(err)
	}
	g, err := New(c, Options{Upstreams: map[string][]string{"q": {judge.URL}}})
	if err != nil {
		b.Fatal(err)
	}
	front := httptest.NewServer(g)
	defer front.Close()
	prompt := []byte(`{"messages":[{"role":"user","content":"` + strings.Repeat("a judge reads this. ", 200) + `"}]}`)
	client := &http.Client{Transport: newTransport(false)}
	for _, x := range []struct{ name, url string }{{"direct", judge.URL + "/v1/chat/completions"}, {"gateway", front.URL + "/genrm/generate"}} {
		for _, parallel := range []int{1, 32} {
			b.Run(fmt.Sprintf("%s/%d", x.name, parallel), func(b *testing.B) {
				b.SetParallelism(parallel)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						res, err := client.Post(x.url, "application/json", bytes.NewReader(prompt))
						if err != nil {
							b.Error(err)
							return
						}
						_, _ = io.Copy(io.Discard, res.Body)
						res.Body.Close()
						if res.StatusCode != 200 {
							b.Errorf("status %d", res.StatusCode)
							return
						}
					}
				})
			})
		}
	}
}

// TestFront: a judge behind a server of several models is asked there, with that
// server's headers, and is well when it lists its models.
func TestFront(t *testing.T) {
	var path, key string
	up := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !up:
			w.WriteHeader(http.StatusNotFound)
		case r.URL.Path == "/app/v1/models":
			_, _ = io.WriteString(w, `{"data": []}`)
		default:
			path, key = r.URL.Path, r.Header.Get("X-Key")
			_, _ = io.WriteString(w, `{"choices": [{"message": {"content": "yes"}}]}`)
		}
	}))
	defer server.Close()
	c, err := ParseConfig([]byte(`{"host": "127.0.0.1", "port": "{port:gateway}", "failure_policy": "error", "routes": [{"route_key": "q", "engine": "vllm", "model": "q", "replicas": 2, "sampling_config": {}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	g, err := New(c, Options{Fronts: map[string]Front{"q": {Base: server.URL + "/app/", Header: http.Header{"X-Key": {"k"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, path, body string) string {
		w := httptest.NewRecorder()
		g.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		return w.Body.String()
	}
	if got := ask("POST", "/genrm/generate", `{"messages": [{"role": "user", "content": "x"}]}`); !strings.Contains(got, `"yes"`) || path != "/app/v1/chat/completions" || key != "k" {
		t.Error(got, path, key)
	}
	if got := ask("GET", "/genrm/health", ""); !strings.Contains(got, `"q":{"status":"healthy"}`) {
		t.Error(got)
	}
	up = false
	if got := ask("GET", "/genrm/health", ""); strings.Contains(got, `"q":{"status":"healthy"}`) {
		t.Error(got)
	}
}
