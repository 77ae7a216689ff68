package kuberay

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/bind"
)

// Unreachable is the error for an API server that does not answer, or not as
// Kubernetes does.
type Unreachable struct{ err error }

func (e *Unreachable) Error() string { return e.err.Error() }
func (e *Unreachable) Unwrap() error { return e.err }

// Denied is the error for an API server that does not know who asks (401).
type Denied struct{ Server string }

func (e *Denied) Error() string {
	return "the API server " + e.Server + " refuses the credentials (401): " + deniedRemedy
}

const deniedRemedy = "log in again, or choose another context by --context"

// Where says which cluster is meant. The zero Where is what kubectl takes.
type Where struct {
	Kubeconfig string // file; "": KUBECONFIG, else ~/.kube/config, else the pod's own service account
	Context    string // ""  the current one of the file
	Namespace  string // "": that of the experiment, else the context's
}

// conn is a connection to one namespace of a cluster.
//
// It speaks plain REST: each answer is read whole, with a bound on its time and
// size, so that a server that hangs is told from one that is busy. Errors are
// [*Unreachable], [*Denied], or [*apierrors.StatusError]: the last says that
// Kubernetes read the request and refused it.
type conn struct {
	base       string // URL of the API server
	context    string // "" within a pod
	kubeconfig string // the file that was asked for, if any
	namespace  string
	http       *http.Client
	config     *rest.Config
	answered   atomic.Bool   // once
	timeout    time.Duration // of one request; answerTimeout unless a test says otherwise
}

// connect reads the kubeconfig as kubectl does; it asks nothing yet.
func connect(w Where, block *tree.Value, env []string, version string) (*conn, error) {
	getenv := bind.Getenv(env)
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: w.Kubeconfig}
	if list := getenv(clientcmd.RecommendedConfigPathEnvVar); list != "" {
		rules.Precedence = filepath.SplitList(list)
	} else if home := getenv("HOME"); home != "" {
		rules.Precedence = []string{filepath.Join(home, clientcmd.RecommendedHomeDir, clientcmd.RecommendedFileName)}
	}
	if w.Context == "" {
		w.Context, _ = block.Field("context").AsString()
	}
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: w.Context})
	c := &conn{timeout: answerTimeout, context: w.Context, kubeconfig: w.Kubeconfig}
	raw, err := loader.RawConfig()
	if err != nil {
		return nil, unreadable(err)
	}
	if c.context == "" {
		c.context = raw.CurrentContext
	}
	if _, ok := raw.Contexts[c.context]; c.context != "" && !ok {
		return nil, fmt.Errorf("the kubeconfig has no context %q: it has %s", c.context, strings.Join(slices.Sorted(maps.Keys(raw.Contexts)), ", "))
	}
	if c.config, err = loader.ClientConfig(); err != nil {
		if clientcmd.IsEmptyConfig(err) {
			return nil, errors.New("no cluster is known: there is no kubeconfig with a current context (give --kubeconfig FILE, KUBECONFIG or --context), and this is no pod")
		}
		return nil, fmt.Errorf("the kubeconfig: %w", err)
	}
	if c.kubeconfig == "" && getenv(clientcmd.RecommendedConfigPathEnvVar) != "" && len(rules.Precedence) == 1 {
		c.kubeconfig = rules.Precedence[0]
	}
	if c.kubeconfig != "" {
		if c.kubeconfig, err = filepath.Abs(c.kubeconfig); err != nil {
			return nil, err
		}
	}
	switch own, _ := block.Field("namespace").AsString(); {
	case w.Namespace != "":
		c.namespace = w.Namespace
	case own != "":
		c.namespace = own
	default:
		if c.namespace, _, err = loader.Namespace(); err != nil {
			return nil, fmt.Errorf("the kubeconfig: %w", err)
		}
	}
	if err := CheckNamespace(c.namespace); err != nil {
		return nil, err
	}
	c.config.UserAgent = "genrm/" + version
	c.config.Proxy = proxyOf(c.config.Proxy)
	if c.http, err = rest.HTTPClientFor(c.config); err != nil {
		return nil, fmt.Errorf("the kubeconfig: %w", err)
	}
	c.http.CheckRedirect = func(req *http.Request, _ []*http.Request) error {
		return fmt.Errorf("it redirects to %s://%s%s: is it the API server?", req.URL.Scheme, req.URL.Host, req.URL.Path)
	}
	u, _, err := rest.DefaultServerUrlFor(c.config)
	if err != nil {
		return nil, fmt.Errorf("the kubeconfig: %w", err)
	}
	if u.User != nil {
		return nil, errors.New("the kubeconfig: the server's address holds a user or password, which would be kept with the run: use users in the kubeconfig")
	}
	c.base = strings.TrimRight(u.String(), "/")
	return c, nil
}

// CheckNamespace is the error of a text that no namespace can be called.
func CheckNamespace(name string) error {
	if len(validation.IsDNS1123Label(name)) == 0 {
		return nil
	}
	return fmt.Errorf("%q is no name of a namespace: it has at most 63 small letters, digits and dashes, and no dash at its ends", short(name))
}

// unreadable is the error of a kubeconfig that cannot be read, without the Go
// types into which it does not fit.
func unreadable(err error) error {
	text := oneLine(err.Error())
	if m := misfit.FindStringSubmatch(text); m != nil {
		text = strings.Replace(text, m[0], strings.TrimSpace(m[2]+" is a "+m[1])+", which a kubeconfig does not have there", 1)
	}
	return fmt.Errorf("the kubeconfig cannot be read: %s", text)
}

// misfit is what encoding/json says of a value of another type.
var misfit = regexp.MustCompile(`json: cannot unmarshal (\w+) into Go (?:struct field \w+\.([\w.]+)|value) of type \S+`)

// proxyOf keeps a proxy that the kubeconfig states, else takes that of the
// environment, but none for this machine: proxies answer with pages of their own.
func proxyOf(stated func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	if stated != nil {
		return stated
	}
	return func(req *http.Request) (*url.URL, error) {
		if ip := net.ParseIP(req.URL.Hostname()); req.URL.Hostname() == "localhost" || ip != nil && ip.IsLoopback() {
			return nil, nil
		}
		return http.ProxyFromEnvironment(req)
	}
}

// limits of one request.
const (
	answerTimeout = 15 * time.Second
	answerMost    = 64 << 20
	// loginFactor times answerTimeout are two minutes.
	loginFactor = 8
)

const (
	asJSON = "application/json"
	// asApply is server-side apply. Its media type says YAML, of which JSON is a part.
	asApply = "application/apply-patch+yaml"
	// asMetadata asks for names and labels alone: of a secret, nothing else may be read.
	asMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	asList     = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// request is one request to the API server.
type request struct {
	method string
	path   string
	query  url.Values
	accept string // asJSON if empty
	kind   string // of the body; asJSON if empty
	body   any
	warn   func(string) // is given each warning of the server
	made   *bool        // is told whether it made the object (201)
}

// get reads the object at a path.
func (c *conn) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, request{method: http.MethodGet, path: path}, out)
}

// do sends a request and decodes the answer into out, unless that is nil.
func (c *conn) do(ctx context.Context, r request, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.patience())
	defer cancel()
	resp, err := c.send(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerMost))
	if err != nil {
		return c.gone(ctx, err)
	}
	for _, w := range resp.Header.Values("Warning") {
		if text := warning(w); text != "" && r.warn != nil {
			r.warn(text)
		}
	}
	if r.made != nil {
		*r.made = resp.StatusCode == http.StatusCreated
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return &Unreachable{fmt.Errorf("%s does not answer as Kubernetes does: %w", c.base, err)}
	}
	return nil
}

// patience is how long an answer may take: the first one longer, where a person
// may have to log in before.
func (c *conn) patience() time.Duration {
	if c.exec() != nil && !c.answered.Load() {
		return loginFactor * c.timeout
	}
	return c.timeout
}

// send sends a request. Its answer is one of success.
func (c *conn) send(ctx context.Context, r request) (*http.Response, error) {
	var in io.Reader
	if r.body != nil {
		data, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(escaped(data))
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, in)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", orElse(r.accept, asJSON))
	if r.body != nil {
		req.Header.Set("Content-Type", orElse(r.kind, asJSON))
	}
	resp, err := c.round(ctx, req)
	if err != nil {
		return nil, c.gone(ctx, err)
	}
	c.answered.Store(true)
	if resp.StatusCode < 300 && !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/html") {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, c.gone(ctx, err)
	}
	return nil, c.refused(resp, data)
}

// round makes the request. A credential plugin of the kubeconfig, which is run
// when it is first needed, knows nothing of the context's end: it is left behind.
func (c *conn) round(ctx context.Context, req *http.Request) (*http.Response, error) {
	if c.exec() == nil {
		return c.http.Do(req)
	}
	type answer struct {
		resp *http.Response
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		resp, err := c.http.Do(req)
		got <- answer{resp, err}
	}()
	select {
	case a := <-got:
		return a.resp, a.err
	case <-ctx.Done():
		go func() {
			if a := <-got; a.err == nil {
				_ = a.resp.Body.Close() // nobody reads it any more
			}
		}()
		return nil, ctx.Err()
	}
}

// exec is the credential plugin of the kubeconfig, nil if there is none.
func (c *conn) exec() *clientcmdapi.ExecConfig {
	if c.config == nil {
		return nil
	}
	return c.config.ExecProvider
}

// plugin is the error of a credential plugin in words, nil if err is another one.
func (c *conn) plugin(err error) error {
	_, text, ok := strings.Cut(oneLine(err.Error()), "getting credentials: ")
	if !ok || c.exec() == nil {
		return nil
	}
	name := c.exec().Command
	switch {
	case strings.Contains(text, " not found"):
		text = "is not in PATH"
		if hint := oneLine(c.exec().InstallHint); hint != "" {
			text += ": " + hint
		}
	case strings.Contains(text, "decoding stdout"):
		text = "printed no ExecCredential of the version that the kubeconfig states (" + c.exec().APIVersion + ")"
	default:
		if at := strings.LastIndex(text, "failed with exit code"); at >= 0 {
			text = text[at:]
		} else {
			text = "failed: " + text
		}
		text += "; what it printed stands above"
	}
	return fmt.Errorf("the credential plugin %s of the kubeconfig %s", name, text)
}

// refused is the error of an answer that is none of success.
func (c *conn) refused(resp *http.Response, data []byte) error {
	var st metav1.Status
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return &Denied{c.base}
	case kind == asJSON && json.Unmarshal(data, &st) == nil && st.Kind == "Status" && st.Code > 0:
		return &apierrors.StatusError{ErrStatus: st}
	case resp.StatusCode == http.StatusForbidden, resp.StatusCode == http.StatusNotFound && strings.HasPrefix(strings.TrimSpace(string(data)), "404 page not found"):
		// The parts of the server that are not resources answer in plain text.
		return &apierrors.StatusError{ErrStatus: metav1.Status{Code: int32(resp.StatusCode), Message: firstLine(string(data)), Reason: map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound}[resp.StatusCode]}}
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode >= 500:
		return &Unreachable{fmt.Errorf("the API server %s is not there (%s)", c.base, resp.Status)}
	}
	return &Unreachable{fmt.Errorf("%s answers %s with %s, not as Kubernetes does: is it the API server?", c.base, resp.Status, orElse(kind, "nothing"))}
}

// gone puts a failure of the connection in words, without the method and URL
// that net/http repeats.
func (c *conn) gone(ctx context.Context, err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var record tls.RecordHeaderError
	var op *net.OpError
	var dns *net.DNSError
	plugin := c.plugin(err)
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case plugin != nil:
		err = plugin
	case errors.Is(ctx.Err(), context.DeadlineExceeded) && c.exec() != nil && !c.answered.Load():
		err = fmt.Errorf("the API server %s did not answer within %s, or the credential plugin %s of the kubeconfig did not: run `kubectl get ns` and try again", c.base, c.patience(), c.exec().Command)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("the API server %s did not answer within %s", c.base, c.timeout)
	case strings.Contains(err.Error(), "TLS handshake timeout"), strings.Contains(err.Error(), "i/o timeout"):
		err = fmt.Errorf("the API server %s did not answer: %s", c.base, strings.TrimPrefix(err.Error(), "net/http: "))
	case errors.As(err, &unknown):
		err = fmt.Errorf("the API server %s has a certificate of another authority than the kubeconfig's (certificate-authority-data)", c.base)
	case errors.As(err, &name), errors.As(err, &invalid):
		err = fmt.Errorf("the certificate of the API server %s: %w", c.base, err)
	case errors.As(err, &record), strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		err = fmt.Errorf("%s does not speak TLS: is it the API server?", c.base)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = fmt.Errorf("the API server %s closed the connection without an answer", c.base)
	case errors.As(err, &dns) && dns.IsNotFound:
		err = fmt.Errorf("the API server %s cannot be asked: no host is called %s", c.base, dns.Name)
	case errors.As(err, &op): // addresses of sockets and names of system calls say nothing more
		inner := op.Err
		var call *os.SyscallError
		if errors.As(inner, &call) {
			inner = call.Err
		}
		err = fmt.Errorf("the API server %s cannot be asked: %w", c.base, inner)
	default:
		err = fmt.Errorf("the API server %s cannot be asked: %w", c.base, err)
	}
	return &Unreachable{err}
}

// status is the HTTP status of a refusal, 0 for other errors.
func status(err error) int {
	var e *apierrors.StatusError
	if errors.As(err, &e) {
		return int(e.ErrStatus.Code)
	}
	return 0
}

// again reports whether a request may be made once more as it is: its answer was
// lost, or the server had no time for it.
func again(err error) bool {
	var gone *Unreachable
	n := status(err)
	return errors.As(err, &gone) || n == http.StatusTooManyRequests || n == http.StatusServiceUnavailable || n == http.StatusGatewayTimeout ||
		n == http.StatusInternalServerError && strings.Contains(err.Error(), "etcdserver")
}

// warning is the text of a Warning header: 299 - "text".
func warning(h string) string {
	if _, rest, ok := strings.Cut(h, `"`); ok {
		text := rest
		if at := strings.LastIndexByte(rest, '"'); at >= 0 {
			text = rest[:at]
		}
		return strings.ReplaceAll(text, `\"`, `"`)
	}
	return ""
}

// plural is the path segment of the objects of a kind.
var plural = map[string]string{"RayJob": "rayjobs", "RayService": "rayservices", "RayCluster": "rayclusters"}

// rayAPI is the path of the objects of KubeRay in the namespace.
func (c *conn) rayAPI(kind, name string) string {
	return c.in("/apis/ray.io/v1", plural[kind], name)
}

// in is the path of the objects of a resource in the namespace, or of one.
func (c *conn) in(group, objects string, name ...string) string {
	p := group + "/namespaces/" + url.PathEscape(c.namespace) + "/" + objects
	for _, n := range name {
		p += "/" + url.PathEscape(n)
	}
	return p
}

// path is that of an object that is sent.
func (c *conn) path(o client.Object) string {
	if kind := o.GetObjectKind().GroupVersionKind().Kind; kind != "ConfigMap" {
		return c.rayAPI(kind, o.GetName())
	}
	return c.in("/api/v1", "configmaps", o.GetName())
}

// apply sends an object by server-side apply, which makes it or changes it. It
// never takes a field from another manager. dry only asks. made is false if the
// object was there before, and it is not this call that had made it.
func (c *conn) apply(ctx context.Context, o client.Object, dry bool, warn func(string)) (got client.Object, made bool, err error) {
	m, err := Unstructured(o)
	if err != nil {
		return nil, false, err
	}
	q := url.Values{"fieldManager": {Manager}, "fieldValidation": {"Strict"}, "force": {"false"}}
	if dry {
		q.Set("dryRun", "All")
	}
	out := new(metav1.PartialObjectMetadata)
	for i := 0; ; i++ {
		err := c.do(ctx, request{method: http.MethodPatch, path: c.path(o), query: q, kind: asApply, accept: asMetadata, body: m.Object, warn: warn, made: &made}, out)
		if err == nil {
			return out, made || i > 0, nil
		}
		if i == len(retries) || !again(err) || ctx.Err() != nil {
			return nil, false, err
		}
		select {
		case <-ctx.Done():
			return nil, false, err
		case <-time.After(retries[i]):
		}
	}
}

// retries are the waits before a request whose answer was lost is made again,
// which changes nothing if it had arrived: names are the run's.
var retries = []time.Duration{500 * time.Millisecond, 2 * time.Second, 5 * time.Second}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

func firstLine(s string) string { l, _, _ := strings.Cut(strings.TrimSpace(s), "\n"); return l }

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
