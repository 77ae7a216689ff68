package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
	"genrm.dev/genrm/launchers/rundir"
)

// startReady starts the processes whose predecessors are ready.
func (s *supervisor) startReady() {
	if s.end != nil {
		return
	}
	for _, t := range s.tasks {
		if !t.mine || t.st.State != rundir.Waiting {
			continue
		}
		open := ""
		for _, name := range t.p.After {
			if s.task(name).st.State != rundir.Ready {
				open = name
				break
			}
		}
		switch {
		case open == "":
			s.start(t)
			if s.end != nil {
				return
			}
		case t.st.Awaits != open:
			t.st.Awaits, s.dirty = open, true
		}
	}
}

// secret reads a secret. Its errors name the reference, never the value.
func (s *supervisor) secret(kind, name string) (string, error) {
	if kind == "file" {
		data, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		return strings.TrimRight(string(data), "\r\n"), nil
	}
	for _, e := range slices.Backward(s.Env) {
		if v, ok := strings.CutPrefix(e, name+"="); ok && v != "" {
			return v, nil
		}
	}
	return "", fmt.Errorf("the variable %s holds a secret and is not set", name)
}

func (s *supervisor) context(secret func(kind, name string) (string, error)) graph.Context {
	return graph.Context{Bindings: s.bindings, RunDir: s.Run.Dir, Artifacts: s.Run.Path(rundir.Artifacts), Binary: s.Run.Binary, JobID: s.JobID, Secret: secret, Judges: s.judgesURL}
}

func (s *supervisor) start(t *task) {
	now := s.Now().UTC()
	t.began, t.st.State, t.st.StartedAt, t.st.Awaits, s.dirty = time.Now(), rundir.Starting, &now, "", true
	if t.p.Kind == graph.Remote {
		s.await(t)
		return
	}
	if err := s.spawn(t); err != nil {
		t.st.State, t.st.Reason = rundir.Failed, err.Error()
		s.event("process.failed", t, err.Error())
		s.settle(rundir.Failed, ExitService, fmt.Sprintf("%s could not be started: %v", t.p.Name, err))
		return
	}
	s.event("process.starting", t, "")
	s.await(t)
}

// judgesURL is where the judges that stand beside are asked.
func (s *supervisor) judgesURL() (string, error) {
	if s.graph.Judges == nil {
		return "", errors.New("no judges stand beside")
	}
	run, err := rundir.Open(s.graph.Judges.Dir)
	if err != nil {
		return "", err
	}
	var e rundir.Endpoints
	if err := run.Read(rundir.EndpointsFile, &e); err != nil {
		return "", err
	}
	return e.Gateway.URL, nil
}

// releaseJudges ends the judges that were started for this run alone.
func (s *supervisor) releaseJudges() {
	if s.graph == nil || s.graph.Judges == nil || !s.graph.Judges.Stop || !s.lead || s.old {
		return
	}
	run, err := rundir.Open(s.graph.Judges.Dir)
	if err == nil {
		err = run.RequestStop("run " + s.Run.ID)
	}
	if err != nil {
		s.say("the judges beside could not be asked to end: %v", err)
	}
}

// spawn starts the process in a session of its own.
func (s *supervisor) spawn(t *task) error {
	var values []string // of the secrets that this process gets
	argv, env, err := s.graph.Command(t.p, s.context(func(kind, name string) (string, error) {
		v, err := s.secret(kind, name)
		values = append(values, v)
		return v, err
	}))
	if err != nil {
		return err
	}
	if t.st.Argv, _, err = s.graph.Command(t.p, s.context(graph.Masked)); err != nil {
		return err
	}
	b := s.bindings[s.Node]
	t.st.Ports, t.st.GPUs, t.st.Host = b.Ports[t.p.Name], b.GPUs[t.p.Name], b.Host
	full := s.environment(t, env)
	dir := t.p.WorkDir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(s.Run.WorkDir, dir)
	}
	if t.p.Role == graph.Gateway { // its own secrets, read by itself
		values = append(values, s.gatewaySecrets()...)
	}
	path := bind.LookPath(argv[0], full, dir)
	if path == "" {
		return fmt.Errorf("%s: no such program in PATH", argv[0])
	}
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return fmt.Errorf("the folder %s does not exist", dir)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{Path: path, Args: argv, Env: full, Dir: dir, Stdout: w, Stderr: w, SysProcAttr: proc.OwnSession(true)}
	if err := errors.Join(cmd.Start(), w.Close()); err != nil {
		return errors.Join(err, r.Close())
	}
	t.id = proc.Identify(cmd.Process.Pid)
	t.st.PID, t.st.Start, t.running = t.id.PID, t.id.Start, true
	t.out = newOutput(r, s.Run.LogPath(t.p.Name), s.graph.Log.MaxMiB, s.graph.Log.Keep, values, func(note string) {
		s.post(func() { s.event("note", t, note) })
	})
	go func() {
		err := cmd.Wait()
		// What it leaves in its group is told to end, too: an engine's workers hold
		// GPUs when its server is gone. What stays is killed with the run's end.
		_ = syscall.Kill(-t.id.PID, syscall.SIGTERM) // there may be nobody
		t.waitOutput(lastLinesAfter)
		s.post(func() { s.exited(t, cmd.ProcessState, err) })
	}()
	return nil
}

// lastLinesAfter is how long the last lines of a process that has ended may take
// to its log. A child that still has its output open is not waited for.
const lastLinesAfter = 100 * time.Millisecond

// environment is that of the caller, what marks the run's processes, defaults
// that everybody wants, and what the graph says.
func (s *supervisor) environment(t *task, own []string) []string {
	env := slices.DeleteFunc(slices.Clone(s.Env), func(e string) bool {
		if strings.HasPrefix(e, supervisorVariable+"=") {
			return true
		}
		// A Ray of the caller's is none of ours. Its token would win over the file
		// of ours. Source: RAY_AUTH_TOKEN goes before RAY_AUTH_TOKEN_PATH in Ray 2.60.0.
		return strings.HasPrefix(e, "RAY_ADDRESS=") && (t.p.Role == graph.RayHead || t.p.Role == graph.RayWorker) ||
			strings.HasPrefix(e, "RAY_AUTH_TOKEN=") && slices.ContainsFunc(own, func(o string) bool { return strings.HasPrefix(o, "RAY_AUTH_TOKEN_PATH=") })
	})
	env = append(env, RunVariable+"="+s.Run.ID, DirVariable+"="+s.Run.Dir, ProcessVariable+"="+t.p.Name)
	get := bind.Getenv(env)
	if get("PYTHONUNBUFFERED") == "" { // else a log shows its lines minutes late
		env = append(env, "PYTHONUNBUFFERED=1")
	}
	for _, name := range []string{"http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"} {
		if get(name) == "" {
			continue
		}
		// Processes of the run speak to each other without the proxy.
		for _, no := range []string{"no_proxy", "NO_PROXY"} {
			list := "localhost,127.0.0.1,::1"
			for _, b := range s.bindings {
				if b.Host != "" && !strings.Contains(list, b.Host) {
					list += "," + b.Host
				}
			}
			if old := get(no); old != "" {
				list = old + "," + list
			}
			env = append(env, no+"="+list)
		}
		break
	}
	return append(env, own...)
}

// gatewaySecrets are the values that gateway.json refers to, so that they are
// hidden in its log. A reference that cannot be read is the gateway's to report.
func (s *supervisor) gatewaySecrets() []string {
	var doc any
	if s.Run.Read(rundir.Artifacts+"/gateway.json", &doc) != nil {
		return nil
	}
	var out []string
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				walk(x)
			}
		case map[string]any:
			for key, x := range v {
				if name, ok := x.(string); ok && len(v) == 1 && (key == "env" || key == "file") {
					if value, err := s.secret(key, name); err == nil {
						out = append(out, value)
					}
				}
				walk(x)
			}
		}
	}
	walk(doc)
	return out
}
