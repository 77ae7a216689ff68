package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/bind"
	"genrm.dev/genrm/launchers/rundir"
)

// Job is slurm.json of a run: the job that runs it.
type Job struct {
	ID        string    `json:"job_id"`
	Cluster   string    `json:"cluster,omitempty"`
	Submitted time.Time `json:"submitted"`
}

// JobFile is where a run keeps its [Job].
const JobFile = "slurm.json"

// Environment is the one that sbatch and the other commands are run in: without
// what an enclosing allocation left in it, which would bind the new job's cores
// or give it directives. SLURM_CONF says where the cluster is, and stays.
func Environment(env []string) (clean []string, leaked bool) {
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case name == "SLURM_CONF":
		case strings.HasPrefix(name, "SLURM_"), strings.HasPrefix(name, "SBATCH_"), strings.HasPrefix(name, "SRUN_"),
			strings.HasPrefix(name, "SALLOC_"), strings.HasPrefix(name, "PMIX_"), strings.HasPrefix(name, "PMI_"):
			leaked = leaked || name == "SLURM_JOB_ID"
			continue
		}
		clean = append(clean, e)
	}
	return clean, leaked
}

// passed is the environment that sbatch is run in, and that the job gets.
func passed(env []string, plans ...*plan.Plan) []string {
	names := []string{"SLURM_CONF"}
	for _, p := range plans {
		if p != nil {
			names = append(names, Exported(p)...)
		}
	}
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return !slices.Contains(names, name)
	})
}

// client runs Slurm's commands.
type client struct {
	env  []string // of the command, and of a job that it submits
	dir  string   // "" means the current folder
	find []string // environment in whose PATH commands are looked for; nil means env
}

// run gives the standard output. What the command says on standard error is its
// error.
func (c client) run(ctx context.Context, name string, args ...string) (stdout, stderr string, err error) {
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	find := c.find
	if find == nil {
		find = c.env
	}
	path := bind.LookPath(name, find, c.dir)
	if path == "" {
		return "", "", &Unreachable{fmt.Errorf("%s is not installed here, or not in PATH", name)}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = slices.Clone(c.env), c.dir, time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is for genrm to heed
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	switch {
	case asked.Err() != nil: // a signal, say: not Slurm's fault
		err = &Unreachable{fmt.Errorf("interrupted before %s answered", name)}
	case ctx.Err() != nil:
		err = &Unreachable{fmt.Errorf("%s did not answer within %s", name, commandTimeout)}
	}
	return out.String(), strings.TrimSpace(errs.String()), err
}

// commandTimeout bounds one command: a controller that restarts makes clients
// wait.
const commandTimeout = 60 * time.Second

// Unreachable is the error for a cluster that does not answer.
type Unreachable struct{ err error }

func (e *Unreachable) Error() string { return e.err.Error() }
func (e *Unreachable) Unwrap() error { return e.err }

// Refused is sbatch's refusal.
type Refused struct {
	Finding diag.Diagnostic // at the user's field, if its cause can be told
}

func (e *Refused) Error() string { return e.Finding.Summary }

// submit gives the job of a run to sbatch. The run's folder has to exist, since
// Slurm opens the job's log before the job runs.
func submit(ctx context.Context, o Options, run *rundir.Run, more ...string) (*Job, error) {
	if strings.Contains(run.Dir, `\`) {
		return nil, fmt.Errorf("the folder of runs, %s, has a backslash in its name, which sbatch would read as its own: name another by GENRM_RUNS", filepath.Dir(run.Dir))
	}
	args := append([]string{"--comment=genrm:" + run.ID, "--output=" + escapePercent(run.LogPath("job")), run.Path(Script), run.Dir, run.Binary}, more...)
	id, cluster, err := sbatch(ctx, o.Plan, o, args...)
	if err != nil {
		return nil, err
	}
	job := &Job{id, cluster, time.Now().UTC()}
	return job, run.Write(JobFile, job)
}

// sbatch submits and returns the job's id.
func sbatch(ctx context.Context, p *plan.Plan, o Options, args ...string) (id, cluster string, err error) {
	// Once asked, the controller may have the job, whatever becomes of sbatch: a
	// signal must not hide which it is.
	stdout, stderr, err := client{passed(o.Env, p, o.beside), o.WorkDir, o.Env}.run(context.WithoutCancel(ctx), "sbatch", append([]string{"--parsable", "--chdir=" + o.WorkDir}, args...)...)
	if err != nil {
		return "", "", refusal(p, stderr, err)
	}
	id, cluster, _ = strings.Cut(strings.TrimSpace(stdout), ";")
	if _, err := strconv.Atoi(id); err != nil {
		return "", "", &Unreachable{fmt.Errorf("sbatch answered %q, which is no job id", strings.TrimSpace(stdout))}
	}
	return id, cluster, nil
}

// escapePercent keeps a path from being read as a file name pattern.
// Source: man sbatch, "filename pattern".
func escapePercent(path string) string { return strings.ReplaceAll(path, "%", "%%") }

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// causes map what sbatch says to the directive that it means.
// Source: 22.05.8 and 24.11.5, each provoked.
var causes = []struct {
	text       *regexp.Regexp
	directives []string
	remedy     string
}{
	{regexp.MustCompile(`(?i)invalid partition`), []string{"partition"}, "sinfo lists the partitions"},
	{regexp.MustCompile(`(?i)invalid --time|time limit`), []string{"time"}, "scontrol show partition lists the limits"},
	{regexp.MustCompile(`(?i)invalid account|account/partition`), []string{"account", "partition", "qos"}, "sacctmgr show associations user=$USER lists what you may use"},
	{regexp.MustCompile(`(?i)invalid qos`), []string{"qos"}, "sacctmgr show qos lists them"},
	{regexp.MustCompile(`(?i)invalid feature`), []string{"constraint"}, "sinfo -o '%N %f' lists the features of the nodes"},
	{regexp.MustCompile(`(?i)reservation`), []string{"reservation"}, "scontrol show reservation lists them"},
	{regexp.MustCompile(`(?i)memory specification|invalid --mem`), []string{"mem"}, "sinfo -o '%N %m' lists the nodes' memory"},
	{regexp.MustCompile(`(?i)CPU count per node`), []string{"cpus-per-task"}, "sinfo -o '%N %c' lists the nodes' cores"},
	{regexp.MustCompile(`(?i)invalid generic resource`), []string{"gres", "gpus-per-node"}, "sinfo -o '%N %G' lists the nodes' GPUs"},
	{regexp.MustCompile(`(?i)node count`), []string{"nodes"}, "sinfo lists the nodes"},
	{regexp.MustCompile(`(?i)invalid node name`), []string{"nodelist", "exclude"}, "sinfo lists the nodes"},
	{regexp.MustCompile(`(?i)node configuration is not available`), []string{"gpus-per-node", "gres", "nodes"}, "sinfo -o '%N %c %m %G' lists the nodes' cores, memory and GPUs; gpu_request: \"gres\" is what some clusters want"},
	{regexp.MustCompile(`(?i)invalid --signal`), []string{"signal"}, "man sbatch tells the forms"},
}

var unrecognised = regexp.MustCompile(`unrecognized option '--([a-z-]+)`)

// refusal turns sbatch's words into a finding at the user's field.
func refusal(p *plan.Plan, stderr string, err error) error {
	var gone *Unreachable
	if errors.As(err, &gone) {
		return err
	}
	said := strings.ReplaceAll(strings.ReplaceAll(stderr, "sbatch: error: ", ""), "sbatch: ", "")
	for _, down := range []string{"Unable to contact slurm controller", "Socket timed out", "Connection refused", "Unable to establish"} {
		if strings.Contains(said, down) {
			return &Unreachable{fmt.Errorf("the Slurm controller does not answer: %s", lastLine(said))}
		}
	}
	all := Directives(p)
	find := func(names ...string) *Directive {
		for _, n := range names {
			if i := slices.IndexFunc(all, func(d Directive) bool { return d.Name == n }); i >= 0 {
				return &all[i]
			}
		}
		return nil
	}
	var by *Directive
	remedy := "correct the slurm block"
	if m := unrecognised.FindStringSubmatch(said); m != nil {
		by, remedy = find(m[1]), "this Slurm does not know it"
		if strings.HasPrefix(m[1], "container") {
			remedy = "this Slurm has no pyxis"
		}
	}
	for _, c := range causes {
		if by == nil && c.text.MatchString(said) {
			by, remedy = find(c.directives...), c.remedy
		}
	}
	at, summary := "slurm", "sbatch refuses the job: "+lastLine(said)
	if by != nil {
		summary = fmt.Sprintf("sbatch refuses %s: %s", by, lastLine(said))
		if at = by.Field; !p.Positions[at].IsValid() && (by.Name == "gpus-per-node" || by.Name == "gres") {
			at = "cluster.gpus_per_node"
		}
		if !p.Positions[at].IsValid() {
			at = "slurm"
		}
	}
	return &Refused{p.Finding("GRM8220", diag.Error, at, summary, strings.ReplaceAll(said, "\n", "; ")+".", remedy)}
}
