package compiler

import (
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/load"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// cueText evaluates CUE source as one experiment, without the schema.
func cueText(t testing.TB, src string) *tree.Value {
	t.Helper()
	return cueTree(t, cuecontext.New().CompileString(src, cue.Filename("case.cue")), "")
}

// cueDir evaluates the package in a folder.
func cueDir(t testing.TB, dir string) *tree.Value {
	t.Helper()
	inst := load.Instances([]string{"."}, &load.Config{Dir: dir})[0]
	if inst.Err != nil {
		t.Fatal(inst.Err)
	}
	return cueTree(t, cuecontext.New().BuildInstance(inst), "")
}

func cueTree(t testing.TB, v cue.Value, path string) *tree.Value {
	t.Helper()
	if err := v.Err(); err != nil {
		t.Fatal(err)
	}
	out := &tree.Value{Path: path, Pos: diag.Pos{File: v.Pos().Filename(), Line: v.Pos().Line(), Column: v.Pos().Column()}}
	switch v.Kind() {
	case cue.NullKind:
		out.Kind = tree.Null
	case cue.BoolKind:
		out.Kind, out.Text = tree.Bool, "false"
		if b, _ := v.Bool(); b {
			out.Text = "true"
		}
	case cue.StringKind:
		out.Kind = tree.String
		out.Text, _ = v.String()
	case cue.ListKind:
		out.Kind = tree.List
		for it, _ := v.List(); it.Next(); {
			out.Items = append(out.Items, cueTree(t, it.Value(), tree.Index(path, len(out.Items))))
		}
	case cue.StructKind:
		out.Kind = tree.Struct
		for it, _ := v.Fields(); it.Next(); {
			name := it.Selector().Unquoted()
			x := cueTree(t, it.Value(), tree.Join(path, name))
			out.Fields = append(out.Fields, tree.Field{Name: name, Pos: x.Pos, Value: x})
		}
	default:
		data, err := v.MarshalJSON()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		text := string(data)
		if lit, ok := v.Source().(*ast.BasicLit); ok {
			text = lit.Value
		}
		*out = tree.Value{Kind: tree.Number(text).Kind, Text: text, Path: path, Pos: out.Pos}
	}
	return out
}
