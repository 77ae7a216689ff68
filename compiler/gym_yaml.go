package compiler

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// gymSecret matches the fields whose {env: NAME} is a reference to a secret.
var gymSecret = regexp.MustCompile(`(^|_)(api_key|token|secret|password)$`)

// published returns v as it goes into gym.yaml: references to environment
// variables as OmegaConf writes them, model aliases as paths. Nothing secret is
// in it, since secrets are references only; the variables become part of the
// command's environment, so that launchers hand them on.
func (r *gymRun) published(v *tree.Value) *tree.Value { return r.publish(v, "", "") }

func (r *gymRun) publish(v *tree.Value, name, parent string) *tree.Value {
	switch {
	case v == nil:
		return nil
	case v.Kind == tree.List:
		out := *v
		out.Items = make([]*tree.Value, len(v.Items))
		for i, x := range v.Items {
			out.Items[i] = r.publish(x, "", name)
		}
		return &out
	case v.Kind == tree.String && name == "model" && (parent == "genrm_model" || parent == "local_vllm_model"):
		if path, ok := r.e.root.Lookup("cluster", "model_aliases").Field(v.Text).AsString(); ok {
			out := *v
			out.Text = path
			return &out
		}
	case v.Kind == tree.Struct:
		holds := gymSecret.MatchString(name) || strings.HasSuffix(parent, "headers") || parent == "vllm_serve_env_vars"
		if env, ok := v.Field("env").AsString(); ok && holds && len(v.Fields) == 1 {
			if _, given := r.e.plan.Launch.Env.Get(env); !given {
				r.e.plan.Launch.Env.Set(env, plan.EnvValue{SecretEnv: env})
			}
			return &tree.Value{Kind: tree.String, Text: "${oc.env:" + env + "}", Pos: v.Pos, Path: v.Path}
		}
		out := *v
		out.Fields = slices.Clone(v.Fields)
		for i, f := range v.Fields {
			out.Fields[i].Value = r.publish(f.Value, f.Name, name)
		}
		return &out
	}
	return v
}

// yaml returns the text of gym.yaml: the config in the user's order, in the
// YAML 1.1 that OmegaConf reads.
func (r *gymRun) yaml() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Written by genrm from the experiment %s: change that, not this.\n", r.e.plan.Name)
	writeYAML(&b, r.published(r.config), 0)
	return b.String()
}

// writeYAML writes the members of a struct or list, one a line at that depth.
func writeYAML(b *strings.Builder, v *tree.Value, depth int) {
	in := strings.Repeat("  ", depth)
	switch {
	case v.Kind == tree.Struct && len(v.Fields) > 0:
		for _, f := range v.Fields {
			b.WriteString(in + yamlString(f.Name) + ":")
			yamlMember(b, f.Value, depth)
		}
	case v.Kind == tree.List && len(v.Items) > 0:
		for _, x := range v.Items {
			b.WriteString(in + "-")
			yamlMember(b, x, depth)
		}
	default:
		b.WriteString(in + yamlScalar(v) + "\n")
	}
}

func yamlMember(b *strings.Builder, v *tree.Value, depth int) {
	if len(v.Fields) == 0 && len(v.Items) == 0 {
		b.WriteString(" " + yamlScalar(v) + "\n")
		return
	}
	b.WriteString("\n")
	writeYAML(b, v, depth+1)
}

// yamlScalar spells anything that fits on its line.
func yamlScalar(v *tree.Value) string {
	switch v.Kind {
	case tree.String:
		return yamlString(v.Text)
	case tree.Float:
		return yamlFloat(v.Text)
	case tree.Int, tree.Bool:
		return v.Text
	case tree.Struct:
		return "{}"
	case tree.List:
		return "[]"
	}
	return "null"
}

// yamlFloat gives a JSON number the fraction and the exponent sign without
// which YAML 1.1 takes it for text: 1e-6 becomes 1.0e-6. The value is the same.
func yamlFloat(s string) string {
	mantissa, exp, ok := strings.Cut(strings.ToLower(s), "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if !ok {
		return mantissa
	}
	if exp[0] != '-' && exp[0] != '+' {
		exp = "+" + exp
	}
	return mantissa + "e" + exp
}

// yamlPlain matches what is text to every YAML reader, but for yamlWords:
// it begins with a letter, and neither ": " nor " #" can be in it.
var yamlPlain = regexp.MustCompile(`^[A-Za-z_/][A-Za-z0-9_/.@+-]*(:[A-Za-z0-9_/.@+-]+)*$|^\$\{[A-Za-z0-9_.]+(:[A-Za-z0-9_.]+)?\}$`)

var yamlWords = []string{"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}

// yamlString quotes a string unless every reader takes it for text as it is.
func yamlString(s string) string {
	if yamlPlain.MatchString(s) && !slices.Contains(yamlWords, strings.ToLower(s)) {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b.WriteRune('\\')
			b.WriteRune(c)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case c > 0xffff && !unicode.IsPrint(c):
			fmt.Fprintf(&b, `\U%08X`, c)
		case c != ' ' && !unicode.IsPrint(c):
			fmt.Fprintf(&b, `\u%04X`, c)
		default:
			b.WriteRune(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
