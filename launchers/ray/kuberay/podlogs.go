package kuberay

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/launchers/rundir"
)

// What the pods of a run print, of the first container of each, which is Ray's.

// PodTail is how the logs of pods are shown. Its functions may be called at the
// same time, but Line for one pod only in turn.
type PodTail struct {
	Pod   string                       // only this one; "": all
	Lines int                          // begin with so many of each pod's last lines; -1 for all that its node keeps
	Pods  func(names []string)         // is told which pods there are, whenever they are looked at
	Line  func(pod, line string) error // without the line's end
	Note  func(pod string, err error)  // a log that cannot be read, once a pod; it is tried again
	Lost  func(err error) error        // as of [Session.Follow]
}

// chosen are the pods that are shown.
func (s *Session) chosen(t PodTail, pods []corev1.Pod) ([]corev1.Pod, error) {
	if t.Pod == "" {
		return pods, nil
	}
	if i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Name == t.Pod }); i >= 0 {
		return pods[i : i+1], nil
	}
	names := podNames(pods)
	hint := diag.DidYouMean(t.Pod, names)
	if hint == "" {
		hint = "there are " + orElse(strings.Join(names, ", "), "none")
	}
	return nil, &ErrNoLog{fmt.Sprintf("%s has no pod %s; %s", s.run.ID, t.Pod, hint)}
}

// PodLogs shows the end of what the pods of the run have printed. A pod that has
// not started has nothing to show.
func (s *Session) PodLogs(ctx context.Context, t PodTail) error {
	pods, _, err := s.now(ctx)
	if err == nil {
		pods, err = s.chosen(t, pods)
	}
	if err != nil {
		return err
	}
	t.Pods(podNames(pods))
	var errs []error
	for i := range pods {
		f := s.tail(pods[i].Name, t)
		err := f.follow(ctx, ofRay(&pods[i]), false)
		if e := f.end(); err == nil || noLog(err) {
			err = e
		}
		var w *writeError
		switch {
		case errors.As(err, &w):
			return w.err
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil: // one node that is gone hides no other
			errs = append(errs, fmt.Errorf("the log of %s: %w", pods[i].Name, err))
		}
	}
	return errors.Join(errs...)
}

// FollowPods is [Session.PodLogs] that goes on until the run has ended or is
// gone, the one pod is, or ctx is done. Pods that start or come later join, with
// all that they print; one that goes ends. A connection that breaks loses and
// doubles no line.
func (s *Session) FollowPods(ctx context.Context, t PodTail) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()                    // before the readers are waited for
	ends := make(chan error, 1)       // the failure of a reader, or the end of the only one
	over := make(chan struct{})       // the run has ended
	followed := map[string]struct{}{} // by UID: a pod's name may come again
	away := false                     // nothing is known
	var refused Refusals
	for seen := false; ; {
		pods, ended, err := s.now(ctx)
		if err == nil {
			pods, err = s.chosen(t, pods)
		}
		given := refused.Last(err)
		var none *ErrNoLog
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &none) && seen:
			ended, err = true, nil
		case errors.As(err, &none), given, err != nil && !again(err) && !seen:
			return err
		case (err != nil) != away:
			away = err != nil
			if err := t.Lost(err); err != nil {
				return err
			}
		}
		if err == nil && len(pods) > 0 {
			t.Pods(podNames(pods))
		}
		for i := range pods {
			p := &pods[i]
			if _, is := followed[string(p.UID)]; is || !printed(p) {
				continue
			}
			followed[string(p.UID)] = struct{}{}
			f := s.tail(p.Name, t)
			if seen {
				f.tail = -1
			}
			all.Go(func() {
				err := s.followPod(ctx, f, p, t, over)
				if ctx.Err() == nil && (err != nil || t.Pod != "") {
					select {
					case ends <- unwrap(err):
					default: // the first is enough
					}
				}
			})
		}
		if ended && err == nil {
			close(over)
			all.Wait()
			select {
			case err := <-ends:
				return err
			default:
				return nil
			}
		}
		seen = seen || err == nil
		select {
		case err := <-ends:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * lookAgain):
		}
	}
}

// followPod shows the log of a pod until that is gone, or has ended. At the end
// of the run it shows the rest.
func (s *Session) followPod(ctx context.Context, f *podLog, p *corev1.Pod, t PodTail, over <-chan struct{}) error {
	during, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-during.Done():
		case <-over:
			cancel() // nobody ends the stream of a container that runs on
		}
	}()
	noted := false
	for {
		on := f.begun || f.tail < 0 // its end first, since a stream does not tell where that was
		err := f.follow(during, ofRay(p), on)
		var w *writeError
		switch {
		case err == nil && !on:
			continue
		case errors.As(err, &w):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case during.Err() != nil:
			err := f.follow(ctx, ofRay(p), false)
			if errors.As(err, &w) {
				return err
			}
			return f.end() // of a run that has ended the pods may be gone, and their node
		case err == nil, noLog(err), again(err), noted:
		case t.Pod != "" && !on: // nothing was shown, and nothing else is
			return err
		default:
			noted = true
			t.Note(p.Name, err)
		}
		now := new(corev1.Pod)
		switch err := s.c.get(during, s.c.in("/api/v1", "pods", p.Name), now); {
		case status(err) == http.StatusNotFound, err == nil && now.UID != p.UID, err == nil && (now.Status.Phase == corev1.PodSucceeded || now.Status.Phase == corev1.PodFailed):
			return f.end()
		}
		select {
		case <-during.Done():
		case <-time.After(lookAgain):
		}
	}
}

// now are the pods of the run, and whether it has ended. Of an object that is
// gone, or another's, there is no log.
func (s *Session) now(ctx context.Context) (pods []corev1.Pod, ended bool, err error) {
	job, service, meta, err := s.fetch(ctx)
	other := meta.Labels[LabelRun] != "" && meta.Labels[LabelRun] != s.run.ID
	switch {
	case status(err) == http.StatusNotFound, err == nil && (other || s.object.UID != "" && string(meta.UID) != s.object.UID):
		return nil, true, &ErrNoLog{fmt.Sprintf("the logs of %s went with its object, %s %s/%s", s.run.ID, s.object.Kind, s.object.Namespace, s.object.Name)}
	case err != nil:
		return nil, false, err
	}
	st := new(rundir.Status)
	s.merge(st, job, service)
	pods, err = s.listed(ctx, job, service)
	return pods, st.State.Ended(), err
}

func (s *Session) tail(pod string, t PodTail) *podLog {
	f := &podLog{c: s.c, out: lineTo{pod, t.Line}, tail: t.Lines}
	f.next(pod)
	return f
}

// lineTo gives each write, which is a line of a [podLog], to a function.
type lineTo struct {
	pod  string
	line func(pod, line string) error
}

func (w lineTo) Write(p []byte) (int, error) {
	return len(p), w.line(w.pod, strings.TrimRight(string(p), "\r\n"))
}

func podNames(pods []corev1.Pod) []string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Name)
	}
	return out
}

// ofRay is the container of a pod that is shown: KubeRay wants Ray's first.
func ofRay(p *corev1.Pod) string {
	if len(p.Spec.Containers) == 0 {
		return ""
	}
	return p.Spec.Containers[0].Name
}

// printed reports whether a pod may have a log: also of a container that is
// started again and again.
func printed(p *corev1.Pod) bool {
	c := container(p, ofRay(p))
	return c != nil && (c.State.Running != nil || c.State.Terminated != nil || c.LastTerminationState.Terminated != nil)
}

// noLog reports that a container has no log: it has not started, or its pod is gone.
func noLog(err error) bool {
	n := status(err)
	return n == http.StatusNotFound || n == http.StatusBadRequest
}
