// Package stall ends what waits for a server that keeps a connection open and
// sends nothing.
package stall

import (
	"context"
	"io"
	"time"
)

// Watch is a context for a request. It ends, with why as its cause, when the answer,
// or more of its body, is waited for longer than quiet. The body is read through
// awaiting: only the time within its Read counts, since who reads may be slow, as a
// pager is. stop gives everything back.
func Watch(ctx context.Context, quiet time.Duration, why error) (during context.Context, awaiting func(io.Reader) io.Reader, stop func()) {
	during, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(quiet, func() { cancel(why) })
	awaiting = func(r io.Reader) io.Reader {
		timer.Stop()
		return &awaited{r, timer, quiet}
	}
	return during, awaiting, func() { timer.Stop(); cancel(nil) }
}

type awaited struct {
	r     io.Reader
	timer *time.Timer
	quiet time.Duration
}

func (a *awaited) Read(p []byte) (int, error) {
	a.timer.Reset(a.quiet)
	defer a.timer.Stop()
	return a.r.Read(p)
}
