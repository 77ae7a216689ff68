package diag

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// GitHub prints the list as workflow commands, which GitHub Actions shows as
// annotations beside the lines. Source: "Workflow commands for GitHub Actions"
// and the escapes of actions/toolkit packages/core/src/command.ts.
func (l List) GitHub(w io.Writer) error {
	b := bufio.NewWriter(w)
	for _, g := range l.grouped() {
		d := g.Diagnostic
		level := map[Severity]string{Error: "error", Warning: "warning", Note: "notice"}[d.Severity]
		var props []string
		if d.Pos.IsValid() {
			props = append(props, "file="+property.Replace(d.Pos.File))
			if d.Pos.Line > 0 {
				props = append(props, fmt.Sprintf("line=%d", d.Pos.Line), fmt.Sprintf("col=%d", d.Pos.Column))
			}
		}
		props = append(props, "title="+property.Replace(d.Code))
		fmt.Fprintf(b, "::%s %s::%s\n", level, strings.Join(props, ","), data.Replace(g.message()))
	}
	return b.Flush()
}

var (
	data     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// message is the finding in plain text with the experiments that have it.
func (g group) message() string {
	if in := g.where(); in != "" {
		return g.Diagnostic.message() + "\n" + in
	}
	return g.Diagnostic.message()
}

// message is the finding in plain text, without position and code.
func (d Diagnostic) message() string {
	parts := []string{d.Summary}
	if d.Detail != "" {
		parts = append(parts, d.Detail)
	}
	if d.Remedy != "" {
		parts = append(parts, "help: "+d.Remedy)
	}
	return strings.Join(parts, "\n")
}
