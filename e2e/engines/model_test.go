//go:build e2e

package engines

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// writeModel makes a model that answers with one word, over and over: by the
// answer one sees which judge was asked. It is a Llama of one layer that any
// engine loads, tokenizer and chat template included: every weight is 0 or 1
// but for the head, where the word's row alone is positive.
func writeModel(t *testing.T, dir, word string) {
	t.Helper()
	const size, vocab, heads = 64, 64, 2

	words := map[string]int{"<unk>": 0, "<|im_start|>": 1, "<|im_end|>": 2, word: 3}
	for i := len(words); i < vocab; i++ {
		words[strings.Repeat("a", i)] = i
	}
	var special []map[string]any
	for id, text := range []string{"<unk>", "<|im_start|>", "<|im_end|>"} {
		special = append(special, map[string]any{"id": id, "content": text, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	writeJSON(t, dir, "tokenizer.json", map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "post_processor": nil, "decoder": nil,
		"added_tokens":  special,
		"pre_tokenizer": map[string]any{"type": "Whitespace"},
		"model":         map[string]any{"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
	})
	writeJSON(t, dir, "tokenizer_config.json", map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512,
		"unk_token": "<unk>", "pad_token": "<unk>", "eos_token": "<|im_end|>",
		"chat_template": `{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}<|im_start|>assistant `,
	})
	writeJSON(t, dir, "config.json", map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "torch_dtype": "float32",
		"hidden_size": size, "intermediate_size": size, "num_hidden_layers": 1,
		"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": size / heads,
		"vocab_size": vocab, "tie_word_embeddings": false, "max_position_embeddings": 512,
		"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false, "mlp_bias": false,
		"eos_token_id": 2, "pad_token_id": 0,
	})

	weights := new(tensors)
	weights.add("model.embed_tokens.weight", func(int) float32 { return 1 }, vocab, size)
	for _, name := range strings.Fields("self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj mlp.gate_proj mlp.up_proj mlp.down_proj") {
		weights.add("model.layers.0."+name+".weight", func(int) float32 { return 0 }, size, size)
	}
	for _, name := range strings.Fields("layers.0.input_layernorm layers.0.post_attention_layernorm norm") {
		weights.add("model."+name+".weight", func(int) float32 { return 1 }, size)
	}
	weights.add("lm_head.weight", func(row int) float32 {
		if row == words[word] {
			return 1
		}
		return -1
	}, vocab, size)
	weights.write(t, filepath.Join(dir, "model.safetensors"))
}

// tensors is a safetensors file in the making: the length of the header in
// eight bytes, the header, the numbers.
type tensors struct {
	header map[string]any
	data   bytes.Buffer
}

// add appends a tensor of 32-bit floats; value tells the number that fills a
// row of the first dimension.
func (f *tensors) add(name string, value func(row int) float32, shape ...int) {
	start := f.data.Len()
	columns := 1
	for _, n := range shape[1:] {
		columns *= n
	}
	for row := range shape[0] {
		number := binary.LittleEndian.AppendUint32(nil, math.Float32bits(value(row)))
		f.data.Write(bytes.Repeat(number, columns))
	}
	if f.header == nil {
		f.header = map[string]any{"__metadata__": map[string]string{"format": "pt"}}
	}
	f.header[name] = map[string]any{"dtype": "F32", "shape": shape, "data_offsets": []int{start, f.data.Len()}}
}

func (f *tensors) write(t *testing.T, path string) {
	t.Helper()
	header, err := json.Marshal(f.header)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	file = append(append(file, header...), f.data.Bytes()...)
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
}

func writeJSON(t *testing.T, dir, name string, v any) {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}
