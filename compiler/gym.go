package compiler

import "genrm.dev/genrm/compiler/tree"

func compileGym(e *experiment, w *tree.Value) {}
