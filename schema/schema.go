// Package schema owns the vocabulary of experiment files: the CUE module in
// this folder, and the same definitions as data.
//
// The .cue files are the one source. Stock CUE tools read them as they are
// (`genrm schema --vendor` writes them into a user's module); genrm itself reads
// their syntax tree into [Type] values, because the cost of a CUE unification
// grows with the fields of the schema, and checking a user's file must not. A
// test holds both readings together.
//
// The package may not know any rule that spans several fields, and checks no
// value: that is the compiler's.
package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// ImportPath is the path under which a user's CUE files may import the schema.
const ImportPath = "genrm.dev/schema"

//go:embed *.cue
var files embed.FS

// Files returns the CUE files of the module's schema package, at its root.
func Files() fs.FS { return files }

// Type is what a field may hold: the alternatives of a disjunction.
type Type struct {
	Alts []*Alt
	Def  string // name of the definition, without "#", if the type is a reference to one
	Doc  string // doc comment of that definition
}

// Alt is one alternative: a conjunction of conditions.
type Alt struct {
	Kinds   Kind
	Lit     *string // the one value: its text
	Default bool    // marked with *
	Bounds  []Bound
	Match   []Pattern // string conditions
	Struct  *Struct
	Elem    *Type   // list of any length
	Tuple   []*Type // list of exactly these
	Def     string  // definition that the alternative comes from, without "#"
	doc     string  // doc comment of that definition
}

// Kind is a set of kinds of values.
type Kind int

// Kinds. Number is Int or Float, as in CUE.
const (
	Null Kind = 1 << iota
	Bool
	Int
	Float
	String
	List
	Object
	Number = Int | Float
	Any    = Null | Bool | Number | String | List | Object
)

// Bound limits a number: Op is one of < <= > >=.
type Bound struct {
	Op    string
	Limit float64
	Text  string // of the limit
}

// Holds reports whether x is within the bound.
func (b Bound) Holds(x float64) bool {
	switch b.Op {
	case "<":
		return x < b.Limit
	case "<=":
		return x <= b.Limit
	case ">":
		return x > b.Limit
	default:
		return x >= b.Limit
	}
}

// Pattern is a condition on a string: a regular expression that must match, or
// must not.
type Pattern struct {
	Not  bool
	Text string
	// Matches reports whether the expression matches s; compiled on first use,
	// since most runs need few of them.
	Matches func(s string) bool
}

// Holds reports whether s satisfies the pattern.
func (p Pattern) Holds(s string) bool { return p.Matches(s) != p.Not }

// Struct is a struct with named fields.
type Struct struct {
	Fields   []*Field
	Patterns []PatternField
	Open     bool // other fields are allowed
	byName   map[string]*Field
}

// Field is a named field.
type Field struct {
	Name     string
	Doc      string
	Required bool
	Type     *Type
}

// PatternField is the type of every field whose name satisfies all conditions
// and that has no named field.
type PatternField struct {
	Match []Pattern // empty: every name
	Type  *Type
	Doc   string
}

// Field returns the named field, or nil.
func (s *Struct) Field(name string) *Field { return s.byName[name] }

// Pattern returns the type of a field that is not named, and whether there is
// one.
func (s *Struct) Pattern(name string) (*Type, bool) {
	for _, p := range s.Patterns {
		ok := true
		for _, m := range p.Match {
			ok = ok && m.Holds(name)
		}
		if ok {
			return p.Type, true
		}
	}
	return nil, false
}

// Package is the type of a whole experiment file.
func Package() *Type { return load()["Package"] }

// Experiment is the type of one experiment.
func Experiment() *Type { return load()["Experiment"] }

// Definition is the type of a definition by its name without "#", or nil.
func Definition(name string) *Type { return load()[name] }

// load reads the embedded files once. The files are part of the program and
// covered by tests, so a mistake in them panics.
var load = sync.OnceValue(func() map[string]*Type {
	r := reader{defs: map[string]*Type{}}
	entries, _ := fs.ReadDir(files, ".")
	var parsed []*ast.File
	for _, e := range entries {
		data, _ := fs.ReadFile(files, e.Name())
		f, err := parser.ParseFile(e.Name(), data, parser.ParseComments)
		if err != nil {
			panic(err)
		}
		parsed = append(parsed, f)
		for _, d := range f.Decls {
			if field, ok := d.(*ast.Field); ok {
				name := strings.TrimPrefix(field.Label.(*ast.Ident).Name, "#")
				r.defs[name] = &Type{Def: name, Doc: docOf(field)}
			}
		}
	}
	for _, f := range parsed {
		for _, d := range f.Decls {
			if field, ok := d.(*ast.Field); ok {
				r.define(strings.TrimPrefix(field.Label.(*ast.Ident).Name, "#"), field.Value)
			}
		}
	}
	for len(r.embeds) > 0 { // embeddings wait until what they embed is read
		todo := r.embeds
		r.embeds = nil
		for _, f := range todo {
			f()
		}
	}
	return r.defs
})

type reader struct {
	defs   map[string]*Type
	embeds []func()
}

// define reads a definition into the Type that references already share.
func (r *reader) define(name string, x ast.Expr) {
	t := r.expr(x)
	d := r.defs[name]
	d.Alts = t.Alts
	if t.Def != "" { // #A: #B
		r.embeds = append(r.embeds, func() { d.Alts = r.defs[t.Def].Alts })
		return
	}
	for _, a := range d.Alts {
		if a.Def == "" {
			a.Def, a.doc = name, d.Doc
		}
	}
}

// expr reads one expression of the subset.
func (r *reader) expr(x ast.Expr) *Type {
	one := func(a Alt) *Type { return &Type{Alts: []*Alt{&a}} }
	switch x := x.(type) {
	case *ast.ParenExpr:
		return r.expr(x.X)
	case *ast.Ident:
		if d, ok := r.defs[strings.TrimPrefix(x.Name, "#")]; ok && strings.HasPrefix(x.Name, "#") {
			return d
		}
		if k, ok := map[string]Kind{"int": Int, "float": Float, "number": Number, "string": String, "bool": Bool, "_": Any}[x.Name]; ok {
			a := Alt{Kinds: k}
			if k == Any {
				a.Struct, a.Elem = &Struct{Open: true}, nil
			}
			return one(a)
		}
	case *ast.BasicLit:
		text, kind := literalOf(x)
		return one(Alt{Kinds: kind, Lit: &text})
	case *ast.UnaryExpr:
		switch x.Op {
		case token.MUL:
			t := r.expr(x.X)
			out := &Type{}
			for _, a := range t.Alts {
				c := *a
				c.Default = true
				out.Alts = append(out.Alts, &c)
			}
			return out
		case token.SUB:
			text, kind := literalOf(x.X.(*ast.BasicLit))
			text = "-" + text
			return one(Alt{Kinds: kind, Lit: &text})
		case token.MAT, token.NMAT:
			text, _ := literalOf(x.X.(*ast.BasicLit))
			return one(Alt{Kinds: String, Match: []Pattern{pattern(text, x.Op == token.NMAT)}})
		case token.LSS, token.LEQ, token.GTR, token.GEQ:
			text, _ := r.number(x.X)
			limit, err := strconv.ParseFloat(text, 64)
			if err != nil {
				panic(err)
			}
			return one(Alt{Kinds: Number, Bounds: []Bound{{x.Op.String(), limit, text}}})
		}
	case *ast.BinaryExpr:
		a, b := r.expr(x.X), r.expr(x.Y)
		switch x.Op {
		case token.OR:
			return &Type{Alts: append(append([]*Alt{}, r.alts(a)...), r.alts(b)...)}
		case token.AND:
			out := &Type{}
			for _, l := range r.alts(a) {
				for _, m := range r.alts(b) {
					c := *l
					c.Kinds &= m.Kinds
					c.Bounds = append(append([]Bound{}, l.Bounds...), m.Bounds...)
					c.Match = append(append([]Pattern{}, l.Match...), m.Match...)
					out.Alts = append(out.Alts, &c)
				}
			}
			return out
		}
	case *ast.StructLit:
		return one(Alt{Kinds: Object, Struct: r.structLit(x)})
	case *ast.ListLit:
		a := Alt{Kinds: List}
		for _, e := range x.Elts {
			if dots, ok := e.(*ast.Ellipsis); ok {
				a.Elem = &Type{Alts: []*Alt{{Kinds: Any, Struct: &Struct{Open: true}}}}
				if dots.Type != nil {
					a.Elem = r.expr(dots.Type)
				}
				continue
			}
			a.Tuple = append(a.Tuple, r.expr(e))
		}
		return one(a)
	}
	panic(fmt.Sprintf("schema: %s: not in the subset: %T", x.Pos(), x))
}

// alts returns the alternatives of t. A definition that is not read yet has
// none, so definitions that others build disjunctions of stand in as one
// alternative that is filled in later.
func (r *reader) alts(t *Type) []*Alt {
	if t.Def == "" {
		return t.Alts
	}
	if len(t.Alts) > 0 {
		return t.Alts
	}
	a := &Alt{}
	r.embeds = append(r.embeds, func() {
		if len(t.Alts) != 1 {
			panic("schema: #" + t.Def + " must be defined in an earlier file or have one alternative, to be part of a disjunction")
		}
		*a = *t.Alts[0]
	})
	return []*Alt{a}
}

func (r *reader) number(x ast.Expr) (string, Kind) {
	if u, ok := x.(*ast.UnaryExpr); ok && u.Op == token.SUB {
		text, k := literalOf(u.X.(*ast.BasicLit))
		return "-" + text, k
	}
	return literalOf(x.(*ast.BasicLit))
}

func (r *reader) structLit(x *ast.StructLit) *Struct {
	s := &Struct{byName: map[string]*Field{}}
	add := func(f *Field) {
		if s.byName[f.Name] == nil {
			s.byName[f.Name] = f
			s.Fields = append(s.Fields, f)
		}
	}
	for _, d := range x.Elts {
		switch d := d.(type) {
		case *ast.Ellipsis:
			s.Open = true
		case *ast.EmbedDecl:
			name := strings.TrimPrefix(d.Expr.(*ast.Ident).Name, "#")
			r.embeds = append(r.embeds, func() {
				own := s.Fields
				s.Fields = nil
				base := r.defs[name].Alts[0].Struct
				for _, f := range base.Fields {
					if s.byName[f.Name] == nil {
						s.byName[f.Name] = f
					}
					s.Fields = append(s.Fields, s.byName[f.Name])
				}
				s.Fields = append(s.Fields, own...)
				s.Patterns = append(s.Patterns, base.Patterns...)
				s.Open = s.Open || base.Open
			})
		case *ast.Field:
			if list, ok := d.Label.(*ast.ListLit); ok {
				p := PatternField{Type: r.expr(d.Value), Doc: docOf(d)}
				for _, a := range r.expr(list.Elts[0]).Alts {
					p.Match = append(p.Match, a.Match...)
				}
				s.Patterns = append(s.Patterns, p)
				continue
			}
			name, _, err := ast.LabelName(d.Label)
			if err != nil {
				panic(err)
			}
			add(&Field{Name: name, Doc: docOf(d), Required: d.Constraint == token.NOT, Type: r.expr(d.Value)})
		default:
			panic(fmt.Sprintf("schema: %s: not in the subset: %T", d.Pos(), d))
		}
	}
	return s
}

func literalOf(x *ast.BasicLit) (string, Kind) {
	switch x.Kind {
	case token.STRING:
		s, err := literal.Unquote(x.Value)
		if err != nil {
			panic(err)
		}
		return s, String
	case token.INT:
		return x.Value, Int
	case token.FLOAT:
		return x.Value, Float
	case token.NULL:
		return "null", Null
	case token.TRUE, token.FALSE:
		return x.Value, Bool
	}
	panic("schema: literal " + x.Value)
}

// docOf returns the doc comment of a field as running text; a blank comment
// line parts paragraphs.
func docOf(f *ast.Field) string {
	var lines []string
	for _, g := range ast.Comments(f) {
		if g.Doc {
			for _, c := range g.List {
				lines = append(lines, strings.TrimSpace(strings.TrimPrefix(c.Text, "//")))
			}
		}
	}
	return strings.Join(lines, "\n")
}
