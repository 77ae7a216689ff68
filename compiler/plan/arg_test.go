package plan

import (
	"fmt"
	"strings"
	"testing"
)

func bind(t *testing.T, a Arg) string {
	t.Helper()
	s, err := a.Bind(func(p Placeholder) (string, error) { return "<" + p.Kind + ":" + p.Name + ">", nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBind(t *testing.T) {
	for in, want := range map[Arg]string{
		"--port={port:http}":                        "--port=<port:http>",
		"{host:0}:{port:dist_init}":                 "<host:0>:<port:dist_init>",
		"{rank}{job_id}{run_dir}{upstreams}":        "<rank:><job_id:><run_dir:><upstreams:>",
		CPUs() + Path("ray"):                        "<cpus:><path:ray>",
		"{file:gym.yaml}":                           "<file:gym.yaml>",
		"{secret:env:HF_TOKEN}":                     "<secret:env:HF_TOKEN>",
		"{nothing:of ours} {} {{x}}":                "{nothing:of ours} {} {{x}}",
		Lit("{port:http}") + "=" + Port("http"):     "{port:http}=<port:http>",
		Lit("{brace}") + Lit("{{rank}}") + "{rank}": "{brace}{{rank}}<rank:>",
	} {
		if got := bind(t, in); got != want {
			t.Errorf("%s: %q, want %q", in, got, want)
		}
	}
	if _, err := Port("x").Bind(func(Placeholder) (string, error) { return "", fmt.Errorf("none free") }); err == nil || !strings.Contains(err.Error(), "port:x") {
		t.Errorf("an error of fill is lost: %v", err)
	}
}

// FuzzLit wants user text to survive binding byte for byte, also when what a
// placeholder is filled with looks like one.
func FuzzLit(f *testing.F) {
	for _, s := range []string{"", "{port:http}", "{brace}port:http}", "{{rank}}", "{secret:env:{rank}}", "a'b\"$`\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a := Lit(s)
		if got := bind(t, a); got != s {
			t.Errorf("%q became %q", s, got)
		}
		if len(a.Placeholders()) != 0 {
			t.Errorf("%q has placeholders: %v", s, a.Placeholders())
		}
		got, _ := (a + Rank() + a).Bind(func(Placeholder) (string, error) { return "{rank}", nil })
		if got != s+"{rank}"+s {
			t.Errorf("%q between placeholders became %q", s, got)
		}
	})
}
