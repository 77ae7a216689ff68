package ray

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/compiler/plan"
)

// folder makes one of files; a name that ends in a slash is a folder, and a text
// that begins with -> a link.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if to, ok := strings.CutPrefix(text, "->"); ok {
			err = os.Symlink(to, path)
		} else if strings.HasSuffix(name, "/") {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(t *testing.T, p *pack) (out []string) {
	t.Helper()
	z, err := zip.NewReader(p.file, p.size)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File {
		if !f.Modified.Equal(epoch) {
			t.Errorf("%s is of %s", f.Name, f.Modified)
		}
		out = append(out, f.Name)
	}
	return out
}

func TestPack(t *testing.T) {
	dir := folder(t, map[string]string{
		"train.py": "print()", "run.sh": "#!/bin/sh", "empty/": "", ".git/HEAD": "ref", "sub/.git": "gitdir: x",
		".gitignore": "*.pyc\r\n/data/**\n!/data/keep.txt\n", "a.pyc": "", "data/big": "x", "data/keep.txt": "k",
		"sub/.rayignore": "[!a].txt\n", "sub/a.txt": "", "sub/b.txt": "", "b.txt": "",
		"link.py": "->train.py", "linked": "->sub", "sub/up": "->..", "nothing": "->gone",
		"excluded.bin": "", ".env": "KEY=1", ".env.example": "KEY=", "keys/id_rsa": "",
	})
	if err := os.Chmod(filepath.Join(dir, "run.sh"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := newPack(t.Context(), dir, "", []string{"*.bin"}, packMost)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	want := []string{".env", ".env.example", ".gitignore", "b.txt", "data/", "data/keep.txt", "empty/", "keys/", "keys/id_rsa", "link.py",
		"linked/", "linked/.rayignore", "linked/a.txt", "run.sh", "sub/", "sub/.rayignore", "sub/a.txt", "train.py"}
	if got := names(t, p); !slices.Equal(got, want) {
		t.Errorf("in it are %q\nwant %q", got, want)
	}
	if got, want := strings.Join(p.left, "; "), "linked/up (a link to a folder above it); nothing (a link to nothing); pipe (no regular file); sub/up (a link to a folder above it)"; got != want {
		t.Errorf("left out are %s", got)
	}
	if got := strings.Join(p.looks, " "); got != ".env keys/id_rsa" {
		t.Errorf("secrets: %s", got)
	}
	// Times and modes of the files do not matter, but whether they can be run.
	for _, f := range []string{"train.py", "b.txt"} {
		if err := errors.Join(os.Chtimes(filepath.Join(dir, f), time.Now(), time.Unix(1e9, 0)), os.Chmod(filepath.Join(dir, f), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := newPack(t.Context(), dir, "", []string{"*.bin"}, packMost)
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	if again.name != p.name {
		t.Errorf("the same content is %s and %s", p.name, again.name)
	}
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte("print(1)"), 0o644); err != nil {
		t.Fatal(err)
	}
	other, err := newPack(t.Context(), dir, "mod/", nil, packMost)
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if other.name == p.name || names(t, other)[0] != "mod/.env" {
		t.Errorf("other content is %s, too: %q", p.name, names(t, other))
	}
}

func TestPackRefused(t *testing.T) {
	random := make([]byte, 300_000)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range random {
		random[i] = byte(r.Uint32())
	}
	big := folder(t, map[string]string{"code/a.py": "x", "models/llm/weights.bin": string(random), "models/llm/config": "{}", "zeros": strings.Repeat("0", 50_000)})
	for _, c := range []struct {
		dir, says string
	}{
		{big, "too large to be uploaded: Packed it has more than 97.7 KiB (341.8 KiB before), and Ray takes 97.7 KiB. The biggest: models/llm/weights.bin 293.0 KiB, zeros 48.8 KiB."},
		{filepath.Join(big, "no"), "there is no folder"},
		{filepath.Join(big, "zeros"), "is no folder"},
		{folder(t, map[string]string{".gitignore": "*\n"}), "nothing in the folder to upload"},
		{folder(t, map[string]string{`a\b`: "x"}), "Ray cannot unpack such a name"},
		{folder(t, map[string]string{"a\xff": "x"}), "Ray cannot unpack such a name"},
		{folder(t, map[string]string{"status": "->/proc/self/status"}), "status (changed while it was read)"}, // its size is said to be 0
		{folder(t, map[string]string{"memory": "->/proc/self/mem", "ok": ""}), "1 file of the folder cannot be packed: memory ("},
	} {
		p, err := newPack(t.Context(), c.dir, "", nil, 100_000)
		var no *cannot
		if !errors.As(err, &no) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v\nwant %s", err, c.says)
		}
		if p != nil {
			p.close()
		}
	}
}

// TestIgnore holds the patterns against git's own reading of them.
// TestPackBounds wants a folder through which links lead in many ways, and a
// signal, to end the looking.
func TestPackBounds(t *testing.T) {
	defer func(n int) { entriesMost = n }(entriesMost)
	entriesMost = 2000
	dir := t.TempDir()
	for i := range 25 {
		at := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"a", "b"} {
			if err := os.Symlink(filepath.Join("..", fmt.Sprint(i+1)), filepath.Join(at, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	var no *cannot
	if _, err := newPack(t.Context(), dir, "", nil, packMost); !errors.As(err, &no) || !strings.Contains(no.summary, "more than 2000 files") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newPack(ctx, dir, "", nil, packMost); !errors.Is(err, errInterrupted) {
		t.Errorf("%v", err)
	}
}

func TestIgnore(t *testing.T) {
	git, err := exec.LookPath("git")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, f := range []string{"a/b", "a/x/b", "a/x/y/b", "x/y", "x/d/f", "q/x", "m.pyc", "d/m.pyc", "m.pyo", "ax", "bx", "foo/1", "foo/2/3", "!x", "#x", "bb", "ab", "b.txt", "d/e", "z/d/e", "a*b", "acb", "bz", " sp", "[", "{a,b}", "aXXb", "w/q", "w/v/q"} {
		files[f] = ""
	}
	for _, text := range []string{"*.pyc", "/a", "a/", "*.py[co]", "[!a]x", `\[!a]`, "[^a]x", "a/**/b", "**/x", "x/**", "x/**\n!x/d/\n", "foo/*\n!foo/1", "a/\n!a/b", `\!x`, `\#x`, "#x", "x ", "?b", "a*b", "/*.txt", "d/e", "**/d/e",
		"*\n!*/\n!*.pyc", `a\*b`, "[a-c]z", "*/x", " sp", "[", "{a,b}", "a**b", "**/q", "**", "a\r\nfoo\r\n", "\ufeffa\n", "/w/**/q"} {
		dir := folder(t, files)
		if err := os.WriteFile(filepath.Join(dir, ".gitignore"), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(git, "init", "-q", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		cmd := exec.Command(git, "-C", dir, "ls-files", "-coz", "--exclude-standard")
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
		slices.Sort(want)
		w := &walker{ctx: t.Context()}
		if err := w.walk(dir, nil, nil, nil); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range w.entries {
			if !e.dir {
				got = append(got, e.name)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%q leaves\n%q, git\n%q", text, got, want)
		}
	}
}

// TestSend wants a package to be asked for, sent once, and asked for again.
func TestSend(t *testing.T) {
	old := retries
	retries = []time.Duration{time.Millisecond, time.Millisecond}
	defer func() { retries = old }()
	for _, c := range []struct {
		name   string
		answer func(asked []string) int // of the request; 0 breaks the connection
		asked  string
		there  bool
		says   string
	}{
		{"new", func(asked []string) int { return map[bool]int{true: 404, false: 200}[len(asked) == 1] }, "GET PUT GET", false, ""},
		{"there", func([]string) int { return 200 }, "GET", true, ""},
		{"too large", func(asked []string) int { return map[bool]int{true: 404, false: 413}[len(asked) == 1] }, "GET PUT", false, "too large for it, or for a proxy"},
		{"lost once", func(asked []string) int { return []int{404, 0, 404, 200, 200}[len(asked)-1] }, "GET PUT GET PUT GET", false, ""},
		{"never kept", func(asked []string) int { return map[string]int{"GET": 404, "PUT": 200}[asked[len(asked)-1]] }, "GET PUT GET PUT GET PUT GET", false, "has it not"},
		{"away", func([]string) int { return 0 }, "GET GET GET", false, "closed the connection"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := newPack(t.Context(), folder(t, map[string]string{"a": "b"}), "", nil, packMost)
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			var mu sync.Mutex // a request whose connection breaks may still be at work here
			var asked []string
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				body, err := io.ReadAll(req.Body)
				mu.Lock()
				defer mu.Unlock()
				asked = append(asked, req.Method)
				code := c.answer(asked)
				if code == 0 {
					panic(http.ErrAbortHandler)
				}
				if req.Method == http.MethodPut && (err != nil || int64(len(body)) != p.size || req.ContentLength != p.size) {
					t.Errorf("%d bytes of %d: %v", len(body), p.size, err)
				}
				w.WriteHeader(code)
			}))
			s.Config.ErrorLog = nil
			defer s.Close()
			cl := newClient(s.URL, http.Header{}, "v")
			cl.http.Transport.(*http.Transport).DisableKeepAlives = true // or net/http itself asks again
			u := &upload{Upload: Upload{URI: "gcs://" + p.name}, pack: p}
			var sent atomic.Int64
			err = cl.send(context.Background(), u, func(_ Upload, n int64) { sent.Store(n) })
			if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			if got := strings.Join(asked, " "); got != c.asked || u.There != c.there {
				t.Errorf("%s, there: %t", got, u.There)
			}
			if strings.Contains(c.asked, "PUT") && sent.Load() != p.size {
				t.Errorf("%d of %d bytes told", sent.Load(), p.size)
			}
		})
	}
}

// TestUploads wants each local folder in its place of the runtime environment.
func TestUploads(t *testing.T) {
	dir := folder(t, map[string]string{"src/a.py": "", "lib/mod/b.py": "", ".env/": ""})
	for _, c := range []struct{ block, want, says string }{
		{`{"working_dir": "src"}`, `map[working_dir:W]`, ""},
		{`{"runtime_env": {"working_dir": "` + dir + `/src", "pip": ["x"]}}`, `map[pip:[x] working_dir:W]`, ""},
		{`{"runtime_env": {"working_dir": "s3://b/c.zip", "py_modules": ["lib/mod", "s3://b/d.zip"]}}`, `map[py_modules:[W s3://b/d.zip] working_dir:s3://b/c.zip]`, ""},
		{`{"runtime_env": {"py_modules": ["lib/mod/b.py"]}}`, "", "ray.runtime_env.py_modules[0] GRM8325"},
		{`{"working_dir": "/no/such"}`, "", "ray.working_dir GRM8325"},
		{`{"working_dir": "s3://b/c.zip"}`, "", "ray.working_dir GRM8325"},
		{`{"working_dir": ""}`, "", "ray.working_dir GRM8325"},
	} {
		p := &plan.Plan{Workload: plan.Relax, Launch: plan.Launch{Argv: []plan.Arg{"a"}}}
		p.Settings.Set("ray", block(t, c.block))
		r, err := NewRequest(p)
		if err != nil {
			t.Fatal(err)
		}
		if c.want != "" {
			shown, _, err := Preview(t.Context(), p, dir)
			if got := fmt.Sprint(shown.RuntimeEnv); err != nil || !strings.Contains(got, "gcs://_ray_pkg_") {
				t.Errorf("%s: the preview has %s, %v", c.block, got, err)
			}
		}
		all, found, err := uploads(t.Context(), p, dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		says := ""
		for _, d := range found {
			says += d.Path + " " + d.Code
		}
		if says != c.says {
			t.Errorf("%s: %q, want %q", c.block, says, c.says)
		}
		got := ""
		for _, u := range all {
			defer u.pack.close()
			u.set(r.RuntimeEnv, "W")
			got = fmt.Sprint(r.RuntimeEnv)
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.block, got, c.want)
		}
	}
}
