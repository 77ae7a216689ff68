package kuberay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"

	"genrm.dev/genrm/launchers/internal/stall"
	"genrm.dev/genrm/launchers/ray"
)

// ErrNoLog says that there is no log, and why.
type ErrNoLog struct{ why string }

func (e *ErrNoLog) Error() string { return e.why }

// writeError is a failure of the reader's side.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }

// patience is how long a run that is followed may be refused: an API server that
// starts knows for some seconds neither its resources nor who may do what.
const patience = time.Minute

// Refusals tells the refusals of an API server that starts from those that last.
type Refusals struct{ since time.Time }

// Last reports, with what came of each request, whether the server has refused for
// so long that waiting is of no use. The time in which it does not answer at all
// does not count.
func (r *Refusals) Last(err error) bool {
	switch {
	case err == nil, again(err):
		r.since = time.Time{}
	case r.since.IsZero():
		r.since = time.Now()
	}
	return !r.since.IsZero() && time.Since(r.since) > patience
}

// lookEvery is the wait between two looks at what is not there yet, or not any
// more.
const lookEvery = time.Second

var lookAgain = lookEvery // shorter in a test

// Follow writes the driver's log until the run has ended and all of it is
// written, or ctx is done. It is what the submitter's pod prints (K8sJobMode,
// SidecarMode), or Ray's own (HTTPMode). A connection that breaks loses and
// doubles no line. lost is told of a server that does not answer, once a break,
// and nil when it answers again; it may end the following by an error.
func (s *Session) Follow(ctx context.Context, out io.Writer, lost func(error) error) error {
	return s.FollowOn(ctx, out, nil, lost)
}

// FollowOn is [Session.Follow] for who wants to see the end of what is there
// alone: caught is called once, after the write of all that the log had when it
// was asked for, and before what comes later.
func (s *Session) FollowOn(ctx context.Context, out io.Writer, caught func() error, lost func(error) error) error {
	if s.object.Kind == "RayService" {
		return s.noDriver()
	}
	f := &podLog{c: s.c, out: out, tail: -1}
	broken := false
	var refused Refusals
	for {
		done, err := s.follow(ctx, f, caught == nil, lost)
		given := refused.Last(err)
		var w *writeError
		var none *ErrNoLog
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &w):
			return w.err
		case errors.As(err, &none):
			return err
		case done && err == nil && caught == nil:
			return nil
		case given:
			return err
		case (err != nil) != broken:
			broken = err != nil
			if err := lost(err); err != nil {
				return err
			}
		}
		if err == nil && caught != nil {
			if err := caught(); err != nil {
				return err
			}
			caught = nil
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

func (s *Session) noDriver() error {
	return &ErrNoLog{fmt.Sprintf("%s serves judges and has no driver: without --process all its pods are shown", s.run.ID)}
}

// follow writes what there is, and with on what comes until something ends. done
// says that no more will come.
func (s *Session) follow(ctx context.Context, f *podLog, on bool, lost func(error) error) (done bool, err error) {
	job := new(rayv1.RayJob)
	err = s.c.get(ctx, s.c.rayAPI("RayJob", s.object.Name), job)
	switch {
	case status(err) == http.StatusNotFound, err == nil && s.object.UID != "" && string(job.UID) != s.object.UID:
		return true, nil
	case err != nil:
		return false, err
	}
	st := job.Status
	over := st.JobDeploymentStatus == rayv1.JobDeploymentStatusComplete || st.JobDeploymentStatus == rayv1.JobDeploymentStatusFailed || st.JobDeploymentStatus == rayv1.JobDeploymentStatusValidationFailed
	if job.Spec.SubmissionMode == rayv1.HTTPMode {
		if st.JobId == "" || st.RayClusterName == "" || st.JobStatus == "" {
			return over, nil
		}
		d, err := s.dashboard(st)
		if err != nil {
			return false, err
		}
		during, cancel := context.WithCancel(ctx)
		defer cancel()
		go s.whileItRuns(during, cancel)
		w := &ray.Rest{Out: f.out, Skip: f.done}
		if on {
			err = d.Follow(during, w, lost)
		} else {
			err = d.Log(during, w)
		}
		f.done = w.Written()
		var denied *ray.Denied
		switch {
		case w.Err != nil:
			return true, &writeError{w.Err}
		case errors.As(err, &denied):
			return true, &ErrNoLog{fmt.Sprintf("the log of %s is Ray's own (HTTPMode), and %s may not read it: want get on services/proxy in %s", s.run.ID, s.c.who(), s.object.Namespace)}
		case during.Err() != nil && ctx.Err() == nil: // its Ray is gone
			return true, nil
		}
		return true, err
	}
	selector := submitters(s.object.Name)
	if job.Spec.SubmissionMode == rayv1.SidecarMode {
		if st.RayClusterName == "" {
			return over, nil
		}
		selector = "ray.io/cluster=" + st.RayClusterName + ",ray.io/node-type=head"
	}
	pods, err := s.list(ctx, selector)
	if err != nil {
		return false, err
	}
	for i := range pods {
		p := &pods[i]
		if f.ended[p.Name] || !started(p, SubmitterContainer) {
			continue
		}
		if f.pod != p.Name {
			f.next(p.Name)
		}
		err := f.follow(ctx, SubmitterContainer, on)
		if noLog(err) {
			err = nil // its pod has gone, or the container is not there yet
		}
		if err != nil {
			return false, err
		}
		now := new(corev1.Pod)
		switch err := s.c.get(ctx, s.c.in("/api/v1", "pods", p.Name), now); {
		case status(err) == http.StatusNotFound, err == nil && finished(now, SubmitterContainer):
			if err := f.end(); err != nil {
				return false, err
			}
		case err != nil:
			return false, err
		default:
			return false, nil // it goes on
		}
	}
	return over, nil
}

// theRest is how long Ray's own log is asked for once the run is over: its Ray
// may be gone.
const theRest = 15 * time.Second

// whileItRuns ends a following some time after the run.
func (s *Session) whileItRuns(ctx context.Context, cancel func()) {
	for {
		job := new(rayv1.RayJob)
		err := s.c.get(ctx, s.c.rayAPI("RayJob", s.object.Name), job)
		st := job.Status.JobDeploymentStatus
		wait := lookMost
		over := status(err) == http.StatusNotFound || err == nil && (st == rayv1.JobDeploymentStatusComplete || st == rayv1.JobDeploymentStatusFailed)
		if over {
			wait = theRest
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if over {
			cancel()
			return
		}
	}
}

// lookMost is the wait between two looks at what is not news.
const lookMost = 5 * time.Second

func container(p *corev1.Pod, name string) *corev1.ContainerStatus {
	for i, c := range p.Status.ContainerStatuses {
		if c.Name == name {
			return &p.Status.ContainerStatuses[i]
		}
	}
	if len(p.Status.ContainerStatuses) == 1 { // a template of the user's own may call it otherwise
		return &p.Status.ContainerStatuses[0]
	}
	return nil
}

func started(p *corev1.Pod, name string) bool {
	c := container(p, name)
	return c != nil && (c.State.Running != nil || c.State.Terminated != nil)
}

func finished(p *corev1.Pod, name string) bool {
	c := container(p, name)
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || c != nil && c.State.Terminated != nil
}

// podLog writes the log of one pod after the other. Each line comes with the
// time that the node gave it, to the nanosecond: after a break the log is asked
// for from that second on, and what was written is passed over.
type podLog struct {
	c     *conn
	out   io.Writer
	pod   string
	ended map[string]bool
	done  int64 // bytes that were written of Ray's own log (HTTPMode)
	tail  int   // begin with so many of the last lines of a pod; -1 for all
	begun bool  // of this pod, they have come: more is added to them

	last time.Time // of the last line that was written
	same int       // how many lines of that very time were
	half string    // a line without its end, which may be all of it

	// A submitter that is started again follows the same job's log from its first
	// byte. What it repeats of that is passed over, line by line.
	seed   maphash.Seed
	before []uint64 // lines of the log proper that were written
	now    []uint64 // of this pod
	at     int      // in before; -1: it is not repeated, or not any more
	marks  int      // how often the submitter's command line has begun
}

// next goes over to another pod.
func (f *podLog) next(pod string) {
	if f.ended == nil {
		f.ended, f.seed = map[string]bool{}, maphash.MakeSeed()
	}
	if len(f.now) > len(f.before) {
		f.before = f.now
	}
	f.pod, f.begun, f.last, f.same, f.half, f.now, f.at, f.marks = pod, false, time.Time{}, 0, "", nil, 0, 0
}

// end writes what is left of a pod that has ended.
func (f *podLog) end() error {
	f.ended[f.pod] = true
	half := f.half
	f.half = ""
	if half == "" {
		return nil
	}
	return f.line(half)
}

// follow writes the log of a container from where it is.
func (f *podLog) follow(ctx context.Context, name string, on bool) error {
	during, awaiting, stop := ctx, func(r io.Reader) io.Reader { return r }, func() {}
	if !on { // the end is near
		during, awaiting, stop = stall.Watch(ctx, f.c.patience(), fmt.Errorf("the API server %s sent nothing of the log of %s for %s", f.c.base, f.pod, f.c.patience()))
	}
	defer stop()
	gone := func(err error) error {
		if ctx.Err() == nil && during.Err() != nil {
			return &Unreachable{context.Cause(during)}
		}
		return err
	}
	q := url.Values{"timestamps": {"true"}, "container": {name}}
	if on {
		q.Set("follow", "true")
	}
	pass := false
	switch {
	case !f.last.IsZero():
		q.Set("sinceTime", f.last.UTC().Truncate(time.Second).Format(time.RFC3339))
	case f.tail >= 0 && !f.begun:
		q.Set("tailLines", strconv.Itoa(max(f.tail, 1)))
		pass = f.tail == 0
	}
	resp, err := f.c.send(during, request{method: http.MethodGet, path: f.c.in("/api/v1", "pods", f.pod, "log"), query: q, accept: "*/*"})
	if err != nil {
		return gone(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	in := bufio.NewReaderSize(awaiting(resp.Body), 64<<10)
	var at time.Time // of the line before, and how many had it
	same := 0
	for {
		text, err := in.ReadString('\n')
		stamp, rest, ok := strings.Cut(text, " ")
		t, bad := time.Parse(time.RFC3339Nano, stamp)
		if ok && bad == nil {
			if t.Equal(at) {
				same++
			} else {
				at, same = t, 1
			}
			fresh := t.After(f.last) || t.Equal(f.last) && same > f.same
			switch {
			case !fresh:
			case pass:
				f.last, f.same = t, same
			case err != nil:
				f.half = rest // the end of the line may come with the next connection
			default:
				f.last, f.same, f.half = t, same, ""
				if err := f.line(rest); err != nil {
					return err
				}
			}
		}
		switch {
		case errors.Is(err, io.EOF) && during.Err() == nil: // it may be the server's answer to the end of the request
			f.begun = true
			return nil
		case err != nil:
			return gone(f.c.gone(during, err))
		}
	}
}

// begins reports whether a line is what `ray job submit` and `ray job logs` begin
// with: the log of the driver comes after the second. Source: cli.py of
// ray/dashboard/modules/job at 2.60.0.
func begins(line string) bool {
	head := line[:min(len(line), 120)]
	return strings.Contains(head, "cli.py:") && strings.Contains(head, "Job submission server address")
}

// line writes a line, unless a pod before has printed it.
func (f *podLog) line(text string) error {
	switch {
	case f.marks < 2 && begins(text):
		f.marks++
		f.now, f.at = nil, 0
	case f.marks > 0:
		h := maphash.String(f.seed, text)
		f.now = append(f.now, h)
		if f.at >= 0 && f.at < len(f.before) && f.before[f.at] == h {
			f.at++
			return nil
		}
		f.at = -1
	}
	if _, err := io.WriteString(f.out, text); err != nil {
		return &writeError{err}
	}
	return nil
}

// dashboard is the access to Ray's own record of the job, by the API server's
// proxy for services.
func (s *Session) dashboard(st rayv1.RayJobStatus) (*ray.Session, error) {
	svc := st.RayClusterStatus.Head.ServiceName
	if svc == "" {
		svc = st.RayClusterName + "-head-svc"
	}
	base, transport, err := s.ServiceProxy(svc, 8265)
	if err != nil {
		return nil, err
	}
	return ray.Through(base, st.JobId, http.Header{}, transport, "kuberay"), nil
}

// ServiceProxy is the way to a port of a service of the run's namespace from
// wherever the API server can be asked: a URL, and the transport that its
// requests want, with the credentials of the kubeconfig. Needs the permission
// get on services/proxy, and create for requests by POST.
func (s *Session) ServiceProxy(service string, port int) (string, http.RoundTripper, error) {
	config := rest.CopyConfig(s.c.config)
	config.NextProtos = []string{"http/1.1"} // of which alone a connection can be turned into a websocket
	t, err := rest.TransportFor(config)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("%s/api/v1/namespaces/%s/services/http:%s:%d/proxy", s.c.base, url.PathEscape(s.object.Namespace), service, port), t, nil
}

// ServeService is the service that a RayService's requests go to, and its port.
// Source: ray-operator v1.5, GenerateServeServiceName.
func (o Object) ServeService() (string, int) { return o.Name + "-serve-svc", 8000 }

// URL is where a RayService is asked from within its cluster.
func (o Object) URL() string {
	svc, port := o.ServeService()
	return fmt.Sprintf("http://%s.%s.svc:%d", svc, o.Namespace, port)
}

// Log writes what the driver has printed up to now.
func (s *Session) Log(ctx context.Context, out io.Writer) error {
	if s.object.Kind == "RayService" {
		return s.noDriver()
	}
	job := new(rayv1.RayJob)
	if err := s.c.get(ctx, s.c.rayAPI("RayJob", s.object.Name), job); err != nil {
		if status(err) == http.StatusNotFound {
			return &ErrNoLog{fmt.Sprintf("the log of %s went with its object, %s %s/%s", s.run.ID, s.object.Kind, s.object.Namespace, s.object.Name)}
		}
		return err
	}
	if job.Spec.SubmissionMode == rayv1.HTTPMode {
		if job.Status.JobId == "" || job.Status.RayClusterName == "" {
			return nil
		}
		d, err := s.dashboard(job.Status)
		if err != nil {
			return err
		}
		return d.Log(ctx, out)
	}
	selector := submitters(s.object.Name)
	if job.Spec.SubmissionMode == rayv1.SidecarMode {
		selector = "ray.io/cluster=" + job.Status.RayClusterName + ",ray.io/node-type=head"
	}
	pods, err := s.list(ctx, selector)
	if err != nil {
		return err
	}
	f := &podLog{c: s.c, out: out, tail: -1}
	for i := range pods {
		if !started(&pods[i], SubmitterContainer) {
			continue
		}
		f.next(pods[i].Name)
		if err := f.follow(ctx, SubmitterContainer, false); err != nil && status(err) != http.StatusNotFound {
			return unwrap(err)
		}
		if err := f.end(); err != nil {
			return unwrap(err)
		}
	}
	return nil
}

func unwrap(err error) error {
	var w *writeError
	if errors.As(err, &w) {
		return w.err
	}
	return err
}
