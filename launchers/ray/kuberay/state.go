package kuberay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	rayv1 "github.com/ray-project/kuberay/ray-operator/apis/ray/v1"
	"github.com/ray-project/kuberay/ray-operator/controllers/ray/utils"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/rundir"
)

// Session is the access to the object of a run.
type Session struct {
	run    *rundir.Run
	object Object
	block  *tree.Value // the experiment's kuberay, where the run has its plan
	c      *conn
}

// Open prepares the access; it asks nothing yet. What w states goes before what
// the run keeps.
func Open(run *rundir.Run, w Where, env []string, version string) (*Session, error) {
	s := &Session{run: run}
	if err := run.Read(ObjectFile, &s.object); err != nil {
		return nil, err
	}
	var p plan.Plan
	switch err := run.Read(rundir.PlanFile, &p); {
	case err == nil:
		s.block, _ = p.Settings.Get("kuberay")
	case !errors.Is(err, fs.ErrNotExist): // one that was found on the cluster has none
		return nil, err
	}
	if w.Kubeconfig == "" && w.Context == "" {
		w.Context = s.object.Context
		if _, err := os.Stat(s.object.Kubeconfig); err == nil {
			w.Kubeconfig = s.object.Kubeconfig
		}
	}
	w.Namespace = s.object.Namespace
	var err error
	s.c, err = connect(w, nil, env, version)
	return s, err
}

// Server is the URL of the API server.
func (s *Session) Server() string { return s.c.base }

// Object is the object of the run.
func (s *Session) Object() Object { return s.object }

// seenFile keeps what was seen last of an object that has not ended: it may be
// gone when it is looked at again.
const seenFile = "kuberay-seen.json"

type seen struct {
	Time  time.Time `json:"time"`
	State string    `json:"state"`
}

// fetch reads the object of the run. Of job and service the one that it is not is
// empty; meta is that of the other.
func (s *Session) fetch(ctx context.Context) (job *rayv1.RayJob, service *rayv1.RayService, meta *metav1.ObjectMeta, err error) {
	job, service = new(rayv1.RayJob), new(rayv1.RayService)
	var into any = job
	if meta = &job.ObjectMeta; s.object.Kind == "RayService" {
		meta, into = &service.ObjectMeta, service
	}
	return job, service, meta, s.c.get(ctx, s.c.rayAPI(s.object.Kind, s.object.Name), into)
}

// merge puts into a status what the object says.
func (s *Session) merge(own *rundir.Status, job *rayv1.RayJob, service *rayv1.RayService) {
	if s.object.Kind == "RayService" {
		mergeService(own, service)
	} else {
		mergeJob(own, job)
	}
}

// Status is how a run is: what Kubernetes says of its object, and how it ended
// once that was seen, even if the object is gone by then.
func (s *Session) Status(ctx context.Context) (*rundir.Status, error) {
	own, err := s.run.Status()
	if err != nil || own.State.Ended() {
		return own, err
	}
	// What was seen before is only for who cannot ask.
	own.JobID, own.Reason, own.ReadyAt, own.ReadyAfter, own.Processes = s.object.Namespace+"/"+s.object.Name, "", nil, 0, []rundir.Process{}
	job, service, meta, err := s.fetch(ctx)
	switch {
	case status(err) == http.StatusNotFound:
		return s.missing(own, "")
	case err != nil:
		return own, err
	case s.object.UID == "" && meta.Labels[LabelRun] == s.run.ID: // the answer to the launch was lost
		now := time.Now().UTC()
		s.object.UID, s.object.Applied = string(meta.UID), &now
		if err := s.run.Write(ObjectFile, s.object); err != nil {
			return own, err
		}
	case s.object.UID != string(meta.UID):
		return s.missing(own, meta.Labels[LabelRun])
	case meta.Labels[LabelRun] != "" && meta.Labels[LabelRun] != s.run.ID:
		own.State, own.Reason = rundir.Stopped, "replaced by "+meta.Labels[LabelRun]
		now, code := time.Now().UTC(), 0
		own.EndedAt, own.ExitCode = &now, &code
		return own, s.run.WriteStatus(own)
	}
	s.merge(own, job, service)
	if meta.DeletionTimestamp != nil && !own.State.Ended() {
		own.State = rundir.Stopping
		own.Reason = "it is being removed since " + meta.DeletionTimestamp.UTC().Format(time.RFC3339)
		if len(meta.Finalizers) > 0 {
			own.Reason += ", and waits for " + strings.Join(meta.Finalizers, ", ")
		}
	}
	if own.State.Ended() {
		return own, s.run.WriteStatus(own)
	}
	pods, reasons := s.pods(ctx, job, service), []string(nil)
	if own.State == rundir.Pending || own.State == rundir.Starting {
		reasons = s.reasons(ctx, meta, pods)
	}
	if len(reasons) > 0 {
		own.Reason = strings.Join(append([]string{own.Reason}, reasons...), "\n")
	}
	for i := range pods {
		own.Processes = append(own.Processes, process(&pods[i]))
	}
	return own, s.keep(own)
}

// keep notes what was seen, where it is news.
func (s *Session) keep(own *rundir.Status) error {
	var last seen
	now := string(own.State) + " (" + own.JobState + ")"
	if err := s.run.Read(seenFile, &last); err == nil && last.State == now {
		return nil
	}
	return errors.Join(s.run.Write(seenFile, seen{time.Now().UTC(), now}), s.run.WriteStatus(own))
}

// missing is the status of a run whose object is not there: other is the run
// whose object has its name now, if one has.
func (s *Session) missing(own *rundir.Status, other string) (*rundir.Status, error) {
	if s.c.base != s.object.Server {
		return own, &Unreachable{fmt.Errorf("%s leads to the API server %s, and the run is at %s: choose by --context", s.c.who(), s.c.base, s.object.Server)}
	}
	what := s.object.Kind + " " + s.object.Namespace + "/" + s.object.Name
	if s.object.UID == "" {
		own.State, own.Reason = rundir.Failed, "Kubernetes never got its object"
		code := 3
		own.ExitCode = &code
		return own, nil // not kept: a request may still be on its way
	}
	if by, ok := s.run.StopRequested(); ok {
		return s.stopped(own, "stopped by "+by.By)
	}
	own.State, own.EndedAt = rundir.Unknown, nil // when is not known
	own.Reason = what + " is gone: somebody deleted it, or its time to live was over before its end was seen"
	if other != "" {
		own.Reason = what + " is another object now, of run " + other
	}
	var last seen
	if err := s.run.Read(seenFile, &last); err == nil {
		own.Reason += fmt.Sprintf("; last seen %s: %s", last.Time.Format(time.RFC3339), last.State)
	}
	return own, s.run.WriteStatus(own)
}

func (s *Session) stopped(own *rundir.Status, reason string) (*rundir.Status, error) {
	now, code := time.Now().UTC(), 143
	if s.object.Kind == "RayService" {
		code = 0
	}
	own.State, own.Reason, own.ExitCode, own.EndedAt, own.Processes = rundir.Stopped, reason, &code, &now, []rundir.Process{}
	return own, s.run.WriteStatus(own)
}

// exitCode finds the driver's exit status in what Ray says of a job: KubeRay
// keeps no other trace of it. Source: ray/dashboard/modules/job/job_supervisor.py.
var exitCode = regexp.MustCompile(`^Job entrypoint command failed with exit code (-?\d+)`)

// mergeJob puts a RayJob into a status. Its two states are told apart: how far
// KubeRay is with the cluster and the submission (jobDeploymentStatus), and how
// the job is in Ray (jobStatus).
func mergeJob(own *rundir.Status, job *rayv1.RayJob) {
	st := job.Status
	own.JobState = string(st.JobDeploymentStatus)
	if st.JobStatus != "" {
		own.JobState += ", " + string(st.JobStatus)
	}
	own.Attempt = 1
	if st.Failed != nil {
		own.Attempt = int(*st.Failed) + 1
	}
	own.StartedAt = moment(st.RayJobStatusInfo.StartTime)
	fail := func(code int, reason string) {
		own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Failed, reason, &code, moment(st.EndTime)
		if own.Attempt > 1 {
			own.Attempt-- // it is counted among the failed
		}
	}
	switch st.JobDeploymentStatus {
	case rayv1.JobDeploymentStatusNew:
		own.State, own.Reason = rundir.Pending, "the KubeRay operator has not taken it up"
		if job.Spec.Suspend {
			own.Reason = suspended(job)
		}
	case rayv1.JobDeploymentStatusInitializing:
		own.State, own.Reason = rundir.Pending, "its Ray cluster starts"
		if c := st.RayClusterStatus; c.DesiredWorkerReplicas > 0 {
			own.Reason += fmt.Sprintf(": %d of %d workers are ready", c.ReadyWorkerReplicas, c.DesiredWorkerReplicas)
		}
	case rayv1.JobDeploymentStatusWaiting:
		own.State, own.Reason = rundir.Pending, "its Ray cluster is up and waits for somebody to submit the job (InteractiveMode)"
	case rayv1.JobDeploymentStatusSuspending:
		own.State, own.Reason = rundir.Pending, "it is being suspended: its pods are removed"
	case rayv1.JobDeploymentStatusSuspended:
		own.State, own.Reason = rundir.Pending, suspended(job)
	case rayv1.JobDeploymentStatusRetrying:
		own.State, own.Reason = rundir.Pending, fmt.Sprintf("attempt %d failed, and it is started again with a new Ray cluster", own.Attempt-1)
	case rayv1.JobDeploymentStatusValidationFailed:
		fail(3, "the KubeRay operator refuses it: "+firstLine(st.Message))
		own.EndedAt = nil
	case rayv1.JobDeploymentStatusComplete, rayv1.JobDeploymentStatusFailed:
		switch {
		case st.JobDeploymentStatus == rayv1.JobDeploymentStatusComplete && st.JobStatus == rayv1.JobStatusStopped:
			code := 143
			own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Stopped, "stopped in Ray", &code, moment(st.EndTime)
		case st.JobDeploymentStatus == rayv1.JobDeploymentStatusComplete && st.JobStatus != rayv1.JobStatusFailed:
			code := 0
			own.State, own.Reason, own.ExitCode, own.EndedAt = rundir.Succeeded, "", &code, moment(st.EndTime)
		default:
			fail(because(st))
		}
	default: // Running, and what later releases add
		switch {
		case st.JobStatus == rayv1.JobStatusPending:
			own.State, own.Reason = rundir.Pending, "Ray has the job and starts its driver"
			if m := firstLine(st.Message); m != "" {
				own.Reason += ": " + m
			}
		case st.JobStatus == rayv1.JobStatusRunning:
			own.State, own.Reason, own.ReadyAt = rundir.Ready, "", own.StartedAt
		case rayv1.IsJobTerminal(st.JobStatus):
			own.State, own.Reason = rundir.Stopping, "the job is over in Ray ("+string(st.JobStatus)+"), and KubeRay waits for its submitter"
		default: // none, or what the operator takes for one while Ray does not answer
			own.State, own.Reason = rundir.Pending, "its Ray cluster is up, and the job is being submitted"
		}
	}
}

// suspended says who lets a suspended RayJob run.
func suspended(job *rayv1.RayJob) string {
	if q := job.Labels[LabelQueue]; q != "" {
		return "suspended: it waits in the queue " + q
	}
	return "suspended: it runs when somebody sets suspend to false"
}

// because says why a RayJob failed, and the run's exit status.
func because(st rayv1.RayJobStatus) (int, string) {
	said := firstLine(st.Message)
	if m := exitCode.FindStringSubmatch(st.Message); m != nil {
		n, err := strconv.Atoi(m[1])
		switch {
		case err != nil || n == 0:
		case n > 128 && n < 160: // of the shell around it
			return n, fmt.Sprintf("the driver ended with status %d: signal %d killed it", n, n-128)
		default:
			return ray.DriverEnd(n)
		}
	}
	switch st.Reason {
	case rayv1.DeadlineExceeded:
		return 3, "its deadline was over (kuberay.deadline), and KubeRay ended it" + colon(said)
	case "PreRunningDeadlineExceeded": // from KubeRay 1.6
		return 3, "it did not run before its start-up deadline was over, and KubeRay ended it" + colon(said)
	case rayv1.SubmissionFailed:
		return 3, "the job could not be submitted to its Ray cluster" + colon(said)
	case rayv1.JobDeploymentStatusTransitionGracePeriodExceeded:
		return 3, "the job is over in Ray (" + string(st.JobStatus) + "), but its submitter did not end" + colon(said)
	}
	if said == "" {
		said = string(st.Reason)
	}
	return 3, said
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// mergeService puts a RayService into a status. An application that failed does
// not end the run: its object stays, and KubeRay tries again when it changes.
func mergeService(own *rundir.Status, service *rayv1.RayService) {
	st := service.Status
	ready, upgrading := false, false
	var why string
	for _, c := range st.Conditions {
		switch {
		case c.Type == string(rayv1.RayServiceReady):
			ready = c.Status == metav1.ConditionTrue
			if why = c.Reason; c.Message != "" {
				why += ": " + c.Message
			}
			if ready {
				own.ReadyAt = moment(&c.LastTransitionTime)
			}
		case c.Type == string(rayv1.UpgradeInProgress):
			upgrading = c.Status == metav1.ConditionTrue
		}
	}
	own.StartedAt = moment(&service.CreationTimestamp)
	own.JobState = "NotReady"
	if ready {
		own.JobState = "Ready"
	}
	if upgrading {
		own.JobState += ", UpgradeInProgress"
	}
	stale := st.ObservedGeneration < service.Generation // of the object before its last change
	var reasons []string
	deploying := false // the condition is about the number of endpoints, which may be those before a change of the application
	for _, part := range []rayv1.RayServiceStatus{st.PendingServiceStatus, st.ActiveServiceStatus} {
		if stale {
			break
		}
		for _, name := range slices.Sorted(maps.Keys(part.Applications)) {
			if app := part.Applications[name]; app.Status != rayv1.ApplicationStatusEnum.RUNNING {
				deploying = deploying || app.Status != rayv1.ApplicationStatusEnum.UNHEALTHY
				reasons = append(reasons, "application "+name+": "+app.Status+colon(lastLine(app.Message)))
				for _, d := range slices.Sorted(maps.Keys(app.Deployments)) { // of a change in place, the application does not say why it failed
					if own := app.Deployments[d]; own.Status != rayv1.DeploymentStatusEnum.HEALTHY && own.Message != "" {
						reasons = append(reasons, "deployment "+d+": "+own.Status+colon(lastLine(own.Message)))
					}
				}
			}
		}
	}
	switch {
	case ready && !stale && !deploying:
		own.State, own.Reason = rundir.Ready, strings.Join(reasons, "\n")
		if own.ReadyAt != nil && own.StartedAt != nil {
			own.ReadyAfter = own.ReadyAt.Sub(*own.StartedAt).Seconds()
		}
	case why == string(rayv1.RayServiceInitializingTimeout), strings.HasPrefix(why, string(rayv1.RayServiceInitializingTimeout)+":"):
		code := 3
		own.State, own.Reason, own.ExitCode = rundir.Failed, "KubeRay gave up: "+why, &code
	case st.ObservedGeneration == 0 && len(st.Conditions) == 0:
		own.State, own.Reason = rundir.Pending, "the KubeRay operator has not taken it up"
	default:
		own.State = rundir.Starting
		own.Reason = orElse(strings.Join(reasons, "\n"), orElse(why, "its Ray cluster starts"))
	}
}

// Failing reports that an application of a serve run was given up by Ray Serve.
func Failing(st *rundir.Status) bool {
	return st.State == rundir.Starting && strings.Contains(st.Reason, ": "+rayv1.ApplicationStatusEnum.DEPLOY_FAILED)
}

func moment(t *metav1.Time) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	u := t.UTC()
	return &u
}

// clusters are the Ray clusters of the object.
func clusters(job *rayv1.RayJob, service *rayv1.RayService) []string {
	var out []string
	for _, name := range []string{job.Status.RayClusterName, service.Status.ActiveServiceStatus.RayClusterName, service.Status.PendingServiceStatus.RayClusterName} {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// pods are those of the run: of its Ray clusters, and its submitters. Where they
// may not be listed there are none.
func (s *Session) pods(ctx context.Context, job *rayv1.RayJob, service *rayv1.RayService) []corev1.Pod {
	out, err := s.listed(ctx, job, service)
	if err != nil {
		return nil
	}
	return out
}

func (s *Session) listed(ctx context.Context, job *rayv1.RayJob, service *rayv1.RayService) ([]corev1.Pod, error) {
	var selectors []string
	if names := clusters(job, service); len(names) > 0 {
		selectors = append(selectors, "ray.io/cluster in ("+strings.Join(names, ",")+")")
	}
	if s.object.Kind == "RayJob" {
		selectors = append(selectors, submitters(s.object.Name))
	}
	var out []corev1.Pod
	for _, selector := range selectors {
		pods, err := s.list(ctx, selector)
		if err != nil {
			return nil, err
		}
		out = append(out, pods...)
	}
	return out, nil
}

// submitters selects the pods of a RayJob's submitter, in K8sJobMode.
func submitters(name string) string { return "batch.kubernetes.io/job-name=" + name }

func (s *Session) list(ctx context.Context, selector string) ([]corev1.Pod, error) {
	var out []corev1.Pod
	err := pages(ctx, s.c, s.c.in("/api/v1", "pods"), url.Values{"labelSelector": {selector}}, func(items []corev1.Pod) { out = append(out, items...) })
	slices.SortStableFunc(out, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return out, err
}

// process is a pod as a process of the run.
func process(p *corev1.Pod) rundir.Process {
	out := rundir.Process{Name: p.Name, Kind: "service", Role: "ray-worker", Host: p.Spec.NodeName, State: rundir.Starting, StartedAt: moment(p.Status.StartTime)}
	switch p.Labels["ray.io/node-type"] {
	case "head":
		out.Role = "ray-head"
	case "":
		out.Role, out.Kind = "driver", "driver"
	}
	ready := false
	for _, c := range p.Status.Conditions {
		ready = ready || c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	}
	switch {
	case p.DeletionTimestamp != nil:
		out.State = rundir.Stopping
	case p.Status.Phase == corev1.PodSucceeded:
		out.State = rundir.Succeeded
	case p.Status.Phase == corev1.PodFailed:
		out.State = rundir.Failed
	case ready:
		out.State = rundir.Ready
	case p.Spec.NodeName == "":
		out.State = rundir.Pending
	}
	if why := podReasons(p); len(why) > 0 {
		out.Reason = why[0]
		if out.State == rundir.Starting {
			out.Awaits = why[0]
		}
	}
	return out
}

// podReasons says why a pod does not run: the scheduler's words, and those about
// its containers.
func podReasons(p *corev1.Pod) []string {
	var out []string
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			out = append(out, c.Reason+colon(c.Message))
		}
	}
	if p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" { // Evicted, NodeLost
		out = append(out, p.Status.Reason+colon(p.Status.Message))
	}
	for _, c := range append(slices.Clone(p.Status.InitContainerStatuses), p.Status.ContainerStatuses...) {
		w := c.State.Waiting
		looping := w != nil && w.Reason == "CrashLoopBackOff" && c.LastTerminationState.Terminated != nil // which says more
		if w != nil && !looping && w.Reason != "" && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
			out = append(out, c.Name+": "+w.Reason+colon(firstLine(w.Message)))
		}
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t == nil || t.ExitCode == 0 {
				continue
			}
			text := fmt.Sprintf("%s: ended with status %d", c.Name, t.ExitCode)
			if t.Reason != "" && t.Reason != "Error" {
				text += " (" + t.Reason + ")"
			}
			if looping {
				text += fmt.Sprintf(", and is started again and again (%s)", need.Count(int(c.RestartCount), "time"))
			}
			out = append(out, text+colon(lastLine(t.Message)))
			break
		}
	}
	return out
}

// reasons says what a run that has not started waits for: of its pods, and what
// Kubernetes and the operator warn of. Where that may not be read it is empty.
func (s *Session) reasons(ctx context.Context, meta *metav1.ObjectMeta, pods []corev1.Pod) []string {
	var out []string
	mine := map[string]bool{string(meta.UID): true}
	scheduling := map[string]bool{} // pods about which the scheduler has said it already
	count := map[string][]string{}  // by reason: the pods
	for i := range pods {
		p := &pods[i]
		mine[string(p.UID)] = true
		for _, why := range podReasons(p) {
			scheduling[p.Name] = true
			if len(count[why]) == 0 {
				out = append(out, why)
			}
			count[why] = append(count[why], p.Name)
		}
	}
	for i, why := range out {
		names := count[why]
		who := "pod " + names[0]
		if len(names) > 1 {
			who = fmt.Sprintf("%d pods, such as %s", len(names), names[0])
		}
		out[i] = who + ": " + why
	}
	var list corev1.EventList
	if err := s.c.do(ctx, request{method: http.MethodGet, path: s.c.in("/api/v1", "events"), query: url.Values{"fieldSelector": {"type=Warning"}, "limit": {"500"}}}, &list); err != nil {
		return out
	}
	for _, e := range list.Items {
		o := e.InvolvedObject
		ours := mine[string(o.UID)] || strings.HasPrefix(o.Name, meta.Name) && (o.Kind == "RayCluster" || o.Kind == "Job") && !e.CreationTimestamp.Time.Before(meta.CreationTimestamp.Time)
		if !ours || o.Kind == "Pod" && (e.Reason == "BackOff" || e.Reason == "Failed" || scheduling[o.Name] && e.Reason == "FailedScheduling") {
			continue
		}
		if line := strings.ToLower(o.Kind) + " " + o.Name + ": " + e.Reason + colon(firstLine(e.Message)); !slices.Contains(out, line) {
			out = append(out, line)
		}
	}
	return out
}

// startupDeadline is how long a run may take to start, unless the experiment
// says otherwise: images of tens of GiB are pulled in minutes.
const startupDeadline = 30 * time.Minute

// Overdue reports that a run that is being waited for has taken too long to
// start: since its object was made, or since it left its queue.
func (s *Session) Overdue(ctx context.Context) (bool, time.Duration, error) {
	limit := startupDeadline
	if n, ok := s.block.Field("startup_deadline").AsInt(); ok {
		limit = time.Duration(n) * time.Second
	}
	job, _, meta, err := s.fetch(ctx)
	if err != nil {
		return false, limit, err
	}
	since := meta.CreationTimestamp.Time
	switch st := job.Status; {
	case s.object.Kind == "RayService":
		if s.object.Applied != nil && s.object.Applied.After(since) {
			since = *s.object.Applied
		}
	case st.JobDeploymentStatus == rayv1.JobDeploymentStatusSuspended, st.JobDeploymentStatus == rayv1.JobDeploymentStatusSuspending, job.Spec.Suspend:
		return false, limit, nil
	case st.StartTime != nil:
		since = st.StartTime.Time
	}
	return time.Since(since) > limit, limit, nil
}

// GiveUp removes the object of a run that did not start in time.
func (s *Session) GiveUp(ctx context.Context, limit time.Duration, last string, grace time.Duration) (*rundir.Status, error) {
	if _, err := s.Stop(ctx, "the start-up deadline", grace); err != nil {
		return nil, err
	}
	own, err := s.run.Status()
	if err != nil {
		return nil, err
	}
	code := 3
	own.State, own.ExitCode = rundir.Failed, &code
	own.Reason = fmt.Sprintf("not started %s after it was made (kuberay.startup_deadline), and removed%s", limit, colon(last))
	return own, s.run.WriteStatus(own)
}

// Stop removes the object, with what belongs to it, and waits until it is gone.
// Of a run that has ended it removes what is left. It gives up after grace.
func (s *Session) Stop(ctx context.Context, by string, grace time.Duration) (*rundir.Status, error) {
	own, err := s.Status(ctx)
	if err != nil {
		return nil, err
	}
	if own.State == rundir.Unknown || own.State == rundir.Stopped && s.object.Kind == "RayService" {
		return own, nil // what has its name now is another's
	}
	ended := own.State.Ended()
	if !ended {
		if err := s.run.RequestStop(by); err != nil {
			return nil, err
		}
	}
	how := metav1.DeletePropagationForeground // it is there until all that belongs to it is gone
	until := time.Now().Add(grace)
	keeping, err := s.keeping(ctx, until)
	if err != nil {
		return nil, err
	}
	if len(keeping) > 0 {
		how = metav1.DeletePropagationBackground
		grace, until = grace+redisCleanup, until.Add(redisCleanup)
	}
	if err := s.removed(ctx, s.object.Kind, s.object.Name, s.object.UID, how, grace, until); err != nil {
		return nil, err
	}
	for _, name := range keeping {
		if err := s.removed(ctx, "RayCluster", name, "", "", grace, until); err != nil && status(err) != http.StatusForbidden {
			return nil, err
		}
	}
	if ended {
		return own, nil
	}
	return s.stopped(own, "stopped by "+by)
}

// redisCleanup is how long the operator's pod may take that empties the Redis of a
// Ray cluster. Source: buildRedisCleanupJob in controllers/ray/raycluster_controller.go
// of ray-operator v1.5.1, ActiveDeadlineSeconds.
const redisCleanup = 5 * time.Minute

// keeping are the Ray clusters of the object that keep their state in a Redis. The
// operator empties it by a pod under the cluster's service account, which a deletion
// in the foreground takes away before: the pod is then never made. In the background
// the object goes at once, and its clusters are waited for by themselves.
func (s *Session) keeping(ctx context.Context, until time.Time) ([]string, error) {
	for {
		job, service, meta, err := s.fetch(ctx)
		switch {
		case status(err) == http.StatusNotFound:
			return nil, nil
		case err != nil && (!again(err) || time.Now().After(until)):
			return nil, err
		case err == nil:
			spec := &service.Spec.RayClusterSpec
			if job.Spec.RayClusterSpec != nil {
				spec = job.Spec.RayClusterSpec
			}
			if !utils.IsGCSFaultToleranceEnabled(spec, meta.Annotations) {
				return nil, nil
			}
			return clusters(job, service), nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(lookAgain):
		}
	}
}

// removed removes an object, where how says in which way, and waits until it is
// gone: that with this UID ("": any).
func (s *Session) removed(ctx context.Context, kind, name, uid string, how metav1.DeletionPropagation, grace time.Duration, until time.Time) error {
	path := s.c.rayAPI(kind, name)
	for asked := how == ""; ; {
		meta := new(metav1.PartialObjectMetadata)
		err := s.c.do(ctx, request{method: http.MethodGet, path: path, accept: asMetadata}, meta)
		gone := status(err) == http.StatusNotFound
		if err == nil {
			gone = uid != "" && string(meta.UID) != uid
		} else if !gone && !again(err) {
			return err
		}
		if gone {
			return nil
		}
		if err == nil && !asked {
			if err = s.c.remove(ctx, path, string(meta.UID), how); err != nil && !again(err) {
				return err
			}
			asked = err == nil
		}
		if time.Now().After(until) {
			if err != nil {
				return err
			}
			text := fmt.Sprintf("%s %s/%s was asked to go %d s ago and is still there", kind, s.object.Namespace, name, int(grace.Seconds()))
			if f := meta.Finalizers; len(f) > 0 {
				text += ": it waits for " + strings.Join(f, ", ")
				if slices.ContainsFunc(f, func(x string) bool { return strings.HasPrefix(x, "ray.io/") }) {
					text += ", which the KubeRay operator removes: is it up?"
				}
			}
			return errors.New(text)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// Left reports whether the object of an ended run is still there: its Ray
// cluster may be, too.
func (s *Session) Left(ctx context.Context) bool {
	meta := new(metav1.PartialObjectMetadata)
	err := s.c.do(ctx, request{method: http.MethodGet, path: s.c.rayAPI(s.object.Kind, s.object.Name), accept: asMetadata}, meta)
	return err == nil && string(meta.UID) == s.object.UID && meta.Labels[LabelRun] == s.run.ID
}

// Found is a run that a cluster tells of.
type Found struct {
	Info   rundir.Info
	Object Object
	Status *rundir.Status

	gateway string // gateway.json of a serve run
}

// Files are those of the folder of a run that was found: what the cluster tells.
func (f Found) Files() (map[string][]byte, error) {
	text, err := rundir.Text(f.Object)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{ObjectFile: text}
	if f.gateway != "" {
		files[rundir.Artifacts+"/"+ray.GatewayFile] = []byte(f.gateway)
	}
	return files, nil
}

// List finds the runs of a namespace by the labels of their objects, the newest
// last.
func List(ctx context.Context, w Where, env []string, version string) ([]Found, error) {
	c, err := connect(w, nil, env, version)
	if err != nil {
		return nil, err
	}
	var out []Found
	var refused error
	query := url.Values{"labelSelector": {ManagedBy + "=" + Manager + "," + LabelRun}}
	errs := []error{
		pages(ctx, c, c.in("/apis/ray.io/v1", plural["RayJob"]), query, func(items []rayv1.RayJob) {
			for i := range items {
				f := c.found("RayJob", &items[i].ObjectMeta)
				mergeJob(f.Status, &items[i])
				out = append(out, f)
			}
		}),
		pages(ctx, c, c.in("/apis/ray.io/v1", plural["RayService"]), query, func(items []rayv1.RayService) {
			for i := range items {
				f := c.found("RayService", &items[i].ObjectMeta)
				mergeService(f.Status, &items[i])
				out = append(out, f)
			}
		}),
	}
	for _, err := range errs {
		switch {
		case status(err) == http.StatusNotFound:
			refused = fmt.Errorf("KubeRay is not installed in the cluster: the API server %s knows no ray.io objects", c.base)
		case status(err) == http.StatusForbidden:
			refused = err
		case err != nil:
			return nil, err
		}
	}
	if len(out) == 0 && refused != nil {
		return nil, refused
	}
	slices.SortStableFunc(out, func(a, b Found) int { return a.Info.Created.Compare(b.Info.Created) })
	return out, nil
}

func (c *conn) found(kind string, meta *metav1.ObjectMeta) Found {
	created := meta.CreationTimestamp.UTC()
	if t, err := time.Parse(time.RFC3339, meta.Annotations[AnnotationCreated]); err == nil {
		created = t
	}
	applied := meta.CreationTimestamp.UTC()
	f := Found{
		Info: rundir.Info{ID: meta.Labels[LabelRun], Name: meta.Annotations[AnnotationName], Workload: meta.Annotations[AnnotationWorkload], Target: string(plan.KubeRay), Created: created,
			PlanHash: meta.Annotations[AnnotationPlanHash], Version: meta.Annotations[AnnotationVersion], Host: meta.Annotations[AnnotationHost], User: meta.Annotations[AnnotationUser]},
		Object:  Object{Context: c.context, Kubeconfig: c.kubeconfig, Server: c.base, Namespace: c.namespace, Kind: kind, Name: meta.Name, UID: string(meta.UID), Applied: &applied},
		gateway: meta.Annotations[AnnotationGateway],
	}
	f.Status = &rundir.Status{RunID: f.Info.ID, Name: f.Info.Name, Workload: f.Info.Workload, Target: f.Info.Target, Attempt: 1, JobID: c.namespace + "/" + meta.Name, Processes: []rundir.Process{}}
	return f
}

// Endpoints are where the judges of a serve run are asked within the cluster: its
// application, whose model names are the route keys. It is read from the object,
// so that it is known on every machine.
func (s *Session) Endpoints(ctx context.Context) (*rundir.Endpoints, error) {
	service := new(rayv1.RayService)
	if err := s.c.get(ctx, s.c.rayAPI("RayService", s.object.Name), service); err != nil {
		return nil, err
	}
	var config struct {
		Applications []struct {
			Route string `json:"route_prefix"`
			Args  struct {
				Models []struct {
					Loading struct {
						ID string `json:"model_id"`
					} `json:"model_loading_config"`
				} `json:"llm_configs"`
			} `json:"args"`
		} `json:"applications"`
	}
	if err := yaml.Unmarshal([]byte(service.Spec.ServeConfigV2), &config); err != nil {
		return nil, fmt.Errorf("serveConfigV2 of %s: %w", s.object, err)
	}
	e := &rundir.Endpoints{RunID: s.run.ID}
	for _, app := range config.Applications {
		base := s.object.URL() + strings.TrimRight(app.Route, "/")
		for _, m := range app.Args.Models {
			e.Instances.Set(m.Loading.ID, rundir.Endpoint{URL: base, Model: m.Loading.ID, Engine: "vllm"})
		}
	}
	return e, nil
}
