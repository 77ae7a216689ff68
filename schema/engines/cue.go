package engines

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// CUE returns a CUE file of package pkg with one definition, def (with its #), of the catalogue's flags: for
// editors and the stock cue command, which then know names, types and choices. It says the same as [Flag.Check],
// except that the struct is open: it describes one release, and the user may pin another. Labels are quoted, since
// a flag may be called like a CUE type. The result is in no particular format; it parses without an error.
func (c *Catalogue) CUE(pkg, def string) []byte {
	var fields bytes.Buffer
	for flag := range c.Flags() {
		fmt.Fprintf(&fields, "\n\t// %s%s\n\t%q?: %s\n", flag.Flag, flag.remark(), flag.Name, flag.cue())
	}
	var file bytes.Buffer
	fmt.Fprintf(&file, "// Made by genrm from the argument parser of %s %s. Do not edit.\n", c.Engine, c.Version)
	fmt.Fprintf(&file, "\npackage %s\n", pkg)
	if bytes.Contains(fields.Bytes(), []byte("json.Validate(")) {
		file.WriteString("\nimport \"encoding/json\"\n")
	}
	fmt.Fprintf(&file, "\n%s: {\n%s\n\t...\n}\n", def, bytes.Trim(fields.Bytes(), "\n"))
	return file.Bytes()
}

func (f Flag) remark() string {
	var text string
	if f.Default != nil {
		text = ", default " + string(f.Default)
	}
	if f.Required {
		text += ", required"
	}
	if f.Deprecated {
		text += ", deprecated"
	}
	return text
}

// cue returns the flag's values as a CUE expression.
func (f Flag) cue() string {
	one := f.cueWord()
	expression := one
	if low, high, many := f.counts(); many {
		expression = cueList(one, low, high)
	}
	if f.Action == Append {
		expression = cueList(expression, 0, -1)
	}
	if f.NArgs == "?" {
		expression += " | true"
	}
	if f.Optional {
		expression += " | null"
	}
	return expression
}

// cueList returns the type of a list with at least low and at most high (if not negative) elements.
func cueList(element string, low, high int) string {
	elements := make([]string, low, low+1)
	for i := range elements {
		elements[i] = element
	}
	if high < 0 {
		elements = append(elements, "...("+element+")")
	}
	return "[" + strings.Join(elements, ", ") + "]"
}

// cueWord returns the type of one word.
func (f Flag) cueWord() string {
	if len(f.Choices) > 0 {
		choices := make([]string, len(f.Choices))
		for i, choice := range f.Choices {
			choices[i] = string(choice) // JSON is CUE
		}
		return strings.Join(choices, " | ")
	}
	switch f.Type {
	case Bool:
		return "bool"
	case Int:
		if f.Words != "" {
			return "int | =~" + strconv.Quote(anchored(f.Words).String())
		}
		return "int"
	case Float:
		return "number"
	case String:
		types := "string"
		if f.NumberOK {
			types += " | number"
		}
		if f.JSONLoose {
			types += " | " + f.cueShape()
		}
		return types
	case JSON:
		return f.cueShape() + " | (string & json.Validate(" + f.cueShape() + "))"
	}
	panic("engines: " + f.Name + ": unknown type " + string(f.Type))
}

func (f Flag) cueShape() string {
	switch f.Shape {
	case "object":
		return "{...}"
	case "list":
		return "[...]"
	}
	return "{...} | [...]"
}
