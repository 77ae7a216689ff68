// Package tree owns a document as the user wrote it: ordered, with the number
// texts of the source, and with the position of every key and value.
//
// It may not know CUE, the schema or any rule. Order matters here because it
// matters to the systems behind: Relax numbers GPU bundles in the order of the
// JSON keys of --genrm-instances, so an instance list must never pass through
// a Go map.
package tree

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/diag"
)

// Kind is the kind of a value.
type Kind int

const (
	// Bad marks a value that was found faulty and already reported. It stands
	// in so that later rules go on; they must not report it again.
	Bad Kind = iota
	Null
	Bool
	Int
	Float
	String
	List
	Struct
)

// String names the kind in the user's words.
func (k Kind) String() string {
	return [...]string{"an invalid value", "null", "a boolean", "an integer", "a number", "a string", "a list", "a struct"}[k]
}

// Value is a node of the document.
type Value struct {
	Kind   Kind
	Text   string   // String: the string; Int, Float: JSON number text; Bool: true or false
	Items  []*Value // List
	Fields []Field  // Struct, in the order that `cue export` prints
	Pos    diag.Pos
	Path   string // from the root of the file, such as relax.resource.actor[0]
}

// Field is a member of a struct.
type Field struct {
	Name  string
	Pos   diag.Pos // of the key
	Value *Value
}

// Field returns the member with that name, or nil. It is nil-safe, so that
// look-ups chain.
func (v *Value) Field(name string) *Value {
	if f := v.field(name); f != nil {
		return f.Value
	}
	return nil
}

func (v *Value) field(name string) *Field {
	if v == nil {
		return nil
	}
	for i := range v.Fields {
		if v.Fields[i].Name == name {
			return &v.Fields[i]
		}
	}
	return nil
}

// Lookup follows names from v, or returns nil.
func (v *Value) Lookup(names ...string) *Value {
	for _, n := range names {
		v = v.Field(n)
	}
	return v
}

// KeyPos returns the position of the key of that member, or of v itself if
// there is no such member.
func (v *Value) KeyPos(name string) diag.Pos {
	if f := v.field(name); f != nil {
		return f.Pos
	}
	if v == nil {
		return diag.Pos{}
	}
	return v.Pos
}

// Names returns the names of the members, in order.
func (v *Value) Names() []string {
	if v == nil {
		return nil
	}
	out := make([]string, len(v.Fields))
	for i, f := range v.Fields {
		out[i] = f.Name
	}
	return out
}

// OK reports whether v exists and was not found faulty.
func (v *Value) OK() bool { return v != nil && v.Kind != Bad }

// AsInt returns the integer and true if v is an integer in the range of int64.
func (v *Value) AsInt() (int64, bool) {
	if v == nil || v.Kind != Int {
		return 0, false
	}
	n, err := strconv.ParseInt(v.Text, 10, 64)
	return n, err == nil
}

// AsFloat returns the number and true if v is an integer or a float.
func (v *Value) AsFloat() (float64, bool) {
	if v == nil || v.Kind != Int && v.Kind != Float {
		return 0, false
	}
	f, err := strconv.ParseFloat(v.Text, 64)
	return f, err == nil
}

// AsBool returns the boolean and true if v is one.
func (v *Value) AsBool() (value, ok bool) {
	if v == nil || v.Kind != Bool {
		return false, false
	}
	return v.Text == "true", true
}

// AsString returns the string and true if v is one.
func (v *Value) AsString() (string, bool) {
	if v == nil || v.Kind != String {
		return "", false
	}
	return v.Text, true
}

// IsTrue reports whether v is the boolean true.
func (v *Value) IsTrue() bool { b, _ := v.AsBool(); return b }

// Any returns v in the form of encoding/json with UseNumber: nil, bool,
// json.Number, string, []any, map[string]any. The map loses the order: it
// serves checks, never output.
func (v *Value) Any() any {
	switch {
	case v == nil:
		return nil
	case v.Kind == Bool:
		return v.Text == "true"
	case v.Kind == Int || v.Kind == Float:
		return json.Number(v.Text)
	case v.Kind == String:
		return v.Text
	case v.Kind == List:
		out := make([]any, len(v.Items))
		for i, x := range v.Items {
			out[i] = x.Any()
		}
		return out
	case v.Kind == Struct:
		out := make(map[string]any, len(v.Fields))
		for _, f := range v.Fields {
			out[f.Name] = f.Value.Any()
		}
		return out
	}
	return nil
}

// JSON returns v as compact JSON in the user's order and number texts. Text is
// UTF-8 as it is: '<', '>' and '&' are not escaped, since the reader is a
// program's argument parser and not a web page.
func (v *Value) JSON() string {
	var b bytes.Buffer
	v.appendJSON(&b)
	return b.String()
}

// MarshalJSON implements json.Marshaler with the form of [Value.JSON].
func (v *Value) MarshalJSON() ([]byte, error) { return []byte(v.JSON()), nil }

func (v *Value) appendJSON(b *bytes.Buffer) {
	switch {
	case v == nil || v.Kind == Null || v.Kind == Bad:
		b.WriteString("null")
	case v.Kind == String:
		writeString(b, v.Text)
	case v.Kind == List:
		b.WriteByte('[')
		for i, x := range v.Items {
			if i > 0 {
				b.WriteByte(',')
			}
			x.appendJSON(b)
		}
		b.WriteByte(']')
	case v.Kind == Struct:
		b.WriteByte('{')
		for i, f := range v.Fields {
			if i > 0 {
				b.WriteByte(',')
			}
			writeString(b, f.Name)
			b.WriteByte(':')
			f.Value.appendJSON(b)
		}
		b.WriteByte('}')
	default:
		b.WriteString(v.Text)
	}
}

func writeString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	b.Truncate(b.Len() - 1)
}

// UnmarshalJSON implements json.Unmarshaler. It keeps the order of keys and the
// number texts, and refuses a duplicate key. Positions and paths stay empty.
func (v *Value) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	got, err := decode(dec)
	if err != nil {
		return err
	}
	*v = *got
	return nil
}

// ParseJSON reads exactly one JSON value. Unlike encoding/json it keeps the
// order and refuses duplicate keys and trailing text.
func ParseJSON(s string) (*Value, error) {
	dec := json.NewDecoder(strings.NewReader(s))
	dec.UseNumber()
	v, err := decode(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, fmt.Errorf("text after the JSON value")
	}
	return v, nil
}

func decode(dec *json.Decoder) (*Value, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch t := tok.(type) {
	case nil:
		return &Value{Kind: Null}, nil
	case bool:
		return &Value{Kind: Bool, Text: strconv.FormatBool(t)}, nil
	case string:
		return &Value{Kind: String, Text: t}, nil
	case json.Number:
		return Number(t.String()), nil
	case json.Delim:
		if t == '[' {
			list := &Value{Kind: List}
			for dec.More() {
				x, err := decode(dec)
				if err != nil {
					return nil, err
				}
				list.Items = append(list.Items, x)
			}
			_, err := dec.Token()
			return list, err
		}
		if t == '{' {
			st := &Value{Kind: Struct}
			for dec.More() {
				key, err := dec.Token()
				if err != nil {
					return nil, err
				}
				name, ok := key.(string)
				if !ok {
					return nil, fmt.Errorf("key %v is not a string", key)
				}
				if st.Field(name) != nil {
					return nil, fmt.Errorf("duplicate key %q", name)
				}
				x, err := decode(dec)
				if err != nil {
					return nil, err
				}
				st.Fields = append(st.Fields, Field{Name: name, Value: x})
			}
			_, err := dec.Token()
			return st, err
		}
	}
	return nil, fmt.Errorf("unexpected %v", tok)
}

// Number returns a number value for JSON number text: an Int if it has neither
// fraction nor exponent.
func Number(text string) *Value {
	k := Int
	if strings.ContainsAny(text, ".eE") {
		k = Float
	}
	return &Value{Kind: k, Text: text}
}

// Text returns a string value.
func Text(s string) *Value { return &Value{Kind: String, Text: s} }

// Integer returns an integer value.
func Integer(n int) *Value { return &Value{Kind: Int, Text: strconv.Itoa(n)} }

var bare = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$]*$`)

// Join appends a member name to a path; a name that is no identifier is
// quoted, as CUE quotes it.
func Join(path, name string) string {
	if !bare.MatchString(name) {
		name = strconv.Quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// Index appends a list index to a path.
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Size returns the integer member name, or 0 if it is absent, faulty or not an
// integer that fits an int: for sizes, of which 0 means not given.
func (v *Value) Size(name string) int {
	n, ok := v.Field(name).AsInt()
	if !ok || int64(int(n)) != n {
		return 0
	}
	return int(n)
}
