package plan

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Arg is one argv element or environment value. What only the target knows
// stands in it as a placeholder:
//
//	{port:PURPOSE}  a free port for a purpose, such as http
//	{host:N}        host name or address of node N of the process
//	{upstreams}     addresses of the engines that a serve plan starts: KEY=URL,… with one for each replica
//	{rank}          node rank of the process
//	{job_id}        the scheduler's id
//	{run_dir}       the run directory
//	{judges_url}    address of the gateway of the judges' run that stands beside
//	{cpus}          CPU cores that the run may use on the node
//	{path:PURPOSE}  a short-lived folder of the run on the node, such as ray
//	{file:NAME}     path of an emitted artifact, as its process sees it
//	{secret:env:NAME}, {secret:file:PATH}  the secret itself, known only where the process starts
//	{brace}         a literal "{" before text that would otherwise read as a placeholder
//
// Build one from user text with [Lit] only; the text then survives [Arg.Bind]
// byte for byte, whatever it holds.
type Arg string

var placeholder = regexp.MustCompile(`\{(port:[a-z0-9_]+|host:[0-9]+|upstreams|rank|job_id|run_dir|judges_url|cpus|path:[a-z0-9_]+|file:[A-Za-z0-9._-]+|secret:(?:env|file):[^{}]+|brace)\}`)

// Lit returns text that no launcher replaces.
func Lit(s string) Arg {
	if !strings.Contains(s, "{") {
		return Arg(s)
	}
	return Arg(placeholder.ReplaceAllStringFunc(s, func(m string) string { return "{brace}" + m[1:] }))
}

// Lits is [Lit] for every element.
func Lits(in []string) []Arg {
	out := make([]Arg, len(in))
	for i, s := range in {
		out[i] = Lit(s)
	}
	return out
}

// Port is the placeholder of a port with a purpose ([a-z0-9_]+).
func Port(purpose string) Arg { return Arg("{port:" + purpose + "}") }

// Host is the placeholder of the address of node n (from 0) of a process.
func Host(n int) Arg { return Arg("{host:" + strconv.Itoa(n) + "}") }

// Upstreams is the placeholder of the addresses of a serve plan's engines.
func Upstreams() Arg { return "{upstreams}" }

// Rank is the placeholder of a process's node rank.
func Rank() Arg { return "{rank}" }

// File is the placeholder of the path of the plan's artifact with that name.
func File(name string) Arg { return Arg("{file:" + name + "}") }

// JudgesURL is the placeholder of the gateway of the judges that stand beside.
func JudgesURL() Arg { return "{judges_url}" }

// CPUs is the placeholder of the cores that the run may use on the node.
func CPUs() Arg { return "{cpus}" }

// Path is the placeholder of a folder that the run has on the node.
func Path(purpose string) Arg { return Arg("{path:" + purpose + "}") }

// Placeholder is the inside of a placeholder, split at its first colon.
type Placeholder struct{ Kind, Name string }

// Placeholders lists what has to be filled, in order, without {brace}.
func (a Arg) Placeholders() []Placeholder {
	var out []Placeholder
	for _, m := range placeholder.FindAllStringSubmatch(string(a), -1) {
		if m[1] != "brace" {
			kind, name, _ := strings.Cut(m[1], ":")
			out = append(out, Placeholder{kind, name})
		}
	}
	return out
}

// Bind replaces every placeholder by what fill returns for it. Text that fill
// returns is not read again.
func (a Arg) Bind(fill func(Placeholder) (string, error)) (string, error) {
	s := string(a)
	var b strings.Builder
	for {
		m := placeholder.FindStringSubmatchIndex(s)
		if m == nil {
			b.WriteString(s)
			return b.String(), nil
		}
		b.WriteString(s[:m[0]])
		if inner := s[m[2]:m[3]]; inner == "brace" {
			b.WriteByte('{')
		} else {
			kind, name, _ := strings.Cut(inner, ":")
			v, err := fill(Placeholder{kind, name})
			if err != nil {
				return "", fmt.Errorf("filling {%s}: %w", inner, err)
			}
			b.WriteString(v)
		}
		s = s[m[1]:]
	}
}
