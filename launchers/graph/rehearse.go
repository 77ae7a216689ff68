package graph

import (
	"encoding/json"
	"fmt"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// Rehearse returns the plan with every judge replaced by a simulator that echoes
// what it is asked, behind the gateway: ports, files, routes and the life of a
// run are tried without a model or a GPU. A driver is not started, since it
// would start engines of its own: what is left of relax and gym are their
// judges.
func Rehearse(p *plan.Plan) (*plan.Plan, error) {
	out := *p
	out.Workload, out.Instances, out.Artifacts, out.Roles = plan.Serve, nil, nil, nil
	type route struct {
		RouteKey       string      `json:"route_key"`
		Engine         string      `json:"engine"`
		Model          string      `json:"model"`
		Replicas       int         `json:"replicas"`
		SamplingConfig *tree.Value `json:"sampling_config"`
	}
	config := struct {
		Host          string      `json:"host"`
		Port          any         `json:"port"`
		FailurePolicy string      `json:"failure_policy"`
		APIKey        *tree.Value `json:"api_key,omitempty"`
		Routes        []route     `json:"routes"`
	}{Host: "127.0.0.1", Port: string(plan.Port("gateway")), FailurePolicy: "error"}
	gateway := &plan.Gateway{Host: config.Host, Port: plan.Port("gateway"), FailurePolicy: config.FailurePolicy}
	if p.Gateway != nil {
		gateway = p.Gateway
		config.Host, config.FailurePolicy = gateway.Host, gateway.FailurePolicy
		if n, ok := gateway.Settings.Field("port").AsInt(); ok {
			config.Port = n
		}
		if key := gateway.Settings.Field("api_key"); key.OK() {
			config.APIKey = key
		}
	}
	out.Gateway = gateway
	for _, e := range p.Instances {
		if e.Value.Engine == "sim" { // it is one already
			out.Instances.Set(e.Key, e.Value)
			for _, a := range p.Artifacts {
				if a.Name == "sim-"+e.Key+".json" {
					out.Artifacts = append(out.Artifacts, a)
				}
			}
			config.Routes = append(config.Routes, route{e.Key, "sim", e.Value.Model, 1, e.Value.SamplingConfig})
			continue
		}
		model := e.Value.Model
		if model == "" {
			model = e.Key
		}
		script, err := json.Marshal(map[string]any{"model": model, "echo": true})
		if err != nil {
			return nil, err
		}
		replicas := max(1, e.Value.Replicas)
		name := fmt.Sprintf("rehearsal-%d.json", len(out.Instances))
		out.Artifacts = append(out.Artifacts, plan.Artifact{Name: name, Text: string(script) + "\n"})
		in := &plan.Instance{Engine: "sim", Model: model, Replicas: replicas, SamplingConfig: &tree.Value{Kind: tree.Struct}, EngineConfig: &tree.Value{Kind: tree.Struct}, Settings: e.Value.Settings}
		for r := range replicas {
			in.Placement = append(in.Placement, plan.Placement{Replica: r, GPUs: []int{}})
			in.Argv = append(in.Argv, []plan.Arg{"genrm", "sim", "--route-key=" + plan.Lit(e.Key), "--host=" + plan.Host(0), "--port=" + plan.Port("http"), "--script=" + plan.File(name)})
		}
		out.Instances.Set(e.Key, in)
		config.Routes = append(config.Routes, route{e.Key, "sim", model, replicas, in.SamplingConfig})
	}
	if len(out.Instances) == 0 {
		return nil, fmt.Errorf("%s has no judge to rehearse", p.Name)
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	out.Artifacts = append(out.Artifacts, plan.Artifact{Name: "gateway.json", Text: string(text) + "\n"})
	out.Launch = plan.Launch{Argv: []plan.Arg{"genrm", "gateway", "--config=" + plan.File("gateway.json")}}
	if len(gateway.Port.Placeholders()) > 0 {
		out.Launch.Env.Set("GENRM_PORT_GATEWAY", plan.EnvValue{Text: gateway.Port})
	}
	out.Launch.Env.Set("GENRM_UPSTREAMS", plan.EnvValue{Text: plan.Upstreams()})
	out.Cluster.NodesNeeded = 1
	return &out, nil
}
