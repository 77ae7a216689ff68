package emit

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

const nasty = "'a' \"b\" `touch HACKED` $HOME; touch HACKED && {{x}} {port:http} \\ \n é"

func env(kv ...string) plan.Env {
	var e plan.Env
	for i := 0; i < len(kv); i += 2 {
		e.Set(kv[i], plan.EnvValue{Text: plan.Lit(kv[i+1])})
	}
	return e
}

// sample is a serve plan with everything that a script can hold. The launched
// program is printf, so that a test sees the words that it was given.
func sample(t *testing.T, secretFile string) *plan.Plan {
	p := &plan.Plan{Name: "x", Workload: plan.Serve, Mode: plan.NoGenRM}
	p.Launch = plan.Launch{
		Argv: []plan.Arg{"printf", "%s\\0", plan.Lit(nasty), "--port=" + plan.Port("http"), "--config", plan.File("gateway.json"),
			"--key={secret:env:TOKEN}", plan.Arg("--both=" + string(plan.Lit("{rank}")) + string(plan.Rank()))},
		Env: env("NASTY", nasty, "TOKEN", "replaced"),
	}
	p.Launch.Env.Set("FROM_FILE", plan.EnvValue{SecretFile: secretFile})
	p.Launch.Env.Set("FROM_ENV", plan.EnvValue{SecretEnv: "TOKEN"})
	p.Artifacts = []plan.Artifact{{Name: "gateway.json", Text: "{}\n"}, {Name: "gym.yaml", Text: "a: 1\n"}}
	p.Instances = tree.Map[*plan.Instance]{{Key: "quality", Value: &plan.Instance{
		Engine: "vllm", Argv: [][]plan.Arg{{"vllm", "serve", "--port=" + plan.Port("http")}, {"vllm", "serve"}},
		Placement: []plan.Placement{{Replica: 0, Node: 0, GPUs: []int{0, 1}}, {Replica: 1, Node: -1, GPUs: []int{2}}},
	}}}
	return p
}

func write(t *testing.T, p *plan.Plan) string {
	t.Helper()
	files, err := Files(p)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "out dir")
	if err := Write(dir, files, false); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestScriptRuns(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "it's a secret")
	if err := os.WriteFile(secret, []byte("s3cr$t `x`\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := write(t, sample(t, secret))
	script := filepath.Join(dir, "launch.sh")
	if out, err := exec.Command("bash", "-n", script).CombinedOutput(); err != nil {
		t.Fatalf("bash -n: %v: %s", err, out)
	}
	run := func(argv []string, vars ...string) (string, error) {
		cmd := exec.Command("bash", argv...)
		cmd.Dir = t.TempDir()
		cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, vars...)
		out, err := cmd.CombinedOutput()
		if _, statErr := os.Stat(filepath.Join(cmd.Dir, "HACKED")); statErr == nil {
			t.Error("text of the user was run")
		}
		return string(out), err
	}
	vars := []string{"TOKEN=tok'en", "GENRM_PORT_HTTP=81", "GENRM_RANK=3"}
	out, err := run([]string{script}, vars...)
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := []string{nasty, "--port=81", "--config", dir + "/gateway.json", "--key=tok'en", "--both={rank}3", ""}
	if got := strings.Split(out, "\x00"); !slices.Equal(got, want) {
		t.Errorf("argv:\n%q\nwant:\n%q", got, want)
	}
	// The same script with env for the program.
	text, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(text), "\nexec ")
	for name, want := range map[string]string{"NASTY": nasty, "FROM_FILE": "s3cr$t `x`", "FROM_ENV": "tok'en", "TOKEN": "replaced"} {
		if got, err := run([]string{"-c", head + "\nprintenv " + name}, vars...); err != nil || got != want+"\n" {
			t.Errorf("%s = %q, %v, want %q", name, got, err, want)
		}
	}
	for _, missing := range vars {
		rest := slices.DeleteFunc(slices.Clone(vars), func(s string) bool { return s == missing })
		name, _, _ := strings.Cut(missing, "=")
		if out, err := run([]string{script}, rest...); err == nil || !strings.Contains(out, name) {
			t.Errorf("without %s: %v, %q", name, err, out)
		}
	}
	if err := os.Remove(secret); err != nil {
		t.Fatal(err)
	}
	if out, err := run([]string{script}, vars...); err == nil || strings.Contains(out, "--port=81") {
		t.Errorf("without the secret's file it went on: %v, %q", err, out)
	}
}

func TestFiles(t *testing.T) {
	p := sample(t, "/s")
	files, err := Files(p)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	byName := map[string]string{}
	for _, f := range files {
		names = append(names, f.Name)
		byName[f.Name] = string(f.Text)
	}
	want := []string{"engine-quality-0-0.sh", "engine-quality-1-0.sh", "gateway.json", "gym.yaml", "launch.json", "launch.sh", "plan.json", "processes.json"}
	if !slices.Equal(names, want) {
		t.Errorf("files %q, want %q", names, want)
	}
	hash, err := p.Hash()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"launch.sh", "gym.yaml", "launch.json", "processes.json", "engine-quality-0-0.sh"} {
		if !strings.Contains(byName[name], hash) {
			t.Errorf("%s does not hold the plan's hash", name)
		}
	}
	if !strings.Contains(byName["engine-quality-0-0.sh"], "CUDA_VISIBLE_DEVICES=0,1\n") || strings.Contains(byName["engine-quality-1-0.sh"], "CUDA_VISIBLE") {
		t.Error("GPUs are set for exactly the processes whose node is known")
	}
	var launch struct{ Placeholders []string }
	if err := json.Unmarshal([]byte(byName["launch.json"]), &launch); err != nil {
		t.Fatal(err)
	}
	if want := []string{"{port:http}", "{file:gateway.json}", "{secret:env:TOKEN}", "{rank}"}; !slices.Equal(launch.Placeholders, want) {
		t.Errorf("placeholders %q, want %q", launch.Placeholders, want)
	}
}

func TestFilesRefuses(t *testing.T) {
	for name, change := range map[string]func(*plan.Plan){
		"NUL in the command":     func(p *plan.Plan) { p.Launch.Argv[2] = "a\x00b" },
		"NUL in the environment": func(p *plan.Plan) { p.Launch.Env = env("A", "\x00") },
		"name of a variable":     func(p *plan.Plan) { p.Launch.Env = env("A B", "x") },
		"artifact's name taken":  func(p *plan.Plan) { p.Artifacts[0].Name = "plan.json" },
	} {
		p := sample(t, "/s")
		change(p)
		if _, err := Files(p); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	a, b := File{Name: "a", Text: []byte("1")}, File{Name: "sub/b.sh", Text: []byte("2"), Exec: true}
	if err := Write(dir, []File{a, b}, false); err != nil {
		t.Fatal(err)
	}
	if got := list(t, dir); !slices.Equal(got, []string{Manifest, "a", "sub"}) {
		t.Errorf("left behind: %q", got)
	}
	if st, err := os.Stat(filepath.Join(dir, "sub", "b.sh")); err != nil || st.Mode().Perm()&0o100 == 0 {
		t.Errorf("b.sh: %v %v", st, err)
	}
	// An untouched file is replaced, one that is no longer made is removed.
	a.Text = []byte("3")
	if err := Write(dir, []File{a}, false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "sub", "b.sh")); err == nil {
		t.Error("a file that is no longer made still lies there")
	}
	// An edited file and one of the user's own are kept, and nothing is written.
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("edited"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "own"), []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := list(t, dir)
	err := Write(dir, []File{{Name: "a", Text: []byte("4")}, {Name: "own", Text: []byte("4")}, {Name: "new", Text: []byte("4")}}, false)
	var foreign *Foreign
	if !errors.As(err, &foreign) || !slices.Equal(foreign.Files, []string{"a", "own"}) {
		t.Errorf("error %v", err)
	}
	if got := list(t, dir); !slices.Equal(got, before) {
		t.Errorf("folder changed from %q to %q", before, got)
	}
	if err := Write(dir, []File{{Name: "a", Text: []byte("4")}}, true); err != nil {
		t.Errorf("with force: %v", err)
	}
	for _, name := range []string{"../x", "/x", ""} {
		if err := Write(dir, []File{{Name: name}}, true); err == nil {
			t.Errorf("file name %q was accepted", name)
		}
	}
}

func TestWriteLeavesNothing(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a", "b")
	// "x" is a file, so "x/y" cannot be made below it: but nothing is moved before.
	if err := Write(dir, []File{{Name: "x/y/../../../z"}}, false); err == nil {
		t.Error("accepted")
	}
	if got := list(t, root); len(got) != 0 {
		t.Errorf("left %q", got)
	}
}
