package diag

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
)

// TextOptions says how [List.Text] prints.
type TextOptions struct {
	// Source returns the bytes of a file as the user named it, for the source
	// line under a diagnostic. Nil, or an error, prints without source lines.
	Source func(file string) ([]byte, error)
	// Hide reports whether a source line must not be shown, beside the lines of
	// diagnostics that say so; nil hides no more.
	Hide func(line string) bool
	// Colour writes ANSI colours: for terminals only.
	Colour bool
}

const (
	bold   = "\x1b[1m"
	red    = "\x1b[1;31m"
	yellow = "\x1b[1;33m"
	cyan   = "\x1b[1;36m"
	green  = "\x1b[1;32m"
	reset  = "\x1b[0m"
)

// Text prints the list for people: position, severity and code, summary, the
// source line with a caret, the experiment if the package holds several, detail, remedy
// and related places, and after errors a line that counts them. What is wrong in
// the same way in many experiments of a sweep is printed once. A line that holds a secret is never printed, whatever
// else is found on it.
func (l List) Text(w io.Writer, opts TextOptions) error {
	p := printer{w: bufio.NewWriter(w), opts: opts, files: map[string][]string{}, secret: map[Pos]bool{}}
	for _, d := range l {
		if d.Secret {
			p.secret[Pos{File: d.Pos.File, Line: d.Pos.Line}] = true
		}
	}
	for _, g := range l.grouped() {
		p.diagnostic(g)
	}
	if l.HasErrors() {
		fmt.Fprintln(p.w, l.Count())
	}
	return p.w.Flush()
}

// Count says how many findings of each severity there are and in how many
// files, such as "2 errors, 1 warning in 1 file".
func (l List) Count() string {
	var parts []string
	for _, s := range []Severity{Error, Warning, Note} {
		n := 0
		for _, d := range l {
			if d.Severity == s {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, plural(n, string(s)))
		}
	}
	var files []string
	for _, d := range l {
		if d.Pos.IsValid() && !slices.Contains(files, d.Pos.File) {
			files = append(files, d.Pos.File)
		}
	}
	text := cmp.Or(strings.Join(parts, ", "), "nothing found")
	if len(files) > 0 {
		text += " in " + plural(len(files), "file")
	}
	return text
}

func plural(n int, word string) string {
	if n != 1 {
		word += "s"
	}
	return fmt.Sprintf("%d %s", n, word)
}

type printer struct {
	w      *bufio.Writer
	opts   TextOptions
	files  map[string][]string
	secret map[Pos]bool // lines that are not shown, as a Pos without column
}

func (p *printer) paint(colour, s string) string {
	if !p.opts.Colour {
		return s
	}
	return colour + s + reset
}

func (p *printer) diagnostic(g group) {
	d := g.Diagnostic
	colour := map[Severity]string{Error: red, Warning: yellow, Note: cyan}[d.Severity]
	place := ""
	if d.Pos.IsValid() {
		place = p.paint(bold, visible(d.Pos.String())) + ": "
	}
	fmt.Fprintf(p.w, "%s%s: %s\n", place, p.paint(colour, fmt.Sprintf("%s[%s]", d.Severity, d.Code)), p.paint(bold, visible(d.Summary)))
	p.snippet(d.Pos, colour)
	if in := g.where(); in != "" {
		p.lines("  ", in)
	}
	if d.Detail != "" {
		p.lines("  ", d.Detail)
	}
	if d.Remedy != "" {
		p.lines("  "+p.paint(green, "help:")+" ", d.Remedy)
	}
	for _, r := range d.Related {
		place := ""
		if r.Pos.IsValid() {
			place = visible(r.Pos.String()) + ": "
		}
		p.lines("  "+p.paint(cyan, "see:")+" "+place, r.Message)
	}
	fmt.Fprintln(p.w)
}

// lines prints text whose first line stands behind head and whose other lines
// are indented.
func (p *printer) lines(head, text string) {
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i > 0 {
			head = "  "
		}
		fmt.Fprintln(p.w, strings.TrimRight(head+visible(line), " "))
	}
}

// longest is how many code points of a source line are shown; the window moves
// along with the caret.
const longest = 160

// snippet prints the source line of a position and a caret under its column.
func (p *printer) snippet(pos Pos, colour string) {
	line, ok := p.source(pos)
	if !ok {
		return
	}
	runes := []rune(line)
	at := min(max(pos.Column, 1)-1, len(runes))
	head, tail := "", ""
	if len(runes) > longest {
		from := min(max(0, at-longest/2), len(runes)-longest)
		to := from + longest
		if to < len(runes) {
			tail = "…"
		}
		if from > 0 {
			head = "…"
		}
		runes, at = runes[from:to], at-from
	}
	number := fmt.Sprint(pos.Line)
	fmt.Fprintf(p.w, "  %s | %s%s%s\n", number, head, visible(string(runes)), tail)
	var under strings.Builder
	under.WriteString(strings.Repeat(" ", len(head)/len("…")))
	if head == "" {
		under.Reset()
	}
	for _, r := range runes[:at] {
		switch {
		case r == '\t':
			under.WriteByte('\t') // as wide as the reader's terminal makes it
		default:
			under.WriteString(strings.Repeat(" ", width(r)))
		}
	}
	fmt.Fprintf(p.w, "  %s | %s%s\n", strings.Repeat(" ", len(number)), under.String(), p.paint(colour, "^"))
}

// source returns the line at a position, without its line ending.
func (p *printer) source(pos Pos) (string, bool) {
	if p.opts.Source == nil || pos.Line < 1 || p.secret[Pos{File: pos.File, Line: pos.Line}] {
		return "", false
	}
	lines, ok := p.files[pos.File]
	if !ok {
		if data, err := p.opts.Source(pos.File); err == nil {
			data = bytes.TrimPrefix(data, []byte("\ufeff"))
			lines = strings.Split(string(data), "\n")
		}
		p.files[pos.File] = lines
	}
	if pos.Line > len(lines) {
		return "", false
	}
	line := strings.TrimSuffix(lines[pos.Line-1], "\r")
	return line, p.opts.Hide == nil || !p.opts.Hide(line)
}

// visible replaces control characters, which could move a terminal's cursor or
// hide text, by their Unicode pictures, and keeps tabs. It never changes the
// number of code points.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r >= ' ' && r < 0x7f:
			return r
		case r < ' ':
			return 0x2400 + r
		case r == 0x7f:
			return 0x2421
		case unicode.Is(unicode.Cc, r), unicode.Is(unicode.Bidi_Control, r):
			return unicode.ReplacementChar
		}
		return r
	}, s)
}

// width is the number of terminal cells of a code point: 0 for combining marks,
// 2 for the wide blocks of Unicode's East Asian Width (W and F) and emoji.
func width(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me), unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Bidi_Control, r):
		return 0
	case r >= 0x1100 && r <= 0x115f, r >= 0x2e80 && r <= 0x303e, r >= 0x3041 && r <= 0x33ff, r >= 0x3400 && r <= 0x4dbf,
		r >= 0x4e00 && r <= 0x9fff, r >= 0xa000 && r <= 0xa4cf, r >= 0xa960 && r <= 0xa97f, r >= 0xac00 && r <= 0xd7a3,
		r >= 0xf900 && r <= 0xfaff, r >= 0xfe10 && r <= 0xfe19, r >= 0xfe30 && r <= 0xfe6f, r >= 0xff00 && r <= 0xff60,
		r >= 0xffe0 && r <= 0xffe6, r >= 0x1f300 && r <= 0x1f64f, r >= 0x1f680 && r <= 0x1f6ff, r >= 0x1f900 && r <= 0x1f9ff,
		r >= 0x20000 && r <= 0x3fffd:
		return 2
	}
	return 1
}
