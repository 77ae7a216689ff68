package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

//go:embed starter
var starters embed.FS

type initCmd struct {
	Dir      string     `arg:"" optional:"" default:"." help:"Folder to write to, made if need be."`
	Workload string     `enum:"relax,gym,serve" default:"serve" help:"What runs: ${enum}."`
	Target   targetFlag `default:"local" placeholder:"TARGET" help:"Where it runs: ${targets}. Default: local."`
}

func (initCmd) Help() string {
	return `Writes into DIR

  experiment.cue                  a commented starter for the workload and target
  .github/workflows/genrm.yaml    runs genrm vet and genrm golden --check
  .pre-commit-config.yaml         runs the same before a commit

and tells what to do next. If one of the files is there already, nothing is written.

Examples:

  genrm init my-judges
  genrm init runs/dual --workload relax --target slurm`
}

// starterFile is a file that init writes, and what it is made from.
type starterFile struct {
	name  string
	parts []string // below starter/
}

func (c *initCmd) files() []starterFile {
	body := c.Workload + ".cue"
	if c.Workload == "serve" && c.Target == "local" {
		body = "serve-local.cue" // runs on any machine
	}
	return []starterFile{
		{"experiment.cue", []string{body, "target-" + string(c.Target) + ".cue"}},
		{".github/workflows/genrm.yaml", []string{"workflow.yaml"}},
		{".pre-commit-config.yaml", []string{"pre-commit.yaml"}},
	}
}

func (c *initCmd) Run(a *app) error {
	abs, err := filepath.Abs(c.Dir)
	if err != nil {
		return err
	}
	name := experimentName(filepath.Base(abs))
	data := struct{ Name, Package, Version, Workload string }{name, packageName(name), "latest", c.Workload}
	if v := version(); releaseVersion.MatchString(v) {
		data.Version = v
	}
	var taken []string
	texts := map[string][]byte{}
	for _, f := range c.files() {
		var b bytes.Buffer
		for _, part := range f.parts {
			t, err := template.ParseFS(starters, "starter/"+part+".tmpl")
			if err != nil {
				return err
			}
			if err := t.Execute(&b, data); err != nil {
				return err
			}
		}
		texts[f.name] = b.Bytes()
		path := filepath.Join(c.Dir, filepath.FromSlash(f.name))
		if _, err := os.Lstat(path); err == nil {
			taken = append(taken, path)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("already there, so nothing was written: %s", strings.Join(taken, ", "))
	}
	if err := a.ctx.Err(); err != nil {
		return err
	}
	for _, f := range c.files() {
		path := filepath.Join(c.Dir, filepath.FromSlash(f.name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := create(path, texts[f.name]); err != nil {
			return err
		}
		fmt.Fprintln(a.stdout, path)
	}
	dir := filepath.Clean(c.Dir)
	fmt.Fprintf(a.stdout, "\nNext:\n  genrm plan %s\n  genrm golden %s --update\n  genrm launch %s --dry-run\n", dir, dir, dir)
	return nil
}

// create writes a new file; it never replaces one.
func create(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

var (
	releaseVersion = regexp.MustCompile(`^v[0-9]+\.[0-9]+\.[0-9]+$`)
	notInName      = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
	notInPackage   = regexp.MustCompile(`[^a-z0-9_]+`)
)

// experimentName makes a legal experiment name of a folder's name.
func experimentName(folder string) string {
	s := strings.Trim(notInName.ReplaceAllString(folder, "-"), "._-")
	if s == "" {
		return "experiment"
	}
	return s[:min(len(s), 64)]
}

// packageName makes a CUE package name of an experiment's name.
func packageName(name string) string {
	s := strings.Trim(notInPackage.ReplaceAllString(strings.ToLower(name), "_"), "_")
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		s = "x" + s
	}
	return s
}
