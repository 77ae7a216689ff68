package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// BoolForms is how the two values of a flag are written as one word of a command line.
type BoolForms struct {
	// True is the word for true.
	True string
	// False is the word for false; empty if false is written by leaving the flag out.
	False string
	// NoFalse says in the user's words why false can't be written; empty if it can.
	NoFalse string
}

// BoolForms returns the spelling of both values of a flag of type Bool; for other types ok is false.
//
// The rule: true is the flag itself. False is the negative form where the parser has one, else nothing if leaving
// the flag out means false, else it cannot be written: NoFalse then says why, and False is empty.
func (f Flag) BoolForms() (forms BoolForms, ok bool) {
	if f.Type != Bool {
		return BoolForms{}, false
	}
	forms = BoolForms{True: f.Flag, False: f.Negative}
	if f.Action == Store {
		// argparse's type=bool: any text but the empty one is true, so that --flag=False turns the flag on.
		forms.True += "=True"
		if f.falseByAbsence() {
			return forms, true
		}
		forms.NoFalse = fmt.Sprintf("%s reads every word, %q too, as true", f.Flag, "False")
		return forms, true
	}
	if f.Negative == "" && !f.falseByAbsence() {
		if f.Default == nil {
			forms.NoFalse = fmt.Sprintf("%s has no negative form, and without it the program decides by itself", f.Flag)
		} else {
			forms.NoFalse = fmt.Sprintf("%s has no negative form and is true by default", f.Flag)
		}
	}
	return forms, true
}

func (f Flag) falseByAbsence() bool { return string(f.Default) == "false" }

// Check reports whether a value may be given to the flag, as far as the parser's types, counts and choices tell;
// nil means that it may. The error's text says what is expected in the user's words and fits after a colon
// ("want an integer", "want one of: auto, half"). It never repeats the value, which may be a secret.
//
// A value is what decoding JSON with UseNumber gives: nil, bool, [json.Number], string, []any of these, and an
// object. An object is a map, a struct or a pointer to one; its contents are not looked at. A string given to a
// JSON flag must hold JSON of the right shape. Whether false can be written at all is for [Flag.BoolForms] to
// tell. Check panics for a Flag that only describes another spelling.
func (f Flag) Check(value any) error {
	if f.AliasOf != "" || f.NegativeOf != "" {
		panic("engines: Check of " + f.Name + ", which is only a spelling of another flag")
	}
	if value == nil && f.Optional || f.accepts(value) {
		return nil
	}
	return errors.New("want " + f.expected())
}

func (f Flag) accepts(value any) bool {
	accepts := f.acceptsWord
	if low, high, many := f.counts(); many {
		accepts = listOf(low, high, accepts)
	}
	if f.Action == Append {
		accepts = listOf(0, -1, accepts)
	}
	return accepts(value) || f.NArgs == "?" && value == true // the flag without a word
}

// counts returns how many words the flag takes, with high < 0 for no limit; many is false for flags that take
// one word or none.
func (f Flag) counts() (low, high int, many bool) {
	switch f.NArgs {
	case "", "?":
		return 0, 0, false
	case "*":
		return 0, -1, true
	case "+":
		return 1, -1, true
	}
	n, err := strconv.Atoi(f.NArgs)
	if err != nil {
		panic("engines: " + f.Name + ": unknown nargs " + f.NArgs)
	}
	return n, n, true
}

// listOf returns a check for lists of at least low and, if high is not negative, at most high elements.
func listOf(low, high int, element func(any) bool) func(any) bool {
	return func(value any) bool {
		list, ok := value.([]any)
		return ok && len(list) >= low && (high < 0 || len(list) <= high) &&
			!slices.ContainsFunc(list, func(v any) bool { return !element(v) })
	}
}

// acceptsWord checks a value for one word of the flag.
func (f Flag) acceptsWord(value any) bool {
	if len(f.Choices) > 0 {
		return slices.ContainsFunc(f.Choices, func(choice json.RawMessage) bool { return equals(choice, value) })
	}
	switch f.Type {
	case Bool:
		_, ok := value.(bool)
		return ok
	case Int:
		switch value := value.(type) {
		case json.Number:
			return isInteger(value)
		case string:
			return f.Words != "" && anchored(f.Words).MatchString(value)
		}
		return false
	case Float:
		_, ok := value.(json.Number)
		return ok
	case String:
		switch value.(type) {
		case string:
			return true
		case json.Number:
			return f.NumberOK
		}
		return f.JSONLoose && f.hasShape(value)
	case JSON:
		if text, ok := value.(string); ok {
			var decoded any
			return json.Unmarshal([]byte(text), &decoded) == nil && f.hasShape(decoded)
		}
		return f.hasShape(value)
	}
	panic("engines: " + f.Name + ": unknown type " + string(f.Type))
}

func (f Flag) hasShape(value any) bool {
	_, list := value.([]any)
	return list && f.Shape != "object" || isObject(value) && f.Shape != "list"
}

func anchored(words string) *regexp.Regexp { return regexp.MustCompile(`^(?:` + words + `)$`) }

// isInteger reports whether a number is written as an integer, as CUE's int asks: 1.0 and 1e3 are none.
func isInteger(number json.Number) bool { return !strings.ContainsAny(string(number), ".eE") }

// isObject reports whether a value is none of the others: a map, a struct or a pointer.
func isObject(value any) bool {
	switch value.(type) {
	case nil, bool, string, json.Number, []any:
		return false
	}
	kind := reflect.TypeOf(value).Kind()
	return kind == reflect.Map || kind == reflect.Struct || kind == reflect.Pointer
}

// equals compares a choice, which is a JSON string or integer, with a value.
func equals(choice json.RawMessage, value any) bool {
	switch value := value.(type) {
	case string:
		var text string
		return json.Unmarshal(choice, &text) == nil && text == value
	case json.Number:
		return string(choice) == string(value)
	}
	return false
}

// expected says what Check accepts.
func (f Flag) expected() string {
	one, many := f.words()
	var text string
	switch low, high, list := f.counts(); {
	case f.Action == Append && list:
		text = "a list of lists of " + many
	case f.Action == Append:
		text = "a list of " + many
	case f.NArgs == "?":
		text = one + ", or true for the flag alone"
	case !list:
		text = one
	case low == high:
		text = fmt.Sprintf("a list of %d %s", low, many)
	case low > 0:
		text = "a list, not empty, of " + many
	default:
		text = "a list of " + many
	}
	if f.Optional {
		text += ", or null"
	}
	return text
}

// words names what one word of the flag is, in the singular and in the plural.
func (f Flag) words() (one, many string) {
	if len(f.Choices) > 0 {
		choices := make([]string, len(f.Choices))
		for i, choice := range f.Choices {
			choices[i] = strings.Trim(string(choice), `"`)
		}
		text := "one of: " + strings.Join(choices, ", ")
		return text, "values, each " + text
	}
	var ones, manys []string
	add := func(one, many string) { ones, manys = append(ones, one), append(manys, many) }
	switch f.Type {
	case Bool:
		add("true or false", "true or false")
	case Int:
		add("an integer", "integers")
	case Float:
		add("a number", "numbers")
	case String:
		add("a string", "strings")
	}
	if f.NumberOK {
		add("a number", "numbers")
	}
	if f.HumanInt {
		add(`a count such as "4k"`, `counts such as "4k"`)
	}
	if strings.HasSuffix(f.Words, "|auto") {
		add(`"auto"`, `"auto"`)
	}
	if f.Type == JSON || f.JSONLoose {
		if f.Shape != "list" {
			add("an object", "objects")
		}
		if f.Shape != "object" {
			add("a list", "lists")
		}
	}
	return strings.Join(ones, " or "), strings.Join(manys, " or ")
}
