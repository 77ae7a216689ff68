// Package launchers lists the targets. A target is registered here.
package launchers

import (
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/local"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/ray/kuberay"
	"genrm.dev/genrm/launchers/slurm"
)

// Checkers returns the pure rules of every target.
func Checkers() []plan.Checker {
	return []plan.Checker{local.Checker(), slurm.Checker(), ray.Checker(), kuberay.Checker()}
}
