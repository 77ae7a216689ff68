// Package early sets up the garbage collector before the packages of others
// initialise: Go does so in the order of import paths, and those of Kubernetes
// fill tables of several megabytes, of which nothing is garbage.
package early

import "runtime/debug"

func init() {
	// A run lives for milliseconds: collecting its garbage early costs a quarter
	// of them. The limit keeps a sweep of thousands in bounds.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(512 << 20)
}
