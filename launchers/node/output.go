package node

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
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
	hide    *strings.Replacer
	holdout int // bytes that may be the beginning of a secret
	note    func(string)
	done    chan struct{}

	mu   sync.Mutex
	tail []byte

	dropped int64
	failing time.Time // of the last failure; zero: none
}

// newOutput starts copying from r, and closes it at its end.
func newOutput(r *os.File, path string, maxMiB, keep int, secrets []string, note func(string)) *output {
	return startOutput(r, &lumberjack.Logger{Filename: path, MaxSize: max(1, maxMiB), MaxBackups: keep}, secrets, note)
}

func startOutput(r *os.File, to io.WriteCloser, secrets []string, note func(string)) *output {
	o := &output{to: to, note: note, done: make(chan struct{})}
	var pairs []string
	for _, s := range byLength(secrets) {
		if len(s) >= minSecret {
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
			cut = max(0, len(buf)-o.holdout)
		case err != nil:
			cut = len(buf)
		}
		if cut > 0 {
			o.write(buf[:cut])
			buf = append(buf[:0], buf[cut:]...)
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			if o.dropped > 0 {
				o.note(fmt.Sprintf("%d bytes of its log are lost", o.dropped))
			}
			_ = o.to.Close() // every line is written
			return
		}
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
		o.dropped += int64(len(b))
		return
	}
	_, err := o.to.Write(b)
	switch {
	case err != nil:
		o.dropped += int64(len(b))
		if o.failing.IsZero() {
			o.note("its log cannot be written, and is dropped: " + err.Error())
		}
		o.failing = time.Now()
	case !o.failing.IsZero():
		o.note(fmt.Sprintf("its log is written again; %d bytes are lost", o.dropped))
		o.failing, o.dropped = time.Time{}, 0
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
	return lines[max(0, len(lines)-n):]
}
