package main

import (
	"bytes"
	"errors"
	"testing"
)

// TestNamed: lines stand behind the names of their logs, unless there is one alone.
func TestNamed(t *testing.T) {
	for only, want := range map[bool]string{false: "pod   | one\nother | two\n", true: "one\ntwo\n"} {
		var out, notes bytes.Buffer
		n := &named{only: only, out: &out, notes: &notes}
		n.names([]string{"pod", "other"})
		if err := errors.Join(n.line("pod", "one"), n.line("other", "two")); err != nil || out.String() != want {
			t.Errorf("%q, %v, want %q", out.String(), err, want)
		}
		n.note("pod", errors.New("no"))
		if want := "genrm: note: the log of pod cannot be read, and is tried again: no\n"; notes.String() != want {
			t.Errorf("%q, want %q", notes.String(), want)
		}
	}
}
