package shell

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hostile holds texts that generated scripts of other tools were bitten by.
var hostile = []string{
	"", " ", "plain", "a=b", "--x=y", "~", "~root", "--path=~/x", "*", "?", "[a-z]", "{a,b}", "!", "!!", "#no comment", "if", "time", "-", "--",
	"it's", `"`, `'`, `''`, `\`, `\\`, `\n`, "`table`", "$HOME", "${HOME}", "$(id)", ";", "&&", "|", ">", "<", "{{x}}", "\n", "a\nb\n", "\r\n", "\t", "é漢🙂",
	"'a' \"b\" `c` $HOME; && {{x}} \\ \n é", `{"method":"qwen3_next_mtp","num_speculative_tokens":2}`, `{'ps-auc':{'cnt':1}}`, "\xff\xfe", "\x01\x7f",
	"a b", "=ls", "%1", "^a^b", "a:~b", "x='y z'",
}

// echo runs a script of which every word is one argument of printf, and returns
// the arguments as the program saw them.
func echo(t testing.TB, sh string, words []string, env ...string) []string {
	t.Helper()
	script := filepath.Join(t.TempDir(), "s.sh")
	if err := os.WriteFile(script, []byte("set -eu\nexec printf '%s\\0' "+strings.Join(words, " ")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sh, script)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", sh, err, out)
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
}

func shells(t testing.TB) []string {
	var out []string
	for _, sh := range []string{"/bin/sh", "bash", "dash"} {
		if path, err := exec.LookPath(sh); err == nil {
			out = append(out, path)
		}
	}
	if len(out) == 0 {
		t.Skip("no shell on this machine")
	}
	return out
}

func TestQuoteRoundTrip(t *testing.T) {
	words := make([]string, len(hostile))
	for i, s := range hostile {
		var err error
		if words[i], err = Quote(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, sh := range shells(t) {
		got := echo(t, sh, words)
		if len(got) != len(hostile) {
			t.Fatalf("%s: %d words arrived as %d", sh, len(hostile), len(got))
		}
		for i := range got {
			if got[i] != hostile[i] {
				t.Errorf("%s: %q arrived as %q", sh, hostile[i], got[i])
			}
		}
	}
}

// A word must stay a command name wherever it stands: neither an assignment nor
// a reserved word.
func TestQuoteAsCommandName(t *testing.T) {
	for _, s := range append([]string{"for", "do", "X=1"}, hostile...) {
		q, err := Quote(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, sh := range shells(t) {
			out, err := exec.Command(sh, "-c", "command -v printf >/dev/null; f() { printf ran; }; "+q+" 2>/dev/null; printf '%s' \"end\"").CombinedOutput()
			if err != nil || !strings.HasSuffix(string(out), "end") {
				t.Errorf("%s: %q as a command name: %v %q", sh, s, err, out)
			}
		}
	}
}

func TestWord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a secret's file")
	if err := os.WriteFile(file, []byte("s3 $HOME `x`\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	content, err := FileContent(file)
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		parts []Part
		text  string // "" when it depends on the machine
		want  string
	}{
		{nil, "''", ""},
		{[]Part{Literal("--port="), Var("P")}, `--port="${P}"`, "--port=v $HOME *"},
		{[]Part{Literal("a'"), Var("P"), Literal(" b"), Literal("c")}, `'a'\'''"${P}"' bc'`, "a'v $HOME * bc"},
		{[]Part{Required("P", "set P (the 'port')`x`$y\"")}, `"${P:?set P the portxy}"`, "v $HOME *"},
		{[]Part{content}, "", "s3 $HOME `x`"},
	}
	for _, c := range cases {
		got, err := Word(c.parts...)
		if err != nil {
			t.Fatal(err)
		}
		if c.text != "" && got != c.text {
			t.Errorf("Word(%v) = %s, want %s", c.parts, got, c.text)
		}
		for _, sh := range shells(t) {
			if saw := echo(t, sh, []string{got}, "P=v $HOME *"); len(saw) != 1 || saw[0] != c.want {
				t.Errorf("%s: %s arrived as %q, want %q", sh, got, saw, c.want)
			}
		}
	}
}

func TestRequiredStops(t *testing.T) {
	w, err := Word(Required("GENRM_UNSET_VARIABLE", "set me"))
	if err != nil {
		t.Fatal(err)
	}
	for _, sh := range shells(t) {
		out, err := exec.Command(sh, "-c", "printf '%s' "+w+"; echo went on").CombinedOutput()
		if err == nil || strings.Contains(string(out), "went on") || !strings.Contains(string(out), "set me") {
			t.Errorf("%s: %v, %q", sh, err, out)
		}
	}
}

func TestNUL(t *testing.T) {
	if _, err := Word(Literal("a"), Literal("\x00")); !errors.Is(err, ErrNUL) {
		t.Errorf("Word: %v", err)
	}
	if _, err := Word(Literal("\x00"), Var("P")); !errors.Is(err, ErrNUL) {
		t.Errorf("Word in front of an expression: %v", err)
	}
	if _, err := Command([]string{"a", "\x00"}); !errors.Is(err, ErrNUL) {
		t.Errorf("Command: %v", err)
	}
	if _, err := FileContent("/a\x00"); !errors.Is(err, ErrNUL) {
		t.Errorf("FileContent: %v", err)
	}
}

func FuzzQuote(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	sh := shells(f)[0]
	f.Fuzz(func(t *testing.T, s string) {
		q, err := Quote(s)
		if strings.ContainsRune(s, 0) {
			if !errors.Is(err, ErrNUL) {
				t.Fatalf("NUL passed: %q", q)
			}
			return
		}
		if got := echo(t, sh, []string{q}); len(got) != 1 || got[0] != s {
			t.Fatalf("%q arrived as %q by way of %s", s, got, q)
		}
	})
}

func TestSecrets(t *testing.T) {
	s := Secrets{Where: "on this node"}
	for i, c := range []struct {
		kind, ref, word string
		reads           int
	}{
		{"env", "HF_TOKEN", `"${genrm_secret_1}"`, 1},
		{"file", "/run/it's", `"${genrm_secret_2}"`, 2},
		{"env", "HF_TOKEN", `"${genrm_secret_1}"`, 2},
		{"env", "no name", "", 2},
	} {
		e, err := s.Read(c.kind, c.ref)
		if (err != nil) != (c.word == "") || len(s.Reads) != c.reads {
			t.Errorf("%d: %v, %q", i, err, s.Reads)
		}
		if err == nil {
			if word, err := Word(e); err != nil || word != c.word {
				t.Errorf("%d: %s, %v", i, word, err)
			}
		}
	}
	if want := `genrm_secret_1="${HF_TOKEN:?HF_TOKEN holds a secret and is not set on this node}"`; s.Reads[0] != want {
		t.Errorf("%s, want %s", s.Reads[0], want)
	}
}
