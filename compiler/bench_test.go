package compiler

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkVetDualJudge is `genrm vet` of the dual-judge example without the
// start of the process.
func BenchmarkVetDualJudge(b *testing.B) {
	bench(b, "../examples/relax-dual-judge", 1)
}

// BenchmarkSweep1000 and BenchmarkSweep10000 vet one file that holds as many
// experiments by comprehension; time per experiment must not grow with their
// number.
func BenchmarkSweep1000(b *testing.B)  { benchSweep(b, 1000) }
func BenchmarkSweep10000(b *testing.B) { benchSweep(b, 10000) }

func benchSweep(b *testing.B, n int) {
	path := filepath.Join(b.TempDir(), "sweep.cue")
	if err := os.WriteFile(path, []byte(sweepOf(n)), 0o600); err != nil {
		b.Fatal(err)
	}
	bench(b, path, n)
}

func bench(b *testing.B, path string, experiments int) {
	b.ReportAllocs()
	for b.Loop() {
		r := Compile([]string{path}, Options{})
		if r.Diagnostics.HasErrors() || len(r.Plans) != experiments {
			b.Fatalf("%d plans, want %d: %v", len(r.Plans), experiments, r.Diagnostics)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*experiments), "µs/experiment")
}

// sweepOf is a file of n dual-judge experiments that differ in name, learning
// rate and sampling temperature.
func sweepOf(n int) string {
	var numbers strings.Builder
	for i := range n {
		fmt.Fprintf(&numbers, "%d,", i)
	}
	return `package sweep

experiments: {
	for i in [` + numbers.String() + `] {
		"run-\(i)": {
			relax: {
				colocate: true
				resource: {actor: [1, 8], rollout: [1, 4], genrm: [1, 4]}
				genrm_instances: {
					quality: {model_path: "/models/quality-judge", num_gpus: 2, num_gpus_per_engine: 2
						sampling_config: {temperature: i / 100000, max_response_len: 64}}
					safety: {model_path: "/models/safety-judge", num_gpus: 2, num_gpus_per_engine: 2
						sampling_config: {max_response_len: 32, chat_template_kwargs: enable_thinking: false}}
				}
				custom_rm_path: "examples.generate_reward_model.reward_dual_genrm_quality_safety.reward_func"
				reward_key:     "score"
				args: {hf_checkpoint: "/models/Qwen3-4B", advantage_estimator: "grpo", use_kl_loss: true, lr: 1e-6 * (1 + i)}
			}
			cluster: {gpus_per_node: 8, gpu_memory_gib: 80}
		}
	}
}
`
}
