package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/launchers/ray"
	"genrm.dev/genrm/launchers/ray/kuberay"
)

// onServe reports whether a plan becomes an application of Ray Serve, which
// starts the engines itself: nothing runs the plan's commands then.
func onServe(p *plan.Plan) bool {
	return p.Workload == plan.Serve && (p.Target == plan.Ray || p.Target == plan.KubeRay)
}

// application prints what Ray Serve is sent in place of commands: the fields of
// the application, and behind them the LLMConfig of each judge, as emit writes
// them.
func application(b *bytes.Buffer, p *plan.Plan) error {
	app, _, err := ray.ServeApplication(p) // accepted plans have no findings here that are not printed
	if err != nil {
		return err
	}
	judges := app.Args.LLMConfigs
	section(b, "Application of Ray Serve")
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "  name\t%s\n  route_prefix\t%s\n  import_path\t%s\n", app.Name, app.RoutePrefix, app.ImportPath)
	if len(app.RuntimeEnv) > 0 {
		env, err := ordered(app.RuntimeEnv)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "  runtime_env\t%s\n", oneLine(env))
	}
	block, _ := p.Settings.Get(string(p.Target))
	for _, name := range []string{"http_options", "proxy_location"} {
		if v := block.Lookup("serve", name); v.OK() {
			fmt.Fprintf(w, "  %s\t%s\n", name, strings.Trim(oneLine(v), `"`))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if p.Target == plan.KubeRay {
		fmt.Fprintf(b, "  It is the serveConfigV2 of the RayService; `genrm emit -o - --only %s` prints the objects.\n", kuberay.FileName)
	} else {
		fmt.Fprintln(b, "  A launch adds the variables GENRM_RUN_… to runtime_env, by which the run is found.")
	}
	for _, c := range judges {
		v, err := ordered(c)
		if err != nil {
			return err
		}
		section(b, "LLMConfig of judge "+c.ModelLoading.ModelID)
		fmt.Fprint(b, "  ")
		folded(b, v, "  ", 0)
		b.WriteByte('\n')
	}
	return nil
}

// ordered is x as its JSON has it, in that order.
func ordered(x any) (*tree.Value, error) {
	text, err := json.Marshal(x)
	if err != nil {
		return nil, err
	}
	return tree.ParseJSON(string(text))
}

// jsonWidth is the longest line into which folded puts a list or struct.
const jsonWidth = 80

// folded prints JSON for people: what fits a line behind indent and the used
// columns of a key stands in one, and each element on a line of its own
// otherwise.
func folded(b *bytes.Buffer, v *tree.Value, indent string, used int) {
	line := oneLine(v)
	n := len(v.Fields) + len(v.Items)
	if n == 0 || len(indent)+used+len(line) <= jsonWidth {
		b.WriteString(line)
		return
	}
	open, end := "{", "}"
	if v.Kind == tree.List {
		open, end = "[", "]"
	}
	inner := indent + "  "
	b.WriteString(open + "\n")
	comma := func(i int) {
		if i < n-1 {
			b.WriteByte(',')
		}
		b.WriteByte('\n')
	}
	for i, f := range v.Fields {
		key := tree.Text(f.Name).JSON() + ": "
		b.WriteString(inner + key)
		folded(b, f.Value, inner, len(key)+1)
		comma(i)
	}
	for i, x := range v.Items {
		b.WriteString(inner)
		folded(b, x, inner, 1)
		comma(i)
	}
	b.WriteString(indent + end)
}

// oneLine is JSON in one line, with a blank behind each comma and colon.
func oneLine(v *tree.Value) string {
	var parts []string
	switch v.Kind {
	case tree.Struct:
		for _, f := range v.Fields {
			parts = append(parts, tree.Text(f.Name).JSON()+": "+oneLine(f.Value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case tree.List:
		for _, x := range v.Items {
			parts = append(parts, oneLine(x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return v.JSON()
}
