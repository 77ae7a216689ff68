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

// GPUs is the number of GPUs that the run holds at the same time, as far as the
// plan tells: the parallel sizes of a gym model may be known to its servers alone.
func GPUs(p *plan.Plan) int {
	n := 0
	if p.Workload != plan.Relax {
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

// DriverGPU names the model for whose sake the driver has to run on a node with
// GPUs although it uses none itself, or "". NeMo Gym reads vLLM's flags in a
// process beside the driver, and vLLM's parser ends with "Failed to infer device
// type" where there is no GPU. Source: _configure_vllm_serve in
// responses_api_models/local_vllm_model/app.py of nemo-gym 0.7.0; vLLM 0.24.0.
func DriverGPU(p *plan.Plan) string {
	if p.Workload == plan.Gym {
		for _, i := range p.Instances {
			if i.Value.NumGPUs > 0 {
				return i.Key
			}
		}
	}
	return ""
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
