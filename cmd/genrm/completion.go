package main

import (
	"fmt"
	"slices"
	"strings"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/rules"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"${enum}."`
}

func (completionCmd) Help() string {
	return `Prints a script for the shell to load. It is made from the commands themselves and starts nothing when you press Tab.

Examples:

  source <(genrm completion bash)                                   # in ~/.bashrc
  genrm completion zsh > "${fpath[1]}/_genrm"
  genrm completion fish > ~/.config/fish/completions/genrm.fish`
}

// word is something to complete, with a line about it.
type word struct{ text, about string }

// level is what may follow a command.
type level struct {
	command string // "model facts"; "" at the top
	subs    []word // commands below, or the values of the first argument
	flags   []word
	values  map[string][]string // flag → its values
}

func (c *completionCmd) Run(a *app) error {
	levels := walk(a.kong.Model.Node, "")
	print := map[string]func([]level) string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Shell]
	_, err := fmt.Fprint(a.stdout, print(levels))
	return err
}

// walk lists the commands of the model, each level in front of those below it.
func walk(n *kong.Node, command string) []level {
	l := level{command: command, values: map[string][]string{}}
	for _, f := range slices.Concat(n.AllFlags(true)...) {
		names := []string{"--" + f.Name}
		if f.Short != 0 {
			names = append(names, "-"+string(f.Short))
		}
		for _, name := range names {
			l.flags = append(l.flags, word{name, f.Help})
			switch {
			case f.Enum != "":
				l.values[name] = strings.Split(f.Enum, ",")
			case f.Name == "target":
				for _, t := range plan.Targets {
					l.values[name] = append(l.values[name], string(t))
				}
			}
		}
	}
	for _, p := range n.Positional[:min(1, len(n.Positional))] {
		values := []string{}
		switch {
		case p.Enum != "":
			values = strings.Split(p.Enum, ",")
		case command == "explain":
			values = rules.Codes()
		case command == "catalogue show":
			values = engineNames
		}
		for _, v := range values {
			l.subs = append(l.subs, word{v, ""})
		}
	}
	levels := []level{l}
	for _, child := range n.Children {
		if child.Hidden {
			continue
		}
		levels[0].subs = append(levels[0].subs, word{child.Name, child.Help})
		levels = append(levels, walk(child, strings.TrimSpace(command+" "+child.Name))...)
	}
	return levels
}

func texts(words []word) string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w.text
	}
	return strings.Join(out, " ")
}

// commandPatterns are the case patterns "command so far + word" of all commands.
func commandPatterns(levels []level) string {
	var out []string
	for _, l := range levels[1:] {
		head, tail := "", l.command
		if i := strings.LastIndex(l.command, " "); i >= 0 {
			head, tail = l.command[:i], l.command[i+1:]
		}
		out = append(out, fmt.Sprintf("%q", head+" "+tail))
	}
	return strings.Join(out, "|")
}

func valueCases(l level, line func(values []string) string) string {
	var b strings.Builder
	for _, f := range l.flags {
		if v := l.values[f.text]; v != nil {
			fmt.Fprintf(&b, "    %q) %s ;;\n", l.command+" "+f.text, line(v))
		}
	}
	return b.String()
}

func bashScript(levels []level) string {
	var b strings.Builder
	b.WriteString("# bash completion for genrm. Made by genrm completion bash.\n_genrm() {\n" +
		"  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} cmd='' subs='' flags='' i\n" +
		"  COMPREPLY=()\n" +
		"  for ((i = 1; i < COMP_CWORD; i++)); do\n    case \"$cmd ${COMP_WORDS[i]}\" in\n")
	fmt.Fprintf(&b, "    %s) cmd=\"${cmd:+$cmd }${COMP_WORDS[i]}\" ;;\n    esac\n  done\n", commandPatterns(levels))
	b.WriteString("  case \"$cmd $prev\" in\n")
	for _, l := range levels {
		b.WriteString(valueCases(l, func(v []string) string {
			return fmt.Sprintf("mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\"); return", strings.Join(v, " "))
		}))
	}
	b.WriteString("  esac\n  case \"$cmd\" in\n")
	for _, l := range levels {
		fmt.Fprintf(&b, "    %q) subs='%s' flags='%s' ;;\n", l.command, texts(l.subs), texts(l.flags))
	}
	b.WriteString("  esac\n  if [[ $cur == -* ]]; then subs=$flags; fi\n" +
		"  if [[ -n $subs ]]; then mapfile -t COMPREPLY < <(compgen -W \"$subs\" -- \"$cur\"); fi\n}\n" +
		"complete -o default -F _genrm genrm\n")
	return b.String()
}

func zshScript(levels []level) string {
	list := func(words []word) string {
		var out []string
		for _, w := range words {
			s := strings.ReplaceAll(w.text, ":", `\:`)
			if w.about != "" {
				s += ":" + w.about
			}
			out = append(out, "'"+strings.ReplaceAll(s, "'", `'\''`)+"'")
		}
		return "(" + strings.Join(out, " ") + ")"
	}
	var b strings.Builder
	b.WriteString("#compdef genrm\n# Made by genrm completion zsh.\n_genrm() {\n  local cmd='' w\n  local -a subs flags\n" +
		"  for w in ${words[2,CURRENT-1]}; do\n    case \"$cmd $w\" in\n")
	fmt.Fprintf(&b, "    %s) cmd=\"${cmd:+$cmd }$w\" ;;\n    esac\n  done\n  case \"$cmd ${words[CURRENT-1]}\" in\n", commandPatterns(levels))
	for _, l := range levels {
		b.WriteString(valueCases(l, func(v []string) string { return "compadd -- " + strings.Join(v, " ") + "; return" }))
	}
	b.WriteString("  esac\n  case \"$cmd\" in\n")
	for _, l := range levels {
		fmt.Fprintf(&b, "    %q) subs=%s flags=%s ;;\n", l.command, list(l.subs), list(l.flags))
	}
	b.WriteString("  esac\n  if [[ ${words[CURRENT]} == -* ]]; then _describe flag flags\n" +
		"  elif (( $#subs )); then _describe argument subs\n  else _files; fi\n}\ncompdef _genrm genrm\n")
	return b.String()
}

func fishScript(levels []level) string {
	quote := func(s string) string {
		return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'"
	}
	var b strings.Builder
	b.WriteString("# fish completion for genrm. Made by genrm completion fish.\n")
	for _, l := range levels {
		when := "__fish_use_subcommand"
		if l.command != "" {
			var seen []string
			for _, w := range strings.Fields(l.command) {
				seen = append(seen, "__fish_seen_subcommand_from "+w)
			}
			when = strings.Join(seen, "; and ")
		}
		for _, s := range l.subs {
			fmt.Fprintf(&b, "complete -c genrm -f -n %s -a %s -d %s\n", quote(when), quote(s.text), quote(s.about))
		}
		for _, f := range l.flags {
			kind, name := "-l", strings.TrimPrefix(f.text, "--")
			if !strings.HasPrefix(f.text, "--") {
				kind, name = "-s", strings.TrimPrefix(f.text, "-")
			}
			line := fmt.Sprintf("complete -c genrm -n %s %s %s -d %s", quote(when), kind, name, quote(f.about))
			if v := l.values[f.text]; v != nil {
				line += " -x -a " + quote(strings.Join(v, " "))
			}
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
