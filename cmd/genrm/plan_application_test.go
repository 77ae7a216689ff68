package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestPlanShowsWhatIsSubmitted reads the application off the printed plan and
// holds it against what emit writes, which is what a launch sends.
func TestPlanShowsWhatIsSubmitted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "judges.cue")
	text := `name: "My_Judges"
serve: {
	instances: {
		quality: {
			engine: "vllm", model_path: "/models/<q>&", num_gpus: 8, num_gpus_per_engine: 4
			engine_config: {
				compilation_config: {mode: 3, cudagraph_capture_sizes: [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80]}
				limit_mm_per_prompt: {}, chat_template: "{{ '\n' }} größe \"x\"", gpu_memory_utilization: 0.90
				kv_transfer_config: {kv_connector: "A", kv_role: "kv_both", kv_connector_extra_config: {}}
			}
			env: {A: "b c", HF_TOKEN: {env: "OTHER_TOKEN"}}
		}
		"safety.v2": {engine: "vllm", model_path: "/models/s", num_gpus: 1}
		remote: {engine: "openai", base_url: "https://h.example/v1", model: "m"}
	}
	gateway: failure_policy: "mask"
}
cluster: {gpus_per_node: 8, gpu_memory_gib: 80}
_serve: {http_options: {port: 9000, host: "0.0.0.0"}, proxy_location: "HeadOnly", request_timeout_s: 900, accelerator_type: "H100"}
ray: serve: _serve
kuberay: {image: "rayproject/ray-llm:2.60.0", serve: _serve}
`
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"ray", "kuberay"} {
		code, out, stderr := call(t, "plan", file, "--target", target)
		if code != 0 {
			t.Fatal(stderr)
		}
		for _, not := range []string{"vllm serve", "Command", "--config={file:gateway.json}", "VLLM_PORT"} {
			if strings.Contains(out, not) {
				t.Errorf("%s: the plan shows %q, which nothing runs:\n%s", target, not, out)
			}
		}
		shown := map[string]any{}
		var configs []any
		for _, part := range strings.Split(out, "\n\n") {
			title, body, _ := strings.Cut(part, "\n")
			if strings.HasPrefix(title, "LLMConfig of judge ") {
				var c map[string]any
				if err := json.Unmarshal([]byte(body), &c); err != nil {
					t.Fatalf("%s: %v\n%s", target, err, part)
				}
				if key := c["model_loading_config"].(map[string]any)["model_id"]; title != "LLMConfig of judge "+key.(string) {
					t.Errorf("%s: %q is of %v", target, title, key)
				}
				configs = append(configs, c)
			}
			if title == "Application of Ray Serve" {
				for line := range strings.Lines(body) {
					name, value, ok := strings.Cut(strings.TrimSpace(line), "  ")
					if !ok {
						continue // a sentence
					}
					var v any = strings.TrimSpace(value)
					if err := json.Unmarshal([]byte(value), &v); err != nil {
						v = strings.TrimSpace(value)
					}
					shown[name] = v
				}
			}
		}
		shown["args"] = map[string]any{"llm_configs": configs}

		sent := map[string]any{}
		name := map[string]string{"ray": "serve.json", "kuberay": "kuberay.yaml"}[target]
		code, out, stderr = call(t, "emit", file, "--target", target, "-o", "-", "--only", name)
		if code != 0 {
			t.Fatal(stderr)
		}
		for _, doc := range strings.Split(out, "\n---\n") {
			var object struct {
				Spec struct {
					ServeConfigV2 string `json:"serveConfigV2"`
				} `json:"spec"`
			}
			if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
				t.Fatal(err)
			}
			if target == "kuberay" {
				doc = object.Spec.ServeConfigV2
			}
			if err := yaml.Unmarshal([]byte(doc), &sent); err != nil {
				t.Fatal(err)
			}
		}
		want := sent["applications"].([]any)[0].(map[string]any)
		for _, name := range []string{"http_options", "proxy_location"} {
			want[name] = sent[name]
		}
		if !reflect.DeepEqual(shown, want) {
			a, _ := json.MarshalIndent(shown, "", " ")
			b, _ := json.MarshalIndent(want, "", " ")
			t.Errorf("%s: the plan shows\n%s\nand\n%s\nis sent", target, a, b)
		}
	}
}
