package compiler

import (
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// argvStyle says how a flag and its value are written.
type argvStyle int

const (
	equals argvStyle = iota // --flag=value, the one form that every engine parser reads alike
	words                   // --flag value, lists as separate words: as Relax's published scripts do
)

// flagRules says how the flags of one block are checked.
type flagRules struct {
	cat    *engines.Catalogue
	others []*engines.Catalogue // where to look up a flag that cat lacks, to say whose it is
	owned  map[string]string    // flag name → who sets it, such as "genrm sets it from num_gpus_per_engine"
	skip   map[string]bool      // keys of the block that are no flags of the catalogue
	style  argvStyle
}

// checkFlags checks every member of block that is not in skip against the
// catalogue (name, type, choices, ownership, booleans, JSON shape), reports
// each finding at the user's place, and returns the argv of the good ones in
// the user's order. extra is the extra_args list, or nil: its elements are
// appended unchecked, but may not repeat a flag of block or one that is owned.
func (e *experiment) checkFlags(r flagRules, block, extra *tree.Value) []plan.Arg {
	return nil
}
