package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"genrm.dev/genrm/launchers/rundir"
)

// sink is a log that may be full.
type sink struct {
	mu   sync.Mutex
	text bytes.Buffer
	full bool
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		n, _ := s.text.Write(b[:len(b)/2]) // as a disk that gets full
		return n, syscall.ENOSPC
	}
	return s.text.Write(b)
}

func (s *sink) Close() error { return nil }

func (s *sink) set(full bool) { s.mu.Lock(); s.full = full; s.mu.Unlock() }

func (s *sink) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.text.String() }

// copied prints pieces, with a pause between them, and returns the log.
func copied(t *testing.T, secrets []string, pause time.Duration, pieces ...string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log := &sink{}
	o := startOutput(r, log, secrets, func(note string) { t.Error(note) })
	for i, p := range pieces {
		if i > 0 {
			time.Sleep(pause)
		}
		if _, err := io.WriteString(w, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	<-o.done
	return log.String()
}

func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	const secret = "hf_0123456789abcdef"
	long := strings.Repeat("x", chunk)
	pem := "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEF\n-----END KEY-----"
	cases := []struct {
		name    string
		secrets []string
		pause   time.Duration
		pieces  []string
		want    string
	}{
		{"in a line", []string{secret}, 0, []string{"token=" + secret + ".\n"}, "token=[redacted].\n"},
		{"over two writes", []string{secret}, 50 * time.Millisecond, []string{"token=" + secret[:7], secret[7:] + "\nmore\n"}, "token=[redacted]\nmore\n"},
		{"over two writes, the first of which is shown before the second comes", []string{secret}, idleFlush + 300*time.Millisecond, []string{"the token is " + secret[:7], secret[7:] + "\n"}, "the token is [redacted]\n"},
		{"a short one is a word", []string{"abc12"}, 0, []string{"abc12 abc12\n"}, "abc12 abc12\n"},
		{"one that holds another", []string{"abcdef", "abcdefghij"}, 0, []string{"abcdefghij abcdef\n"}, "[redacted] [redacted]\n"},
		{"one of several lines", []string{pem}, 0, []string{"key: " + pem + "\n"}, "key: [redacted]\n[redacted]\n[redacted]\n[redacted]\n"},
		{"an unterminated last line", []string{secret}, 0, []string{"a\nb " + secret}, "a\nb [redacted]"},
		{"nothing to hide", nil, 0, []string{"a\nb"}, "a\nb"},
		{"empty ones", []string{"", "\n"}, 0, []string{"a\n\nb"}, "a\n\nb"},
	}
	for cut := -2; cut <= len(secret)+2; cut++ { // at and around the place where a long line is cut
		before := long[:chunk-len(secret)-cut]
		cases = append(cases, struct {
			name    string
			secrets []string
			pause   time.Duration
			pieces  []string
			want    string
		}{fmt.Sprint("in a long line, ", cut), []string{secret}, 0, []string{before + secret + long + secret + "\n"}, before + redacted + long + redacted + "\n"})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if got := copied(t, c.secrets, c.pause, c.pieces...); got != c.want {
				if len(got) > 1000 {
					t.Fatalf("hidden %d of %d, %d bytes of %d", strings.Count(got, redacted), strings.Count(c.want, redacted), len(got), len(c.want))
				}
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

// Whatever the pieces, the log is what a whole reading would give.
func TestSecretsInAnyPieces(t *testing.T) {
	t.Parallel()
	secrets := []string{"aaaaaa", "aaaaaaaaab", "babababa", "ab-ba-ab"}
	hide := strings.NewReplacer("aaaaaaaaab", redacted, "babababa", redacted, "ab-ba-ab", redacted, "aaaaaa", redacted)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		var text strings.Builder
		for text.Len() < 3*chunk {
			text.WriteByte("ab-"[random.IntN(3)])
			if random.IntN(20) == 0 {
				text.WriteString(secrets[random.IntN(len(secrets))])
			}
			if random.IntN(chunk) == 0 {
				text.WriteByte('\n')
			}
		}
		var pieces []string
		for rest := text.String(); rest != ""; {
			n := min(len(rest), 1+random.IntN(chunk))
			pieces = append(pieces, rest[:n])
			rest = rest[n:]
		}
		if got, want := copied(t, secrets, 0, pieces...), hide.Replace(text.String()); got != want {
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			t.Fatalf("differs at %d of %d: got …%q, want …%q", i, len(want), got[max(0, i-20):min(len(got), i+20)], want[max(0, i-20):min(len(want), i+20)])
		}
	}
}

// A log that cannot be written holds nobody up. What is lost is counted, in the
// log too, and lines after that are whole.
func TestLogFull(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	log := &sink{}
	notes := make(chan string, 10)
	o := startOutput(r, log, nil, func(note string) { notes <- note })
	print := func(text string) {
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	print("first\n")
	for log.String() != "first\n" {
		time.Sleep(time.Millisecond)
	}
	log.set(true)
	print("second\n")
	if note := <-notes; note != "its log cannot be written, and is dropped: "+syscall.ENOSPC.Error() {
		t.Error(note)
	}
	many := strings.Repeat("lost\n", 200000) // more than a pipe holds: somebody reads
	print(many)
	log.set(false)
	for len(notes) == 0 {
		print("later\n")
		time.Sleep(20 * time.Millisecond)
	}
	_ = w.Close()
	<-o.done
	var lost int
	// What was still in the pipe may be written, when that took as long as the log
	// rests between attempts.
	if _, err := fmt.Sscanf(<-notes, "its log is written again; %d lines are lost", &lost); err != nil || lost < 100000 {
		t.Errorf("%d lines, %v", lost, err)
	}
	// On a loaded machine the log is tried while the disk is still full, and half of
	// that attempt is there, too.
	text := log.String()
	last := strings.LastIndex(text, "\n[genrm: ")
	if !strings.HasPrefix(text, "first\nsec\n[genrm: ") || !strings.HasPrefix(text[max(0, last):], fmt.Sprintf("\n[genrm: %d lines are lost here]\nl", lost)) {
		t.Errorf("%.200q … %.200q", text, text[max(0, last):])
	}
	if got := o.last(2); len(got) != 2 || got[1] != "later" {
		t.Errorf("%q", got)
	}
}

// An end of a log that failed says so.
func TestLogFullToTheEnd(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var notes []string
	o := startOutput(r, &sink{full: true}, nil, func(note string) { notes = append(notes, note) })
	_, err = io.WriteString(w, "a\nb\nc")
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	<-o.done
	if len(notes) != 2 || notes[1] != "3 lines of its log are lost" {
		t.Errorf("%q", notes)
	}
}

func TestMessageLines(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"plain":                              "plain",
		"\x1b[31mred\x1b[0m \x1b[2Kline":     "red line",
		" 10%\r 50%\r100%":                   "100%",
		"a\x00b\x07c\td":                     "abc\td",
		"\xff\xfe":                           "\uFFFD",
		"windows\r":                          "windows",
		strings.Repeat("é", 600):             strings.Repeat("é", 500) + " …",
		"\x1b]0;title\x07 an unknown escape": "]0;title an unknown escape",
	}
	for in, want := range cases {
		if got := plainLine(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// 100 MB of log as fast as it goes: the process is not held up, and the disk
// holds no more than the log's limits say.
func TestLogFlood(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(driver(`yes "$(printf %0500d 0)" | head -c 100000000`))
	most := int64(0)
	for done := false; !done; time.Sleep(5 * time.Millisecond) {
		select {
		case <-r.done:
			done = true
		case <-time.After(0):
		}
		var sum int64
		names, _ := filepath.Glob(filepath.Join(r.run.Dir, rundir.Logs, "driver*"))
		for _, name := range names {
			if st, err := os.Stat(name); err == nil {
				sum += st.Size()
			}
		}
		most = max(most, sum)
	}
	r.ends(rundir.Succeeded, 0)
	if most > 8<<20 { // 1 MiB and two more, and those that are about to be removed
		t.Errorf("logs took %d bytes", most)
	}
	if names, _ := filepath.Glob(filepath.Join(r.run.Dir, rundir.Logs, "driver*")); len(names) < 2 {
		t.Errorf("%v", names)
	}
}

// A line without an end is shown before the next one comes.
func TestPrintsWithoutEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start(service("svc", `printf 'no end'; sleep "$LONG"`), driver("sleep 1.5; exit 4"))
	r.until("the unfinished line is shown", func() bool {
		text, _ := os.ReadFile(r.run.LogPath("svc"))
		return string(text) == "no end"
	})
	r.ends(rundir.Failed, 4)
}
