package main

import (
	"os"
	"testing"

	cuecmd "cuelang.org/go/cmd/cue/cmd"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"genrm": main,
		"cue":   func() { os.Exit(cuecmd.Main()) }, // stock cue of the module version that genrm is built with
	})
}

// TestScript runs testdata/script/*.txtar, each named command_topic.
// GENRM_UPDATE=1 rewrites the expected outputs in them.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		UpdateScripts:       os.Getenv("GENRM_UPDATE") != "",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(e *testscript.Env) error {
			// No network, and none of the developer's own settings.
			e.Setenv("CUE_REGISTRY", "none")
			e.Setenv("HOME", e.WorkDir+"/home")
			e.Setenv("CUE_CACHE_DIR", e.WorkDir+"/home/cache")
			e.Setenv("NO_COLOR", "1")
			return nil
		},
	})
}
