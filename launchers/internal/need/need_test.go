package need

import (
	"testing"

	"genrm.dev/genrm/compiler/plan"
)

func TestNeed(t *testing.T) {
	serve := &plan.Plan{Workload: plan.Serve, Gateway: &plan.Gateway{Port: plan.Port("gateway")}}
	two := &plan.Instance{NumGPUs: 4, Argv: [][]plan.Arg{{"--port=" + plan.Port("http"), "--again=" + plan.Port("http")}, {"--port=" + plan.Port("http")}}}
	serve.Launch.Env.Set("GENRM_PORT_GATEWAY", plan.EnvValue{Text: plan.Port("gateway")}) // the same port
	two.Env.Set("VLLM_PORT", plan.EnvValue{Text: plan.Port("vllm")})
	serve.Instances.Set("a", two)
	serve.Instances.Set("b", &plan.Instance{NumGPUs: 1, Argv: [][]plan.Arg{{plan.Lit("{port:http}")}}})
	if got := GPUs(serve); got != 5 {
		t.Errorf("serve: %d GPUs, want 5", got)
	}
	if got := Ports(serve); got != 5 { // two processes × (http, vllm), and the gateway; text of the user's asks for none
		t.Errorf("%d ports, want 5", got)
	}
	relax := &plan.Plan{Workload: plan.Relax}
	relax.Roles.Set("actor", plan.Role{NumGPUs: 8, Bundles: []int{0, 1, 2, 3, 4, 5, 6, 7}, Pool: "actor"})
	relax.Roles.Set("rollout", plan.Role{NumGPUs: 4, Bundles: []int{0, 1, 2, 3}, Pool: "actor"})
	relax.Roles.Set("reference", plan.Role{NumGPUs: 2, Bundles: []int{0, 1}})
	if got := GPUs(relax); got != 10 {
		t.Errorf("relax: %d GPUs, want 10", got)
	}
	gym := &plan.Plan{Workload: plan.Gym}
	gym.Instances.Set("remote", &plan.Instance{})
	if got := DriverGPU(gym); got != "" {
		t.Errorf("gym: the driver needs a GPU for %q", got)
	}
	gym.Instances.Set("judge", &plan.Instance{NumGPUs: 8})
	gym.Instances.Set("policy", &plan.Instance{NumGPUs: 2})
	if n, key := GPUs(gym), DriverGPU(gym); n != 10 || key != "judge" {
		t.Errorf("gym: %d GPUs, want 10; the driver needs one for %q", n, key)
	}
}
