package engines

import "testing"

func TestRayLLM(t *testing.T) {
	for _, r := range rayReleases {
		get(t, "vllm", r.vllm) // a pin without a catalogue could not be checked
		if vllm, ok := RayLLM(r.ray); !ok || vllm != r.vllm {
			t.Errorf("RayLLM(%q) = %q, %v", r.ray, vllm, ok)
		}
	}
	if vllm, ok := RayLLM("2.60.0"); !ok || vllm != "0.29.0" {
		t.Errorf("RayLLM(2.60.0) = %q, %v", vllm, ok)
	}
	if vllm, ok := RayLLM("0.1.0"); ok || vllm != "" {
		t.Errorf("an unknown Ray release pins %q", vllm)
	}
	if _, ok := RayLLM(LatestRay()); !ok {
		t.Errorf("the newest Ray release, %s, is not known", LatestRay())
	}
}
