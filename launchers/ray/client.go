package ray

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"genrm.dev/genrm/compiler/tree"
)

// Unreachable is the error for a dashboard that does not answer, or not as Ray's
// does.
type Unreachable struct{ err error }

func (e *Unreachable) Error() string { return e.err.Error() }
func (e *Unreachable) Unwrap() error { return e.err }

// Denied is the error for a dashboard that wants a token, or another one.
type Denied struct {
	Status int // 401: none was sent; 403: a wrong one
	URL    string
}

func (e *Denied) Error() string {
	if e.Status == http.StatusForbidden {
		return "the Ray dashboard at " + e.URL + " refuses the token (403): " + tokenRemedy
	}
	return "the Ray dashboard at " + e.URL + " wants a token (401): " + tokenRemedy
}

const tokenRemedy = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds it, or ray.headers"

// answered is an HTTP status that says the request failed.
type answered struct {
	status int
	text   string // the last line of what Ray said
}

func (e *answered) Error() string { return fmt.Sprintf("Ray answers %d: %s", e.status, e.text) }

// Address says which dashboard is meant: flag, else the experiment's, else
// RAY_API_SERVER_ADDRESS, else RAY_ADDRESS where that is one of http or https
// (mostly it is that of a cluster's control store, which is another port).
func Address(flag string, block *tree.Value, getenv func(string) string) (string, error) {
	from, address := "--address", flag
	if address == "" {
		from = "ray.address"
		address, _ = block.Field("address").AsString()
	}
	passed := "" // a variable that has another kind of address
	for _, name := range []string{"RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"} {
		v := getenv(name)
		switch {
		case address != "" || v == "":
		case strings.HasPrefix(v, "http://"), strings.HasPrefix(v, "https://"):
			from, address = name, v
		case passed == "":
			passed = name
		}
	}
	if address == "" {
		what := "no address of a Ray dashboard"
		if passed != "" {
			what += " (" + passed + " is set, but does not begin with http:// or https://)"
		}
		return "", errors.New(what + ": give --address http://HOST:8265, ray.address in the file, or RAY_ADDRESS=http://HOST:8265")
	}
	u, err := url.Parse(address)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s is no URL of a dashboard, such as http://host:8265", from)
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", fmt.Errorf("%s=%s is no URL of a dashboard: want http:// or https://, such as http://host:8265", from, address)
	case u.Port() != "" && !isPort(u.Port()):
		return "", fmt.Errorf("%s=%s has no port between 1 and 65535", from, u.Redacted())
	case u.User != nil:
		return "", fmt.Errorf("%s holds a user or password, which would be kept with the run: send it as ray.headers: Authorization: {env: \"NAME\"}", from)
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", fmt.Errorf("%s=%s has a query or fragment, which an address of a dashboard has not", from, address)
	}
	return strings.TrimRight(address, "/"), nil
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// What a header may be. Source: RFC 9110, 5.1 and 5.5.
var (
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")
	headerValue = regexp.MustCompile(`^[^\x00-\x08\x0a-\x1f\x7f]*$`)
)

// headers are those of every request: ray.headers, and the token of the
// caller's environment unless the block has an Authorization. Its errors name
// references, never values.
func headers(block *tree.Value, getenv func(string) string) (http.Header, error) {
	h := http.Header{}
	if fields := block.Field("headers"); fields.OK() {
		for _, f := range fields.Fields {
			v := f.Value.Text
			if env, ok := f.Value.Field("env").AsString(); ok {
				if v = getenv(env); v == "" {
					return nil, &unset{f.Name, fmt.Sprintf("the variable %s holds a secret and is not set", env)}
				}
			} else if file, ok := f.Value.Field("file").AsString(); ok {
				data, err := os.ReadFile(file)
				if err != nil {
					return nil, &unset{f.Name, "the file of a secret cannot be read: " + err.Error()}
				}
				v = strings.TrimRight(string(data), "\r\n")
			}
			switch {
			case !headerName.MatchString(f.Name):
				return nil, fmt.Errorf("ray.headers: %q is no name of an HTTP header: want letters, digits and dashes", f.Name)
			case !headerValue.MatchString(v):
				return nil, fmt.Errorf("ray.headers: the value of %s holds a line break or another control character, which an HTTP header cannot", f.Name)
			}
			h.Set(f.Name, v)
		}
	}
	if h.Get("Authorization") != "" {
		return h, nil
	}
	from, token := "RAY_AUTH_TOKEN", getenv("RAY_AUTH_TOKEN")
	if path := getenv("RAY_AUTH_TOKEN_PATH"); token == "" && path != "" {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("RAY_AUTH_TOKEN_PATH: %w", err)
		}
		from, token = "the file of RAY_AUTH_TOKEN_PATH", strings.TrimSpace(string(data))
	}
	if !headerValue.MatchString(token) {
		return nil, fmt.Errorf("%s holds a line break or another control character within the token", from)
	}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
	return h, nil
}

// unset is a header whose secret is not there.
type unset struct{ header, what string }

func (e *unset) Error() string { return e.what }

// limits of one request. A dashboard that hangs keeps its port open.
const (
	answerTimeout = 15 * time.Second
	answerMost    = 64 << 20
)

type client struct {
	base    string
	headers http.Header
	http    *http.Client
	timeout time.Duration // of one request; answerTimeout unless a test says otherwise
}

func newClient(base string, h http.Header, version string) *client {
	h = h.Clone()
	h.Set("User-Agent", "genrm/"+version) // one that begins with Mozilla is refused as a browser
	t := &http.Transport{
		Proxy:               proxy,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
	}
	return &client{base: base, headers: h, timeout: answerTimeout, http: &http.Client{
		Transport: t,
		CheckRedirect: func(req *http.Request, _ []*http.Request) error {
			return fmt.Errorf("it redirects to %s://%s%s: give the address of the dashboard itself", req.URL.Scheme, req.URL.Host, req.URL.Path)
		},
	}}
}

// proxy is that of the environment, but none for this machine and for what looks
// like a cluster's inside: proxies there answer with pages of their own.
func proxy(req *http.Request) (*url.URL, error) {
	host := req.URL.Hostname()
	if inside(host) {
		return nil, nil
	}
	return http.ProxyFromEnvironment(req)
}

func inside(host string) bool {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast()
	}
	if !strings.Contains(host, ".") {
		return true
	}
	for _, end := range []string{".svc", ".local", ".internal"} {
		if strings.HasSuffix(host, end) {
			return true
		}
	}
	return false
}

var title = regexp.MustCompile(`(?is)<title[^>]*>\s*([^<]{1,120}?)\s*</title>`)

// do sends a request and decodes the answer into out, unless that is nil. Errors
// are [*Unreachable], [*Denied] or [*answered]; the last says that Ray read it.
func (c *client) do(ctx context.Context, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var in io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, in)
	if err != nil {
		return err
	}
	req.Header = c.headers.Clone()
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.gone(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerMost))
	if err != nil {
		return c.gone(ctx, err)
	}
	return c.judge(resp, data, out)
}

// gone puts a failure of the connection in words, without the method and URL
// that net/http repeats.
func (c *client) gone(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("the Ray dashboard at %s did not answer within %s", c.base, c.timeout)
	case errors.Is(ctx.Err(), context.Canceled) && errors.Is(err, context.Canceled):
		err = fmt.Errorf("interrupted while the Ray dashboard at %s was asked", c.base)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("the Ray dashboard at %s closed the connection without an answer", c.base)
	default:
		err = fmt.Errorf("the Ray dashboard at %s cannot be asked: %w", c.base, inWords(err))
	}
	return &Unreachable{err}
}

// inWords says of what a server of another kind does, and of a certificate, what
// to do about it.
func inWords(err error) error {
	var plain tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	switch {
	case errors.As(err, &plain), errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("it does not speak TLS: try http://")
	case errors.As(err, &cert):
		return fmt.Errorf("its certificate is not trusted here: %s; SSL_CERT_FILE names a file of certificates to trust, and the address has to be a name that the certificate is for",
			strings.TrimPrefix(cert.Err.Error(), "x509: "))
	case strings.Contains(err.Error(), "malformed HTTP response"):
		return errors.New("it does not speak HTTP, or wants https://")
	}
	return err
}

// form says what is wrong with JSON, without the Go types that encoding/json names.
func form(err error) string {
	var other *json.UnmarshalTypeError
	if errors.As(err, &other) {
		if other.Field != "" {
			return fmt.Sprintf("%s of its answer is another kind of JSON (%s)", other.Field, other.Value)
		}
		return fmt.Sprintf("its answer is another kind of JSON (%s)", other.Value)
	}
	return "its answer is no JSON"
}

func (c *client) judge(resp *http.Response, data []byte, out any) error {
	text := strings.TrimSpace(string(data))
	switch {
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return &Denied{resp.StatusCode, c.base}
	case strings.HasPrefix(text, "<"), strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html"):
		what := "a web page"
		if m := title.FindStringSubmatch(text); m != nil {
			what = fmt.Sprintf("the web page %q", m[1])
		}
		return &Unreachable{fmt.Errorf("%s answers %d with %s, not as Ray's API does: is it the dashboard's address, with its path prefix?", c.base, resp.StatusCode, what)}
	case away(resp.StatusCode):
		return &Unreachable{fmt.Errorf("the Ray dashboard at %s is not there (%s)", c.base, resp.Status)}
	case resp.StatusCode >= 300:
		return &answered{resp.StatusCode, lastLine(text)}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &Unreachable{fmt.Errorf("%s does not answer as Ray's API does: %s", c.base, form(err))}
	}
	return nil
}

// away reports whether a proxy answers with the status while what is behind it is
// not there.
func away(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// noStream is the error for a log that cannot be had as a stream: a proxy before
// the dashboard passes no websocket.
type noStream struct{ status int }

func (e *noStream) Error() string { return fmt.Sprintf("the log is no stream here (%d)", e.status) }

// tail opens the stream of a job's log, which begins with its first byte.
func (c *client) tail(ctx context.Context, id string) (*websocket.Conn, error) {
	dial, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, resp, err := websocket.Dial(dial, c.base+"/api/jobs/"+id+"/logs/tail", &websocket.DialOptions{HTTPClient: c.http, HTTPHeader: c.headers})
	if err != nil {
		if resp != nil && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden) {
			return nil, &Denied{resp.StatusCode, c.base}
		}
		if resp != nil && resp.StatusCode != http.StatusSwitchingProtocols && !away(resp.StatusCode) {
			return nil, &noStream{resp.StatusCode}
		}
		return nil, c.gone(dial, err)
	}
	conn.SetReadLimit(answerMost)
	return conn, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
