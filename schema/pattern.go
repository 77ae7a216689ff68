package schema

import (
	"regexp"
	"sync"
)

// pattern returns the condition of =~"text" or !~"text". CUE's regular
// expressions are Go's.
func pattern(text string, not bool) Pattern {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(text) })
	return Pattern{Not: not, Text: text, Matches: func(s string) bool { return compiled().MatchString(s) }}
}
