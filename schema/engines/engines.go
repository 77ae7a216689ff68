// Package engines knows the command-line options of the programs that genrm starts: which exist in which
// release, what values they take, and how a boolean is spelt.
//
// It owns the catalogues, one file of JSON lines for each release, generated from the released package's own
// argument parser by the programs in gen/ and embedded here; no line is written by hand. Two forms are derived
// from a catalogue and agree with each other (a test compares them): the checks of [Flag.Check], which the
// compiler calls for each key that a user wrote, and the CUE definition of [Catalogue.CUE], for editors and the
// stock cue command.
//
// The package is a leaf: it imports the standard library alone, reads no file and no environment variable at run
// time, opens no connection, starts nothing. Everything in it is safe for concurrent use.
//
// A catalogue is looked up, not parsed: its lines are sorted by name, so a look-up halves the text and decodes
// the one line it finds. Getting a catalogue costs nothing; a look-up costs a few microseconds.
package engines

import (
	_ "embed" // the catalogues
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
)

var (
	//go:embed relax-guide.jsonl
	relaxGuide string
	//go:embed sglang-0.5.15.post1.jsonl
	sglang0515post1 string
	//go:embed vllm-0.24.0.jsonl
	vllm0240 string
	//go:embed vllm-0.29.0.jsonl
	vllm0290 string
)

// releases lists every catalogue, oldest first within an engine.
var releases = []*Catalogue{
	{Engine: "relax", Version: "guide", lines: relaxGuide},
	{Engine: "sglang", Version: "0.5.15.post1", lines: sglang0515post1},
	{Engine: "vllm", Version: "0.24.0", lines: vllm0240},
	{Engine: "vllm", Version: "0.29.0", lines: vllm0290},
}

// Catalogue holds the options of one release of one program.
type Catalogue struct {
	// Engine is "relax" (train.py: its own options, Megatron's, and SGLang's behind sglang_), "sglang" (its
	// server) or "vllm" (vllm serve).
	Engine string
	// Version is the release on the package index, such as "0.24.0"; for relax, the line of development.
	Version string

	lines string // JSON objects, one a line, sorted by their "name", each line ended by '\n'
}

// Type is what an option takes. A flag with NArgs or with the action Append takes a list of it.
type Type string

// The types of options.
const (
	Bool   Type = "bool"   // true or false; see [Flag.BoolForms] for its spelling
	Int    Type = "int"    // an integer; see also [Flag.Words]
	Float  Type = "float"  // an integer or a decimal number
	String Type = "string" // any text; see also [Flag.JSONLoose] and [Flag.NumberOK]
	JSON   Type = "json"   // an object or a list, written as one word; see also [Flag.Shape]
)

// Action is what the parser does with an option.
type Action string

// The actions of parsers, reduced to what matters to someone who writes a command line.
const (
	Store           Action = "store"            // keeps the words that follow; a repeated option replaces them
	Append          Action = "append"           // may be repeated: one occurrence for each element of a list
	StoreTrue       Action = "store_true"       // a switch that takes no word
	StoreFalse      Action = "store_false"      // a switch such as --no-x or --disable-x: given, it turns x off
	BooleanOptional Action = "boolean_optional" // a pair of switches, --x and [Flag.Negative]
	StoreConst      Action = "store_const"      // a switch that sets another option
	NoOp            Action = "no_op"            // a switch without effect, kept for old command lines
)

// Flag describes one option of one release, or one more spelling of it: then only Name and one of AliasOf and
// NegativeOf are set.
//
// Switches (the five actions that take no word) are described in the user's terms: true means that the switch is
// given, also for one that turns something off (disable_x: true is --disable-x), and Default is the value that
// leaving it out stands for.
type Flag struct {
	// Name is the key that users write: the long option without its dashes, with _ for -. It is the flag's
	// identity within its catalogue.
	Name string `json:"name"`
	// Flag is the canonical spelling, the only one to put on a command line: "--tensor-parallel-size".
	Flag string `json:"flag"`
	Type Type   `json:"type"`
	// Shape narrows what a JSON or JSONLoose flag takes: "object", "list", or "" for either.
	Shape string `json:"shape"`
	// NArgs is argparse's count of words: "" for exactly one (none for switches), "+" for one or more, "*" for any
	// number, "?" for at most one, or a number such as "2".
	NArgs string `json:"nargs"`
	// Choices are the legal values, if the parser limits them: JSON strings or integers.
	Choices []json.RawMessage `json:"choices"`
	// Words is a regular expression (RE2, to be anchored at both ends) for the strings that a flag of type Int
	// takes besides integers, such as "auto" or "4k"; empty for none.
	Words string `json:"words"`
	// Default is the value without the flag, as JSON; nil where the parser has None: the program decides.
	Default json.RawMessage `json:"default"`
	Action  Action          `json:"action"`
	// Negative is the spelling that means false ("--no-enable-x"), empty if the parser has none.
	Negative string `json:"negative"`
	// Aliases are the other spellings with the same meaning, short ones ("-tp") included.
	Aliases []string `json:"aliases"`
	// Deprecated says that the release itself calls the flag deprecated.
	Deprecated bool `json:"deprecated"`
	// HumanInt says that the flag reads counts with a suffix, such as "4k"; Words has the engine's own set.
	HumanInt bool `json:"human_int"`
	// NumberOK says that a String flag also takes a bare number (its converter reads numbers and expressions).
	NumberOK bool `json:"number_ok"`
	// Optional says that null is a value: the default is None, so that null means to leave the flag out.
	Optional bool `json:"optional"`
	// JSONLoose says that a String flag's word may be JSON, too: an object or a list, as Shape tells.
	JSONLoose bool `json:"json_loose"`
	// Required says that the program does not start without the flag.
	Required bool `json:"required"`
	// Source is the part of the program that registers the flag, where one has several. For relax: "arguments.py",
	// "generative" and "opd" (its own), "megatron", "sglang", "sglang_router".
	Source string `json:"source"`
	// AliasOf is the Name that this spelling is another spelling of.
	AliasOf string `json:"alias_of"`
	// NegativeOf is the Name whose false this spelling stands for.
	NegativeOf string `json:"negative_of"`
}

// Get returns the catalogue of a release, if it is known: Get("vllm", "0.24.0").
func Get(engine, version string) (*Catalogue, bool) {
	i := slices.IndexFunc(releases, func(c *Catalogue) bool { return c.Engine == engine && c.Version == version })
	if i < 0 {
		return nil, false
	}
	return releases[i], true
}

// Versions returns the known releases of an engine, oldest first; nil for an unknown engine.
func Versions(engine string) []string {
	var versions []string
	for _, c := range releases {
		if c.Engine == engine {
			versions = append(versions, c.Version)
		}
	}
	return versions
}

// Latest returns the newest known catalogue of an engine, or nil for an unknown engine.
func Latest(engine string) *Catalogue {
	for _, c := range slices.Backward(releases) {
		if c.Engine == engine {
			return c
		}
	}
	return nil
}

// Key returns the form of an option's spelling that catalogues are keyed by: "--tp-size" and "tp_size" are both
// "tp_size". Case matters, as it does to the parsers.
func Key(spelling string) string {
	return strings.ReplaceAll(strings.TrimLeft(spelling, "-"), "-", "_")
}

// Lookup finds a flag by any of its spellings, with - and _ the same and leading dashes dropped. The flag it
// returns has AliasOf or NegativeOf set, and nothing else, if the spelling is not the canonical one. It reports
// false for a name that the release does not have; abbreviations are not resolved, though the parsers do so.
func (c *Catalogue) Lookup(name string) (Flag, bool) {
	name = Key(name)
	low, high := 0, len(c.lines) // both are starts of lines, or the end
	for low < high {
		middle := strings.LastIndexByte(c.lines[low:low+(high-low)/2], '\n') + low + 1
		end := middle + strings.IndexByte(c.lines[middle:], '\n') + 1
		switch strings.Compare(nameIn(c.lines[middle:end]), name) {
		case 0:
			return decode(c.lines[middle:end]), true
		case -1:
			low = end
		default:
			high = middle
		}
	}
	return Flag{}, false
}

// Names yields the canonical names in byte order, without decoding a line: candidates for "did you mean".
func (c *Catalogue) Names() iter.Seq[string] {
	return func(yield func(string) bool) {
		for line := range strings.Lines(c.lines) {
			if isCanonical(line) && !yield(nameIn(line)) {
				return
			}
		}
	}
}

// Flags yields the canonical flags in the order of [Catalogue.Names].
func (c *Catalogue) Flags() iter.Seq[Flag] {
	return func(yield func(Flag) bool) {
		for line := range strings.Lines(c.lines) {
			if isCanonical(line) && !yield(decode(line)) {
				return
			}
		}
	}
}

// opening is how each line of a catalogue begins; the name follows, and names need no escapes.
const opening = `{"name":"`

func nameIn(line string) string {
	name, _, _ := strings.Cut(line[len(opening):], `"`)
	return name
}

// isCanonical reports whether a line describes a flag, not another spelling of one.
func isCanonical(line string) bool {
	return strings.HasPrefix(line[len(opening)+len(nameIn(line)):], `","flag":"`)
}

func decode(line string) Flag {
	var f Flag
	if err := json.Unmarshal([]byte(line), &f); err != nil {
		panic(fmt.Sprintf("engines: damaged catalogue line %q: %v", line, err)) // embedded text; a test decodes every line
	}
	return f
}
