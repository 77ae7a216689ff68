package ray

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"genrm.dev/genrm/compiler/diag"
	"genrm.dev/genrm/compiler/plan"
	"genrm.dev/genrm/compiler/tree"
)

// Upload is a local folder that the job finds in its cluster.
type Upload struct {
	Field string `json:"field"` // that names it, such as ray.working_dir
	Dir   string `json:"dir"`
	URI   string `json:"uri"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"` // of the package
	There bool   `json:"there"` // the cluster had it already
}

// Size is for people: "3 files, 1.2 KiB".
func (u Upload) Size() string { return some(u.Files, "file") + ", " + mib(u.Bytes) }

// upload is one that is to be made.
type upload struct {
	Upload
	pack *pack
	key  string // of what is packed
	set  func(runtimeEnv map[string]any, uri string)
}

// local reports whether a value names a folder of this machine.
func local(v *tree.Value) bool {
	t, ok := v.AsString()
	return ok && t != "" && !strings.Contains(t, "://")
}

// uploads packs the local folders of the plan, and reports what stands against
// it. Relative paths are below workDir. What others have packed is not packed
// again. The packs are to be closed.
func uploads(ctx context.Context, p *plan.Plan, workDir string, others []*Prepared) (out []*upload, l diag.List, err error) {
	s, _ := p.Settings.Get("ray")
	env := s.Field("runtime_env")
	var excludes []string
	if e := env.Field("excludes"); e.OK() {
		for _, i := range e.Items {
			if t, ok := i.AsString(); ok {
				excludes = append(excludes, t)
			}
		}
	}
	one := func(field string, v *tree.Value, whole bool, set func(map[string]any, string)) error {
		dir, _ := v.AsString()
		if dir == "" {
			l.Add(p.Finding("GRM8325", diag.Error, field, "an empty path names no folder", "", `write "." for the folder in which genrm is run, or remove the field`))
			return nil
		}
		if field == "ray.working_dir" && strings.Contains(dir, "://") {
			l.Add(p.Finding("GRM8325", diag.Error, field, "ray.working_dir is a URI, and names a folder of this machine", "What lies elsewhere is fetched by the nodes, not uploaded.", fmt.Sprintf("write ray: runtime_env: working_dir: %q", dir)))
			return nil
		}
		path := dir
		if !filepath.IsAbs(path) {
			path = filepath.Join(workDir, path)
		}
		under := ""
		if whole { // a module is a folder in one that Python looks into
			under = filepath.Base(path) + "/"
		}
		key := fmt.Sprintf("%q", append([]string{path, under}, excludes...))
		for _, o := range others {
			for _, u := range o.folders {
				if u.key == key {
					out = append(out, &upload{u.Upload, u.pack, key, set})
					return nil
				}
			}
		}
		k, err := newPack(ctx, path, under, excludes, packMost)
		var no *cannot
		switch {
		case errors.As(err, &no):
			l.Add(p.Finding("GRM8325", diag.Error, field, no.summary, no.detail, no.remedy))
			return nil
		case err != nil:
			return err
		}
		if len(k.looks) > 0 {
			l.Add(p.Finding("GRM8326", diag.Warning, field, some(len(k.looks), "file")+" of the folder may hold secrets",
				list(k.looks)+" Whoever can reach the cluster can read the package.", "name them in a .rayignore, and give secrets to the nodes"))
		}
		if len(k.left) > 0 {
			l.Add(p.Finding("GRM8328", diag.Note, field, "not all of the folder is uploaded", list(k.left), ""))
		}
		out = append(out, &upload{Upload{field, path, "gcs://" + k.name, k.files, k.size, false}, k, key, set})
		return nil
	}
	asWorkingDir := func(e map[string]any, uri string) { e["working_dir"] = uri }
	if v := s.Field("working_dir"); v.OK() {
		err = one("ray.working_dir", v, false, asWorkingDir)
	} else if v := env.Field("working_dir"); local(v) {
		err = one("ray.runtime_env.working_dir", v, false, asWorkingDir)
	}
	if m := env.Field("py_modules"); err == nil && m.OK() {
		for i, v := range m.Items {
			if err == nil && local(v) {
				err = one("ray.runtime_env.py_modules["+strconv.Itoa(i)+"]", v, true, func(e map[string]any, uri string) {
					if all, ok := e["py_modules"].([]any); ok && i < len(all) {
						all[i] = uri
					}
				})
			}
		}
	}
	return out, l, err
}

// folders reports local folders of a serve workload, which are not uploaded.
func folders(p *plan.Plan, s *tree.Value) (l diag.List) {
	refuse := func(field string) {
		l.Add(p.Finding("GRM8325", diag.Error, field, "a local folder is not uploaded for a serve workload",
			"An application outlives the packages that nobody asks for, and its replicas are started anew later.", "upload it yourself and give its URI, such as s3://bucket/code.zip, or put it into the nodes' image"))
	}
	env := s.Field("runtime_env")
	if local(env.Field("working_dir")) {
		refuse("ray.runtime_env.working_dir")
	}
	if m := env.Field("py_modules"); m.OK() && slices.ContainsFunc(m.Items, local) {
		refuse("ray.runtime_env.py_modules")
	}
	return l
}

// mostStall is how long what is sent, a package or a log, may make no progress.
const mostStall = time.Minute

// send puts a package into the cluster unless it is there. Asking for it keeps
// it for ten minutes, in which the job has to begin; a package that nobody asked
// for may be gone at once. progress may be nil.
func (c *client) send(ctx context.Context, u *upload, progress func(u Upload, sent int64)) error {
	path := "/api/packages/gcs/" + u.pack.name
	sent := false
	for i := 0; ; i++ {
		err := c.do(ctx, http.MethodGet, path, nil, nil)
		var no *answered
		if missing := errors.As(err, &no) && no.status == http.StatusNotFound; !missing {
			if err == nil {
				u.There = !sent
				return nil
			}
		} else if i > len(retries) {
			return &Unreachable{fmt.Errorf("the Ray dashboard at %s takes a package and has it not", c.base)}
		} else {
			sent = true
			err = c.put(ctx, path, u, progress)
		}
		var gone *Unreachable
		switch {
		case err == nil: // ask for it
			continue
		case !errors.As(err, &gone) || i >= len(retries):
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retries[i]):
		}
	}
}

func (c *client) put(ctx context.Context, path string, u *upload, progress func(u Upload, sent int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(mostStall, func() {
		cancel(fmt.Errorf("it took nothing of the package for %s", mostStall))
	})
	defer timer.Stop()
	body := &counting{r: io.NewSectionReader(u.pack.file, 0, u.pack.size), told: func(n int64) {
		timer.Reset(mostStall)
		if progress != nil {
			progress(u.Upload, n)
		}
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+path, body)
	if err != nil {
		return err
	}
	req.ContentLength = u.pack.size
	req.Header = c.headers.Clone()
	req.Header.Set("Content-Type", "application/octet-stream")
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return c.gone(ctx, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(resp.Body, answerMost))
	if err != nil {
		return c.gone(ctx, err)
	}
	if resp.StatusCode == http.StatusRequestEntityTooLarge {
		return &answered{resp.StatusCode, fmt.Sprintf("the package of %s is too large for it, or for a proxy before it", mib(u.pack.size))}
	}
	return c.judge(resp, data, nil)
}

// counting tells how much was read.
type counting struct {
	r    io.Reader
	n    int64
	told func(n int64)
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if n > 0 {
		c.n += int64(n)
		c.told(c.n)
	}
	return n, err
}
