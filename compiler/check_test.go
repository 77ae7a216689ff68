package compiler

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/diag"
)

// compileFile compiles one file and returns the result.
func compileFile(t *testing.T, text string, opts Options) *Result {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cue")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return Compile([]string{path}, opts)
}

var marker = regexp.MustCompile(`// want((?: GRM[0-9]{4}@[0-9]+)+)$`)

// TestEveryMistakeAtOnce compiles files in which each faulty line says behind it
// which codes of load and check it must raise, and at which columns; no other of
// these may be raised.
func TestEveryMistakeAtOnce(t *testing.T) {
	for name, text := range map[string]string{
		"several in one struct": `
name: "x"
serve: instances: {
	a: {engin: "sim", constant: 3, latency: -1} // want GRM2002@2 GRM2001@6 GRM2003@30
	b: {engine: "sim", constan: "y", latency: "0", failure_rate: 2} // want GRM2001@21 GRM2003@44 GRM2004@63
	c: {engine: "vllm", model_path: null, num_gpu: 2} // want GRM2002@2 GRM2001@40 GRM2005@34
	d: {engine: "openai", base_url: "https://h", model: ""} // want GRM2004@54
}
clutser: {} // want GRM2001@1
`,
		"conflict beside an unknown and a missing field": `
name: "x"
relax: {
	colocate: true
	resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
	genrm_instances: {
		a: {model_path: "/m", num_gpus: 4, num_gpus: 2, foo: 1} // want GRM1004@35 GRM2001@51
		b: {model_path: "/m"} // want GRM2002@3
	}
	reward_key: nothing // want GRM1005@14
	max_staleness: -1 // want GRM2004@17
}
`,
		"unicode before the mistake": `
name: "x", nam: "ü", target: "lokal" // want GRM2001@12 GRM2004@30
serve: instances: {a: {engine: "sim", constant: "判断", latncy: 1}} // want GRM2001@55
`,
		"null and lists": `
name: null // want GRM2005@7
cluster: {nodes: [1], gpus_per_node: {}} // want GRM2003@18 GRM2003@38
serve: instances: a: {engine: "sim", constant: "1"}
relax: resource: {actor: [1], rollout: [0, 1], genrm: [1, -1]} // want GRM2004@26 GRM2004@41 GRM2004@59 GRM2006@1
`,
	} {
		t.Run(name, func(t *testing.T) {
			var want, got []string
			for i, line := range strings.Split(text, "\n") {
				if m := marker.FindStringSubmatch(line); m != nil {
					for _, w := range strings.Fields(m[1]) {
						code, col, _ := strings.Cut(w, "@")
						want = append(want, fmt.Sprintf("%d:%s %s", i+1, col, code))
					}
				}
			}
			for _, d := range compileFile(t, text, Options{}).Diagnostics {
				if d.Severity == diag.Error && d.Code < "GRM3000" {
					got = append(got, fmt.Sprintf("%d:%d %s", d.Pos.Line, d.Pos.Column, d.Code))
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("got  %v\nwant %v", got, want)
			}
		})
	}
}

// TestNoSecretGetsThrough looks for the literals in everything that a
// compilation returns.
func TestNoSecretGetsThrough(t *testing.T) {
	const secret, word = "hf_abcdefghijklmnopqrstuvwxyz", "correct-horse"
	res := compileFile(t, `
name: "x"
_a: "`+secret+`" & "other"
relax: {
	resource: actor: [1, 8]
	args: {hf_checkpoint: "`+secret+`", lr: "Bearer `+secret+`"}
	env: {HF_TOKEN: "`+word+`", X: "\(relax.args.hf_checkpoint)-`+secret+`"}
}
`, Options{})
	n := 0
	for _, d := range res.Diagnostics {
		if s := fmt.Sprintf("%+v", d); strings.Contains(s, secret) || strings.Contains(s, word) {
			t.Errorf("the secret is in %s", d.Code)
		}
		if d.Code == "GRM1008" {
			n++
		}
	}
	if n != 5 {
		t.Errorf("%d findings of literal secrets, want 5", n)
	}
	if len(res.Plans) != 0 {
		t.Error("a plan was made")
	}
}

// FuzzCompile wants a verdict for any text: no panic, every finding with code,
// place and summary, and no finding twice.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{"", "name: \"x\"\nserve: instances: q: {engine: \"sim\", constant: \"1\"}", "a: b: c: [1, 2, {x: y}]", "experiments: {for i in [1, 2] {\"e\\(i)\": {}}}",
		"relax: {resource: actor: [1, 8], args: {lr: 1e-6}}", "gym: config: x: responses_api_models: vllm_model: {}", "package p\nimport \"list\"\nx: list.Range(0, 3, 1)", "\ufeffname: \"é\"", "x: {y: x}"} {
		f.Add(s)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "f.cue")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Skip()
		}
		seen := map[string]bool{}
		for _, d := range Compile([]string{path}, Options{}).Diagnostics {
			key := fmt.Sprint(d.Code, d.Severity, d.Pos, d.Path, d.Summary, d.Detail)
			if strings.Contains(d.Summary, "evaluator failed") {
				t.Errorf("panic: %s", d.Detail)
			}
			if d.Code == "" || d.Summary == "" || !d.Pos.IsValid() || strings.Contains(d.Summary+d.Detail, secretText) || seen[key] {
				t.Errorf("%+v", d)
			}
			seen[key] = true
		}
	})
}

// TestSweepRefusesOnlyTheFaulty wants a mistake inside one experiment to refuse
// that one alone, wherever it was found, and a mistake outside to refuse all.
func TestSweepRefusesOnlyTheFaulty(t *testing.T) {
	const good = `a: serve: instances: q: {engine: "sim", constant: "1"}`
	for name, c := range map[string]struct{ text, plans string }{
		"schema":     {`experiments: {` + good + `, b: serve: instances: q: {engine: "sim", constant: 1}}`, "a"},
		"evaluation": {`experiments: {` + good + `, ab: serve: instances: q: {engine: "sim", constant: "1" & "2"}}`, "a"},
		"rule":       {`experiments: {` + good + `, b: {}}`, "a"},
		"outside":    {`experiments: {` + good + `}, _x: 1 & 2`, ""},
		"secret":     {`experiments: {` + good + `}, _x: "hf_abcdefghijklmnopqrstuvwxyz"`, ""},
		"none":       {`experiments: {` + good + `, b: serve: instances: q: {engine: "sim", echo: true}}`, "a b"},
	} {
		var got []string
		res := compileFile(t, c.text, Options{})
		for _, p := range res.Plans {
			got = append(got, p.Name)
		}
		if s := strings.Join(got, " "); s != c.plans {
			t.Errorf("%s: plans of %q, want %q: %v", name, s, c.plans, res.Diagnostics)
		}
	}
}

// TestSetKeepsTheOrderOfJudges: an override of one judge must not give every
// judge other GPUs.
func TestSetKeepsTheOrderOfJudges(t *testing.T) {
	const text = `
name: "x"
serve: instances: {for k in ["zeta", "alpha", "mid"] {(k): {engine: "sim", constant: k}}}
`
	for _, sets := range [][]string{nil, {"serve.instances.mid.latency=1"}, {"serve.instances.mid.latency=1", `serve.instances.new={engine: "sim", constant: "1"}`}} {
		res := compileFile(t, text, Options{Sets: sets})
		if len(res.Plans) != 1 {
			t.Fatal(res.Diagnostics)
		}
		var got []string
		for _, e := range res.Plans[0].Instances {
			got = append(got, e.Key)
		}
		if want := []string{"zeta", "alpha", "mid", "new"}[:len(got)]; !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", sets, got, want)
		}
	}
}

// TestRayAddress: an address of Ray's that is not the dashboard's is answered by
// what the dashboard's is, one that the field takes.
func TestRayAddress(t *testing.T) {
	for given, want := range map[string]string{
		"ray://host:10001":             "http://host:8265",
		"ray://host":                   "http://host:8265",
		"ray://[fd00::1]:10001":        "http://[fd00::1]:8265",
		"host":                         "http://host:8265",
		"10.0.0.7":                     "http://10.0.0.7:8265",
		"host:8265":                    "http://host:8265",
		"host:30265":                   "http://host:30265",
		"host:10001":                   "http://host:8265",
		"10.0.0.7:6379":                "http://10.0.0.7:8265",
		"//host:8265":                  "http://host:8265",
		"HTTP://host:8265/":            "http://host:8265/",
		"HTTPS://gate.example/cluster": "https://gate.example/cluster",
		"gate.example/cluster":         "http://gate.example/cluster",
		"auto":                         "http://127.0.0.1:8265",
		"":                             "http://host:8265",
		"http://":                      "http://host:8265",
		"http:///x":                    "http://host:8265",
		"ray://host:no":                "http://host:8265",
		"a b":                          "http://host:8265",
	} {
		for at, text := range map[string]string{
			"ray.address":               `name: "x", serve: instances: q: {engine: "sim", constant: "1"}, ray: address: %q`,
			"experiments.a.ray.address": `experiments: a: {serve: instances: q: {engine: "sim", constant: "1"}, ray: address: %q}`,
		} {
			found := compileFile(t, fmt.Sprintf(text, given), Options{}).Diagnostics
			if len(found) != 1 || found[0].Code != "GRM2004" || found[0].Path != at || found[0].Remedy != fmt.Sprintf("write %q", want) || !strings.Contains(found[0].Detail, "Ray Client") {
				t.Errorf("%q: want %s, got %+v", given, want, found)
			}
		}
		if r := compileFile(t, fmt.Sprintf(`name: "x", serve: instances: q: {engine: "sim", constant: "1"}, ray: address: %q`, want), Options{}); r.Diagnostics.HasErrors() {
			t.Errorf("%s, the remedy of %q, is refused: %+v", want, given, r.Diagnostics)
		}
	}
}

// TestSecretFlag: a flag that may not be set at all, because its value is a
// secret, is one finding: the secret if there is one, with what to do instead.
func TestSecretFlag(t *testing.T) {
	const gateway = "clients use gateway.api_key"
	for fields, want := range map[string][]string{
		`engine_config: api_key: "hunter2"`:                                    {"GRM1008 remove it", gateway},
		`engine_config: "api-key": _key`:                                       {"GRM1008 remove it", gateway},
		`engine_config: api_key: "\(_key)x"`:                                   {"GRM1008 remove it", gateway},
		`engine_config: api_key: strings.Join(["hun", "ter2"], "")`:            {"GRM1008 remove it", gateway},
		`engine_config: hf_token: "hunter2"`:                                   {"GRM1008 remove it", `env: HF_TOKEN: {env: "HF_TOKEN"}`},
		`engine_config: max_num_seqs: "hf_abcdefghijklmnopqrstuv"`:             {"GRM1008 take it out", "env: NAME"},
		`extra_args: ["--api-key=hunter2"]`:                                    {"GRM1008 remove it", gateway},
		`extra_args: ["--api-key", "hunter2"]`:                                 {"GRM1008 remove it", gateway},
		`extra_args: ["--hf-token", "hunter2", "--x"]`:                         {"GRM1008 remove it", `env: HF_TOKEN: {env: "HF_TOKEN"}`},
		`extra_args: ["--x", "--api-key", "hf_abcdefghijklmnopqrstuv"]`:        {"GRM1008 take it out", "env: NAME"},
		`engine_config: api_key: "EMPTY"`:                                      {"GRM3006 remove it", ""},
		`engine_config: api_key: {env: "KEY"}`:                                 {"GRM3006 remove it", ""},
		`extra_args: ["--api-key=EMPTY"]`:                                      {"GRM3006 remove it", ""},
		`extra_args: ["--api-key", "--x"]`:                                     {"GRM3006 remove it", ""},
		`extra_args: ["--port=1", "x"], sampling_config: stop: ["--key", "x"]`: {"GRM3006 remove it", ""},
	} {
		text := fmt.Sprintf("import \"strings\"\n_s: strings.ToUpper(\"x\")\n_key: \"hunter2\"\nname: \"x\"\nserve: instances: \"q.1\": {engine: \"vllm\", model_path: \"/m\", num_gpus: 1, %s}\n", fields)
		var found []string
		for _, d := range compileFile(t, text, Options{}).Diagnostics {
			if d.Severity == diag.Error {
				found = append(found, d.Code+" "+d.Remedy)
			}
		}
		if len(found) != 1 || !strings.HasPrefix(found[0], want[0]) || !strings.Contains(found[0], want[1]) {
			t.Errorf("%s: want one finding, %s … %s, got %q", fields, want[0], want[1], found)
		}
	}
}
