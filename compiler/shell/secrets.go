package shell

import (
	"fmt"
	"strconv"
)

// Secrets collects the reading of secrets at the start of a script: each once,
// into a variable of the shell. Where is said of a variable that is not set, such
// as "on this node"; it may be empty.
type Secrets struct {
	Where string
	Reads []string // lines of the script, in the order of the first use

	known map[string]Expr
}

// IsName reports whether s can be the name of a shell variable.
func IsName(s string) bool { return name.MatchString(s) }

// Read returns the variable that holds a secret of the kind env (the name of a
// variable) or file (a path). The script stops when it is not there. The error
// says that ref is no such name or path.
func (s *Secrets) Read(kind, ref string) (Expr, error) {
	if e, ok := s.known[kind+":"+ref]; ok {
		return e, nil
	}
	var from Expr
	switch {
	case kind == "file":
		var err error
		if from, err = FileContent(ref); err != nil {
			return from, err
		}
	case IsName(ref):
		message := ref + " holds a secret and is not set"
		if s.Where != "" {
			message += " " + s.Where
		}
		from = Required(ref, message)
	default:
		return from, fmt.Errorf("%q is no name of an environment variable", ref)
	}
	word, err := Word(from)
	if err != nil {
		return from, err
	}
	v := "genrm_secret_" + strconv.Itoa(len(s.Reads)+1)
	s.Reads = append(s.Reads, v+"="+word)
	if s.known == nil {
		s.known = map[string]Expr{}
	}
	s.known[kind+":"+ref] = Var(v)
	return Var(v), nil
}
