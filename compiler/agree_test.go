package compiler

import (
	"io/fs"
	"strings"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/parser"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema"
)

// TestCheckAgreesWithCUE holds the two readings of the schema together: for
// every field, the compiler's check and stock CUE accept the same sample values.
func TestCheckAgreesWithCUE(t *testing.T) {
	ctx := cuecontext.New()
	inst := build.NewContext().NewInstance("schema", nil)
	names, _ := fs.Glob(schema.Files(), "*.cue")
	for _, n := range names {
		data, _ := fs.ReadFile(schema.Files(), n)
		f, err := parser.ParseFile(n, data)
		if err != nil {
			t.Fatal(err)
		}
		if err := inst.AddSyntax(f); err != nil {
			t.Fatal(err)
		}
	}
	if err := inst.Complete(); err != nil {
		t.Fatal(err)
	}
	root := ctx.BuildInstance(inst)
	if err := root.Err(); err != nil {
		t.Fatal(err)
	}
	samples := []string{`null`, `true`, `0`, `1`, `-1`, `7`, `65`, `70000`, `0.5`, `1.5`, `1.0`, `-0.5`, `1e30`, `""`, `"x"`, `"a b"`, `"/x"`, `"/x\u0000y"`, `"/x\u0000.py"`, `["\u0000"]`, `{A: "\u0000"}`, `{file: "/\u0000"}`,
		`"${x}"`, `"???"`, `"local"`, `"slurm"`, `"error"`, `"http://h/v1"`, `"ray://h:1"`, `"1.2.3"`, `"10:00:00"`, `[]`, `[1]`, `[1,2]`, `[1,0]`, `[0,1]`, `["a"]`, `["/a:/b"]`, `[2000,3000]`,
		`{}`, `{nope: 1}`, `{env: "A"}`, `{env: "a b"}`, `{file: "/x"}`, `{file: "x"}`, `{module: "a.b"}`, `{module: "a b"}`, `{A: "x"}`, `{A: 1}`, `{"a b": "x"}`, `{x: null}`}
	seen := map[*schema.Type]bool{}
	checked := 0
	var walk func(path string, ty *schema.Type, v cue.Value)
	walk = func(path string, ty *schema.Type, v cue.Value) {
		if seen[ty] && strings.Count(path, ".") > 6 {
			return
		}
		first := !seen[ty]
		seen[ty] = true
		for _, s := range samples {
			x := ctx.CompileString(s)
			want := v.Unify(x).Validate() == nil
			var diags diag.List
			ev := evaluator{src: &source{files: map[string]*file{}}, diags: &diags, reported: map[string]bool{}}
			val := ev.value(x, "x", diag.Pos{})
			c := checker{diags: &diags}
			c.value(val, ty, "", diag.Pos{})
			got := true
			for _, d := range diags {
				// CUE leaves missing fields to vet -c, unless no branch of a disjunction is left.
				got = got && d.Code == "GRM2002" && (val.Kind != tree.Bad || s == "{}")
			}
			if got != want {
				t.Errorf("%s: %s: genrm accepts: %v, CUE accepts: %v %v", path, s, got, want, diags)
			}
			checked++
		}
		if !first {
			return
		}
		for _, a := range ty.Alts {
			if a.Struct == nil || len(ty.Alts) > 1 {
				continue // branches of a disjunction are checked by the definitions below
			}
			for _, f := range a.Struct.Fields {
				sel := cue.Str(f.Name).Optional()
				if f.Required {
					sel = cue.Str(f.Name)
				}
				fv := v.LookupPath(cue.MakePath(sel))
				if !fv.Exists() && f.Required {
					fv = v.LookupPath(cue.MakePath(cue.Str(f.Name).Required()))
				}
				if !fv.Exists() {
					t.Errorf("%s.%s: CUE does not find it", path, f.Name)
					continue
				}
				walk(path+"."+f.Name, f.Type, fv)
			}
		}
	}
	it, err := root.Fields(cue.Definitions(true))
	if err != nil {
		t.Fatal(err)
	}
	for it.Next() {
		name := strings.TrimPrefix(it.Selector().String(), "#")
		ty := schema.Definition(name)
		if ty == nil {
			t.Fatalf("#%s is not read", name)
		}
		walk("#"+name, ty, it.Value())
	}
	if checked < 3000 {
		t.Errorf("only %d comparisons", checked)
	}
}
