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

// flagFiles says where the flags of an engine's newest catalogue apply in the
// vendored schema.
// The definitions that they extend are closed, but a definition that is declared
// twice is closed only as a whole, and the flags' struct stays open: it knows
// one release, and the user may pin another.
var flagFiles = []struct{ engine, def, applies string }{
	{"sglang", "#SGLangFlags", "#SGLangInstance: {engine_config?: #SGLangFlags}\n\n#RelaxInstance: {engine_config?: null | #SGLangFlags}\n\n#Relax: {genrm_engine_config?: #SGLangFlags}\n"},
	{"vllm", "#VLLMFlags", "#VLLMInstance: {engine_config?: #VLLMFlags}\n"},
	{"relax", "#RelaxFlags", "#Relax: {args?: #RelaxFlags}\n"},
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
		text := append([]byte("// "+schemaMark+"\n\n"), engines.Latest(f.engine).CUE("schema", f.def)...)
		text = append(text, "\n// Where these flags apply.\n"+f.applies...)
		if text, err = format.Source(text); err != nil {
			return nil, fmt.Errorf("flags of %s: %w", f.engine, err)
		}
		out = append(out, vendoredFile{"flags_" + f.engine + ".cue", text})
	}
	return out, nil
}
