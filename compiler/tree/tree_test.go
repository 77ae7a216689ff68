package tree

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseJSONKeepsWhatWasWritten(t *testing.T) {
	for _, s := range []string{`{"b":1,"a":{"z":[1e-6,1.0,-0,"<&>\u00e9"],"y":null}}`, `[]`, `"x"`, `1e400`, `true`} {
		v, err := ParseJSON(s)
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		if got := v.JSON(); got != strings.ReplaceAll(s, `\u00e9`, "é") {
			t.Errorf("%s became %s", s, got)
		}
	}
	for s, want := range map[string]string{`{"a":1,"a":1}`: "duplicate key", `1 2`: "after the JSON value", `{"a":1}]`: "after", `{a:1}`: "invalid", ``: "EOF", `'{"a":1}'`: "invalid"} {
		if _, err := ParseJSON(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", s, err, want)
		}
	}
}

func TestMapKeepsOrder(t *testing.T) {
	var m Map[int]
	const text = `{"z":1,"a":2,"m<":3}`
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	m.Set("a", 5)
	m.Set("b", 6)
	got, err := m.MarshalJSON()
	if want := `{"z":1,"a":5,"m<":3,"b":6}`; err != nil || string(got) != want {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
	if err := json.Unmarshal([]byte(`[1]`), &m); err == nil {
		t.Error("a list was read as an object")
	}
}

func TestPaths(t *testing.T) {
	p := Join(Index(Join(Join("", "relax"), "a b"), 3), "x")
	if want := `relax."a b"[3].x`; p != want {
		t.Errorf("%s, want %s", p, want)
	}
}
