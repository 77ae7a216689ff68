package schema

import "testing"

func TestLookup(t *testing.T) {
	for path, want := range map[string]string{
		"relax.genrm_instances.*.num_gpus":        "an integer, at least 1",
		"relax.genrm_instances.q-1.num_gpus":      "an integer, at least 1",
		"relax.resource.actor":                    "a list of 2: [an integer, at least 1; an integer, at least 0]",
		"target":                                  `one of "local", "slurm", "ray", "kuberay"`,
		"experiments.x.cluster.gpus_per_node":     "an integer, at least 1, at most 64",
		"serve.gateway.api_key":                   `a secret reference {env: "NAME"}, or a secret reference {file: "/path"}`,
		"serve.instances.*.sampling_config.top_k": "an integer, at least -1",
	} {
		e, err := Lookup(path)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got := e.Type.Describe(); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if _, err := Lookup("relax.nope"); err == nil {
		t.Error("relax.nope exists")
	}
}

// TestEveryFieldHasADoc keeps `genrm explain` and editors useful.
func TestEveryFieldHasADoc(t *testing.T) {
	seen := map[*Type]bool{}
	var walk func(path string, ty *Type)
	walk = func(path string, ty *Type) {
		if seen[ty] {
			return
		}
		seen[ty] = true
		for _, a := range ty.Alts {
			if a.Struct != nil {
				for _, f := range a.Struct.Fields {
					if f.Doc == "" {
						t.Errorf("%s.%s has no doc comment", path, f.Name)
					}
					walk(path+"."+f.Name, f.Type)
				}
				for _, p := range a.Struct.Patterns {
					walk(path+".*", p.Type)
				}
			}
			if a.Elem != nil {
				walk(path+"[]", a.Elem)
			}
		}
	}
	walk("", Package())
}
