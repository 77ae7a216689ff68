//go:build e2e

package slurm

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// An engine that dies before it is ready ends the run at once, with its last
// words.
func TestEngineDies(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		r.file("engine", "die")
		r.launch(r.engine(1, "")).ends(3, "judge-0 ended with status 1 before it was ready", "CUDA out of memory, says the stand-in")
		r.checkEnd("failed", 3, "FAILED 3:0")
	})
}

// One rank of an engine over two nodes is not enough.
func TestRankDies(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		r.file("engine", "hang")
		l := r.launch(r.example("../../examples/serve-sglang-two-nodes"), between(t)...)
		for rank := range 2 {
			r.until("both ranks started", func() bool {
				if len(r.folders()) == 0 {
					return false
				}
				_, err := r.recordOf(filepath.Base(r.folder()), fmt.Sprintf("judge-0-%d", rank), 1)
				return err == nil
			})
		}
		for _, p := range r.alive() {
			if strings.Contains(p.command, "--node-rank=1") {
				signalTo(t, p.pid, "KILL")
			}
		}
		l.ends(3, "judge-0-1", "killed by SIGKILL")
		r.checkEnd("failed", 3, "FAILED 3:0")
	})
}

func signalTo(t *testing.T, pid int, name string) {
	t.Helper()
	if text, err := exec.Command("kill", "-"+name, fmt.Sprint(pid)).CombinedOutput(); err != nil {
		t.Fatalf("kill -%s %d: %v, %s", name, pid, err, text)
	}
}

// An engine that never gets ready is given up after its time, whose field the
// message names.
func TestEngineNeverReady(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		r.file("engine", "hang")
		r.launch(r.engine(1, `serve: instances: judge: readiness: timeout: 3`)).ends(3, "judge-0: not ready 3s after its start", "serve.instances.judge.readiness.timeout", "loading shard 1 of 8")
		r.checkEnd("failed", 3, "FAILED 3:0")
	})
}

// A run is ended by `genrm stop` and by scancel, whatever it is at.
func TestStop(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"stop", "scancel"} {
		end := func(r *rig) {
			if by == "stop" {
				r.run("genrm", "stop")
			} else {
				r.run("scancel", r.job())
			}
		}
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			t.Run("pending", func(t *testing.T) {
				t.Parallel()
				on(t, both, func(t *testing.T, r *rig) {
					l := r.launch(r.serve(`slurm: directives: hold: true`))
					l.awaits("pending: JobHeldUser")
					if s := r.status(); s.State != "pending" || s.JobState != "PENDING" || s.Reason != "JobHeldUser" {
						t.Errorf("%+v", s)
					}
					end(r)
					l.ends(143, "stopped")
					r.checkEnd("stopped", 143, "CANCELLED 0:0")
				})
			})
			t.Run("starting", func(t *testing.T) {
				t.Parallel()
				on(t, both, func(t *testing.T, r *rig) {
					r.file("engine", "hang")
					l := r.launch(r.engine(1, ""))
					r.until("started", func() bool {
						return len(r.folders()) == 1 && len(written(t, r.folder()).Processes) > 0 && written(t, r.folder()).process(t, "judge-0").State == "starting"
					})
					end(r)
					l.ends(0, "stopped")
					r.checkEnd("stopped", 0, "COMPLETED 0:0|CANCELLED 0:0|CANCELLED 0:15")
				})
			})
			t.Run("ready", func(t *testing.T) {
				t.Parallel()
				on(t, both, func(t *testing.T, r *rig) {
					l := r.launch(r.serve(""))
					r.untilReady()
					end(r)
					l.ends(0, "stopped")
					r.checkEnd("stopped", 0, "COMPLETED 0:0|CANCELLED 0:0|CANCELLED 0:15")
				})
			})
			// Its driver has time to save what it has.
			t.Run("driver", func(t *testing.T) {
				t.Parallel()
				on(t, both, func(t *testing.T, r *rig) {
					l := r.launch(r.relax("wait", ""))
					r.untilReady()
					r.until("recorded", func() bool { _, err := r.recordOf(filepath.Base(r.folder()), "driver", 1); return err == nil })
					end(r)
					l.ends(143, "stopped")
					r.checkEnd("stopped", 143, "FAILED 143:0|CANCELLED 143:0|CANCELLED 0:15")
					if _, err := os.Stat(filepath.Join(r.dir, "terminated")); err != nil {
						t.Errorf("the driver was not told: %v", err)
					}
				})
			})
			t.Run("two nodes", func(t *testing.T) {
				t.Parallel()
				on(t, both[:1], func(t *testing.T, r *rig) {
					l := r.launch(r.example("../../examples/serve-sglang-two-nodes"), between(t)...)
					l.awaits("ready in ")
					end(r)
					l.ends(0, "stopped")
					r.checkEnd("stopped", 0, "COMPLETED 0:0|CANCELLED 0:0|CANCELLED 0:15")
				})
			})
		})
	}
}

// The end of the job's time is told as that.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		l := r.launch(r.relax("wait", ""), "--set", `slurm.time="1"`)
		l.ends(143, "slurm.time")
		s := r.checkEnd("failed", 143, "TIMEOUT 143:0|TIMEOUT 0:15|TIMEOUT 0:9")
		if !strings.Contains(s.Reason, "its time was over (slurm.time)") || s.JobState != "TIMEOUT" {
			t.Errorf("%+v", s)
		}
		if _, err := os.Stat(filepath.Join(r.dir, "terminated")); err != nil {
			t.Errorf("the driver was not told: %v", err)
		}
	})
}

// A signal before that ends the run in order.
func TestSignal(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"B:TERM@10", "B:USR1@10", "TERM@10"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			versions := both
			if form != "B:TERM@10" {
				versions = both[:1]
			}
			on(t, versions, func(t *testing.T, r *rig) {
				l := r.launch(r.relax("wait", fmt.Sprintf("slurm: signal: %q", form)), "--set", `slurm.time="1"`)
				l.ends(143, "stopped")
				r.checkEnd("stopped", 143, "FAILED 143:0")
				if _, err := os.Stat(filepath.Join(r.dir, "terminated")); err != nil {
					t.Errorf("the driver was not told: %v", err)
				}
			})
		})
	}
}

// A run that Slurm has forgotten: what it said itself stands; without that nobody
// can say how it ended.
func TestForgotten(t *testing.T) {
	t.Parallel()
	on(t, both[:1], func(t *testing.T, r *rig) {
		r.launch(r.relax("3", "")).ends(3)
		dir := r.folder()
		job := filepath.Join(dir, "slurm.json")
		write := func(path, text string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(job, `{"job_id": "99999", "submitted": "2026-01-01T00:00:00Z"}`)
		if s := r.status(); s.State != "failed" || s.ExitCode == nil || *s.ExitCode != 3 {
			t.Errorf("ended: %+v", s)
		}
		data, err := os.ReadFile(filepath.Join(dir, "status.json"))
		if err != nil {
			t.Fatal(err)
		}
		var st map[string]any
		if err := json.Unmarshal(data, &st); err != nil {
			t.Fatal(err)
		}
		st["state"], st["exit_code"] = "ready", nil
		if data, err = json.Marshal(st); err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(dir, "status.json"), string(data))
		if s := r.status(); s.State != "unknown" || !strings.Contains(s.Reason, "no record of job 99999") {
			t.Errorf("not ended: %+v", s)
		}
		if list := r.run("genrm", "list"); !strings.Contains(list, "unknown") {
			t.Errorf("list:\n%s", list)
		}
		r.run("genrm", "stop")
		r.checkGone()
	})
}

// Where no controller answers, every command says so.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	on(t, both, func(t *testing.T, r *rig) {
		l := r.start("launch", r.serve(""), "--target", "slurm")
		l.ends(0)
		r.untilReady()
		conf, err := os.ReadFile(filepath.Join(os.Getenv("GENRM_SLURM_RIG"), r.version, "slurm.conf"))
		if err != nil {
			t.Fatal(err)
		}
		away := r.file("away.conf", strings.Replace(string(conf), "SlurmctldPort=", "MessageTimeout=2\nSlurmctldPort=1\n#", 1))
		nowhere := r.file("nowhere/../slurm.conf", "ClusterName=x\nSlurmctldHost=localhost\n")
		for _, c := range []struct{ conf, text string }{{away, "the Slurm controller does not answer"}, {nowhere, "Slurm"}} {
			env := []string{"SLURM_CONF=" + c.conf}
			before := len(r.folders())
			r.inside(env, "genrm", "launch", r.serve(""), "--target", "slurm").ends(3, c.text)
			r.inside(env, "genrm", "status").ends(3)
			r.inside(env, "genrm", "list").ends(0, "ready")
			if len(r.folders()) != before {
				t.Errorf("left behind: %q", r.folders())
			}
		}
		r.inside([]string{"PATH=" + filepath.Join(r.dir, "bin")}, "genrm", "launch", r.serve(""), "--target", "slurm").ends(3, "sbatch is not installed here, or not in PATH")
		r.run("genrm", "stop")
		r.checkEnd("stopped", 0, "COMPLETED 0:0")
	})
}

// inside starts a program on the login node with another environment than the
// rig's.
func (r *rig) inside(env []string, args ...string) *command {
	return r.startIn(nil, append(append([]string{"env"}, env...), args...)...)
}

// The rest is done to the cluster as a whole: nothing else runs there beside it.

// A node goes down in mid-run: the job runs again under the same run, whose first
// attempt can still be read.
func TestNodeDown(t *testing.T) {
	on(t, both, func(t *testing.T, r *rig) {
		l := r.launch(r.relax("wait", `slurm: {requeue: true, directives: nodelist: "node2"}`))
		r.untilReady()
		r.until("recorded", func() bool { _, err := r.recordOf(filepath.Base(r.folder()), "driver", 1); return err == nil })
		r.file("end", "0") // of the next attempt
		r.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
		r.until("pending again", func() bool { s := r.status(); return s.State == "pending" && s.Attempt == 2 && s.ExitCode == nil })
		gone(r)
		back(r)
		r.run("scontrol", "update", "jobid="+r.job(), "starttime=now") // instead of two minutes later
		l.ends(0)
		s := r.checkEnd("succeeded", 0, "COMPLETED 0:0")
		if s.Attempt != 2 {
			t.Errorf("attempt %d, want 2", s.Attempt)
		}
		if n := len(r.folders()); n != 1 {
			t.Errorf("%d runs", n)
		}
		driver := r.run("genrm", "logs", "--process", "driver", "--lines=-1")
		for _, want := range []string{"driver of attempt 1 recorded", "checkpoint saved", "driver of attempt 2 recorded"} {
			if !strings.Contains(driver, want) {
				t.Errorf("the driver's log has no %q:\n%s", want, driver)
			}
		}
		if job := r.run("genrm", "logs", "--process", "job", "--lines=-1"); strings.Count(job, "run.starting") != 2 {
			t.Errorf("the job's log has not both attempts:\n%s", job)
		}
		r.record("driver", 2)
	})
}

// gone waits until nothing of the job is on its node: Slurm's own process of a
// step is there for some seconds after the step's last. If the job starts again
// before that, or the controller goes away, Slurm drains the node.
func gone(r *rig) {
	r.t.Helper()
	cluster := filepath.Join(os.Getenv("GENRM_SLURM_RIG"), r.version) + "/"
	step := func(p process) bool {
		folder, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid)) // that of its slurmd; "" for one that has just ended
		return strings.HasPrefix(p.command, "slurmstepd: ["+r.job()+".") && strings.HasPrefix(folder, cluster)
	}
	r.until("gone from the node", func() bool { return len(r.alive()) == 0 && !slices.ContainsFunc(processes(), step) })
}

// back waits until the node that was down takes jobs again, which the rig's does by
// itself. Its state may be mixed: 22 counts what the last job had for a while.
func back(r *rig) {
	r.t.Helper()
	r.until("back", func() bool {
		state := strings.TrimSpace(r.run("sinfo", "-h", "-n", "node2", "-p", "gpu", "-o", "%T"))
		return slices.Contains([]string{"idle", "mixed", "allocated"}, state)
	})
}

// Without a requeue it is the end, which is told as that.
func TestNodeDownForGood(t *testing.T) {
	on(t, both, func(t *testing.T, r *rig) {
		l := r.launch(r.relax("wait", `slurm: {requeue: false, directives: nodelist: "node2"}`))
		r.untilReady()
		r.run("scontrol", "update", "nodename=node2", "state=down", "reason=test")
		l.wait()
		l.says("a node failed")
		gone(r)
		if s := r.status(); s.State != "failed" || s.JobState != "NODE_FAIL" || s.ExitCode == nil || *s.ExitCode == 0 || !strings.Contains(s.Reason, "a node failed") {
			t.Errorf("%+v", s)
		}
		r.checkGone()
		back(r)
	})
}

// The controller goes away while a launch follows its job, and comes back.
func TestControllerRestarts(t *testing.T) {
	on(t, both, func(t *testing.T, r *rig) {
		l := r.launch(r.serve(""))
		l.awaits("ready in ")
		controller(t, "stop", r.version)
		up := false
		defer func() {
			if !up {
				controller(t, "start", r.version)
			}
		}()
		l.awaits("Slurm does not answer")
		r.ask(r.endpoints())
		controller(t, "start", r.version)
		up = true
		l.awaits("Slurm answers again")
		r.run("genrm", "stop")
		l.ends(0, "stopped")
		r.checkEnd("stopped", 0, "COMPLETED 0:0")
	})
}

func controller(t *testing.T, verb, version string) {
	t.Helper()
	if text, err := exec.Command("./rig", "controller", verb, version).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}
