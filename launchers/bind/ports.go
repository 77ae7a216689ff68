// Package bind chooses what only a machine knows: free ports, GPUs and folders,
// and finds out before anything starts what a run would fail for there.
//
// It may not start a process of the run, nor change the plan.
package bind

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/proc"
)

// Range is a range of ports, both ends included.
type Range struct{ First, Last int }

// Default is where ports are taken from when the user gives no range: below the
// ephemeral range of a usual Linux, above what services are usually given.
var Default = Range{20000, 32767}

// Ephemeral is the range from which the kernel takes ports for outgoing
// connections: a server's port in it may be gone when the server gets there.
func Ephemeral() Range {
	data, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		return Range{}
	}
	var r Range
	if _, err := fmt.Sscan(string(data), &r.First, &r.Last); err != nil {
		return Range{}
	}
	return r
}

// outside cuts the ephemeral range off, and keeps the larger rest. Where nothing
// is left ok is false.
func (r Range) outside(e Range) (rest Range, ok bool) {
	if e.Last < r.First || e.First > r.Last || e == (Range{}) {
		return r, true
	}
	low, high := Range{r.First, e.First - 1}, Range{e.Last + 1, r.Last}
	if high.Last-high.First > low.Last-low.First {
		low = high
	}
	return low, low.First <= low.Last
}

// A held range is made known to every genrm of the machine (more exactly: of its
// network namespace) by a listening socket with an abstract name, which the
// kernel takes away with the last process that has it: nothing is left of a run
// that was killed. Source: man 7 unix, "Abstract sockets".
const (
	portsName = "@genrm/ports/"
	gpuName   = "@genrm/gpu/"
	lockName  = "@genrm/bind"
)

// hold listens on an abstract name. It fails if somebody else does.
func hold(name string) (*os.File, error) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }() // the file is another descriptor of the socket
	return l.File()
}

// lock waits for its turn to choose ports: two runs that choose at the same time
// would choose the same. Choosing takes milliseconds.
func lock() (unlock func(), err error) {
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		f, err := hold(lockName)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return func() {}, nil // a system without abstract names: ports are still tested
		}
		if time.Since(start) > 30*time.Second {
			return nil, errors.New("another genrm has been choosing ports for 30 s; is it stopped?")
		}
	}
}

// heldNames lists the names that runs of this machine hold.
func heldNames() []string {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	sockets, err := fs.NetUNIX()
	if err != nil {
		return nil
	}
	var out []string
	for _, s := range sockets.Rows {
		if strings.HasPrefix(s.Path, "@genrm/") {
			out = append(out, s.Path)
		}
	}
	return out
}

// heldRanges are the port ranges of other runs.
func heldRanges() []Range {
	var out []Range
	for _, name := range heldNames() {
		if text, ok := strings.CutPrefix(name, portsName); ok {
			first, last, _ := strings.Cut(text, "-")
			a, err1 := strconv.Atoi(first)
			b, err2 := strconv.Atoi(last)
			if err1 == nil && err2 == nil {
				out = append(out, Range{a, b})
			}
		}
	}
	return out
}

// holder is the process that holds a name, 0 if it cannot be told.
func holder(name string) int {
	c, err := net.DialTimeout("unix", name, time.Second)
	if err != nil {
		return 0
	}
	defer func() { _ = c.Close() }()
	return peer(c.(*net.UnixConn))
}

// free reports whether a port can be listened on, on every address.
func free(port int) bool { return listens(port, net.ListenConfig{}) }

// fresh reports whether a port can be listened on without SO_REUSEADDR: no
// connection of an earlier listener is left there, which takes a minute. Workers
// of Ray pass over other ports, and a run that ended just now may have left a
// whole range of them. Source: CheckPortFree in src/ray/util/network_util.cc;
// observed in 2.60.0.
func fresh(port int) bool {
	return listens(port, net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 0) }), err)
	}})
}

func listens(port int, how net.ListenConfig) bool {
	l, err := how.Listen(context.Background(), "tcp", ":"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// allocator hands out ports of a range, from its start.
type allocator struct {
	zone  Range
	next  int     // where fresh ones may be
	taken []Range // of other runs, and handed out
}

// take returns n free ports in a row, at a multiple of n; fresh ones as long as
// there are.
func (a *allocator) take(n int) (int, error) {
	if first, err := a.find(a.next, n, fresh); err == nil {
		a.next = first + n
		return first, nil
	}
	return a.find(a.zone.First, n, free)
}

func (a *allocator) find(from, n int, free func(port int) bool) (int, error) {
	for first := (from + n - 1) / n * n; first+n-1 <= a.zone.Last; first += n {
		last := first + n - 1
		if slices.ContainsFunc(a.taken, func(r Range) bool { return r.First <= last && first <= r.Last }) {
			continue
		}
		ok := true
		for p := first; p <= last && ok; p++ {
			ok = free(p)
		}
		if ok {
			a.taken = append(a.taken, Range{first, last})
			return first, nil
		}
	}
	return 0, &NoPorts{a.zone, n}
}

// NoPorts is the error for a range that has no free ports left.
type NoPorts struct {
	Zone Range
	Row  int // ports in a row that were looked for
}

func (e *NoPorts) Error() string {
	what := "free port"
	if e.Row > 1 {
		what = fmt.Sprintf("%d free ports in a row", e.Row)
	}
	return fmt.Sprintf("no %s left from %d to %d", what, e.Zone.First, e.Zone.Last)
}

// Options is what the caller knows of the machine.
type Options struct {
	Host  string // address at which other nodes reach this one
	Ports Range  // where ports may be taken; zero means [Default]
	RunID string
	Temp  string // for folders of the run; "" means /tmp
	// Exclusive refuses devices that another run holds, and takes of Spare in
	// their place: two runs that looked at the same time saw the same ones free.
	// Not for a scheduler's nodes: there each job counts its devices from 0.
	Exclusive bool
	Spare     []string
}

// Held is what keeps other runs away from what was chosen, as long as one of its
// files is open.
type Held []*os.File

// Close gives everything back.
func (h Held) Close() {
	for _, f := range h {
		_ = f.Close() // a socket that nobody speaks on
	}
}

// workerPorts is how many ports the workers of a Ray node get where there is
// room. Each process has one of its own, idle ones too, of which Ray keeps one a
// core; where there is none left an actor waits for ever. Observed in 2.60.0.
const workerPorts = 1000

// Node chooses ports, devices and folders for the processes of a node. devices
// are those that it may use, as CUDA_VISIBLE_DEVICES names them, in the order of
// the plan's indices.
//
// Ports for clients come first, one after another; behind them every engine has
// a range of [graph.StridePorts] for each purpose from which it counts on. A
// small range of the user's makes those ranges smaller.
func Node(g *graph.Graph, node int, devices []string, o Options) (b graph.Binding, held Held, err error) {
	b = graph.Binding{Node: node, Host: o.Host, Ports: map[string]map[string]int{}, GPUs: map[string][]string{}, Paths: map[string]string{}, CPUs: runtime.NumCPU()}
	unlock, err := lock()
	if err != nil {
		return b, nil, err
	}
	defer unlock()
	defer func() {
		if err != nil {
			held.Close()
			held = nil
		}
	}()
	given := o.Ports != Range{}
	zone := o.Ports
	if !given {
		zone = Default
		if rest, ok := zone.outside(Ephemeral()); ok && rest.Last-rest.First >= 2000 {
			zone = rest
		} else if rest, ok := (Range{1024, 65535}).outside(Ephemeral()); ok {
			zone = rest
		}
	}
	singles, strided := 0, 0
	for _, p := range g.On(node) {
		for _, purpose := range p.Ports() {
			if graph.Strided(purpose) {
				strided++
			} else {
				singles++
			}
		}
	}
	stride := graph.StridePorts
	if room := zone.Last - zone.First + 1 - singles; strided > 0 {
		stride = max(1, min(stride, room/strided))
		for stride > 1 && stride*(strided+1) > room { // the first begins at a multiple
			stride--
		}
	}
	a := &allocator{zone: zone, next: zone.First, taken: heldRanges()}
	for _, p := range g.On(node) {
		for purpose, port := range p.Fixed {
			a.taken = append(a.taken, Range{port, port})
			b.Ports[p.Name] = map[string]int{purpose: port}
			if f, err := hold(fmt.Sprintf("%s%d-%d", portsName, port, port)); err == nil {
				held = append(held, f)
			}
		}
	}
	for _, rowed := range []bool{false, true} {
		for _, p := range g.On(node) {
			for _, purpose := range p.Ports() {
				if graph.Strided(purpose) != rowed {
					continue
				}
				n := 1
				if rowed {
					n = stride
				}
				if purpose == "workers" && stride == graph.StridePorts {
					n = workerPorts
				}
				port, err := a.take(n)
				for n > stride && err != nil {
					n = max(stride, n/2)
					port, err = a.take(n)
				}
				if err != nil {
					return b, held, err
				}
				f, err := hold(fmt.Sprintf("%s%d-%d", portsName, port, port+n-1))
				if err == nil {
					held = append(held, f)
				}
				if b.Ports[p.Name] == nil {
					b.Ports[p.Name] = map[string]int{}
				}
				b.Ports[p.Name][purpose] = port
				if purpose == "workers" {
					b.Ports[p.Name]["workers_end"] = port + n - 1
				}
			}
		}
	}
	spare := slices.Clone(o.Spare)
	devices = slices.Clone(devices)
	for i := 0; i < len(devices); i++ {
		f, err := hold(gpuName + devices[i])
		switch {
		case err == nil:
			held = append(held, f)
		case o.Exclusive && errors.Is(err, syscall.EADDRINUSE) && len(spare) > 0:
			devices[i], spare = spare[0], spare[1:]
			i--
		case o.Exclusive && errors.Is(err, syscall.EADDRINUSE):
			return b, held, fmt.Errorf("GPU %s was free and has just been taken by %s", devices[i], gpuHolder(devices[i]))
		}
	}
	for _, p := range g.On(node) {
		for _, i := range p.GPUs {
			if i >= len(devices) {
				return b, held, fmt.Errorf("%s uses GPU %d of node %d, which has %d", p.Name, i, node, len(devices))
			}
			b.GPUs[p.Name] = append(b.GPUs[p.Name], devices[i])
		}
		if p.Role == graph.RayHead || p.Role == graph.RayWorker {
			// Sockets lie in it, whose paths may have 107 bytes: a short name.
			id := o.RunID[max(0, len(o.RunID)-6):]
			temp := o.Temp
			if temp == "" {
				temp = "/tmp"
			}
			b.Paths["ray"] = filepath.Join(temp, "genrm-"+id+"-"+strconv.Itoa(node))
		}
	}
	return b, held, nil
}

// PortUser describes who listens on a port: "pid 123 (python3 …)".
func PortUser(port int) string {
	pid, ok := proc.Holder(port)
	switch {
	case !ok:
		return ""
	case pid == 0:
		return "a process of another user"
	}
	return fmt.Sprintf("pid %d (%s)", pid, proc.Command(pid))
}
