package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/ray/kuberay"
	"genrm.dev/genrm/launchers/slurm"
)

type emitCmd struct {
	compileFlags
	Output      string `short:"o" required:"" placeholder:"DIR" help:"Folder to write to, made if need be; - prints to stdout."`
	Only        string `placeholder:"FILE" help:"With -o -: print this file alone."`
	Force       bool   `help:"Overwrite files that genrm did not write, or that were edited since."`
	SkipRefused bool   `help:"Emit the accepted experiments of a sweep although others are refused."`
}

func (emitCmd) Help() string {
	return `Steps: as vet, and stop if anything is refused; then write, for each experiment,

  plan.json       the plan
  launch.sh       the command as a readable bash script
  launch.json     the same as argv and environment
  processes.json  serve, but on Ray: every process with its node and GPUs
  engine-*.sh     the same: one script per engine and node
  job.sbatch      target slurm: the job, which sbatch takes as it is
  job.json        target ray, relax and gym: the body of POST /api/jobs/
  serve.json      serve on target ray: the application, which Ray Serve's REST API and serve deploy take
  kuberay.yaml    target kuberay: the objects, which kubectl apply takes as they are
  and the files that the command reads, such as gym.yaml

Several experiments get a folder each. Secrets stand in the scripts by reference only. What only the machine knows is a variable that the script asks for, such as GENRM_PORT_HTTP. The same input gives the same bytes; all files are written or none. A file that genrm did not write, or that was edited, is kept; one that an earlier emit wrote into DIR and that is no longer made is removed.

A target is needed, in the file or by --target: there is no default, so that nobody starts engines on a login node by accident.

Examples:

  genrm emit examples/relax-dual-judge --target slurm -o out
  genrm emit dual.cue --target local -o - --only launch.sh

Exit status: 0 written, 1 errors and nothing written, 2 wrong usage.`
}

func (c *emitCmd) Run(a *app) error {
	if c.Only != "" && c.Output != "-" {
		return usagef("--only needs -o -")
	}
	r := c.compile()
	plans, err := a.accepted(r, c.SkipRefused)
	if err != nil {
		return err
	}
	if len(plans) == 0 {
		return fmt.Errorf("no experiment to emit")
	}
	var open []string
	for _, p := range plans {
		if p.Target == "" {
			open = append(open, p.Name)
		}
	}
	if len(open) > 0 {
		return usagef("no target for %s: add --target (%s), or target: in the file", strings.Join(open, ", "), targetNames())
	}
	files, err := emitted(plans, len(plans)+len(r.Refused) > 1)
	if err != nil {
		return err
	}
	if c.Output == "-" {
		return c.print(a, files)
	}
	if err := a.ctx.Err(); err != nil {
		return err
	}
	err = emit.Write(c.Output, files, c.Force)
	var foreign *emit.Foreign
	if errors.As(err, &foreign) {
		return fmt.Errorf("%w\nNothing was written. Use another folder, or --force to overwrite them", err)
	}
	return err
}

// emitted returns the files of all plans, in a folder for each if several.
func emitted(plans []*plan.Plan, several bool) ([]emit.File, error) {
	var all []emit.File
	seen := map[string]bool{}
	var clashes []string
	objects := map[[3]string]string{} // in Kubernetes: the experiment that is one of this name
	for _, p := range plans {
		files, err := emit.Files(p)
		var more []emit.File
		switch {
		case err != nil:
		case p.Target == plan.Slurm:
			more, err = slurm.Files(p)
		case p.Target == plan.Ray:
			more, err = ray.Files(p)
		case p.Target == plan.KubeRay:
			more, err = kuberay.Files(p)
		}
		files = append(files, more...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		if p.Target == plan.KubeRay {
			place := kuberay.Place(p)
			if other, ok := objects[place]; ok && other != p.Name {
				clashes = append(clashes, fmt.Sprintf("%s and %s would both be %s", other, p.Name, place[2]))
				continue
			}
			objects[place] = p.Name
		}
		for _, f := range files {
			if several {
				f.Name = p.Name + "/" + f.Name
			}
			if seen[f.Name] {
				return nil, fmt.Errorf("two experiments are called %s, so that both would be written to the same folder; give one another name, or name one PATH at a time", p.Name)
			}
			seen[f.Name] = true
			all = append(all, f)
		}
	}
	if len(clashes) > 0 {
		return nil, fmt.Errorf("the experiments %s in Kubernetes, where names have small letters, digits and dashes alone: whichever is applied later would change the other's object; give one another name, or another kuberay.namespace", strings.Join(clashes, ", "))
	}
	return all, nil
}

func (c *emitCmd) print(a *app, files []emit.File) error {
	var names []string
	for _, f := range files {
		names = append(names, f.Name)
		if c.Only == f.Name {
			_, err := a.stdout.Write(f.Text)
			return err
		}
	}
	if c.Only != "" {
		return usagef("no file %s; there are %s", c.Only, strings.Join(names, ", "))
	}
	var b bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&b, "-- %s --\n", f.Name)
		b.Write(f.Text)
		if !bytes.HasSuffix(f.Text, []byte("\n")) {
			b.WriteByte('\n')
		}
	}
	_, err := a.stdout.Write(b.Bytes())
	return err
}

// stem is the name of a file without folder and .cue.
func stem(file string) string { return strings.TrimSuffix(filepath.Base(file), ".cue") }

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
