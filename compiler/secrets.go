package compiler

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema/engines"
)

// tokenLike matches the published shapes of access tokens, wherever they stand
// in a text: OpenAI, Hugging Face, GitHub, GitLab, Slack, AWS, NVIDIA, Google,
// JSON Web Tokens, private keys, and passwords in URLs.
var tokenLike = regexp.MustCompile(`\b(sk-[A-Za-z0-9_-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|nvapi-[A-Za-z0-9_-]{16,}|AIza[A-Za-z0-9_-]{30,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+)|-----BEGIN [A-Z ]*PRIVATE KEY-----|://[^/\s:@{}$]*:[^/\s@{}$]+@`)

// secretName matches names of fields and variables whose value is a secret, behind
// a path or the prefix of an annotation, too.
var secretName = regexp.MustCompile(`(?i)(^|[_./-])(api[_-]?key|password|passwd|secret|secret[_-]key|access[_-]key|wandb[_-]key|hf[_-]token|auth[_-]?token|access[_-]token|bearer[_-]token|github[_-]token)$|^(proxy-)?authorization$|^cookie$|^[A-Z0-9_]+_TOKEN$`)

// notSecret reports whether a text in a secret field is none: OmegaConf
// interpolations, the customary placeholders, and the empty text.
func notSecret(s string) bool {
	l := strings.ToLower(s)
	return s == "" || s == "???" || strings.Contains(s, "${") || l == "empty" || l == "none" || strings.HasPrefix(l, "dummy")
}

// redisPassword matches the names under which the password of Ray's Redis is
// known: here, to the operator (redisPassword), and to ray start, misspelt or not.
var redisPassword = regexp.MustCompile(`(?i)^redis[_-]?pa?s[a-z]{0,7}$`)

// redisValue matches a line with the operator's way to state that password.
var redisValue = regexp.MustCompile(`(?i)\bredis[_-]?pa?s[a-z]{0,7}"?\s*[:?!]+\s*\{?[^}]*\bvalue"?\s*[:?!]`)

// holdsSecret reports whether a text in a field is a secret by the names of the
// field, which is the last, and of those around it.
func holdsSecret(names []string) bool {
	last := len(names) - 1
	return (secretName.MatchString(names[last]) || redisPassword.MatchString(names[last]) || last > 0 && names[last] == "value" && redisPassword.MatchString(names[last-1])) &&
		!underSecretReference(names)
}

// secretText is what stands in for a literal secret from here on, so that no
// error text, plan or artifact can hold it.
const secretText = "\u27e8redacted\u27e9"

const secretRemedy = `refer to it: {env: "NAME"} for a variable, {file: "/path"} for a file; it is read where the process starts`

// redacted reports whether a literal secret stood there, which was reported.
func redacted(v *tree.Value) bool { return strings.Contains(v.Text, secretText) }

const wordRemedy = `take it out, and pass it in the environment, by reference: env: NAME: {env: "NAME"}`

// remedyAt is secretRemedy, or what takes its place where there are no references
// of ours: among the flags of a program, and in the block of Kubernetes, which
// refers to secrets of its own.
func remedyAt(names []string) string {
	if i := slices.Index(names, "engine_config"); i >= 0 {
		for _, engine := range []string{"vllm", "sglang"} { // what both have, they have for one reason
			if why, owned := ownedFlags[engine][engines.Key(strings.Trim(names[len(names)-1], `"`))]; owned && slices.Contains(names[:i], "instances") {
				return "remove it: " + why
			}
		}
		return wordRemedy
	}
	if slices.Contains(names, "extra_args") {
		return wordRemedy
	}
	i := slices.Index(names, "kuberay")
	if i < 0 {
		return secretRemedy
	}
	name := names[len(names)-1]
	switch {
	case redisPassword.MatchString(name), slices.Contains(names[i:], "gcs_fault_tolerance"):
		return `refer to a secret of Kubernetes: kuberay: gcs_fault_tolerance: redis_password: {name: "…", key: "…"}`
	case slices.Contains(names[i:], "secrets"):
		return fmt.Sprintf(`refer to a secret of Kubernetes: %s: {name: "…", key: "…"}`, name)
	case !slices.Contains(names[i:], "env"):
		return `take it out: who may read the objects of the namespace would see it; pods are given it from a secret of Kubernetes, by kuberay: secrets: NAME: {name: "…", key: "…"}`
	}
	if strings.ToUpper(name) != name || name == "" || name == secretText {
		name = "NAME" // an item of a pod template: {name: "NAME", value: "…"}
	}
	return fmt.Sprintf(`refer to a secret of Kubernetes: kuberay: secrets: %s: {name: "…", key: "…"}`, name)
}

// redactSecrets reports every literal secret of a file without repeating it, and
// replaces it in the syntax tree, before anything is evaluated: CUE's errors
// quote values.
func redactSecrets(f *file, diags *diag.List) {
	at := func(n ast.Node) diag.Pos { return f.position(n.Pos().Line(), n.Pos().Column()) }
	redactNode(f.syntax, at, diags)
}

func redactNode(root ast.Node, at func(ast.Node) diag.Pos, diags *diag.List) {
	var names []string
	refuse := func(lit ast.Node, summary string) {
		diags.Add(diag.Diagnostic{Code: "GRM1008", Severity: diag.Error, Pos: at(lit), Path: strings.Join(names, "."),
			Summary: summary, Detail: "A literal would reach plans, artifacts, logs and error texts.", Remedy: remedyAt(names), Secret: true})
	}
	ast.Walk(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			name, _, _ := ast.LabelName(n.Label)
			if tokenLike.MatchString(name) {
				refuse(n.Label, "this name looks like an access token")
				name = secretText
				n.Label = &ast.BasicLit{ValuePos: n.Label.Pos(), Kind: token.STRING, Value: literal.String.Quote(name)}
			}
			names = append(names, name)
			if holdsSecret(names) {
				lit := literalIn(n.Value)
				if redisPassword.MatchString(name) {
					lit = cmp.Or(lit, literalIn(member(n.Value, "value")))
				}
				if lit != nil {
					refuse(lit, "a literal secret in "+name)
					n.Value = &ast.BasicLit{ValuePos: n.Value.Pos(), Kind: token.STRING, Value: literal.String.Quote(secretText)}
				}
			}
		case *ast.BasicLit:
			// Interpolations hold parts of strings, which do not unquote by themselves.
			if n.Kind == token.STRING && tokenLike.MatchString(n.Value) {
				refuse(n, "this text looks like an access token")
				if _, err := literal.Unquote(n.Value); err == nil {
					n.Value = literal.String.Quote(secretText)
				} else {
					n.Value = tokenLike.ReplaceAllString(n.Value, secretText)
				}
			}
		}
		return true
	}, func(n ast.Node) {
		if _, ok := n.(*ast.Field); ok {
			names = names[:len(names)-1]
		}
	})
}

// member is the value of a field of a struct, nil if it has none.
func member(x ast.Expr, name string) ast.Expr {
	s, ok := x.(*ast.StructLit)
	if !ok {
		return nil
	}
	for _, d := range s.Elts {
		if f, ok := d.(*ast.Field); ok {
			if n, _, _ := ast.LabelName(f.Label); n == name {
				return f.Value
			}
		}
	}
	return nil
}

// literalIn finds a text in an expression of a secret field that may become its
// value: names of fields and conditions can't.
func literalIn(x ast.Expr) (found *ast.BasicLit) {
	if x == nil {
		return nil
	}
	ast.Walk(x, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			s, err := literal.Unquote(n.Value)
			if err != nil { // a part of an interpolation
				s = strings.Trim(n.Value, "\"#\\()\n\t ")
			}
			if found == nil && n.Kind == token.STRING && !notSecret(s) {
				found = n
			}
		case *ast.StructLit:
			return false
		case *ast.IndexExpr:
			found = cmp.Or(found, literalIn(n.X))
			return false
		case *ast.SelectorExpr:
			found = cmp.Or(found, literalIn(n.X))
			return false
		case *ast.UnaryExpr:
			return n.Op == token.MUL // a default
		}
		return found == nil
	}, nil)
	return found
}

// secretValue reports whether a text that CUE computed is a secret that may not
// be a literal: one that looks like a token, or one of a secret field.
func secretValue(path, text string) bool {
	if strings.Contains(text, secretText) {
		return false
	}
	return tokenLike.MatchString(text) || secretPath(path) && !notSecret(text)
}

// secretPath reports whether the value at a path is a secret by its name.
func secretPath(path string) bool {
	parent, name := cutLast(path)
	_, above := cutLast(parent)
	return holdsSecret([]string{above, name})
}

// cutLast cuts the last name off a path, without quotes and index.
func cutLast(path string) (parent, name string) {
	for strings.HasSuffix(path, "]") {
		path = path[:max(0, strings.LastIndexByte(path, '['))]
	}
	if strings.HasSuffix(path, `"`) {
		i := strings.LastIndex(path, `."`)
		return path[:max(0, i)], strings.Trim(path[i+1:], `"`)
	}
	i := strings.LastIndexByte(path, '.')
	return path[:max(0, i)], path[i+1:]
}

// labelled matches a field and its string on one source line.
var labelled = regexp.MustCompile(`([A-Za-z0-9_-]+)"?\s*[:?!]+\s*#*"+([^"]*)`)

// LooksSecret reports whether a source line seems to hold a secret: for printers,
// which also show lines of files that do not parse.
func LooksSecret(line string) bool {
	if tokenLike.MatchString(line) || redisValue.MatchString(line) {
		return true
	}
	for _, m := range labelled.FindAllStringSubmatch(line, -1) {
		if (secretName.MatchString(m[1]) || redisPassword.MatchString(m[1])) && !notSecret(m[2]) {
			return true
		}
	}
	return false
}

// underSecretReference reports whether the innermost name is env or file of a
// reference such as api_key: {env: "NAME"}.
func underSecretReference(names []string) bool {
	last := names[len(names)-1]
	return len(names) > 1 && (last == "env" || last == "file")
}
