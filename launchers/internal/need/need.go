// Package need says what a plan asks of the machines, as far as the plan alone
// tells.
//
// It may not know any target, nor touch a machine.
package need

import (
	"fmt"
	"slices"

	"genrm.dev/genrm/compiler/plan"
)

// GPUs is the number of GPUs that the run holds at the same time, 0 if the plan
// does not tell (gym).
func GPUs(p *plan.Plan) int {
	n := 0
	if p.Workload == plan.Serve {
		for _, i := range p.Instances {
			n += i.Value.NumGPUs
		}
		return n
	}
	pools := map[string]int{} // of a pool, the GPUs: roles of one pool share them
	for _, r := range p.Roles {
		pool := r.Value.Pool
		if pool == "" {
			pool = r.Key
		}
		for _, b := range r.Value.Bundles {
			pools[pool] = max(pools[pool], b+1)
		}
	}
	for _, k := range pools {
		n += k
	}
	return n
}

// Ports is the number of free ports that a node must find for the run: one for
// each purpose of each process, whether its argv or its environment asks.
func Ports(p *plan.Plan) int {
	launch := p.Launch.Argv
	if p.Gateway != nil {
		launch = append(slices.Clone(launch), p.Gateway.Port)
	}
	n := count(launch, p.Launch.Env)
	for _, i := range p.Instances {
		for _, argv := range i.Value.Argv {
			n += count(argv, i.Value.Env)
		}
	}
	return n
}

// count counts the different port purposes of one process.
func count(argv []plan.Arg, env plan.Env) int {
	seen := map[string]bool{}
	add := func(a plan.Arg) {
		for _, h := range a.Placeholders() {
			if h.Kind == "port" {
				seen[h.Name] = true
			}
		}
	}
	for _, a := range argv {
		add(a)
	}
	for _, e := range env {
		add(e.Value.Text)
	}
	return len(seen)
}

// Count is a number with its word: "1 GPU", "2 GPUs".
func Count(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
