package emit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Manifest is the file that lists what genrm wrote into a folder, with hashes:
// by it a later run knows which files are its own and untouched.
const Manifest = ".genrm-manifest.json"

type manifest struct {
	GeneratedBy string            `json:"generated_by"`
	Files       map[string]string `json:"files"` // name → SHA-256, hex
}

// Foreign is the error for files that genrm did not write, or that were edited
// since.
type Foreign struct {
	Dir   string
	Files []string // slash-separated, below Dir
}

func (e *Foreign) Error() string {
	return fmt.Sprintf("%s: not written by genrm, or edited since: %s", e.Dir, strings.Join(e.Files, ", "))
}

// Write puts the files into dir, which it makes if need be, and removes files
// that an earlier Write left there and that are not among the new ones.
//
// Nothing is overwritten or removed that genrm did not write or that was edited
// since, unless force is set: then a [Foreign] error comes back and dir is as it
// was. Every file is first written aside and then moved into place, the manifest
// last, so that no reader ever sees half a file; after an error or a signal
// before the first move dir is as it was.
func Write(dir string, files []File, force bool) (err error) {
	old, err := readManifest(dir)
	if err != nil {
		return err
	}
	var foreign []string
	for _, f := range files {
		if !filepath.IsLocal(filepath.FromSlash(f.Name)) {
			return fmt.Errorf("file name %q leaves the folder", f.Name)
		}
		have, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(f.Name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return err
		case !bytes.Equal(have, f.Text) && old.Files[f.Name] != sum(have):
			foreign = append(foreign, f.Name)
		}
	}
	if len(foreign) > 0 && !force {
		return &Foreign{dir, foreign}
	}
	fresh := manifest{GeneratedBy: "genrm", Files: map[string]string{}}
	for _, f := range files {
		fresh.Files[f.Name] = sum(f.Text)
	}
	list, err := indented(fresh) // encoding/json sorts the names
	if err != nil {
		return err
	}
	made, err := mkdirAll(dir)
	if err != nil {
		return err
	}
	stage, err := os.MkdirTemp(dir, ".genrm-stage-")
	if err != nil {
		return err
	}
	moved := false
	defer func() {
		err = errors.Join(err, os.RemoveAll(stage))
		if err != nil && !moved && made != "" {
			err = errors.Join(err, os.RemoveAll(made))
		}
	}()
	all := append(slices.Clone(files), File{Name: Manifest, Text: list})
	for i, f := range all {
		mode := fs.FileMode(0o644)
		if f.Exec {
			mode = 0o755
		}
		if err := os.WriteFile(filepath.Join(stage, fmt.Sprint(i)), f.Text, mode); err != nil {
			return err
		}
	}
	for i, f := range all {
		to := filepath.Join(dir, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(stage, fmt.Sprint(i)), to); err != nil {
			return err
		}
		moved = true
	}
	for name, hash := range old.Files {
		if _, kept := fresh.Files[name]; kept || !filepath.IsLocal(filepath.FromSlash(name)) {
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(name))
		if have, err := os.ReadFile(path); err == nil && sum(have) == hash {
			if err := os.Remove(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// mkdirAll makes dir and returns the topmost folder that it had to make, or "".
func mkdirAll(dir string) (made string, err error) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		made = d
	}
	return made, os.MkdirAll(dir, 0o755)
}

func readManifest(dir string) (manifest, error) {
	var m manifest
	data, err := os.ReadFile(filepath.Join(dir, Manifest))
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return m, fmt.Errorf("%s: %w", filepath.Join(dir, Manifest), err)
	}
	return m, nil
}

func sum(data []byte) string {
	h := sha256.Sum256(data)
	return hex.EncodeToString(h[:])
}
