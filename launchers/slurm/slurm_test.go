package slurm

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"genrm.dev/genrm/compiler"
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/graph"
	"genrm.dev/genrm/launchers/rundir"
)

func compile(t *testing.T, text string) *plan.Plan {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cue")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r := compiler.Compile([]string{path}, compiler.Options{Checks: []plan.Checker{Checker()}})
	if r.Diagnostics.HasErrors() || len(r.Plans) != 1 {
		t.Fatalf("%+v", r.Diagnostics)
	}
	return r.Plans[0]
}

const judges = `name: "judges"
target: "slurm"
cluster: gpus_per_node: 8
serve: instances: quality: {engine: "vllm", model_path: "/models/judge", num_gpus: 4, env: HF_TOKEN: {env: "HF_TOKEN"}}
`

func TestDirectives(t *testing.T) {
	const always = "--job-name=judges --nodes=1 --ntasks-per-node=1"
	export := "--export=ALL"
	for _, c := range []struct{ name, block, want string }{
		{"none", ``, always + " --gpus-per-node=4 " + export},
		{"who and where", `slurm: {partition: "gpu", account: "acct-a", qos: "high", reservation: "r1", constraint: "a100&nvlink", time: "1-00:00:00"}`,
			"--job-name=judges --partition=gpu --account=acct-a --qos=high --reservation=r1 --constraint=a100&nvlink --time=1-00:00:00 --nodes=1 --ntasks-per-node=1 --gpus-per-node=4 " + export},
		{"gres", `slurm: {gpu_request: "gres", gres_type: "h100"}`, always + " --gres=gpu:h100:4 " + export},
		{"typed gpus", `slurm: gres_type: "h100"`, always + " --gpus-per-node=h100:4 " + export},
		{"no gpus", `slurm: gpu_request: "none"`, always + " " + export},
		{"share of the node", `slurm: {cpus: 16, mem: "64G", exclusive: true}`, always + " --gpus-per-node=4 --cpus-per-task=16 --mem=64G --exclusive " + export},
		{"cores of the cluster", `cluster: cpus_per_node: 96`, always + " --gpus-per-node=4 --cpus-per-task=96 " + export},
		{"requeue", `slurm: {requeue: true, signal: "B:TERM@60"}`, always + " --gpus-per-node=4 --requeue --open-mode=append --signal=B:TERM@60 " + export},
		{"no requeue", `slurm: requeue: false`, always + " --gpus-per-node=4 --no-requeue " + export},
		{"directives", `slurm: directives: {"mail-type": "END", overcommit: true, spread: false, nice: 3}`,
			always + " --gpus-per-node=4 --mail-type=END --overcommit --nice=3 " + export},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, d := range Directives(compile(t, judges+c.block)) {
				got = append(got, d.String())
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, " "), c.want)
			}
		})
	}
}

// Text of the user's cannot leave its quotes or its comment, whatever it holds.
func TestScript(t *testing.T) {
	hostile := `"a'b\"c` + "`touch x`" + `$HOME;&&{{x}}\\\n#SBATCH --partition=evil\nü {port:http} {brace}"`
	p := compile(t, `name: "hostile"
target: "slurm"
slurm: {setup: ["export A='it''s'", "module load cuda"], container: {image: "docker://host/img:1.0", mounts: ["/data:/data:ro"]}, cpus: 4, partition: "gpu"}
cluster: gpus_per_node: 8
gym: {config: x: responses_api_models: custom: entrypoint: "app.py", env: {H: `+hostile+`, S: {env: "SECRET"}}}
`)
	text, err := script(p)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), Script)
	if err := os.WriteFile(path, text, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("bash", "-n", path).CombinedOutput(); err != nil {
		t.Errorf("bash -n: %v\n%s", err, out)
	}
	begin := strings.Index(string(text), "\nset -euo pipefail\n")
	if i := strings.Index(string(text)[begin:], "\n#SBATCH"); i >= 0 {
		t.Errorf("a directive after the first command:\n%s", text)
	}
	for _, want := range []string{
		"#SBATCH --partition=gpu\n", "S=$SECRET (a secret)", "--cpus-per-task=4 \\\n", "--cpu-bind=none \\\n",
		"--container-image=docker://host/img:1.0", `--container-mounts="$(dirname -- "$run")":"$(dirname -- "$run")",/data:/data:ro`, "--container-env=LANG,LC_ALL,SECRET",
		"module load cuda",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if m := regexp.MustCompile(`(?m)^#SBATCH --export=.*$`).FindAllString(string(text), -1); len(m) != 1 {
		t.Errorf("%d export directives", len(m))
	}
}

// R7: nothing of an enclosing allocation reaches sbatch, but SLURM_CONF.
func TestEnvironment(t *testing.T) {
	in := []string{"SLURM_JOB_ID=4242", "SLURM_CPUS_PER_TASK=4", "SLURM_CPU_BIND=quiet,mask_cpu:0x0000000F", "SBATCH_PARTITION=debug", "PMIX_RANK=0", "PMI_RANK=0",
		"SRUN_CPUS_PER_TASK=4", "SALLOC_ACCOUNT=x", "SLURM_CONF=/etc/slurm/slurm.conf", "PATH=/bin", "HOME=/root", "SLURMX=1"}
	got, leaked := Environment(in)
	if want := []string{"SLURM_CONF=/etc/slurm/slurm.conf", "PATH=/bin", "HOME=/root", "SLURMX=1"}; !slices.Equal(got, want) || !leaked {
		t.Errorf("%q, %v; want %q", got, leaked, want)
	}
	if _, leaked := Environment([]string{"PATH=/bin"}); leaked {
		t.Error("an allocation is seen where there is none")
	}
}

// What sbatch was seen to say, and the field that it is about.
func TestRefusal(t *testing.T) {
	p := compile(t, judges+`slurm: {partition: "nope", time: "10", account: "a", qos: "q", constraint: "c", reservation: "r", mem: "1T", cpus: 64, signal: "B:TERM@60", container: image: "x/y:1"}`)
	for said, want := range map[string]string{
		"sbatch: error: invalid partition specified: nope\nsbatch: error: Batch job submission failed: Invalid partition name specified": "slurm.partition",
		"sbatch: error: Invalid --time specification":                                                                                                         "slurm.time",
		"sbatch: error: Batch job submission failed: Requested node configuration is not available":                                                           "cluster.gpus_per_node",
		"sbatch: error: Batch job submission failed: Invalid feature specification":                                                                           "slurm.constraint",
		"sbatch: error: Batch job submission failed: Requested reservation is invalid":                                                                        "slurm.reservation",
		"sbatch: error: Memory specification can not be satisfied\nsbatch: error: Batch job submission failed: Requested node configuration is not available": "slurm.mem",
		"sbatch: error: CPU count per node can not be satisfied\nsbatch: error: Batch job submission failed: Requested node configuration is not available":   "slurm.cpus",
		"sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified":                                              "slurm.account",
		"sbatch: error: Batch job submission failed: Invalid qos specification":                                                                               "slurm.qos",
		"sbatch: error: Invalid --signal specification":                                                                                                       "slurm.signal",
		"sbatch: something new": "slurm",
	} {
		err := refusal(p, said, errors.New("exit status 1"))
		var no *Refused
		if !errors.As(err, &no) {
			t.Errorf("%s: %v", said, err)
			continue
		}
		if no.Finding.Path != want || !no.Finding.Pos.IsValid() || strings.Contains(no.Finding.Summary, "sbatch: error") {
			t.Errorf("%s: %+v, want %s", said, no.Finding, want)
		}
	}
	var gone *Unreachable
	if err := refusal(p, "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", errors.New("1")); !errors.As(err, &gone) {
		t.Errorf("a controller that is away: %v", err)
	}
}

// How what Slurm says and what the run says come together.
func TestMerge(t *testing.T) {
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		name  string
		own   rundir.Status
		slurm record
		state rundir.State
		code  *int
		want  string // in the reason
	}{
		{"both well", rundir.Status{State: rundir.Succeeded, ExitCode: code(0)}, record{state: "COMPLETED"}, rundir.Succeeded, code(0), ""},
		{"memory, though the script ended with 0", rundir.Status{State: rundir.Succeeded, ExitCode: code(0)}, record{state: "OUT_OF_MEMORY", signal: 125}, rundir.Failed, code(3), "slurm.mem"},
		{"completed, and the run is silent", rundir.Status{State: rundir.Starting}, record{state: "COMPLETED"}, rundir.Unknown, nil, "did not say"},
		{"completed with a failed step", rundir.Status{State: rundir.Succeeded, ExitCode: code(0)}, record{state: "COMPLETED", derived: 7}, rundir.Failed, code(3), "COMPLETED"},
		{"a driver's status", rundir.Status{State: rundir.Failed, ExitCode: code(3), Reason: "the driver ended with status 3"}, record{state: "FAILED", code: 3}, rundir.Failed, code(3), "driver"},
		{"failed before the supervisor", rundir.Status{State: rundir.Starting}, record{state: "FAILED", code: 127}, rundir.Failed, code(127), "127:0"},
		{"preempted, waits again", rundir.Status{State: rundir.Lost}, record{state: "PREEMPTED"}, rundir.Pending, nil, "preempted"},
		{"requeued", rundir.Status{State: rundir.Stopped, ExitCode: code(143)}, record{state: "PENDING", reason: "BeginTime", restarts: 1, start: "2027-01-01T00:00:00"}, rundir.Pending, nil, "may start at 2027"},
		{"runs again, and has not begun to tell", rundir.Status{State: rundir.Failed, Attempt: 1, ExitCode: code(3)}, record{state: "RUNNING", restarts: 1}, rundir.Starting, nil, ""},
		{"running", rundir.Status{State: rundir.Ready, Attempt: 1}, record{state: "RUNNING"}, rundir.Ready, nil, ""},
		{"completing, ended", rundir.Status{State: rundir.Stopped, Attempt: 1, ExitCode: code(143)}, record{state: "COMPLETING"}, rundir.Stopping, nil, ""},
		{"cancelled in the queue", rundir.Status{State: rundir.Starting}, record{state: "CANCELLED"}, rundir.Stopped, code(143), "cancelled"},
		{"cancelled, and stopped in order", rundir.Status{State: rundir.Stopped, ExitCode: code(0), Reason: "stopped by me"}, record{state: "CANCELLED"}, rundir.Stopped, code(0), "stopped by me"},
		{"its time was over", rundir.Status{State: rundir.Stopped, ExitCode: code(143), Reason: "stopped by a signal"}, record{state: "TIMEOUT"}, rundir.Failed, code(143), "slurm.time"},
		{"node failed", rundir.Status{State: rundir.Ready}, record{state: "NODE_FAIL"}, rundir.Failed, code(3), "node failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.own
			merge(&got, c.slurm, "7", c.own.State.Ended() && c.own.State != rundir.Lost)
			same := (got.ExitCode == nil) == (c.code == nil) && (c.code == nil || *got.ExitCode == *c.code)
			if got.State != c.state || !same || !strings.Contains(got.Reason, c.want) {
				t.Errorf("%s, exit %v, %q", got.State, got.ExitCode, got.Reason)
			}
		})
	}
}

// stub puts programs on PATH.
func stub(t *testing.T, programs map[string]string) []string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+body), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
}

// Who interrupts a command is not told that the controller is slow.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := client{env: stub(t, map[string]string{"sbatch": "sleep 60"})}.run(ctx, "sbatch")
	if err == nil || !strings.Contains(err.Error(), "interrupted before sbatch answered") {
		t.Error(err)
	}
}

// A signal while sbatch runs: the controller may have the job already, so its id
// is waited for.
func TestInterruptedSubmit(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	o := Options{Plan: compile(t, judges+`slurm: partition: "gpu"`), Root: filepath.Join(dir, "runs"), WorkDir: dir,
		Env: append(stub(t, map[string]string{"sbatch": "echo 7"}), "HF_TOKEN=0123456789abcdef")}
	run, job, found, err := Launch(ctx, o)
	if err != nil || found.HasErrors() || job.ID != "7" {
		t.Fatalf("%v %+v %+v %v", run, job, found, err)
	}
}

func TestQuery(t *testing.T) {
	const line = "JobId=7 JobName=x UserId=root(0) Reason=Resources JobState=PENDING Requeue=1 Restarts=2 ExitCode=0:0 DerivedExitCode=3:0 StartTime=Unknown NodeList=node1 Comment=genrm:x StdOut=/x\n"
	for _, c := range []struct {
		name     string
		programs map[string]string
		want     string
		err      error
	}{
		{"accounting knows the end", map[string]string{"sacct": `echo '7|OUT_OF_MEMORY|0:125|0:0|0|n1|None'`}, "OUT_OF_MEMORY", nil},
		{"accounting has cancelled by", map[string]string{"sacct": `echo '7|CANCELLED by 0|0:0|0:0|0|n1|None'`}, "CANCELLED", nil},
		{"no accounting", map[string]string{"sacct": `echo 'Slurm accounting storage is disabled' >&2; exit 1`, "scontrol": `cat <<'E'` + "\n" + line + "E\n"}, "PENDING", nil},
		{"nobody knows", map[string]string{"sacct": "", "scontrol": `echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1`}, "", errNoRecord},
		{"nobody knows an array's task", map[string]string{"sacct": "", "scontrol": `echo 'Job 7 not found'; exit 1`}, "", errNoRecord},
		{"accounting lags", map[string]string{"sacct": "", "scontrol": "echo '" + strings.TrimSpace(line) + "'"}, "PENDING", nil},
		{"accounting is behind, the controller has forgotten", map[string]string{"sacct": `echo '7|RUNNING|0:0|0:0|0|n1|None'`, "scontrol": `echo 'Invalid job id specified' >&2; exit 1`}, "RUNNING", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := query(context.Background(), client{env: stub(t, c.programs)}, "7")
			if r.state != c.want || !errors.Is(err, c.err) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	var gone *Unreachable
	_, err := query(context.Background(), client{env: stub(t, map[string]string{"sacct": "exit 1", "scontrol": `echo 'Unable to contact slurm controller' >&2; exit 1`})}, "7")
	if !errors.As(err, &gone) {
		t.Errorf("a controller that is away: %v", err)
	}
	if _, err := query(context.Background(), client{env: []string{"PATH=/nowhere"}}, "7"); !errors.As(err, &gone) {
		t.Errorf("no Slurm here: %v", err)
	}
}

// R7: what sbatch is given, from inside another job.
func TestSubmit(t *testing.T) {
	dir := t.TempDir()
	p := compile(t, judges+`slurm: {partition: "gpu-batch", export: ["HOME"]}`) // without PATH sbatch is found all the same
	env := append(stub(t, map[string]string{"sbatch": `env >` + dir + `/env; printf '%s\n' "$@" >` + dir + `/argv; echo "7;other"`}), "OTHER=1", "HOME=/root",
		"SLURM_JOB_ID=4242", "SBATCH_PARTITION=debug", "PMIX_RANK=0", "SLURM_CONF=/etc/slurm/slurm.conf", "HF_TOKEN=0123456789abcdef")
	other := filepath.Join(dir, "genrm-arm64")
	if err := os.WriteFile(other, []byte("for other processors"), 0o755); err != nil {
		t.Fatal(err)
	}
	run, job, found, err := Launch(context.Background(), Options{Plan: p, Root: filepath.Join(dir, "100% runs"), WorkDir: dir, Env: env, Binary: other})
	if err != nil || found.HasErrors() || job.ID != "7" || job.Cluster != "other" {
		t.Fatalf("%+v %+v %v", job, found, err)
	}
	if !slices.ContainsFunc([]string{found[0].Code}, func(c string) bool { return c == "GRM8221" }) {
		t.Errorf("the allocation is not told: %+v", found)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "env"))
	for _, name := range []string{"SLURM_JOB_ID", "SBATCH_PARTITION", "PMIX_RANK", "OTHER"} {
		if strings.Contains(string(got), name+"=") {
			t.Errorf("%s reached sbatch", name)
		}
	}
	for _, want := range []string{"SLURM_CONF=/etc/slurm/slurm.conf\n", "HOME=/root\n", "HF_TOKEN=0123456789abcdef\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q was lost", want)
		}
	}
	argv, _ := os.ReadFile(filepath.Join(dir, "argv"))
	for _, want := range []string{"--parsable\n", "--comment=genrm:" + run.ID + "\n", "100%% runs/", run.Path(Script) + "\n" + run.Dir + "\n"} {
		if !strings.Contains(string(argv), want) {
			t.Errorf("no %q in sbatch's arguments:\n%s", want, argv)
		}
	}
	if err := run.Verify(); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(run.Binary); err != nil || string(data) != "for other processors" {
		t.Errorf("the nodes get %q %v", data, err)
	}
	for _, f := range []string{rundir.PlanFile, rundir.GraphFile, Script, JobFile} {
		data, err := os.ReadFile(run.Path(f))
		if err != nil || strings.Contains(string(data), "0123456789abcdef") {
			t.Errorf("%s: %v, or it holds the secret", f, err)
		}
	}
	// A refusal leaves nothing.
	env[0] = stub(t, map[string]string{"sbatch": `echo 'sbatch: error: invalid partition specified: gpu-batch' >&2; exit 1`})[0]
	root := filepath.Join(dir, "refused")
	_, _, found, err = Launch(context.Background(), Options{Plan: p, Root: root, WorkDir: dir, Env: env})
	if err != nil || !found.HasErrors() || found[len(found)-1].Path != "slurm.partition" {
		t.Errorf("%+v %v", found, err)
	}
	if runs, err := rundir.List(root); err != nil || len(runs) != 0 {
		t.Errorf("%v is left, %v", runs, err)
	}
	// So does a secret that is not set.
	_, _, found, err = Launch(context.Background(), Options{Plan: p, Root: root, WorkDir: dir, Env: env[:1]})
	if err != nil || len(found) != 1 || found[0].Code != "GRM8117" {
		t.Errorf("%+v %v", found, err)
	}
}

// A run that Slurm forgot is unknown only after a while, and only if it did not
// say how it ended.
func TestForgotten(t *testing.T) {
	env := stub(t, map[string]string{"sacct": "", "scontrol": `echo 'Invalid job id specified' >&2; exit 1`})
	run, err := rundir.Create(t.TempDir(), rundir.Info{ID: "x-1", Name: "x", Target: "slurm"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A task of an array that was cancelled in the queue leaves no record.
	if err := run.Write(JobFile, Job{ID: "40_2", Submitted: time.Now().Add(-time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if st, err := Status(context.Background(), run, env); err != nil || st.State != rundir.Stopped {
		t.Errorf("a cancelled task: %+v %v", st, err)
	}
	for _, c := range []struct {
		submitted time.Duration
		own       rundir.State
		want      rundir.State
	}{
		{0, rundir.Starting, rundir.Pending},
		{time.Hour, rundir.Starting, rundir.Unknown},
		{time.Hour, rundir.Succeeded, rundir.Succeeded},
	} {
		if err := run.Write(JobFile, Job{ID: "7", Submitted: time.Now().Add(-c.submitted)}); err != nil {
			t.Fatal(err)
		}
		if err := run.WriteStatus(&rundir.Status{State: c.own}); err != nil {
			t.Fatal(err)
		}
		if st, err := Status(context.Background(), run, env); err != nil || st.State != c.want {
			t.Errorf("%+v: %+v %v", c, st, err)
		}
	}
}

// The variants of a sweep are one array, whose tasks run the variants' own jobs.
func TestArray(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sweep.cue")
	text := `experiments: [string]: {target: "slurm", slurm: {partition: "gpu", array_throttle: 2}, cluster: gpus_per_node: 8}
experiments: {
	for t in ["0", "0.1", "0.2"] {"judge-\(t)": serve: instances: q: {engine: "vllm", model_path: "a/b", num_gpus: 1, env: T: t}}
}
`
	write := func(text string) []*plan.Plan {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := compiler.Compile([]string{path}, compiler.Options{})
		if r.Diagnostics.HasErrors() {
			t.Fatalf("%+v", r.Diagnostics)
		}
		return r.Plans
	}
	plans := write(text)
	env := stub(t, map[string]string{"sbatch": `printf '%s\n' "$@" >` + dir + `/argv; echo 40`})
	o := Options{Root: filepath.Join(dir, "runs"), WorkDir: dir, Env: env}
	runs, job, found, err := LaunchArray(context.Background(), plans, o)
	if err != nil || found.HasErrors() || len(runs) != 3 || job.ID != "40" {
		t.Fatalf("%v %+v %+v %v", runs, job, found, err)
	}
	var last Job
	if err := runs[2].Read(JobFile, &last); err != nil || last.ID != "40_2" {
		t.Errorf("%+v %v", last, err)
	}
	argv, _ := os.ReadFile(filepath.Join(dir, "argv"))
	words := strings.Split(strings.TrimSpace(string(argv)), "\n")
	script, list := words[len(words)-3], words[len(words)-2]
	got, _ := os.ReadFile(script)
	if !strings.Contains(string(got), "#SBATCH --array=0-2%2\n") {
		t.Errorf("%s", got)
	}
	// A task runs the job of its variant.
	fake := filepath.Join(runs[1].Dir, Script)
	if err := os.WriteFile(fake, []byte(`echo "ran $0 $1 $2"`), 0o600); err != nil {
		t.Fatal(err)
	}
	task := exec.Command("bash", script, list, "/bin/genrm")
	task.Env = append(os.Environ(), "SLURM_ARRAY_TASK_ID=1")
	if out, err := task.CombinedOutput(); err != nil || string(out) != "ran "+fake+" "+runs[1].Dir+" /bin/genrm\n" {
		t.Errorf("%s %v", out, err)
	}
	// Variants that ask for different things are refused, and nothing is left.
	o.Root = filepath.Join(dir, "refused")
	_, _, found, err = LaunchArray(context.Background(), write(strings.Replace(text, "num_gpus: 1", `num_gpus: {"0": 1, "0.1": 2, "0.2": 1}[t]`, 1)), o)
	if err != nil || len(found) != 1 || found[0].Code != "GRM8222" {
		t.Errorf("%+v %v", found, err)
	}
	o.Env = stub(t, map[string]string{"sbatch": `echo 'sbatch: error: Batch job submission failed: Invalid job array specification' >&2; exit 1`})
	_, _, found, err = LaunchArray(context.Background(), write(text), o)
	if runs, _ := rundir.List(o.Root); err != nil || !found.HasErrors() || len(runs) != 0 {
		t.Errorf("%+v %v, %v left", found, err, runs)
	}
}

// Training and judges are two components of one job: the driver comes after the
// judges, is told where they are, and they end with it.
func TestBeside(t *testing.T) {
	dir := t.TempDir()
	train := compile(t, `name: "train"
target: "slurm"
slurm: {partition: "gpu", time: "10", requeue: true, setup: ["module load cuda"]}
gym: {config: x: responses_api_models: custom: entrypoint: "app.py", env: {A: {env: "TRAIN_KEY"}}}
`)
	judges := compile(t, judges+`slurm: {partition: "judges", time: "20", setup: ["module load vllm"]}
serve: gateway: {host: "0.0.0.0", api_key: {env: "GATEWAY_KEY"}}
`)
	sbatch := `printf '%s\n' "$@" >` + dir + `/argv; env >` + dir + `/env; echo 34`
	env := append(stub(t, map[string]string{"sbatch": sbatch}), "TRAIN_KEY=train-secret", "GATEWAY_KEY=gateway-secret", "HF_TOKEN=0123456789abcdef")
	o := Options{Plan: train, Root: filepath.Join(dir, "runs"), WorkDir: dir, Env: env}
	run, beside, job, found, err := LaunchBeside(context.Background(), o, judges)
	if err != nil || found.HasErrors() || job.ID != "34" {
		t.Fatalf("%+v %+v %v", job, found, err)
	}
	var its Job
	if err := beside.Read(JobFile, &its); err != nil || its.ID != "34+1" {
		t.Errorf("%+v %v", its, err)
	}
	argv, _ := os.ReadFile(filepath.Join(dir, "argv"))
	if want := run.Path(Script) + "\n" + run.Dir + "\n" + run.Binary + "\n" + beside.Dir + "\n"; !strings.HasSuffix(string(argv), want) {
		t.Errorf("%s lacks %s", argv, want)
	}
	got, _ := os.ReadFile(filepath.Join(dir, "env"))
	for _, want := range []string{"TRAIN_KEY=train-secret\n", "GATEWAY_KEY=gateway-secret\n", "HF_TOKEN=0123456789abcdef\n"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("%q did not reach sbatch", want)
		}
	}
	text, _ := os.ReadFile(run.Path(Script))
	for _, want := range []string{
		"--partition=gpu\n", "#SBATCH hetjob\n#SBATCH --partition=judges\n#SBATCH --time=20\n", "--het-group=0 \\\n", "--het-group=1 \\\n",
		"setup_run='module load cuda", "setup_judges='module load vllm", "GENRM_JUDGES_URL={judges_url}", "driver (driver): after ray-head judges",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if out, err := exec.Command("bash", "-n", run.Path(Script)).CombinedOutput(); err != nil {
		t.Errorf("bash -n: %v\n%s", err, out)
	}
	var g graph.Graph
	if err := run.Read(rundir.GraphFile, &g); err != nil || g.Judges == nil || g.Judges.Dir != beside.Dir || !g.Judges.Stop {
		t.Errorf("%+v %v", g.Judges, err)
	}
	// Nothing is left of what is refused, here or by sbatch.
	o.Root = filepath.Join(dir, "refused")
	for _, c := range []struct {
		judges *plan.Plan
		sbatch string
		code   string
	}{
		{compile(t, judgesOnly), sbatch, "GRM8223"},
		{judges, `echo 'sbatch: error: invalid partition specified: judges' >&2; exit 1`, "GRM8220"},
	} {
		o.Env[0] = stub(t, map[string]string{"sbatch": c.sbatch})[0]
		_, _, _, found, err := LaunchBeside(context.Background(), o, c.judges)
		if runs, _ := rundir.List(o.Root); err != nil || !slices.ContainsFunc(found, func(d diag.Diagnostic) bool { return d.Code == c.code }) || len(runs) > 0 {
			t.Errorf("%s: %+v %v, %v left", c.code, found, err, runs)
		}
	}
}

const judgesOnly = `name: "judges"
target: "slurm"
serve: instances: quality: {engine: "sim", constant: "1"}
`
