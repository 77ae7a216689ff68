package compiler

import (
	"fmt"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// parallelism is how the GPUs of one engine are used. The zero value means
// that it could not be worked out, which was reported or is due to a value that
// was.
type parallelism struct {
	tp, pp, dp int
	// dpInside says that the dp ranks share the tensor parallel ranks (SGLang's
	// attention data parallelism), so that they need no GPUs of their own.
	dpInside bool
}

// gpus is the number of GPUs that one engine needs.
func (p parallelism) gpus() int {
	if p.dpInside {
		return p.tp * p.pp
	}
	return p.tp * p.pp * p.dp
}

// product shows the arithmetic of gpus: "2×4×8 = 64".
func (p parallelism) product() string {
	switch {
	case p.dpInside || p.dp == 1 && p.pp > 1:
		return fmt.Sprintf("%d×%d = %d", p.tp, p.pp, p.gpus())
	case p.dp == 1 && p.pp == 1:
		return fmt.Sprint(p.tp)
	}
	return fmt.Sprintf("%d×%d×%d = %d", p.tp, p.pp, p.dp, p.gpus())
}

// wholeEngines reports GPUs that do not divide into engines (GRM7011), at num.
// It returns the number of engines, 0 if there is none to go on with.
func (e *experiment) wholeEngines(key string, num, perEngine *tree.Value, n, per int) int {
	if n < 1 || per < 1 {
		return 0
	}
	if n%per == 0 {
		return n / per
	}
	var related []diag.Related
	if perEngine != nil {
		related = append(related, diag.Related{Pos: perEngine.Pos, Message: fmt.Sprintf("%d for each engine", per)})
	}
	e.report("GRM7011", diag.Error, num, fmt.Sprintf("%s of %s do not divide into engines of %d", gpus(n), key, per),
		fmt.Sprintf("%d %% %d = %d.", n, per, n%per),
		"use a multiple of num_gpus_per_engine, or a num_gpus_per_engine that divides num_gpus", related...)
	return 0
}

// tensorParallel derives the tensor parallel size of an engine from its GPUs
// and reports (GRM7001) sizes that do not divide them. pp and dp may be 0 for 1;
// ppAt and dpAt are where they come from and may be nil.
func (e *experiment) tensorParallel(key string, per, pp, dp int, dpInside bool, perAt, ppAt, dpAt *tree.Value) (parallelism, bool) {
	p := parallelism{pp: max(1, pp), dp: max(1, dp), dpInside: dpInside}
	if per < 1 {
		return parallelism{}, false
	}
	const huge = 1 << 20 // no product of two sizes below it overflows
	at := ppAt
	if at == nil || dpAt != nil && p.pp == 1 {
		at = dpAt
	}
	if at == nil {
		at = perAt
	}
	ranks, formula := p.pp, fmt.Sprintf("pp_size %d", p.pp)
	if !dpInside && p.dp > 1 {
		ranks, formula = 0, fmt.Sprintf("pp_size %d × dp_size %d", p.pp, p.dp)
		if p.pp < huge && p.dp < huge {
			ranks = p.pp * p.dp
			formula += fmt.Sprintf(" = %d", ranks)
		}
	}
	var related []diag.Related
	if perAt != nil && perAt != at {
		related = []diag.Related{{Pos: perAt.Pos, Message: fmt.Sprintf("%s for each engine", gpus(per))}}
	}
	if ranks == 0 || per%ranks != 0 {
		detail := fmt.Sprintf("The tensor parallel size is what is left: %d / (%s) is no whole number.", per, formula)
		e.report("GRM7001", diag.Error, at, fmt.Sprintf("%s of an engine of %s do not divide by %s", gpus(per), key, formula), detail,
			"choose sizes whose product divides num_gpus_per_engine", related...)
		return parallelism{}, false
	}
	p.tp = per / ranks
	if dpInside && p.tp%p.dp != 0 {
		e.report("GRM7001", diag.Error, at, fmt.Sprintf("tensor parallel size %d of %s does not divide by dp_size %d", p.tp, key, p.dp),
			fmt.Sprintf("SGLang's attention data parallelism shares the tensor parallel ranks: %d / %d (pp_size) = %d ranks, %d %% %d = %d.", per, p.pp, p.tp, p.tp, p.dp, p.tp%p.dp),
			"choose a dp_size that divides the tensor parallel size", related...)
		return parallelism{}, false
	}
	return p, true
}

// modelFits reports a tensor parallel size that does not divide the model's
// attention heads (GRM7003) and more pipeline stages than layers (GRM7004), or
// states as a fact that the check was skipped. attentionTP is the number of
// ranks that share the heads.
func (e *experiment) modelFits(key string, model *tree.Value, attentionTP, pp int, at *tree.Value) {
	if attentionTP < 1 || !model.OK() {
		return
	}
	facts := e.modelFacts(model)
	heads := facts.Size("num_attention_heads")
	switch {
	case heads == 0 && attentionTP > 1 && facts.Field("num_attention_heads") == nil:
		e.fact(e.relative(at), fmt.Sprintf("not checked that tensor parallel size %d divides the attention heads: models states no num_attention_heads of %s", attentionTP, e.modelText(model)))
	case heads > 0 && heads%attentionTP != 0:
		var valid []string
		for n := 1; n <= heads && n <= 1024; n++ {
			if heads%n == 0 {
				valid = append(valid, fmt.Sprint(n))
			}
		}
		e.report("GRM7003", diag.Error, at, fmt.Sprintf("tensor parallel size %d of %s does not divide the model's %d attention heads", attentionTP, key, heads),
			fmt.Sprintf("%d %% %d = %d; the engine finds this only when it loads the model. Sizes that divide %d: %s.", heads, attentionTP, heads%attentionTP, heads, strings.Join(valid, ", ")),
			"choose the GPUs of an engine so that its tensor parallel size is one of these",
			diag.Related{Pos: facts.KeyPos("num_attention_heads"), Message: "what models states of it"})
	}
	if layers := facts.Size("num_hidden_layers"); layers > 0 && pp > layers {
		e.report("GRM7004", diag.Error, at, fmt.Sprintf("%d pipeline stages of %s for a model of %d layers", pp, key, layers),
			"Each stage holds at least one layer.", fmt.Sprintf("use a pp_size of at most %d", layers),
			diag.Related{Pos: facts.KeyPos("num_hidden_layers"), Message: "what models states of it"})
	}
}

// engineFits reports (GRM7002) an engine that does not fit the machines: one
// that is larger than the cluster, or larger than a node without filling whole
// nodes. product shows how its size comes about. What cluster does not state is
// not checked.
func (e *experiment) engineFits(key string, per int, product string, at *tree.Value) bool {
	c := e.plan.Cluster
	stated := e.root.Field("cluster")
	if c.GPUsPerNode == 0 {
		return true
	}
	related := diag.Related{Pos: stated.KeyPos("gpus_per_node"), Message: fmt.Sprintf("%s a node", gpus(c.GPUsPerNode))}
	if all := clusterGPUs(c); stated.Field("nodes") != nil && c.Nodes > 0 && per > all {
		e.report("GRM7002", diag.Error, at, fmt.Sprintf("an engine of %s needs %s, but the cluster has %d", key, gpus(per), all),
			fmt.Sprintf("%s > %d (%s × %d GPUs).", product, all, nodes(c.Nodes), c.GPUsPerNode),
			fmt.Sprintf("use at most %s for each engine, or more nodes", gpus(all)), related)
		return false
	}
	if per > c.GPUsPerNode && per%c.GPUsPerNode != 0 {
		e.report("GRM7002", diag.Error, at, fmt.Sprintf("an engine of %s with %s does not fill whole nodes of %d", key, gpus(per), c.GPUsPerNode),
			fmt.Sprintf("%d %% %d = %d: one node would run fewer ranks than the others, which the engines refuse.", per, c.GPUsPerNode, per%c.GPUsPerNode),
			fmt.Sprintf("use at most %d, or a multiple of it", c.GPUsPerNode), related)
		return false
	}
	return true
}

// packer gives out GPUs engine by engine, in order. An engine that fits a node
// is not split: what is left of a node that is too small for it stays idle.
type packer struct {
	perNode int // 0: not stated
	next    int // the next free GPU, numbered through all nodes
	skipped int // GPUs left idle between engines
}

// take places the next engine and returns its bundles, which are GPU numbers
// through all nodes.
func (p *packer) take(per int) []int {
	if p.perNode > 0 {
		if left := p.perNode - p.next%p.perNode; left < p.perNode && per > left {
			p.next += left
			p.skipped += left
		}
	}
	out := bundleRange(p.next, p.next+per)
	p.next += per
	return out
}

// place returns the placements of the replica on its bundles.
func (p *packer) place(replica int, bundles []int) []plan.Placement {
	out := spread(bundles, 0, p.perNode, len(bundles))
	for i := range out {
		out[i].Replica = replica
	}
	return out
}

// nodes is the number of nodes in use.
func (p *packer) nodes() int {
	if p.perNode == 0 || p.next == 0 {
		return 0
	}
	return (p.next + p.perNode - 1) / p.perNode
}

// capacity settles the number of nodes and reports a placement that needs more
// than there are (GRM7014) or leaves GPUs idle (GRM7005).
func (e *experiment) capacity(p packer, sum string) {
	c := &e.plan.Cluster
	if p.perNode == 0 || p.next == 0 {
		return
	}
	c.NodesNeeded = p.nodes()
	if p.skipped > 0 {
		e.fact("cluster.gpus_per_node", fmt.Sprintf("an engine that fits a node is not split over two: %s between engines stay idle", gpus(p.skipped)))
	}
	stated := e.root.Lookup("cluster", "nodes")
	if stated == nil {
		c.Nodes = c.NodesNeeded
		return
	}
	if c.Nodes == 0 {
		return // faulty
	}
	used, all := p.next-p.skipped, clusterGPUs(*c)
	related := diag.Related{Pos: e.root.Field("cluster").KeyPos("gpus_per_node"), Message: fmt.Sprintf("%s a node", gpus(c.GPUsPerNode))}
	switch {
	case c.NodesNeeded > c.Nodes && used > all:
		e.report("GRM7014", diag.Error, stated, fmt.Sprintf("the run needs %d GPUs, but the cluster has %d", used, all),
			fmt.Sprintf("%s > %s × %d = %d.", sum, nodes(c.Nodes), c.GPUsPerNode, all), fmt.Sprintf("use %s, or fewer replicas", nodes(c.NodesNeeded)), related)
	case c.NodesNeeded > c.Nodes:
		e.report("GRM7014", diag.Error, stated, fmt.Sprintf("the engines need %s, but the cluster has %d", nodes(c.NodesNeeded), c.Nodes),
			fmt.Sprintf("%s ≤ %d GPUs, but an engine that fits a node is not split over two, which leaves %s of the earlier nodes idle.", sum, all, gpus(p.skipped)),
			fmt.Sprintf("use %d nodes, or engine sizes that fill a node", c.NodesNeeded), related)
	case used < all:
		e.report("GRM7005", diag.Warning, stated, fmt.Sprintf("idle GPUs: %d of %d are used", used, all),
			fmt.Sprintf("%s; %s × %d = %d.", sum, nodes(c.Nodes), c.GPUsPerNode, all), "use more replicas or larger engines, or state fewer nodes or GPUs", related)
	}
}

// relative is the path of v without the experiment's place in its file, as
// facts and plan positions have it.
func (e *experiment) relative(v *tree.Value) string {
	if v == nil {
		return ""
	}
	if e.plan.Prefix == "" {
		return v.Path
	}
	return strings.TrimPrefix(strings.TrimPrefix(v.Path, e.plan.Prefix), ".")
}

// clusterGPUs is nodes × GPUs a node, bounded so that it does not overflow.
func clusterGPUs(c plan.Cluster) int {
	return min(c.Nodes, 1<<40) * c.GPUsPerNode
}

// nodes is a count of nodes in words.
func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
