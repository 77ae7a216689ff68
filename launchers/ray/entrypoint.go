package ray

import (
	"fmt"
	"strings"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
)

// maxEntrypoint is a little less than the longest argument that Linux gives to a
// program (128 KiB, MAX_ARG_STRLEN): Ray hands the entrypoint to a shell in one.
const maxEntrypoint = 130000

// Entrypoint is the plan's command as one command for a POSIX shell:
//
//	exec env NAME=VALUE … PROGRAM ARGUMENTS
//
// or, where files have to be there, a folder is to be entered or secrets are
// read, `exec sh -c SCRIPT`, which does so and ends in the same. Files are
// written to a new folder below TMPDIR of the node that the driver runs on;
// secrets come from that node's environment and files.
//
// It starts with exec, so that the exit status that Ray sees is the program's,
// also after a signal.
func Entrypoint(p *plan.Plan) (string, error) {
	if len(p.Launch.Argv) == 0 {
		return "", fmt.Errorf("the plan has no command")
	}
	w := &writer{files: map[string]bool{}, secrets: shell.Secrets{Where: "on this node"}}
	for _, a := range p.Artifacts {
		w.files[a.Name] = true
	}
	command := []string{"exec", "env"}
	var exports []string
	for _, e := range p.Launch.Env {
		if !shell.IsName(e.Key) {
			return "", fmt.Errorf("%q is no name of an environment variable", e.Key)
		}
		kind, ref := "env", e.Value.SecretEnv
		if e.Value.SecretFile != "" {
			kind, ref = "file", e.Value.SecretFile
		}
		if ref != "" { // not by env: arguments can be seen by others
			x, err := w.secrets.Read(kind, ref)
			if err != nil {
				return "", err
			}
			word, err := shell.Word(x)
			if err != nil {
				return "", err
			}
			exports = append(exports, "export "+e.Key+"="+word)
			continue
		}
		parts, err := w.parts(e.Value.Text)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.Key, err)
		}
		word, err := shell.Word(append([]shell.Part{shell.Literal(e.Key + "=")}, parts...)...)
		if err != nil {
			return "", fmt.Errorf("%s: %w", e.Key, err)
		}
		command = append(command, word)
	}
	if len(command) == 2 {
		command = command[:1]
	}
	for i, a := range p.Launch.Argv {
		parts, err := w.parts(a)
		if err != nil {
			return "", fmt.Errorf("word %d: %w", i+1, err)
		}
		word, err := shell.Word(parts...)
		if err != nil {
			return "", fmt.Errorf("word %d: %w", i+1, err)
		}
		command = append(command, word)
	}
	line := strings.Join(command, " ")
	if !w.dir && len(w.secrets.Reads) == 0 && p.Launch.WorkDir == "" {
		return line, tooLong(line)
	}
	lines := []string{"set -eu"}
	if w.dir {
		lines = append(lines, `genrm_dir=$(umask 077 && mktemp -d "${TMPDIR:-/tmp}/genrm.XXXXXXXX")`)
		for _, a := range p.Artifacts {
			text, err := shell.Quote(a.Text)
			if err != nil {
				return "", fmt.Errorf("%s: %w", a.Name, err)
			}
			to, err := shell.Word(shell.Var("genrm_dir"), shell.Literal("/"+a.Name))
			if err != nil {
				return "", err
			}
			lines = append(lines, "printf %s "+text+" >"+to)
		}
	}
	lines = append(lines, w.secrets.Reads...)
	if p.Launch.WorkDir != "" {
		dir, err := shell.Quote(p.Launch.WorkDir)
		if err != nil {
			return "", err
		}
		lines = append(lines, "cd -- "+dir)
	}
	script, err := shell.Quote(strings.Join(append(append(lines, exports...), line), "\n"))
	if err != nil {
		return "", err
	}
	whole := "exec sh -c " + script
	return whole, tooLong(whole)
}

func tooLong(s string) error {
	if len(s) > maxEntrypoint {
		return fmt.Errorf("the command and its files are %d bytes long, and Ray hands at most %d to a shell: put long values into files on the nodes", len(s), maxEntrypoint)
	}
	return nil
}

type writer struct {
	files   map[string]bool
	dir     bool // a file is referred to
	secrets shell.Secrets
}

// parts renders an argument. A NUL byte marks where a placeholder was: text of
// the user holds none, since one is refused.
func (w *writer) parts(a plan.Arg) ([]shell.Part, error) {
	if strings.ContainsRune(string(a), 0) {
		return nil, shell.ErrNUL
	}
	var exprs [][]shell.Part
	bound, err := a.Bind(func(ph plan.Placeholder) (string, error) {
		switch {
		case ph.Kind == "file" && w.files[ph.Name]:
			w.dir = true
			exprs = append(exprs, []shell.Part{shell.Var("genrm_dir"), shell.Literal("/" + ph.Name)})
		case ph.Kind == "run_dir":
			w.dir = true
			exprs = append(exprs, []shell.Part{shell.Var("genrm_dir")})
		case ph.Kind == "secret":
			kind, name, _ := strings.Cut(ph.Name, ":")
			e, err := w.secrets.Read(kind, name)
			if err != nil {
				return "", err
			}
			exprs = append(exprs, []shell.Part{e})
		default:
			return "", fmt.Errorf("target ray does not know it")
		}
		return "\x00", nil
	})
	if err != nil {
		return nil, err
	}
	var parts []shell.Part
	for i, text := range strings.Split(bound, "\x00") {
		if i > 0 {
			parts = append(parts, exprs[i-1]...)
		}
		if text != "" {
			parts = append(parts, shell.Literal(text))
		}
	}
	return parts, nil
}
