// Package suite is what the suites against real clusters have in common. It may not
// know a cluster.
package suite

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Buffer is what a process has printed so far: it writes, and the test reads.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Awaits waits until a text is printed, limit at most.
func (b *Buffer) Awaits(t *testing.T, limit time.Duration, text string) {
	t.Helper()
	for start := time.Now(); !strings.Contains(b.String(), text); time.Sleep(100 * time.Millisecond) {
		if time.Since(start) > limit {
			t.Fatalf("no %q in\n%s", text, b.String())
		}
	}
}

// Ends runs a command, wants an exit status and texts, and returns what it
// printed. After limit it is killed.
func Ends(t *testing.T, cmd *exec.Cmd, limit time.Duration, code int, texts ...string) string {
	t.Helper()
	timer := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() })
	out, _ := cmd.CombinedOutput()
	timer.Stop()
	if got := cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("genrm %q: exit status %d, want %d\n%s", cmd.Args[1:], got, code, out)
	}
	for _, text := range texts {
		if !strings.Contains(string(out), text) {
			t.Errorf("genrm %q: no %q in\n%s", cmd.Args[1:], text, out)
		}
	}
	return string(out)
}

// CUE writes a string as CUE does.
func CUE(s string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always can
	return strings.TrimSpace(b.String())
}

// firstPort and lastPort bound those that Port returns: above the ephemeral range of a usual Linux,
// so that no outgoing connection and no listener on port 0 gets one of them, and
// apart from those that genrm takes for its runs (bind.Default) and Ray for its
// workers (10002 to 19999).
const (
	firstPort = 61000
	lastPort  = 65535
)

var nextPort atomic.Int64

func init() { nextPort.Store(rand.Int64N(lastPort - firstPort + 1)) }

// Port returns a port on which nobody listens, another one at each call: it can
// be given to a program that listens on it some time later.
func Port() (int, error) {
	const n = lastPort - firstPort + 1
	for range n {
		port := firstPort + int(nextPort.Add(1)%n)
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			return port, l.Close()
		}
	}
	return 0, fmt.Errorf("every port from %d to %d is taken", firstPort, lastPort)
}
