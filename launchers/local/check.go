// Package local is the target on the machine where the user types.
//
// Its rules need no machine: whether the GPUs and ports are free there is found
// when the run starts.
package local

import (
	"fmt"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
)

type checker struct{}

// Checker returns the rules of the local target.
func Checker() plan.Checker { return checker{} }

func (checker) Target() plan.Target { return plan.Local }

func (checker) Check(p *plan.Plan) diag.List {
	var l diag.List
	settings, _ := p.Settings.Get("local")
	if n := p.Cluster.NodesNeeded; n > 1 {
		at := "target"
		if !p.Positions[at].IsValid() { // chosen on the command line
			at = "cluster.gpus_per_node"
		}
		l.Add(p.Finding("GRM8102", diag.Error, at, fmt.Sprintf("the run needs %d nodes, but local is one machine", n),
			fmt.Sprintf("%s on nodes of %d.", need.Count(need.GPUs(p), "GPU"), p.Cluster.GPUsPerNode),
			"use target slurm, ray or kuberay, or engines and roles that fit one node"))
	}
	if gpus := settings.Field("gpus"); gpus.OK() {
		seen := map[string]bool{}
		ok := true
		for i, g := range gpus.Items {
			if !g.OK() {
				ok = false
				continue
			}
			if seen[g.Text] {
				l.Add(p.Finding("GRM8105", diag.Error, fmt.Sprintf("local.gpus[%d]", i), "GPU "+g.Text+" is listed twice",
					"Two engines would be started on the same memory.", "list each GPU once"))
				ok = false
			}
			seen[g.Text] = true
		}
		if n := need.GPUs(p); ok && n > len(gpus.Items) {
			l.Add(p.Finding("GRM8101", diag.Error, "local.gpus", fmt.Sprintf("the run needs %s, but local.gpus lists %d", need.Count(n, "GPU"), len(gpus.Items)),
				fmt.Sprintf("%s: %d > %d.", byUser(p), n, len(gpus.Items)), "list more GPUs, or use fewer"))
		}
	}
	if ports := settings.Field("ports"); ports.OK() && len(ports.Items) == 2 {
		first, ok1 := ports.Items[0].AsInt()
		last, ok2 := ports.Items[1].AsInt()
		n := int64(need.Ports(p))
		switch {
		case !ok1 || !ok2:
		case first > last:
			l.Add(p.Finding("GRM8103", diag.Error, "local.ports", fmt.Sprintf("the first port, %d, is above the last, %d", first, last), "",
				fmt.Sprintf("write ports: [%d, %d]", last, first)))
		case last-first+1 < n:
			l.Add(p.Finding("GRM8104", diag.Error, "local.ports", fmt.Sprintf("%d ports are too few: the run needs %d", last-first+1, n),
				fmt.Sprintf("%d to %d; each engine takes a port for its clients and one or more for its own parts.", first, last),
				fmt.Sprintf("write ports: [%d, %d] or a wider range", first, first+n-1)))
		}
	}
	for _, i := range p.Instances {
		if i.Value.Image != "" {
			l.Add(p.Finding("GRM8107", diag.Warning, tree.Join("serve.instances", i.Key)+".image", "image has no effect on the local target",
				"Engines are started as programs of this machine, from the PATH.", "remove it, or use target slurm or kuberay"))
		}
	}
	return l
}

// byUser itemises the GPUs by judge or role.
func byUser(p *plan.Plan) string {
	var parts []string
	if p.Workload == plan.Serve {
		for _, i := range p.Instances {
			if i.Value.NumGPUs > 0 {
				parts = append(parts, fmt.Sprintf("%d (%s)", i.Value.NumGPUs, i.Key))
			}
		}
	} else {
		for _, r := range p.Roles {
			if r.Value.Pool == "" || r.Value.Pool == r.Key {
				parts = append(parts, fmt.Sprintf("%d (%s)", r.Value.NumGPUs, r.Key))
			}
		}
	}
	return strings.Join(parts, " + ")
}
