package kuberay

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Changes says when the run should be looked at again: when its object or one of
// its pods has changed, as watches tell. A watch that breaks is made again, and
// nothing is known from it but that something happened: whoever looks reads the
// whole state, so that no change is lost. Look from time to time without it, too.
func (s *Session) Changes(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	go s.wake(ctx, s.c.in("/apis/ray.io/v1", plural[s.object.Kind]), "metadata.name="+s.object.Name, "", out)
	if s.object.Kind == "RayJob" {
		go s.wake(ctx, s.c.in("/api/v1", "pods"), "", "ray.io/is-ray-node=yes", out)
	}
	return out
}

// watchFor is how long one watch lasts: proxies end silent connections later.
const watchFor = "240"

func (s *Session) wake(ctx context.Context, path, fields, labels string, out chan<- struct{}) {
	wait := time.Second
	for ctx.Err() == nil {
		q := url.Values{"watch": {"1"}, "timeoutSeconds": {watchFor}}
		if fields != "" {
			q.Set("fieldSelector", fields)
		}
		if labels != "" {
			q.Set("labelSelector", labels)
		}
		accept := "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
		resp, err := s.c.send(ctx, request{method: http.MethodGet, path: path, query: q, accept: accept})
		if err == nil {
			if stirs(resp.Body, out) {
				wait = time.Second
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, 15*time.Second)
	}
}

// stirs passes on that something came, until the stream ends.
func stirs(body io.ReadCloser, out chan<- struct{}) (any bool) {
	defer func() { _ = body.Close() }() // only read
	buf := make([]byte, 32<<10)
	for {
		n, err := body.Read(buf)
		if n > 0 {
			any = true
			select {
			case out <- struct{}{}:
			default:
			}
		}
		if err != nil {
			return any
		}
	}
}
