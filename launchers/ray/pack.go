package ray

import (
	"archive/zip"
	"bufio"
	"compress/flate"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// packMost is the longest package in bytes that the dashboard takes. Source:
// DASHBOARD_CLIENT_MAX_SIZE in ray/_private/ray_constants.py of 2.60.0.
const packMost = 100 << 20

// readMost is how much is read at most to see whether it can be packed within
// packMost.
const readMost = 20 * packMost

// entriesMost is how many files and folders are looked at: links can lead through
// a folder in more ways than anybody would wait for. Fewer in a test.
var entriesMost = 200_000

// errInterrupted is the error for a folder that was not packed because of a signal.
var errInterrupted = errors.New("interrupted while a folder was packed; nothing was sent")

// pack is a folder as one zip, which says the same of the same content: sorted
// names, one time for all, and of the modes no more than whether a file can be
// run.
type pack struct {
	file  *os.File // without a name
	name  string   // _ray_pkg_<hash of the bytes>.zip
	size  int64
	files int
	left  []string // what is not in it although no ignore file says so, with why
	looks []string // what looks like a secret
}

func (p *pack) close() { _ = p.file.Close() }

// cannot is why a folder cannot be packed.
type cannot struct{ summary, detail, remedy string }

func (e *cannot) Error() string { return e.summary + ": " + e.detail }

const ignoreRemedy = "leave out what the run does not need by a .rayignore or .gitignore in the folder, or put it on the nodes"

// newPack packs a folder. Names in the zip begin with under, which is empty or
// ends in a slash. What .gitignore and .rayignore files in the folder and below
// it say is left out, as git reads them, and what excludes says, as Ray does; so
// is every .git. Links are followed. Errors about the folder are [*cannot].
func newPack(ctx context.Context, dir, under string, excludes []string, most int64) (*pack, error) {
	st, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &cannot{"there is no folder " + dir, "It is looked for where genrm is run, and uploaded from there.", "name a folder of this machine; one of the nodes is named by relax.root or gym.root"}
	case err != nil:
		return nil, &cannot{"the folder cannot be read", err.Error(), ""}
	case !st.IsDir():
		return nil, &cannot{dir + " is no folder", "genrm packs folders.", "name the folder, or upload the file yourself and give its URI"}
	}
	w := &walker{ctx: ctx}
	if err := w.walk(dir, nil, patterns(excludes, nil), nil); err != nil {
		return nil, err
	}
	if len(w.bad) > 0 {
		return nil, &cannot{some(len(w.bad), "file") + " of the folder cannot be packed", list(w.bad), ignoreRemedy}
	}
	if !slices.ContainsFunc(w.entries, func(e entry) bool { return !e.dir }) {
		return nil, &cannot{"there is nothing in the folder to upload", "No file is in it, or all are left out by .gitignore, .rayignore and excludes.", "name a folder with files, or remove the field"}
	}
	if w.total > max(readMost, 20*most) {
		return nil, tooLarge("more than "+mib(most), most, w)
	}
	f, err := os.CreateTemp("", "genrm-upload-")
	if err != nil {
		return nil, err
	}
	err = os.Remove(f.Name()) // it is used by its descriptor alone
	p := &pack{file: f, left: w.left, looks: w.looks}
	if err == nil {
		err = p.write(w, under, most)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pack) write(w *walker, under string, most int64) error {
	hash := sha256.New()
	out := &limited{w: io.MultiWriter(p.file, hash), most: most}
	z := zip.NewWriter(out)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.DefaultCompression) })
	var bad []string
	for _, e := range w.entries {
		if w.ctx.Err() != nil {
			return errInterrupted
		}
		err := add(z, e, under)
		switch {
		case errors.Is(err, errLong):
			return tooLarge("more than "+mib(most), most, w)
		case err != nil && !e.dir:
			bad = append(bad, e.name+" ("+plain(err)+")")
		case err != nil:
			return err
		case !e.dir:
			p.files++
		}
	}
	switch err := z.Close(); {
	case len(bad) > 0:
		return &cannot{some(len(bad), "file") + " of the folder cannot be packed", list(bad), ignoreRemedy}
	case errors.Is(err, errLong):
		return tooLarge("more than "+mib(most), most, w)
	case err != nil:
		return err
	}
	p.size = out.n
	p.name = "_ray_pkg_" + hex.EncodeToString(hash.Sum(nil))[:32] + ".zip"
	return nil
}

// errChanged is the error for a file that was written to while it was read.
var errChanged = errors.New("changed while it was read")

// epoch is the time of everything in a package: the first that a zip can say.
var epoch = time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)

func add(z *zip.Writer, e entry, under string) error {
	h := &zip.FileHeader{Name: under + e.name, Modified: epoch, Method: zip.Deflate}
	if e.dir {
		h.Name, h.Method = h.Name+"/", zip.Store
		h.SetMode(fs.ModeDir | 0o755)
		_, err := z.CreateHeader(h)
		return err
	}
	f, err := os.Open(e.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	before, err := f.Stat()
	if err != nil {
		return err
	}
	h.SetMode(0o644)
	if before.Mode()&0o100 != 0 {
		h.SetMode(0o755)
	}
	out, err := z.CreateHeader(h)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, f)
	if err != nil {
		return err
	}
	after, err := os.Stat(e.path)
	if err != nil || n != before.Size() || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) || !os.SameFile(before, after) {
		return errChanged
	}
	return nil
}

// errLong is the error for a zip that is longer than it may be.
var errLong = errors.New("too long")

type limited struct {
	w       io.Writer
	n, most int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.n+int64(len(p)) > l.most {
		return 0, errLong
	}
	n, err := l.w.Write(p)
	l.n += int64(n)
	return n, err
}

// entry is what goes into a package.
type entry struct {
	name string // slash-separated
	path string
	dir  bool
	size int64
}

type walker struct {
	ctx         context.Context // that ends the looking
	entries     []entry
	total       int64
	left, looks []string
	bad         []string
}

// walk lists what is in a folder. rel are the names from the packed folder to
// it; above are the folders on the way, so that a link back ends.
func (w *walker) walk(dir string, rel []string, ps []ignoring, above []fs.FileInfo) error {
	if err := w.ctx.Err(); err != nil {
		return errInterrupted
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	name := strings.Join(rel, "/")
	if slices.ContainsFunc(above, func(a fs.FileInfo) bool { return os.SameFile(a, st) }) {
		w.left = append(w.left, name+" (a link to a folder above it)")
		return nil
	}
	entries, err := os.ReadDir(dir) // sorted
	if err != nil {
		w.bad = append(w.bad, cmpName(name)+" ("+plain(err)+")")
		return nil
	}
	if len(w.entries)+len(entries) > entriesMost {
		return &cannot{fmt.Sprintf("the folder has more than %d files and folders", entriesMost), "Links are followed. Not all of it was looked at.", ignoreRemedy}
	}
	if len(rel) > 0 {
		w.entries = append(w.entries, entry{name: name, path: dir, dir: true})
	}
	ps = slices.Clip(ps)
	for _, file := range []string{".gitignore", ".rayignore"} {
		lines, err := readLines(filepath.Join(dir, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			w.bad = append(w.bad, strings.Join(append(slices.Clone(rel), file), "/")+" ("+plain(err)+")")
		}
		ps = append(ps, patterns(lines, rel)...)
	}
	above = append(slices.Clip(above), st)
	for _, e := range entries {
		file, below := filepath.Join(dir, e.Name()), append(slices.Clone(rel), e.Name())
		name := strings.Join(below, "/")
		link := e.Type()&fs.ModeSymlink != 0
		if e.Name() == ".git" || ignored(ps, name, e.IsDir()) { // git takes a link for a file
			continue
		}
		st, err := os.Stat(file)
		switch {
		case err != nil && link:
			w.left = append(w.left, name+" (a link to nothing)")
			continue
		case err != nil:
			w.bad = append(w.bad, name+" ("+plain(err)+")")
			continue
		case !utf8.ValidString(e.Name()) || strings.Contains(e.Name(), `\`):
			w.bad = append(w.bad, fmt.Sprintf("%q (Ray cannot unpack such a name)", name))
			continue
		case secretFile.MatchString(e.Name()) && !exampleFile.MatchString(e.Name()):
			w.looks = append(w.looks, name)
		}
		switch {
		case st.IsDir():
			if err := w.walk(file, below, ps, above); err != nil {
				return err
			}
		case st.Mode().IsRegular():
			w.entries = append(w.entries, entry{name, file, false, st.Size()})
			w.total += st.Size()
		default:
			w.left = append(w.left, name+" (no regular file)")
		}
	}
	return nil
}

func cmpName(name string) string {
	if name == "" {
		return "the folder itself"
	}
	return name
}

func readLines(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	var lines []string
	in := bufio.NewScanner(f)
	for in.Scan() {
		lines = append(lines, in.Text()) // without a CR at the end
	}
	return lines, in.Err()
}

// ignoring is one pattern of an ignore file. Source: gitignore(5).
type ignoring struct {
	glob   string // from the root of the package; see doublestar.Match
	keep   bool   // what an earlier one leaves out
	folder bool   // folders alone
}

// patterns are those of an ignore file that lies in the folder rel.
func patterns(lines, rel []string) (out []ignoring) {
	for i, l := range lines {
		if i == 0 {
			l = strings.TrimPrefix(l, "\ufeff")
		}
		if l = blanks.ReplaceAllString(l, "$1"); strings.HasPrefix(l, "#") {
			continue
		}
		var p ignoring
		l, p.keep = strings.CutPrefix(l, "!")
		l, p.folder = strings.CutSuffix(l, "/")
		if l == "" {
			continue
		}
		anchored := strings.Contains(l, "/")
		l = strings.TrimPrefix(l, "/")
		if strings.HasSuffix(l, "/**") {
			l += "/*" // what is in a folder, not the folder
		}
		if !anchored {
			l = "**/" + l
		}
		l = braces.ReplaceAllString(l, `\$0`) // alternatives, which git has not
		p.glob = path.Join(append(escaped(rel), l)...)
		out = append(out, p)
	}
	return out
}

// escaped are names as patterns that mean them alone.
func escaped(names []string) (out []string) {
	for _, n := range names {
		out = append(out, special.ReplaceAllString(n, `\$0`))
	}
	return out
}

// ignored reports whether the last pattern that a name matches leaves it out. A
// pattern that is none matches nothing.
func ignored(ps []ignoring, name string, folder bool) bool {
	for _, p := range slices.Backward(ps) {
		if p.folder && !folder {
			continue
		}
		if ok, err := doublestar.Match(p.glob, name); ok && err == nil {
			return !p.keep
		}
	}
	return false
}

var (
	blanks      = regexp.MustCompile(`(^|[^\\ ]|\\.) +$`)
	braces      = regexp.MustCompile(`[{}]`)
	special     = regexp.MustCompile(`[][\\*?{}]`)
	secretFile  = regexp.MustCompile(`(?i)^(\.env(\..+)?|\.netrc|\.pypirc|\.npmrc|\.git-credentials|id_(rsa|dsa|ecdsa|ed25519)|.*\.(pem|key|p12|pfx|jks|kdbx)|\.?credentials(\.\w+)?|\.?secrets?(\.\w+)?|service[-_]?account.*\.json|kubeconfig|(auth_|api_)?tokens?(\.txt)?|\.aws|\.ssh|\.kube)$`)
	exampleFile = regexp.MustCompile(`(?i)(example|sample|template|\.dist|\.py)$`)
)

// plain is an error without the path.
func plain(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	if errors.Is(err, syscall.EACCES) {
		return "it may not be read"
	}
	return err.Error()
}

const mentioned = 5

// list names the first few.
func list(names []string) string {
	s := strings.Join(names[:min(len(names), mentioned)], ", ")
	if more := len(names) - mentioned; more > 0 {
		s += fmt.Sprintf(", and %d more", more)
	}
	return s + "."
}

func some(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func mib(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}

func tooLarge(size string, most int64, w *walker) error {
	return &cannot{"the folder is too large to be uploaded", fmt.Sprintf("Packed it has %s (%s before), and Ray takes %s. The biggest: %s", size, mib(w.total), mib(most), list(biggest(w.entries))), ignoreRemedy}
}

// biggest are the entries of a folder by size, the largest first. Of a folder
// most of which is one entry it is that entry.
func biggest(entries []entry) []string {
	sizes := map[string]int64{} // of files and folders
	for _, e := range entries {
		for name := e.name; name != "."; name = dirOf(name) {
			sizes[name] += e.size
		}
	}
	below := map[string][]string{}
	for name := range sizes {
		below[dirOf(name)] = append(below[dirOf(name)], name)
	}
	larger := func(a, b string) int {
		if sizes[a] != sizes[b] {
			return int(max(-1, min(1, sizes[b]-sizes[a])))
		}
		return strings.Compare(a, b)
	}
	top := below["."]
	for i, name := range top {
		for len(below[name]) > 0 {
			largest := slices.MinFunc(below[name], larger)
			if sizes[largest]*10 < sizes[name]*6 {
				break
			}
			name = largest
		}
		top[i] = name
	}
	slices.SortFunc(top, larger)
	var out []string
	for _, name := range top {
		if sizes[name]*100 < sizes[top[0]] { // it would change nothing
			break
		}
		out = append(out, name+" "+mib(sizes[name]))
	}
	return out
}

func dirOf(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		return name[:i]
	}
	return "."
}
