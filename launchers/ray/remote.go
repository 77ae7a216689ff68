package ray

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/rundir"
)

// Metadata of the job of a run: what finds it, and tells what it is, from any
// machine.
const (
	metaRun      = "genrm_run_id"
	metaHash     = "genrm_plan_hash"
	metaVersion  = "genrm_version"
	metaName     = "genrm_name"
	metaWorkload = "genrm_workload"
	metaUser     = "genrm_user"
	metaHost     = "genrm_host"
	metaCreated  = "genrm_created" // RFC 3339
)

// metaOwn are the names of metadata that genrm writes.
var metaOwn = []string{metaRun, metaHash, metaVersion, metaName, metaWorkload, metaUser, metaHost, metaCreated}

// Found is a run that a cluster knows.
type Found struct {
	Info   rundir.Info
	Job    Job
	Status *rundir.Status
}

// Runs are the runs whose jobs a cluster keeps a record of, whoever launched
// them, the newest last. Jobs that genrm did not launch are left out; foreign are
// their submission ids.
func Runs(ctx context.Context, address string, env []string, version string) (runs []Found, foreign []string, err error) {
	h, err := headers(nil, bind.Getenv(env))
	if err != nil {
		return nil, nil, err
	}
	var all []struct {
		record
		ID string `json:"submission_id"` // null for what was started on a node by hand
	}
	if err := newClient(address, h, version).do(ctx, http.MethodGet, "/api/jobs/", nil, &all); err != nil {
		return nil, nil, err
	}
	for _, j := range all {
		m := j.Metadata
		id := m[metaRun]
		if attempt, ok := strings.CutPrefix(j.ID, id+"-"); id == "" || !ok {
			if j.ID != "" {
				foreign = append(foreign, j.ID)
			}
			continue
		} else if n, err := strconv.Atoi(attempt); err != nil || n < 1 || !submissionID.MatchString(id) { // the id becomes the name of a folder
			foreign = append(foreign, j.ID)
			continue
		}
		submitted := time.UnixMilli(j.Start).UTC()
		created, err := time.Parse(time.RFC3339, m[metaCreated])
		if err != nil {
			created = submitted
		}
		f := Found{
			Info: rundir.Info{ID: id, Name: m[metaName], Workload: m[metaWorkload], Target: string(plan.Ray), Created: created.UTC(),
				PlanHash: m[metaHash], Version: m[metaVersion], Host: m[metaHost], User: m[metaUser]},
			Job:    Job{ID: j.ID, Address: address, Submitted: &submitted},
			Status: &rundir.Status{RunID: id, Name: m[metaName], Workload: m[metaWorkload], Target: string(plan.Ray), Attempt: 1, JobID: j.ID, Processes: []rundir.Process{}},
		}
		merge(f.Status, j.record)
		runs = append(runs, f)
	}
	slices.SortStableFunc(runs, func(a, b Found) int { return a.Info.Created.Compare(b.Info.Created) })
	return runs, foreign, nil
}
