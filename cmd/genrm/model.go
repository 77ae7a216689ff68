package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"genrm.dev/genrm/compiler/tree"

	"cuelang.org/go/cue/format"
)

type modelCmd struct {
	Facts modelFactsCmd `cmd:"" help:"Print what a model's config.json says, as a models: block."`
}

type modelFactsCmd struct {
	Dir    string `arg:"" help:"Folder of the model, with its config.json."`
	As     string `placeholder:"PATH" help:"Path of the model in the experiment, where it is another than DIR."`
	Output string `short:"o" enum:"cue,json" default:"cue" help:"${enum}."`
}

func (modelFactsCmd) Help() string {
	return `The compiler reads no model, so that a plan is the same on every machine. Paste this block into the experiment, and vet checks attention heads against tensor parallelism, layers against pipeline stages and contexts against the model.

Steps: read config.json; where it nests the language model (text_config and such), read that; read the number of parameters from model.safetensors.index.json if that states it; print what is there and guess nothing.

Examples:

  genrm model facts /models/Qwen3-4B
  genrm model facts ./download --as /models/Qwen3-4B >> models.cue`
}

// factNames maps a fact to its names in config.json files, the customary first.
var factNames = []struct {
	fact  string
	names []string
	text  bool
}{
	{"num_attention_heads", []string{"num_attention_heads", "n_head", "num_heads"}, false},
	{"num_key_value_heads", []string{"num_key_value_heads"}, false},
	{"num_hidden_layers", []string{"num_hidden_layers", "n_layer", "num_layers"}, false},
	{"max_position_embeddings", []string{"max_position_embeddings", "n_positions"}, false},
	{"num_experts", []string{"num_experts", "n_routed_experts", "num_local_experts"}, false},
	{"parameters", nil, false},
	{"dtype", []string{"dtype", "torch_dtype"}, true},
	{"model_type", []string{"model_type"}, true},
}

func (c *modelFactsCmd) Run(a *app) error {
	path := filepath.Join(c.Dir, "config.json")
	config, err := readJSON(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: no config.json: is this the folder of a model?", c.Dir)
	}
	if err != nil {
		return err
	}
	places := []*tree.Value{config}
	for _, nested := range []string{"text_config", "llm_config", "language_config", "thinker_config"} {
		if v := config.Field(nested); v != nil && v.Kind == tree.Struct {
			places = append(places, v)
			if t := v.Field("text_config"); t != nil && t.Kind == tree.Struct {
				places = append(places, t)
			}
		}
	}
	facts := &tree.Value{Kind: tree.Struct}
	for _, f := range factNames {
		if v := find(places, f.names, f.text); v != nil {
			facts.Fields = append(facts.Fields, tree.Field{Name: f.fact, Value: v})
		}
		if f.fact == "parameters" {
			n, err := parameters(c.Dir)
			if err != nil {
				return err
			}
			if n != nil {
				facts.Fields = append(facts.Fields, tree.Field{Name: f.fact, Value: n})
			}
		}
	}
	if len(facts.Fields) == 0 {
		return fmt.Errorf("%s: states none of the facts that genrm uses (num_attention_heads, …)", path)
	}
	key := c.As
	if key == "" {
		key = strings.TrimSuffix(c.Dir, "/")
	}
	doc := &tree.Value{Kind: tree.Struct, Fields: []tree.Field{{Name: "models", Value: &tree.Value{Kind: tree.Struct, Fields: []tree.Field{{Name: key, Value: facts}}}}}}
	if c.Output == "json" {
		return printJSON(a.stdout, json.RawMessage(doc.JSON()))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "models: %s: {\n", mustJSON(key))
	for _, f := range facts.Fields {
		fmt.Fprintf(&b, "\t%s: %s\n", f.Name, f.Value.JSON())
	}
	b.WriteString("}\n")
	text, err := format.Source([]byte(b.String()))
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(text)
	return err
}

func mustJSON(s string) string { return tree.Text(s).JSON() }

// find returns the first value of the wanted kind: the nested language model
// knows better than what is around it, except for its type.
func find(places []*tree.Value, names []string, text bool) *tree.Value {
	for i := range places {
		p := places[len(places)-1-i]
		for _, n := range names {
			if n == "model_type" {
				p = places[0]
			}
			v := p.Field(n)
			if v == nil {
				continue
			}
			if x, ok := v.AsInt(); ok && !text && x >= 1 || text && v.Kind == tree.String {
				return v
			}
		}
	}
	return nil
}

// parameters reads the count that newer checkpoints state; nil if there is none.
func parameters(dir string) (*tree.Value, error) {
	index, err := readJSON(filepath.Join(dir, "model.safetensors.index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if v := index.Lookup("metadata", "total_parameters"); v != nil {
		if n, ok := v.AsFloat(); ok && n > 0 {
			return v, nil
		}
	}
	return nil, nil
}

func readJSON(path string) (*tree.Value, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	v, err := tree.ParseJSON(string(data))
	if err != nil {
		return nil, fmt.Errorf("%s: not JSON: %w", path, err)
	}
	if v.Kind != tree.Struct {
		return nil, fmt.Errorf("%s: not a JSON object", path)
	}
	return v, nil
}
