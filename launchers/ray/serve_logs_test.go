package ray

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"genrm.dev/genrm/launchers/rundir"
)

// logNode is a dashboard with one application, and the files of one node as Ray's
// log agent reads them.
type logNode struct {
	t        *testing.T
	mu       sync.Mutex
	replicas map[string]string // Serve's own log by replica; nil: the application is gone
	files    map[string]*string
	open     map[*http.Request]func() // ends a stream without its end
	deleting bool
	down     bool            // nothing is answered
	away     map[string]bool // replicas whose node is gone
	hangs    string          // a file that is never sent
	streams  int
	most     int // streams at the same time
}

func (d *logNode) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		panic(http.ErrAbortHandler)
	}
	q := req.URL.Query()
	send := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	switch req.URL.Path {
	case "/api/serve/applications/":
		apps := map[string]any{}
		if d.replicas != nil {
			var replicas []any
			for id, log := range d.replicas {
				node := "n"
				if d.away[id] {
					node = "gone"
				}
				replicas = append(replicas, map[string]any{"replica_id": id, "state": "RUNNING", "node_id": node, "worker_id": "w" + id, "log_file_path": "/" + log})
			}
			app := declare(`{"name":"judges","route_prefix":"/judges","runtime_env":{"env_vars":{"` + varRun + `":"r-1"}},"args":{"llm_configs":[{"model_loading_config":{"model_id":"quality"}}]}}`)
			if d.deleting {
				app["status"], app["deployed_app_config"] = "DELETING", nil
			}
			app["deployments"] = map[string]any{"LLMServer:quality": map[string]any{"replicas": replicas}}
			apps["judges"] = app
		}
		send(map[string]any{"applications": apps, "controller_info": map[string]any{"node_id": "n", "log_file_path": "/serve/controller.log"}})
	case "/api/v0/logs":
		if q.Get("node_id") != "n" {
			http.Error(w, "Failed to reach it within "+q.Get("timeout")+" s", http.StatusInternalServerError)
			return
		}
		var found []string
		for name := range d.files {
			if ok, _ := path.Match(q.Get("glob"), name); ok {
				found = append(found, name)
			}
		}
		send(map[string]any{"data": map[string]any{"result": map[string]any{"internal": found}}})
	default:
		file, n := d.files[q.Get("filename")], 0
		if _, err := fmt.Sscan(q.Get("lines"), &n); err != nil || q.Get("node_id") != "n" || file == nil {
			http.Error(w, "no "+q.Get("filename"), http.StatusInternalServerError)
			return
		}
		if q.Get("filename") == d.hangs {
			d.mu.Unlock()
			<-req.Context().Done()
			d.mu.Lock()
			return
		}
		if n == 0 {
			n = 1000
		}
		at := 0
		if n > 0 {
			at = len(*file) - len(lastOf(*file, n))
		}
		if strings.HasSuffix(req.URL.Path, "/file") {
			_, _ = w.Write([]byte((*file)[at:]))
			return
		}
		ended := make(chan struct{})
		d.open[req] = func() { close(ended) }
		d.streams++
		d.most = max(d.most, len(d.open))
		defer delete(d.open, req)
		for {
			_, _ = w.Write([]byte((*file)[at:]))
			at = len(*file)
			w.(http.Flusher).Flush()
			d.mu.Unlock()
			select {
			case <-req.Context().Done():
				d.mu.Lock()
				return
			case <-ended:
				d.mu.Lock()
				panic(http.ErrAbortHandler)
			case <-time.After(time.Millisecond):
			}
			d.mu.Lock()
		}
	}
}

func lastOf(text string, n int) string {
	parts := strings.SplitAfter(text, "\n")
	if parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	return strings.Join(parts[max(0, len(parts)-n):], "")
}

func (d *logNode) do(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

func (d *logNode) add(file string, lines ...string) {
	*d.files[file] += strings.Join(lines, "\n") + "\n"
}

// rotate moves a file away, which streams go on reading.
func (d *logNode) rotate(file string) {
	for i := 4; i >= 0; i-- {
		name := file
		if i > 0 {
			name += "." + strconv.Itoa(i)
		}
		if f := d.files[name]; f != nil {
			d.files[file+"."+strconv.Itoa(i+1)] = f
		}
	}
	d.files[file] = new(string)
}

// break ends all streams.
func (d *logNode) breakAll() {
	for req, end := range d.open {
		end()
		delete(d.open, req)
	}
}

func (d *logNode) session() *ServeSession {
	d.files, d.open = map[string]*string{}, map[*http.Request]func(){}
	s := httptest.NewServer(d)
	d.t.Cleanup(s.Close)
	quick, silent := wait, serveSilence
	wait, serveSilence = time.Millisecond, 30*time.Millisecond
	d.t.Cleanup(func() { wait, serveSilence = quick, silent })
	return &ServeSession{run: &rundir.Run{Info: rundir.Info{ID: "r-1"}}, serving: Serving{Application: "judges"}, c: newClient(s.URL, http.Header{}, "v")}
}

func texts(lines ...string) *string {
	s := strings.Join(lines, "\n") + "\n"
	return &s
}

// shownLogs gathers what is shown of each log.
type shownLogs struct {
	mu    sync.Mutex
	lines map[string][]string
	lost  []bool
}

func (c *shownLogs) tail(process string, lines int) ServeTail {
	c.lines = map[string][]string{}
	return ServeTail{Process: process, Lines: lines, Logs: func([]string) {},
		Line: func(name, line string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lines[name] = append(c.lines[name], line)
			return nil
		},
		Note: func(string, error) {},
		Lost: func(err error) error { c.lost = append(c.lost, err != nil); return nil }}
}

func (c *shownLogs) await(t *testing.T, name, line string) {
	t.Helper()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		there := slices.Contains(c.lines[name], line)
		c.mu.Unlock()
		if there {
			return
		}
		if time.Since(start) > time.Minute {
			t.Fatalf("no %q of %s", line, name)
		}
	}
}

func count1(from, to int) (out []string) {
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprint("line ", i))
	}
	return out
}

// TestServeFollowLogs breaks streams, takes the dashboard away, rotates a file,
// adds a replica and takes one away: each line is shown once, in its order.
func TestServeFollowLogs(t *testing.T) {
	d := &logNode{t: t, replicas: map[string]string{"a": "serve/a.log"}}
	s := d.session()
	const a, b = "LLMServer:quality a", "LLMServer:quality b"
	d.files["serve/a.log"], d.files["worker-wa-01-1.out"], d.files["worker-wa-01-1.err"], d.files["worker-wa-01-1.err.1"] = texts(count1(1, 5)...), new(string), texts("e2"), texts("e1")
	d.files["serve/b.log"], d.files["serve/controller.log"] = new(string), texts("of all applications")
	var c shownLogs
	tail := c.tail("quality", 2)
	done := make(chan error, 1)
	go func() { done <- s.FollowLogs(context.Background(), tail) }()
	c.await(t, a, "line 5")
	n := 5
	more := func(k int) { d.add("serve/a.log", count1(n+1, n+k)...); n += k }
	last := func() { c.await(t, a, fmt.Sprint("line ", n)) }
	d.do(func() { more(1) })
	last()
	for k := range 20 { // more and more lines while the connection is broken
		d.do(func() { d.breakAll(); more(1 + k*k) })
		last()
	}
	d.do(func() { d.down = true; d.breakAll(); more(3000) })
	time.Sleep(5 * time.Millisecond)
	d.do(func() { d.down = false; more(3) })
	last()
	d.do(func() { more(2); d.rotate("serve/a.log"); more(3) }) // its stream goes on, and says nothing more
	last()
	d.do(func() { d.breakAll(); more(2); d.rotate("serve/a.log"); more(2); d.rotate("serve/a.log") })
	d.do(func() { more(1) })
	last()
	d.do(func() { *d.files["serve/a.log"] += "with"; d.breakAll() })
	d.do(func() { *d.files["serve/a.log"] += "out an end\n"; more(1) })
	last()
	d.do(func() { d.replicas["b"] = "serve/b.log" })
	d.do(func() { d.add("serve/b.log", "b 1") })
	c.await(t, b, "b 1")
	d.do(func() {
		d.add("worker-wa-01-1.out", "said")
		delete(d.replicas, "a")
		*d.files["serve/a.log"] += "its last"
	})
	c.await(t, a, "its last")
	d.do(func() { d.replicas["a"] = "serve/a.log"; d.add("serve/a.log", " words", "and on") }) // nobody had known of it for a while
	c.await(t, a, "and on")
	d.do(func() { d.deleting = true })
	time.Sleep(20 * time.Millisecond) // some looks
	d.do(func() { delete(d.replicas, "b"); delete(d.replicas, "a") })
	time.Sleep(20 * time.Millisecond)
	d.do(func() { d.add("serve/b.log", "b 2"); d.replicas["b"] = "serve/b.log" })
	c.await(t, b, "b 2")
	d.do(func() { d.add("serve/b.log", "b 3"); d.replicas = nil })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	want := append(count1(4, n-1), "without an end", fmt.Sprint("line ", n), "its last", "its last words", "and on")
	if !slices.Equal(c.lines[a], want) {
		t.Errorf("%d lines, want %d", len(c.lines[a]), len(want))
		for i := range want {
			if i >= len(c.lines[a]) || c.lines[a][i] != want[i] {
				t.Fatalf("%q, want %q", c.lines[a][i:min(i+5, len(c.lines[a]))], want[i:min(i+5, len(want))])
			}
		}
	}
	delete(c.lines, a)
	if got, want := fmt.Sprint(c.lines), "map[LLMServer:quality a err:[e1 e2] LLMServer:quality a out:[said] LLMServer:quality b:[b 1 b 2 b 3]]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for i, lost := range c.lost {
		if lost != (i%2 == 0) {
			t.Errorf("told of the dashboard: %v", c.lost)
		}
	}
	var none *errNoReplicas
	if err := s.FollowLogs(context.Background(), tail); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
}

// TestServeFollowLogsEnds: with a failure of the reader's side, and of ctx.
func TestServeFollowLogsEnds(t *testing.T) {
	d := &logNode{t: t, replicas: map[string]string{"a": "serve/a.log"}}
	s := d.session()
	d.files["serve/a.log"] = texts("one")
	failing := errors.New("no")
	tail := new(shownLogs).tail("", -1)
	tail.Line = func(string, string) error { return failing }
	if err := s.FollowLogs(context.Background(), tail); !errors.Is(err, failing) {
		t.Error(err)
	}
	if err := s.Logs(context.Background(), tail); !errors.Is(err, failing) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tail.Line = func(string, string) error { cancel(); return nil }
	if err := s.FollowLogs(ctx, tail); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestServeManyLogs leaves requests to others: what has no stream is caught up
// with.
func TestServeManyLogs(t *testing.T) {
	d := &logNode{t: t, replicas: map[string]string{}}
	s := d.session()
	serveSilence = time.Minute
	for i := range mostStreams + 40 {
		d.replicas[fmt.Sprint(i)] = fmt.Sprint("serve/", i, ".log")
		d.files[fmt.Sprint("serve/", i, ".log")] = new(string)
	}
	var c shownLogs
	done := make(chan error, 1)
	tail := c.tail("", 5)
	go func() { done <- s.FollowLogs(context.Background(), tail) }()
	for k := range 3 {
		d.do(func() {
			for i := range d.replicas {
				d.add("serve/"+i+".log", fmt.Sprint(i, " said ", k))
			}
		})
		for i := range mostStreams + 40 {
			c.await(t, fmt.Sprint("LLMServer:quality ", i), fmt.Sprint(i, " said ", k))
		}
	}
	d.do(func() { d.replicas = nil })
	err := <-done
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || d.most > mostStreams+20 { // one that its reader has left may still be one for the node
		t.Errorf("%v; %d streams", err, d.most)
	}
	for name, lines := range c.lines {
		if len(lines) != 3 {
			t.Errorf("%s: %q", name, lines)
		}
	}
}

// TestServeFollowLogsOfGone: a node that is gone, or hangs, is told and hides no
// other.
func TestServeFollowLogsOfGone(t *testing.T) {
	d := &logNode{t: t, replicas: map[string]string{"a": "serve/a.log", "b": "serve/b.log", "c": "serve/c.log"}, away: map[string]bool{"b": true}, hangs: "serve/c.log"}
	s := d.session()
	after, quiet := noteAfter, logStall
	noteAfter, logStall = time.Millisecond, 20*time.Millisecond
	t.Cleanup(func() { noteAfter, logStall = after, quiet })
	d.files["serve/a.log"], d.files["serve/c.log"] = texts("a 1"), texts("c 1")
	var c shownLogs
	tail := c.tail("", 1)
	noted := make(chan string, 9)
	tail.Note = func(name string, err error) { noted <- name + ": " + err.Error() }
	done := make(chan error, 1)
	go func() { done <- s.FollowLogs(context.Background(), tail) }()
	c.await(t, "LLMServer:quality a", "a 1")
	notes := []string{<-noted, <-noted}
	slices.Sort(notes)
	if !strings.HasPrefix(notes[0], "LLMServer:quality b: Ray answers 500: no serve/b.log") || !strings.HasPrefix(notes[1], "LLMServer:quality c: ") || !strings.Contains(notes[1], "it sent nothing of the log") {
		t.Errorf("%q", notes)
	}
	d.do(func() { d.replicas = nil })
	if err := <-done; err != nil || len(c.lost) > 0 || len(noted) > 0 {
		t.Errorf("%v, told of the dashboard: %v", err, c.lost)
	}
}

// TestServeFollowLogsRepeating: a line that is there again and again is no place to
// go on from.
func TestServeFollowLogsRepeating(t *testing.T) {
	d := &logNode{t: t, replicas: map[string]string{"a": "serve/a.log"}}
	s := d.session()
	const a = "LLMServer:quality a"
	d.files["serve/a.log"] = texts("one", "")
	var c shownLogs
	done := make(chan error, 1)
	tail := c.tail("", 0)
	go func() { done <- s.FollowLogs(context.Background(), tail) }()
	for streams := 0; streams == 0; time.Sleep(time.Millisecond) {
		d.do(func() { streams = d.streams })
	}
	d.do(func() { d.breakAll(); d.add("serve/a.log", "two", "") })
	c.await(t, a, "two")
	d.do(func() { d.replicas = nil })
	if err := <-done; err != nil || !slices.Equal(c.lines[a], []string{"two", ""}) {
		t.Errorf("%q, %v", c.lines[a], err)
	}
	// More came than the stream begins with.
	r := s.reader(serveLog{a, "n", "serve/a.log"}, tail, nil)
	r.shown.add(append(count1(1, 20), ""))
	d.do(func() { d.files["serve/a.log"] = texts(append([]string{""}, count1(100, 120)...)...) })
	if err := r.stream(context.Background(), 22); !errors.Is(err, errApart) {
		t.Error(err)
	}
}

func TestServeLogs(t *testing.T) {
	d := &logNode{t: t, replicas: map[string]string{"a": "serve/a.log", "b": ""}}
	s := d.session()
	end := "\x1b[31mline 7\x1b[0m\nline 8"
	d.files["serve/a.log"], d.files["serve/a.log.1"], d.files["serve/a.log.2"] = &end, texts(count1(4, 6)...), texts(count1(1, 3)...)
	d.files["serve/controller.log"] = texts("decides")
	var c shownLogs
	for n, from := range map[int]int{-1: 1, 0: 9, 1: 8, 2: 7, 3: 6, 5: 4, 6: 3, 100: 1} {
		if err := s.Logs(context.Background(), c.tail("", n)); err != nil || !slices.Equal(c.lines["LLMServer:quality a"], count1(from, 8)) {
			t.Errorf("%d lines: %q, %v", n, c.lines, err)
		}
	}
	if err := s.Logs(context.Background(), c.tail("controller", 1)); err != nil || fmt.Sprint(c.lines) != "map[controller:[decides]]" {
		t.Errorf("%q, %v", c.lines, err)
	}
	for process, want := range map[string]string{"qualty": `r-1 has no process qualty; did you mean "quality"?`, "x": "r-1 has no process x; there are LLMServer:quality, controller"} {
		if err := s.Logs(context.Background(), c.tail(process, 1)); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	d.replicas["c"] = "serve/c.log" // which its node does not have
	if err := s.Logs(context.Background(), c.tail("", 1)); err == nil || !strings.Contains(err.Error(), "the log of LLMServer:quality c: Ray answers 500: no serve/c.log") || !slices.Equal(c.lines["LLMServer:quality a"], []string{"line 8"}) {
		t.Errorf("%q, %v", c.lines, err)
	}
	delete(d.replicas, "c")
	d.replicas["d"], d.replicas["e"], d.away = "", "", map[string]bool{"d": true, "e": true}
	if err := s.Logs(context.Background(), c.tail("", 1)); err == nil || err.Error() != "the logs of node gone: Ray answers 500: Failed to reach it within 10 s" || !slices.Equal(c.lines["LLMServer:quality a"], []string{"line 8"}) {
		t.Errorf("%q, %v", c.lines, err)
	}
	d.replicas = map[string]string{}
	if err := s.Logs(context.Background(), c.tail("", 1)); err != nil || fmt.Sprint(c.lines) != "map[controller:[decides]]" {
		t.Errorf("%q, %v", c.lines, err)
	}
}

func TestSeam(t *testing.T) {
	split := func(s string) []string { return strings.Split(s, "") }
	for _, c := range []struct {
		shown, lines string
		least, want  int
	}{
		{"", "abc", 8, -1}, {"abc", "abc", 8, 3}, {"abc", "abcd", 8, 3}, {"abc", "d", 8, -1}, {"abc", "c", 8, -1}, {"abc", "cd", 1, 1}, {"abc", "bcd", 2, 2},
		{"abcdefghij", "cdefghijk", 8, 8}, {"abcdefghij", "defghijk", 8, -1}, {"aab", "aabaab", 8, 6}, {"aaa", "aaaaa", 8, 5},
	} {
		s := seam{seed: maphash.MakeSeed()}
		if c.shown != "" {
			s.add(split(c.shown))
		}
		if got := s.find(split(c.lines), c.least); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
	s := seam{seed: maphash.MakeSeed()}
	for i := range 10 * seamMost {
		s.add([]string{fmt.Sprint(i)})
	}
	if len(s.last) > 5*seamMost {
		t.Errorf("%d are remembered", len(s.last))
	}
}
