package engines

import (
	"slices"
	"testing"
)

// Every line decodes, the names are sorted and unique, and a look-up finds each of them.
func TestCatalogueLines(t *testing.T) {
	for _, c := range releases {
		t.Run(c.Engine+"-"+c.Version, func(t *testing.T) {
			names := slices.Collect(c.Names())
			if len(names) < 100 || !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
				t.Fatalf("%d names, sorted and unique wanted", len(names))
			}
			for flag := range c.Flags() {
				found, ok := c.Lookup(flag.Flag)
				if !ok || found.Name != flag.Name {
					t.Errorf("Lookup(%q) = %q, %v", flag.Flag, found.Name, ok)
				}
			}
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	for b.Loop() {
		c, _ := Get("relax", "guide")
		if _, ok := c.Lookup("--use-kl-loss"); !ok {
			b.Fatal("gone")
		}
	}
}
