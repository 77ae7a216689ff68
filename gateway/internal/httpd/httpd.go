// Package httpd owns how the servers of this module listen and stop: limits of
// what a client may send or hold open, and a shutdown that lets requests end.
//
// It may not know what is served.
package httpd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// Limits of a connection. Answers have no limit of their own: a judge may think
// for minutes.
const (
	headerTimeout = 10 * time.Second
	bodyTimeout   = 2 * time.Minute
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
)

// Serve answers on l until ctx ends or crash delivers an error, and closes l.
//
// When ctx ends no new connection is taken, requests under way get the grace
// time, and what is left after it is cut off; the error is then that of the
// shutdown, nil when every request had ended. When crash delivers, everything
// is cut off at once, and that error comes back. crash may be nil.
func Serve(ctx context.Context, l net.Listener, h http.Handler, grace time.Duration, crash <-chan error) error {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case err := <-crash:
		return errors.Join(err, srv.Close())
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := srv.Shutdown(late); err != nil {
		return errors.Join(err, srv.Close())
	}
	return nil
}

// Body reads a request's body whole. More than max bytes give an
// [*http.MaxBytesError]; one that does not arrive in time gives an error, too.
//
// The time is not the server's ReadTimeout, since that would also cut off a
// request that has arrived and waits for its answer.
func Body(w http.ResponseWriter, r *http.Request, max int64) ([]byte, error) {
	c := http.NewResponseController(w)
	_ = c.SetReadDeadline(time.Now().Add(bodyTimeout)) // what serves without a connection has no deadline
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	return io.ReadAll(http.MaxBytesReader(w, r.Body, max))
}
