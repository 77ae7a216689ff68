package rundir

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestTailFromTheEnd(t *testing.T) {
	long := strings.Repeat("l", 40<<10) // more than the block that is read backwards
	for _, c := range []struct {
		name, text string
		n          int
		want       []string // with the unfinished last line
	}{
		{"empty", "", 3, nil},
		{"all", "a\nb\n", -1, []string{"a", "b"}},
		{"none", "a\nb\n", 0, nil},
		{"none of an unfinished line", "a\nb", 0, nil},
		{"one", "a\nb\n", 1, []string{"b"}},
		{"as many as there are", "a\nb\n", 2, []string{"a", "b"}},
		{"more than there are", "a\nb\n", 9, []string{"a", "b"}},
		{"unfinished", "a\nb\nc", 1, []string{"c"}},
		{"unfinished, two", "a\nb\nc", 2, []string{"b", "c"}},
		{"an only line", "a", 1, []string{"a"}},
		{"empty lines", "a\n\n\n", 2, []string{"", ""}},
		{"one line feed", "\n", 1, []string{""}},
		{"CRLF", "a\r\nb\r\n", 1, []string{"b\r"}}, // byte for byte
		{"a long last line", "a\n" + long + "\n", 1, []string{long}},
		{"long lines", "a\n" + long + "\n" + long + "\nb\n", 3, []string{long, long, "b"}},
		{"a line that begins with a block", "a\n" + strings.Repeat("x", 32<<10-1) + "\n", 1, []string{strings.Repeat("x", 32<<10-1)}},
		{"a line feed that ends a block", "a\n" + strings.Repeat("x", 32<<10-2) + "\n", 2, []string{"a", strings.Repeat("x", 32<<10-2)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.log")
			write(t, path, c.text)
			tail, err := NewTail(path, c.n)
			if err != nil {
				t.Fatal(err)
			}
			defer tail.Close()
			if got, err := tail.Lines(true); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%.200q, %v, want %.200q", got, err, c.want)
			}
			if got, err := tail.Lines(true); err != nil || len(got) > 0 {
				t.Errorf("again: %q, %v", got, err)
			}
		})
	}
}

// The writer of the test is a rotating log: rename, and a new file.
func TestTailFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	add := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	rotated := 0
	rotate := func() {
		t.Helper()
		rotated++
		if err := os.Rename(path, fmt.Sprintf("%s.%d", path, rotated)); err != nil {
			t.Fatal(err)
		}
	}
	tail, err := NewTail(path, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Close()
	want := func(end bool, lines ...string) {
		t.Helper()
		got, err := tail.Lines(end)
		if err != nil || !slices.Equal(got, lines) {
			t.Errorf("%q, %v, want %q", got, err, lines)
		}
	}
	want(false) // the file comes later
	add("a\nb")
	want(false, "a")
	want(false)
	add("b\n")
	want(false, "bb")
	add("c\n")
	rotate()
	want(false, "c") // put aside, and no successor yet
	want(false)
	add("d\n")
	want(false, "d")
	add("e\n")
	rotate()
	add("f\n")
	want(false, "e", "f") // what was put aside comes first
	add("g")
	rotate()
	add("h\n")
	want(false, "gh") // a line that was cut by it is whole
	add("i")
	want(true, "i")
	add("j\n")
	want(true, "j")
}

// A log of several MiB, and a line of several, come whole.
func TestTailOfMuch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	huge := strings.Repeat("y", 5<<20)
	const n = 60_000
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%079d\n", i)
	}
	for _, c := range []struct {
		name, text string
		want       int
	}{{"many lines", b.String(), n}, {"a huge line", "a\n" + huge + "\nb\n", 3}, {"a huge line that is not finished", "a\n" + huge, 2}} {
		write(t, path, c.text)
		tail, err := NewTail(path, -1)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for { // as a reader does: until nothing comes
			lines, err := tail.Lines(true)
			if err != nil {
				t.Fatal(err)
			}
			if len(lines) == 0 {
				break
			}
			got = append(got, lines...)
		}
		if err := tail.Close(); err != nil {
			t.Error(err)
		}
		if len(got) != c.want || strings.Join(got, "\n") != strings.TrimSuffix(c.text, "\n") {
			t.Errorf("%s: %d lines, want %d", c.name, len(got), c.want)
		}
	}
}
