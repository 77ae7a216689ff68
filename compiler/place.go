package compiler

import "genrm.dev/genrm/compiler/plan"

// spread turns the bundles of one judge into placements: engine by engine, and
// within an engine node by node. Bundle b is GPU b%gpusPerNode of node
// firstNode+b/gpusPerNode. With gpusPerNode 0 (not stated) each engine is one
// placement with Node -1 and its bundle numbers for GPUs. A rest that does not
// fill an engine is left out: divisibility is checked elsewhere.
func spread(bundles []int, firstNode, gpusPerNode, perEngine int) []plan.Placement {
	var out []plan.Placement
	if perEngine < 1 {
		return nil
	}
	for r := 0; (r+1)*perEngine <= len(bundles); r++ {
		engine := bundles[r*perEngine : (r+1)*perEngine]
		if gpusPerNode == 0 {
			out = append(out, plan.Placement{Replica: r, Node: -1, GPUs: engine})
			continue
		}
		rank := 0
		for i, b := range engine {
			node, gpu := firstNode+b/gpusPerNode, b%gpusPerNode
			if i == 0 || out[len(out)-1].Node != node {
				out = append(out, plan.Placement{Replica: r, NodeRank: rank, Node: node})
				rank++
			}
			last := &out[len(out)-1]
			last.GPUs = append(last.GPUs, gpu)
		}
	}
	return out
}

// bundleRange returns start, start+1, … stop-1.
func bundleRange(start, stop int) []int {
	out := make([]int, 0, max(0, stop-start))
	for b := start; b < stop; b++ {
		out = append(out, b)
	}
	return out
}
