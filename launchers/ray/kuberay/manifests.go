package kuberay

import (
	"bytes"

	"sigs.k8s.io/yaml"
)

// Manifests are the objects of the run as they are sent, in YAML.
func (p *Prepared) Manifests() ([]byte, error) {
	var b bytes.Buffer
	for i, o := range p.Objects.All() {
		if i > 0 {
			b.WriteString("---\n")
		}
		m, err := manifest(o)
		if err != nil {
			return nil, err
		}
		text, err := yaml.Marshal(m)
		if err != nil {
			return nil, err
		}
		b.Write(text)
	}
	return b.Bytes(), nil
}
