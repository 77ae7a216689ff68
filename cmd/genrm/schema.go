package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"genrm.dev/genrm/schema"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/mod/modfile"
)

type schemaCmd struct {
	Vendor bool     `help:"Write the schema where editors and stock cue find it."`
	Dirs   []string `arg:"" optional:"" name:"dir" help:"With --vendor: folders of experiment packages, or DIR/... for every one below. Default: the current folder."`
}

func (schemaCmd) Help() string {
	return `Without --vendor: prints the schema's CUE files. Doc comments say what each field means.

With --vendor: finds the nearest cue.mod above each folder, or makes one there; writes the schema to cue.mod/pkg/` + schema.ImportPath + `; writes ` + schemaLink + ` into each experiment package, which applies the schema to it. Editors then complete and check, and so does the stock command: cue vet -c. genrm itself does not need these files and ignores ` + schemaLink + `. A file of yours is never overwritten.

Examples:

  genrm schema | less
  genrm schema --vendor ./...
  cue vet -c ./experiments/dual`
}

// schemaLink is the file that applies the vendored schema to a package.
const schemaLink = "genrm_gen.cue"

// schemaMark stands in every file that --vendor writes: by it such a file is
// told from the user's.
const schemaMark = "Written by genrm schema --vendor."

func (c *schemaCmd) Run(a *app) error {
	if !c.Vendor {
		if len(c.Dirs) > 0 {
			return usagef("folders need --vendor")
		}
		return printSchema(a)
	}
	dirs, err := experimentDirs(c.Dirs)
	if err != nil {
		return err
	}
	files := map[string][]byte{}
	var order []string
	add := func(path string, text []byte) {
		if _, ok := files[path]; !ok {
			order = append(order, path)
		}
		files[path] = text
	}
	for _, d := range dirs {
		mod, err := moduleRoot(d.path, d.root)
		if err != nil {
			return err
		}
		if have, err := os.ReadFile(filepath.Join(mod, "cue.mod", "module.cue")); err == nil {
			if err := knowsExplicitOpen(have, filepath.Join(mod, "cue.mod", "module.cue")); err != nil {
				return err
			}
		} else if errors.Is(err, fs.ErrNotExist) {
			add(filepath.Join(mod, "cue.mod", "module.cue"), []byte("// "+schemaMark+" Rename the module as you like.\nmodule: \"experiments.example\"\nlanguage: version: \"v0.17.1\"\n"))
		}
		vendored, err := vendoredFiles()
		if err != nil {
			return err
		}
		for _, f := range vendored {
			add(filepath.Join(mod, "cue.mod", "pkg", filepath.FromSlash(schema.ImportPath), f.name), f.text)
		}
		add(filepath.Join(d.path, schemaLink), []byte("@experiment(explicitopen)\n\n// "+schemaMark+"\n\npackage "+d.pkg+"\n\nimport \""+schema.ImportPath+"\"\n\nschema.#Package\n"))
	}
	var foreign []string
	for _, path := range order {
		have, err := os.ReadFile(path)
		if err == nil && !bytes.Contains(have, []byte(schemaMark)) && !bytes.Equal(have, files[path]) {
			foreign = append(foreign, path)
		}
	}
	if len(foreign) > 0 {
		return fmt.Errorf("not written by genrm, so nothing was written: %s\nMove it away, and run this again", strings.Join(foreign, ", "))
	}
	for _, path := range order {
		if err := a.ctx.Err(); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			if err := os.WriteFile(path, files[path], 0o644); err != nil {
				return err
			}
		} else if err := replace(path, files[path]); err != nil {
			return err
		}
		if filepath.Base(path) == schemaLink {
			fmt.Fprintln(a.stdout, path)
		}
	}
	return nil
}

// knowsExplicitOpen refuses a module whose language is older than v0.15.0, the
// first that knows @experiment(explicitopen): stock cue would refuse every file
// of ours there. A module file that does not parse is left to stock cue.
func knowsExplicitOpen(text []byte, path string) error {
	mod, err := modfile.ParseNonStrict(text, path)
	if err != nil || mod.Language == nil || mod.Language.Version == "" {
		return nil
	}
	var minor int
	if n, _ := fmt.Sscanf(mod.Language.Version, "v0.%d.", &minor); n == 1 && minor < 15 {
		return fmt.Errorf("%s: the module's language is CUE %s, and the schema needs v0.15.0 or newer, so nothing was written\nSet language: version: \"v0.15.0\" in it, and run this again", path, mod.Language.Version)
	}
	return nil
}

func printSchema(a *app) error {
	vendored, err := vendoredFiles()
	if err != nil {
		return err
	}
	for _, f := range vendored {
		if strings.HasPrefix(f.name, "flags_") {
			continue // thousands of lines; `genrm catalogue show` prints them
		}
		if _, err := fmt.Fprintf(a.stdout, "// %s\n\n%s\n", f.name, bytes.TrimPrefix(f.text, []byte("// "+schemaMark+"\n\n"))); err != nil {
			return err
		}
	}
	return nil
}

// experimentDir is the folder of a package; root is the argument that led to it.
type experimentDir struct{ path, pkg, root string }

// experimentDirs returns the folders that hold an experiment package. A folder
// that is named must be one; below DIR/... the others are passed over.
func experimentDirs(args []string) ([]experimentDir, error) {
	if len(args) == 0 {
		args = []string{"."}
	}
	var out []experimentDir
	for _, arg := range args {
		root, deep := strings.CutSuffix(filepath.ToSlash(arg), "/...")
		if !isDir(root) {
			return nil, fmt.Errorf("%s: not a folder", arg)
		}
		files, err := cueFiles([]string{arg})
		if err != nil {
			return nil, err
		}
		n := len(out)
		for _, f := range files {
			if filepath.Base(f) == schemaLink {
				continue
			}
			file, err := parser.ParseFile(f, nil)
			if err != nil {
				return nil, err
			}
			d := experimentDir{filepath.Dir(f), file.PackageName(), root}
			if d.pkg == "" || slices.Contains(out, d) || deep && !hasWorkload(file) {
				continue
			}
			out = append(out, d)
		}
		if len(out) == n && !deep {
			return nil, fmt.Errorf("%s: no .cue file with a package clause, which stock CUE needs", arg)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no experiment package below %s", strings.Join(args, ", "))
	}
	return out, nil
}

// hasWorkload reports whether a file has a field at its top that only
// experiments have.
func hasWorkload(f *ast.File) bool {
	for _, d := range f.Decls {
		if field, ok := d.(*ast.Field); ok {
			name, _, err := ast.LabelName(field.Label)
			if err == nil && slices.Contains([]string{"relax", "gym", "serve", "experiments"}, name) {
				return true
			}
		}
	}
	return false
}

// moduleRoot returns the nearest folder, from dir upwards, that holds cue.mod;
// otherwise where to make it.
func moduleRoot(dir, otherwise string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	up := dir
	for d := abs; ; d = filepath.Dir(d) {
		if isDir(filepath.Join(d, "cue.mod")) {
			return up, nil
		}
		if d == filepath.Dir(d) {
			return otherwise, nil
		}
		up = filepath.Join(up, "..")
	}
}
