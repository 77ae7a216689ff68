package kuberay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"genrm.dev/genrm/launchers/rundir"
)

// node is a stand-in of the API server with the pods of one object.
type node struct {
	t      *testing.T
	mu     sync.Mutex
	object map[string]any // nil: it is gone
	pods   []*podOnNode
	looks  int
	looked func(looks int)                       // before each look at the object; under the lock
	asked  func(pod string, n int) (breaks bool) // each request to follow, after what there is was written; under the lock
}

type podOnNode struct {
	name    string
	uid     string
	started bool
	phase   string
	lines   []string
	follows int
	denied  int // the status of each answer about its log
	gone    chan struct{}
}

func (p *podOnNode) object() map[string]any {
	state := map[string]any{"waiting": map[string]any{}}
	if p.started {
		state = map[string]any{"running": map[string]any{}}
	}
	if p.phase != "" {
		state = map[string]any{"terminated": map[string]any{"exitCode": 0}}
	}
	return map[string]any{"metadata": map[string]any{"name": p.name, "namespace": "ml", "uid": p.name + p.uid},
		"spec":   map[string]any{"containers": []any{map[string]any{"name": "first"}}},
		"status": map[string]any{"phase": p.phase, "containerStatuses": []any{map[string]any{"name": "first", "state": state}}}}
}

func (n *node) pod(name string) *podOnNode {
	for _, p := range n.pods {
		if p.name == name {
			return p
		}
	}
	return nil
}

// remove takes a pod away, with what is being followed of it. Under the lock.
func (n *node) remove(name string) {
	close(n.pod(name).gone)
	n.pods = slices.DeleteFunc(n.pods, func(p *podOnNode) bool { return p.name == name })
}

func (n *node) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	send := func(v any) { _ = json.NewEncoder(w).Encode(v) }
	missing := func(code int) {
		w.WriteHeader(code)
		send(map[string]any{"kind": "Status", "code": code, "reason": "NotFound"})
	}
	_, path, _ := strings.Cut(req.URL.Path, "/namespaces/ml/")
	parts := strings.Split(path, "/")
	switch {
	case parts[0] == "rayservices" || parts[0] == "rayjobs":
		if n.looks++; n.looked != nil {
			n.looked(n.looks)
		}
		if n.object == nil {
			missing(404)
			return
		}
		send(n.object)
	case len(parts) == 1:
		items := []any{}
		for _, p := range n.pods {
			items = append(items, p.object())
		}
		send(map[string]any{"items": items})
	case n.pod(parts[1]) == nil:
		missing(404)
	case len(parts) == 2:
		send(n.pod(parts[1]).object())
	case n.pod(parts[1]).denied > 0:
		missing(n.pod(parts[1]).denied)
	case !n.pod(parts[1]).started:
		missing(400)
	default:
		p, q := n.pod(parts[1]), req.URL.Query()
		w.Header().Set("Content-Type", "text/plain")
		stamp := func(i int) time.Time { // three lines a second, two of them at the same time
			return time.Date(2026, 1, 2, 3, 4, i/3, i%3/2, time.UTC)
		}
		from := 0
		if tail, err := strconv.Atoi(q.Get("tailLines")); err == nil {
			from = max(0, len(p.lines)-tail)
		}
		since, err := time.Parse(time.RFC3339, q.Get("sinceTime"))
		for i := from; i < len(p.lines); i++ {
			if err == nil && stamp(i).Before(since) {
				continue
			}
			_, _ = io.WriteString(w, stamp(i).Format(time.RFC3339Nano)+" "+p.lines[i]+"\n")
		}
		if q.Get("follow") == "" {
			return
		}
		w.(http.Flusher).Flush()
		p.follows++
		if n.asked(p.name, p.follows) {
			panic(http.ErrAbortHandler)
		}
		n.mu.Unlock()
		select {
		case <-req.Context().Done():
		case <-p.gone:
		}
		n.mu.Lock()
	}
}

func (n *node) session(kind string) *Session {
	lookAgain = time.Millisecond
	n.t.Cleanup(func() { lookAgain = lookEvery })
	c := dial(n.t, n.ServeHTTP)
	c.namespace = "ml"
	c.timeout = 10 * time.Second
	return &Session{c: c, object: Object{Kind: kind, Name: "o", Namespace: "ml", UID: "u"}, run: &rundir.Run{Info: rundir.Info{ID: "r-1"}}}
}

func service(conditions ...any) map[string]any {
	return map[string]any{"metadata": map[string]any{"uid": "u"}, "status": map[string]any{"activeServiceStatus": map[string]any{"rayClusterName": "k"}, "conditions": conditions}}
}

// collected gathers what is shown of each pod.
type collected struct {
	mu    sync.Mutex
	lines map[string][]string
	notes []string
	lost  []bool
}

func (c *collected) tail(lines int) PodTail {
	c.lines = map[string][]string{}
	return PodTail{Lines: lines, Pods: func([]string) {},
		Line: func(pod, line string) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.lines[pod] = append(c.lines[pod], line)
			return nil
		},
		Note: func(pod string, err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.notes = append(c.notes, pod)
		},
		Lost: func(err error) error {
			c.lost = append(c.lost, err != nil)
			return nil
		}}
}

func numbered(name string, from, to int) []string {
	var out []string
	for i := from; i <= to; i++ {
		out = append(out, fmt.Sprintf("%s%d", name, i))
	}
	return out
}

// TestFollowPods: a pod whose stream breaks, one that starts later, one that
// goes, one that comes, and the end of the run while a stream goes on.
func TestFollowPods(t *testing.T) {
	n := &node{t: t, object: service(), pods: []*podOnNode{
		{name: "a", started: true, lines: numbered("a", 1, 5), gone: make(chan struct{})},
		{name: "b", lines: numbered("b", 1, 3), gone: make(chan struct{})},
	}}
	n.asked = func(pod string, k int) bool {
		switch fmt.Sprint(pod, k) {
		case "a1":
			n.pod("a").lines = numbered("a", 1, 6) // before the break is seen
			return true
		case "a2":
			n.pod("b").started = true
		case "b1":
			n.remove("a")
			n.pods = append(n.pods, &podOnNode{name: "c", started: true, lines: []string{"c1"}, gone: make(chan struct{})})
		case "c1":
			n.pod("c").lines = []string{"c1", "c2"}
			n.object = nil
		}
		return false
	}
	s := n.session("RayService")
	var c collected
	if err := s.FollowPods(context.Background(), c.tail(2)); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"a": numbered("a", 4, 6), "b": numbered("b", 1, 3), "c": {"c1", "c2"}}
	for pod, lines := range want {
		if !slices.Equal(c.lines[pod], lines) {
			t.Errorf("%s: %q, want %q", pod, c.lines[pod], lines)
		}
	}
	if len(c.lines) != len(want) || len(c.notes) > 0 {
		t.Errorf("%q, notes about %q", c.lines, c.notes)
	}
	var none *ErrNoLog
	if err := s.FollowPods(context.Background(), c.tail(2)); !errors.As(err, &none) {
		t.Errorf("of a run that is gone: %v", err)
	}
}

// TestFollowPodsEnds: with a failure of the reader's side, and of ctx.
func TestFollowPodsEnds(t *testing.T) {
	n := &node{t: t, object: service(), pods: []*podOnNode{{name: "a", started: true, lines: []string{"a1"}, gone: make(chan struct{})}}}
	n.asked = func(string, int) bool { return false }
	s := n.session("RayService")
	failing := errors.New("no")
	tail := new(collected).tail(-1)
	tail.Line = func(string, string) error { return failing }
	if err := s.FollowPods(context.Background(), tail); !errors.Is(err, failing) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	tail.Line = func(string, string) error { cancel(); return nil }
	if err := s.FollowPods(ctx, tail); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestPodLogs(t *testing.T) {
	n := &node{t: t, object: service(), pods: []*podOnNode{
		{name: "head", started: true, lines: numbered("h", 1, 9), gone: make(chan struct{})},
		{name: "worker-1", gone: make(chan struct{})},
		{name: "worker-2", started: true, phase: "Failed", lines: numbered("w", 1, 2), gone: make(chan struct{})},
	}}
	n.asked = func(string, int) bool { return false }
	s := n.session("RayService")
	var c collected
	for lines, want := range map[int]string{-1: "map[head:[h1 h2 h3 h4 h5 h6 h7 h8 h9] worker-2:[w1 w2]]", 3: "map[head:[h7 h8 h9] worker-2:[w1 w2]]", 0: "map[]"} {
		if err := s.PodLogs(context.Background(), c.tail(lines)); err != nil || fmt.Sprint(c.lines) != want {
			t.Errorf("%d lines: %v, %v, want %s", lines, c.lines, err, want)
		}
	}
	one := func(pod string, lines int) PodTail {
		t := c.tail(lines)
		t.Pod = pod
		return t
	}
	if err := s.PodLogs(context.Background(), one("head", 2)); err != nil || fmt.Sprint(c.lines) != "map[head:[h8 h9]]" {
		t.Errorf("%q, %v", c.lines, err)
	}
	for pod, want := range map[string]string{"worker-3": `r-1 has no pod worker-3; did you mean "worker-1" or "worker-2"?`, "quality": "r-1 has no pod quality; there are head, worker-1, worker-2"} {
		for _, show := range []func(context.Context, PodTail) error{s.PodLogs, s.FollowPods} {
			if err := show(context.Background(), one(pod, 2)); err == nil || err.Error() != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
	}
	// A node that is gone hides no other pod.
	n.pod("head").denied = 500
	if err := s.PodLogs(context.Background(), c.tail(1)); err == nil || !strings.Contains(err.Error(), "the log of head: ") || fmt.Sprint(c.lines) != "map[worker-2:[w2]]" {
		t.Errorf("%q, %v", c.lines, err)
	}
	// What cannot be read at all ends the following of one pod.
	n.pod("head").denied = 403
	if err := s.FollowPods(context.Background(), one("head", 1)); status(err) != 403 || len(c.notes) > 0 {
		t.Errorf("%v, notes about %q", err, c.notes)
	}
	n.pod("head").denied = 0
	// One that has not started is waited for, and one that has ended is the end.
	n.looks = 0
	n.looked = func(looks int) {
		if w := n.pod("worker-1"); looks > 2 && !w.started {
			w.started, w.lines = true, numbered("w", 1, 3)
		}
	}
	n.asked = func(pod string, k int) bool {
		n.pod(pod).phase = "Succeeded"
		return true
	}
	if err := s.FollowPods(context.Background(), one("worker-1", 1)); err != nil || fmt.Sprint(c.lines) != "map[worker-1:[w1 w2 w3]]" {
		t.Errorf("%q, %v", c.lines, err)
	}
	// A stream that ends says nothing of its pod; one that goes while it is broken ends.
	n.asked = func(pod string, k int) bool {
		switch p := n.pod(pod); k {
		case 1:
			p.lines = numbered("h", 1, 11)
			close(p.gone)
		default:
			n.pods = n.pods[1:]
		}
		return k > 1
	}
	if err := s.FollowPods(context.Background(), one("head", 1)); err != nil || fmt.Sprint(c.lines) != "map[head:[h9 h10 h11]]" {
		t.Errorf("%q, %v", c.lines, err)
	}
}

// TestFollowPodsBegins: what comes while the first connection is broken is no part
// of what was there before.
func TestFollowPodsBegins(t *testing.T) {
	for _, there := range []int{0, 3} {
		n := &node{t: t, object: service(), pods: []*podOnNode{{name: "a", started: true, lines: numbered("a", 1, there), gone: make(chan struct{})}}}
		n.asked = func(_ string, k int) bool {
			if k == 1 {
				n.pod("a").lines = numbered("a", 1, there+4)
				return true
			}
			n.object = nil
			return false
		}
		s := n.session("RayService")
		for _, lines := range []int{0, 1} {
			n.object, n.pod("a").lines, n.pod("a").follows = service(), numbered("a", 1, there), 0
			var c collected
			if err := s.FollowPods(context.Background(), c.tail(lines)); err != nil {
				t.Fatal(err)
			}
			if want := numbered("a", max(1, there-lines+1), there+4); !slices.Equal(c.lines["a"], want) {
				t.Errorf("%d lines of %d: %q, want %q", lines, there, c.lines["a"], want)
			}
		}
	}
}

// TestFollowOn goes over from the end of what is there to what comes, of a job
// with two submitters.
func TestFollowOn(t *testing.T) {
	job := func(state string) map[string]any {
		return map[string]any{"metadata": map[string]any{"uid": "u"}, "status": map[string]any{"jobDeploymentStatus": state}}
	}
	n := &node{t: t, object: job("Running"), pods: []*podOnNode{
		{name: "a", started: true, phase: "Failed", lines: numbered("a", 1, 4), gone: make(chan struct{})},
		{name: "b", started: true, lines: numbered("b", 1, 4), gone: make(chan struct{})},
	}}
	n.asked = func(pod string, k int) bool {
		b := n.pod("b")
		if pod != "b" {
			t.Errorf("%s is followed", pod)
		}
		if k == 1 {
			b.lines = numbered("b", 1, 7)
			return true
		}
		b.phase, n.object = "Succeeded", job("Complete")
		close(b.gone)
		return false
	}
	s := n.session("RayJob")
	var out strings.Builder
	caught := func() error { // while nobody reads
		n.mu.Lock()
		defer n.mu.Unlock()
		out.WriteString("--\n")
		n.pod("b").lines = numbered("b", 1, 5)
		return nil
	}
	if err := s.FollowOn(context.Background(), &out, caught, func(error) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if want := strings.Join(append(append(append(numbered("a", 1, 4), numbered("b", 1, 4)...), "--"), numbered("b", 5, 7)...), "\n") + "\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	failing := errors.New("no")
	if err := s.FollowOn(context.Background(), io.Discard, func() error { return failing }, nil); !errors.Is(err, failing) {
		t.Error(err)
	}
}

// TestFollowOnRay is TestFollowOn of a job whose log is Ray's own.
func TestFollowOnRay(t *testing.T) {
	var mu sync.Mutex
	text := "one\ntwo\n"
	c := dial(t, func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch path := req.URL.Path; {
		case strings.HasSuffix(path, "/logs/tail"):
			conn, err := websocket.Accept(w, req, nil)
			if err != nil {
				t.Error(err)
				return
			}
			_ = conn.Write(req.Context(), websocket.MessageText, []byte(text))
			_ = conn.Close(websocket.StatusNormalClosure, "")
		case strings.HasSuffix(path, "/logs"):
			_, _ = fmt.Fprintf(w, `{"logs": %q}`, text)
		case strings.HasSuffix(path, "/api/jobs/j"):
			_, _ = io.WriteString(w, `{"status": "SUCCEEDED", "driver_agent_http_address": "x"}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"metadata": {"uid": "u"}, "spec": {"submissionMode": "HTTPMode"}, "status": {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED", "jobId": "j", "rayClusterName": "k"}}`)
		}
	})
	c.namespace = "ml"
	s := &Session{c: c, object: Object{Kind: "RayJob", Name: "o", Namespace: "ml", UID: "u"}, run: &rundir.Run{}}
	var out strings.Builder
	err := s.FollowOn(context.Background(), &out, func() error {
		mu.Lock()
		defer mu.Unlock()
		out.WriteString("--\n")
		text += "three\n"
		return nil
	}, func(err error) error { return err })
	if want := "one\ntwo\n--\nthree\n"; err != nil || out.String() != want {
		t.Errorf("%q, %v, want %q", out.String(), err, want)
	}
}

// TestRefusalsLast: an API server that was away for long has as much time to start as
// any other.
func TestRefusalsLast(t *testing.T) {
	away, no := &Unreachable{errors.New("away")}, errors.New("forbidden")
	ago := time.Now().Add(-2 * patience)
	for name, c := range map[string]struct {
		since time.Time
		err   error
		last  bool
		kept  bool
	}{
		"the first": {time.Time{}, no, false, true}, "lasts": {ago, no, true, true}, "away": {ago, away, false, false}, "answers": {ago, nil, false, false},
	} {
		r := Refusals{c.since}
		if last := r.Last(c.err); last != c.last || r.since.IsZero() == c.kept {
			t.Errorf("%s: %v, since %s", name, last, r.since)
		}
	}
}

// TestPodLogHangs: the log of a node that is gone, which has been begun or not.
func TestPodLogHangs(t *testing.T) {
	for _, begun := range []string{"2026-01-02T03:04:05Z a1\n", ""} {
		c := dial(t, func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			if begun != "" {
				_, _ = io.WriteString(w, begun)
				w.(http.Flusher).Flush()
			}
			<-req.Context().Done()
		})
		var out strings.Builder
		f := &podLog{c: c, out: &out, tail: -1}
		f.next("a")
		err := f.follow(context.Background(), "first", false)
		if !again(err) || !strings.Contains(err.Error(), "sent nothing of the log of a for 300ms") {
			t.Error(err)
		}
		if want := begun[strings.IndexByte(begun, ' ')+1:]; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := f.follow(ctx, "first", false); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
