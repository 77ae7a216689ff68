package compiler

import (
	"regexp"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

var (
	// assigned matches NAME=value and --name=value within a text, also with a
	// quote before the value; a value that begins with "$" is a shell's reference.
	assigned = regexp.MustCompile("([A-Za-z0-9_-]+)=[\"']?([^\\s$\"'`]+)")
	// envDefault matches an OmegaConf interpolation with a default of its own.
	envDefault = regexp.MustCompile(`^\$\{oc\.env:[^,}]+,\s*([^}]+)\}$`)
)

// secretWords reports the secrets that stand inside of a text or beside it: in
// the words of a command line, the lines of a script, JSON given as text, or the
// default of an interpolation. Fields whose whole text is a secret are found
// while the file is loaded and evaluated.
func (e *experiment) secretWords(name string, v *tree.Value) {
	if v == nil {
		return
	}
	refuse := func(at *tree.Value, what string) {
		e.diags.Add(diag.Diagnostic{Code: "GRM1008", Severity: diag.Error, Pos: at.Pos, Path: at.Path, Summary: "a literal secret for " + what,
			Detail: "A literal would reach plans, artifacts, logs and error texts.",
			Remedy: wordRemedy, Secret: true})
	}
	switch v.Kind {
	case tree.String:
		if m := envDefault.FindStringSubmatch(v.Text); m != nil && secretName.MatchString(name) && !notSecret(m[1]) {
			refuse(v, name)
			return
		}
		if what := secretInside(v.Text); what != "" {
			refuse(v, what)
		}
	case tree.List:
		for i, item := range v.Items {
			flag := ""
			if i > 0 {
				flag, _ = v.Items[i-1].AsString()
			}
			word, ok := item.AsString()
			if ok && strings.HasPrefix(flag, "-") && !strings.HasPrefix(word, "-") && secretName.MatchString(flag) && !notSecret(word) {
				refuse(item, flag)
				continue
			}
			e.secretWords("", item)
		}
	case tree.Struct:
		for _, f := range v.Fields {
			e.secretWords(f.Name, f.Value)
		}
	}
}

// secretInside returns the name that a text gives a secret to, or "".
func secretInside(text string) string {
	if !strings.ContainsAny(text, `=:`) {
		return ""
	}
	for _, pattern := range []*regexp.Regexp{assigned, labelled} {
		for _, m := range pattern.FindAllStringSubmatch(text, -1) {
			if secretName.MatchString(m[1]) && !notSecret(m[2]) {
				return m[1]
			}
		}
	}
	return ""
}
