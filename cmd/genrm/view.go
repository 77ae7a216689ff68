package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"genrm.dev/genrm/launchers/rundir"
)

// terminal reports whether w is a terminal that can be written over.
func (a *app) terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && a.getenv("TERM") != "dumb" && term.IsTerminal(int(f.Fd()))
}

// view shows how a run gets on: on a terminal one table that is written over
// while things start and end, elsewhere a line for each thing that happens.
type view struct {
	out   io.Writer
	run   *rundir.Run
	root  string // the run's folder, for people
	live  bool
	quiet bool // nothing is waited for: say where the run is, no more
	logs  *follower

	begun   bool
	offset  int64                // in the events
	table   string               // what is on the terminal now
	rows    int                  // its lines
	waits   map[string]time.Time // when a wait was last told
	since   map[string]time.Time // when a process was first seen starting
	told    bool                 // that the run is ready
	stopped bool
}

// waitEvery is how often a pipe is told what is still waited for.
const waitEvery = 10 * time.Second

func (v *view) show(st *rundir.Status, over bool) error {
	if !v.begun {
		v.begun, v.waits, v.since = true, map[string]time.Time{}, map[string]time.Time{}
		fmt.Fprintf(v.out, "run %s in %s\n", v.run.ID, v.root)
	}
	if v.quiet {
		return nil
	}
	if v.live {
		if err := v.draw(st); err != nil {
			return err
		}
	} else if err := v.lines(st); err != nil {
		return err
	}
	if v.logs != nil {
		if err := v.logs.poll(processNames(st), over); err != nil {
			return err
		}
	}
	if st.State == rundir.Ready && !v.told {
		v.told = true
		fmt.Fprintf(v.out, "ready in %s\n", took(st.ReadyAfter))
		if e, err := endpoints(v.run); err == nil {
			fmt.Fprintln(v.out)
			if err := endpointText(v.out, e); err != nil {
				return err
			}
			fmt.Fprintln(v.out)
		}
		v.freeze()
	}
	if over {
		v.freeze()
		fmt.Fprintf(v.out, "%s\n", stateText(st))
		if st.Reason != "" {
			fmt.Fprintf(v.out, "  %s\n", st.Reason)
		}
		if st.State == rundir.Failed {
			fmt.Fprintf(v.out, "  logs: genrm logs %s\n", v.run.ID)
		}
	}
	return nil
}

// lines tells each event, and from time to time what is waited for.
func (v *view) lines(st *rundir.Status) error {
	events, next, err := v.run.Events(v.offset)
	if err != nil {
		return err
	}
	v.offset = next
	width := 0
	by := map[string]rundir.Process{}
	for _, p := range st.Processes {
		width = max(width, len(p.Name))
		by[p.Name] = p
	}
	for _, e := range events {
		kind, state, _ := strings.Cut(e.Type, ".")
		p := by[e.Process]
		switch {
		case kind == "process" && state == "starting":
			text := fmt.Sprintf("pid %d", e.PID)
			if port := portsText(p.Ports); port != "-" {
				text += ", port " + port
			}
			if len(p.GPUs) > 0 {
				text += ", GPUs " + strings.Join(p.GPUs, ",")
			}
			fmt.Fprintf(v.out, "  %-*s  starting  %s\n", width, e.Process, text)
		case kind == "process" && state == "ready" && p.ReadyAfter > 0:
			fmt.Fprintf(v.out, "  %-*s  ready     after %s\n", width, e.Process, took(p.ReadyAfter))
		case kind == "process":
			fmt.Fprintf(v.out, "  %-*s  %-8s  %s\n", width, e.Process, state, firstLine(e.Message))
		case e.Type == "run.stopping":
			fmt.Fprintln(v.out, "stopping")
		case kind == "note":
			fmt.Fprintf(v.out, "  %-*s  note      %s\n", width, e.Process, e.Message)
		}
	}
	now := time.Now()
	for _, p := range st.Processes {
		if p.State != rundir.Starting && p.State != rundir.Stopping {
			delete(v.since, p.Name)
			continue
		}
		if _, ok := v.since[p.Name]; !ok {
			v.since[p.Name], v.waits[p.Name] = now, now
		}
		if now.Sub(v.waits[p.Name]) >= waitEvery {
			v.waits[p.Name] = now
			fmt.Fprintf(v.out, "  %-*s  %s  for %d s: %s%s\n", width, p.Name, p.State, int(now.Sub(v.since[p.Name]).Seconds()), orDash(p.Awaits), v.lastLine(p.Name))
		}
	}
	return nil
}

// lastLine is the end of a process's log, for a wait.
func (v *view) lastLine(process string) string {
	t, err := rundir.NewTail(v.run.LogPath(process), 1)
	if err != nil {
		return ""
	}
	defer func() { _ = t.Close() }() // only read
	lines, err := t.Lines(true)
	if err != nil || len(lines) == 0 {
		return ""
	}
	return "; last line: " + strings.TrimSpace(lines[len(lines)-1])
}

// draw writes the table over the one before.
func (v *view) draw(st *rundir.Status) error {
	if v.told && st.State == rundir.Ready {
		return nil
	}
	if !v.stopped && (st.State == rundir.Stopping || st.State.Ended()) {
		v.stopped = true
		v.freeze() // the table of the start stays
	}
	var b bytes.Buffer
	if err := processTable(&b, st); err != nil {
		return err
	}
	for _, p := range st.Processes {
		if p.State == rundir.Starting && p.StartedAt != nil && time.Since(*p.StartedAt) > 2*time.Second {
			fmt.Fprintf(&b, "  %s: starting for %d s%s\n", p.Name, int(time.Since(*p.StartedAt).Seconds()), v.lastLine(p.Name))
		}
	}
	width, height := 80, 24
	if f, ok := v.out.(*os.File); ok {
		if w, h, err := term.GetSize(int(f.Fd())); err == nil && w > 0 && h > 0 {
			width, height = w, h
		}
	}
	lines := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	if most := height - 2; most > 0 && len(lines) > most {
		lines = append(lines[:most-1], fmt.Sprintf("  … and %d more", len(lines)-most+1))
	}
	for i, l := range lines {
		if r := []rune(printable(l)); len(r) >= width {
			lines[i] = string(r[:width-1])
		} else {
			lines[i] = string(r)
		}
	}
	text := strings.Join(lines, "\n") + "\n"
	if text == v.table {
		return nil
	}
	if v.rows > 0 {
		fmt.Fprintf(v.out, "\x1b[%dA\x1b[J", v.rows) // up to its start, and clear from there
	}
	v.table, v.rows = text, len(lines)
	_, err := io.WriteString(v.out, text)
	return err
}

// printable keeps what a process printed from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// freeze leaves the table where it is: what follows comes below.
func (v *view) freeze() { v.table, v.rows = "", 0 }

func (v *view) note(text string) {
	v.freeze()
	fmt.Fprintf(v.out, "%s\n", text)
}
