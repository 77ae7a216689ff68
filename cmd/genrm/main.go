// Command genrm checks, plans and emits GenRM and LLM-judge runs that are
// written as typed CUE files.
package main

import (
	"os"
	"runtime/debug"
)

func main() {
	// A run lives for milliseconds: collecting its garbage early costs a quarter
	// of them. The limit keeps a sweep of thousands in bounds.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(512 << 20)
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
