//go:build e2e

// Package slurm launches runs on a real Slurm of two nodes with eight GPUs each,
// all of it on this machine, with drivers and engines that record what they were
// given, and does to them what goes wrong in practice. Started by ./run.
package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"genrm.dev/genrm/e2e/internal/suite"
)

// experiments are the examples' folders, each with the name of one experiment in
// it.
func experiments(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../examples/*/*.cue")
	if err != nil {
		t.Fatal(err)
	}
	nested, err := filepath.Glob("../../examples/site/*/*.cue")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, file := range append(files, nested...) {
		dir, err := filepath.Abs(filepath.Dir(file))
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Base(dir) {
		case "cue.mod", "profile":
		case "sweep":
			out[dir] = "judge-tp2-len16"
		default:
			out[dir] = ""
		}
	}
	if len(out) < 15 {
		t.Fatalf("only %d examples: %v", len(out), out)
	}
	return out
}

// Every example is rehearsed as a job: its judges answer by their route_key
// until it is stopped.
func TestRehearsals(t *testing.T) {
	t.Parallel()
	for dir, name := range experiments(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			on(t, versionsFor(filepath.Base(dir)), func(t *testing.T, r *rig) {
				file := dir
				if !strings.Contains(dir, "/site/") { // those import their profile
					file = r.example(dir)
				}
				args := []string{"--rehearse", "--runs", r.runs()} // some name a folder of their site
				if name != "" {
					args = append(args, "--name", name)
				}
				l := r.launch(file, args...)
				l.awaits("ready in ")
				for key, answer := range r.ask(r.endpoints()) {
					if filepath.Base(dir) != "quickstart" && !strings.Contains(answer, "hello from "+key) {
						t.Errorf("%s answers %q", key, answer)
					}
				}
				r.run("genrm", "stop")
				l.ends(0)
				r.checkEnd("stopped", 0, "COMPLETED 0:0")
			})
		})
	}
}

// versionsFor spares the second version most examples.
func versionsFor(example string) []string {
	if slices.Contains([]string{"quickstart", "relax-split", "gym-genrm"}, example) {
		return both
	}
	return both[:1]
}

// A reviewer's copy: bash and shellcheck find nothing in any script of any
// example, and sbatch takes the job as it lies there.
func TestScripts(t *testing.T) {
	t.Parallel()
	for dir := range experiments(t) {
		out := t.TempDir()
		if text, err := exec.Command(os.Getenv("GENRM_E2E_GENRM"), "emit", dir, "--target", "slurm", "-o", out).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", dir, err, text)
		}
		var scripts []string
		for _, pattern := range []string{"*.sbatch", "*/*.sbatch", "*.sh", "*/*.sh"} {
			found, err := filepath.Glob(filepath.Join(out, pattern))
			if err != nil {
				t.Fatal(err)
			}
			scripts = append(scripts, found...)
		}
		if !slices.ContainsFunc(scripts, func(s string) bool { return filepath.Base(s) == "job.sbatch" }) {
			t.Errorf("%s: there is no job.sbatch in %q", dir, scripts)
		}
		for _, s := range scripts {
			if text, err := exec.Command("bash", "-n", s).CombinedOutput(); err != nil {
				t.Errorf("bash -n: %v\n%s", err, text)
			}
		}
		if text, err := exec.Command("shellcheck", scripts...).CombinedOutput(); err != nil {
			t.Errorf("shellcheck: %v\n%s", err, text)
		}
	}
}

func TestByHand(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		r.run("genrm", "emit", r.serve(""), "-o", "out")
		id := strings.TrimSpace(r.run("env", "--chdir=out", "sbatch", "--parsable", "job.sbatch"))
		s := r.untilReady()
		if r.job() != id {
			t.Errorf("the run has noted job %s, want %s", r.job(), id)
		}
		runs := filepath.Dir(r.folder())
		r.ask(r.endpoints("--runs", runs))
		r.run("genrm", "stop", s.RunID, "--runs", runs)
		if s := r.status("--runs", runs); s.State != "stopped" {
			t.Errorf("%+v", s)
		}
		r.checkGone()
	})
}

// Every way in which the driver's status can end a run: it is that of launch, of
// the run and of the job.
func TestDriverStatus(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		end   string
		exit  int
		state string
		job   string
	}{
		{"0", 0, "succeeded", "COMPLETED 0:0"},
		{"3", 3, "failed", "FAILED 3:0"},
		{"KILL", 137, "failed", "FAILED 137:0|FAILED 0:9"},
	} {
		t.Run(c.end, func(t *testing.T) {
			t.Parallel()
			on(t, both, func(t *testing.T, r *rig) {
				r.launch(r.relax(c.end, "")).ends(c.exit)
				r.checkEnd(c.state, c.exit, c.job)
			})
		})
	}
}

// Examples of relax and gym with their drivers, beside a Ray of the run's own.
func TestDrivers(t *testing.T) {
	t.Parallel()
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		example string
		nodes   int
		gpus    string // that the driver sees
	}{
		{"relax-split", 1, "0,1,2,3,4,5,6,7"},
		{"gym-genrm", 1, "0,1,2,3,4,5,6,7"},
		{"gym-openai", 1, ""},
		{"gym-multinode", 2, "0,1,2,3,4,5,6,7"},
	} {
		t.Run(c.example, func(t *testing.T) {
			t.Parallel()
			on(t, both, func(t *testing.T, r *rig) {
				args := between(t)
				if strings.HasPrefix(c.example, "relax") {
					args = append(args, "--set", "relax.root="+suite.CUE(filepath.Join(r.dir, "relax")), "--set", `relax.entrypoint="train.py"`)
				}
				r.file("end", "0")
				r.launch(r.example(filepath.Join(repo, "examples", c.example)), args...).ends(0)
				r.checkEnd("succeeded", 0, "COMPLETED 0:0")

				rec := r.record("driver", 1)
				s := r.status()
				want := s.process(t, "driver").Argv[1:]
				if !slices.Equal(rec.Argv, want) {
					t.Errorf("the driver got %q,\nthe status says %q", rec.Argv, want)
				}
				if rec.Env["CUDA_VISIBLE_DEVICES"] != c.gpus {
					t.Errorf("the driver sees GPUs %q, want %q", rec.Env["CUDA_VISIBLE_DEVICES"], c.gpus)
				}
				if rec.Env["SLURM_JOB_ID"] != r.job() || rec.Env["OF_THE_SHELL"] != "" || rec.Env["HOME"] != r.dir {
					t.Errorf("its environment: %q", rec.Env)
				}
				head := r.record("ray-head", 1)
				address := fmt.Sprintf("%s:%d", s.process(t, "ray-head").Host, s.process(t, "ray-head").Ports["gcs"])
				if rec.Env["RAY_ADDRESS"] != address {
					t.Errorf("the driver is told the Ray of %q, and the head is at %s", rec.Env["RAY_ADDRESS"], address)
				}
				if gpus := strings.Count(c.gpus, ",") + 1; c.gpus != "" && !slices.Contains(head.Argv, fmt.Sprintf("--num-gpus=%d", gpus)) {
					t.Errorf("the head got %q", head.Argv)
				}
				if c.nodes == 1 {
					return
				}
				worker := r.record("ray-worker-1", 1)
				if !slices.Contains(worker.Argv, "--address="+address) || worker.Host != "node2" || head.Host != "node1" {
					t.Errorf("head on %s: %q\nworker on %s: %q", head.Host, head.Argv, worker.Host, worker.Argv)
				}
			})
		})
	}
}

// One SGLang engine over both nodes: each node gets its rank, all meet at the
// first, which is the one that is asked.
func TestEngineOfTwoNodes(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		l := r.launch(r.example("../../examples/serve-sglang-two-nodes"), between(t)...)
		l.awaits("ready in ")
		e := r.endpoints()
		if !strings.HasPrefix(e.Gateway.URL, "http://node1:") {
			t.Errorf("clients elsewhere are told %s", e.Gateway.URL)
		}
		for _, answer := range r.ask(e) {
			if !strings.Contains(answer, "7") {
				t.Errorf("it answers %q", answer)
			}
		}
		s := r.status()
		first := s.process(t, "judge-0-0")
		meet := fmt.Sprintf("--dist-init-addr=%s:%d", first.Host, first.Ports["dist_init"])
		for rank, host := range []string{"node1", "node2"} {
			rec := r.record(fmt.Sprintf("judge-0-%d", rank), 1)
			for _, arg := range []string{meet, fmt.Sprintf("--node-rank=%d", rank), "--nnodes=2", "--tp-size=16"} {
				if !slices.Contains(rec.Argv, arg) {
					t.Errorf("rank %d: no %s in %q", rank, arg, rec.Argv)
				}
			}
			if rec.Host != host || rec.Env["CUDA_VISIBLE_DEVICES"] != "0,1,2,3,4,5,6,7" {
				t.Errorf("rank %d on %s with GPUs %s", rank, rec.Host, rec.Env["CUDA_VISIBLE_DEVICES"])
			}
		}
		if logs := r.run("genrm", "logs", "--node", "1", "--lines=-1"); !strings.Contains(logs, "judge-0-1 of attempt 1 recorded") || strings.Contains(logs, "judge-0-0 of") {
			t.Errorf("logs of node 1:\n%s", logs)
		}
		r.run("genrm", "stop")
		l.ends(0)
		r.checkEnd("stopped", 0, "COMPLETED 0:0")
	})
}

// A relax job on a real Ray over both nodes. The driver counts what it has.
func TestRay(t *testing.T) {
	t.Parallel()
	ray := os.Getenv("GENRM_E2E_RAY")
	if ray == "" {
		t.Fatal("there is no Ray: run e2e/ray/install")
	}
	on(t, both[:1], func(t *testing.T, r *rig) {
		for _, name := range []string{"ray", "python3"} { // the environment's Python knows itself by its path
			if err := os.Remove(filepath.Join(r.dir, "bin", name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(r.file("bin/"+name, "#!/bin/sh\nexec "+shellWord(filepath.Join(ray, "bin", name))+` "$@"`+"\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		r.file("relax/train.py", `
import json, ray, socket
ray.init()

@ray.remote(num_gpus=2)
def look():
    return {"host": socket.gethostname(), "gpus": sorted(str(i) for i in ray.get_gpu_ids())}

nodes = [n for n in ray.nodes() if n["Alive"]]
print(json.dumps({"nodes": len(nodes), "gpus": ray.cluster_resources()["GPU"], "tasks": sorted(ray.get([look.remote(), look.remote()]), key=lambda t: t["host"])}))
`)
		file := r.relax("", `
cluster: {nodes: 2, gpus_per_node: 2}
slurm: ray: {num_cpus: 1, object_store_memory: 100_000_000}
`)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r.file("experiment.cue", strings.NewReplacer("cluster: {nodes: 1, gpus_per_node: 2}", "", "actor: [1, 2], rollout: [1, 1], genrm: [1, 1]", "actor: [1, 4], rollout: [1, 2], genrm: [1, 2]").Replace(string(text)))
		r.launch(file, between(t)...).ends(0)
		r.checkEnd("succeeded", 0, "COMPLETED 0:0")
		var counted struct {
			Nodes int
			GPUs  float64
			Tasks []struct {
				Host string
				GPUs []string
			}
		}
		log := strings.Split(strings.TrimSpace(r.run("genrm", "logs", "--process", "driver")), "\n")
		if err := json.Unmarshal([]byte(log[len(log)-1]), &counted); err != nil || counted.Nodes != 2 || counted.GPUs != 4 || len(counted.Tasks) != 2 {
			t.Fatalf("%v: the driver counted %+v\n%s", err, counted, strings.Join(log, "\n"))
		}
		for i, name := range []string{"ray-head", "ray-worker-1"} {
			// A share that Slurm gave: any two of the node's.
			if got, want := counted.Tasks[i], r.status().process(t, name).GPUs; got.Host != fmt.Sprintf("node%d", i+1) || !slices.Equal(got.GPUs, want) || len(want) != 2 {
				t.Errorf("a task on %s has GPUs %q, %s has %q", got.Host, got.GPUs, name, want)
			}
		}
		for _, p := range r.status().Processes {
			for _, a := range p.Argv {
				if dir, ok := strings.CutPrefix(a, "--temp-dir="); ok {
					if _, err := os.Stat(dir); !os.IsNotExist(err) {
						t.Errorf("%s is left: %v", dir, err)
					}
				}
			}
		}
	})
}

// Text of the user's arrives byte for byte in the driver's command and
// environment, from a folder whose name is no better.
func TestHostileText(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		words := []string{
			`{"method":"qwen3_next_mtp","num_speculative_tokens":2}`, `{"architectures":["ApertusForCausalLM"]}`, `{'ps-auc':{'cnt':1}}`,
			"a'b\"c`table`$HOME;&&{{x}}\\\nü", `"quotes" and 'quotes'`, "$(id) ${HOME} %j", "; exit 9 && true || false & ", "{run_dir} {port:gcs} {secret:env:HOME}",
			`back\slash \n \\`, "line\nfeed\ttab", "größer 裁判 🦉", "", " ", "-", "--", "*", "~", "#SBATCH --partition=nope", "\n#SBATCH --partition=nope\n", "a,b=c,d", "!!",
		}
		var extra, env strings.Builder
		for i, w := range words {
			fmt.Fprintf(&extra, "%s,", suite.CUE(w))
			fmt.Fprintf(&env, "HOSTILE_%d: %s\n", i, suite.CUE(w))
		}
		l := r.launch(r.relax("0", fmt.Sprintf("relax: {extra_args: [\"--hostile\", %s], env: {\n%s}}", extra.String(), env.String())))
		l.ends(0)
		rec := r.record("driver", 1)
		if i := slices.Index(rec.Argv, "--hostile"); i < 0 || !slices.Equal(rec.Argv[i+1:], words) {
			t.Errorf("the driver got %q", rec.Argv)
		}
		for i, w := range words {
			if got, ok := rec.Env[fmt.Sprintf("HOSTILE_%d", i)]; !ok || got != w {
				t.Errorf("variable %d is %q, want %q", i, got, w)
			}
		}
		r.checkEnd("succeeded", 0, "COMPLETED 0:0")
	})
}

// What other shells see of a run: they have the run's folder and Slurm, and
// nothing of who launched it.
func TestFromAnotherShell(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		out := r.run("genrm", "launch", r.serve(""), "--target", "slurm", "-o", "json")
		var first status
		if err := json.Unmarshal([]byte(out), &first); err != nil || first.JobID != r.job() || first.RunID == "" {
			t.Fatalf("%v: launch prints %s", err, out)
		}
		r.untilReady()
		s := r.status(first.RunID[:len(first.RunID)-2])
		if s.State != "ready" || s.JobState != "RUNNING" || !strings.HasPrefix(s.Nodes, "node") || s.Dir != r.folder() {
			t.Errorf("status: %+v", s)
		}
		if text := r.run("genrm", "status"); !strings.Contains(text, "job       "+first.JobID+", RUNNING node") {
			t.Errorf("status:\n%s", text)
		}
		if list := r.run("genrm", "list"); !strings.Contains(list, first.RunID) || !strings.Contains(list, "ready after") {
			t.Errorf("list:\n%s", list)
		}
		r.ask(r.endpoints())
		follow := r.start("logs", "-f")
		follow.awaits("judge-0 | sim judge: listening on")
		if job := r.run("genrm", "logs", "--process", "job"); !strings.Contains(job, "run.ready") {
			t.Errorf("the job's log:\n%s", job)
		}
		if out, errs, err := r.try("genrm", "logs", "--node", "1"); err == nil || out != "" || !strings.Contains(errs, "has no process on node 1") {
			t.Errorf("logs of a node that there is not: %v\n%s%s", err, out, errs)
		}
		r.run("genrm", "stop")
		follow.ends(0)
		r.checkEnd("stopped", 0, "COMPLETED 0:0")
	})
}

// Two jobs on one node: each has the GPUs that Slurm gave it and ports of its
// own.
func TestTwoJobsOnANode(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		// Before the jobs of other tests, which may wait for all of the node.
		file := r.engine(4, `slurm: directives: {nodelist: "node1", nice: -1000}`)
		for range 2 {
			r.start("launch", file, "--target", "slurm").ends(0)
		}
		used := map[string]string{}
		for _, dir := range r.folders() {
			var s *status
			r.until("both ready", func() bool {
				if s = written(t, dir); s.ExitCode != nil {
					t.Fatalf("%s: %s", s.State, s.Reason)
				}
				return s.State == "ready"
			})
			rec, err := r.recordOf(s.RunID, "judge-0", 1)
			if err != nil {
				t.Fatal(err)
			}
			if rec.Host != "node1" || len(strings.Split(rec.Env["CUDA_VISIBLE_DEVICES"], ",")) != 4 {
				t.Errorf("on %s with GPUs %q", rec.Host, rec.Env["CUDA_VISIBLE_DEVICES"])
			}
			for _, gpu := range strings.Split(rec.Env["CUDA_VISIBLE_DEVICES"], ",") {
				if by := used["GPU "+gpu]; by != "" {
					t.Errorf("%s and %s have GPU %s", by, s.RunID, gpu)
				}
				used["GPU "+gpu] = s.RunID
			}
			for _, p := range s.Processes {
				for purpose, port := range p.Ports {
					key := fmt.Sprintf("port %d", port)
					if by := used[key]; by != "" {
						t.Errorf("%s and %s of %s have %s", by, purpose, s.RunID, key)
					}
					used[key] = s.RunID
				}
			}
			r.ask(r.endpoints(s.RunID))
		}
		r.run("genrm", "stop", "--all")
		r.checkGone()
	})
}

// Nothing of an allocation reaches a job that is submitted in it.
func TestInsideAnAllocation(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		file := r.relax("0", `slurm: cpus: 2`)
		leaks := []string{"SLURM_CPU_BIND=quiet,mask_cpu:0x0000000F", "SLURM_CPU_BIND_LIST=0x0000000F", "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_CPU_BIND_VERBOSE=verbose",
			"SBATCH_PARTITION=nope", "SBATCH_TIMELIMIT=1:00", "SLURM_CPUS_PER_TASK=4", "SLURM_MEM_PER_NODE=123", "PMIX_RANK=0", "SLURM_LEAK=1"}
		in := append([]string{"srun", "--nodes=1", "--ntasks=1", "--time=5", "env"}, append(leaks, "genrm", "launch", file, "--target", "slurm")...)
		l := r.startIn(nil, in...)
		l.ends(0, "GRM8221")
		r.until("ended", func() bool { return written(t, r.folder()).ExitCode != nil })
		rec := r.record("driver", 1)
		for _, e := range leaks {
			name, value, _ := strings.Cut(e, "=")
			if rec.Env[name] == value {
				t.Errorf("%s reached the job", e)
			}
		}
		if rec.Env["SLURM_JOB_ID"] != r.job() || rec.Env["SLURM_CPUS_PER_TASK"] != "2" || rec.Env["SLURM_JOB_NAME"] != "training" {
			t.Errorf("the job's own: %q", rec.Env)
		}
		r.run("genrm", "stop")
		r.checkEnd("succeeded", 0, "COMPLETED 0:0")
	})
}

func TestTestOnly(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		file := r.serve("")
		l := r.start("launch", file, "--target", "slurm", "--test-only")
		l.ends(0)
		if !regexp.MustCompile(`Job \d+ to start at \d{4}-\d\d-\d\dT`).MatchString(l.out.String()) {
			t.Errorf("it answers %s", l.out.String())
		}
		r.start("launch", file, "--target", "slurm", "--test-only", "--set", `slurm.constraint="nope"`).ends(3, "GRM8220", "--constraint=nope")
		if found := r.folders(); len(found) > 0 {
			t.Errorf("left behind: %q", found)
		}
	})
}

// What sbatch refuses is shown at the field that it comes from, and nothing of
// the run is left.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, block, place, text string }{
		{"partition", `slurm: partition: "nope"`, "experiment.cue:6:", "sbatch refuses --partition=nope"},
		{"constraint", `slurm: constraint: "nope"`, "experiment.cue:6:", "sbatch refuses --constraint=nope"},
		{"reservation", `slurm: reservation: "nope"`, "experiment.cue:6:", "sbatch refuses --reservation=nope"},
		{"mem", `slurm: mem: "1T"`, "experiment.cue:6:", "sbatch refuses --mem=1T"},
		{"cpus", `slurm: cpus: 256`, "experiment.cue:6:", "sbatch refuses --cpus-per-task=256"},
		{"directive", `slurm: directives: nodelist: "node9"`, "experiment.cue:6:", "sbatch refuses --nodelist=node9"},
		{"unknown directive", `slurm: directives: nosuch: "x"`, "experiment.cue:6:", "sbatch refuses --nosuch=x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			on(t, both, func(t *testing.T, r *rig) {
				r.launch(r.serve(c.block)).ends(3, "GRM8220", c.place, c.text)
				if found := r.folders(); len(found) > 0 {
					t.Errorf("left behind: %q", found)
				}
			})
		})
	}
	t.Run("pyxis", func(t *testing.T) { // an option of srun: the job finds out
		t.Parallel()
		on(t, both, func(t *testing.T, r *rig) {
			r.launch(r.serve(`slurm: container: image: "docker://x/y:1"`)).ends(3, "before the run began", "unrecognized option '--container-image")
			r.checkEnd("failed", 3, "FAILED 255:0")
		})
	})
	t.Run("GPUs", func(t *testing.T) {
		t.Parallel()
		on(t, both, func(t *testing.T, r *rig) {
			file := r.engine(16, "")
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			r.file("experiment.cue", strings.Replace(string(text), "gpus_per_node: 8", "gpus_per_node: 16", 1))
			r.launch(file).ends(3, "GRM8220", "experiment.cue:6:", "sbatch refuses --gpus-per-node=16", "Requested node configuration is not available")
		})
	})
}

// A limit that sbatch does not look at: the queue's reason is shown.
func TestPendingReason(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		l := r.launch(r.serve(`slurm: {partition: "short"}`), "--set", `slurm.time="60"`)
		l.awaits("pending: PartitionTimeLimit")
		if err := l.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		l.ends(130, "goes on as job "+r.job())
		r.run("genrm", "stop")
		r.checkEnd("stopped", 143, "CANCELLED 0:0")
	})
}

// Values that sbatch would misread are found before it is called.
func TestBadInput(t *testing.T) {
	t.Parallel()
	on(t, both[:1], func(t *testing.T, r *rig) {
		file := r.serve(`slurm: {time: "abc", mem: "10Q", partition: "a b", nodes: 3, directives: {time: "5", comment: "x"}}`)
		l := r.launch(file)
		l.ends(1, "slurm.time", "slurm.mem", "slurm.partition")
		if found := r.folders(); len(found) > 0 {
			t.Errorf("left behind: %q", found)
		}
	})
}

// What the node lacks is told within the job, all of it, at the user's lines.
func TestComputeChecks(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		file := r.file("experiment.cue", fmt.Sprintf(`
name:   "judges"
target: "slurm"
serve: instances: {
	a: {engine: "vllm", model_path: %s, num_gpus: 1}
	b: {engine: "sglang", model_path: "/nonexistent/judge", num_gpus: 1}
}
slurm: time: "10"
cluster: {nodes: 1, gpus_per_node: 8}
`, suite.CUE(filepath.Join(r.dir, "model"))))
		l := r.launch(file)
		l.ends(3, "GRM8111", "vllm is not installed", "GRM8113", "experiment.cue:5:", "experiment.cue:6:", "did you mean "+filepath.Join(r.dir, "models"), "/nonexistent/judge does not exist")
		r.checkEnd("failed", 3, "FAILED 3:0")
		if _, err := r.recordOf(filepath.Base(r.folder()), "b-0", 1); err == nil {
			t.Error("an engine was started")
		}
	})
	t.Run("submit", func(t *testing.T) {
		t.Parallel()
		on(t, both[:1], func(t *testing.T, r *rig) {
			file := r.engine(1, `slurm: check_on: "submit"`)
			if err := os.Remove(filepath.Join(r.dir, "models")); err != nil {
				t.Fatal(err)
			}
			r.launch(file).ends(3, "GRM8113", "experiment.cue:4:")
			if found := r.folders(); len(found) > 0 {
				t.Errorf("left behind: %q", found)
			}
		})
	})
}
