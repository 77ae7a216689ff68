package rundir

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"genrm.dev/genrm/launchers/proc"
)

// create makes a run in root.
func create(t *testing.T, root string, info Info) *Run {
	t.Helper()
	r, err := Create(root, info, map[string][]byte{PlanFile: []byte("{}\n"), "nodes/0.1.json": []byte("{}\n"), "artifacts/it's a file.json": []byte("[]\n")})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// write replaces a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCreate(t *testing.T) {
	root := filepath.Join(t.TempDir(), "runs of 'me'", ".genrm", "runs")
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	id := NewID("judges", now)
	if !regexp.MustCompile(`^judges-20260102-020405-[0-9a-f]{6}$`).MatchString(id) {
		t.Errorf("id %s", id)
	}
	info := Info{ID: id, Name: "judges", Workload: "serve", Target: "local", Created: now, PlanHash: "ab", Version: "v1", Host: "h", User: "u", WorkDir: "/w <&> \u2028", Binary: "/b"}
	r := create(t, root, info)
	if r.Dir != filepath.Join(root, id) || r.Path("nodes/0.1.json") != filepath.Join(root, id, "nodes", "0.1.json") || r.LogPath("x") != filepath.Join(root, id, "logs", "x.log") {
		t.Errorf("paths: %s, %s, %s", r.Dir, r.Path("nodes/0.1.json"), r.LogPath("x"))
	}
	again, err := Open(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Created.Equal(now) {
		t.Errorf("created at %s", again.Created)
	}
	if again.Created = info.Created; again.Info != info {
		t.Errorf("read again: %+v", again.Info)
	}
	for _, dir := range []string{"", "logs", "nodes", "artifacts"} {
		if st, err := os.Stat(filepath.Join(r.Dir, dir)); err != nil || !st.IsDir() || st.Mode().Perm()&0o055 != 0o055 {
			t.Errorf("%q: %v %v", dir, st, err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(root, "..", ".gitignore")); string(data) != "*\n" {
		t.Errorf(".gitignore: %q %v", data, err)
	}
	if entries, err := os.ReadDir(root); len(entries) != 1 {
		t.Errorf("the folder of runs has %v, %v", entries, err)
	}
	if err := r.Verify(); err != nil {
		t.Error(err)
	}
	// The same id again, and names that leave the folder, make nothing.
	for _, c := range []struct {
		id   string
		file string
	}{{id, "a"}, {id + "2", "../a"}, {id + "3", "/a"}, {id + "4", "a/../../b"}, {id + "5", "run.json/a"}} {
		if _, err := Create(root, Info{ID: c.id}, map[string][]byte{c.file: nil}); err == nil {
			t.Errorf("%s with %s: no error", c.id, c.file)
		}
	}
	if entries, err := os.ReadDir(root); len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
	// A .gitignore of the user's stays.
	write(t, filepath.Join(root, "..", ".gitignore"), "mine\n")
	create(t, root, Info{ID: "b"})
	if data, _ := os.ReadFile(filepath.Join(root, "..", ".gitignore")); string(data) != "mine\n" {
		t.Errorf(".gitignore: %q", data)
	}
}

func TestVerify(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*testing.T, *Run)
		want   string // in the error; "" for none
	}{
		{"nothing", func(*testing.T, *Run) {}, ""},
		{"a status and logs", func(t *testing.T, r *Run) {
			write(t, r.Path("status.json"), "{}")
			write(t, r.LogPath("a"), "x")
		}, ""},
		{"one byte", func(t *testing.T, r *Run) { write(t, r.Path(PlanFile), "{}") }, "changed since the run was made: plan.json; launch again"},
		{"one missing", func(t *testing.T, r *Run) {
			if err := os.Remove(r.Path("nodes/0.1.json")); err != nil {
				t.Fatal(err)
			}
		}, "changed since the run was made: nodes/0.1.json; launch again"},
		{"several", func(t *testing.T, r *Run) {
			write(t, r.Path("run.json"), "{}")
			write(t, r.Path(PlanFile), "")
			write(t, r.Path("artifacts/it's a file.json"), "")
		}, "changed since the run was made: artifacts/it's a file.json, plan.json, run.json; launch again"},
		{"the hashes' file missing", func(t *testing.T, r *Run) {
			if err := os.Remove(r.Path("frozen.json")); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		{"the hashes' file broken", func(t *testing.T, r *Run) { write(t, r.Path("frozen.json"), "{") }, "frozen.json: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := create(t, t.TempDir(), Info{ID: "r"})
			c.change(t, r)
			err := r.Verify()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestRoot(t *testing.T) {
	base := t.TempDir()
	for _, dir := range []string{"module/cue.mod", "module/a/b", "other/a", "file/a"} {
		if err := os.MkdirAll(filepath.Join(base, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(base, "file", "cue.mod"), "") // no folder: no module
	for _, c := range []struct{ env, cwd, want string }{
		{"/runs", "module/a", "/runs"},
		{"", "module", "module/.genrm/runs"},
		{"", "module/a/b", "module/.genrm/runs"},
		{"", "other/a", "other/a/.genrm/runs"},
		{"", "file/a", "file/a/.genrm/runs"},
	} {
		want := c.want
		if !filepath.IsAbs(want) {
			want = filepath.Join(base, want)
		}
		if got := Root(c.env, filepath.Join(base, c.cwd)); got != want {
			t.Errorf("Root(%q, %s) = %s, want %s", c.env, c.cwd, got, want)
		}
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	if _, err := Find(root, Last); err == nil || err.Error() != "no run in "+root {
		t.Errorf("of none: %v", err)
	}
	if all, err := List(filepath.Join(root, "none")); all != nil || err != nil {
		t.Errorf("a folder that there is not: %v, %v", all, err)
	}
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	// In the order of their names the newest is the first.
	for i, id := range []string{"judges-b-2", "judges-b-1", "judges-b", "judges-a"} {
		create(t, root, Info{ID: id, Created: day.Add(time.Duration(i) * time.Hour)})
	}
	for _, dir := range []string{".bin", ".new-1", "empty"} { // no runs
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(root, "file"), "")
	write(t, filepath.Join(root, ".new-1", "run.json"), `{"run_id": "judges-new"}`) // being made
	if err := os.Symlink("nowhere", filepath.Join(root, "judges-gone")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ref, want, err string
		several        int
	}{
		{"judges-a", "judges-a", "", 0},
		{"judges-b", "judges-b", "", 0}, // an id, although it begins others
		{"judges-b-2", "judges-b-2", "", 0},
		{"@last", "judges-a", "", 0},
		{"judges-b-", "", "judges-b- is the beginning of 2 runs: judges-b-2, judges-b-1", 2},
		{"j", "", "j is the beginning of 4 runs: judges-b-2, judges-b-1, judges-b, judges-a", 4},
		{"judges-c", "", "no run judges-c in " + root + "; did you mean", 0},
		{"jugdes-b-2", "", `did you mean "judges-b-2"`, 0},
		{"x", "", "no run x in " + root, 0},
		{"", "", "no run", 0},
		{"empty", "", "no run empty in", 0},
		{"../judges-a", "", "no run ../judges-a in", 0},
	} {
		r, err := Find(root, c.ref)
		if c.err == "" {
			if err != nil || r.ID != c.want {
				t.Errorf("Find(%q) = %+v, %v, want %s", c.ref, r, err, c.want)
			}
			continue
		}
		var missing *NotFound
		if r != nil || !errors.As(err, &missing) || !strings.Contains(err.Error(), c.err) || len(missing.Several) != c.several {
			t.Errorf("Find(%q) = %+v, %v, want an error with %q", c.ref, r, err, c.err)
		}
	}
	all, err := List(root)
	var ids []string
	for _, r := range all {
		ids = append(ids, r.ID)
	}
	if want := []string{"judges-b-2", "judges-b-1", "judges-b", "judges-a"}; err != nil || !slices.Equal(ids, want) {
		t.Errorf("List = %v, %v", ids, err)
	}
}

// A reader never sees half a file, nor another's temporary one.
func TestWriteIsAtomic(t *testing.T) {
	r := create(t, t.TempDir(), Info{ID: "r"})
	type doc struct {
		N    int
		Fill string
	}
	size := func(n int) string { return strings.Repeat("x", n%7*10000) }
	if err := r.Write("status.json", doc{}); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				var d doc
				if err := r.Read("status.json", &d); err != nil || d.Fill != size(d.N) {
					t.Errorf("read %d, %d bytes: %v", d.N, len(d.Fill), err)
					return
				}
			}
		})
	}
	var writers sync.WaitGroup
	for w := range 2 {
		writers.Go(func() {
			for i := range 50 {
				n := i + 1000*w
				if err := r.Write("status.json", doc{n, size(n)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(done)
	wg.Wait()
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".tmp") {
			t.Errorf("%s was left", e.Name())
		}
	}
	if st, err := os.Stat(r.Path("status.json")); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("%v %v", st, err)
	}
	// What cannot be written leaves the file that was there.
	if err := r.Write("status.json", map[string]any{"f": func() {}}); err == nil {
		t.Error("a function was written")
	}
	var d doc
	if err := r.Read("status.json", &d); err != nil {
		t.Error(err)
	}
	if err := r.Write("run.json/x", d); err == nil {
		t.Error("a file below a file was written")
	}
	// A run whose folder was removed does not come back.
	if err := os.RemoveAll(r.Dir); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{r.Write("status.json", d), r.AppendEvent(Event{}), r.RequestStop("me")} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after the folder was removed: %v", err)
		}
	}
	if r.Exists() {
		t.Error("the run came back")
	}
}

func TestText(t *testing.T) {
	got, err := Text(map[string]string{"url": "http://a?b=1&c=<2>"})
	if want := "{\n  \"url\": \"http://a?b=1&c=<2>\"\n}\n"; err != nil || string(got) != want {
		t.Errorf("%q, %v", got, err)
	}
}

func TestStopRequest(t *testing.T) {
	r := create(t, t.TempDir(), Info{ID: "r"})
	if _, ok := r.StopRequested(); ok {
		t.Error("nobody has asked")
	}
	if err := r.RequestStop("me@here"); err != nil {
		t.Fatal(err)
	}
	if s, ok := r.StopRequested(); !ok || s.By != "me@here" || time.Since(s.Time) > time.Minute {
		t.Errorf("%+v %v", s, ok)
	}
}

// A run is lost when its supervisor of this machine is gone before its end, and
// not on somebody else's word.
func TestStatusLost(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	self := proc.Identify(os.Getpid())
	if self.Start == 0 {
		t.Skip("processes cannot be seen here")
	}
	gone := proc.ID{PID: self.PID, Start: self.Start - 1}
	boot := proc.BootID()
	for _, c := range []struct {
		name   string
		state  State
		up     *Supervisor
		want   State
		reason string
		here   bool
	}{
		{"at work", Ready, &Supervisor{self, host, boot}, Ready, "", true},
		{"gone", Ready, &Supervisor{gone, host, boot}, Lost, "its supervisor is gone without having ended it; `genrm stop r` ends what is left", true},
		{"gone while starting", Starting, &Supervisor{gone, host, boot}, Lost, "its supervisor is gone", true},
		{"gone while stopping", Stopping, &Supervisor{gone, host, boot}, Lost, "its supervisor is gone", true},
		{"gone after the end", Stopped, &Supervisor{gone, host, boot}, Stopped, "", true},
		{"failed", Failed, &Supervisor{gone, host, boot}, Failed, "", true},
		{"another boot", Ready, &Supervisor{self, host, "another"}, Lost, "the machine was started anew", false},
		{"another machine", Ready, &Supervisor{gone, host + "-2", "another"}, Ready, "", false},
		{"not told", Ready, nil, Ready, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := create(t, t.TempDir(), Info{ID: "r"})
			if err := r.WriteStatus(&Status{RunID: "r", State: c.state, Supervisor: c.up}); err != nil {
				t.Fatal(err)
			}
			st, err := r.Status()
			if err != nil || st.State != c.want || !strings.HasPrefix(st.Reason, c.reason) || (st.Reason == "") != (c.reason == "") {
				t.Errorf("%+v, %v", st, err)
			}
			if c.up != nil && c.up.Here() != c.here {
				t.Errorf("Here() = %v", !c.here)
			}
		})
	}
}

// A launcher that was killed before it had started a supervisor leaves no run
// that is starting for ever.
func TestStatusNeverBegan(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Skip(err)
	}
	hour := time.Now().Add(-time.Hour)
	for _, c := range []struct {
		name string
		info Info
		want State
	}{
		{"long ago", Info{Target: "local", Host: host, Created: hour}, Lost},
		{"just now", Info{Target: "local", Host: host, Created: time.Now()}, Starting},
		{"by a clock that was set back", Info{Target: "local", Host: host, Created: time.Now().Add(time.Hour)}, Starting},
		{"on another machine", Info{Target: "local", Host: host + "-2", Created: hour}, Starting},
		{"in a queue", Info{Target: "slurm", Host: host, Created: hour}, Starting},
	} {
		c.info.ID = "r"
		if st, err := create(t, t.TempDir(), c.info).Status(); err != nil || st.State != c.want {
			t.Errorf("%s: %+v, %v", c.name, st, err)
		}
	}
}

func TestStatus(t *testing.T) {
	r := create(t, t.TempDir(), Info{ID: "r", Name: "n", Workload: "serve", Target: "local", Created: time.Now()})
	st, err := r.Status()
	if err != nil || r.HasStatus() || st.State != Starting || st.RunID != "r" || st.Name != "n" || st.Workload != "serve" || st.Target != "local" || st.Attempt != 1 {
		t.Errorf("before its supervisor has begun: %+v, %v", st, err)
	}
	if text, _ := json.Marshal(st); !strings.Contains(string(text), `"exit_code":null`) || !strings.Contains(string(text), `"processes":[]`) {
		t.Errorf("as JSON: %s", text)
	}
	write(t, r.Path("status.json"), "{")
	if st, err := r.Status(); err == nil || !strings.Contains(err.Error(), r.Path("status.json")) {
		t.Errorf("of a broken file: %+v, %v", st, err)
	}
	code := 7
	if err := r.WriteStatus(&Status{RunID: "r", State: Failed, ExitCode: &code}); err != nil {
		t.Fatal(err)
	}
	if st, err := r.Status(); err != nil || *st.ExitCode != 7 || !r.HasStatus() {
		t.Errorf("%+v, %v", st, err)
	}
	if err := r.WriteNodeStatus("1", &Status{RunID: "r"}); err != nil || !strings.Contains(read(t, r.Path("nodes/1.status.json")), `"run_id": "r"`) {
		t.Error(err)
	}
	for s, want := range map[State]bool{Waiting: false, Starting: false, Ready: false, Stopping: false, Exited: true, Succeeded: true, Failed: true, Stopped: true, Lost: true} {
		if s.Ended() != want {
			t.Errorf("%s.Ended() = %v", s, !want)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEvents(t *testing.T) {
	r := create(t, t.TempDir(), Info{ID: "r"})
	if got, next, err := r.Events(0); got != nil || next != 0 || err != nil {
		t.Errorf("of none: %v, %d, %v", got, next, err)
	}
	if err := r.AppendEvent(Event{Type: "run.starting", Message: "a\nb"}); err != nil {
		t.Fatal(err)
	}
	if err := r.AppendEvent(Event{Type: "process.ready", Process: "a-0", PID: 3}); err != nil {
		t.Fatal(err)
	}
	whole := read(t, r.Path("events.jsonl"))
	got, next, err := r.Events(0)
	if err != nil || len(got) != 2 || got[0].Message != "a\nb" || got[1].PID != 3 || next != int64(len(whole)) {
		t.Errorf("%+v, %d, %v", got, next, err)
	}
	// Half a line is none yet, a line that is no event is passed over.
	half := `{"type":"run.ready","mess`
	write(t, r.Path("events.jsonl"), whole+half)
	if got, again, err := r.Events(next); len(got) != 0 || again != next || err != nil {
		t.Errorf("half a line: %+v, %d, %v", got, again, err)
	}
	write(t, r.Path("events.jsonl"), whole+half+"age\":\"x\"}\nnonsense\n{\"type\":\"run.stopped\"}\n")
	got, again, err := r.Events(next)
	if err != nil || len(got) != 2 || got[0].Message != "x" || got[1].Type != "run.stopped" || again <= next {
		t.Errorf("the whole line: %+v, %d, %v", got, again, err)
	}
	// Events of several writers do not mix.
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := r.AppendEvent(Event{Type: "note", Message: strings.Repeat("x", 5000)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got, _, err := r.Events(again); err != nil || len(got) != 400 {
		t.Errorf("%d of 400 events, %v", len(got), err)
	}
}

func TestLinkAndRemove(t *testing.T) {
	base := t.TempDir()
	shared, known, logs := filepath.Join(base, "shared"), filepath.Join(base, "known"), filepath.Join(base, "logs", "r")
	r := create(t, shared, Info{ID: "r", LogDir: logs})
	other := create(t, shared, Info{ID: "other"})
	write(t, r.LogPath("a-0"), "hello\n")
	if got := read(t, filepath.Join(logs, "a-0.log")); got != "hello\n" {
		t.Errorf("in the folder of logs: %q", got)
	}
	if err := r.Link(shared); err != nil { // it lies there
		t.Fatal(err)
	}
	if err := r.Link(known); err != nil {
		t.Fatal(err)
	}
	found, err := Find(known, Last)
	if err != nil || found.ID != "r" || found.Dir != filepath.Join(known, "r") {
		t.Fatalf("%+v, %v", found, err)
	}
	if err := found.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{r.Dir, found.Dir, logs} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	if !other.Exists() {
		t.Error("another run is gone, too")
	}
	if err := found.Remove(); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestBinaries(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "runs")
	one, two := filepath.Join(base, "one"), filepath.Join(base, "two")
	write(t, one, "program one")
	write(t, two, "program two")
	keep := func(path string) string {
		t.Helper()
		to, err := KeepBinary(root, path)
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	var wg sync.WaitGroup
	got := make([]string, 8) // of launches at the same time
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = KeepBinary(root, one); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if slices.Sort(got); got[0] != got[7] {
		t.Fatalf("one program is kept as %v", got)
	}
	a := got[0]
	st, err := os.Stat(a)
	if err != nil || st.Mode().Perm() != 0o755 || read(t, a) != "program one" {
		t.Errorf("%v, %v", st, err)
	}
	old := time.Unix(1e9, 0)
	if err := os.Chtimes(a, old, old); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(a)); len(entries) != 1 {
		t.Errorf("beside it: %v, %v", entries, err)
	}
	b := keep(two)
	if a == b || read(t, b) != "program two" {
		t.Errorf("%s, %s", a, b)
	}
	if keep(a) != a { // launched by a kept program
		t.Error("a kept program is kept again")
	}
	if st, err = os.Stat(keep(one)); err != nil || !st.ModTime().Equal(old) {
		t.Errorf("it was copied again: %v", err)
	}
	if _, err := KeepBinary(root, filepath.Join(base, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no program: %v", err)
	}
	// A run that is found by another path of the same folder needs its program.
	link := filepath.Join(base, "link")
	if err := os.Symlink(root, link); err != nil {
		t.Fatal(err)
	}
	r := create(t, root, Info{ID: "r", Binary: a})
	if err := PruneBinaries(link, []*Run{r}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(a); err != nil {
		t.Errorf("a program in use was removed: %v", err)
	}
	if _, err := os.Stat(b); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a program that nobody needs was kept: %v", err)
	}
	if err := PruneBinaries(filepath.Join(base, "none"), nil); err != nil {
		t.Errorf("of no folder: %v", err)
	}
}
