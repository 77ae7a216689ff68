// Package image reads references of container images as registries name them.
//
// It may not know engines, targets or rules, and asks no registry.
package image

import (
	"regexp"
	"strings"
)

var floating = regexp.MustCompile(`^(latest|nightly|main|master|dev|edge|stable|.*-latest|latest-.*|nightly-.*)$`)

// Floating says in what way a reference may be another image tomorrow ("has no
// tag, which means latest"), or returns "" for a release's tag, a digest or a
// file.
func Floating(ref string) string {
	if strings.HasPrefix(ref, "/") || strings.HasSuffix(ref, ".sqsh") || strings.Contains(ref, "@sha256:") {
		return ""
	}
	switch tag := Tag(ref); {
	case tag == "":
		return "has no tag, which means latest"
	case floating.MatchString(tag):
		return "has the floating tag " + tag
	}
	return ""
}

// Tag returns the tag of a reference, or "".
func Tag(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[i+1:]
	}
	return ""
}

var ray = regexp.MustCompile(`(?:^|/)ray[a-z-]*:v?([0-9]+\.[0-9]+\.[0-9]+)(?:[^0-9.].*)?$`)

// Ray returns the release of Ray that the tag of a Ray image names ("2.60.0" of
// rayproject/ray-llm:2.60.0-py311-gpu), or "" for another image and for a tag
// that names none, or a build between releases.
func Ray(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if m := ray.FindStringSubmatch(ref); m != nil {
		return m[1]
	}
	return ""
}
