package kuberay

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// strict holds a value of the user's against a Go type of Kubernetes, as a strict
// decoder would, and reports each field that the type does not have and each value
// of another kind, at its place. patch allows the directives of strategic merge
// patches, such as $patch, and nulls, which delete.
type strict struct {
	add   func(path, summary, detail, remedy string)
	patch bool
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func (c *strict) walk(v *tree.Value, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	wrong := func(want string) {
		c.add(path, fmt.Sprintf("this is %s, and Kubernetes wants %s", v.Kind, want), "", "write "+want)
	}
	switch {
	case !v.OK():
		return
	case v.Kind == tree.Null:
		if !c.patch {
			wrong("a value")
		}
		return
	case reflect.PointerTo(t).Implements(unmarshaler): // quantities, times, numbers or names of ports
		if err := json.Unmarshal([]byte(v.JSON()), reflect.New(t).Interface()); err != nil {
			c.add(path, fmt.Sprintf("Kubernetes cannot read %s", short(v.JSON())), oneLine(err.Error()), "write it as Kubernetes does, such as \"8\" or \"64Gi\" for a quantity")
		}
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		if v.Kind != tree.Struct {
			wrong("a struct")
			return
		}
		fields := map[string]reflect.Type{}
		var names []string
		members(t, fields, &names)
		for _, f := range v.Fields {
			at := tree.Join(path, f.Name)
			if ft, ok := fields[f.Name]; ok {
				c.walk(f.Value, ft, at)
				continue
			}
			if c.patch && strings.HasPrefix(f.Name, "$") {
				continue
			}
			var free []string
			for _, n := range names {
				if v.Field(n) == nil {
					free = append(free, n)
				}
			}
			remedy := diag.DidYouMean(f.Name, free)
			if remedy == "" {
				remedy = "remove it"
			}
			c.add(at, fmt.Sprintf("Kubernetes knows no field %s here", f.Name), fmt.Sprintf("It is checked against %s of the Go module of Kubernetes, release 0.34 (Kubernetes 1.34).", t.Name()), remedy)
		}
	case reflect.Map:
		if v.Kind != tree.Struct {
			wrong("a struct")
			return
		}
		for _, f := range v.Fields {
			c.walk(f.Value, t.Elem(), tree.Join(path, f.Name))
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			if v.Kind != tree.String {
				wrong("a string")
			}
			return
		}
		if v.Kind != tree.List {
			wrong("a list")
			return
		}
		for i, x := range v.Items {
			c.walk(x, t.Elem(), tree.Index(path, i))
		}
	case reflect.String:
		if v.Kind != tree.String {
			wrong("a string")
		}
	case reflect.Bool:
		if v.Kind != tree.Bool {
			wrong("a boolean")
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		n, ok := v.AsInt()
		if !ok || reflect.Zero(t).OverflowInt(n) {
			c.add(path, fmt.Sprintf("Kubernetes wants an integer here, not %s", short(v.JSON())), "", "write an integer")
		}
	}
}

// members lists the JSON fields of a struct, those of embedded ones included.
func members(t reflect.Type, fields map[string]reflect.Type, names *[]string) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && (name == "" || strings.Contains(options, "inline")):
			ft := f.Type
			for ft.Kind() == reflect.Pointer {
				ft = ft.Elem()
			}
			members(ft, fields, names)
		case name == "-" || !f.IsExported():
		default:
			if name == "" {
				name = f.Name
			}
			fields[name] = f.Type
			*names = append(*names, name)
		}
	}
}

// short cuts a text for a message.
func short(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "…"
	}
	return s
}

// oneLine is a message of a library on one line.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
