package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/rundir"
)

// ArrayScript is the job of a sweep: each task runs the job of one variant, the
// very file that emit writes for it. Directives are the same for all of them.
func ArrayScript(plans []*plan.Plan) []byte {
	s, _ := plans[0].Settings.Get("slurm")
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("#!/usr/bin/env bash")
	line("# %s: one task for each of", emit.Header)
	for i, p := range plans {
		line("#   %d  %s", i, p.Name)
	}
	for _, d := range Directives(plans[0]) {
		line("#SBATCH %s", d)
	}
	tasks := fmt.Sprintf("0-%d", len(plans)-1)
	if n := s.Size("array_throttle"); n > 0 {
		tasks += "%" + strconv.Itoa(n)
	}
	line("#SBATCH --array=%s", tasks)
	line("set -euo pipefail")
	line("mapfile -t runs <\"$1\"")
	line("run=${runs[SLURM_ARRAY_TASK_ID]}")
	line(`exec bash "$run/%s" "$run" "$2"`, Script)
	return []byte(b.String())
}

// maxTasks is the usual limit of an array. Source: man slurm.conf, MaxArraySize
// (1001, the highest index being one less).
const maxTasks = 1001

// LaunchArray submits the variants of a sweep as one job array, with a run for
// each. Findings with errors mean that nothing was submitted; then, and after an
// error, no folder is left.
func LaunchArray(ctx context.Context, plans []*plan.Plan, o Options) (runs []*rundir.Run, job *Job, found diag.List, err error) {
	first := Directives(plans[0])
	for _, p := range plans {
		o.Plan = p
		found = append(found, checkHere(ctx, o)...)
		for i, d := range Directives(p) {
			if d.Name != "job-name" && (i >= len(first) || d != first[i]) {
				found.Add(p.Finding("GRM8222", diag.Error, d.Field, fmt.Sprintf("%s asks for %s, unlike %s", p.Name, d, plans[0].Name),
					"The variants of a sweep are the tasks of one job array, which are all asked for alike.", "launch variants that need other nodes, GPUs or limits by themselves: --name"))
				break
			}
		}
	}
	if len(plans) > maxTasks {
		return nil, nil, nil, fmt.Errorf("%d variants are more than the %d tasks of a job array: launch parts of them by --name", len(plans), maxTasks)
	}
	if found.HasErrors() {
		return nil, nil, found, nil
	}
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return nil, nil, nil, err
	}
	dir := filepath.Join(root, ".sweeps", rundir.NewID(plans[0].Name, time.Now()))
	defer func() {
		if err != nil || found.HasErrors() {
			for _, r := range runs {
				err = errors.Join(err, r.Remove())
			}
			err = errors.Join(err, os.RemoveAll(dir))
			runs = nil
		}
	}()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, nil, fmt.Errorf("the folder of runs cannot be written: %w; name another, which the nodes see, by GENRM_RUNS or cluster.run_root", err)
	}
	var list strings.Builder
	for i, p := range plans {
		o.Plan = p
		run, err := freeze(o, rundir.NewID(p.Name, time.Now()), nil)
		if err != nil {
			return runs, nil, nil, err
		}
		runs = append(runs, run)
		if strings.ContainsAny(run.Dir, "\n\\") {
			return runs, nil, nil, fmt.Errorf("the folder of runs, %q, has a backslash or a line end in its name: name another by GENRM_RUNS", root)
		}
		fmt.Fprintln(&list, run.Dir)
		if err := os.Symlink(filepath.Join(dir, fmt.Sprintf("job-%d.log", i)), run.LogPath("job")); err != nil {
			return runs, nil, nil, err
		}
	}
	script, names := filepath.Join(dir, "array.sbatch"), filepath.Join(dir, "runs")
	if err := errors.Join(os.WriteFile(script, ArrayScript(plans), 0o755), os.WriteFile(names, []byte(list.String()), 0o644)); err != nil {
		return runs, nil, nil, err
	}
	id, cluster, err := sbatch(ctx, plans[0], o, "--output="+escapePercent(dir)+"/job-%a.log", "--comment=genrm:"+filepath.Base(dir), script, names, runs[0].Binary)
	if err != nil {
		var no *Refused
		if errors.As(err, &no) {
			found.Add(no.Finding)
			err = nil
		}
		return runs, nil, found, err
	}
	for i, run := range runs {
		if err := run.Write(JobFile, Job{fmt.Sprintf("%s_%d", id, i), cluster, time.Now().UTC()}); err != nil {
			return nil, nil, nil, fmt.Errorf("job %s is submitted, and %s does not know it: %w", id, run.ID, err)
		}
	}
	return runs, &Job{id, cluster, time.Now().UTC()}, found, nil
}
