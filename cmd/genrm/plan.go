package main

import (
	"encoding/json"
	"fmt"

	"genrm.dev/genrm/compiler"
)

type planCmd struct {
	compileFlags
	Output      string `short:"o" enum:"text,json" default:"text" help:"${enum}. json is one object, or a list when there are several experiments."`
	SkipRefused bool   `help:"Show the accepted experiments of a sweep although others are refused; exit 0."`
}

func (planCmd) Help() string {
	return `Steps: as vet; then print what was decided: workload, mode and why, GPUs by role, judges with engine and parallelism, a map of GPUs, facts worth a review, and the exact command; for serve on Ray, which starts the engines itself, the application that it is sent. What only the machine knows (ports, hosts, ranks, the job's id) stands in braces, such as {port:http}. Nothing is started or written, and no network is used.

Of a sweep with refused experiments the accepted ones are shown, and the exit status is 1 unless --skip-refused is given.

Examples:

  genrm plan examples/relax-dual-judge
  genrm plan sweep.cue --name lr-small
  genrm plan dual.cue -o json | jq .instances.quality.bundles

Exit status: 0 planned, 1 errors, 2 wrong usage.`
}

func (c *planCmd) Run(a *app) error {
	r := c.compile()
	_, failed := a.accepted(r, c.SkipRefused)
	if err := c.print(a, r); err != nil {
		return err
	}
	return failed
}

func (c *planCmd) print(a *app, r *compiler.Result) error {
	if len(r.Plans) == 0 {
		return nil
	}
	if c.Output == "json" {
		var docs []json.RawMessage
		for _, p := range r.Plans {
			d, err := p.JSON()
			if err != nil {
				return err
			}
			docs = append(docs, d)
		}
		if len(docs) == 1 && len(r.Refused) == 0 {
			_, err := a.stdout.Write(docs[0])
			return err
		}
		return printJSON(a.stdout, docs)
	}
	for i, p := range r.Plans {
		if i > 0 {
			fmt.Fprintln(a.stdout)
		}
		if err := planText(a.stdout, p); err != nil {
			return err
		}
	}
	return nil
}
