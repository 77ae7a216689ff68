package diag

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	names := []string{"model_path", "num_gpus", "num_gpus_per_engine", "engine_config", "sampling_config", "colocate", "tensor_parallel_size", "genrm"}
	for word, want := range map[string][]string{
		"modle_path":    {"model_path"},
		"modelpath":     {"model_path"},
		"num_gpu":       {"num_gpus", "num_gpus_per_engine"},
		"Num-GPUs":      {"num_gpus", "num_gpus_per_engine"},
		"colcoate":      {"colocate"},
		"parallel_size": {"tensor_parallel_size"},
		"genmr":         {"genrm"},
		"zzz":           nil,
		"":              nil,
	} {
		if got := Nearest(word, names, 3); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", word, got, want)
		}
	}
}

func TestSortedIsATotalOrderWithoutRepetitions(t *testing.T) {
	a := Diagnostic{Code: "GRM2001", Severity: Error, Pos: Pos{"a.cue", 1, 2}, Path: "x", Summary: "s"}
	b, c, d := a, a, a
	b.Pos.Line = 3
	c.Severity = Note
	d.Pos.File = "b.cue"
	want := List{a, c, b, d}
	for _, in := range []List{{a, b, c, d}, {d, c, b, a, a}, {b, a, d, c, b}} {
		got := in.Sorted()
		if !slices.EqualFunc(got, want, func(x, y Diagnostic) bool { return x.Pos == y.Pos && x.Severity == y.Severity }) {
			t.Errorf("%v", got)
		}
	}
	if s := (List{c}).Strict(); s.HasErrors() {
		t.Error("--strict made a note an error")
	}
	c.Severity = Warning
	if s := (List{c}).Strict(); !s.HasErrors() {
		t.Error("--strict left a warning")
	}
}
