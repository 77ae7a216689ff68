package compiler

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
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
	if r.cat == nil {
		return nil
	}
	var argv []plan.Arg
	given := map[string]diag.Pos{} // canonical name → the key that set it
	if block != nil {
		for _, f := range block.Fields {
			if r.skip[f.Name] {
				continue
			}
			flag, ok := e.resolveFlag(r, block, f, given)
			if ok && !hasBad(f.Value) {
				argv = append(argv, e.renderFlag(r, flag, f.Value)...)
			}
		}
	}
	return append(argv, e.checkExtraArgs(r, block, extra, given)...)
}

// resolveFlag finds the canonical flag of a key and reports what is wrong with
// the name; ok is false if there is nothing to write.
func (e *experiment) resolveFlag(r flagRules, block *tree.Value, f tree.Field, given map[string]diag.Pos) (flag engines.Flag, ok bool) {
	flag, known := r.cat.Lookup(f.Name)
	if !known {
		e.unknownFlag(r, block, f)
		return flag, false
	}
	if flag.NegativeOf != "" {
		remedy := "write " + flag.NegativeOf + ": false"
		if b, isBool := f.Value.AsBool(); isBool && !b {
			remedy = "write " + flag.NegativeOf + ": true, or leave it out"
		}
		e.reportKey("GRM3004", diag.Error, block, f.Name, fmt.Sprintf("%s is the negative form of %s", f.Name, flag.NegativeOf),
			"A switch has one key, whose value is true or false; "+programOf(r.cat)+" gets the spelling that its parser has for it.", remedy)
		return flag, false
	}
	if flag.AliasOf != "" {
		name := flag.AliasOf
		if flag, known = r.cat.Lookup(name); !known {
			return flag, false
		}
	}
	if who, owned := r.owned[flag.Name]; owned {
		if redacted(f.Value) { // which says to remove it, too
			return flag, false
		}
		e.reportKey("GRM3006", diag.Error, block, f.Name, f.Name+" is not yours to set: "+who, "", "remove it")
		return flag, false
	}
	if first, again := given[flag.Name]; again {
		e.reportKey("GRM3007", diag.Error, block, f.Name, fmt.Sprintf("%s is set twice", flag.Flag),
			fmt.Sprintf("%s is another spelling of it.", f.Name), "keep one of the two",
			diag.Related{Pos: first, Message: "set here first"})
		return flag, false
	}
	given[flag.Name] = f.Pos
	if flag.Name != f.Name {
		e.reportKey("GRM3004", diag.Note, block, f.Name, fmt.Sprintf("%s is another spelling of %s", f.Name, flag.Name),
			"The command line carries "+flag.Flag+", the one spelling that is not taken away or abbreviated from release to release.", "write "+flag.Name)
	}
	if flag.Deprecated {
		detail := programOf(r.cat) + " calls it deprecated: a later release may refuse it."
		if flag.Action == engines.NoOp {
			detail = programOf(r.cat) + " calls it deprecated and ignores it."
		}
		e.reportKey("GRM3005", diag.Warning, block, f.Name, fmt.Sprintf("%s is deprecated", f.Name), detail,
			"it may stay for this release; look in `genrm catalogue show "+r.cat.Engine+"` before you move to another")
	}
	return flag, true
}

// commonKeys names the engine configuration key that means the same as one
// engine's own flag.
var commonKeys = map[string]string{
	"max_model_len":          "max_context_len",
	"context_length":         "max_context_len",
	"gpu_memory_utilization": "mem_fraction_static",
	"data_parallel_size":     "dp_size",
	"pipeline_parallel_size": "pp_size",
	"expert_parallel_size":   "ep_size",
}

func (e *experiment) unknownFlag(r flagRules, block *tree.Value, f tree.Field) {
	key := engines.Key(f.Name)
	var theirs []string
	for _, v := range engines.Versions(r.cat.Engine) {
		if c, _ := engines.Get(r.cat.Engine, v); c != r.cat {
			if _, ok := c.Lookup(key); ok {
				theirs = append(theirs, programOf(c))
			}
		}
	}
	for _, c := range r.others {
		if c.Engine == r.cat.Engine {
			continue // looked at above
		}
		if _, ok := c.Lookup(key); ok {
			theirs = append(theirs, programOf(c))
		}
	}
	detail := ""
	if theirs != nil {
		detail = "It is a flag of " + strings.Join(theirs, " and of ") + "."
	} else if r.cat.Engine == "relax" {
		detail = "train.py ignores a flag that it does not know, without a word."
	}
	candidates := []string{}
	for name := range r.cat.Names() {
		if _, owned := r.owned[name]; !owned && block.Field(name) == nil {
			candidates = append(candidates, name)
		}
	}
	for name := range r.skip {
		if block.Field(name) == nil {
			candidates = append(candidates, name)
		}
	}
	remedy := diag.DidYouMean(f.Name, candidates)
	if common := commonKeys[key]; r.skip[common] {
		remedy = fmt.Sprintf("write %s, which means this for every engine", common)
	}
	if remedy == "" {
		remedy = "remove it; a flag that only a patched build has goes in extra_args"
	}
	e.reportKey("GRM3001", diag.Error, block, f.Name, fmt.Sprintf("%s is no flag of %s", f.Name, programOf(r.cat)), detail, remedy)
}

// programOf names the program of a catalogue with its release, as users say it.
func programOf(c *engines.Catalogue) string {
	switch c.Engine {
	case "vllm":
		return "vLLM " + c.Version
	case "sglang":
		return "SGLang " + c.Version
	case "relax":
		return "Relax's train.py"
	}
	return c.Engine + " " + c.Version
}

// renderFlag checks a value and returns the words that carry it.
func (e *experiment) renderFlag(r flagRules, f engines.Flag, v *tree.Value) []plan.Arg {
	if v.Kind == tree.String && (f.Type == engines.JSON || f.JSONLoose) {
		if problem := jsonTextProblem(f, v.Text); problem != "" {
			e.report("GRM3011", diag.Error, v, fmt.Sprintf("%s %s", f.Flag, problem),
				"The program gets the text as one word, with no shell between to take quotes away.",
				"write the value as a struct or a list; it is serialised once")
			return nil
		}
	}
	if err := f.Check(v.Any()); err != nil {
		takes := strings.TrimPrefix(err.Error(), "want ")
		if r.cat.Engine == "relax" {
			takes = strings.TrimSuffix(takes, ", or null") // the schema refuses null in args
		}
		e.report("GRM3002", diag.Error, v, fmt.Sprintf("%s is %s, but %s of %s takes %s", f.Name, shown(v), f.Flag, programOf(r.cat), takes),
			"", valueRemedy(f, v, takes))
		return nil
	}
	if v.Kind == tree.Null {
		return nil // optional: left out
	}
	if forms, ok := f.BoolForms(); ok {
		switch {
		case v.IsTrue():
			return words1(forms.True)
		case forms.NoFalse != "":
			e.report("GRM3003", diag.Error, v, f.Name+": false cannot be written on the command line", forms.NoFalse+".",
				"remove the line, or look for a flag of "+programOf(r.cat)+" that turns it off")
			return nil
		}
		return words1(forms.False)
	}
	if f.Action == engines.Append {
		var out []plan.Arg
		for _, item := range v.Items {
			list := []*tree.Value{item}
			if item.Kind == tree.List && f.NArgs != "" {
				list = item.Items
			}
			out = append(out, e.renderWords(r, f, list)...)
		}
		return out
	}
	if v.Kind == tree.List && f.NArgs != "" && f.NArgs != "?" {
		return e.renderWords(r, f, v.Items)
	}
	if f.NArgs == "?" && v.Kind == tree.Bool {
		return words1(f.Flag) // true: the flag alone
	}
	return e.renderWords(r, f, []*tree.Value{v})
}

// valueRemedy says what to type instead of a value that a flag does not take,
// whose words for what it takes are given.
func valueRemedy(f engines.Flag, v *tree.Value, takes string) string {
	if v.Kind == tree.String {
		if bare, err := tree.ParseJSON(v.Text); err == nil && bare.Kind != tree.String && f.Check(bare.Any()) == nil {
			return "write it without the quotes: " + bare.JSON()
		}
		var choices []string
		for _, c := range f.Choices {
			choices = append(choices, strings.Trim(string(c), `"`))
		}
		if near := diag.DidYouMean(v.Text, choices); near != "" {
			return near
		}
	}
	if list := (&tree.Value{Kind: tree.List, Items: []*tree.Value{v}}); f.Check(list.Any()) == nil {
		return "write a list of one: [" + v.JSON() + "]"
	}
	if text := tree.Text(v.JSON()); v.Kind != tree.Struct && v.Kind != tree.List && v.Kind != tree.Null && f.Check(text.Any()) == nil {
		return "write it with quotes: " + text.JSON()
	}
	return "write " + takes
}

func words1(s string) []plan.Arg {
	if s == "" {
		return nil
	}
	return []plan.Arg{plan.Lit(s)}
}

// plainNegative is what argparse takes for a negative number rather than for an
// option, when it stands alone as a word.
var plainNegative = regexp.MustCompile(`^-(\d+|\d*\.\d+)$`)

// renderWords writes one occurrence of a flag with its words. One word is
// attached with "=" in the equals style, and in the words style when argparse
// would take it for an option. Several cannot be attached: they stand alone,
// and one that begins with "-" is refused, since the parser would end the list
// there (and vLLM's fails on a negative decimal).
func (e *experiment) renderWords(r flagRules, f engines.Flag, items []*tree.Value) []plan.Arg {
	texts := make([]string, len(items))
	for i, v := range items {
		texts[i] = flagWord(f, v)
		if strings.Contains(texts[i], nul) {
			e.report("GRM3002", diag.Error, v, v.Path+nulSummary, nulDetail, nulRemedy)
			return nil
		}
	}
	option := func(s string) bool {
		return strings.HasPrefix(s, "-") && s != "-" && !(r.style == words && plainNegative.MatchString(s))
	}
	if len(texts) == 1 && (r.style == equals || option(texts[0])) {
		return []plan.Arg{plan.Lit(f.Flag + "=" + texts[0])}
	}
	for i, s := range texts {
		if option(s) {
			e.report("GRM3009", diag.Error, items[i], fmt.Sprintf("a word of %s begins with \"-\"", f.Flag),
				fmt.Sprintf("The flag takes %d words here, which stand alone on the command line; the parser takes this one for the next option.", len(texts)),
				"give the list one element, or a value that does not begin with \"-\"")
			return nil
		}
	}
	return append([]plan.Arg{plan.Lit(f.Flag)}, plan.Lits(texts)...)
}

// flagWord is the text of one word. JSON given as text is serialised anew, so
// that both ways to write it give the same command.
func flagWord(f engines.Flag, v *tree.Value) string {
	switch v.Kind {
	case tree.String:
		if f.Type == engines.JSON {
			if parsed, err := tree.ParseJSON(v.Text); err == nil {
				return parsed.JSON()
			}
		}
		return v.Text
	case tree.Struct, tree.List:
		return v.JSON()
	}
	return v.Text
}

// jsonTextProblem says what is wrong with text that is to be JSON, or "". A
// flag that also takes plain text (a file name) is held to JSON only when the
// text begins like it, with or without stray quotes around.
func jsonTextProblem(f engines.Flag, text string) string {
	want := "JSON object"
	switch f.Shape {
	case "list":
		want = "JSON list"
	case "":
		want = "JSON object or list"
	}
	trimmed := strings.TrimSpace(text)
	inner := strings.TrimSpace(strings.TrimLeft(trimmed, `'"`))
	if f.Type != engines.JSON && !strings.HasPrefix(inner, "{") && !strings.HasPrefix(inner, "[") {
		return ""
	}
	v, err := tree.ParseJSON(text)
	switch {
	case err != nil && strings.HasPrefix(err.Error(), "duplicate key"):
		return "has a " + err.Error()
	case err != nil && inner != trimmed:
		return "is not a " + want + ": it begins with a quote character"
	case err != nil:
		return "is not a " + want
	case v.Kind == tree.Struct && f.Shape == "list", v.Kind == tree.List && f.Shape == "object", v.Kind != tree.Struct && v.Kind != tree.List:
		return "is not a " + want
	}
	return ""
}

// checkExtraArgs returns the elements of extra_args as they are, and reports
// those that repeat a flag that is set elsewhere.
func (e *experiment) checkExtraArgs(r flagRules, block, extra *tree.Value, given map[string]diag.Pos) []plan.Arg {
	if extra == nil {
		return nil
	}
	var argv []plan.Arg
	here := map[string]diag.Pos{}
	for i, v := range extra.Items {
		text, ok := v.AsString()
		if !ok {
			continue
		}
		argv = append(argv, plan.Lit(text))
		if !strings.HasPrefix(text, "-") || text == "-" || text == "--" || plainNegative.MatchString(text) {
			continue
		}
		name, _, _ := strings.Cut(text, "=")
		if strings.ContainsAny(name, " \t\n") {
			flag, value, _ := strings.Cut(text, " ")
			e.report("GRM3008", diag.Error, v, "an element of extra_args holds a flag and its value with a blank between",
				"Each element is one word of the command line: the parser would look for an option whose name has a blank in it.",
				fmt.Sprintf("write %q, or %q and %q as two elements", flag+"="+strings.TrimSpace(value), flag, strings.TrimSpace(value)))
			continue
		}
		flag, known := e.extraFlag(r, name)
		canonical := engines.Key(name)
		if known {
			canonical = flag.Name
		}
		who, owned := r.owned[canonical]
		place, typed := given[canonical]
		first, again := here[canonical]
		switch {
		case owned && e.secretWord(extra.Items[i:], who):
		case owned:
			e.report("GRM3006", diag.Error, v, name+" is not yours to set: "+who, "", "remove it")
		case typed:
			e.report("GRM3007", diag.Error, v, flag.Flag+" is set twice", "extra_args may not repeat a flag that is set above it.",
				"keep one of the two", diag.Related{Pos: place, Message: "set here first"})
		case again && flag.Action != engines.Append:
			e.report("GRM3007", diag.Error, v, name+" is set twice", "The parser keeps only one of them.",
				"keep one of the two", diag.Related{Pos: first, Message: "set here first"})
		case known && !again:
			e.report("GRM3010", diag.Note, v, fmt.Sprintf("%s is a known flag of %s", name, programOf(r.cat)),
				"extra_args is not checked; it is for flags that only a patched build has.", "set "+canonical+" as a key, where it is checked")
		}
		if !again {
			here[canonical] = v.Pos
		}
	}
	return argv
}

// secretWord reports whether a literal secret was found in the first of the words,
// a flag, or as its value behind it, and has that finding say why the flag may
// not be there.
func (e *experiment) secretWord(words []*tree.Value, why string) bool {
	for i, v := range words[:min(2, len(words))] {
		text, _ := v.AsString()
		if i > 0 && strings.HasPrefix(text, "-") {
			break
		}
		if redacted(v) {
			return true
		}
		for j := range e.diags {
			if d := &e.diags[j]; d.Code == "GRM1008" && d.Path == v.Path {
				d.Remedy = "remove it: " + why
				return true
			}
		}
	}
	return false
}

// extraFlag resolves a spelling of extra_args as the parser will: aliases and
// negatives, vLLM's dotted keys, and the abbreviations that the engines'
// parsers take when only one flag begins so.
func (e *experiment) extraFlag(r flagRules, name string) (engines.Flag, bool) {
	if r.cat.Engine == "vllm" {
		name, _, _ = strings.Cut(name, ".")
	}
	f, ok := r.cat.Lookup(name)
	if canonical := f.AliasOf + f.NegativeOf; ok && canonical != "" {
		f, ok = r.cat.Lookup(canonical)
	}
	if ok || r.cat.Engine == "relax" || !strings.HasPrefix(name, "--") || len(name) < 4 {
		return f, ok
	}
	var hits []string
	for n := range r.cat.Names() {
		if strings.HasPrefix(n, engines.Key(name)) {
			hits = append(hits, n)
		}
	}
	if len(hits) != 1 {
		return f, false
	}
	return r.cat.Lookup(hits[0])
}

// hasBad reports whether v or something in it was found faulty before.
func hasBad(v *tree.Value) bool {
	if v == nil || v.Kind == tree.Bad || redacted(v) {
		return true
	}
	return slices.ContainsFunc(v.Items, hasBad) || slices.ContainsFunc(v.Fields, func(f tree.Field) bool { return hasBad(f.Value) })
}
