package compiler

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema"
)

// checker holds a tree against the schema: names, required fields, types,
// bounds. Everything is looked at, whatever else is wrong beside it.
type checker struct {
	diags  *diag.List
	hidden map[string][]tree.Field // of the evaluator
}

func (c *checker) add(code string, pos diag.Pos, path, summary, detail, remedy string) {
	c.diags.Add(diag.Diagnostic{Code: code, Severity: diag.Error, Pos: pos, Path: path, Summary: summary, Detail: detail, Remedy: remedy})
}

// value checks v against t and marks it Bad when it does not hold. doc is the
// field's doc comment; key is the place of its key.
func (c *checker) value(v *tree.Value, t *schema.Type, doc string, key diag.Pos) {
	if v.Kind == tree.Bad {
		return
	}
	if v.Kind == tree.String && strings.Contains(v.Text, secretText) {
		v.Kind = tree.Bad // reported when the literal was found
		return
	}
	kind := kindOf(v.Kind)
	var fit []*schema.Alt
	for _, a := range t.Alts {
		if a.Kinds&kind != 0 {
			fit = append(fit, a)
		}
	}
	if len(fit) == 0 {
		switch {
		case v.Kind == tree.Null:
			c.add("GRM2005", v.Pos, v.Path, lastName(v.Path)+" is null", "Wanted: "+t.Describe()+".", "give it a value, or leave the field out")
		case isSecret(t) && !slices.ContainsFunc(t.Alts, func(a *schema.Alt) bool { return a.Kinds&schema.String != 0 }):
			c.diags.Add(diag.Diagnostic{Code: "GRM1008", Severity: diag.Error, Pos: v.Pos, Path: v.Path, Secret: true, Summary: "a literal secret in " + v.Path,
				Detail: "A literal would reach plans, artifacts, logs and error texts.", Remedy: secretRemedy})
		default:
			c.add("GRM2003", v.Pos, v.Path, fmt.Sprintf("%s wants %s, not %s", lastName(v.Path), t.Describe(), shown(v)), firstSentence(doc), typeRemedy(v, t))
		}
		v.Kind = tree.Bad
		return
	}
	switch v.Kind {
	case tree.Struct:
		if a := c.dispatch(v, fit, key); a != nil {
			c.structure(v, a, key)
		} else {
			v.Kind = tree.Bad
		}
	case tree.List:
		c.list(v, fit[0], doc)
	default:
		if !slices.ContainsFunc(fit, func(a *schema.Alt) bool { return holds(v, a) }) {
			c.scalar(v, fit, t, doc)
			v.Kind = tree.Bad
		} else if tooLarge(v) {
			c.add("GRM2004", v.Pos, v.Path, lastName(v.Path)+" is too large a number", "Integers are of 64 bits, other numbers at most 1.8e308.", "correct the number")
			v.Kind = tree.Bad
		}
	}
}

// scalar reports a value of a right kind that no alternative takes.
func (c *checker) scalar(v *tree.Value, fit []*schema.Alt, t *schema.Type, doc string) {
	if plain := (&tree.Value{Kind: v.Kind, Text: strings.ReplaceAll(v.Text, nul, "")}); plain.Text != v.Text && slices.ContainsFunc(fit, func(a *schema.Alt) bool { return holds(plain, a) }) {
		c.add("GRM2004", v.Pos, v.Path, v.Path+nulSummary, nulDetail, nulRemedy)
		return
	}
	var choices []string
	for _, a := range fit {
		if a.Lit != nil {
			choices = append(choices, *a.Lit)
		}
	}
	summary := fmt.Sprintf("%s is %s; it takes %s", lastName(v.Path), shown(v), t.Describe())
	remedy := ""
	if len(choices) == len(fit) && v.Kind == tree.String {
		remedy = diag.DidYouMean(v.Text, choices)
	}
	if _, field := diag.SplitExperiment(v.Path); field == "ray.address" {
		remedy = "write " + strconv.Quote(dashboard(v.Text))
	}
	if remedy == "" {
		remedy = "write " + t.Describe()
	}
	c.add("GRM2004", v.Pos, v.Path, summary, firstSentence(doc), remedy)
}

// What is said of text with a NUL that becomes a word or a variable of a process.
const (
	nul        = "\x00"
	nulSummary = " holds a NUL character"
	nulDetail  = "No argument and no variable of a process can hold one: it ends there."
	nulRemedy  = `take "\u0000" out`
)

// dashboard is the address of a Ray dashboard on the host of another address of
// its cluster: that of Ray Client (ray://host:10001), that of its GCS
// (host:6379), or one without a scheme. The port is kept where it may be the
// dashboard's. Source: the ports of ray start in 2.60.0.
func dashboard(text string) string {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(text), "://")
	if !ok {
		scheme, rest = "http", strings.TrimLeft(scheme, "/")
	}
	u, err := url.Parse("http://" + rest)
	if err != nil || u.Hostname() == "" {
		return "http://host:8265"
	}
	out := url.URL{Scheme: "http", Host: u.Host, Path: u.Path}
	secure := strings.EqualFold(scheme, "https")
	if secure {
		out.Scheme = "https"
	}
	switch port := u.Port(); {
	case u.Host == "auto": // Ray's word for the cluster of this machine
		out.Host = "127.0.0.1:8265"
	case !secure && !strings.EqualFold(scheme, "http"), port == "10001", port == "6379":
		out.Host, out.Path = strings.TrimSuffix(u.Host, ":"+port)+":8265", ""
	case port == "" && u.Path == "" && !secure:
		out.Host += ":8265"
	}
	return out.String()
}

// list checks a list: its length where that is fixed, and every element.
func (c *checker) list(v *tree.Value, a *schema.Alt, doc string) {
	if a.Tuple != nil && len(v.Items) != len(a.Tuple) {
		c.add("GRM2004", v.Pos, v.Path, fmt.Sprintf("%s is a list of %d; it takes %d", v.Path, len(v.Items), len(a.Tuple)), "Wanted: "+a.Describe()+".", "write a list of "+strconv.Itoa(len(a.Tuple)))
		v.Kind = tree.Bad
		return
	}
	bad := false
	for i, x := range v.Items {
		switch {
		case a.Tuple != nil:
			c.value(x, a.Tuple[i], doc, x.Pos)
		case a.Elem != nil:
			c.value(x, a.Elem, doc, x.Pos)
		}
		bad = bad || x.Kind == tree.Bad
	}
	if bad && a.Tuple != nil {
		v.Kind = tree.Bad
	}
}

// dispatch picks the alternative that a struct means: by the field whose
// literal tells alternatives apart (engine: "vllm"), else by the required
// fields that are there.
func (c *checker) dispatch(v *tree.Value, alts []*schema.Alt, key diag.Pos) *schema.Alt {
	var structs []*schema.Alt
	for _, a := range alts {
		if a.Struct != nil {
			structs = append(structs, a)
		}
	}
	if len(structs) == 0 {
		return alts[0]
	}
	if len(structs) == 1 {
		return structs[0]
	}
	if tag, choices := discriminator(structs); tag != "" {
		x := v.Field(tag)
		switch {
		case x == nil:
			c.add("GRM2002", key, tree.Join(v.Path, tag), tag+" is missing in "+lastName(v.Path), "It says which fields belong here.", "add "+tag+": one of "+quoteList(choices))
		case x.Kind == tree.Bad:
		case x.Kind != tree.String:
			c.add("GRM2003", x.Pos, x.Path, fmt.Sprintf("%s wants a string, not %s", x.Path, shown(x)), "", "write one of "+quoteList(choices))
		default:
			if i := slices.Index(choices, x.Text); i >= 0 {
				return structs[i]
			}
			remedy := diag.DidYouMean(x.Text, choices)
			if remedy == "" {
				remedy = "write one of " + quoteList(choices)
			}
			c.add("GRM2004", x.Pos, x.Path, fmt.Sprintf("%s is %s; it takes one of %s", x.Path, shown(x), quoteList(choices)), "", remedy)
		}
		c.undecided(v, structs)
		return nil
	}
	best, most := structs[0], -1
	for _, a := range structs {
		n := 0
		for _, f := range v.Fields {
			if a.Struct.Field(f.Name) != nil {
				n++
			}
		}
		if n > most {
			best, most = a, n
		}
	}
	if most == 0 {
		var forms []string
		for _, a := range structs {
			forms = append(forms, a.Describe())
		}
		c.add("GRM2002", key, v.Path, lastName(v.Path)+" wants "+diag.OrList(forms), "", "write one of these forms")
		return nil
	}
	return best
}

// undecided checks what holds whichever of the forms a struct means: names that
// none of them has, and fields that all which have them type alike.
func (c *checker) undecided(v *tree.Value, forms []*schema.Alt) {
	var all schema.Struct
	for _, a := range forms {
		if a.Struct.Open || len(a.Struct.Patterns) > 0 {
			return
		}
		for _, f := range a.Struct.Fields {
			if !slices.ContainsFunc(all.Fields, func(g *schema.Field) bool { return g.Name == f.Name }) {
				all.Fields = append(all.Fields, f)
			}
		}
	}
	taken := nameSet(v)
	for _, f := range v.Fields {
		var known *schema.Field
		alike := true
		for _, a := range forms {
			if g := a.Struct.Field(f.Name); g != nil {
				alike = alike && (known == nil || known.Type.Describe() == g.Type.Describe())
				known = g
			}
		}
		switch {
		case known == nil:
			c.unknown(v, f, &all, taken)
		case alike && !slices.ContainsFunc(known.Type.Alts, func(a *schema.Alt) bool { return a.Lit != nil }):
			c.value(f.Value, known.Type, known.Doc, f.Pos)
		}
	}
}

// discriminator finds the field that has another literal in every alternative.
func discriminator(alts []*schema.Alt) (name string, choices []string) {
	for _, f := range alts[0].Struct.Fields {
		choices = nil
		for _, a := range alts {
			g := a.Struct.Field(f.Name)
			if g == nil || len(g.Type.Alts) != 1 || g.Type.Alts[0].Lit == nil || slices.Contains(choices, *g.Type.Alts[0].Lit) {
				break
			}
			choices = append(choices, *g.Type.Alts[0].Lit)
		}
		if len(choices) == len(alts) {
			return f.Name, choices
		}
	}
	return "", nil
}

// structure checks the members of a struct. Unknown ones are reported and taken
// out, so that no later stage acts on them.
func (c *checker) structure(v *tree.Value, a *schema.Alt, key diag.Pos) {
	s := a.Struct
	if s == nil {
		return
	}
	names := nameSet(v)
	kept := v.Fields[:0]
	for _, f := range v.Fields {
		if known := s.Field(f.Name); known != nil {
			c.value(f.Value, known.Type, known.Doc, f.Pos)
		} else if t, ok := s.Pattern(f.Name); ok {
			c.value(f.Value, t, t.Doc, f.Pos)
		} else if !s.Open {
			c.unknown(v, f, s, names)
			if len(s.Fields) > 0 {
				if meant := c.meant(f, s, names); meant != nil {
					c.value(f.Value, meant.Type, meant.Doc, f.Pos)
					if f.Value.Kind != tree.Struct {
						f.Value.Kind = tree.Bad // the guess is good enough to be silent about, not to act on
					}
					kept = append(kept, tree.Field{Name: meant.Name, Pos: f.Pos, Value: f.Value})
				}
				continue
			}
			f.Value.Kind = tree.Bad // in a map a wrong name is still an entry: sums over it are unknown
		}
		kept = append(kept, f)
	}
	v.Fields = kept
	if len(s.Fields) == 0 && len(s.Patterns) > 0 && !s.Open {
		for _, h := range c.hidden[v.Path] {
			c.diags.Add(diag.Diagnostic{Code: "GRM2009", Severity: diag.Warning, Pos: h.Pos, Path: tree.Join(v.Path, h.Name), Summary: fmt.Sprintf("%s is a hidden field of CUE, so it is no entry of %s", h.Name, lastName(v.Path)),
				Detail: "A name that begins with _ is left out of the result.", Remedy: fmt.Sprintf("write %q with the quotes if it is meant as a name; move helpers out of this struct", h.Name)})
		}
	}
	for _, f := range s.Fields {
		if f.Required && !names[f.Name] {
			c.add("GRM2002", key, tree.Join(v.Path, f.Name), fmt.Sprintf("%s is missing in %s", f.Name, lastName(v.Path)), firstSentence(f.Doc), fmt.Sprintf("add %s: %s", f.Name, f.Type.Describe()))
		}
	}
}

// meant is the field that an unknown one stands for where only one is near: its
// value is looked at as if the name were right, so that a slip in the name of a
// block hides nothing inside and leads to no finding elsewhere.
func (c *checker) meant(f tree.Field, s *schema.Struct, taken map[string]bool) *schema.Field {
	var free []string
	for _, g := range s.Fields {
		if !taken[g.Name] {
			free = append(free, g.Name)
		}
	}
	if near := diag.Nearest(f.Name, free, 2); len(near) == 1 {
		return s.Field(near[0])
	}
	return nil
}

func nameSet(v *tree.Value) map[string]bool {
	names := make(map[string]bool, len(v.Fields))
	for _, f := range v.Fields {
		names[f.Name] = true
	}
	return names
}

// unknown reports a member that the struct does not have; taken are the names
// that are there, which a misspelt one can't mean.
func (c *checker) unknown(v *tree.Value, f tree.Field, s *schema.Struct, taken map[string]bool) {
	if f.Name == secretText || redisPassword.MatchString(f.Name) && redacted(f.Value) {
		return // reported when the literal was found, with how to write it
	}
	path := tree.Join(v.Path, f.Name)
	if len(s.Fields) == 0 && len(s.Patterns) > 0 {
		var forms []string
		for _, p := range s.Patterns {
			for _, m := range p.Match {
				forms = append(forms, m.Text)
			}
		}
		remedy := "use a name that matches; letters, digits and \"_\" are always safe"
		if plain := strings.ReplaceAll(strings.TrimLeft(f.Name, "-"), "-", "_"); plain != f.Name {
			if _, ok := s.Pattern(plain); ok {
				remedy = fmt.Sprintf("write %q", plain)
			}
		}
		c.add("GRM2004", f.Pos, path, fmt.Sprintf("%q is not accepted as a name in %s", f.Name, lastName(v.Path)), "Names here match "+strings.Join(forms, " or ")+".", remedy)
		return
	}
	var free, all []string
	for _, g := range s.Fields {
		all = append(all, g.Name)
		if !taken[g.Name] {
			free = append(free, g.Name)
		}
	}
	remedy := diag.DidYouMean(f.Name, free)
	if remedy == "" {
		remedy = "fields here: " + strings.Join(all, ", ")
		if len(all) == 0 {
			remedy = "remove it"
		}
	}
	where := lastName(v.Path)
	if name, rest := diag.SplitExperiment(v.Path); v.Path == "" || name != "" && rest == "" {
		where = "an experiment"
	}
	c.add("GRM2001", f.Pos, path, fmt.Sprintf("unknown field %q in %s", f.Name, where), "", remedy)
}

// tooLarge reports whether a number does not fit what the systems behind use.
func tooLarge(v *tree.Value) bool {
	switch v.Kind {
	case tree.Int:
		_, ok := v.AsInt()
		return !ok
	case tree.Float:
		_, ok := v.AsFloat()
		return !ok
	}
	return false
}

// holds reports whether an alternative takes a scalar.
func holds(v *tree.Value, a *schema.Alt) bool {
	if a.Lit != nil {
		if v.Kind == tree.String {
			return v.Text == *a.Lit
		}
		x, okx := v.AsFloat()
		y, err := strconv.ParseFloat(*a.Lit, 64)
		return v.Text == *a.Lit || okx && err == nil && x == y
	}
	if x, ok := v.AsFloat(); ok {
		for _, b := range a.Bounds {
			if !b.Holds(x) {
				return false
			}
		}
	}
	for _, p := range a.Match {
		if !p.Holds(v.Text) {
			return false
		}
	}
	return true
}

func kindOf(k tree.Kind) schema.Kind {
	return [...]schema.Kind{tree.Bad: 0, tree.Null: schema.Null, tree.Bool: schema.Bool, tree.Int: schema.Int,
		tree.Float: schema.Float, tree.String: schema.String, tree.List: schema.List, tree.Struct: schema.Object}[k]
}

func isSecret(t *schema.Type) bool {
	return slices.ContainsFunc(t.Alts, func(a *schema.Alt) bool { return a.Def == "SecretEnv" })
}

// shown renders a value for a message: short, on one line.
func shown(v *tree.Value) string {
	switch v.Kind {
	case tree.Struct, tree.List, tree.Null:
		return v.Kind.String()
	case tree.String:
		r := []rune(v.Text)
		if len(r) > 60 {
			return strconv.Quote(string(r[:57]) + "…")
		}
		return strconv.Quote(v.Text)
	}
	if len(v.Text) > 40 {
		return v.Kind.String() + " of " + strconv.Itoa(len(v.Text)) + " digits"
	}
	return v.Kind.String() + " (" + v.Text + ")"
}

// typeRemedy proposes how to write the value that was likely meant.
func typeRemedy(v *tree.Value, t *schema.Type) string {
	for _, a := range t.Alts {
		if v.Kind == tree.String {
			if n := tree.Number(v.Text); a.Kinds&kindOf(n.Kind) != 0 && jsonNumber.MatchString(v.Text) && holds(n, a) {
				return "write it without quotes: " + v.Text
			}
			if a.Kinds&schema.Bool != 0 && (v.Text == "true" || v.Text == "false") {
				return "write it without quotes: " + v.Text
			}
		} else if a.Kinds == schema.String && (v.Kind == tree.Int || v.Kind == tree.Float || v.Kind == tree.Bool) {
			return fmt.Sprintf("write it with quotes: %q", v.Text)
		}
	}
	return "write " + t.Describe()
}

func quoteList(words []string) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = strconv.Quote(w)
	}
	return diag.OrList(out)
}

// firstSentence is the first sentence of a doc comment.
func firstSentence(doc string) string {
	doc = strings.ReplaceAll(doc, "\n", " ")
	if i := strings.Index(doc, ". "); i >= 0 {
		return doc[:i+1]
	}
	return doc
}
