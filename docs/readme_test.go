// Package docs_test holds README.md and this folder to what genrm does: every
// command that they show is run, and every output that they show is compared.
package docs_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A document may hold four kinds of fenced blocks:
//
//	```cue NAME   a file, written to the scratch folder
//	```sh         commands, run there one by one with genrm on PATH; the
//	              comment `# exit status N` says that a line must end with N, and
//	              `Ctrl-C ends it` that it is left alone until it prints a request
//	              to paste, which is run, and then gets Ctrl-C
//	```text       directly behind ```sh: what the commands print. A line … stands
//	              for any lines
//	other         shown only, among them ```sh slurm, ```sh ray, ```sh ray-serve and ```sh kuberay, whose commands e2e/slurm, e2e/ray and e2e/kube run
//
// A `make` command is not run, since make runs this test; its target must exist.
func TestDocuments(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-trimpath", "-o", bin, "./cmd/genrm")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	documents = append(documents, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"))
	for _, path := range documents {
		t.Run(filepath.Base(path), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			links(t, filepath.Dir(path), string(text))
			scratch := copyOf(t, root)
			var printed string
			ran := false
			for _, b := range blocks(string(text)) {
				kind, name, _ := strings.Cut(b.info, " ")
				switch {
				case kind == "cue" && name != "":
					write(t, filepath.Join(scratch, name), b.text)
				case kind == "sh" && name == "":
					printed = commands(t, scratch, bin, b)
				case kind == "text" && ran && b.adjacent:
					if !shows(b.text, printed) {
						t.Errorf("line %d: shown:\n%s\nprinted:\n%s", b.line, b.text, printed)
					}
				}
				ran = kind == "sh" && name == ""
			}
		})
	}
}

type block struct {
	info     string // behind ```
	text     string
	line     int
	adjacent bool // nothing but empty lines since the block before
}

func blocks(text string) []block {
	var out []block
	var b *block
	adjacent := false
	for i, line := range strings.Split(text, "\n") {
		switch {
		case b == nil && strings.HasPrefix(line, "```"):
			b = &block{info: strings.TrimPrefix(line, "```"), line: i + 1, adjacent: adjacent}
		case b != nil && line == "```":
			out = append(out, *b)
			b, adjacent = nil, true
		case b != nil:
			b.text += line + "\n"
		case line != "":
			adjacent = false
		}
	}
	return out
}

var (
	status = regexp.MustCompile(`# exit status (\d+)`)
	link   = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
)

// commands runs the lines of a block and returns what they print.
func commands(t *testing.T, dir, bin string, b block) string {
	var all bytes.Buffer
	for i, line := range strings.Split(strings.TrimSuffix(b.text, "\n"), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "make ") {
			line = "make -n " + strings.TrimPrefix(line, "make ")
		}
		if strings.Contains(line, "Ctrl-C ends it") {
			out, err := interactive(dir, bin, line)
			all.WriteString(out)
			if err != nil {
				t.Errorf("line %d: %s: %v\n%s", b.line+1+i, line, err, out)
			}
			continue
		}
		want := "0"
		if m := status.FindStringSubmatch(line); m != nil {
			want = m[1]
		}
		cmd := exec.Command("bash", "-c", "("+line+"\n); rc=$?; [[ $rc == "+want+" ]] || { echo \"exit status $rc, want "+want+"\" >&2; exit 1; }")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "NO_COLOR=1", "GOFLAGS=-trimpath", "GOBIN="+t.TempDir())
		out, err := cmd.CombinedOutput()
		all.Write(out)
		if err != nil {
			t.Errorf("line %d: %s: %v\n%s", b.line+1+i, line, err, out)
		}
	}
	return all.String()
}

// interactive starts a command as a terminal does, pastes the request that it
// prints, and ends it as Ctrl-C does: a signal to the whole process group.
func interactive(dir, bin, line string) (string, error) {
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "NO_COLOR=1", "GOFLAGS=-trimpath")
	cmd := exec.Command("bash", "-c", "exec "+line)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = dir, env, &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	cmd.Stdout, cmd.Stderr = w, w
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return "", err
	}
	var all strings.Builder
	pasted := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fmt.Fprintln(&all, lines.Text())
		if request, ok := strings.CutPrefix(lines.Text(), "  curl "); ok && !pasted {
			pasted = true
			paste := exec.Command("bash", "-c", "curl -S "+request)
			paste.Env = env
			answer, err := paste.CombinedOutput()
			all.Write(answer)
			if err := errors.Join(err, syscall.Kill(-cmd.Process.Pid, syscall.SIGINT)); err != nil {
				return all.String(), err
			}
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	if !pasted || !errors.As(err, &exit) { // `go run` has a status of its own for what it ran
		return all.String(), fmt.Errorf("no request was printed, or Ctrl-C did not end it: %w", err)
	}
	return all.String(), nil
}

// shows reports whether the shown text is what was printed, where a line …
// stands for any lines.
func shows(shown, printed string) bool {
	parts := strings.Split("\n"+shown, "\n…\n")
	rest := "\n" + printed
	for i, p := range parts {
		last := i == len(parts)-1
		switch {
		case i == 0 && last:
			return rest == p
		case i == 0:
			if !strings.HasPrefix(rest, p+"\n") {
				return false
			}
			rest = rest[len(p):]
		case last:
			return strings.HasSuffix(rest, "\n"+p)
		default:
			at := strings.Index(rest, "\n"+p+"\n")
			if at < 0 {
				return false
			}
			rest = rest[at+1+len(p):]
		}
	}
	return false
}

func TestShows(t *testing.T) {
	for _, c := range []struct {
		shown, printed string
		want           bool
	}{
		{"a\nb\n", "a\nb\n", true},
		{"a\n", "a\nb\n", false},
		{"a\n…\nd\n", "a\nb\nc\nd\n", true},
		{"a\n…\nc\n…\ne\n", "a\nb\nc\nd\ne\n", true},
		{"a\n…\nx\n…\ne\n", "a\nb\nc\nd\ne\n", false},
		{"b\n…\nd\n", "a\nb\nc\nd\n", false},
		{"a\n…\nc\n", "a\nb\nc\nd\n", false},
	} {
		if got := shows(c.shown, c.printed); got != c.want {
			t.Errorf("shows(%q, %q) = %v", c.shown, c.printed, got)
		}
	}
}

// links wants every relative link to lead to a file.
func links(t *testing.T, dir, text string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "://") {
			if _, err := os.Stat(filepath.Join(dir, m[1])); err != nil {
				t.Errorf("link %s: %v", m[1], err)
			}
		}
	}
}

// copyOf copies what a command of a document may need, so that none can change
// the working tree.
func copyOf(t *testing.T, root string) string {
	dir := t.TempDir()
	for _, name := range []string{"Makefile", "go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name), string(data))
	}
	for _, name := range []string{"cmd", "compiler", "schema", "launchers", "gateway", "examples"} {
		if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root, name))); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func write(t *testing.T, path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
