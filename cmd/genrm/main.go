// Command genrm checks, plans and emits GenRM and LLM-judge runs that are
// written as typed CUE files.
package main

import (
	"os"

	_ "genrm.dev/genrm/cmd/genrm/early" // before all others
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}
