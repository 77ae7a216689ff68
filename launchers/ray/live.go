package ray

import (
	"net/http"

	"genrm.dev/genrm/compiler/plan"
)

// Roles says who of a run needs how many GPUs, and at which field that is stated.
func Roles(p *plan.Plan) (at string, needs []string) { return roles(p) }

// Through is the access to a job whose dashboard is reached by another way than
// its own address, such as the service proxy of a Kubernetes API server. Only
// [Session.Follow], [Session.Log] and [Session.Record] may be called.
func Through(base, id string, h http.Header, transport http.RoundTripper, version string) *Session {
	c := newClient(base, h, version)
	c.http.Transport = transport
	return &Session{job: Job{ID: id, Address: base}, c: c}
}
