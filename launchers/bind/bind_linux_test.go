package bind

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/graph"
)

func TestOutside(t *testing.T) {
	usual := Range{32768, 60999}
	for _, c := range []struct {
		name    string
		r, e    Range
		want    Range
		nothing bool
	}{
		{"usual", Default, usual, Default, false},
		{"unknown", Default, Range{}, Default, false},
		{"above it", Range{61000, 65535}, usual, Range{61000, 65535}, false},
		{"wide: what is below", Default, Range{30000, 65535}, Range{20000, 29999}, false},
		{"low: what is above", Default, Range{1024, 21000}, Range{21001, 32767}, false},
		{"in the middle: the larger side", Default, Range{22000, 23000}, Range{23001, 32767}, false},
		{"in the middle: the larger side below", Default, Range{31000, 32000}, Range{20000, 30999}, false},
		{"touching its end", Default, Range{32767, 60000}, Range{20000, 32766}, false},
		{"touching its start", Default, Range{1024, 20000}, Range{20001, 32767}, false},
		{"covering all", Default, Range{1024, 65535}, Range{}, true},
		{"covering just it", Default, Default, Range{}, true},
	} {
		got, ok := c.r.outside(c.e)
		if ok == c.nothing || ok && got != c.want {
			t.Errorf("%s: %v, %v, want %v", c.name, got, ok, c.want)
		}
	}
	if e := Ephemeral(); e.First < 1 || e.First > e.Last || e.Last > 65535 {
		t.Errorf("the kernel's range: %v", e)
	}
}

// process is one that binds ports of these purposes.
func process(name string, purposes ...string) *graph.Process {
	p := &graph.Process{Name: name}
	for _, purpose := range purposes {
		p.Argv = append(p.Argv, plan.Port(purpose))
	}
	return p
}

func of(p ...*graph.Process) *graph.Graph { return &graph.Graph{Nodes: 1, Processes: p} }

// zone is a range of n fresh ports that nobody holds, from a multiple of 100 on.
func zone(t *testing.T, n int) Range {
	t.Helper()
	others := heldRanges()
	for first := 61000 + os.Getpid()%30*100; first+n < 65535; first += 100 {
		r := Range{first, first + n - 1}
		ok := !slices.ContainsFunc(others, func(o Range) bool { return o.First <= r.Last && r.First <= o.Last })
		for p := r.First; p <= r.Last && ok; p++ {
			ok = fresh(p)
		}
		if ok {
			return r
		}
	}
	t.Skip("no free ports")
	return Range{}
}

// spans are the ports that a binding gives out, in ranges of what a stride is.
func spans(b graph.Binding, stride int) []Range {
	var out []Range
	for _, ports := range b.Ports {
		for purpose, port := range ports {
			switch {
			case purpose == "workers_end":
			case graph.Strided(purpose):
				out = append(out, Range{port, port + stride - 1})
			default:
				out = append(out, Range{port, port})
			}
		}
	}
	slices.SortFunc(out, func(a, b Range) int { return a.First - b.First })
	return out
}

func disjoint(t *testing.T, spans []Range) {
	t.Helper()
	slices.SortFunc(spans, func(a, b Range) int { return a.First - b.First })
	for i := 1; i < len(spans); i++ {
		if spans[i].First <= spans[i-1].Last {
			t.Errorf("%v and %v overlap", spans[i-1], spans[i])
		}
	}
}

func TestPortsByDefault(t *testing.T) {
	b, held, err := Node(of(process("a-0", "http", "vllm"), process("a-1", "http", "vllm"), process("b-0", "http", "nccl", "dist_init"), process("gateway", "gateway")), 0, nil, Options{Host: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	e := Ephemeral()
	all := spans(b, graph.StridePorts)
	if len(all) != 8 {
		t.Errorf("%d ranges: %v", len(all), b.Ports)
	}
	disjoint(t, all)
	for _, r := range all {
		if r.First <= e.Last && e.First <= r.Last {
			t.Errorf("%v is in the ephemeral range %v", r, e)
		}
		if r.First != r.Last && r.First%100 != 0 {
			t.Errorf("%v does not begin at a multiple of 100", r)
		}
		if n := r.Last - r.First; !slices.Contains(heldRanges(), r) {
			t.Errorf("%v of %d ports is not known to others: %v", r, n+1, heldRanges())
		}
	}
	if b.Host != "127.0.0.1" || b.CPUs < 1 || len(b.Paths) > 0 {
		t.Errorf("%+v", b)
	}
}

func TestPortsOfTheUser(t *testing.T) {
	vllm := []*graph.Process{process("a-0", "http", "vllm"), process("a-1", "http", "vllm"), process("gateway", "gateway")}
	ray := []*graph.Process{process("ray-head", "gcs", "workers")}
	for _, c := range []struct {
		name   string
		p      []*graph.Process
		n      int // ports in the range
		stride int // 0: too few
	}{
		{"room for all", vllm, 400, 100},
		{"smaller ranges", vllm, 203, 66}, // three of 66 fit into the 200 that are left, wherever the first begins
		{"as few as there can be", vllm, 5, 1},
		{"too few", vllm, 4, 0},
		{"none", vllm, 1, 0},
		{"workers of Ray", ray, 41, 20},
		{"many workers of Ray", ray, 2100, 1000},
		{"no ranges wanted", vllm[2:], 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			z := zone(t, c.n)
			b, held, err := Node(of(c.p...), 0, nil, Options{Ports: z})
			if c.stride == 0 {
				var none *NoPorts
				if !errors.As(err, &none) || held != nil || none.Zone != z || err.Error() != fmt.Sprintf("no free port left from %d to %d", z.First, z.Last) {
					t.Fatalf("%+v, %v, %v", b, held, err)
				}
				if slices.ContainsFunc(heldRanges(), func(r Range) bool { return z.First <= r.Last && r.First <= z.Last }) {
					t.Error("ports are still held after the failure")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer held.Close()
			all := spans(b, c.stride)
			disjoint(t, all)
			for _, r := range all {
				if r.First < z.First || r.Last > z.Last || !slices.Contains(heldRanges(), r) {
					t.Errorf("%v of %v, held %v", r, z, heldRanges())
				}
			}
			if head := b.Ports["ray-head"]; head != nil && head["workers_end"]-head["workers"]+1 != c.stride {
				t.Errorf("workers %d to %d, want %d", head["workers"], head["workers_end"], c.stride)
			}
		})
	}
	if got := (&NoPorts{Range{1, 2}, 7}).Error(); got != "no 7 free ports in a row left from 1 to 2" {
		t.Error(got)
	}
}

// Ports that somebody listens on, or that the user has chosen, are passed over.
func TestPortsInUse(t *testing.T) {
	z := zone(t, 20)
	for i, address := range []string{":" + strconv.Itoa(z.First), "127.0.0.1:" + strconv.Itoa(z.First+1), "127.0.0.2:" + strconv.Itoa(z.First+2)} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(i, err)
		}
		defer l.Close()
	}
	gateway := process("gateway")
	gateway.Fixed = map[string]int{"gateway": z.First + 3}
	b, held, err := Node(of(process("a-0", "http"), process("b-0", "http"), gateway), 0, nil, Options{Ports: z})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if got := fmt.Sprint(b.Ports["a-0"]["http"]-z.First, b.Ports["b-0"]["http"]-z.First, b.Ports["gateway"]["gateway"]-z.First); got != "4 5 3" {
		t.Errorf("ports %s", got)
	}
	if !slices.Contains(heldRanges(), Range{z.First + 3, z.First + 3}) {
		t.Error("others are not told of the port that the user chose")
	}
}

// A port where a connection has just been closed comes last: servers that do not
// set SO_REUSEADDR cannot listen there for a minute.
func TestPortsJustUsed(t *testing.T) {
	z := zone(t, 2)
	l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(z.First))
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	// Who closes first keeps the connection.
	if err := errors.Join(server.Close(), client.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if fresh(z.First) || !free(z.First) {
		t.Fatalf("fresh %v, free %v", fresh(z.First), free(z.First))
	}
	b, held, err := Node(of(process("a-0", "http"), process("b-0", "http")), 0, nil, Options{Ports: z})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if a, b := b.Ports["a-0"]["http"]-z.First, b.Ports["b-0"]["http"]-z.First; a != 1 || b != 0 {
		t.Errorf("ports %d %d", a, b)
	}
}

// Runs that start at the same time never get the same ports, and give them back.
func TestBindsAtOnce(t *testing.T) {
	const runs = 8
	z := zone(t, 100*(runs+1))
	g := of(process("a-0", "http", "vllm"), process("gateway", "gateway"))
	o := Options{Ports: z}
	var mu sync.Mutex
	var all []Range
	var held []Held
	var wg sync.WaitGroup
	for range runs {
		wg.Go(func() {
			b, h, err := Node(g, 0, nil, o)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, spans(b, graph.StridePorts)...)
			held = append(held, h)
		})
	}
	wg.Wait()
	disjoint(t, all)
	for _, h := range held {
		h.Close()
	}
	if slices.ContainsFunc(heldRanges(), func(r Range) bool { return z.First <= r.Last && r.First <= z.Last }) {
		t.Errorf("held after they were closed: %v", heldRanges())
	}
	b, h, err := Node(g, 0, nil, o)
	if err != nil || b.Ports["a-0"]["http"] != z.First {
		t.Errorf("afterwards: %v, %v", b.Ports, err)
	}
	h.Close()
}

// A socket that is inherited holds on after its opener has closed it.
func TestHeldByAnotherDescriptor(t *testing.T) {
	name := fmt.Sprintf("@genrm/test/%d", os.Getpid())
	f, err := hold(name)
	if err != nil {
		t.Skip(err)
	}
	if _, err := hold(name); err == nil {
		t.Error("it is held twice")
	}
	if pid := holder(name); pid != os.Getpid() {
		t.Errorf("held by %d", pid)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if pid := holder(name); pid != 0 {
		t.Errorf("held by %d after it was closed", pid)
	}
}

func TestNodeDevices(t *testing.T) {
	me := strconv.Itoa(os.Getpid()) // nobody else's devices are called so
	a, b, ray := process("a-0", "http"), process("b-0", "http"), process("ray-head", "gcs")
	a.GPUs, b.GPUs, ray.Role = []int{1}, []int{0, 1}, graph.RayHead
	o := Options{Ports: zone(t, 10), RunID: "judges-20260101-120000-a1b2c3", Temp: "/tmp/x", Exclusive: true}
	devices := []string{"GPU-x" + me, "GPU-y" + me}
	got, held, err := Node(of(a, b, ray), 0, devices, o)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if !slices.Equal(got.GPUs["a-0"], devices[1:]) || !slices.Equal(got.GPUs["b-0"], devices) || got.Paths["ray"] != "/tmp/x/genrm-a1b2c3-0" {
		t.Errorf("%+v", got)
	}
	_, again, err := Node(of(process("c-0", "http")), 0, devices[1:], o)
	if err == nil || again != nil || !strings.Contains(err.Error(), "GPU "+devices[1]+" was free and has just been taken by pid "+me+" (") {
		t.Errorf("a device that is held: %v, %v", again, err)
	}
	o.Exclusive = false
	_, again, err = Node(of(process("c-0", "http")), 0, devices[1:], o)
	if err != nil {
		t.Errorf("where a scheduler gives devices: %v", err)
	}
	again.Close()
	if _, again, err = Node(of(a), 0, devices[:1], o); again != nil || err == nil || err.Error() != "a-0 uses GPU 1 of node 0, which has 1" {
		t.Errorf("too few: %v, %v", again, err)
	}
}

func smi(t *testing.T, text string) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":/usr/bin:/bin")
}

func TestFindDevices(t *testing.T) {
	nodes, _ := filepath.Glob("/dev/nvidia[0-9]*")
	// Numbers that no run of this machine holds.
	list := "case \"$1\" in\n--query-gpu=*) printf '900, GPU-aaa\\n901, GPU-bbb\\n902, GPU-ccc\\n' ;;\n"
	idle := list + "esac\n"
	busy := list + fmt.Sprintf("*) printf 'GPU-aaa, %d, 123 MiB\\nGPU-ccc, 1073741824, [N/A]\\n' ;;\nesac\n", os.Getpid())
	for _, c := range []struct {
		name, smi, visible string
		stated             []string
		ids, source        string
		busy               map[string]string // beginnings
	}{
		{"idle", idle, "", nil, "900 901 902", "this machine", nil},
		{"the busy ones come last", busy, "", nil, "901 900 902", "this machine",
			map[string]string{"900": fmt.Sprintf("pid %d (%s", os.Getpid(), os.Args[0]), "902": "pid 1073741824"}},
		{"inherited", busy, "902,901", nil, "901 902", "CUDA_VISIBLE_DEVICES=902,901", map[string]string{"902": "pid"}},
		{"inherited, with blanks", idle, " 902 , 901 ", nil, "902 901", "CUDA_VISIBLE_DEVICES=902 , 901", nil},
		{"inherited, by UUID", busy, "GPU-ccc,GPU-bbb", nil, "GPU-bbb GPU-ccc", "CUDA_VISIBLE_DEVICES=GPU-ccc,GPU-bbb", map[string]string{"GPU-ccc": "pid"}},
		{"inherited, up to the first that is none", idle, "901,-1,902", nil, "901", "CUDA_VISIBLE_DEVICES=901,-1,902", nil},
		{"none visible", idle, "-1", nil, "", "CUDA_VISIBLE_DEVICES=-1", nil},
		{"stated", busy, "901", []string{"907", "900"}, "907 900", "local.gpus", map[string]string{"900": "pid"}},
		{"garbage", "printf 'NVIDIA-SMI has failed, really, truly\\n\\n,,\\n'\n", "901", nil, "901", "CUDA_VISIBLE_DEVICES=901", nil},
		{"a failure", "echo '0, GPU-aaa'; exit 9\n", "901", nil, "901", "CUDA_VISIBLE_DEVICES=901", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			smi(t, c.smi)
			d := FindDevices(context.Background(), c.stated, func(name string) string {
				return map[string]string{"CUDA_VISIBLE_DEVICES": c.visible}[name]
			})
			if got := strings.Join(d.IDs, " "); got != c.ids || d.Source != c.source || len(d.Busy) != len(c.busy) {
				t.Errorf("%s of %s, busy %v", got, d.Source, d.Busy)
			}
			for id, who := range c.busy {
				if !strings.HasPrefix(d.Busy[id], who) {
					t.Errorf("GPU %s is used by %q, want %q", id, d.Busy[id], who)
				}
			}
		})
	}
	t.Run("the memory", func(t *testing.T) {
		smi(t, busy)
		d := FindDevices(context.Background(), nil, func(string) string { return "" })
		if !strings.HasSuffix(d.Busy["900"], "), 123 MiB") || d.Busy["902"] != "pid 1073741824" {
			t.Errorf("%v", d.Busy)
		}
	})
	t.Run("held by another run", func(t *testing.T) {
		smi(t, idle)
		f, err := hold(gpuName + "901")
		if err != nil {
			t.Skip(err)
		}
		defer f.Close()
		d := FindDevices(context.Background(), nil, func(string) string { return "" })
		if got := strings.Join(d.IDs, " "); got != "900 902 901" || !strings.HasPrefix(d.Busy["901"], fmt.Sprintf("pid %d (", os.Getpid())) {
			t.Errorf("%s, %v", got, d.Busy)
		}
	})
	t.Run("it hangs", func(t *testing.T) {
		smi(t, "exec sleep 60\n")
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		if d := FindDevices(ctx, nil, func(string) string { return "" }); len(d.IDs) != len(nodes) || len(d.Busy) > 0 {
			t.Errorf("%+v", d)
		}
	})
	t.Run("what does not answer is asked once", func(t *testing.T) {
		asked := filepath.Join(t.TempDir(), "asked")
		smi(t, "echo once >> "+asked+"; exit 9\n")
		FindDevices(context.Background(), nil, func(string) string { return "" })
		if data, err := os.ReadFile(asked); string(data) != "once\n" {
			t.Errorf("asked %q, %v", data, err)
		}
	})
}
