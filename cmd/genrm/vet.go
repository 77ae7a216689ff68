package main

import (
	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/rules"
)

type vetCmd struct {
	compileFlags
	Format string `enum:"text,json,github,sarif" default:"text" help:"How findings are printed: ${enum}. text goes to stderr, the others to stdout."`
}

func (vetCmd) Help() string {
	return `Steps: read the files; evaluate the CUE; check every name, type and bound against the schema; check engine and train.py flags against the catalogue of their release; work out mode, sizes and placement; ask the chosen target, or every target that has a block. No step stops at the first mistake. Nothing is started or written, and no network is used.

Prints nothing when all is well, except warnings and notes. Each finding has a code that ` + "`genrm explain CODE`" + ` explains.

Examples:

  genrm vet ./...
  genrm vet dual.cue --target slurm --strict
  genrm vet sweep.cue -t size=70b --set relax.colocate=true
  genrm vet ./... --format github       # annotations in GitHub Actions
  genrm vet ./... --format sarif > genrm.sarif

Exit status: 0 no error, 1 errors, 2 wrong usage.`
}

func (c *vetCmd) Run(a *app) error {
	r := c.compile()
	var err error
	switch c.Format {
	case "json":
		err = printJSON(a.stdout, map[string]any{"diagnostics": r.Diagnostics.JSON()})
	case "github":
		err = r.Diagnostics.GitHub(a.stdout)
	case "sarif":
		err = r.Diagnostics.SARIF(a.stdout, diag.SARIFOptions{Version: version(), Rule: func(code string) (string, string, bool) {
			p, ok := rules.Lookup(code)
			return p.Title, p.Text, ok
		}})
	default:
		err = a.report(r)
	}
	if err != nil {
		return err
	}
	if r.Diagnostics.HasErrors() {
		return errReported
	}
	return nil
}
