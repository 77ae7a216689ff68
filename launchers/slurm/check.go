// Package slurm is the target of Slurm clusters.
//
// Its rules need no cluster: what only sbatch knows (partitions, accounts,
// limits) is asked of sbatch itself.
package slurm

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/image"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/internal/need"
)

type checker struct{}

// Checker returns the rules of the slurm target. Source: man sbatch.
func Checker() plan.Checker { return checker{} }

func (checker) Target() plan.Target { return plan.Slurm }

func (checker) Check(p *plan.Plan) diag.List {
	var l diag.List
	s, _ := p.Settings.Get("slurm")
	geometry(p, s, &l)
	directives(p, s.Field("directives"), &l)
	if v := s.Field("signal"); v.OK() {
		signal(p, v.Text, &l)
	}
	if t, _ := s.Field("gpu_request").AsString(); t == "none" && s.Field("gres_type").OK() {
		l.Add(p.Finding("GRM8206", diag.Warning, "slurm.gres_type", "gres_type has no effect with gpu_request \"none\"",
			"No GPUs are asked for, so no type of them either.", "remove it, or write gpu_request: \"gres\""))
	}
	container := s.Field("container")
	if v := container.Field("image"); v.OK() {
		if what := image.Floating(v.Text); reference(p, "slurm.container.image", v.Text, &l) && what != "" {
			l.Add(p.Finding("GRM6007", diag.Warning, "slurm.container.image", "the image "+what, "The same file may start other releases tomorrow.", "name a release's tag, a digest (@sha256:…) or a .sqsh file"))
		}
	}
	targets := map[string]int{}
	for i, m := range items(container.Field("mounts")) {
		if !m.OK() {
			continue
		}
		parts := strings.SplitN(m.Text, ":", 3)
		if len(parts) < 2 {
			continue
		}
		if first, again := targets[parts[1]]; again {
			d := p.Finding("GRM8207", diag.Error, tree.Index("slurm.container.mounts", i), "two mounts at "+parts[1], "One of them would hide the other.", "keep one, or mount it elsewhere")
			d.Related = []diag.Related{{Pos: p.Pos(tree.Index("slurm.container.mounts", first)), Message: "the first mount there"}}
			l.Add(d)
			continue
		}
		targets[parts[1]] = i
	}
	for _, i := range p.Instances {
		if i.Value.Image != "" {
			reference(p, tree.Join("serve.instances", i.Key)+".image", i.Value.Image, &l)
		}
	}
	if host, written := p.Gateway, p.Positions["serve.gateway.host"].IsValid(); host != nil && !written {
		l.Add(p.Finding("GRM8209", diag.Note, "serve.gateway", "the gateway listens on the loopback address of the job's first node",
			"Only processes of that node reach it.", `for clients elsewhere write gateway: {host: "0.0.0.0", api_key: {env: "GENRM_API_KEY"}}`))
	}
	return l
}

func items(v *tree.Value) []*tree.Value {
	if v == nil {
		return nil
	}
	return v.Items
}

// geometry compares the nodes and GPUs of the request with those of the plan.
func geometry(p *plan.Plan, s *tree.Value, l *diag.List) {
	n, c := s.Size("nodes"), p.Cluster
	if gpus := need.GPUs(p); gpus > 0 && c.GPUsPerNode == 0 {
		l.Add(p.Finding("GRM8202", diag.Error, "cluster", "cluster.gpus_per_node is not stated",
			fmt.Sprintf("The run needs %s; how many nodes that are, and what each is asked for, depends on it.", need.Count(gpus, "GPU")), "add cluster: gpus_per_node: 8, or what the nodes have"))
	}
	if n == 0 {
		return
	}
	stated := p.Positions["cluster.nodes"].IsValid()
	related := []diag.Related{}
	if stated {
		related = append(related, diag.Related{Pos: p.Pos("cluster.nodes"), Message: fmt.Sprintf("%s here", need.Count(c.Nodes, "node"))})
	}
	add := func(sev diag.Severity, summary, detail, remedy string) {
		d := p.Finding("GRM8201", sev, "slurm.nodes", summary, detail, remedy)
		d.Related = related
		l.Add(d)
	}
	switch {
	case n < c.NodesNeeded:
		add(diag.Error, fmt.Sprintf("slurm.nodes is %d, but the run needs %s", n, need.Count(c.NodesNeeded, "node")),
			fmt.Sprintf("%s on nodes of %d.", need.Count(need.GPUs(p), "GPU"), c.GPUsPerNode), "remove slurm.nodes: it is derived from the plan")
	case stated && c.Nodes > 0 && n != c.Nodes:
		add(diag.Error, fmt.Sprintf("slurm.nodes is %d, but cluster.nodes is %d", n, c.Nodes), "The run would be planned for other nodes than are asked for.", "state the number once, in cluster.nodes")
	case c.NodesNeeded > 0 && n > c.NodesNeeded:
		add(diag.Warning, fmt.Sprintf("slurm.nodes is %d, but the run uses %s", n, need.Count(c.NodesNeeded, "node")), "The others would be held and stay idle.", "remove slurm.nodes: it is derived from the plan")
	}
}

// typed says which field of genrm's sets a directive.
var typed = map[string]string{
	"partition": "slurm.partition", "account": "slurm.account", "qos": "slurm.qos", "time": "slurm.time", "nodes": "slurm.nodes",
	"constraint": "slurm.constraint", "requeue": "slurm.requeue", "no-requeue": "slurm.requeue", "signal": "slurm.signal",
	"gpus-per-node": "cluster.gpus_per_node", "gres": "slurm.gpu_request", "gpus": "slurm.gpu_request",
	"mem": "slurm.mem", "exclusive": "slurm.exclusive", "reservation": "slurm.reservation",
	"container-image": "slurm.container.image", "container-mounts": "slurm.container.mounts",
	"cpus-per-task": "slurm.cpus", "job-name": "name",
	"ntasks": "", "ntasks-per-node": "", "output": "", "error": "", "export": "slurm.export", "comment": "", "open-mode": "", "chdir": "", "wrap": "", "array": "", "parsable": "", "test-only": "", "wait": "",
}

// unsafe is what a directive's value may not hold: sbatch reads directives
// without a shell, so nothing is expanded, "#" begins a comment, and a line
// break ends the directive.
var unsafe = regexp.MustCompile("[$\"'`\\\\#\\x00-\\x1f\\x7f]")

func directives(p *plan.Plan, v *tree.Value, l *diag.List) {
	if !v.OK() {
		return
	}
	for _, f := range v.Fields {
		path := tree.Join("slurm.directives", f.Name)
		if by, ok := typed[f.Name]; ok {
			remedy, detail := "remove it", "genrm writes --"+f.Name+" itself: the run's files and processes depend on it."
			if by != "" {
				detail, remedy = "--"+f.Name+" is set from "+by+"; of two directives sbatch takes the last.", "set "+by
			}
			l.Add(p.Finding("GRM8204", diag.Error, path, "directives repeats --"+f.Name, detail, remedy))
			continue
		}
		if s, ok := f.Value.AsString(); ok {
			if bad := unsafe.FindString(s); bad != "" {
				l.Add(p.Finding("GRM8203", diag.Error, path, fmt.Sprintf("--%s has %q in its value", f.Name, bad),
					"sbatch reads directives without a shell: variables are not expanded, quotes stay, # begins a comment.", "write a plain value"))
			}
		}
	}
}

// signals that may be sent, without SIG. Source: man sbatch, man 7 signal.
var signals = []string{"HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "XCPU"}

var signalForm = regexp.MustCompile(`^(?:[RB]:)?(?:SIG)?([A-Z]+[0-9]?|[0-9]+)(?:@([0-9]+))?$`)

// signal checks [{R|B}:]<signal>[@<seconds>], of which the seconds are at most
// 65535.
func signal(p *plan.Plan, text string, l *diag.List) {
	detail := ""
	m := signalForm.FindStringSubmatch(text)
	switch {
	case m == nil:
		detail = "It is not of the form [R:|B:]SIGNAL[@SECONDS]."
	case m[2] != "" && tooLong(m[2]):
		detail = "The seconds before the end are at most 65535."
	case m[1][0] >= '0' && m[1][0] <= '9':
		if n, err := strconv.Atoi(m[1]); err != nil || n < 1 || n > 64 {
			detail = "Signal numbers are 1 to 64."
		}
	case !slices.Contains(signals, m[1]):
		detail = "There is no signal " + m[1] + "."
	}
	if detail != "" {
		remedy := "write it as B:TERM@120"
		if m != nil {
			if near := diag.DidYouMean(m[1], signals); near != "" && !slices.Contains(signals, m[1]) {
				remedy = near
			}
		}
		l.Add(p.Finding("GRM8205", diag.Error, "slurm.signal", fmt.Sprintf("signal %q is not one that sbatch takes", text), detail, remedy))
	}
}

func tooLong(digits string) bool {
	n, err := strconv.Atoi(digits)
	return err != nil || n > 65535
}

// reference checks an image that pyxis is to import or to mount, and reports
// whether it can.
func reference(p *plan.Plan, path, name string, l *diag.List) bool {
	scheme, _, has := strings.Cut(name, "://")
	switch {
	case has && scheme != "docker":
		l.Add(p.Finding("GRM8208", diag.Error, path, "pyxis does not take "+scheme+":// images", "It imports from a registry (docker://, or no scheme) or mounts a squashfs file.", "import the image to a .sqsh file first, and give its absolute path"))
		return false
	case !strings.HasPrefix(name, "/") && (strings.HasSuffix(name, ".sqsh") || strings.HasSuffix(name, ".squashfs")):
		l.Add(p.Finding("GRM8208", diag.Error, path, "the image file has a relative path", "pyxis takes a name without a leading / for an image of a registry.", "write the absolute path"))
		return false
	}
	return true
}
