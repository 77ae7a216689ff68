//go:build e2e

// Package local launches relax and gym runs on this machine, each on a real Ray
// of its own and with a driver that records what it was given, and does to them
// what goes wrong in practice. A Ray and processes of somebody else run beside,
// and must not notice. Started by ./run.
package local

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/e2e/internal/suite"
)

// Every example of relax and gym that fits one machine; its driver ends in one
// of the ways that there are. The others are refused with GRM8102.
var examples = map[string]struct {
	end   string // of the driver
	exit  int
	state string
	gpus  int
}{
	"relax-split":      {"0", 0, "succeeded", 8},
	"relax-dual-judge": {"3", 3, "failed", 8},
	"relax-colocated":  {"KILL", 137, "failed", 8},
	"relax-async":      {"127", 127, "failed", 8},
	"gym-genrm":        {"0", 0, "succeeded", 8},
	"gym-openai":       {"KILL", 137, "failed", 0},
	"gym-vllm":         {"2", 2, "failed", 0},
}

func TestExamples(t *testing.T) {
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for _, pattern := range []string{"relax-*", "gym-*"} {
		found, err := filepath.Glob(filepath.Join(repo, "examples", pattern))
		if err != nil || len(found) == 0 {
			t.Fatal(pattern, found, err)
		}
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c, ok := examples[filepath.Base(dir)]
			if !ok {
				l := r.start("launch", dir, "--target", "local")
				if code := l.wait(); code != 1 || !strings.Contains(l.out.String(), "GRM8102") {
					t.Errorf("exit status %d, want 1 and GRM8102\n%s", code, l.out.String())
				}
				return
			}
			file := r.example(dir)
			args := []string{"launch", file, "--target", "local"}
			if c.gpus > 0 {
				args = append(args, "--set", "local.gpus="+r.cueGPUs(c.gpus))
			}
			if strings.HasPrefix(filepath.Base(dir), "relax") {
				args = append(args, "--set", fmt.Sprintf("relax.root=%q", r.relax()), "--set", `relax.entrypoint="train.py"`)
			}
			r.end = c.end
			l := r.start(args...)
			if code := l.wait(); code != c.exit {
				t.Errorf("exit status %d, want %d\n%s", code, c.exit, l.out.String())
			}
			r.checkEnd(c.state, c.exit)
			r.checkGone()

			rec := r.record()
			want := r.status().process(t, "driver").Argv
			if want = want[1:]; strings.HasSuffix(want[0], ".py") {
				want = want[1:]
			}
			if !slices.Equal(rec.Argv, want) {
				t.Errorf("the driver got %q,\nthe status says %q", rec.Argv, want)
			}
			r.checkRay(rec, c.gpus)
		})
	}
}

// Text of the user's arrives byte for byte, in the driver's command and in the
// environment of driver and tasks.
func TestHostileText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	words := []string{
		`"quotes" and 'quotes'`, "`id`", "$HOME ${HOME} $(id)", "; exit 9 && true || false & ", "{{x}} {run_dir} {port:gcs} {secret:env:HOME}",
		`back\slash \n \\`, "line\nfeed\ttab", "größer 裁判 🦉", "", " ", "-", "--", "*", "~", "#no comment", "%s %n", "!!",
	}
	var extra, env strings.Builder
	for i, w := range words {
		fmt.Fprintf(&extra, "%s,", suite.CUE(w))
		fmt.Fprintf(&env, "GENRM_E2E_HOSTILE_%d: %s\n", i, suite.CUE(w))
	}
	file := r.experiment(fmt.Sprintf("extra_args: [\"--hostile\", %s]\nenv: {\n%s}", extra.String(), env.String()))
	r.end = "0"
	l := r.start("launch", file)
	if code := l.wait(); code != 0 {
		t.Fatalf("exit status %d\n%s", code, l.out.String())
	}
	rec := r.record()
	if i := slices.Index(rec.Argv, "--hostile"); i < 0 || !slices.Equal(rec.Argv[i+1:], words) {
		t.Errorf("the driver got %q", rec.Argv)
	}
	for i, w := range words {
		name := fmt.Sprintf("GENRM_E2E_HOSTILE_%d", i)
		if got, ok := rec.Env[name]; !ok || got != w {
			t.Errorf("%s of the driver is %q, want %q", name, got, w)
		}
		if got, ok := rec.Tasks[0].Env[name]; !ok || got != w {
			t.Errorf("%s of a task is %q, want %q", name, got, w)
		}
	}
	r.checkRay(rec, 2)
	r.checkEnd("succeeded", 0)
	r.checkGone()
}

// What of Ray dies is the end of the run, although the driver would run on and
// does not notice; and nothing of it is left.
func TestRayDies(t *testing.T) {
	for _, c := range []struct{ name, victim string }{
		{"ray start", ""},
		{"gcs_server", "/gcs_server "},
		{"raylet", "/raylet "},
		// Ray's node ends with its agent, with status 0, and `ray start --block`
		// goes on without a node. Observed in 2.60.0.
		{"agent", "ray::DashboardAgent"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l, s := r.waiting()
			victim := s.process(t, "ray-head").PID
			if c.victim != "" {
				victim = r.find(victim, c.victim)
			}
			kill(t, victim, syscall.SIGKILL)
			if code := l.wait(); code != 3 {
				t.Errorf("exit status %d, want 3\n%s", code, l.out.String())
			}
			if !strings.Contains(l.out.String(), "ray-head") {
				t.Errorf("it does not say what failed:\n%s", l.out.String())
			}
			r.checkEnd("failed", 3)
			r.checkGone()
		})
	}
}

// Whoever ends a run in whatever way: nothing is left.
func TestStop(t *testing.T) {
	t.Run("genrm stop", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		l, _ := r.waiting()
		r.genrm("stop", "@last")
		if code := l.wait(); code != 143 {
			t.Errorf("exit status %d, want 143\n%s", code, l.out.String())
		}
		r.checkEnd("stopped", 143)
		r.checkGone()
	})
	t.Run("Ctrl-C", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		l, _ := r.waiting()
		kill(t, l.cmd.Process.Pid, syscall.SIGINT)
		if code := l.wait(); code != 130 {
			t.Errorf("exit status %d, want 130\n%s", code, l.out.String())
		}
		r.checkGone()
	})
	t.Run("stop of a detached run whose supervisors were killed", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		r.end = "wait"
		r.genrm("launch", "--detach", r.experiment(""))
		s := r.recorded(nil)
		guard := s.Supervisor.PID
		supervisor := processes(t)[s.process(t, "driver").PID].parent
		if processes(t)[supervisor].parent != guard {
			t.Fatalf("the driver's parent %d is not a child of %d", supervisor, guard)
		}
		time.Sleep(2 * time.Second)     // who hides is noted from time to time
		kill(t, guard, syscall.SIGSTOP) // so that it cannot take over
		kill(t, supervisor, syscall.SIGKILL)
		kill(t, guard, syscall.SIGKILL)
		r.genrm("stop", "@last")
		r.checkGone()
	})
	t.Run("KILL of the supervisor", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		l, s := r.waiting()
		kill(t, processes(t)[s.process(t, "driver").PID].parent, syscall.SIGKILL)
		if code := l.wait(); code != 3 {
			t.Errorf("exit status %d, want 3\n%s", code, l.out.String())
		}
		r.checkEnd("failed", 3)
		r.checkGone()
	})
	t.Run("KILL of the launching command", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		l, _ := r.waiting()
		kill(t, l.cmd.Process.Pid, syscall.SIGKILL)
		l.wait()
		r.awaitEnd()
		r.checkGone()
	})
}

// Ray's ports listen on every address: whoever has no token is refused, and the
// dashboard is not reached from outside.
func TestToken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l, s := r.waiting()
	head := s.process(t, "ray-head")
	url := fmt.Sprintf("http://%s:%d/nodes?view=summary", head.Host, head.Ports["dashboard"])
	for _, c := range []struct {
		header string
		want   int
	}{
		{"", http.StatusUnauthorized},
		{"Bearer " + foreignToken, http.StatusForbidden},
	} {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c.header != "" {
			req.Header.Set("Authorization", c.header)
		}
		client := http.Client{Timeout: 10 * time.Second}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("%q: status %d, want %d", c.header, res.StatusCode, c.want)
		}
	}
	if rec := r.record(); rec.TokenMode == nil || *rec.TokenMode != "0o600" {
		t.Errorf("mode of the token's file: %v", rec.TokenMode)
	}
	dir := r.folder()
	data, err := os.ReadFile(filepath.Join(dir, "ray-token"))
	if err != nil {
		t.Fatal(err)
	}
	r.genrm("stop", "@last")
	l.wait()
	r.checkGone()
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), string(data)) {
			t.Errorf("the token is in %s", path)
		}
		return err
	})
}
