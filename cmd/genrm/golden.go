package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"

	"github.com/pmezard/go-difflib/difflib"
)

type goldenCmd struct {
	compileFlags
	Check  bool   `xor:"mode" help:"Compare, and fail on any difference (default)."`
	Update bool   `xor:"mode" help:"Write the golden files."`
	Dir    string `placeholder:"DIR" help:"Keep golden files in DIR/<package folder>. Default: golden, in the package's folder."`
	Force  bool   `help:"With --update: overwrite golden files that were edited by hand."`
}

func (goldenCmd) Help() string {
	return `Golden files are the plan and everything that emit would write, kept in version control: a review then shows what a change of an experiment, or of genrm, does to a run.

Steps: as vet; then build all files in memory; then compare them with the golden files, byte by byte, or write them with --update. A missing golden file is a failure, and so is one that is no longer made. No target is needed; with --target the files lie in a folder of that name.

  PACKAGE/golden/                 one experiment
  PACKAGE/golden/EXPERIMENT/      several
  PACKAGE/golden/FILE/            a single file, given as FILE.cue

Examples:

  genrm golden ./... --update
  genrm golden ./... --check           # in CI
  genrm golden examples/relax-dual-judge --dir golden

Exit status: 0 the same, 1 errors or differences, 2 wrong usage.`
}

func (c *goldenCmd) Run(a *app) error {
	if c.Force && !c.Update {
		return usagef("--force needs --update")
	}
	if c.Update && c.Name != "" {
		return usagef("--update writes all experiments of a package: leave out --name")
	}
	r := c.compile()
	plans, err := a.accepted(r, false)
	if err != nil {
		return err
	}
	if len(plans) == 0 {
		return fmt.Errorf("no experiment: nothing to compare")
	}
	var dirs []string
	groups := map[string][]*plan.Plan{}
	for _, p := range plans {
		d := c.dir(p)
		if _, ok := groups[d]; !ok {
			dirs = append(dirs, d)
		}
		groups[d] = append(groups[d], p)
	}
	differ := 0
	for _, d := range dirs {
		files, err := emitted(groups[d], len(groups[d]) > 1 || groups[d][0].Prefix != "")
		if err != nil {
			return err
		}
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if c.Update {
			if err := emit.Write(d, files, c.Force); err != nil {
				var foreign *emit.Foreign
				if errors.As(err, &foreign) {
					return fmt.Errorf("%w\nNothing was written there; --force overwrites them", err)
				}
				return err
			}
			continue
		}
		n, err := compare(a, d, files, c.Name == "")
		if err != nil {
			return err
		}
		differ += n
	}
	if differ > 0 {
		fmt.Fprintf(a.stderr, "genrm: golden files that differ: %d. After a review: genrm golden --update\n", differ)
		return errReported
	}
	return nil
}

// dir is where the golden files of a plan's package lie.
func (c *goldenCmd) dir(p *plan.Plan) string {
	file := p.Positions[""].File
	pkg, name := filepath.Dir(file), ""
	if slices.Contains(c.Paths, file) && !isDir(file) {
		name = stem(file)
	}
	base := filepath.Join(pkg, "golden", name)
	if c.Dir != "" {
		if name == "" {
			name = filepath.Base(pkg)
			if abs, err := filepath.Abs(pkg); err == nil {
				name = filepath.Base(abs)
			}
		}
		base = filepath.Join(c.Dir, name)
	}
	return filepath.Join(base, string(c.Target))
}

// compare prints a unified diff for every file that differs from its golden
// file and returns their number. With all set, files that are no longer made
// count, too.
func compare(a *app, dir string, files []emit.File, all bool) (int, error) {
	differ := 0
	var made []string
	for _, f := range files {
		path := filepath.Join(dir, filepath.FromSlash(f.Name))
		made = append(made, path)
		have, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(a.stdout, "%s: missing\n", path)
			differ++
			continue
		}
		if err != nil {
			return differ, err
		}
		if bytes.Equal(have, f.Text) {
			continue
		}
		differ++
		if err := unified(a, path, "now", have, f.Text); err != nil {
			return differ, err
		}
	}
	if !all {
		return differ, nil
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != dir && filepath.Dir(path) == dir && isTarget(d.Name()):
			return fs.SkipDir // golden files of another --target
		case !d.IsDir() && d.Name() != emit.Manifest && !slices.Contains(made, path):
			fmt.Fprintf(a.stdout, "%s: no longer made\n", path)
			differ++
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return differ, err
}

func isTarget(name string) bool { return slices.Contains(plan.Targets, plan.Target(name)) }

// unified prints the difference of two texts.
func unified(a *app, from, to string, old, new []byte) error {
	text, err := difflib.GetUnifiedDiffString(difflib.UnifiedDiff{
		A: lines(old), B: lines(new), FromFile: from, ToFile: to, Context: 3,
	})
	if err != nil {
		return err
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err = a.stdout.Write([]byte(text))
	return err
}

// lines splits a text behind its newlines. The last piece says so if there is no
// newline at the end.
func lines(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	out := strings.SplitAfter(string(text), "\n")
	if last := len(out) - 1; out[last] == "" {
		out = out[:last]
	} else {
		out[last] += "\n\\ No newline at end of file\n"
	}
	return out
}
