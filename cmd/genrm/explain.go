package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/rules"
	"genrm.dev/genrm/schema"
	"genrm.dev/genrm/schema/engines"
)

type explainCmd struct {
	Topic  string `arg:"" optional:"" help:"A code such as GRM2001, or a field such as relax.genrm_instances.*.num_gpus. Without one: every code with its title."`
	Output string `short:"o" enum:"text,json" default:"text" help:"${enum}."`
}

func (explainCmd) Help() string {
	return `For a code: what is wrong, why it matters, the source of the fact, whether the real system refuses it too, and a wrong and a right file.

For a field: its meaning, unit, type, bounds and default, and the fields below it. A name that you choose yourself, such as a route_key, is written as *.

Examples:

  genrm explain GRM2006
  genrm explain relax.genrm_instances.*.num_gpus
  genrm explain cluster
  genrm explain | grep gateway`
}

var codeForm = regexp.MustCompile(`(?i)^GRM[0-9]*$`)

func (c *explainCmd) Run(a *app) error {
	switch {
	case c.Topic == "":
		return c.list(a)
	case codeForm.MatchString(c.Topic):
		return c.code(a)
	}
	return c.field(a)
}

// list prints every code with its title.
func (c *explainCmd) list(a *app) error {
	type entry struct {
		Code  string `json:"code"`
		Title string `json:"title"`
	}
	var all []entry
	for _, code := range rules.Codes() {
		p, _ := rules.Lookup(code)
		all = append(all, entry{code, p.Title})
	}
	if c.Output == "json" {
		return printJSON(a.stdout, all)
	}
	for _, e := range all {
		if _, err := fmt.Fprintf(a.stdout, "%s  %s\n", e.Code, e.Title); err != nil {
			return err
		}
	}
	return nil
}

func (c *explainCmd) code(a *app) error {
	p, ok := rules.Lookup(c.Topic)
	if !ok {
		msg := "no code " + strings.ToUpper(c.Topic)
		if hint := diag.DidYouMean(c.Topic, rules.Codes()); hint != "" {
			msg += "; " + hint
		}
		return errors.New(msg)
	}
	if c.Output == "json" {
		return printJSON(a.stdout, map[string]any{"code": p.Code, "title": p.Title, "severity": p.Severity, "verdict": p.Verdict,
			"source": p.Source, "text": p.Text, "wrong": p.Wrong, "right": p.Right})
	}
	_, err := fmt.Fprintln(a.stdout, strings.TrimSpace(p.Raw))
	return err
}

// flagPaths says which program's flags the members of a block are.
var flagPaths = []struct {
	block  *regexp.Regexp
	engine string
}{
	{regexp.MustCompile(`^relax\.args\.([^.]+)$`), "relax"},
	{regexp.MustCompile(`^relax\.(?:genrm_instances\.[^.]+\.engine_config|genrm_engine_config)\.([^.]+)$`), "sglang"},
	{regexp.MustCompile(`^gym\.config\..*\.vllm_serve_kwargs\.([^.]+)$`), "vllm"},
	{regexp.MustCompile(`^serve\.instances\.[^.]+\.engine_config\.([^.]+)$`), "vllm"},
	{regexp.MustCompile(`^serve\.instances\.[^.]+\.engine_config\.([^.]+)$`), "sglang"},
}

// flags shows the flag that a path names in the newest catalogues, and reports
// whether there is one. A path that must name a flag and does not is an error.
func (c *explainCmd) flags(a *app) (found bool, err error) {
	var asked []string
	var near []string
	name := ""
	for _, p := range flagPaths {
		m := p.block.FindStringSubmatch(c.Topic)
		if m == nil || m[1] == "*" {
			continue
		}
		cat := engines.Latest(p.engine)
		if _, ok := cat.Lookup(m[1]); !ok {
			name = m[1]
			asked = append(asked, cat.Engine+" "+cat.Version)
			near = slices.AppendSeq(near, cat.Names())
			continue
		}
		if found && c.Output == "text" {
			fmt.Fprintln(a.stdout)
		}
		show := catalogueShowCmd{Flag: m[1], Output: c.Output}
		if err := show.one(a, cat); err != nil {
			return true, err
		}
		if found = true; c.Output == "json" {
			break // one document
		}
	}
	if !found && len(asked) > 0 {
		err = fmt.Errorf("no flag %q in %s", name, strings.Join(asked, " or "))
		if hint := diag.DidYouMean(name, near); hint != "" {
			err = fmt.Errorf("%w; %s", err, hint)
		}
	}
	return found, err
}

func (c *explainCmd) field(a *app) error {
	e, err := schema.Lookup(c.Topic)
	if err != nil || e.Doc == "" {
		if found, err := c.flags(a); found || err != nil {
			return err
		}
	}
	var unknown *schema.UnknownFieldError
	if errors.As(err, &unknown) {
		if hint := diag.DidYouMean(unknown.Name, unknown.Known); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
		if len(unknown.Known) > 0 {
			return fmt.Errorf("%w; its fields are %s", err, strings.Join(unknown.Known, ", "))
		}
		return fmt.Errorf("%w; it has no fields of its own", err)
	}
	if err != nil {
		return err
	}
	below := below(e.Type)
	def, hasDefault := e.Type.Default()
	if c.Output == "json" {
		doc := map[string]any{"path": e.Path, "doc": e.Doc, "type": e.Type.Describe(), "required": e.Required, "fields": below}
		if hasDefault {
			doc["default"] = def
		}
		return printJSON(a.stdout, doc)
	}
	fmt.Fprintf(a.stdout, "%s\n", e.Path)
	if e.Doc != "" {
		fmt.Fprintf(a.stdout, "\n%s\n", e.Doc)
	}
	fmt.Fprintf(a.stdout, "\n  type      %s\n", e.Type.Describe())
	if e.Required {
		fmt.Fprintln(a.stdout, "  required  yes")
	}
	if hasDefault {
		fmt.Fprintf(a.stdout, "  default   %s\n", def)
	}
	if len(below) > 0 {
		fmt.Fprintln(a.stdout, "\nFields:")
		wide := 0
		for _, f := range below {
			wide = max(wide, len(f.Name))
		}
		for _, f := range below {
			fmt.Fprintf(a.stdout, "  %-*s  %s\n", wide, f.Name, strings.TrimSpace(f.Doc+f.mark()))
		}
	}
	return nil
}

type fieldLine struct {
	Name     string `json:"name"`
	Doc      string `json:"doc"` // the first sentence
	Required bool   `json:"required"`
}

func (f fieldLine) mark() string {
	if f.Required {
		return " (required)"
	}
	return ""
}

// below lists the fields of a type; names that the user chooses appear as *.
func below(t *schema.Type) []fieldLine {
	out := []fieldLine{}
	add := func(f fieldLine) {
		if !slices.ContainsFunc(out, func(g fieldLine) bool { return g.Name == f.Name }) {
			out = append(out, f)
		}
	}
	for _, alt := range t.Alts {
		s := alt.Struct
		if alt.Elem != nil && len(alt.Elem.Alts) > 0 {
			s = alt.Elem.Alts[0].Struct
		}
		if s == nil {
			continue
		}
		for _, f := range s.Fields {
			add(fieldLine{f.Name, firstSentence(f.Doc), f.Required})
		}
		for _, p := range s.Patterns {
			doc := p.Doc
			if doc == "" {
				doc = p.Type.Doc
			}
			add(fieldLine{"*", firstSentence(doc), false})
		}
	}
	return out
}

func firstSentence(doc string) string {
	doc, _, _ = strings.Cut(strings.ReplaceAll(strings.TrimSpace(doc), "\n", " "), ". ")
	return strings.TrimSuffix(doc, ".")
}
