package diag

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

var sources = map[string]string{
	"a.cue":   "package a\r\n\n\tnum_gpus: \"two\"\n漢字: e\u0301x: 1\nkey: \"hunter2\", oops: 1\n" + strings.Repeat("x", 500) + "bad\n",
	"bom.cue": "\ufeffname: 3\n",
}

func source(file string) ([]byte, error) {
	s, ok := sources[file]
	if !ok {
		return nil, errors.New("unreadable")
	}
	return []byte(s), nil
}

func text(t *testing.T, l List, colour bool) string {
	t.Helper()
	var b bytes.Buffer
	if err := l.Text(&b, TextOptions{Source: source, Colour: colour}); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestText(t *testing.T) {
	cases := []struct {
		name string
		in   List
		want string
	}{
		{"empty", nil, ""},
		{"everything", List{{Code: "GRM2003", Severity: Error, Pos: Pos{"a.cue", 3, 12}, Path: "num_gpus", Summary: "num_gpus is a string", Detail: "one\ntwo", Remedy: "write 2",
			Related: []Related{{Pos{"b.cue", 1, 2}, "also here"}, {Pos{}, "everywhere"}}}},
			"a.cue:3:12: error[GRM2003]: num_gpus is a string\n  3 | \tnum_gpus: \"two\"\n    | \t          ^\n  one\n  two\n  help: write 2\n  see: b.cue:1:2: also here\n  see: everywhere\n\n1 error in 1 file\n"},
		{"wide characters and combining marks", List{{Code: "GRM1", Severity: Warning, Pos: Pos{"a.cue", 4, 7}, Summary: "s"}},
			"a.cue:4:7: warning[GRM1]: s\n  4 | 漢字: e\u0301x: 1\n    |       " + " ^\n\n"},
		{"carriage return", List{{Code: "GRM1", Severity: Note, Pos: Pos{"a.cue", 1, 99}, Summary: "s"}},
			"a.cue:1:99: note[GRM1]: s\n  1 | package a\n    |          ^\n\n"},
		{"byte order mark", List{{Code: "GRM1", Severity: Note, Pos: Pos{"bom.cue", 1, 1}, Summary: "s"}},
			"bom.cue:1:1: note[GRM1]: s\n  1 | name: 3\n    | ^\n\n"},
		{"no file, no position, past the end", List{{Code: "GRM1", Severity: Error, Summary: "s"}, {Code: "GRM1", Severity: Error, Pos: Pos{"gone.cue", 1, 1}, Summary: "s"}, {Code: "GRM1", Severity: Error, Pos: Pos{"a.cue", 99, 1}, Summary: "s"}},
			"error[GRM1]: s\n\ngone.cue:1:1: error[GRM1]: s\n\na.cue:99:1: error[GRM1]: s\n\n3 errors in 2 files\n"},
		{"control characters are shown, not obeyed", List{{Code: "GRM1", Severity: Note, Summary: "a\x1b[2Jb\u202ec\x7f"}},
			"note[GRM1]: a␛[2Jb\ufffdc␡\n\n"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := text(t, c.in, false); got != c.want {
				t.Errorf("got:\n%q\nwant:\n%q", got, c.want)
			}
		})
	}
}

// A reader of a sweep's findings must see which experiments have them, and the
// same finding of a thousand experiments once.
func TestSweepNamesExperiments(t *testing.T) {
	bad := func(name, summary string) Diagnostic {
		return Diagnostic{Code: "GRM1", Severity: Error, Pos: Pos{"a.cue", 3, 2}, Path: "experiments." + name + ".serve", Summary: summary, Remedy: "r"}
	}
	l := List{bad("a", "s"), bad(`"b-1.5"`, "s"), bad("c", "other"), {Code: "GRM1", Severity: Error, Pos: Pos{"a.cue", 3, 2}, Path: "serve", Summary: "s", Remedy: "r"}}
	got := text(t, l, false)
	for _, want := range []string{"  in 2 experiments: a, b-1.5\n", "  in experiment c\n", "4 errors in 1 file"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if n := strings.Count(got, "error[GRM1]"); n != 3 {
		t.Errorf("%d findings printed, want 3:\n%s", n, got)
	}
	var b bytes.Buffer
	if err := l.GitHub(&b); err != nil || strings.Count(b.String(), "::error") != 3 || !strings.Contains(b.String(), "help: r%0Ain 2 experiments: a, b-1.5\n") {
		t.Errorf("%v, got:\n%s", err, b.String())
	}
	l = nil
	for i := range 100 {
		l.Add(bad("n"+strings.Repeat("x", i), "s"))
	}
	if got := text(t, l, false); !strings.Contains(got, "in 100 experiments: n, nx, ") || !strings.Contains(got, " and 92 more\n") {
		t.Errorf("got:\n%s", got)
	}
}

func TestTextNeverShowsASecretLine(t *testing.T) {
	l := List{
		{Code: "GRM2001", Severity: Error, Pos: Pos{"a.cue", 5, 17}, Summary: "unknown field oops"},
		{Code: "GRM1010", Severity: Error, Pos: Pos{"a.cue", 5, 6}, Summary: "a secret as text", Secret: true},
	}
	for _, colour := range []bool{false, true} {
		if got := text(t, l, colour); strings.Contains(got, "hunter2") || !strings.Contains(got, "unknown field oops") {
			t.Errorf("got:\n%s", got)
		}
	}
}

func TestTextLongLine(t *testing.T) {
	got := strings.Split(text(t, List{{Code: "GRM1", Severity: Error, Pos: Pos{"a.cue", 6, 501}, Summary: "s"}}, false), "\n")
	if len(got[1]) > 200 || !strings.HasSuffix(got[1], "bad") {
		t.Fatalf("line: %q", got[1])
	}
	line, caret := []rune(got[1]), []rune(got[2])
	if at := len(caret) - 1; line[at] != 'b' {
		t.Errorf("the caret stands under %q", line[at:])
	}
}

func TestTextColour(t *testing.T) {
	l := List{{Code: "GRM1", Severity: Error, Pos: Pos{"a.cue", 3, 2}, Summary: "s", Remedy: "r"}}
	if strings.Contains(text(t, l, false), "\x1b") {
		t.Error("colour although not asked for")
	}
	if got := text(t, l, true); !strings.Contains(got, red+"error[GRM1]"+reset) {
		t.Errorf("no colour: %q", got)
	}
}

func TestGitHub(t *testing.T) {
	l := List{
		{Code: "GRM2001", Severity: Error, Pos: Pos{"a,b:c.cue", 3, 5}, Summary: "100% wrong", Detail: "d1\r\nd2", Remedy: "r"},
		{Code: "GRM2002", Severity: Warning, Pos: Pos{File: "f.cue"}, Summary: "w"},
		{Code: "GRM2003", Severity: Note, Summary: "n"},
	}
	want := "::error file=a%2Cb%3Ac.cue,line=3,col=5,title=GRM2001::100%25 wrong%0Ad1%0D%0Ad2%0Ahelp: r\n" +
		"::warning file=f.cue,title=GRM2002::w\n::notice title=GRM2003::n\n"
	var b bytes.Buffer
	if err := l.GitHub(&b); err != nil || b.String() != want {
		t.Errorf("%v, got:\n%s\nwant:\n%s", err, b.String(), want)
	}
}

// The log is validated against the standard's own JSON schema.
func TestSARIFValidates(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("testdata/sarif-schema-2.1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	lists := map[string]List{
		"empty": nil,
		"full": {
			{Code: "GRM2001", Severity: Error, Pos: Pos{"dir with space/a#?.cue", 3, 5}, Path: "a.b", Summary: "s", Detail: "d", Remedy: "r", Related: []Related{{Pos{"/abs/b.cue", 1, 1}, "see"}, {Pos{}, "nowhere"}}},
			{Code: "GRM2001", Severity: Warning, Pos: Pos{File: "./f:g.cue"}, Summary: "w"},
			{Code: "GRM1001", Severity: Note, Summary: "n"},
		},
	}
	for name, l := range lists {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			rule := func(code string) (string, string, bool) {
				return "title " + code, "help <" + code + ">", code != "GRM1001"
			}
			if err := l.SARIF(&b, SARIFOptions{Version: "1.2.3", Rule: rule}); err != nil {
				t.Fatal(err)
			}
			doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(b.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			if err := schema.Validate(doc); err != nil {
				t.Fatalf("%v\n%s", err, b.String())
			}
			var log sarifLog
			if err := json.Unmarshal(b.Bytes(), &log); err != nil {
				t.Fatal(err)
			}
			if len(log.Runs[0].Results) != len(l) {
				t.Fatalf("%d results wanted:\n%s", len(l), b.String())
			}
			for i, r := range log.Runs[0].Results {
				if r.RuleID != l[i].Code || log.Runs[0].Tool.Driver.Rules[r.RuleIndex].ID != l[i].Code {
					t.Errorf("result %d: rule %q at index %d, want %q", i, r.RuleID, r.RuleIndex, l[i].Code)
				}
			}
		})
	}
}

func TestFileURI(t *testing.T) {
	for in, want := range map[string]string{"a.cue": "a.cue", "./x/../a b.cue": "a%20b.cue", "/abs/a.cue": "file:///abs/a.cue", "f:g.cue": "./f:g.cue", "100%.cue": "100%25.cue"} {
		if got := fileURI(in); got != want {
			t.Errorf("fileURI(%q) = %q, want %q", in, got, want)
		}
	}
}
