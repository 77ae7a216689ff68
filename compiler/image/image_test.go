package image

import "testing"

func TestReferences(t *testing.T) {
	for _, c := range []struct{ ref, tag, floating string }{
		{"vllm/vllm-openai:v0.24.0", "v0.24.0", ""},
		{"vllm/vllm-openai", "", "has no tag, which means latest"},
		{"registry:5000/team/vllm", "", "has no tag, which means latest"},
		{"registry:5000/team/vllm:1.2", "1.2", ""},
		{"docker://vllm/vllm-openai:latest", "latest", "has the floating tag latest"},
		{"lmsysorg/sglang:nightly-dev-20260101", "nightly-dev-20260101", "has the floating tag nightly-dev-20260101"},
		{"vllm/vllm-openai@sha256:0123", "", ""},
		{"vllm/vllm-openai:latest@sha256:0123", "latest", ""},
		{"/images/vllm.sqsh", "", ""},
		{"vllm.sqsh", "", ""},
	} {
		if got := Tag(c.ref); got != c.tag {
			t.Errorf("Tag(%q) = %q, want %q", c.ref, got, c.tag)
		}
		if got := Floating(c.ref); got != c.floating {
			t.Errorf("Floating(%q) = %q, want %q", c.ref, got, c.floating)
		}
	}
}

func TestRay(t *testing.T) {
	for ref, want := range map[string]string{
		"rayproject/ray:2.60.0":                     "2.60.0",
		"rayproject/ray-llm:2.60.0-py311-cu128":     "2.60.0",
		"registry:5000/ray-ml:v2.60.0-gpu":          "2.60.0",
		"ray:2.60.0@sha256:0123":                    "2.60.0",
		"rayproject/ray-ml:2.60.0.abc123-py311-gpu": "",
		"rayproject/ray:nightly-py311":              "",
		"rayproject/ray":                            "",
		"site/rl:2.60.0":                            "",
		"site/xray:2.60.0":                          "",
		"vllm/vllm-openai:v0.29.0":                  "",
	} {
		if got := Ray(ref); got != want {
			t.Errorf("Ray(%q) = %q, want %q", ref, got, want)
		}
	}
}
