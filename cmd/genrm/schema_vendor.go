package main

import (
	"fmt"
	"io/fs"

	"genrm.dev/genrm/schema"
	"genrm.dev/genrm/schema/engines"

	"cuelang.org/go/cue/format"
)

type vendoredFile struct {
	name string
	text []byte
}

// flagFiles says where the flags of a catalogue apply in the vendored schema.
// The definitions that they extend are closed, but a definition that is declared
// twice is closed only as a whole, and the flags' struct stays open: it knows
// one release, and the user may pin another.
var flagFiles = []struct{ engine, version, def, applies string }{
	{"sglang", "0.5.15.post1", "#SGLangFlags", "#SGLangInstance: {engine_config?: #SGLangFlags}\n\n#RelaxInstance: {engine_config?: null | #SGLangFlags}\n\n#Relax: {genrm_engine_config?: #SGLangFlags}\n"},
	{"vllm", "0.24.0", "#VLLMFlags", "#VLLMInstance: {engine_config?: #VLLMFlags}\n"},
	{"relax", "guide", "#RelaxFlags", "#Relax: {args?: #RelaxFlags}\n"},
}

// vendoredFiles returns the schema package as it is written into a user's
// module: the schema's own files, and the engines' flags as CUE.
func vendoredFiles() ([]vendoredFile, error) {
	var out []vendoredFile
	names, err := fs.Glob(schema.Files(), "*.cue")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		text, err := fs.ReadFile(schema.Files(), n)
		if err != nil {
			return nil, err
		}
		out = append(out, vendoredFile{n, append([]byte("// "+schemaMark+"\n\n"), text...)})
	}
	for _, f := range flagFiles {
		cat, ok := engines.Get(f.engine, f.version)
		if !ok {
			return nil, fmt.Errorf("no catalogue of %s %s", f.engine, f.version)
		}
		text := append([]byte("// "+schemaMark+"\n\n"), cat.CUE("schema", f.def)...)
		text = append(text, "\n// Where these flags apply.\n"+f.applies...)
		if text, err = format.Source(text); err != nil {
			return nil, fmt.Errorf("flags of %s: %w", f.engine, err)
		}
		out = append(out, vendoredFile{"flags_" + f.engine + ".cue", text})
	}
	return out, nil
}
