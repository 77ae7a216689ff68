//go:build !linux

package proc

import "syscall"

// Subreaper does nothing: this system has none.
func Subreaper() error { return nil }

// OwnSession starts a command in a session of its own.
func OwnSession(bool) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// Reap does nothing: orphans are the system's here.
func Reap([]Process, int, []int) {}

// KeepFiles keeps the descriptors of this process from first on to itself: no
// program that it starts inherits them.
func KeepFiles(first int) { keepFiles(first) }
