package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"
)

const (
	chunk        = 64 << 10        // largest line that stays in one piece
	idleFlush    = time.Second     // after which an unfinished line is written, too
	minSecret    = 6               // shorter secrets are not hidden: they are part of ordinary words
	tailBytes    = 8 << 10         // kept for messages
	redacted     = "[redacted]"    // stands for a secret
	logRetry     = 2 * time.Second // between attempts at a log that cannot be written
	messageLines = 8               // last lines shown with a failure
)

// output copies what a process prints to its log: whole lines, secrets hidden.
// It reads on whatever happens to the log, so that the process never waits for
// it: what cannot be written is counted and dropped.
type output struct {
	to      io.WriteCloser
	secrets []string // the longest first
	hide    *strings.Replacer
	holdout int // bytes that may be the beginning of a secret
	note    func(string)
	done    chan struct{}

	mu   sync.Mutex
	tail []byte

	dropped int64     // lines since the log failed
	failing time.Time // of the last failure; zero: none
}

// newOutput starts copying from r, and closes it at its end.
func newOutput(r *os.File, path string, maxMiB, keep int, secrets []string, note func(string)) *output {
	return startOutput(r, &logFile{lumberjack.Logger{Filename: path, MaxSize: max(1, maxMiB), MaxBackups: keep}}, secrets, note)
}

// logFile is a rotated log that never makes its folder: that of a run that was
// removed does not come back with the next line of a judge.
type logFile struct{ lumberjack.Logger }

func (f *logFile) Write(b []byte) (int, error) {
	if _, err := os.Stat(filepath.Dir(f.Filename)); err != nil {
		return 0, err
	}
	return f.Logger.Write(b)
}

func startOutput(r *os.File, to io.WriteCloser, secrets []string, note func(string)) *output {
	o := &output{to: to, note: note, done: make(chan struct{})}
	// Output is written by lines: of a secret of several, each is hidden.
	var lines []string
	for _, s := range secrets {
		lines = append(lines, strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' })...)
	}
	var pairs []string
	for _, s := range byLength(lines) {
		if len(s) >= minSecret {
			o.secrets = append(o.secrets, s)
			pairs = append(pairs, s, redacted)
			o.holdout = max(o.holdout, len(s)-1)
		}
	}
	if len(pairs) > 0 {
		o.hide = strings.NewReplacer(pairs...)
	}
	go o.copy(r)
	return o
}

// byLength puts long secrets first: one that contains another is hidden whole.
func byLength(in []string) []string {
	out := slices.Clone(in)
	slices.SortStableFunc(out, func(a, b string) int { return len(b) - len(a) })
	return out
}

func (o *output) copy(r *os.File) {
	defer close(o.done)
	defer func() { _ = r.Close() }() // only read
	buf := make([]byte, 0, 2*chunk+o.holdout)
	for {
		if len(buf) > 0 {
			_ = r.SetReadDeadline(time.Now().Add(idleFlush))
		} else {
			_ = r.SetReadDeadline(time.Time{})
		}
		n, err := r.Read(buf[len(buf):min(cap(buf), len(buf)+chunk)])
		buf = buf[:len(buf)+n]
		cut := bytes.LastIndexByte(buf, '\n') + 1
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), cut == 0 && len(buf) >= chunk:
			cut = o.within(buf)
		case err != nil:
			cut = len(buf)
		}
		if cut > 0 {
			o.write(buf[:cut])
			buf = append(buf[:0], buf[cut:]...)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			if o.dropped > 0 {
				o.note(fmt.Sprintf("%d lines of its log are lost", o.dropped))
			}
			_ = o.to.Close() // every line is written
			return
		}
	}
}

// within finds where a line that goes on may be cut: no secret lies
// across it, and what may be the beginning of one stays.
func (o *output) within(buf []byte) int {
	cut := max(0, len(buf)-o.holdout)
	for at := 0; ; {
		first, length := -1, 0
		for _, s := range o.secrets {
			if i := bytes.Index(buf[at:], []byte(s)); i >= 0 && (first < 0 || i < first) {
				first, length = i, len(s)
			}
		}
		if first < 0 || at+first >= cut {
			return max(cut, at)
		}
		at += first + length
	}
}

func (o *output) write(b []byte) {
	if o.hide != nil {
		b = []byte(o.hide.Replace(string(b)))
	}
	o.mu.Lock()
	o.tail = append(o.tail, b...)
	if n := len(o.tail) - tailBytes; n > 0 {
		o.tail = append(o.tail[:0], o.tail[n:]...)
	}
	o.mu.Unlock()
	if !o.failing.IsZero() && time.Since(o.failing) < logRetry {
		o.drop(b)
		return
	}
	if !o.failing.IsZero() {
		// Behind the half line that was still written when it failed.
		b = append(fmt.Appendf(nil, "\n[genrm: %d lines are lost here]\n", o.dropped), b...)
	}
	_, err := o.to.Write(b)
	switch {
	case err != nil:
		if o.failing.IsZero() {
			o.note("its log cannot be written, and is dropped: " + err.Error())
			o.drop(b)
		} else {
			o.drop(b[bytes.IndexByte(b[1:], '\n')+2:]) // not the remark
		}
		o.failing = time.Now()
	case !o.failing.IsZero():
		o.note(fmt.Sprintf("its log is written again; %d lines are lost", o.dropped))
		o.failing, o.dropped = time.Time{}, 0
	}
}

// drop counts what is lost, the piece of a line as one.
func (o *output) drop(b []byte) {
	o.dropped += int64(bytes.Count(b, []byte{'\n'}))
	if len(b) > 0 && b[len(b)-1] != '\n' {
		o.dropped++
	}
}

// last returns the last lines that the process printed.
func (o *output) last(n int) []string {
	o.mu.Lock()
	text := strings.TrimRight(string(o.tail), "\n")
	o.mu.Unlock()
	if text == "" {
		return nil
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-n):]
	for i, l := range lines {
		lines[i] = plainLine(l)
	}
	return lines
}

var colours = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]`)

// plainLine is a line as a message shows it: what a progress bar shows last,
// without colours and what else moves a cursor, and not too long.
func plainLine(s string) string {
	s = strings.TrimRight(s, "\r")
	s = s[strings.LastIndexByte(s, '\r')+1:]
	s = strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, colours.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), ""))
	const most = 500
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + " …"
	}
	return s
}
