package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"

	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
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
	var broken diag.List
	for _, f := range files {
		if st, err := os.Stat(f); err == nil && !st.Mode().IsRegular() {
			return fmt.Errorf("%s: not a regular file", f)
		}
		old, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		syntax, err := parser.ParseFile(f, old, parser.ParseComments, parser.AllErrors)
		if err != nil {
			broken = append(broken, syntaxErrors(f, old, err)...)
			continue
		}
		fresh, err := format.Node(syntax)
		if err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
		if !bytes.Equal(old, fresh) {
			changes = append(changes, change{f, old, fresh})
		}
	}
	if len(broken) > 0 {
		return errors.Join(errReported, a.print(broken.Sorted()))
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

// syntaxErrors places what the parser says.
func syntaxErrors(file string, text []byte, err error) diag.List {
	var out diag.List
	for _, e := range cueerrors.Errors(err) {
		d := diag.Diagnostic{Code: "GRM1001", Severity: diag.Error, Pos: diag.Pos{File: file, Line: 1, Column: 1}}
		format, args := e.Msg()
		if d.Summary = "syntax error: " + fmt.Sprintf(format, args...); compiler.LooksSecret(d.Summary) {
			d.Summary = "syntax error"
		}
		if p := e.Position(); p.IsValid() {
			d.Pos.Line = p.Line()
			if n := p.Offset() - (p.Column() - 1); n >= 0 && p.Offset() <= len(text) {
				d.Pos.Column = utf8.RuneCount(text[n:p.Offset()]) + 1
			}
		}
		d.Remedy = "see `genrm explain GRM1001`"
		out.Add(d)
	}
	return out
}

// replace swaps a file's content at once and keeps its mode; of a link, that of
// the file it leads to.
func replace(file string, text []byte) (err error) {
	if file, err = filepath.EvalSymlinks(file); err != nil { // a link stays one
		return err
	}
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
