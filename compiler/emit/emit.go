// Package emit turns a plan into the files that a person or a scheduler starts:
// readable shell scripts, the same commands as JSON, and the plan's artifacts.
//
// It is pure: the same plan gives the same bytes. It may not write files (see
// [Write] in this package's write.go for that, which decides nothing), resolve a
// placeholder or read a secret: in scripts both become shell expressions that
// the machine fills where it runs them.
package emit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
)

// File is one emitted file.
type File struct {
	Name string // slash-separated, below the output folder
	Text []byte
	Exec bool // a script
}

// Process is one command of the emitted experiment.
type Process struct {
	Name     string     `json:"name"` // its script is NAME.sh
	RouteKey string     `json:"route_key,omitempty"`
	Replica  int        `json:"replica"`
	NodeRank int        `json:"node_rank"`
	Node     int        `json:"node"`           // node of the plan; -1 when it does not matter or is unknown
	GPUs     []int      `json:"gpus,omitempty"` // indices on that node
	Argv     []plan.Arg `json:"argv"`
	Env      plan.Env   `json:"env"`
	WorkDir  string     `json:"workdir,omitempty"` // "" means where the script is started
}

// Processes lists the commands of a plan: the judges that are started, in the
// order of the plan, and last the command that the plan launches.
func Processes(p *plan.Plan) []Process {
	var out []Process
	for _, e := range p.Instances {
		in := e.Value
		for i, argv := range in.Argv {
			pr := Process{RouteKey: e.Key, Node: -1, Argv: argv, Env: in.Env}
			if i < len(in.Placement) {
				at := in.Placement[i]
				pr.Replica, pr.NodeRank, pr.Node, pr.GPUs = at.Replica, at.NodeRank, at.Node, at.GPUs
			}
			pr.Name = fmt.Sprintf("engine-%s-%d-%d", FileName(e.Key), pr.Replica, pr.NodeRank)
			out = append(out, pr)
		}
	}
	return append(out, Process{Name: "launch", Node: -1, Argv: p.Launch.Argv, Env: p.Launch.Env, WorkDir: p.Launch.WorkDir})
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9._-]`)

// FileName makes a name that a file can have of a key.
func FileName(key string) string {
	return unsafe.ReplaceAllStringFunc(key, func(s string) string { return fmt.Sprintf("%%%02X", s) })
}

// Files returns the files of a plan, sorted by name: plan.json, launch.sh and
// launch.json; the plan's artifacts; and for a serve workload one script per
// engine process and processes.json. Ray Serve starts the engines itself: there a
// serve workload has no commands. It fails only for text that no program can be
// given (see [shell.ErrNUL]) and for artifacts with a name that is taken.
func Files(p *plan.Plan) ([]File, error) {
	hash, err := p.Hash()
	if err != nil {
		return nil, err
	}
	text, err := p.Frozen()
	if err != nil {
		return nil, err
	}
	files := []File{{Name: "plan.json", Text: text}}
	if p.Workload != plan.Serve || p.Target != plan.Ray && p.Target != plan.KubeRay {
		if files, err = commands(p, hash, files); err != nil {
			return nil, err
		}
	}
	for _, a := range p.Artifacts {
		text := []byte(a.Text)
		if ext := path.Ext(a.Name); ext == ".yaml" || ext == ".yml" {
			text = append([]byte("# "+header(p, hash)+"\n"), text...)
		}
		files = append(files, File{Name: a.Name, Text: text})
	}
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	for i := 1; i < len(files); i++ {
		if files[i].Name == files[i-1].Name {
			return nil, fmt.Errorf("two files are called %s", files[i].Name)
		}
	}
	return files, nil
}

// commands appends the scripts of the plan's processes, and the same as JSON.
func commands(p *plan.Plan, hash string, files []File) ([]File, error) {
	procs := Processes(p)
	for _, pr := range procs {
		s, err := script(p, pr, hash)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", pr.Name, err)
		}
		files = append(files, File{Name: pr.Name + ".sh", Text: s, Exec: true})
	}
	launch := procs[len(procs)-1]
	doc := struct {
		GeneratedBy  string     `json:"generated_by"`
		PlanHash     string     `json:"plan_hash"`
		Experiment   string     `json:"experiment"`
		Argv         []plan.Arg `json:"argv"`
		Env          plan.Env   `json:"env"`
		WorkDir      string     `json:"workdir,omitempty"`
		Placeholders []string   `json:"placeholders"` // what only the target knows, as it stands in argv and env
	}{"genrm", hash, p.Name, orEmpty(launch.Argv), launch.Env, launch.WorkDir, placeholders(launch)}
	text, err := indented(doc)
	if err != nil {
		return nil, err
	}
	files = append(files, File{Name: "launch.json", Text: text})
	if p.Workload == plan.Serve {
		doc := struct {
			GeneratedBy string    `json:"generated_by"`
			PlanHash    string    `json:"plan_hash"`
			Experiment  string    `json:"experiment"`
			Processes   []Process `json:"processes"`
		}{"genrm", hash, p.Name, procs}
		if text, err = indented(doc); err != nil {
			return nil, err
		}
		files = append(files, File{Name: "processes.json", Text: text})
	}
	return files, nil
}

func orEmpty(a []plan.Arg) []plan.Arg {
	if a == nil {
		return []plan.Arg{}
	}
	return a
}

func indented(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

// Header marks a file as made by genrm; the rest of the line names the
// experiment and the plan.
const Header = "Made by genrm"

func header(p *plan.Plan, hash string) string {
	return fmt.Sprintf("%s from experiment %s, plan sha256:%s. Do not edit.", Header, p.Name, hash)
}

// placeholders lists what is left open in a process, each once, in order.
func placeholders(pr Process) []string {
	out := []string{}
	add := func(a plan.Arg) {
		for _, ph := range a.Placeholders() {
			s := ph.Kind
			if ph.Name != "" {
				s += ":" + ph.Name
			}
			if s = "{" + s + "}"; !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	for _, e := range pr.Env {
		add(e.Value.Text)
	}
	for _, a := range pr.Argv {
		add(a)
	}
	return out
}

// writer builds one script.
type writer struct {
	secrets shell.Secrets
	needs   []need // variables that the caller sets, in order
	here    bool   // the script refers to its own folder
}

type need struct{ name, meaning string }

// script renders one process as a bash script. Every text of the user is one
// quoted literal. Secrets are read first and into variables that are not
// exported: a failing "cat" then ends the script, which it would not from inside
// the arguments of a command.
func script(p *plan.Plan, pr Process, hash string) ([]byte, error) {
	w := &writer{}
	var env, argv []string
	if len(pr.GPUs) > 0 && pr.Node >= 0 {
		var ids []string
		for _, g := range pr.GPUs {
			ids = append(ids, strconv.Itoa(g))
		}
		env = append(env, "export CUDA_VISIBLE_DEVICES="+strings.Join(ids, ","))
	}
	for _, e := range pr.Env {
		word, err := w.value(e.Value)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", e.Key, err)
		}
		if !shell.IsName(e.Key) {
			return nil, fmt.Errorf("%q is no name of an environment variable", e.Key)
		}
		env = append(env, "export "+e.Key+"="+word)
	}
	for i, a := range pr.Argv {
		word, err := w.word(a)
		if err != nil {
			return nil, fmt.Errorf("word %d of the command: %w", i+1, err)
		}
		argv = append(argv, word)
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/usr/bin/env bash")
	line("# %s", header(p, hash))
	for _, n := range w.needs {
		line("# Set %s: %s.", n.name, n.meaning)
	}
	if pr.RouteKey != "" {
		line("# Judge %s, replica %d, node rank %d.", oneLine(pr.RouteKey), pr.Replica, pr.NodeRank)
	}
	line("set -euo pipefail")
	if w.here {
		line(`genrm_here="$(cd -- "$(dirname -- "${BASH_SOURCE[0]:-$0}")" && pwd)"`)
	}
	section := func(title string, lines []string) {
		if len(lines) > 0 {
			line("\n# %s", title)
			line("%s", strings.Join(lines, "\n"))
		}
	}
	section("Secrets, by reference.", w.secrets.Reads)
	section("Environment.", env)
	if pr.WorkDir != "" {
		q, err := shell.Quote(pr.WorkDir)
		if err != nil {
			return nil, fmt.Errorf("working folder: %w", err)
		}
		line("\ncd -- %s", q)
	}
	if len(argv) == 0 {
		line("\necho 'genrm: this plan has no command' >&2\nexit 1")
	} else {
		line("\nexec %s", strings.Join(Lines(pr.Argv, argv), " \\\n  "))
	}
	return []byte(b.String()), nil
}

func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
}

// Lines groups the words of a command for people: the program and what stands
// in front of the first flag on one line, then one flag with its values a line.
// words are the quoted forms of argv.
func Lines(argv []plan.Arg, words []string) []string {
	var out []string
	for i, w := range words {
		flag := strings.HasPrefix(string(argv[i]), "--") || strings.HasPrefix(string(argv[i]), "+")
		if i == 0 || flag {
			out = append(out, w)
		} else {
			out[len(out)-1] += " " + w
		}
	}
	return out
}

func (w *writer) value(v plan.EnvValue) (string, error) {
	switch {
	case v.SecretEnv != "":
		e, err := w.secrets.Read("env", v.SecretEnv)
		if err != nil {
			return "", err
		}
		return shell.Word(e)
	case v.SecretFile != "":
		e, err := w.secrets.Read("file", v.SecretFile)
		if err != nil {
			return "", err
		}
		return shell.Word(e)
	}
	return w.word(v.Text)
}

// word renders an argument: literals quoted, placeholders as expressions.
func (w *writer) word(a plan.Arg) (string, error) {
	parts, err := w.parts(a)
	if err != nil {
		return "", err
	}
	return shell.Word(parts...)
}

// mark stands for a placeholder in bound text: text of the user can't hold it,
// since a NUL byte is refused.
func mark(i int) string { return "\x00" + strconv.Itoa(i) + "\x00" }

func (w *writer) parts(a plan.Arg) ([]shell.Part, error) {
	if strings.ContainsRune(string(a), 0) {
		return nil, shell.ErrNUL
	}
	var exprs []shell.Part
	bound, err := a.Bind(func(ph plan.Placeholder) (string, error) {
		got, err := w.expression(ph)
		if err != nil {
			return "", err
		}
		exprs = append(exprs, got...)
		var s string
		for i := len(exprs) - len(got); i < len(exprs); i++ {
			s += mark(i)
		}
		return s, nil
	})
	if err != nil {
		return nil, err
	}
	var parts []shell.Part
	for i, piece := range strings.Split(bound, "\x00") {
		if i%2 == 0 {
			if piece != "" {
				parts = append(parts, shell.Literal(piece))
			}
			continue
		}
		n, err := strconv.Atoi(piece)
		if err != nil {
			return nil, fmt.Errorf("mark %q: %w", piece, err)
		}
		parts = append(parts, exprs[n])
	}
	return parts, nil
}

func (w *writer) expression(ph plan.Placeholder) ([]shell.Part, error) {
	open := func(name, meaning string) ([]shell.Part, error) {
		if n := (need{name, meaning}); !slices.Contains(w.needs, n) {
			w.needs = append(w.needs, n)
		}
		return []shell.Part{shell.Required(name, "set me: "+meaning)}, nil
	}
	switch ph.Kind {
	case "port":
		return open("GENRM_PORT_"+strings.ToUpper(ph.Name), "a free port for "+ph.Name)
	case "host":
		return open("GENRM_HOST_"+ph.Name, "address of node "+ph.Name+" of this process")
	case "upstreams":
		return open("GENRM_UPSTREAMS", "addresses of the judges, as KEY=http://HOST:PORT,KEY=http://HOST:PORT, one for each replica")
	case "rank":
		return open("GENRM_RANK", "node rank of this process")
	case "job_id":
		return open("GENRM_JOB_ID", "id of the job")
	case "run_dir":
		return open("GENRM_RUN_DIR", "folder of the run")
	case "file":
		w.here = true
		return []shell.Part{shell.Var("genrm_here"), shell.Literal("/" + ph.Name)}, nil
	case "secret":
		kind, name, _ := strings.Cut(ph.Name, ":")
		e, err := w.secrets.Read(kind, name)
		return []shell.Part{e}, err
	}
	return nil, fmt.Errorf("unknown placeholder %q", ph.Kind)
}
