package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Config is gateway.json, which a serve plan carries: where to listen, and the
// judges in the user's order. Secrets in it are references.
type Config struct {
	Host          string  `json:"host"`
	Port          Port    `json:"port"`
	FailurePolicy string  `json:"failure_policy"` // passed on to clients with a judge's failure; the gateway does not act on it
	APIKey        *Secret `json:"api_key,omitempty"`
	Routes        []Route `json:"routes"`
}

// Route is one judge.
type Route struct {
	RouteKey string `json:"route_key"`
	Engine   string `json:"engine"` // vllm, sglang, openai or sim
	Model    string `json:"model"`  // the name by which the engine serves it
	Replicas int    `json:"replicas"`

	// Of openai only; the addresses of other engines come with [Options].
	BaseURL           string          `json:"base_url,omitempty"`
	APIKey            *Secret         `json:"api_key,omitempty"`
	DefaultHeaders    map[string]Text `json:"default_headers,omitempty"`
	SessionKeyHeaders []string        `json:"session_key_headers,omitempty"`

	SamplingConfig map[string]json.RawMessage `json:"sampling_config"` // defaults under a request's own
}

// Port is the port to listen on: 0 when the user left it open, which the file
// says as "{port:gateway}".
type Port int

// OpenPort is the text for a port that was left open.
const OpenPort = "{port:gateway}"

// UnmarshalJSON reads a number or [OpenPort].
func (p *Port) UnmarshalJSON(data []byte) error {
	if string(data) == strconv.Quote(OpenPort) {
		*p = 0
		return nil
	}
	var n int
	if err := json.Unmarshal(data, &n); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("port %s: want a number from 1 to 65535, or %q", data, OpenPort)
	}
	*p = Port(n)
	return nil
}

// Secret refers to a secret by the variable or the file that holds it. Exactly
// one of the two is set.
type Secret struct {
	Env  string `json:"env,omitempty"`
	File string `json:"file,omitempty"`
}

// resolve reads the secret. Its errors name the reference, never the content.
func (s *Secret) resolve(getenv func(string) string) (string, error) {
	switch {
	case (s.Env == "") == (s.File == ""):
		return "", errors.New(`want {"env": NAME} or {"file": PATH}`)
	case s.Env != "":
		if v := getenv(s.Env); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("%s holds a secret and is not set", s.Env)
	}
	data, err := os.ReadFile(s.File)
	if err != nil {
		return "", err
	}
	if text := strings.TrimRight(string(data), "\r\n"); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("%s holds a secret and is empty", s.File)
}

// Text is plain text, or a secret by reference.
type Text struct {
	Plain  string
	Secret *Secret
}

// UnmarshalJSON reads a string or a reference.
func (t *Text) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		t.Secret = new(Secret)
		return strict(data, t.Secret)
	}
	return json.Unmarshal(data, &t.Plain)
}

func (t Text) resolve(getenv func(string) string) (string, error) {
	if t.Secret != nil {
		return t.Secret.resolve(getenv)
	}
	return t.Plain, nil
}

// strict decodes one JSON document and refuses unknown fields and what follows.
func strict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("text after the end of the document")
	}
	return nil
}

var (
	engineNames     = []string{"vllm", "sglang", "openai", "sim"}
	failurePolicies = []string{"error", "retry", "mask", "abort"}
)

// ParseConfig reads gateway.json. It refuses fields that it does not know,
// since what they ask for would silently not happen.
func ParseConfig(data []byte) (*Config, error) {
	c := new(Config)
	if err := strict(data, c); err != nil {
		return nil, err
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Host == "" {
		bad("no host")
	}
	if !slices.Contains(failurePolicies, c.FailurePolicy) {
		bad("failure_policy %q: want one of %s", c.FailurePolicy, strings.Join(failurePolicies, ", "))
	}
	if len(c.Routes) == 0 {
		bad("no routes")
	}
	seen := map[string]bool{}
	for _, r := range c.Routes {
		switch {
		case r.RouteKey == "":
			bad("a route without route_key")
		case seen[r.RouteKey]:
			bad("two routes for %q", r.RouteKey)
		case !slices.Contains(engineNames, r.Engine):
			bad("%s: engine %q: want one of %s", r.RouteKey, r.Engine, strings.Join(engineNames, ", "))
		case r.Model == "":
			bad("%s: no model", r.RouteKey)
		case r.Replicas < 1:
			bad("%s: replicas is %d", r.RouteKey, r.Replicas)
		case (r.Engine == "openai") != (r.BaseURL != ""):
			bad("%s: base_url belongs to engine openai, which needs it", r.RouteKey)
		}
		seen[r.RouteKey] = true
	}
	return c, errors.Join(errs...)
}

// UpstreamsVariable is the environment variable that holds the addresses of the
// judges, in the form that [ParseUpstreams] reads.
const UpstreamsVariable = "GENRM_UPSTREAMS"

// ParseUpstreams reads addresses of judges: KEY=http://HOST:PORT or
// KEY=HOST:PORT, separated by commas or blanks; a key comes once for each of
// its replicas.
func ParseUpstreams(text string) (map[string][]string, error) {
	out := map[string][]string{}
	var errs []error
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' || r == '\r' }) {
		key, address, ok := strings.Cut(word, "=")
		if !strings.Contains(address, "://") {
			address = "http://" + address
		}
		u, err := url.Parse(address)
		if !ok || key == "" || err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
			errs = append(errs, fmt.Errorf("upstream %q: want KEY=http://HOST:PORT", key))
			continue
		}
		out[key] = append(out[key], strings.TrimRight(address, "/"))
	}
	return out, errors.Join(errs...)
}

// Loopback reports whether only this machine reaches a host.
func Loopback(host string) bool {
	host = strings.Trim(host, "[]")
	ip := net.ParseIP(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip != nil && ip.IsLoopback()
}
