package engines

// rayReleases holds the vLLM release that the extra llm of each Ray release pins, oldest first. Source: the
// requirements of the ray package, Requires-Dist: vllm[audio]==…; extra == "llm".
var rayReleases = []struct{ ray, vllm string }{
	{"2.60.0", "0.29.0"},
}

// RayLLM returns the vLLM release that ray[llm] of a Ray release pins, which is what Ray Serve starts there. It
// reports false for a Ray release whose pin is not known.
func RayLLM(ray string) (vllm string, ok bool) {
	for _, r := range rayReleases {
		if r.ray == ray {
			return r.vllm, true
		}
	}
	return "", false
}

// LatestRay returns the newest Ray release that [RayLLM] knows, which is assumed where none is stated.
func LatestRay() string { return rayReleases[len(rayReleases)-1].ray }
