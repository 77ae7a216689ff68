// Package plan owns the compiler's output: everything that can be decided
// about a run without touching a machine, and its JSON form, which users'
// scripts and the frozen plan.json of a run read.
//
// It may not decide anything: it holds and prints what the compiler decided.
// Fields of the JSON may be added, never renamed.
package plan

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/tree"
)

// Workload says what runs.
type Workload string

// Workloads.
const (
	Relax Workload = "relax"
	Gym   Workload = "gym"
	Serve Workload = "serve"
)

// Mode says how GenRM shares the GPUs of a Relax run.
type Mode string

// Modes.
const (
	Split      Mode = "split"       // colocate, R+G == A: rollout and judges side by side in the actor's bundles
	CoResident Mode = "co-resident" // colocate, R == G == A: both engines live in the memory of each GPU
	DeferSwap  Mode = "defer-swap"  // colocate, R == G == A: judge and rollout take turns
	FullyAsync Mode = "fully-async" // pools of their own, asynchronous
	Hybrid     Mode = "hybrid"
	Separate   Mode = "separate" // pools of their own, synchronous
	NoGenRM    Mode = "none"     // no GenRM, or a gym or serve workload
)

// Target says where a plan runs.
type Target string

// Targets.
const (
	Local   Target = "local"
	Slurm   Target = "slurm"
	Ray     Target = "ray"
	KubeRay Target = "kuberay"
)

// Targets lists every target, in the order that help texts use.
var Targets = []Target{Local, Slurm, Ray, KubeRay}

// Plan is one experiment, decided.
type Plan struct {
	Name       string              `json:"name"`
	Workload   Workload            `json:"workload"`
	Mode       Mode                `json:"mode"`
	ModeReason string              `json:"mode_reason,omitempty"` // the arithmetic or the flag that led to Mode
	Target     Target              `json:"target,omitempty"`      // "" when neither the file nor the caller chose one
	Roles      tree.Map[Role]      `json:"roles"`                 // relax only; otherwise empty
	Instances  tree.Map[*Instance] `json:"instances"`             // by route_key, in the user's order
	Launch     Launch              `json:"launch"`
	Cluster    Cluster             `json:"cluster"`
	Artifacts  []Artifact          `json:"artifacts,omitempty"` // files that the launched command reads
	Facts      []Fact              `json:"facts,omitempty"`
	Gateway    *Gateway            `json:"gateway,omitempty"` // serve only

	// Settings are the user's own target blocks (slurm, ray, kuberay, local),
	// checked against the schema. Launchers read theirs.
	Settings tree.Map[*tree.Value] `json:"settings,omitempty"`

	// Positions maps a field path, relative to the experiment, to its place in
	// the user's file. It is not part of the JSON.
	Positions map[string]diag.Pos `json:"-"`

	// Prefix is the path of the experiment in its file: "" at top level, or
	// `experiments.NAME`.
	Prefix string `json:"-"`

	Diagnostics diag.List `json:"-"` // of this experiment; printed by the caller
}

// Role is a Relax GPU role.
type Role struct {
	NumGPUs int   `json:"num_gpus"`
	Bundles []int `json:"bundles"` // GPUs of the role's pool, numbered from 0
	// Pool names the placement group that the bundles belong to: "actor" for
	// roles that share the actor's, else the role's own name.
	Pool string `json:"pool,omitempty"`
}

// Instance is one judge.
type Instance struct {
	Engine           string      `json:"engine"` // vllm, sglang, openai, sim
	EngineVersion    string      `json:"engine_version,omitempty"`
	Model            string      `json:"model,omitempty"` // served or remote model name, where it is not the model path
	ModelPath        string      `json:"model_path"`
	NumGPUs          int         `json:"num_gpus"`
	NumGPUsPerEngine int         `json:"num_gpus_per_engine"`
	Replicas         int         `json:"replicas"`
	TensorParallel   int         `json:"tensor_parallel_size,omitempty"`
	PipelineParallel int         `json:"pipeline_parallel_size,omitempty"`
	DataParallel     int         `json:"data_parallel_size,omitempty"`
	Bundles          []int       `json:"bundles"`
	EngineConfig     *tree.Value `json:"engine_config"`
	SamplingConfig   *tree.Value `json:"sampling_config"`
	Argv             [][]Arg     `json:"argv"`      // serve: one command per entry of Placement
	Placement        []Placement `json:"placement"` // one entry per replica and node, in that order
	Env              Env         `json:"env,omitempty"`
	Image            string      `json:"image,omitempty"`
	// Settings are the instance's own fields as the user wrote them, for what
	// only its launcher needs (sim scripts, remote headers, readiness).
	Settings *tree.Value `json:"settings,omitempty"`
}

// Placement says which GPUs of which node one replica uses there.
type Placement struct {
	Replica  int   `json:"replica"`   // from 0
	NodeRank int   `json:"node_rank"` // rank of the node within the replica, from 0
	Node     int   `json:"node"`      // node of the plan, from 0; -1 when gpus_per_node is unknown
	GPUs     []int `json:"gpus"`      // indices on that node
}

// Launch is the command that is started: train.py, `gym env start`, or the
// gateway.
type Launch struct {
	Argv    []Arg  `json:"argv"`
	Env     Env    `json:"env"`
	WorkDir string `json:"workdir,omitempty"` // on the nodes; "" means the run directory
}

// Env is an environment in the user's order.
type Env = tree.Map[EnvValue]

// EnvValue is the value of an environment variable: text, or a reference to a
// secret that is read where the process starts. Exactly one field is set.
type EnvValue struct {
	Text       Arg
	SecretEnv  string // name of the variable that holds the secret
	SecretFile string // path of the file that holds it
}

// MarshalJSON writes text as a string and a reference as {"env": NAME} or
// {"file": PATH}.
func (e EnvValue) MarshalJSON() ([]byte, error) {
	switch {
	case e.SecretEnv != "":
		return json.Marshal(map[string]string{"env": e.SecretEnv})
	case e.SecretFile != "":
		return json.Marshal(map[string]string{"file": e.SecretFile})
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(string(e.Text))
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// UnmarshalJSON reads the form that MarshalJSON writes.
func (e *EnvValue) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		var ref struct{ Env, File string }
		if err := json.Unmarshal(data, &ref); err != nil {
			return err
		}
		*e = EnvValue{SecretEnv: ref.Env, SecretFile: ref.File}
		return nil
	}
	return json.Unmarshal(data, (*string)(&e.Text))
}

// Cluster is what the plan knows of the machines. Zero means not stated.
type Cluster struct {
	Nodes        int     `json:"nodes,omitempty"` // stated or derived
	GPUsPerNode  int     `json:"gpus_per_node,omitempty"`
	GPUMemoryGiB float64 `json:"gpu_memory_gib,omitempty"`
	CPUsPerNode  int     `json:"cpus_per_node,omitempty"`
	RunRoot      string  `json:"run_root,omitempty"`
	NodesNeeded  int     `json:"nodes_needed,omitempty"` // what the placement uses
}

// Artifact is a generated file that the launched command reads.
type Artifact struct {
	Name string `json:"name"` // file name, [A-Za-z0-9._-]+; argv refers to it as {file:NAME}
	Text string `json:"text"`
}

// Fact is a decision or circumstance that a reviewer wants to see: which
// engine release and why, which check was skipped, which default is Relax's.
type Fact struct {
	Path string `json:"path,omitempty"`
	Text string `json:"text"`
}

// Gateway is the serving front of a serve workload.
type Gateway struct {
	Host          string `json:"host"`
	Port          Arg    `json:"port"` // a number, or {port:gateway} when the user left it open
	FailurePolicy string `json:"failure_policy"`
	// Settings are the user's own gateway fields.
	Settings *tree.Value `json:"settings,omitempty"`
}

// Pos returns the place of a path, relative to the experiment, in the user's
// file. A path that the user did not write is placed at the nearest enclosing
// field that he did.
func (p *Plan) Pos(path string) diag.Pos {
	for {
		if pos, ok := p.Positions[path]; ok {
			return pos
		}
		if path == "" {
			return diag.Pos{}
		}
		path = parent(path)
	}
}

// parent drops the last step of a path, minding quoted names.
func parent(path string) string {
	quoted := false
	for i := len(path) - 1; i > 0; i-- {
		switch {
		case path[i] == '"' && path[i-1] != '\\':
			quoted = !quoted
		case !quoted && (path[i] == '.' || path[i] == '['):
			return path[:i]
		}
	}
	return ""
}

// FullPath returns path as the user's file has it.
func (p *Plan) FullPath(path string) string {
	switch {
	case p.Prefix == "":
		return path
	case path == "":
		return p.Prefix
	}
	return p.Prefix + "." + path
}

// JSON returns the plan as indented JSON with diagnostics, ending in a newline.
func (p *Plan) JSON() ([]byte, error) {
	type fields Plan // without the methods, so that this does not recurse
	out := struct {
		*fields
		Diagnostics []diag.JSON `json:"diagnostics"`
	}{(*fields)(p), p.Diagnostics.Sorted().JSON()}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(out)
	return b.Bytes(), err
}

// Frozen is the plan's JSON without diagnostics: what is kept, hashed and run.
func (p *Plan) Frozen() ([]byte, error) {
	bare := *p
	bare.Diagnostics = nil
	return bare.JSON()
}

// Hash identifies the plan: the SHA-256 of its JSON without diagnostics, in
// hex. Emitted files carry it, so that what runs can be traced to what was
// reviewed.
func (p *Plan) Hash() (string, error) {
	data, err := p.Frozen()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

// Checker is what a launcher exports of its target for `vet` and `plan`: rules
// that need no machine. Findings point into the user's file by way of
// [Plan.Finding].
type Checker interface {
	Target() Target
	Check(*Plan) diag.List
}

// Teller is a [Checker] that has facts to add to plans for its target: what the
// target makes of them. Tell returns what Check does, and the facts.
type Teller interface {
	Checker
	Tell(*Plan) (diag.List, []Fact)
}

// Finding builds a diagnostic at a path relative to the experiment.
func (p *Plan) Finding(code string, sev diag.Severity, path, summary, detail, remedy string) diag.Diagnostic {
	return diag.Diagnostic{Code: code, Severity: sev, Pos: p.Pos(path), Path: p.FullPath(path), Summary: summary, Detail: detail, Remedy: remedy}
}
