package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// call runs genrm in this process.
func call(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &errs, []string{"NO_COLOR=1"})
	return code, out.String(), errs.String()
}

// stillOpen keeps the pipe of TestSignal from being collected and closed.
var stillOpen *os.File

// A signal ends a command that waits, here for the other end of a pipe, with
// 128 and its number.
func TestSignal(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "config.json")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip(err)
	}
	code := make(chan int)
	go func() {
		c, _, _ := call(t, "model", "facts", dir)
		code <- c
	}()
	w, err := os.OpenFile(pipe, os.O_WRONLY, 0) // returns when the command has opened it: the signals are caught by then
	if err != nil {
		t.Fatal(err)
	}
	stillOpen = w // until the process ends: closed, the command would go on beside the tests that follow
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := <-code; got != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d, want %d", got, 128+int(syscall.SIGTERM))
	}
}

func TestColour(t *testing.T) {
	tty, err := os.OpenFile("/dev/null", os.O_WRONLY, 0) // a character device, as a terminal is
	if err != nil {
		t.Skip(err)
	}
	defer tty.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cases := []struct {
		env  []string
		w    any
		want bool
	}{
		{nil, tty, true},
		{[]string{"NO_COLOR=1"}, tty, false},
		{[]string{"NO_COLOR="}, tty, true},
		{[]string{"NO_COLOR=1", "NO_COLOR="}, tty, true},
		{[]string{"TERM=dumb"}, tty, false},
		{nil, file, false},
		{nil, new(bytes.Buffer), false},
	}
	for _, c := range cases {
		a := &app{env: c.env}
		if got := a.colour(c.w.(interface{ Write([]byte) (int, error) })); got != c.want {
			t.Errorf("colour with %q on %T = %v, want %v", c.env, c.w, got, c.want)
		}
	}
}

// Every command has steps or circumstances, and worked examples, in its help.
func TestHelpIsComplete(t *testing.T) {
	var c cli
	parser, err := newParser(&app{stdout: new(bytes.Buffer), stderr: new(bytes.Buffer)}, &c)
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(true) {
		name, _, _ := strings.Cut(leaf.FullPath()[len("genrm "):], " (") // before its aliases
		if !strings.Contains(leaf.Detail, "Examples:\n\n  genrm "+firstWords(name)) &&
			!strings.Contains(leaf.Detail, "Examples:\n\n  source <(genrm "+leaf.Name) {
			t.Errorf("%s: no example of the command in its help:\n%s", leaf.FullPath(), leaf.Detail)
		}
		for _, f := range leaf.Flags {
			if f.Help == "" {
				t.Errorf("%s: --%s has no help", leaf.FullPath(), f.Name)
			}
		}
	}
}

func TestRanges(t *testing.T) {
	for want, in := range map[string][]int{"-": nil, "3": {3}, "0-3": {0, 1, 2, 3}, "0-1,4,6-7": {7, 6, 4, 1, 0}} {
		if got := ranges(in); got != want {
			t.Errorf("ranges(%v) = %q, want %q", in, got, want)
		}
	}
}
