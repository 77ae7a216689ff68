// Package proc finds processes of this machine and ends them: who they are, what
// they started, who holds a port.
//
// It may not know runs or plans. It reads /proc by the procfs library; where
// there is none (macOS) it finds nothing.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// ID is a process: its number, and its start in clock ticks since boot, by which
// a later process with the same number is told apart. A clock that is set does
// not change it.
type ID struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start,omitempty"`
}

// Process is what the kernel says of a process.
type Process struct {
	ID
	Parent  int
	Session int
	State   string // one letter, as in /proc/PID/stat
}

// Identify returns the identity of a process; Start is 0 where it cannot be seen.
func Identify(pid int) ID {
	if p, ok := lookup(pid); ok {
		return p.ID
	}
	return ID{PID: pid}
}

// Alive reports whether the process still runs. A zombie does not.
func (id ID) Alive() bool {
	p, ok := lookup(id.PID)
	return ok && p.alive() && (id.Start == 0 || p.Start == id.Start)
}

func (p Process) alive() bool { return p.State != "Z" && p.State != "X" }

func lookup(pid int) (Process, bool) {
	if pid <= 0 {
		return Process{}, false
	}
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Process{}, false
	}
	return read(p)
}

func read(p procfs.Proc) (Process, bool) {
	s, err := p.Stat()
	if err != nil {
		return Process{}, false
	}
	return Process{ID: ID{s.PID, s.Starttime}, Parent: s.PPID, Session: s.Session, State: s.State}, true
}

// All lists the processes that can be seen, zombies too.
func All() []Process {
	procs, err := procfs.AllProcs()
	if err != nil {
		return nil
	}
	var out []Process
	for _, p := range procs {
		if q, ok := read(p); ok {
			out = append(out, q)
		}
	}
	return out
}

// Below lists the living processes that descend from one of the roots, without
// these. Orphans of a root count when they were given to it, which a subreaper
// sees to.
func Below(all []Process, roots ...int) []Process {
	children := map[int][]Process{}
	for _, p := range all {
		children[p.Parent] = append(children[p.Parent], p)
	}
	seen := map[int]bool{}
	for _, r := range roots {
		seen[r] = true
	}
	var out []Process
	for queue := slices.Clone(roots); len(queue) > 0; queue = queue[1:] {
		for _, c := range children[queue[0]] {
			if seen[c.PID] {
				continue
			}
			seen[c.PID] = true
			if c.alive() {
				out = append(out, c)
			}
			queue = append(queue, c.PID) // a zombie's children are found by way of it
		}
	}
	return out
}

// Marked lists the living processes, and what descends from them, that carry the
// environment entry NAME=value or belong to one of the sessions. A process that
// wrote over its environment is found by its session, one that left its session
// by its environment.
func Marked(entry string, sessions []int) []Process {
	all := All()
	var roots []int
	var out []Process
	for _, p := range all {
		if !p.alive() || p.PID == os.Getpid() {
			continue
		}
		if slices.Contains(sessions, p.Session) || hasEnv(p.PID, entry) {
			roots = append(roots, p.PID)
			out = append(out, p)
		}
	}
	return append(out, Below(all, roots...)...)
}

// Carries reports whether the process was started with the environment entry
// NAME=value, as far as that can be read.
func (p Process) Carries(entry string) bool { return hasEnv(p.PID, entry) }

func hasEnv(pid int, entry string) bool {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return false
	}
	env, err := p.Environ()
	return err == nil && slices.Contains(env, entry)
}

// Command returns a process's command line for people, or "".
func Command(pid int) string {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return ""
	}
	words, err := p.CmdLine()
	if err != nil || len(words) == 0 {
		name, _ := p.Comm()
		return name
	}
	const most = 160
	s := strings.Join(words, " ")
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + " …"
	}
	return s
}

// Holder returns the process that listens on a TCP port. The number is 0 for one
// that belongs to somebody else; ok is false when nobody listens.
func Holder(port int) (pid int, ok bool) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, false
	}
	const listening = 10
	inodes := map[string]bool{}
	//lint:ignore SA1019 only netlink says more, and this is read for a message
	v4, _ := fs.NetTCP()
	//lint:ignore SA1019 as above
	v6, _ := fs.NetTCP6()
	for _, l := range append(v4, v6...) {
		if l.LocalPort == uint64(port) && l.St == listening {
			inodes[fmt.Sprintf("socket:[%d]", l.Inode)] = true
		}
	}
	if len(inodes) == 0 {
		return 0, false
	}
	procs, _ := procfs.AllProcs()
	for _, p := range procs {
		targets, err := p.FileDescriptorTargets()
		if err != nil {
			continue
		}
		if slices.ContainsFunc(targets, func(t string) bool { return inodes[t] }) {
			return p.PID, true
		}
	}
	return 0, true
}

// End ends processes and waits until they are gone: TERM, and after the grace
// time KILL. list is asked again and again, since what is ended may start others;
// signal 0 of the caller's choice: with no grace KILL comes at once. It returns
// how many processes it had to end, and an error naming those that stayed.
func End(list func() []Process, grace time.Duration) (int, error) {
	seen := map[ID]bool{}
	termed := map[ID]bool{}
	start := time.Now()
	for {
		left := list()
		if len(left) == 0 {
			return len(seen), nil
		}
		late := time.Since(start) >= grace
		for _, p := range left {
			seen[p.ID] = true
			switch {
			case late:
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			case !termed[p.ID]:
				termed[p.ID] = true
				_ = syscall.Kill(p.PID, syscall.SIGTERM)
			}
		}
		if time.Since(start) > grace+10*time.Second {
			var names []string
			for _, p := range left {
				names = append(names, fmt.Sprintf("%d (%s)", p.PID, Command(p.PID)))
			}
			return len(seen), errors.New("could not be ended: " + strings.Join(names, ", "))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// BootID tells one boot of a machine from another, "" where it cannot be read:
// process numbers of an earlier boot mean nothing.
func BootID() string {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return string(bytes.TrimSpace(data))
}

// keepFiles marks the descriptors that are open, or where they cannot be listed
// those that are likely to be.
func keepFiles(first int) {
	last := first + 1024
	if entries, err := os.ReadDir("/dev/fd"); err == nil {
		for _, e := range entries {
			if fd, err := strconv.Atoi(e.Name()); err == nil {
				last = max(last, fd)
			}
		}
	}
	for fd := first; fd <= last; fd++ {
		syscall.CloseOnExec(fd)
	}
}
