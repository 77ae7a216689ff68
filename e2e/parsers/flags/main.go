// Command flags prints command lines for the parser suite, as NDJSON (../parse.py describes a line): for every flag
// of each engine's catalogue those that a compiler may write, with what the engine must make of them, and those
// that the catalogue says to be wrong, to be refused. So that a catalogue is not only equal to a dump of the
// engine's parser, but means what the package engines says it means.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"genrm.dev/genrm/schema/engines"
)

type testCase struct {
	Engine  string         `json:"engine"`
	Version string         `json:"version"`
	Argv    []string       `json:"argv"`
	Want    map[string]any `json:"want,omitempty"`
	Refused bool           `json:"refused,omitempty"`
}

func main() {
	log.SetFlags(0)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for _, engine := range []string{"vllm", "sglang"} {
		for _, version := range engines.Versions(engine) {
			catalogue, _ := engines.Get(engine, version)
			for flag := range catalogue.Flags() {
				for _, c := range cases(flag) {
					c.Engine, c.Version = engine, version
					c.Argv = append(model(engine, flag), c.Argv...)
					if err := encoder.Encode(c); err != nil {
						log.Fatal(err)
					}
				}
			}
		}
	}
	if err := out.Flush(); err != nil {
		log.Fatal(err)
	}
}

// model returns the words that name the model, without which neither engine reads the rest.
func model(engine string, f engines.Flag) []string {
	switch {
	case engine == "sglang":
		return []string{"--model-path=/models/judge"}
	case f.Name == "model": // vllm serve makes the positional argument of it and refuses both
		return nil
	}
	return []string{"/models/judge"}
}

func cases(f engines.Flag) (list []testCase) {
	accept := func(want any, argv ...string) {
		c := testCase{Argv: argv}
		// What a deprecated flag does is another's matter: it may set that one, translated.
		if want != nil && !f.Deprecated {
			c.Want = map[string]any{f.Name: want}
		}
		list = append(list, c)
	}
	refuse := func(argv ...string) { list = append(list, testCase{Argv: argv, Refused: true}) }

	if forms, ok := f.BoolForms(); ok {
		accept(true, forms.True)
		if forms.False != "" {
			accept(false, forms.False)
		} else if forms.NoFalse == "" {
			accept(false)
		}
		refuse(f.Flag + "=true")
		refuse(f.Flag, "false")
		if f.Negative == "" {
			refuse("--no-" + strings.TrimPrefix(f.Flag, "--"))
		}
		return list
	}

	for _, w := range words(f) {
		switch {
		case f.Action == engines.Append, f.NArgs == "+" || f.NArgs == "*":
			accept(many(w.value), f.Flag+"="+w.text)
		default:
			accept(w.value, f.Flag+"="+w.text)
		}
	}
	if w := words(f)[0]; f.Action == engines.Append {
		accept(many(w.value, w.value), f.Flag+"="+w.text, f.Flag+"="+w.text)
	} else if f.NArgs == "+" || f.NArgs == "*" {
		accept(many(w.value, w.value), f.Flag, w.text, w.text)
	}
	for _, text := range wrong(f) {
		refuse(f.Flag + "=" + text)
	}
	switch f.NArgs {
	case "?", "*":
		accept(nil, f.Flag)
	default:
		refuse(f.Flag)
	}
	return list
}

// word is a text for a flag and what the parser makes of it; a nil value is not compared.
type word struct {
	text  string
	value any
}

func many(values ...any) any {
	for _, v := range values {
		if v == nil {
			return nil
		}
	}
	return values
}

func words(f engines.Flag) (list []word) {
	for _, choice := range f.Choices {
		list = append(list, word{strings.Trim(string(choice), `"`), choice})
	}
	if list != nil {
		return list
	}
	switch f.Type {
	case engines.Int:
		list = []word{{"3", 3}, {"-1", -1}}
		if f.HumanInt {
			list = append(list, word{"4k", 4000}, word{"1.5k", 1500})
		}
		if strings.HasSuffix(f.Words, "|auto") {
			list = append(list, word{"auto", -1})
		}
	case engines.Float:
		list = []word{{"0.5", 0.5}, {"-2", -2}, {"1e-3", 0.001}}
	case engines.String:
		list = []word{{"plain text, with $signs", "plain text, with $signs"}}
		switch f.Name {
		case "model": // vLLM: goes to the positional's destination
			return []word{{"/models/judge", nil}}
		case "device_ids": // vLLM
			list = []word{{"0,1", []int{0, 1}}}
		case "lora_modules": // vLLM
			return []word{{"name=path", nil}, {`{"name":"a","path":"b"}`, map[string]any{"name": "a", "path": "b"}}}
		case "lora_paths": // SGLang
			return []word{{"name=path", nil}, {`{"lora_name":"a","lora_path":"b"}`, map[string]any{"lora_name": "a", "lora_path": "b"}}}
		}
		if f.JSONLoose {
			list = append(list, word{`{"a":{"b":[1,"x"]}}`, nil})
		}
		if f.NumberOK {
			list = append(list, word{"2", "2"})
		}
	case engines.JSON:
		if f.Shape != "object" {
			list = append(list, word{`[]`, []any{}})
		}
		if f.Shape != "list" {
			list = append(list, word{`{}`, map[string]any{}})
		}
	default:
		panic(fmt.Sprintf("%s: type %s", f.Name, f.Type))
	}
	return list
}

// wrong lists texts that the parser must refuse. Where it takes anything, there is none.
func wrong(f engines.Flag) []string {
	switch {
	case len(f.Choices) > 0:
		return []string{"no such choice"}
	case f.HumanInt:
		return []string{"1.5", "4q", "many"}
	case f.Type == engines.Int:
		return []string{"1.5", "4k", "many"}
	case f.Type == engines.Float:
		return []string{"many"}
	case f.Type == engines.JSON && f.Shape != "object": // vLLM keeps what is no object as a plain word for some
		return []string{"{", "'{}'"}
	}
	return nil
}
