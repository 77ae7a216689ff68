package kuberay

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"
)

// Front listens on this machine and passes requests on to the application of a
// serve run, by the API server's proxy for services: the judges can be asked from
// wherever the API server can. It returns the address, without /v1, and ends with
// ctx. A part of the path is nobody else's knowledge, so that other users of this
// machine do not ask with the caller's credentials.
func (s *Session) Front(ctx context.Context) (string, error) {
	e, err := s.Endpoints(ctx)
	if err != nil {
		return "", err
	}
	if len(e.Instances) == 0 {
		return "", fmt.Errorf("%s has no judges", s.object)
	}
	app := strings.TrimPrefix(e.Instances[0].Value.URL, s.object.URL())
	service, port := s.object.ServeService()
	base, transport, err := s.ServiceProxy(service, port)
	if err != nil {
		return "", err
	}
	to, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	secret := "/" + rand.Text()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	proxy := &httputil.ReverseProxy{Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Path = strings.TrimPrefix(r.In.URL.Path, secret)
		r.Out.URL.RawPath = ""
		r.SetURL(to)
		r.Out.Header.Del("Authorization") // the API server's is set by the transport
	}}
	server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.URL.Path, secret+"/") {
			http.NotFound(w, req)
			return
		}
		proxy.ServeHTTP(w, req)
	})}
	go func() { _ = server.Serve(l) }() // its error is that it was closed
	context.AfterFunc(ctx, func() { _ = server.Close() })
	return "http://" + l.Addr().String() + secret + app, nil
}
