package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"genrm.dev/genrm/schema/engines"
)

type versionCmd struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"${enum}."`
}

func (versionCmd) Help() string {
	return `Prints genrm's version, the Go release that built it, and the engine releases whose flags it knows.

Examples:

  genrm version
  genrm version -o json`
}

func (c *versionCmd) Run(a *app) error {
	known := map[string][]string{}
	for _, e := range engineNames {
		known[e] = engines.Versions(e)
	}
	if c.Output == "json" {
		return printJSON(a.stdout, map[string]any{"version": version(), "go": runtime.Version(), "engines": known})
	}
	fmt.Fprintf(a.stdout, "genrm %s (%s %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, e := range engineNames {
		fmt.Fprintf(a.stdout, "  %-7s flags of %v\n", e, known[e])
	}
	return nil
}

// engineNames are the programs that have a flag catalogue.
var engineNames = []string{"relax", "sglang", "vllm"}

// version is that of the module, as the Go tool recorded it in the binary.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
