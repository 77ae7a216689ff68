package bind

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/launchers/proc"
)

// Devices is what a machine offers.
type Devices struct {
	IDs    []string // as CUDA_VISIBLE_DEVICES names them, the free ones first
	Source string   // where the list comes from, for people
	Busy   map[string]string
	Known  bool // nvidia-smi was asked, or the list is the user's: its length is a fact
}

// FindDevices lists the GPUs that a run may use: stated (local.gpus), else those
// of CUDA_VISIBLE_DEVICES, else all of the machine. Those that a process computes
// on, or that another run holds, come last and are in Busy with who it is.
func FindDevices(ctx context.Context, stated []string, getenv func(string) string) Devices {
	d := Devices{Busy: map[string]string{}}
	present, uuids := machine(ctx)
	visible := strings.TrimSpace(getenv("CUDA_VISIBLE_DEVICES"))
	switch {
	case len(stated) > 0:
		d.IDs, d.Source = slices.Clone(stated), "local.gpus"
	case visible != "":
		for _, id := range strings.Split(visible, ",") {
			if id = strings.TrimSpace(id); id == "-1" || id == "" {
				break // what follows is not seen. Source: CUDA C++ Programming Guide, environment variables
			} else {
				d.IDs = append(d.IDs, id)
			}
		}
		d.Source = "CUDA_VISIBLE_DEVICES=" + visible
	default:
		d.IDs, d.Source = present, "this machine"
	}
	var computing map[string]string
	if len(uuids) > 0 { // what did not answer once is not waited for again
		computing = computeApps(ctx)
	}
	names := heldNames()
	for _, id := range d.IDs {
		uuid := id
		if u, ok := uuids[id]; ok {
			uuid = u
		}
		if who, ok := computing[uuid]; ok {
			d.Busy[id] = who
		} else if slices.Contains(names, gpuName+id) {
			d.Busy[id] = gpuHolder(id)
		}
	}
	slices.SortStableFunc(d.IDs, func(a, b string) int {
		_, x := d.Busy[a]
		_, y := d.Busy[b]
		switch {
		case x == y:
			return 0
		case x:
			return 1
		}
		return -1
	})
	return d
}

// gpuHolder describes the run that holds a GPU.
func gpuHolder(id string) string {
	if pid := holder(gpuName + id); pid > 0 {
		return fmt.Sprintf("pid %d (%s)", pid, proc.Command(pid))
	}
	return "another run"
}

// machine lists the GPUs of the machine, and the UUID of each.
func machine(ctx context.Context) ([]string, map[string]string) {
	var ids []string
	uuids := map[string]string{}
	for _, row := range nvidiaSMI(ctx, "--query-gpu=index,uuid") {
		if len(row) == 2 {
			ids = append(ids, row[0])
			uuids[row[0]] = row[1]
		}
	}
	if ids == nil {
		nodes, _ := filepath.Glob("/dev/nvidia[0-9]*") // a fixed pattern
		for _, n := range nodes {
			if i, err := strconv.Atoi(strings.TrimPrefix(n, "/dev/nvidia")); err == nil {
				ids = append(ids, strconv.Itoa(i))
			}
		}
		slices.SortFunc(ids, func(a, b string) int { x, _ := strconv.Atoi(a); y, _ := strconv.Atoi(b); return x - y })
	}
	return ids, uuids
}

// computeApps maps the UUID of a GPU to who computes on it.
func computeApps(ctx context.Context) map[string]string {
	out := map[string]string{}
	for _, row := range nvidiaSMI(ctx, "--query-compute-apps=gpu_uuid,pid,used_memory") {
		if len(row) != 3 {
			continue
		}
		who := "pid " + row[1]
		if pid, err := strconv.Atoi(row[1]); err == nil {
			if c := proc.Command(pid); c != "" {
				who += " (" + c + ")"
			}
		}
		if row[2] != "" && !strings.HasPrefix(row[2], "[") {
			who += ", " + row[2]
		}
		out[row[0]] = who
	}
	return out
}

func nvidiaSMI(ctx context.Context, query string) [][]string {
	path, err := exec.LookPath("nvidia-smi")
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, query, "--format=csv,noheader")
	cmd.Env = os.Environ()
	cmd.WaitDelay = time.Second
	text, err := cmd.Output()
	if err != nil {
		return nil
	}
	var out [][]string
	for line := range strings.Lines(string(text)) {
		var row []string
		for _, cell := range strings.Split(line, ",") {
			row = append(row, strings.TrimSpace(cell))
		}
		out = append(out, row)
	}
	return out
}
