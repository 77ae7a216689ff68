package compiler

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/load"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema"
)

// evaluator turns what CUE makes of a package into a tree.
type evaluator struct {
	src      *source
	diags    *diag.List
	reported map[string]bool // errors of CUE that have a diagnostic
	keys     map[string]ast.Node
	standin  map[diag.Pos]bool       // places of unresolved names that were reported
	hidden   map[string][]tree.Field // hidden fields (_x) by the path of their struct
	unnamed  map[place]bool          // names that nothing defines
	dropped  map[place]bool          // imports that were taken out
	sets     []string                // paths of --set
}

// evaluate evaluates a package by itself, without the schema: what the schema
// has to say is checked afterwards, so that one mistake can't hide another. The
// root is nil when the package can't be evaluated at all; hidden holds the
// hidden fields by the path of their struct.
func evaluate(src *source, opts Options, diags *diag.List) (root *tree.Value, hidden map[string][]tree.Field) {
	defer func() { // CUE's evaluator has bugs of its own; a user's file must not end the program
		if r := recover(); r != nil {
			diags.Add(diag.Diagnostic{Code: "GRM1007", Severity: diag.Error, Pos: diag.Pos{File: src.name}, Summary: "CUE's evaluator failed on this package",
				Detail: firstLine(fmt.Sprint(r)), Remedy: "take parts out until it passes; an expression in the last one is what it trips over"})
			root = nil
		}
	}()
	ev := &evaluator{src: src, diags: diags, reported: map[string]bool{}, standin: map[diag.Pos]bool{},
		unnamed: map[place]bool{}, dropped: map[place]bool{}}
	cfg := &load.Config{Dir: src.dir, Tags: opts.Tags, ParseFile: ev.parseFile}
	if src.importsSchema() {
		cfg.Overlay = schemaOverlay(src.dir)
	}
	ctx := cuecontext.New()
	build := func() (cue.Value, error) {
		inst := load.Instances(src.args, cfg)[0]
		if inst.Err != nil {
			return cue.Value{}, inst.Err
		}
		return ctx.BuildInstance(inst), inst.Err // building may set it
	}
	v, err := build()
	for err != nil && ev.standIns(err) { // each round takes out places that no earlier one did
		v, err = build()
	}
	if err != nil {
		ev.errors(err, diag.Pos{File: src.name})
		return nil, nil
	}
	written := v
	for _, set := range opts.Sets {
		v = ev.set(ctx, v, set)
	}
	root = ev.value(v, "", diag.Pos{File: src.files[src.order[0]].shown, Line: 1, Column: 1})
	if len(opts.Sets) > 0 {
		reorder(root, written)
	}
	if err := v.Err(); err != nil { // what hidden fields and definitions got wrong
		ev.errors(err, root.Pos)
	}
	// A fault in --set is one of the whole value too: the one with a path says more.
	all := slices.Clone(*diags)
	*diags = slices.DeleteFunc(*diags, func(d diag.Diagnostic) bool {
		return d.Path == "" && strings.HasPrefix(d.Pos.File, "--set") && slices.ContainsFunc(all, func(o diag.Diagnostic) bool { return o.Path != "" && o.Code == d.Code && o.Pos == d.Pos })
	})
	return root, ev.hidden
}

// reorder gives the members of v the order that they have in written, with new
// ones last: unifying a --set with a computed struct moves the members that it
// names to the front, and the order of judges decides which GPUs they get.
func reorder(v *tree.Value, written cue.Value) {
	if v.Kind != tree.Struct {
		return
	}
	it, err := written.Fields()
	if err != nil {
		return
	}
	rank := map[string]int{}
	for it.Next() {
		if it.Selector().LabelType() == cue.StringLabel {
			name := it.Selector().Unquoted()
			rank[name] = len(rank)
			if f := v.Field(name); f != nil {
				reorder(f, it.Value())
			}
		}
	}
	slices.SortStableFunc(v.Fields, func(a, b tree.Field) int {
		i, ok := rank[a.Name]
		j, ok2 := rank[b.Name]
		if !ok {
			i = len(rank)
		}
		if !ok2 {
			j = len(rank)
		}
		return i - j
	})
}

// standIns reports every name that nothing defines and puts "_" in its place, and
// every import that is unused or can't be had and takes it out, so that the rest
// of the package is evaluated: CUE gives up at these. It reports whether it found
// one; the trees are then parsed anew, since the loader has resolved names in the
// old ones.
func (ev *evaluator) standIns(err error) bool {
	found := false
	for _, e := range cueerrors.Errors(err) {
		format, _ := e.Msg()
		p := e.Position()
		f := ev.src.files[p.Filename()]
		if f == nil || f.data == nil {
			continue
		}
		at := place{p.Filename(), p.Offset()}
		if spec := importAt(f.syntax, p.Offset()); spec != nil {
			if at.offset = spec.Pos().Offset(); !ev.dropped[at] {
				ev.errors(e, ev.src.pos(p))
				ev.dropped[at], found = true, true
			}
			continue
		}
		if !strings.Contains(format, "reference") || ev.unnamed[at] {
			continue
		}
		ev.errors(e, ev.src.pos(p))
		ev.unnamed[at], found = true, true
	}
	if !found {
		return false
	}
	for abs, f := range ev.src.files {
		syntax, err := parser.ParseFile(abs, f.data, parser.ParseComments)
		if err != nil || f.data == nil {
			continue
		}
		var again diag.List // reported already
		f.syntax = syntax
		redactSecrets(f, &again)
		for d := range syntax.ImportDecls() {
			d.Specs = slices.DeleteFunc(d.Specs, func(s *ast.ImportSpec) bool { return ev.dropped[place{abs, s.Pos().Offset()}] })
		}
		ast.Walk(syntax, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok {
				return true
			}
			spec, ok := id.Node.(*ast.ImportSpec)
			if ev.unnamed[place{abs, id.Pos().Offset()}] || ok && ev.dropped[place{abs, spec.Pos().Offset()}] {
				id.Name, id.Node = "_", nil
				ev.standin[ev.src.pos(id.Pos())] = true
			}
			return true
		}, nil)
	}
	return true
}

// place is a byte offset of a file.
type place struct {
	file   string
	offset int
}

func importAt(f *ast.File, offset int) *ast.ImportSpec {
	for s := range f.ImportSpecs() {
		if s.Pos().Offset() <= offset && offset < s.End().Offset() {
			return s
		}
	}
	return nil
}

// parseFile gives the loader the syntax trees that load made and redacted.
func (ev *evaluator) parseFile(name string, src any, cfg parser.Config) (*ast.File, error) {
	if f := ev.src.files[name]; f != nil && f.syntax != nil {
		if filepath.Base(name) == GeneratedFile {
			return &ast.File{Filename: name, Decls: slices.Collect(packageClause(f.syntax))}, nil
		}
		return f.syntax, nil
	}
	f, err := parser.ParseFile(name, src, cfg)
	if err == nil && !strings.Contains(name, string(filepath.Separator)+"cue.mod"+string(filepath.Separator)) {
		redactNode(f, func(lit ast.Node) diag.Pos { return ev.src.pos(lit.Pos()) }, ev.diags)
	}
	return f, err
}

func packageClause(f *ast.File) func(func(ast.Decl) bool) {
	return func(yield func(ast.Decl) bool) {
		for _, d := range f.Decls {
			if _, ok := d.(*ast.Package); ok && !yield(d) {
				return
			}
		}
	}
}

// schemaOverlay offers the embedded schema to a package that imports it without
// having vendored it.
func schemaOverlay(dir string) map[string]load.Source {
	for root := dir; ; root = filepath.Dir(root) {
		if info, err := os.Stat(filepath.Join(root, "cue.mod")); err == nil && info.IsDir() {
			at := filepath.Join(root, "cue.mod", "pkg", filepath.FromSlash(schema.ImportPath))
			if _, err := os.Stat(at); err == nil {
				return nil
			}
			out := map[string]load.Source{}
			names, _ := fs.Glob(schema.Files(), "*.cue")
			for _, n := range names {
				data, _ := fs.ReadFile(schema.Files(), n)
				out[filepath.Join(at, n)] = load.FromBytes(data)
			}
			return out
		}
		if root == filepath.Dir(root) {
			return nil
		}
	}
}

// set unifies one --set path=value with the package.
func (ev *evaluator) set(ctx *cue.Context, v cue.Value, arg string) cue.Value {
	path, value, ok := strings.Cut(arg, "=")
	name := "--set " + path
	refuse := func(code, summary, detail, remedy string) cue.Value {
		ev.diags.Add(diag.Diagnostic{Code: code, Severity: diag.Error, Pos: diag.Pos{File: name}, Path: path, Summary: summary, Detail: detail, Remedy: remedy})
		return v
	}
	p := cue.ParsePath(path)
	if strings.HasPrefix(lastStep(path), "_") && ok {
		return refuse("GRM1010", "a hidden field can't be set from outside", "Names that begin with _ belong to their package.", "give the field a tag, `_n: int @tag(n,type=int)`, and pass -t n=…")
	}
	if !ok || path == "" || p.Err() != nil {
		return refuse("GRM1010", "not of the form path=value", "", "write a field path, = and one CUE or JSON value: --set relax.num_rollout=200")
	}
	x, err := parser.ParseExpr(name, value)
	bareWord := false
	if err == nil {
		ast.Walk(x, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && !slices.Contains([]string{"int", "string", "number", "bool", "float"}, id.Name) {
				bareWord = true
			}
			_, isField := n.(*ast.Field)
			return !isField || !labelOnly(n, &bareWord)
		}, nil)
	}
	if err != nil || bareWord {
		return refuse("GRM1010", "the value is not one CUE or JSON value", "", fmt.Sprintf(`text needs quotes of its own: --set '%s="…"'`, path))
	}
	f := &file{shown: name, data: []byte(value), lines: []int{0}}
	before := len(*ev.diags)
	redactNode(&ast.Field{Label: ast.NewString(lastStep(path)), Value: x}, func(lit ast.Node) diag.Pos { return f.position(lit.Pos().Line(), lit.Pos().Column()) }, ev.diags)
	if len(*ev.diags) > before {
		return v
	}
	ev.src.files[name] = f
	f.syntax = &ast.File{}
	ev.sets = append(ev.sets, path)
	return v.FillPath(p, ctx.BuildExpr(x))
}

// labelOnly looks for bare words in the value of a field of a --set value, since
// the label of a field is an identifier that is no bare word.
func labelOnly(n ast.Node, found *bool) bool {
	ast.Walk(n.(*ast.Field).Value, func(n ast.Node) bool {
		if _, ok := n.(*ast.Ident); ok {
			*found = true
		}
		_, isField := n.(*ast.Field)
		return !isField || !labelOnly(n, found)
	}, nil)
	return true
}

func lastStep(path string) string {
	_, name := cutLast(path)
	return name
}

// value converts v. key is where the value's key stands, for values that CUE
// computed and that have no place of their own.
func (ev *evaluator) value(v cue.Value, path string, key diag.Pos) *tree.Value {
	out := &tree.Value{Path: path, Pos: ev.valuePos(v, key)}
	kind := v.IncompleteKind()
	if kind != cue.StructKind && kind != cue.ListKind && kind != cue.BottomKind {
		if d, ok := v.Default(); ok {
			v = d
		}
		if !v.IsConcrete() {
			if err := v.Err(); err != nil {
				ev.errors(err, out.Pos)
			} else if !ev.reported[path] && !ev.standin[out.Pos] {
				ev.reported[path] = true
				ev.diags.Add(diag.Diagnostic{Code: "GRM1006", Severity: diag.Error, Pos: out.Pos, Path: path,
					Summary: fmt.Sprintf("%s has no concrete value, only the condition %v", lastName(path), v), Remedy: "give it a value here, by --set, or by a tag (-t)"})
			}
			return out // Bad
		}
		kind = v.Kind()
	}
	switch kind {
	case cue.NullKind:
		out.Kind, out.Text = tree.Null, "null"
	case cue.BoolKind:
		b, _ := v.Bool()
		out.Kind, out.Text = tree.Bool, fmt.Sprint(b)
	case cue.StringKind:
		out.Kind = tree.String
		out.Text, _ = v.String()
		if secretValue(path, out.Text) {
			ev.diags.Add(diag.Diagnostic{Code: "GRM1008", Severity: diag.Error, Pos: out.Pos, Path: path, Summary: "a literal secret in " + path,
				Detail: "A literal would reach plans, artifacts, logs and error texts.", Remedy: remedyAt(strings.Split(path, ".")), Secret: true})
			out.Kind, out.Text = tree.Bad, secretText
		}
	case cue.IntKind, cue.FloatKind, cue.NumberKind:
		n := tree.Number(numberText(v))
		out.Kind, out.Text = n.Kind, n.Text
		if kind == cue.FloatKind {
			out.Kind = tree.Float
		}
	case cue.ListKind:
		out.Kind = tree.List
		it, err := v.List()
		if err != nil {
			ev.errors(err, out.Pos)
			out.Kind = tree.Bad
			return out
		}
		for i := 0; it.Next(); i++ {
			out.Items = append(out.Items, ev.value(it.Value(), tree.Index(path, i), out.Pos))
		}
	case cue.StructKind, cue.BottomKind:
		it, err := v.Fields(cue.Hidden(true))
		if err != nil {
			ev.errors(v.Err(), out.Pos)
			return out // Bad
		}
		out.Kind = tree.Struct
		for it.Next() {
			switch it.Selector().LabelType() {
			case cue.StringLabel:
			case cue.IndexLabel: // a list with a faulty element or of conflicting forms
				out.Kind = tree.List
				out.Items = append(out.Items, ev.value(it.Value(), tree.Index(path, len(out.Items)), out.Pos))
				continue
			case cue.HiddenLabel:
				ev.hide(path, it.Selector().String(), ev.keyPos(it.Value(), "", out.Pos))
				continue
			default: // a definition
				continue
			}
			name := it.Selector().Unquoted()
			p := tree.Join(path, name)
			pos := ev.keyPos(it.Value(), p, out.Pos)
			out.Fields = append(out.Fields, tree.Field{Name: name, Pos: pos, Value: ev.value(it.Value(), p, pos)})
		}
		if kind == cue.BottomKind && len(out.Fields)+len(out.Items) == 0 {
			ev.errors(v.Err(), out.Pos)
			out.Kind = tree.Bad
		}
	default:
		ev.diags.Add(diag.Diagnostic{Code: "GRM2003", Severity: diag.Error, Pos: out.Pos, Path: path, Summary: lastName(path) + " is of type bytes, which no field takes", Remedy: `write text with double quotes: "…"`})
		out.Kind = tree.Bad
	}
	return out
}

// hide notes a hidden field: it is the user's own helper, unless it stands in a
// map whose keys are names, which check tells.
func (ev *evaluator) hide(path, name string, pos diag.Pos) {
	if ev.hidden == nil {
		ev.hidden = map[string][]tree.Field{}
	}
	ev.hidden[path] = append(ev.hidden[path], tree.Field{Name: name, Pos: pos})
}

// keyPos is where the key of a field stands in the user's file.
func (ev *evaluator) keyPos(v cue.Value, path string, parent diag.Pos) diag.Pos {
	if f, ok := v.Source().(*ast.Field); ok {
		return ev.src.pos(f.Label.Pos())
	}
	if n, ok := ev.index()[path]; ok {
		return ev.src.pos(n.Pos())
	}
	if p := ev.src.pos(v.Pos()); p.IsValid() {
		return p
	}
	for _, set := range ev.sets { // a struct that only a --set path makes
		if set == path || strings.HasPrefix(set, path+".") {
			return diag.Pos{File: "--set " + set}
		}
	}
	return parent
}

// valuePos is where a value stands: behind its key where the syntax tells.
func (ev *evaluator) valuePos(v cue.Value, key diag.Pos) diag.Pos {
	switch n := v.Source().(type) {
	case *ast.Field:
		if n.Value != nil && n.Value.Pos().IsValid() {
			return ev.src.pos(n.Value.Pos())
		}
	case *ast.BasicLit, *ast.ListLit, *ast.UnaryExpr:
		return ev.src.pos(n.Pos())
	case nil:
		if p := ev.src.pos(v.Pos()); p.IsValid() && v.IncompleteKind() != cue.StructKind {
			return p
		}
	}
	return key
}

// index finds the first key of each path that the files write out. It is made
// on demand: only fields with several conjuncts need it.
func (ev *evaluator) index() map[string]ast.Node {
	if ev.keys != nil {
		return ev.keys
	}
	ev.keys = map[string]ast.Node{}
	var walk func(path string, decls []ast.Decl)
	var unify func(path string, x ast.Expr)
	walk = func(path string, decls []ast.Decl) {
		for _, d := range decls {
			switch d := d.(type) {
			case *ast.Field:
				name, _, err := ast.LabelName(d.Label)
				if err != nil {
					continue
				}
				p := tree.Join(path, name)
				if _, ok := ev.keys[p]; !ok {
					ev.keys[p] = d.Label
				}
				unify(p, d.Value)
			case *ast.EmbedDecl:
				unify(path, d.Expr)
			}
		}
	}
	unify = func(path string, x ast.Expr) {
		switch x := x.(type) {
		case *ast.StructLit:
			walk(path, x.Elts)
		case *ast.BinaryExpr:
			if x.Op == token.AND {
				unify(path, x.X)
				unify(path, x.Y)
			}
		}
	}
	for _, abs := range ev.src.order {
		walk("", ev.src.files[abs].syntax.Decls)
	}
	return ev.keys
}

var jsonNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$`)

// numberText is the user's own text of a number where it is JSON, else CUE's.
func numberText(v cue.Value) string {
	n := v.Source()
	if f, ok := n.(*ast.Field); ok {
		n = f.Value
	}
	text := ""
	if u, ok := n.(*ast.UnaryExpr); ok && u.Op == token.SUB {
		text, n = "-", u.X
	}
	if lit, ok := n.(*ast.BasicLit); ok && jsonNumber.MatchString(text+lit.Value) {
		return text + lit.Value
	}
	data, err := v.MarshalJSON()
	if err != nil {
		return "0"
	}
	return strings.ToLower(string(data))
}

// lastName names a value in a sentence: by its path within its experiment, so that
// what is wrong in many experiments of a sweep in one way is said in the same words.
func lastName(path string) string {
	if path == "" {
		return "the file"
	}
	if _, rest := diag.SplitExperiment(path); rest != "" {
		return rest
	}
	return path
}
