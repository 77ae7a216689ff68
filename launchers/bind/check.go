package bind

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/graph"
)

// Machine is what a check looks at.
type Machine struct {
	Getenv  func(string) string
	WorkDir string  // where relative paths begin
	Devices Devices // of [FindDevices]
	Node    int     // of the graph: only its processes are looked at
}

// Check finds what the processes of a graph would fail for on this machine:
// programs, models and folders that are missing, secrets that are not set, a
// port that is taken, GPUs that are too few or busy. All of it at once; nothing
// is started but a Python that is asked whether it has SGLang.
func Check(ctx context.Context, p *plan.Plan, g *graph.Graph, m Machine) diag.List {
	c := &checker{p: p, m: m, said: map[string]bool{}}
	keys := map[string]bool{} // of the judges on this node
	for _, pr := range g.On(m.Node) {
		c.program(ctx, pr)
		keys[pr.RouteKey] = true
	}
	if !g.Rehearsal {
		c.models(func(key string) bool { return p.Workload != plan.Serve || keys[key] })
		c.secrets(keys)
		c.gpus(g)
	}
	if gw := g.Peer("gateway"); gw != nil && gw.Node == m.Node {
		c.gatewaySecret()
		c.gatewayPort()
	}
	return c.l.Sorted()
}

// Models looks for the plan's models where it is called, and for nothing else.
func Models(p *plan.Plan, workDir string) diag.List {
	c := &checker{p: p, m: Machine{WorkDir: workDir}, said: map[string]bool{}}
	c.models(func(string) bool { return true })
	return c.l.Sorted()
}

type checker struct {
	p    *plan.Plan
	m    Machine
	l    diag.List
	said map[string]bool
}

func (c *checker) add(code, path, summary, detail, remedy string) {
	if key := code + summary; !c.said[key] {
		c.said[key] = true
		c.l.Add(c.p.Finding(code, diag.Error, path, summary, detail, remedy))
	}
}

// field is the place of a process in the experiment.
func (c *checker) field(pr *graph.Process) string {
	if pr.Role == graph.Engine {
		return tree.Join("serve.instances", pr.RouteKey)
	}
	return string(c.p.Workload)
}

// abs is a path as a process with that working folder sees it.
func (c *checker) abs(workDir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	if !filepath.IsAbs(workDir) {
		workDir = filepath.Join(c.m.WorkDir, workDir)
	}
	return filepath.Join(workDir, path)
}

// program looks for what a process starts.
func (c *checker) program(ctx context.Context, pr *graph.Process) {
	if len(pr.Argv) == 0 || pr.Argv[0] == "genrm" {
		return
	}
	if pr.WorkDir != "" {
		if dir := c.abs("", pr.WorkDir); !isDir(dir) {
			c.add("GRM8112", string(c.p.Workload)+".root", fmt.Sprintf("the folder %s does not exist", dir),
				"The command is started in it.", nearest(dir, "write the folder where it lies on this machine"))
			return
		}
	}
	path := c.m.Getenv("PATH")
	if v, ok := pr.Env.Get("PATH"); ok && v.Text != "" {
		path = string(v.Text)
	}
	name := text(pr.Argv[0])
	found := lookPath(name, path, c.abs(pr.WorkDir, "."))
	if found == "" {
		c.add("GRM8111", c.field(pr), fmt.Sprintf("%s is not installed on this machine", name),
			fmt.Sprintf("%s starts %s, which is in no folder of PATH.", pr.Name, name), c.install(pr, name))
		return
	}
	if len(pr.Argv) > 2 && pr.Argv[1] == "-m" && pr.Engine == "sglang" {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, found, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('sglang') is None)")
		cmd.Env = append(os.Environ(), "PATH="+path)
		for _, e := range pr.Env {
			if strings.HasPrefix(e.Key, "PYTHON") {
				cmd.Env = append(cmd.Env, e.Key+"="+text(e.Value.Text))
			}
		}
		cmd.WaitDelay = time.Second
		var exit *exec.ExitError
		if err := cmd.Run(); errors.As(err, &exit) && exit.ExitCode() == 1 {
			c.add("GRM8111", c.field(pr), fmt.Sprintf("%s has no sglang", found), pr.Name+" starts python3 -m sglang.launch_server.", c.install(pr, "sglang"))
		}
	}
	if len(pr.Argv) > 1 && strings.HasPrefix(filepath.Base(name), "python") {
		if script := text(pr.Argv[1]); strings.HasSuffix(script, ".py") && !exists(c.abs(pr.WorkDir, script)) {
			full := c.abs(pr.WorkDir, script)
			at := string(c.p.Workload) + ".entrypoint"
			if !c.p.Positions[at].IsValid() {
				at = string(c.p.Workload) + ".root"
			}
			c.add("GRM8112", at, fmt.Sprintf("%s does not exist", full), "It is the program of the run.",
				nearest(full, "set "+string(c.p.Workload)+".root to the folder of the checkout, or entrypoint to the script"))
		}
	}
}

// text is an argument without its placeholders filled: what is looked up has
// none.
func text(a plan.Arg) string {
	s, err := a.Bind(func(plan.Placeholder) (string, error) { return "", nil })
	if err != nil {
		return string(a)
	}
	return s
}

func (c *checker) install(pr *graph.Process, name string) string {
	version := ""
	if in, ok := c.p.Instances.Get(pr.RouteKey); ok && in.EngineVersion != "" {
		version = "==" + in.EngineVersion
	}
	if name == "python3" && pr.Engine == "sglang" { // comes with it
		name = "sglang"
	}
	switch name {
	case "vllm":
		return "install it: pip install vllm" + version + "; or put the folder of its environment first in PATH"
	case "sglang":
		return `install it: pip install "sglang` + version + `"; or put the folder of its environment first in PATH`
	case "ray":
		return `install it: pip install "ray[default]"; or put the folder of its environment first in PATH`
	case "gym":
		return "install it: pip install nemo-gym; or put the folder of its environment first in PATH"
	}
	return "install it, or put its folder first in PATH"
}

// lookPath finds a program as execvp does, in a PATH that is not this process's.
func lookPath(name, path, dir string) string {
	if strings.Contains(name, "/") {
		if !filepath.IsAbs(name) {
			name = filepath.Join(dir, name)
		}
		if executable(name) {
			return name
		}
		return ""
	}
	for _, d := range filepath.SplitList(path) {
		if d == "" {
			d = dir
		}
		if p := filepath.Join(d, name); executable(p) {
			return p
		}
	}
	return ""
}

// Getenv looks names up in an environment, of which the last entry of a name
// counts.
func Getenv(env []string) func(name string) string {
	return func(name string) string {
		for _, e := range slices.Backward(env) {
			if v, ok := strings.CutPrefix(e, name+"="); ok {
				return v
			}
		}
		return ""
	}
}

// LookPath finds a program in the PATH of an environment.
func LookPath(name string, env []string, dir string) string {
	return lookPath(name, Getenv(env)("PATH"), dir)
}

func executable(path string) bool {
	st, err := os.Stat(path)
	return err == nil && !st.IsDir() && st.Mode()&0o111 != 0
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func isDir(path string) bool { st, err := os.Stat(path); return err == nil && st.IsDir() }

// isPath tells a path from the id of a model hub.
func isPath(s string) bool {
	return strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") || s == "." || s == ".."
}

// models looks for the models that are given as paths.
func (c *checker) models(here func(routeKey string) bool) {
	missing := func(path, at string) {
		if full := c.abs("", path); isPath(path) && !exists(full) {
			c.add("GRM8113", at, fmt.Sprintf("the model %s does not exist on this machine", path), deepest(full), nearest(full, "write the path where it lies on this machine, or download it"))
		}
	}
	for _, e := range c.p.Instances {
		if !here(e.Key) {
			continue
		}
		var at string
		switch c.p.Workload {
		case plan.Serve:
			at = tree.Join("serve.instances", e.Key) + ".model_path"
		case plan.Relax:
			at = tree.Join("relax.genrm_instances", e.Key) + ".model_path"
			if !c.p.Positions[at].IsValid() {
				at = "relax.genrm_model_path"
			}
		default:
			at = "gym.config"
		}
		if e.Value.Engine != "sim" && e.Value.Engine != "openai" {
			missing(e.Value.ModelPath, at)
		}
	}
	if c.p.Workload == plan.Relax {
		for i, a := range c.p.Launch.Argv {
			if a == "--hf-checkpoint" && i+1 < len(c.p.Launch.Argv) {
				missing(text(c.p.Launch.Argv[i+1]), "relax.args.hf_checkpoint")
			}
		}
	}
}

// deepest says how much of a path there is.
func deepest(path string) string {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if exists(dir) {
			return dir + " exists."
		}
		if dir == filepath.Dir(dir) {
			return ""
		}
	}
}

// nearest proposes an existing path for one that is missing: the same folder's
// entry with the nearest name.
func nearest(path, otherwise string) string {
	dir, base := filepath.Dir(path), filepath.Base(path)
	for !exists(dir) && dir != filepath.Dir(dir) {
		dir, base = filepath.Dir(dir), filepath.Base(dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return otherwise
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if near := diag.Nearest(base, names, 1); len(near) > 0 {
		return "did you mean " + filepath.Join(dir, near[0]) + "?"
	}
	return otherwise
}

// secrets looks for the variables and files that the plan refers to.
func (c *checker) secrets(here map[string]bool) {
	env := func(at string, e plan.Env) {
		for _, v := range e {
			path := at + ".env." + v.Key
			if !c.p.Positions[path].IsValid() {
				path = at
			}
			c.secret(path, v.Value.SecretEnv, v.Value.SecretFile)
		}
	}
	if c.p.Workload != plan.Serve {
		env(string(c.p.Workload), c.p.Launch.Env)
	}
	for _, e := range c.p.Instances {
		at := tree.Join("serve.instances", e.Key)
		if c.p.Workload != plan.Serve || !here[e.Key] {
			continue
		}
		env(at, e.Value.Env)
		if e.Value.Engine == "openai" {
			c.reference(at+".api_key", e.Value.Settings.Field("api_key"))
			if h := e.Value.Settings.Field("default_headers"); h.OK() {
				for _, f := range h.Fields {
					c.reference(tree.Join(at+".default_headers", f.Name), f.Value)
				}
			}
		}
	}
}

func (c *checker) gatewaySecret() {
	if c.p.Gateway != nil {
		c.reference("serve.gateway.api_key", c.p.Gateway.Settings.Field("api_key"))
	}
}

func (c *checker) reference(at string, v *tree.Value) {
	if v == nil || v.Kind != tree.Struct {
		return
	}
	env, _ := v.Field("env").AsString()
	file, _ := v.Field("file").AsString()
	c.secret(at, env, file)
}

func (c *checker) secret(at, env, file string) {
	if env != "" && c.m.Getenv(env) == "" {
		c.add("GRM8117", at, fmt.Sprintf("the variable %s holds a secret and is not set", env), "It is read where the run is launched.", "set it: export "+env+"=…")
	}
	if file == "" {
		return
	}
	f, err := os.Open(file)
	if err == nil {
		_ = f.Close() // only tried
		return
	}
	why := "it cannot be read"
	if errors.Is(err, fs.ErrNotExist) {
		why = "it does not exist"
	} else if errors.Is(err, fs.ErrPermission) {
		why = "you may not read it"
	}
	c.add("GRM8117", at, fmt.Sprintf("the file %s holds a secret: %s", file, why), "", "make it readable for you alone, or write another path")
}

// gatewayPort tests the port that the user gave.
func (c *checker) gatewayPort() {
	if c.p.Gateway == nil {
		return
	}
	port, err := strconv.Atoi(string(c.p.Gateway.Port))
	if err != nil || free(port) {
		return
	}
	who := PortUser(port)
	detail := "Nobody who can be seen listens on it; the system does not let genrm."
	if who != "" {
		detail = "Held by " + who + "."
	}
	c.add("GRM8114", "serve.gateway.port", fmt.Sprintf("port %d is taken", port), detail, "stop that process, write another port, or leave port out: a free one is taken then")
}

// gpus compares what the node's processes use with what there is.
func (c *checker) gpus(g *graph.Graph) {
	need := g.Devices(c.m.Node)
	d := c.m.Devices
	if need == 0 {
		return
	}
	at := "local.gpus"
	if !c.p.Positions[at].IsValid() {
		at = "cluster.gpus_per_node"
	}
	if !c.p.Positions[at].IsValid() {
		at = string(c.p.Workload)
	}
	if len(d.IDs) < need {
		has := fmt.Sprintf("%s has %d", d.Source, len(d.IDs))
		c.add("GRM8115", at, fmt.Sprintf("the run needs %d GPUs, but there are %d", need, len(d.IDs)), has+".",
			"use fewer, run it on a larger machine, or list the devices as local.gpus; `--rehearse` tries the run without a GPU")
		return
	}
	for _, id := range d.IDs[:need] {
		if who, busy := d.Busy[id]; busy {
			c.add("GRM8116", at, fmt.Sprintf("GPU %s is busy", id), "Used by "+who+".", "end that process, or list other GPUs as local.gpus")
		}
	}
}
