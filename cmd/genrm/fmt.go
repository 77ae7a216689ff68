package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cuelang.org/go/cue/format"
)

type fmtCmd struct {
	Paths []string `arg:"" optional:"" name:"path" help:"Files, folders (their .cue files), or ./... for all below. Default: the current folder."`
	Diff  bool     `short:"d" help:"Print differences; change nothing."`
	Check bool     `help:"List the files that would change and exit 1; change nothing."`
}

func (fmtCmd) Help() string {
	return `Steps: format every file in memory with CUE's own formatter; if all of them parse, replace those that change, each at once.

Examples:

  genrm fmt ./...
  genrm fmt -d dual.cue
  genrm fmt --check ./...        # in CI

Exit status: 0 fine, 1 a file does not parse, or would change under --check, 2 wrong usage.`
}

func (c *fmtCmd) Run(a *app) error {
	files, err := cueFiles(c.Paths)
	if err != nil {
		return err
	}
	type change struct {
		file     string
		old, new []byte
	}
	var changes []change
	failed := false
	for _, f := range files {
		old, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		fresh, err := format.Source(old)
		if err != nil {
			fmt.Fprintf(a.stderr, "genrm: %s: %v\n", f, err)
			failed = true
			continue
		}
		if !bytes.Equal(old, fresh) {
			changes = append(changes, change{f, old, fresh})
		}
	}
	if failed {
		return errReported
	}
	for _, ch := range changes {
		switch {
		case c.Diff:
			if err := unified(a, ch.file, "formatted", ch.old, ch.new); err != nil {
				return err
			}
		case c.Check:
			fmt.Fprintln(a.stdout, ch.file)
		default:
			if err := replace(ch.file, ch.new); err != nil {
				return err
			}
		}
	}
	if c.Check && len(changes) > 0 {
		return errReported
	}
	return nil
}

// replace swaps a file's content at once and keeps its mode.
func replace(file string, text []byte) (err error) {
	st, err := os.Stat(file)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), ".genrm-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp.Name()))
		}
	}()
	_, err = tmp.Write(text)
	if err = errors.Join(err, tmp.Chmod(st.Mode().Perm()), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), file)
}

// cueFiles lists the .cue files that paths name, without cue.mod and hidden
// folders.
func cueFiles(paths []string) ([]string, error) {
	if len(paths) == 0 {
		paths = []string{"."}
	}
	var out []string
	for _, p := range paths {
		root, deep := strings.CutSuffix(filepath.ToSlash(p), "/...")
		if p == "..." {
			root, deep = ".", true
		}
		if !isDir(root) {
			out = append(out, p)
			continue
		}
		n := len(out)
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && path != root && (!deep || d.Name() == "cue.mod" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")):
				return fs.SkipDir
			case !d.IsDir() && filepath.Ext(path) == ".cue":
				out = append(out, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(out) == n && !deep {
			return nil, fmt.Errorf("%s: no .cue file", p)
		}
	}
	return out, nil
}
