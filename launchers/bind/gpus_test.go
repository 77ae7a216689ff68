package bind

import (
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/launchers/graph"
)

// Runs that saw the same GPUs free, as those do that are launched at once, get
// different ones, and the one too many is told by whom it was beaten.
func TestNodeGPUsAtOnce(t *testing.T) {
	g := &graph.Graph{Nodes: 1, Processes: []*graph.Process{{Name: "q-0", Role: graph.Engine, GPUs: []int{0}}}}
	o := Options{Host: "127.0.0.1", Exclusive: true, Spare: []string{"bind-test-1", "bind-test-2"}}
	var got []string
	for range 3 {
		b, held, err := Node(g, 0, []string{"bind-test-0"}, o)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		got = append(got, b.GPUs["q-0"]...)
	}
	if want := []string{"bind-test-0", "bind-test-1", "bind-test-2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if b, held, err := Node(g, 0, []string{"bind-test-0"}, o); err == nil || !strings.Contains(err.Error(), "GPU bind-test-2 was free and has just been taken by pid ") {
		held.Close()
		t.Errorf("the fourth got %q, %v", b.GPUs["q-0"], err)
	}
	o = Options{Host: "127.0.0.1"}
	b, held, err := Node(g, 0, []string{"bind-test-0"}, o)
	defer held.Close()
	if err != nil || !slices.Equal(b.GPUs["q-0"], []string{"bind-test-0"}) {
		t.Errorf("where a scheduler numbers the GPUs of each job: got %q, %v", b.GPUs["q-0"], err)
	}
}
