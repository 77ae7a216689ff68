package engines

import (
	"slices"
	"testing"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
)

// Every catalogue's CUE form compiles and, for each flag, takes and refuses the same values as Check.
func TestCUEAgreesWithCheck(t *testing.T) {
	samples := []string{
		`null`, `true`, `false`, `0`, `3`, `-1`, `1.5`, `2.0`,
		`""`, `"text"`, `"true"`, `"3"`, `"4k"`, `"4K"`, `"4Ki"`, `"1.5k"`, `"1.5K"`, `" 4k"`, `"auto"`, `"automatic"`,
		`"{}"`, `"[]"`, `"{\"a\":1}"`, `"'{}'"`, `"{"`, `"null"`,
		`{}`, `{"a":1}`, `{"a":{"b":[]}}`,
		`[]`, `["a"]`, `[1]`, `[1.5]`, `["a",1]`, `[["a"]]`, `[[1]]`, `[[]]`, `[{}]`, `[null]`, `[true]`, `[1,2]`, `[1,2,3]`, `["a","b"]`,
	}
	context := cuecontext.New()
	for _, c := range releases {
		t.Run(c.Engine+"-"+c.Version, func(t *testing.T) {
			file := context.CompileBytes(c.CUE("flags", "#Flags"))
			if err := file.Err(); err != nil {
				t.Fatal(err)
			}
			definition := file.LookupPath(cue.ParsePath("#Flags"))
			type question struct{ expression, sample string }
			answers := map[question]bool{} // most flags share few expressions
			compared := 0
			for f := range c.Flags() {
				field := definition.LookupPath(cue.MakePath(cue.Str(f.Name).Optional()))
				if !field.Exists() {
					t.Errorf("%s is missing", f.Name)
					continue
				}
				mine := samples
				for _, choice := range f.Choices {
					mine = append(slices.Clip(mine), string(choice), "["+string(choice)+"]")
				}
				for _, sample := range mine {
					q := question{f.cue(), sample}
					accepted, known := answers[q]
					if !known {
						accepted = field.Unify(context.CompileString(sample)).Validate(cue.Concrete(true)) == nil
						answers[q] = accepted
					}
					if err := f.Check(decodeValue(t, sample)); (err == nil) != accepted {
						t.Errorf("%s: %s: Check says %v, CUE (%s) says %v", f.Name, sample, err, f.cue(), accepted)
					}
					compared++
				}
			}
			t.Logf("%d pairs, %d of them evaluated", compared, len(answers))
			for _, open := range []string{`no_such_flag: 1`, `"no-such flag": {}`} {
				if err := definition.Unify(context.CompileString(open)).Validate(cue.Concrete(true)); err != nil {
					t.Errorf("the struct is not open: %v", err)
				}
			}
		})
	}
}

// A flag that is called like a CUE type does not change the types of the others.
func TestCUELabels(t *testing.T) {
	c := &Catalogue{Engine: "x", Version: "1", lines: `{"name":"json","flag":"--json","type":"json","action":"store"}
{"name":"string","flag":"--string","type":"int","action":"store"}
{"name":"text","flag":"--text","type":"string","default":"a\nb */ \\(c)","action":"store","deprecated":true}
`}
	file := cuecontext.New().CompileBytes(append(c.CUE("p", "#F"), "\nx: #F & {string: 1, text: \"a\", json: \"{}\"}\n"...))
	if err := file.Validate(cue.Concrete(true)); err != nil {
		t.Errorf("%v\n%s", err, c.CUE("p", "#F"))
	}
}
