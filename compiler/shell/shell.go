// Package shell owns the one way in which genrm writes text into a POSIX shell
// script: [Word], made of parts whose types say where they come from.
//
// A [Literal] is somebody's text and reaches the program byte for byte, whatever
// it holds. An [Expr] is shell code that genrm itself wrote, such as
// "${GENRM_PORT_HTTP:?}". No function turns a string of unknown origin into an
// Expr, so a user's text cannot become code. The package may not run a shell,
// read the environment, or know plans and targets.
package shell

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// ErrNUL is returned for text that holds a NUL byte: no argument and no
// environment variable of a Unix process can.
var ErrNUL = errors.New("a NUL byte cannot be passed to a program")

// Part is a piece of a [Word]: a [Literal] or an [Expr].
type Part interface{ part() }

// Literal is text that reaches the program as it is.
type Literal string

// Expr is an expansion that the shell performs, made by the functions of this
// package. It stands between double quotes: its value is never split, globbed
// or expanded again.
type Expr struct{ code string }

func (Literal) part() {}
func (Expr) part()    {}

var name = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Var is the value of a shell variable. It panics if v is no variable name:
// callers check names where they enter.
func Var(v string) Expr {
	if !name.MatchString(v) {
		panic(fmt.Sprintf("shell: %q is no variable name", v))
	}
	return Expr{"${" + v + "}"}
}

// Required is the value of a shell variable; the shell stops with the message
// when it is unset or empty. The message is reduced to letters, digits, blanks
// and light punctuation, so that it needs no quoting.
func Required(v, message string) Expr {
	e := Var(v)
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(" .,:;/_=-", r) {
			return r
		}
		return -1
	}, message)
	return Expr{strings.TrimSuffix(e.code, "}") + ":?" + plain + "}"}
}

// FileContent is the content of a file without its final newlines. Where the
// file cannot be read, the status of the assignment that it stands in is not 0,
// which ends a script under "set -e"; inside the arguments of a command it would
// not, so assign it first.
func FileContent(path string) (Expr, error) {
	q, err := Quote(path)
	return Expr{"$(cat -- " + q + ")"}, err
}

// Word writes the parts as one word of a POSIX shell command.
func Word(parts ...Part) (string, error) {
	var b, lit strings.Builder
	flush := func() error {
		if lit.Len() == 0 {
			return nil
		}
		q, err := Quote(lit.String())
		b.WriteString(q)
		lit.Reset()
		return err
	}
	for _, p := range parts {
		switch p := p.(type) {
		case Literal:
			lit.WriteString(string(p))
		case Expr:
			if err := flush(); err != nil {
				return "", err
			}
			b.WriteString(`"` + p.code + `"`)
		}
	}
	if b.Len() == 0 {
		return Quote(lit.String())
	}
	if err := flush(); err != nil {
		return "", err
	}
	return b.String(), nil
}

// Words that need no quotes. "=" is safe only behind a dash: "a=b" in front of a
// command is an assignment.
var (
	bare     = regexp.MustCompile(`^[A-Za-z0-9_@%+:,./-]+$`)
	bareFlag = regexp.MustCompile(`^-[A-Za-z0-9_@%+:,./=-]*$`)
	reserved = []string{"case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if", "in", "select", "then", "time", "until", "while"}
)

// Quote writes s as one word of a POSIX shell command: bare where that is safe
// at any place of a command line, else in single quotes. It returns [ErrNUL] for
// text with a NUL byte.
func Quote(s string) (string, error) {
	switch {
	case strings.ContainsRune(s, 0):
		return "", ErrNUL
	case bare.MatchString(s) && !slices.Contains(reserved, s), bareFlag.MatchString(s):
		return s, nil
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", nil
}

// Command writes an argv as one command line, for people to read and paste. It
// returns [ErrNUL] as [Quote] does.
func Command(argv []string) (string, error) {
	words := make([]string, len(argv))
	for i, a := range argv {
		q, err := Quote(a)
		if err != nil {
			return "", fmt.Errorf("word %d: %w", i+1, err)
		}
		words[i] = q
	}
	return strings.Join(words, " "), nil
}
