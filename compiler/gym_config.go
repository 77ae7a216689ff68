package compiler

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
	"genrm.dev/genrm/schema"
)

// gymReserved are the globals that NeMo Gym itself reads or fills in: never
// servers, and always there for an interpolation. Source:
// NEMO_GYM_RESERVED_TOP_LEVEL_KEYS in nemo_gym/global_config.py of 0.7.0.
var gymReserved = func() map[string]bool {
	m := map[string]bool{}
	for _, n := range strings.Fields(`config_paths entrypoint default_host head_server disallowed_ports head_server_deps
		python_version pip_install_verbose use_absolute_ip uv_pip_set_python skip_venv_if_present hf_token
		ray_head_node_address port_range_low port_range_high dry_run server_spinup_timeout_seconds
		model_endpoint_readiness_timeout_seconds allow_openai_version_skew uv_cache_dir uv_lock_timeout_seconds
		uv_venv_dir results_dir cache_dir _inherit_from _copy nemo_gym_log_dir verbose json query
		observability_enabled model_call_capture_dir token_id_capture component_name skip_verification
		skip_verification_reward telemetry allow_unsupported_pairing environment_server_name
		environment_server_routes environment_routing_mode`) {
		m[n] = true
	}
	return m
}()

// gymResolvers are the resolvers that a config may use. Source: omegaconf 2.3,
// hydra-core 1.3 and nemo_gym/global_config.py of 0.7.0.
var gymResolvers = []string{"oc.env", "oc.select", "oc.decode", "oc.create", "oc.deprecated", "oc.dict.keys", "oc.dict.values",
	"inherit_from", "copy", "hydra", "now", "python_version"}

// gymText reports whether a string only stands for a value: an interpolation,
// or ??? for one that is still to be given.
func gymText(s string) bool { return s == "???" || strings.Contains(s, "${") }

// withOverrides returns the config as NeMo Gym sees it. Values keep the place
// where the user wrote them, an override's at the override.
func (r *gymRun) withOverrides() *tree.Value {
	o := r.w.Field("overrides")
	if !o.OK() || len(o.Fields) == 0 {
		return r.config
	}
	root := *r.config
	for _, f := range o.Fields {
		if !f.Value.OK() {
			continue
		}
		steps := strings.Split(f.Name, ".")
		if r.config.Field(steps[0]) == nil && len(steps) > 1 && len(steps[0]) > 3 && r.config.Field("config_paths") == nil {
			if near := diag.DidYouMean(steps[0], r.config.Names()); near != "" {
				r.e.reportKey("GRM5019", diag.Error, o, f.Name, "the override "+f.Name+" is for "+steps[0]+", which is not in gym.config",
					"NeMo Gym would add it beside the server that is meant.", near)
				continue
			}
		}
		if r.overridable(steps, f) {
			r.override(&root, steps, f, "")
		}
	}
	return &root
}

// overridable holds an override of a known implementation's field against the
// schema, as the field itself was.
func (r *gymRun) overridable(steps []string, f tree.Field) bool {
	if len(steps) < 4 || steps[1] != "responses_api_models" || gymRequired[steps[2]] == nil {
		return true
	}
	at := "gym.config.*." + strings.Join(steps[1:4], ".")
	if _, err := schema.Lookup(at); err != nil {
		var unknown *schema.UnknownFieldError
		var known []string
		if errors.As(err, &unknown) {
			known = unknown.Known
		}
		r.e.reportKey("GRM5019", diag.Error, r.w.Field("overrides"), f.Name, fmt.Sprintf("the override sets %s, which %s does not have", steps[3], steps[2]),
			"NeMo Gym ignores what a server does not read.", cmp.Or(diag.DidYouMean(steps[3], known), "leave it out"))
		return false
	}
	entry, err := schema.Lookup("gym.config.*." + strings.Join(steps[1:], "."))
	if err != nil {
		return true // below a struct that holds anything
	}
	v := *f.Value
	(&checker{diags: &r.e.diags}).value(&v, entry.Type, entry.Doc, f.Pos)
	return v.OK()
}

// override sets the value at steps below v, which is already a copy, and
// copies what it changes.
func (r *gymRun) override(v *tree.Value, steps []string, f tree.Field, at string) {
	name := steps[0]
	v.Fields = slices.Clone(v.Fields)
	i := slices.IndexFunc(v.Fields, func(x tree.Field) bool { return x.Name == name })
	if len(steps) == 1 {
		if i >= 0 {
			v.Fields[i].Value = f.Value
		} else {
			v.Fields = append(v.Fields, tree.Field{Name: name, Pos: f.Pos, Value: f.Value})
		}
		return
	}
	if i < 0 {
		v.Fields = append(v.Fields, tree.Field{Name: name, Pos: f.Pos, Value: &tree.Value{Kind: tree.Struct, Pos: f.Pos, Path: f.Value.Path}})
		i = len(v.Fields) - 1
	}
	child := *v.Fields[i].Value
	switch {
	case child.Kind == tree.Struct:
		v.Fields[i].Value = &child
		r.override(&child, steps[1:], f, at+name+".")
	case child.Kind == tree.Bad || child.Kind == tree.List || child.Kind == tree.String && gymText(child.Text):
		// Faulty, or known only to NeMo Gym.
	default:
		r.e.report("GRM5019", diag.Error, f.Value, fmt.Sprintf("the override goes below %s%s, which is %s", at, name, child.Kind),
			"Hydra cannot set a key of it.", "shorten the key, or make "+at+name+" a struct",
			diag.Related{Pos: v.Fields[i].Pos, Message: "what it goes below"})
	}
}

// resolve follows a value that is nothing but one interpolation of a node, as
// long as it can be followed here. It returns any other value as it is.
func (r *gymRun) resolve(v *tree.Value) *tree.Value {
	for range 16 {
		if v == nil || v.Kind != tree.String || !strings.HasPrefix(v.Text, "${") {
			return v
		}
		path, ok := strings.CutSuffix(v.Text[2:], "}")
		if !ok || strings.ContainsAny(path, "{}:") || strings.HasPrefix(path, ".") {
			return v
		}
		next := r.eff
		for _, s := range nodeSteps(path) {
			next = gymStep(next, s)
		}
		if next == nil {
			return v
		}
		v = next
	}
	return v
}

var bracket = regexp.MustCompile(`\[['"]?([^\]'"]*)['"]?\]`)

// nodeSteps splits a.b[0].c into its steps.
func nodeSteps(path string) []string {
	return strings.Split(strings.TrimPrefix(bracket.ReplaceAllString(path, ".$1"), "."), ".")
}

// gymStep goes one step down; nil where there is nothing.
func gymStep(v *tree.Value, step string) *tree.Value {
	if v != nil && v.Kind == tree.List {
		if i, err := strconv.Atoi(step); err == nil && 0 <= i && i < len(v.Items) {
			return v.Items[i]
		}
		return nil
	}
	return v.Field(step)
}

// deferred reports every ??? that nothing sets and every interpolation that
// cannot be resolved. NeMo Gym refuses both, one at a time.
func (r *gymRun) deferred() {
	var walk func(v *tree.Value, up []*tree.Value, deleted []string)
	walk = func(v *tree.Value, up []*tree.Value, deleted []string) {
		switch {
		case !v.OK():
		case v.Kind == tree.String && v.Text == "???":
			if !r.open {
				r.e.report("GRM5007", diag.Error, v, "nothing sets this ???", "NeMo Gym refuses to start while a value is missing.",
					"write the value, or set it under gym.overrides")
			}
		case v.Kind == tree.String:
			r.interpolations(v, up)
		case v.Kind == tree.List:
			for _, x := range v.Items {
				walk(x, append(slices.Clone(up), v), nil)
			}
		case v.Kind == tree.Struct:
			var gone []string
			if d, ok := v.Field("_delete_key").AsString(); ok {
				for _, n := range strings.Split(d, ",") {
					gone = append(gone, strings.TrimSpace(n))
				}
			}
			for _, f := range v.Fields {
				if gymDirective(f.Name) {
					r.inherited(f)
				} else if !slices.Contains(gone, f.Name) {
					walk(f.Value, append(slices.Clone(up), v), gone)
				}
			}
		}
	}
	walk(r.eff, nil, nil)
	if r.open {
		r.e.fact("gym.config", "??? and names that only config_paths can define are not checked")
	}
}

// inherited checks the path of _inherit_from and _copy.
func (r *gymRun) inherited(f tree.Field) {
	path, ok := f.Value.AsString()
	if !ok || r.open || f.Name == "_delete_key" || strings.Contains(path, "${") {
		return
	}
	r.node(f.Value, f.Name+" "+path, r.eff, nodeSteps(path))
}

// interpolations checks each ${…} of a string, the inner ones first.
func (r *gymRun) interpolations(v *tree.Value, up []*tree.Value) {
	s := v.Text
	for i := 0; i < len(s); {
		j := strings.Index(s[i:], "${")
		if j < 0 {
			return
		}
		j += i
		slashes := 0
		for k := j - 1; k >= 0 && s[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 1 { // \${ is text
			i = j + 2
			continue
		}
		end, ok := r.interpolation(v, j, up, 0)
		if !ok {
			r.e.report("GRM5009", diag.Error, v, "an interpolation does not end", "OmegaConf wants a } for each ${.", "add the }, or write \\${ for the text itself")
			return
		}
		i = end
	}
}

var resolverName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// interpolation checks the one that starts at s[at:] and returns where it
// ends; false if it does not end, or is nested deeper than any that is meant.
func (r *gymRun) interpolation(v *tree.Value, at int, up []*tree.Value, depth int) (int, bool) {
	s := v.Text
	start, dynamic, args := at+2, false, false
	var quote byte
	if depth > 64 {
		return 0, false
	}
	for i := start; i < len(s); {
		switch c := s[i]; {
		case quote != 0:
			if c == '\\' {
				i++
			} else if c == quote {
				quote = 0
			}
			i++
		case strings.HasPrefix(s[i:], "${"):
			end, ok := r.interpolation(v, i, up, depth+1)
			if !ok {
				return 0, false
			}
			i, dynamic = end, true
		case (c == '\'' || c == '"') && args:
			quote = c
			i++
		case c == '}':
			r.resolvable(v, s[start:i], dynamic, up)
			return i + 1, true
		default:
			args = args || c == ':'
			i++
		}
	}
	return 0, false
}

// resolvable checks the inside of one interpolation. dynamic says that it holds
// another one.
func (r *gymRun) resolvable(v *tree.Value, inner string, dynamic bool, up []*tree.Value) {
	inner = strings.TrimSpace(inner)
	if name, arg, ok := strings.Cut(inner, ":"); ok && !strings.Contains(name, "${") {
		name = strings.TrimSpace(name)
		switch {
		case !slices.Contains(gymResolvers, name):
			remedy := diag.DidYouMean(name, gymResolvers)
			if remedy == "" {
				remedy = "known are " + strings.Join(gymResolvers, ", ")
			}
			if !resolverName.MatchString(name) {
				remedy = "write \\${ for the text itself"
			}
			r.e.report("GRM5009", diag.Error, v, fmt.Sprintf("there is no resolver %q", name), "OmegaConf refuses ${"+name+":…} when NeMo Gym reads the config.", remedy)
		case (name == "inherit_from" || name == "copy") && !dynamic && !r.open:
			r.node(v, "${"+name+":"+arg+"}", r.eff, nodeSteps(strings.TrimSpace(arg)))
		}
		return
	}
	if dynamic {
		return
	}
	if inner == "" {
		r.e.report("GRM5009", diag.Error, v, "an interpolation is empty", "OmegaConf refuses ${}.", "name a value, or write \\${ for the text itself")
		return
	}
	from, path := r.eff, strings.TrimLeft(inner, ".")
	if dots := len(inner) - len(path); dots > 0 {
		// One dot is the struct that holds the value, each further one its parent.
		if dots > len(up) {
			r.e.report("GRM5008", diag.Error, v, "${"+inner+"} leads out of the config", "Each dot after the first goes one level up.", "use fewer dots, or the whole path")
			return
		}
		from = up[len(up)-dots]
		if path == "" {
			return
		}
	}
	r.node(v, "${"+inner+"}", from, nodeSteps(path))
}

// node reports a path that names nothing.
func (r *gymRun) node(v *tree.Value, spelling string, from *tree.Value, steps []string) {
	if r.open || from == r.eff && gymReserved[steps[0]] {
		return
	}
	at := from
	for i, s := range steps {
		next := gymStep(at, s)
		if next == nil {
			var names []string
			if at != nil && at.Kind == tree.Struct {
				names = at.Names()
			}
			remedy := diag.DidYouMean(s, names)
			if remedy == "" {
				remedy = "add it to gym.config, or set it under gym.overrides"
				if i > 0 {
					remedy = "known are " + strings.Join(names, ", ")
				}
			}
			r.e.report("GRM5008", diag.Error, v, spelling+" names nothing in gym.config",
				fmt.Sprintf("There is no %s. NeMo Gym refuses to start, unless an env.yaml in its working folder has it.", strings.Join(steps[:i+1], ".")), remedy)
			return
		}
		at = r.resolve(next)
		if at.Kind == tree.Bad || at.Kind == tree.String && gymText(at.Text) {
			return
		}
		for _, n := range at.Names() {
			if gymDirective(n) {
				return
			}
		}
	}
}
