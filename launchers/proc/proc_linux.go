package proc

import (
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Subreaper makes orphans of this process's descendants its own children, so
// that [Below] finds them.
func Subreaper() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// OwnSession starts a command in a session and process group of its own, whose
// numbers are its pid: a terminal's signals do not reach it. With die the kernel
// sends it SIGTERM when the starting process dies.
func OwnSession(die bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setsid: true}
	if die {
		a.Pdeathsig = syscall.SIGTERM
	}
	return a
}

// Reap collects the ended children of this process that are not in own, whose
// end somebody else waits for.
func Reap(all []Process, self int, own []int) {
	for _, p := range all {
		if p.Parent == self && p.State == "Z" && !slices.Contains(own, p.PID) {
			var st unix.WaitStatus
			_, _ = unix.Wait4(p.PID, &st, unix.WNOHANG, nil)
		}
	}
}

// KeepFiles keeps the descriptors of this process from first on to itself: no
// program that it starts inherits them.
func KeepFiles(first int) {
	if unix.CloseRange(uint(first), ^uint(0)>>32, unix.CLOSE_RANGE_CLOEXEC) == nil { // Linux 5.11
		return
	}
	keepFiles(first)
}
