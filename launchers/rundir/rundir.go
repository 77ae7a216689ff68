// Package rundir owns the folder of a run: what is frozen in it, what its
// supervisor reports there, and how a run is found again.
//
// It may not start or stop anything, nor know a target. Every file of a run is
// written whole and moved into place, so that a reader never sees half of one.
package rundir

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/launchers/proc"
)

// Files of a run, below its folder.
const (
	infoFile      = "run.json"
	frozenFile    = "frozen.json"
	statusFile    = "status.json"
	eventsFile    = "events.jsonl"
	stopFile      = "stop.json"
	PlanFile      = "plan.json"
	GraphFile     = "graph.json"
	EndpointsFile = "endpoints.json"
	Logs          = "logs"
	Artifacts     = "artifacts"
)

// Info is run.json: what a run is, which never changes.
type Info struct {
	ID       string    `json:"run_id"`
	Name     string    `json:"name"`
	Workload string    `json:"workload"`
	Target   string    `json:"target"`
	Created  time.Time `json:"created"`
	PlanHash string    `json:"plan_hash"` // of the plan that was reviewed, SHA-256 in hex
	Version  string    `json:"genrm_version"`
	Host     string    `json:"host"` // where it was launched
	User     string    `json:"user"`
	WorkDir  string    `json:"workdir"` // where it was launched, for relative paths of its commands
	Binary   string    `json:"binary"`  // the genrm that its nodes run
	LogDir   string    `json:"log_dir,omitempty"`
}

// Run is an open run.
type Run struct {
	Dir string
	Info
}

// Root says where runs lie unless an experiment says it (cluster.run_root): what
// GENRM_RUNS says, else .genrm/runs beside the nearest cue.mod above the current
// folder, else in that.
func Root(env, cwd string) string {
	if env != "" {
		return env
	}
	for dir := cwd; dir != ""; dir = filepath.Dir(dir) {
		if st, err := os.Stat(filepath.Join(dir, "cue.mod")); err == nil && st.IsDir() {
			return filepath.Join(dir, ".genrm", "runs")
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return filepath.Join(cwd, ".genrm", "runs")
}

// UserName is that of whoever runs this, for people.
func UserName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// NewID makes the id of a run: <name>-<time>-<six hex digits>.
func NewID(name string, now time.Time) string {
	var b [3]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s-%s-%s", name, now.UTC().Format("20060102-150405"), hex.EncodeToString(b[:]))
}

// Files are those that every run of a plan is made of, for [Create]: the plan, its
// artifacts, and docs as JSON.
func Files(p *plan.Plan, docs map[string]any) (map[string][]byte, error) {
	text, err := p.Frozen()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{PlanFile: text}
	for name, v := range docs {
		if files[name], err = Text(v); err != nil {
			return nil, err
		}
	}
	for _, a := range p.Artifacts {
		files[Artifacts+"/"+a.Name] = []byte(a.Text)
	}
	return files, nil
}

// Create makes the folder of a run with files, which are frozen: their hashes
// are kept, and [Run.Verify] holds them against it. Names are slash-separated.
// After an error there is no folder.
func Create(root string, info Info, files map[string][]byte) (r *Run, err error) {
	if err := makeRoot(root); err != nil {
		return nil, err
	}
	stage, err := os.MkdirTemp(root, ".new-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(stage))
		}
	}()
	if err := os.Chmod(stage, 0o755); err != nil { // others may read a run; what is secret is not in it
		return nil, err
	}
	text, err := Text(info)
	if err != nil {
		return nil, err
	}
	all := map[string][]byte{infoFile: text}
	for name, data := range files {
		all[name] = data
	}
	sums := map[string]string{}
	for name, data := range all {
		if !filepath.IsLocal(filepath.FromSlash(name)) {
			return nil, fmt.Errorf("file name %q leaves the folder of the run", name)
		}
		path := filepath.Join(stage, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		sums[name] = hex.EncodeToString(sum[:])
	}
	if text, err = Text(map[string]any{"generated_by": "genrm", "files": sums}); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(stage, frozenFile), text, 0o644); err != nil {
		return nil, err
	}
	for _, sub := range []string{"nodes", Artifacts} {
		if err := os.MkdirAll(filepath.Join(stage, sub), 0o755); err != nil {
			return nil, err
		}
	}
	logs := filepath.Join(stage, Logs)
	if info.LogDir != "" {
		if err := os.MkdirAll(info.LogDir, 0o755); err != nil {
			return nil, err
		}
		if err := os.Symlink(info.LogDir, logs); err != nil {
			return nil, err
		}
	} else if err := os.Mkdir(logs, 0o755); err != nil {
		return nil, err
	}
	dir := filepath.Join(root, info.ID)
	if err := os.Rename(stage, dir); err != nil {
		return nil, err
	}
	return &Run{dir, info}, nil
}

// makeRoot makes the folder of runs, and keeps it out of version control.
func makeRoot(root string) error {
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	if above := filepath.Dir(root); filepath.Base(above) == ".genrm" {
		ignore := filepath.Join(above, ".gitignore")
		if _, err := os.Stat(ignore); errors.Is(err, fs.ErrNotExist) {
			return os.WriteFile(ignore, []byte("*\n"), 0o644)
		}
	}
	return nil
}

// Open reads the run in a folder.
func Open(dir string) (*Run, error) {
	data, err := os.ReadFile(filepath.Join(dir, infoFile))
	if err != nil {
		return nil, err
	}
	r := &Run{Dir: dir}
	if err := json.Unmarshal(data, &r.Info); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, infoFile), err)
	}
	return r, nil
}

// Verify reports frozen files that are not what they were when the run was made.
func (r *Run) Verify() error {
	data, err := os.ReadFile(r.path(frozenFile))
	if err != nil {
		return err
	}
	var frozen struct{ Files map[string]string }
	if err := json.Unmarshal(data, &frozen); err != nil {
		return fmt.Errorf("%s: %w", r.path(frozenFile), err)
	}
	var changed []string
	for name, want := range frozen.Files {
		data, err := os.ReadFile(r.path(name))
		sum := sha256.Sum256(data)
		if err != nil || hex.EncodeToString(sum[:]) != want {
			changed = append(changed, name)
		}
	}
	if slices.Sort(changed); len(changed) > 0 {
		return fmt.Errorf("changed since the run was made: %s; launch again", strings.Join(changed, ", "))
	}
	return nil
}

func (r *Run) path(name string) string { return filepath.Join(r.Dir, filepath.FromSlash(name)) }

// Path is the path of a file of the run; name is slash-separated.
func (r *Run) Path(name string) string { return r.path(name) }

// LogPath is the log of a process.
func (r *Run) LogPath(process string) string { return r.path(Logs + "/" + process + ".log") }

// Exists reports whether the run's folder is still there.
func (r *Run) Exists() bool {
	_, err := os.Stat(r.path(infoFile))
	return err == nil
}

// Read decodes a JSON file of the run.
func (r *Run) Read(name string, v any) error {
	data, err := os.ReadFile(r.path(name))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", r.path(name), err)
	}
	return nil
}

// Write puts a JSON file in place of the one that may be there. It does not make
// folders: a run whose folder was removed does not come back.
func (r *Run) Write(name string, v any) error {
	text, err := Text(v)
	if err != nil {
		return err
	}
	path := r.path(name)
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// Text is a JSON file as the run keeps it.
func Text(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(v)
	return b.Bytes(), err
}

// StopRequest is stop.json: somebody wants the run to end.
type StopRequest struct {
	Time time.Time `json:"time"`
	By   string    `json:"by"` // user@host
}

// RequestStop asks the supervisors of a run to end it, wherever they are.
func (r *Run) RequestStop(by string) error {
	return r.Write(stopFile, StopRequest{time.Now().UTC(), by})
}

// StopRequested returns the request to end the run, if there is one.
func (r *Run) StopRequested() (StopRequest, bool) {
	var s StopRequest
	err := r.Read(stopFile, &s)
	return s, err == nil
}

// List opens the runs below root, the newest last. Folders that are no runs are
// passed over.
func List(root string) ([]*Run, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*Run
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if r, err := Open(filepath.Join(root, e.Name())); err == nil {
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b *Run) int { return a.Created.Compare(b.Created) })
	return out, nil
}

// NotFound is the error for a run that there is not, or not one of.
type NotFound struct {
	Root, Ref string
	Several   []string // ids that begin with Ref
	Near      string   // "did you mean …", or ""
}

func (e *NotFound) Error() string {
	switch {
	case len(e.Several) > 0:
		return fmt.Sprintf("%s is the beginning of %d runs: %s", e.Ref, len(e.Several), strings.Join(e.Several, ", "))
	case e.Ref == Last:
		return "no run in " + e.Root
	}
	s := fmt.Sprintf("no run %s in %s", e.Ref, e.Root)
	if e.Near != "" {
		s += "; " + e.Near
	}
	return s
}

// Last refers to the newest run.
const Last = "@last"

// Find opens a run by its id, a prefix that is unique, or [Last].
func Find(root, ref string) (*Run, error) {
	all, err := List(root)
	if err != nil {
		return nil, err
	}
	missing := &NotFound{Root: root, Ref: ref}
	if ref == Last {
		if len(all) == 0 {
			return nil, missing
		}
		return all[len(all)-1], nil
	}
	var found []*Run
	var ids []string
	for _, r := range all {
		if r.ID == ref {
			return r, nil
		}
		if strings.HasPrefix(r.ID, ref) && ref != "" {
			found = append(found, r)
			missing.Several = append(missing.Several, r.ID)
		}
		ids = append(ids, r.ID)
	}
	if len(found) == 1 {
		return found[0], nil
	}
	missing.Near = diag.DidYouMean(ref, ids)
	return nil, missing
}

// Link makes a run that lies elsewhere findable in root, too.
func (r *Run) Link(root string) error {
	if filepath.Dir(r.Dir) == root {
		return nil
	}
	if err := makeRoot(root); err != nil {
		return err
	}
	return os.Symlink(r.Dir, filepath.Join(root, r.ID))
}

// Remove deletes an ended run. Where it was found by a link, that goes, too.
func (r *Run) Remove() error {
	var err error
	if r.LogDir != "" {
		err = os.RemoveAll(r.LogDir)
	}
	if real, e := filepath.EvalSymlinks(r.Dir); e == nil && real != r.Dir {
		err = errors.Join(err, os.RemoveAll(real))
	}
	return errors.Join(err, os.RemoveAll(r.Dir))
}

// KeepBinary puts a copy of a program beside the runs, once by its hash, so that
// a run goes on with what it was launched with. It returns the copy's path.
func KeepBinary(root, path string) (string, error) {
	src, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = src.Close() }() // only read
	h := sha256.New()
	if _, err := io.Copy(h, src); err != nil {
		return "", err
	}
	dir := filepath.Join(root, ".bin", hex.EncodeToString(h.Sum(nil))[:16])
	to := filepath.Join(dir, "genrm")
	if _, err := os.Stat(to); err == nil {
		return to, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.CreateTemp(dir, ".tmp-")
	if err != nil {
		return "", err
	}
	_, err = src.Seek(0, io.SeekStart)
	if err == nil {
		_, err = io.Copy(tmp, src)
	}
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), to)
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(tmp.Name()))
	}
	return to, nil
}

// PruneBinaries removes kept programs that none of the runs needs.
func PruneBinaries(root string, runs []*Run) error {
	entries, err := os.ReadDir(filepath.Join(root, ".bin"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		// By its hash alone: the same folder may be called by another path.
		if !slices.ContainsFunc(runs, func(r *Run) bool { return filepath.Base(filepath.Dir(r.Binary)) == e.Name() }) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(root, ".bin", e.Name())))
		}
	}
	return err
}

// Supervisor is who watches a run's node.
type Supervisor struct {
	proc.ID
	Host string `json:"host"`
	Boot string `json:"boot_id,omitempty"`
}

// Here reports whether the supervisor is, or was, of this boot of this machine.
func (s Supervisor) Here() bool {
	host, _ := os.Hostname()
	return s.Host == host && s.Boot == proc.BootID()
}
