package kuberay

import (
	"bytes"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/yaml"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
)

// FileName is the file that emit writes the objects to.
const FileName = "kuberay.yaml"

// Files returns what `genrm emit` writes for the target beside the common files:
// [FileName], which `kubectl apply --server-side` takes as it is. The objects are
// named after the experiment alone: applied again after the run has ended, they
// change nothing, so a new run needs a new name or a deletion. The same plan gives
// the same bytes.
func Files(p *plan.Plan) ([]emit.File, error) {
	o, found, err := Build(p, Run{})
	if err != nil {
		return nil, err
	}
	if found.HasErrors() {
		return nil, fmt.Errorf("%s: %s", found[0].Path, found[0].Summary)
	}
	text, err := Manifest(p, o)
	if err != nil {
		return nil, err
	}
	return []emit.File{{Name: FileName, Text: text}}, nil
}

// Place is where the objects that [Files] writes go: the context and the namespace
// that the experiment states, "" if it states none, and their name.
func Place(p *plan.Plan) [3]string {
	context, _ := settings(p).Field("context").AsString()
	namespace, _ := settings(p).Field("namespace").AsString()
	return [3]string{context, namespace, Name(p, "")}
}

// Manifest writes objects as YAML documents in the order of creation.
func Manifest(p *plan.Plan, o *Objects) ([]byte, error) {
	hash, err := p.Hash()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n", madeBy(p, hash))
	fmt.Fprintf(&b, "# kubectl apply --server-side -f %s\n", FileName)
	for i, object := range o.All() {
		if i > 0 {
			b.WriteString("---\n")
		}
		u, err := Unstructured(object)
		if err != nil {
			return nil, err
		}
		text, err := asYAML(u.Object)
		if err != nil {
			return nil, err
		}
		b.Write(text)
	}
	return b.Bytes(), nil
}

// asYAML writes a value as YAML that says the same as its JSON.
func asYAML(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(escaped(text))
}

// escaped writes in JSON what YAML does not take as it is, or takes for the end of
// a line, as \u and four digits, which say the same in both. Who is sent an object
// reads it as YAML, too.
func escaped(text []byte) []byte {
	if !bytes.ContainsFunc(text, wantsEscape) {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		if wantsEscape(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

// wantsEscape reports the characters from DEL on, which JSON does not escape, that
// are none of YAML 1.1, its line breaks, and the mark of a byte order.
func wantsEscape(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffe || r == 0xffff
}
