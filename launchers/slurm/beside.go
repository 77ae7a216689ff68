package slurm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/rundir"
)

// LaunchBeside submits a training run and the judges that its driver asks as one
// heterogeneous job, so that both start together: a run for each. Findings with
// errors mean that nothing was submitted; then, and after an error, no folder is
// left.
func LaunchBeside(ctx context.Context, o Options, judges *plan.Plan) (run, beside *rundir.Run, job *Job, found diag.List, err error) {
	oj := o
	oj.Plan = judges
	found = append(checkHere(ctx, o), checkHere(ctx, oj)...)
	if loopback(judges.Gateway.Host) {
		found.Add(judges.Finding("GRM8223", diag.Error, "serve.gateway", "the judges' gateway listens on a loopback address",
			"The driver runs on another node of the job and could not ask it.", `write gateway: {host: "0.0.0.0", api_key: {env: "GENRM_API_KEY"}}`))
	}
	if found.HasErrors() {
		return nil, nil, nil, found, nil
	}
	defer func() {
		if err == nil && !found.HasErrors() {
			return
		}
		for _, r := range []*rundir.Run{run, beside} {
			if r != nil {
				err = errors.Join(err, r.Remove())
			}
		}
		run, beside = nil, nil
	}()
	if beside, err = freeze(oj, rundir.NewID(judges.Name, time.Now()), nil); err != nil {
		return
	}
	o.beside = judges
	o.Judges = &graph.Judges{RunID: beside.ID, Dir: beside.Dir, Stop: true}
	run, err = freeze(o, rundir.NewID(o.Plan.Name, time.Now()), func(g *graph.Graph) ([]byte, error) {
		var jg graph.Graph
		if err := beside.Read(rundir.GraphFile, &jg); err != nil {
			return nil, err
		}
		return besideScript(o.Plan, judges, g, &jg)
	})
	if err != nil {
		return
	}
	if job, err = submit(ctx, o, run, beside.Dir); err != nil {
		var no *Refused
		if errors.As(err, &no) {
			found.Add(no.Finding)
			err = nil
		}
		return
	}
	if err = beside.Write(JobFile, Job{job.ID + "+1", job.Cluster, job.Submitted}); err != nil {
		err = fmt.Errorf("job %s is submitted, and %s does not know it: %w", job.ID, beside.ID, err)
	}
	return
}

// loopback reports whether only its own machine reaches a host.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
