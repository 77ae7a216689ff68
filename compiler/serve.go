package compiler

import "genrm.dev/genrm/compiler/tree"

func compileServe(e *experiment, w *tree.Value) {}
