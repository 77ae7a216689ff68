package kuberay

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
)

const (
	// filesDir is where the pods see the run's files.
	filesDir = "/etc/genrm"

	// scriptName is the script that starts the command.
	scriptName = "launch.sh"
)

// plainWord needs no quotes in any shell, nor in Python's subprocess.list2cmdline,
// by which `ray job submit` joins the words that it is given before a second shell
// reads them (ray-project/ray#55591): a word that one of them would quote or
// expand never stands in an entrypoint.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+:,./=-]*$`)

// command is how the run is started: one simple command, without any operator of
// a shell, since the operator hands it to a shell in the submitter and another one
// in the cluster, and only the first command of several would reach the latter
// (ray-project/kuberay#3561).
type command struct {
	entrypoint string
	script     string // text of scriptName, "" if there is none
	pods       []podEnv
}

// podEnv is a variable of every pod of Ray: text, or the key of a secret of
// Kubernetes.
type podEnv struct {
	name, text, secret, key string
}

// start renders the plan's command. secrets says which variables the user's block
// fills from secrets of Kubernetes.
func start(p *plan.Plan, hash string, secrets map[string]secretKey) (command, error) {
	var c command
	w := &writer{files: map[string]bool{}, secrets: shell.Secrets{Where: "in this pod"}}
	for _, a := range p.Artifacts {
		w.files[a.Name] = true
	}
	if len(p.Launch.Argv) == 0 {
		return c, fmt.Errorf("the plan has no command")
	}
	var exports []string
	export := func(name string, parts ...shell.Part) error {
		word, err := shell.Word(parts...)
		if err == nil {
			exports = append(exports, "export "+name+"="+word)
		}
		return err
	}
	for _, e := range p.Launch.Env {
		if !shell.IsName(e.Key) {
			return c, fmt.Errorf("%q is no name of an environment variable", e.Key)
		}
		v := e.Value
		from, mapped := secrets[v.SecretEnv]
		switch {
		case v.SecretEnv != "" && mapped:
			c.pods = append(c.pods, podEnv{name: e.Key, secret: from.name, key: from.key})
		case v.SecretEnv != "", v.SecretFile != "":
			kind, ref := "env", v.SecretEnv
			if ref == "" {
				kind, ref = "file", v.SecretFile
			}
			x, err := w.secrets.Read(kind, ref)
			if err != nil {
				return c, err
			}
			if ref != e.Key || kind == "file" { // else it is there already
				if err := export(e.Key, x); err != nil {
					return c, err
				}
			}
		default:
			parts, plain, err := w.parts(v.Text)
			if err != nil {
				return c, fmt.Errorf("%s: %w", e.Key, err)
			}
			if plain { // known here, so every pod gets it
				c.pods = append(c.pods, podEnv{name: e.Key, text: text(parts)})
				continue
			}
			if err := export(e.Key, parts...); err != nil {
				return c, fmt.Errorf("%s: %w", e.Key, err)
			}
		}
	}
	var words, bare []string
	simple := true
	for i, a := range p.Launch.Argv {
		parts, plain, err := w.parts(a)
		if err != nil {
			return c, fmt.Errorf("word %d: %w", i+1, err)
		}
		word, err := shell.Word(parts...)
		if err != nil {
			return c, fmt.Errorf("word %d: %w", i+1, err)
		}
		literal := text(parts)
		simple = simple && plain && plainWord.MatchString(literal) && (i > 0 || !strings.Contains(literal, "="))
		words, bare = append(words, word), append(bare, literal)
	}
	if simple && len(w.secrets.Reads) == 0 && len(exports) == 0 && p.Launch.WorkDir == "" {
		c.entrypoint = strings.Join(bare, " ")
		return c, nil
	}
	lines := []string{"#!/bin/bash", "# " + madeBy(p, hash), "set -eu"}
	lines = append(lines, w.secrets.Reads...)
	lines = append(lines, exports...)
	if dir := p.Launch.WorkDir; dir != "" {
		word, err := shell.Quote(dir)
		if err != nil {
			return c, err
		}
		lines = append(lines, "cd -- "+word)
	}
	lines = append(lines, "exec "+strings.Join(emit.Lines(p.Launch.Argv, words), " \\\n  "))
	c.script = strings.Join(lines, "\n") + "\n"
	c.entrypoint = "bash " + filesDir + "/" + scriptName
	return c, nil
}

func madeBy(p *plan.Plan, hash string) string {
	return fmt.Sprintf("%s from experiment %s, plan sha256:%s. Do not edit.", emit.Header, p.Name, hash)
}

// writer turns arguments of a plan into words of the script.
type writer struct {
	files   map[string]bool
	secrets shell.Secrets
}

// parts renders an argument. plain says that nothing in it is left to the pod.
func (w *writer) parts(a plan.Arg) (parts []shell.Part, plain bool, err error) {
	if strings.ContainsRune(string(a), 0) {
		return nil, false, shell.ErrNUL
	}
	if !utf8.ValidString(string(a)) {
		return nil, false, fmt.Errorf("the text is not UTF-8, and objects of Kubernetes hold nothing else")
	}
	var secrets []shell.Expr
	bound, err := a.Bind(func(ph plan.Placeholder) (string, error) {
		switch {
		case ph.Kind == "file" && w.files[ph.Name]:
			return filesDir + "/" + ph.Name, nil
		case ph.Kind == "secret":
			kind, name, _ := strings.Cut(ph.Name, ":")
			e, err := w.secrets.Read(kind, name)
			if err != nil {
				return "", err
			}
			secrets = append(secrets, e)
			return "\x00", nil // the user's text holds none
		}
		return "", fmt.Errorf("target kuberay does not know it")
	})
	if err != nil {
		return nil, false, err
	}
	for i, t := range strings.Split(bound, "\x00") {
		if i > 0 {
			parts = append(parts, secrets[i-1])
		}
		if t != "" {
			parts = append(parts, shell.Literal(t))
		}
	}
	return parts, len(secrets) == 0, nil
}

// text is what plain parts say.
func text(parts []shell.Part) string {
	var b strings.Builder
	for _, p := range parts {
		if l, ok := p.(shell.Literal); ok {
			b.WriteString(string(l))
		}
	}
	return b.String()
}

// unexpanded keeps a value as it is: Kubernetes replaces $(NAME) in values of a
// container's environment, and $$ by $.
func unexpanded(s string) string { return strings.ReplaceAll(s, "$", "$$") }
