package compiler

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/scanner"
	"cuelang.org/go/cue/token"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/schema"
)

const (
	// maxFile is the size in bytes above which a file is refused unread: such a
	// file is data that was named by mistake.
	maxFile = 32 << 20
	// maxNesting is how deep brackets may nest: the parser and the evaluator
	// recurse, and a Go stack overflow can't be recovered from.
	maxNesting = 500
	// maxChain is how many operators or labels may stand in a row.
	maxChain = 5_000
	// maxMembers is how many elements or fields one literal may have: CUE's
	// evaluation time grows with their square (130,000 fields take half a minute).
	maxMembers = 30_000
	// GeneratedFile is the name of the file that `genrm schema --vendor` writes
	// into an experiment package for stock CUE tools. The compiler passes over
	// it, since it checks against the schema in its own way.
	GeneratedFile = "genrm_gen.cue"
)

// source is one CUE package of the user: what load makes of a PATH argument.
type source struct {
	dir   string // absolute
	args  []string
	files map[string]*file // by absolute path
	order []string         // absolute paths, sorted
	skip  bool             // found by "...": passed over when it holds no experiment
	name  string           // as the user named it
	found diag.List        // what loading found in files that parse
}

// file is a file of the user.
type file struct {
	shown  string // as the user named it
	data   []byte
	ascii  bool
	lines  []int // byte offset of each line's start
	syntax *ast.File
}

// position converts a place of CUE's (a byte column) to one of ours.
func (f *file) position(line, column int) diag.Pos {
	p := diag.Pos{File: f.shown, Line: line, Column: column}
	if !f.ascii && line >= 1 && line <= len(f.lines) {
		start := f.lines[line-1]
		end := min(start+column-1, len(f.data))
		p.Column = utf8.RuneCount(f.data[start:end]) + 1
		if line == 1 && bytes.HasPrefix(f.data, []byte("\ufeff")) && p.Column > 1 {
			p.Column-- // a byte order mark is nothing that a reader sees
		}
	}
	return p
}

// expand turns PATH arguments into packages: a .cue file, a folder, or a folder
// with /... for every folder below it.
func expand(paths []string, diags *diag.List) []*source {
	var out []*source
	fail := func(path, summary, remedy string) {
		diags.Add(diag.Diagnostic{Code: "GRM1002", Severity: diag.Error, Pos: diag.Pos{File: path}, Summary: summary, Remedy: remedy})
	}
	for _, path := range paths {
		if root, ok := strings.CutSuffix(path, "..."); ok && (root == "" || strings.HasSuffix(root, "/")) {
			found := len(out)
			root = filepath.Clean("./" + root)
			if filepath.IsAbs(path) {
				root = filepath.Clean(strings.TrimSuffix(path, "..."))
			}
			err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
				if err != nil {
					fail(p, "can't read this folder: "+reason(err), "check that it exists and may be read")
					return nil
				}
				if !d.IsDir() {
					return nil
				}
				if n := d.Name(); p != root && (n == "cue.mod" || strings.HasPrefix(n, ".") || strings.HasPrefix(n, "_")) {
					return filepath.SkipDir
				}
				if s := folder(p, diags, true); s != nil {
					out = append(out, s)
				}
				return nil
			})
			if err == nil && len(out) == found {
				fail(path, "no .cue file in this folder or below", "name a folder that holds experiments")
			}
			continue
		}
		info, err := os.Stat(path)
		switch {
		case err != nil:
			remedy := "check the path"
			if near := diag.DidYouMean(filepath.Base(path), siblings(path)); near != "" {
				remedy = near
			}
			fail(path, "can't read this path: "+reason(err), remedy)
		case info.IsDir() && filepath.Base(filepath.Clean(path)) == "cue.mod":
			fail(path, "this folder marks a CUE module; it holds no experiment", "name a folder beside it")
		case info.IsDir():
			if s := folder(path, diags, false); s != nil {
				out = append(out, s)
			}
		case !info.Mode().IsRegular():
			fail(path, "not a regular file", "name a .cue file or a folder")
		case filepath.Ext(path) != ".cue":
			fail(path, "not a .cue file", "name a .cue file or a folder; CUE reads JSON as it is, so a JSON file only needs another name")
		default:
			s := &source{name: path}
			abs, _ := filepath.Abs(path)
			s.dir, s.args = filepath.Dir(abs), []string{"./" + filepath.Base(abs)}
			s.add(abs, path, diags)
			out = append(out, s)
		}
	}
	return out
}

// folder reads the package of a folder, or reports that there is none unless
// the folder was only found by "...".
func folder(path string, diags *diag.List, skip bool) *source {
	entries, err := os.ReadDir(path)
	if err != nil {
		diags.Add(diag.Diagnostic{Code: "GRM1002", Severity: diag.Error, Pos: diag.Pos{File: path}, Summary: "can't read this folder: " + reason(err), Remedy: "check its permissions"})
		return nil
	}
	s := &source{name: path, skip: skip, args: []string{"."}}
	s.dir, _ = filepath.Abs(path)
	for _, e := range entries {
		n := e.Name()
		if filepath.Ext(n) == ".cue" && !strings.HasPrefix(n, ".") && !strings.HasPrefix(n, "_") && !strings.HasSuffix(n, "_tool.cue") && !e.IsDir() {
			s.add(filepath.Join(s.dir, n), filepath.Join(path, n), diags)
		}
	}
	if len(s.order) == 0 && !skip {
		diags.Add(diag.Diagnostic{Code: "GRM1002", Severity: diag.Error, Pos: diag.Pos{File: path}, Summary: "no .cue file in this folder",
			Remedy: "name the folder that holds the experiment, or `genrm init` one here"})
	}
	if len(s.order) == 0 {
		return nil
	}
	for _, abs := range s.order {
		if f := s.files[abs]; f.syntax != nil && f.syntax.PackageName() == "" {
			diags.Add(diag.Diagnostic{Code: "GRM1003", Severity: diag.Error, Pos: diag.Pos{File: f.shown, Line: 1, Column: 1}, Summary: "no package clause",
				Detail: "A folder's files form one CUE package; CUE leaves out a file without a package clause when it reads the folder.", Remedy: "begin the file with a line such as `package " + packageName(s, abs) + "`"})
		}
	}
	return s
}

// packageName proposes a package clause: that of a sibling, or the folder's name.
func packageName(s *source, except string) string {
	for _, abs := range s.order {
		if f := s.files[abs]; abs != except && f.syntax != nil && f.syntax.PackageName() != "" {
			return f.syntax.PackageName()
		}
	}
	name := strings.TrimLeft(notIdentifier.ReplaceAllString(filepath.Base(s.dir), "_"), "_0123456789")
	if name == "" {
		return "experiment"
	}
	return name
}

var notIdentifier = regexp.MustCompile(`[^A-Za-z0-9]+`)

// add reads and parses one file. What is wrong with it is reported; then its
// syntax stays nil and the package is not evaluated.
func (s *source) add(abs, shown string, diags *diag.List) {
	if s.files == nil {
		s.files = map[string]*file{}
	}
	f := &file{shown: shown}
	s.files[abs] = f
	s.order = append(s.order, abs)
	slices.Sort(s.order)
	refuse := func(pos diag.Pos, code, summary, remedy string) {
		pos.File = shown
		diags.Add(diag.Diagnostic{Code: code, Severity: diag.Error, Pos: pos, Summary: summary, Remedy: remedy})
	}
	info, err := os.Stat(abs)
	if err == nil && !info.Mode().IsRegular() { // a device or a pipe may never end
		refuse(diag.Pos{}, "GRM1002", "not a regular file", "remove it, or give it another ending than .cue")
		return
	}
	if err == nil && info.Size() > maxFile {
		refuse(diag.Pos{}, "GRM1002", fmt.Sprintf("the file is %d MiB long; experiments are far below %d", info.Size()>>20, maxFile>>20), "name the experiment, not its data")
		return
	}
	data, err := os.ReadFile(abs)
	if err != nil {
		refuse(diag.Pos{}, "GRM1002", "can't read this file: "+reason(err), "check that it exists and may be read")
		return
	}
	f.data, f.ascii, f.lines = data, true, []int{0}
	depth, deepest, deepestAt := 0, 0, 0
	for i, c := range data {
		switch {
		case c >= utf8.RuneSelf:
			f.ascii = false
		case c == '\n':
			f.lines = append(f.lines, i+1)
		case c == '{' || c == '[' || c == '(':
			if depth++; depth > deepest {
				deepest, deepestAt = depth, i
			}
		case c == '}' || c == ']' || c == ')':
			depth--
		}
	}
	if !f.ascii && !utf8.Valid(data) {
		at := 0
		for at < len(data) {
			r, n := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			at += n
		}
		refuse(f.offset(at), "GRM1002", "not UTF-8 text", "save the file as UTF-8")
		return
	}
	if deepest > maxNesting {
		refuse(f.offset(deepestAt), "GRM1001", fmt.Sprintf("brackets nest %d deep, more than %d", deepest, maxNesting), "flatten the value")
		return
	}
	if at, ok := f.longChain(); ok {
		refuse(f.offset(at), "GRM1001", fmt.Sprintf("more than %d operators or labels in a row", maxChain), "break the value up: use a list, or fields of their own")
		return
	}
	syntax, err := parser.ParseFile(abs, data, parser.ParseComments, parser.AllErrors)
	if err != nil {
		for _, e := range cueerrors.Errors(err) {
			format, args := e.Msg()
			pos := f.position(e.Position().Line(), e.Position().Column())
			if pos.Line == 0 {
				pos = diag.Pos{Line: 1, Column: 1}
			}
			refuse(pos, "GRM1001", "syntax error: "+fmt.Sprintf(format, args...), "see the CUE syntax: fields are `name: value`, one a line or parted by commas")
		}
		return
	}
	ast.Walk(syntax, func(n ast.Node) bool {
		members := 0
		switch n := n.(type) {
		case *ast.ListLit:
			members = len(n.Elts)
		case *ast.StructLit:
			members = len(n.Elts)
		case *ast.File:
			members = len(n.Decls)
		}
		if members > maxMembers && err == nil {
			err = fs.ErrInvalid
			pos := f.position(max(1, n.Pos().Line()), max(1, n.Pos().Column()))
			refuse(pos, "GRM1002", fmt.Sprintf("%d values in one list or struct, more than %d", members, maxMembers), "keep data in a file of its own and name its path; split a sweep over several files")
		}
		return err == nil
	}, nil)
	if err != nil {
		return
	}
	f.syntax = syntax
	redactSecrets(f, &s.found)
}

// offset converts a byte offset to a position.
func (f *file) offset(at int) diag.Pos {
	line, _ := slices.BinarySearch(f.lines, at+1)
	return f.position(line, at-f.lines[line-1]+1)
}

// longChain finds an expression of more than maxChain operators (1+1+…) or a
// field of as many labels (a: a: …), and where it begins to be too long: CUE's
// parser and evaluator take quadratic time for these. A file too short to hold
// one is not looked at.
func (f *file) longChain() (offset int, found bool) {
	if len(f.data) < 2*maxChain {
		return 0, false
	}
	var s scanner.Scanner
	s.Init(token.NewFile("", -1, len(f.data)), f.data, func(token.Pos, string, []any) {}, 0)
	chain, depth := []int{0}, 0 // length of the chain at each depth of brackets
	for {
		pos, tok, _ := s.Scan()
		switch tok {
		case token.EOF:
			return 0, false
		case token.COMMA:
			chain[depth] = 0
		case token.LBRACE, token.LBRACK, token.LPAREN:
			depth++
			chain = append(chain[:depth], 0)
		case token.RBRACE, token.RBRACK, token.RPAREN:
			depth = max(0, depth-1)
		case token.COLON, token.ADD, token.SUB, token.MUL, token.QUO, token.AND, token.OR, token.LAND, token.LOR, token.EQL, token.PERIOD:
			if chain[depth]++; chain[depth] > maxChain {
				return pos.Offset(), true
			}
		}
	}
}

// parsed reports whether every file of the package has a syntax tree.
func (s *source) parsed() bool {
	for _, f := range s.files {
		if f.syntax == nil {
			return false
		}
	}
	return true
}

// pos converts a position of CUE's. A file that is not of the package (an
// imported one) is read for its columns and shown relative to the working
// folder if it lies below it.
func (s *source) pos(p token.Pos) diag.Pos {
	if !p.IsValid() || p.Filename() == "" {
		return diag.Pos{}
	}
	q := p.Position()
	f := s.files[q.Filename]
	if f == nil {
		f = &file{shown: q.Filename, ascii: true}
		if wd, err := os.Getwd(); err == nil {
			if rel, err := filepath.Rel(wd, q.Filename); err == nil && filepath.IsLocal(rel) {
				f.shown = rel
			}
		}
		if data, err := os.ReadFile(q.Filename); err == nil {
			f.data, f.ascii, f.lines = data, false, []int{0}
			for i, c := range data {
				if c == '\n' {
					f.lines = append(f.lines, i+1)
				}
			}
		}
		s.files[q.Filename] = f
		f.syntax = &ast.File{}
	}
	return f.position(q.Line, q.Column)
}

// importsSchema reports whether a file of the package imports the schema.
func (s *source) importsSchema() bool {
	for _, abs := range s.order {
		for spec := range s.files[abs].syntax.ImportSpecs() {
			if strings.Trim(spec.Path.Value, `"`) == schema.ImportPath && filepath.Base(abs) != GeneratedFile {
				return true
			}
		}
	}
	return false
}

func siblings(path string) []string {
	entries, _ := os.ReadDir(filepath.Dir(path))
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		if e.Name() != filepath.Base(path) { // it is there, and can't be read
			out = append(out, e.Name())
		}
	}
	return out
}

// reason is the cause of an error of the file system without the path, which
// the diagnostic shows already.
func reason(err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err.Error()
	}
	return err.Error()
}
