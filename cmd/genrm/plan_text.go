package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"genrm.dev/genrm/compiler/emit"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/shell"
	"genrm.dev/genrm/launchers/ray"
)

// planText prints a plan for people.
func planText(out io.Writer, p *plan.Plan) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n", p.Name)
	head := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(head, "  workload\t%s\n", p.Workload)
	mode := string(p.Mode)
	if p.ModeReason != "" {
		mode += ": " + p.ModeReason
	}
	fmt.Fprintf(head, "  mode\t%s\n", mode)
	fmt.Fprintf(head, "  target\t%s\n", cmp.Or(string(p.Target), "not chosen; emit needs --target"))
	if c := clusterText(p.Cluster); c != "" {
		fmt.Fprintf(head, "  cluster\t%s\n", c)
	}
	switch g := p.Gateway; {
	case g != nil && onServe(p):
		fmt.Fprintf(head, "  gateway\t`genrm gateway --run ID`, where you start it: %s:%s, failure policy %s\n", g.Host, g.Port, g.FailurePolicy)
	case g != nil:
		fmt.Fprintf(head, "  gateway\t%s:%s, failure policy %s\n", g.Host, g.Port, g.FailurePolicy)
	}
	if err := head.Flush(); err != nil {
		return err
	}
	if len(p.Roles) > 0 {
		section(&b, "Roles")
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "  ROLE\tGPUS\tPOOL\tBUNDLES")
		for _, e := range p.Roles {
			fmt.Fprintf(w, "  %s\t%d\t%s\t%s\n", e.Key, e.Value.NumGPUs, cmp.Or(e.Value.Pool, e.Key), ranges(e.Value.Bundles))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if len(p.Instances) > 0 {
		if err := judges(&b, p); err != nil {
			return err
		}
	}
	gpuMap(&b, p)
	if len(p.Facts) > 0 {
		section(&b, "Facts")
		for _, f := range p.Facts {
			if f.Path != "" {
				fmt.Fprintf(&b, "  %s: %s\n", f.Path, f.Text)
			} else {
				fmt.Fprintf(&b, "  %s\n", f.Text)
			}
		}
	}
	started := commands
	if onServe(p) {
		started = application
	}
	if err := started(&b, p); err != nil {
		return err
	}
	if len(p.Artifacts) > 0 {
		section(&b, "Files")
		for _, a := range p.Artifacts {
			reader := ""
			if onServe(p) && a.Name == ray.GatewayFile {
				reader = ", for `genrm gateway --run ID`"
			}
			fmt.Fprintf(&b, "  %s (%d bytes)%s\n", a.Name, len(a.Text), reader)
		}
	}
	_, err := out.Write(b.Bytes())
	return err
}

func section(b *bytes.Buffer, title string) { fmt.Fprintf(b, "\n%s\n", title) }

func clusterText(c plan.Cluster) string {
	var parts []string
	add := func(n int, suffix string) {
		if n == 1 {
			parts = append(parts, "1 node"+suffix)
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d nodes%s", n, suffix))
		}
	}
	add(c.Nodes, "")
	if c.NodesNeeded != c.Nodes {
		add(c.NodesNeeded, " needed")
	}
	if c.GPUsPerNode > 0 {
		parts = append(parts, fmt.Sprintf("%d GPUs a node", c.GPUsPerNode))
	}
	if c.GPUMemoryGiB > 0 {
		parts = append(parts, fmt.Sprintf("%g GiB a GPU", c.GPUMemoryGiB))
	}
	add(c.CPUsPerNode, "CPU core")
	return strings.Join(parts, ", ")
}

func judges(b *bytes.Buffer, p *plan.Plan) error {
	section(b, "Judges")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  ROUTE_KEY\tENGINE\tMODEL\tGPUS\tREPLICAS\tTP\tPP\tDP\tBUNDLES")
	for _, e := range p.Instances {
		in := e.Value
		engine := strings.TrimSpace(in.Engine + " " + in.EngineVersion)
		fmt.Fprintf(w, "  %s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", e.Key, engine, cmp.Or(in.ModelPath, in.Model, "-"), in.NumGPUs, in.Replicas,
			count(in.TensorParallel), count(in.PipelineParallel), count(in.DataParallel), ranges(in.Bundles))
	}
	return w.Flush()
}

func count(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// row is a line of the GPU map: a mark for each column that it uses.
type row struct {
	name  string
	marks map[int]string
}

// gpuMap draws who uses which GPU: for a pool of bundles one block a node, its
// columns being bundles; for served judges one block a node, its columns being
// the node's GPUs. Nodes that look alike are drawn once.
func gpuMap(b *bytes.Buffer, p *plan.Plan) {
	var pools []string
	for _, e := range p.Roles {
		if pool := cmp.Or(e.Value.Pool, e.Key); e.Value.NumGPUs > 0 && !slices.Contains(pools, pool) {
			pools = append(pools, pool)
		}
	}
	if len(pools) == 0 {
		serveMap(b, p)
		return
	}
	for _, pool := range pools {
		poolMap(b, p, pool)
	}
}

func poolMap(b *bytes.Buffer, p *plan.Plan, pool string) {
	var rows []row
	size := 0
	node := map[int]int{} // bundle → node, where an engine's placement tells it
	genrm := false
	for _, e := range p.Roles {
		if cmp.Or(e.Value.Pool, e.Key) != pool {
			continue
		}
		for _, x := range e.Value.Bundles {
			size = max(size, x+1)
		}
		if e.Key == "genrm" {
			genrm = true
			continue // its judges have rows of their own
		}
		if e.Value.NumGPUs > 0 {
			rows = append(rows, filled(e.Key, e.Value.Bundles, "#"))
		}
	}
	if genrm {
		for _, e := range p.Instances {
			r := row{e.Key, map[int]string{}}
			in := e.Value
			i := 0
			for _, pl := range in.Placement {
				for range pl.GPUs {
					if i < len(in.Bundles) {
						r.marks[in.Bundles[i]] = strconv.Itoa(pl.Replica)
						if pl.Node >= 0 {
							node[in.Bundles[i]] = pl.Node
						}
						size = max(size, in.Bundles[i]+1)
					}
					i++
				}
			}
			if len(in.Placement) == 0 {
				r = filled(e.Key, in.Bundles, "#")
			}
			rows = append(rows, r)
		}
	}
	title := "GPU map of pool " + pool + ": # in use"
	if genrm {
		title += ", 0 1 2 a judge's replica"
	}
	per := p.Cluster.GPUsPerNode
	label := func(from, to int) string {
		if per == 0 {
			return fmt.Sprintf("bundles %d-%d (gpus_per_node is not stated)", from, to-1)
		}
		if pool == "actor" {
			return fmt.Sprintf("node %d", from/per)
		}
		for x := from; x < to; x++ {
			if n, ok := node[x]; ok {
				return fmt.Sprintf("node %d", n)
			}
		}
		return fmt.Sprintf("node %d of the pool", from/per)
	}
	draw(b, title, "bundle", rows, size, cmp.Or(per, 16), label)
}

func filled(name string, columns []int, mark string) row {
	r := row{name, map[int]string{}}
	for _, c := range columns {
		r.marks[c] = mark
	}
	return r
}

func serveMap(b *bytes.Buffer, p *plan.Plan) {
	per := p.Cluster.GPUsPerNode
	var rows []row
	size := 0
	for _, e := range p.Instances {
		r := row{e.Key, map[int]string{}}
		for _, pl := range e.Value.Placement {
			for _, g := range pl.GPUs {
				col := g
				if per > 0 && pl.Node >= 0 {
					col += pl.Node * per
				}
				r.marks[col] = strconv.Itoa(pl.Replica)
				size = max(size, col+1)
			}
		}
		if len(r.marks) > 0 {
			rows = append(rows, r)
		}
	}
	if size == 0 {
		return
	}
	draw(b, "GPU map: 0 1 2 a judge's replica", "gpu", rows, size, cmp.Or(per, 16), func(from, to int) string {
		if per == 0 {
			return fmt.Sprintf("GPUs %d-%d (gpus_per_node is not stated)", from, to-1)
		}
		return fmt.Sprintf("node %d", from/per)
	})
}

// draw prints rows in blocks of per columns. Consecutive blocks with the same
// marks are drawn once under all their labels.
func draw(b *bytes.Buffer, title, columns string, rows []row, size, per int, label func(from, to int) string) {
	section(b, title)
	wide := len(columns)
	for _, r := range rows {
		wide = max(wide, len([]rune(r.name)))
	}
	type block struct{ first, last, head, body string }
	var blocks []block
	for from := 0; from < size; from += per {
		to := min(from+per, size)
		cell := len(strconv.Itoa(to - 1))
		if columns == "gpu" {
			cell = len(strconv.Itoa(to - 1 - from))
		}
		line := func(name string, mark func(col int) string) string {
			cells := make([]string, 0, to-from)
			for c := from; c < to; c++ {
				cells = append(cells, fmt.Sprintf("%*s", cell, mark(c)))
			}
			return fmt.Sprintf("  %-*s  %s", wide, name, strings.Join(cells, " "))
		}
		head := line(columns, func(c int) string {
			if columns == "gpu" {
				return strconv.Itoa(c - from)
			}
			return strconv.Itoa(c)
		})
		var body []string
		for _, r := range rows {
			used := false
			for c := from; c < to; c++ {
				used = used || r.marks[c] != ""
			}
			if used {
				body = append(body, line(r.name, func(c int) string { return cmp.Or(r.marks[c], ".") }))
			}
		}
		l := label(from, to)
		bl := block{first: l, last: l, head: head, body: strings.Join(body, "\n")}
		if n := len(blocks); n > 0 && strings.TrimSpace(bl.body) == strings.TrimSpace(blocks[n-1].body) && bl.body != "" && to-from == per {
			blocks[n-1].last = l
			continue
		}
		blocks = append(blocks, bl)
	}
	for _, bl := range blocks {
		l := bl.first
		if bl.last != bl.first {
			l += " to " + bl.last + ", each like"
		}
		fmt.Fprintf(b, "  %s\n%s\n", l, bl.head)
		if bl.body != "" {
			fmt.Fprintln(b, bl.body)
		}
	}
}

// commands prints the exact commands, quoted for a POSIX shell.
func commands(b *bytes.Buffer, p *plan.Plan) error {
	for _, pr := range emit.Processes(p) {
		title := "Command"
		if pr.RouteKey != "" {
			title = fmt.Sprintf("Command of judge %s, replica %d, node rank %d", pr.RouteKey, pr.Replica, pr.NodeRank)
		} else if p.Workload == plan.Serve {
			title = "Command of the gateway"
		}
		if len(pr.Argv) == 0 {
			continue
		}
		section(b, title)
		for _, e := range pr.Env {
			text, err := envText(e.Value)
			if err != nil {
				return fmt.Errorf("environment variable %s: %w", e.Key, err)
			}
			fmt.Fprintf(b, "  %s=%s \\\n", e.Key, text)
		}
		words := make([]string, len(pr.Argv))
		for i, a := range pr.Argv {
			var err error
			if words[i], err = shown(a); err != nil {
				return err
			}
		}
		fmt.Fprintf(b, "  %s\n", strings.Join(emit.Lines(pr.Argv, words), " \\\n    "))
		if pr.WorkDir != "" {
			fmt.Fprintf(b, "  in %s\n", pr.WorkDir)
		}
	}
	return nil
}

// shown quotes an argument for people: its text as a shell needs it, and what
// is left open in braces, without quotes.
func shown(a plan.Arg) (string, error) {
	if strings.ContainsRune(string(a), 0) {
		return "", shell.ErrNUL
	}
	bound, err := a.Bind(func(ph plan.Placeholder) (string, error) {
		if ph.Name == "" {
			return "\x00{" + ph.Kind + "}\x00", nil
		}
		return "\x00{" + ph.Kind + ":" + ph.Name + "}\x00", nil
	})
	if err != nil || !strings.ContainsRune(bound, 0) {
		return quoted(bound, err)
	}
	var b strings.Builder
	for i, piece := range strings.Split(bound, "\x00") {
		if i%2 == 0 && piece != "" {
			q, err := shell.Quote(piece)
			if err != nil {
				return "", err
			}
			piece = q
		}
		b.WriteString(piece)
	}
	return b.String(), nil
}

func quoted(s string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	return shell.Quote(s)
}

func envText(v plan.EnvValue) (string, error) {
	switch {
	case v.SecretEnv != "":
		return "<secret: variable " + v.SecretEnv + ">", nil
	case v.SecretFile != "":
		return "<secret: file " + v.SecretFile + ">", nil
	}
	return shown(v.Text)
}
