package diag

import (
	"encoding/json"
	"io"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
)

// SARIFOptions names the tool of a SARIF log.
type SARIFOptions struct {
	Version string // of genrm
	// Rule returns title and text of a code for the log's list of rules; nil, or
	// false, lists the code alone.
	Rule func(code string) (title, text string, ok bool)
}

// The parts of SARIF 2.1.0 that genrm writes, by the names of the standard.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool struct {
			Driver sarifDriver `json:"driver"`
		} `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifDriver struct {
		Name    string      `json:"name"`
		Version string      `json:"version,omitempty"`
		Rules   []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID    string     `json:"id"`
		Short *sarifText `json:"shortDescription,omitempty"`
		Help  *sarifText `json:"help,omitempty"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     Severity        `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations,omitempty"`
		Related   []sarifLocation `json:"relatedLocations,omitempty"`
	}
	sarifLocation struct {
		Physical *sarifPhysical `json:"physicalLocation,omitempty"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
		Message  *sarifText     `json:"message,omitempty"`
	}
	sarifPhysical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn,omitempty"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
	}
)

// SARIF prints the list as a SARIF 2.1.0 log with one run. Columns count code
// points, as everywhere in genrm.
func (l List) SARIF(w io.Writer, opts SARIFOptions) error {
	log := sarifLog{
		Schema:  "https://json.schemastore.org/sarif-2.1.0.json",
		Version: "2.1.0",
		Runs:    []sarifRun{{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}}},
	}
	run := &log.Runs[0]
	run.Tool.Driver = sarifDriver{Name: "genrm", Version: opts.Version, Rules: []sarifRule{}}
	var codes []string
	for _, d := range l {
		codes = append(codes, d.Code)
	}
	slices.Sort(codes)
	codes = slices.Compact(codes)
	for _, c := range codes {
		r := sarifRule{ID: c}
		if opts.Rule != nil {
			if title, text, ok := opts.Rule(c); ok {
				r.Short, r.Help = &sarifText{title}, &sarifText{text}
			}
		}
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, r)
	}
	for _, d := range l {
		r := sarifResult{RuleID: d.Code, RuleIndex: slices.Index(codes, d.Code), Level: d.Severity, Message: sarifText{d.message()}}
		loc := sarifLocation{Physical: physical(d.Pos)}
		if d.Path != "" {
			loc.Logical = []sarifLogical{{d.Path}}
		}
		if loc.Physical != nil || loc.Logical != nil {
			r.Locations = []sarifLocation{loc}
		}
		for _, rel := range d.Related {
			r.Related = append(r.Related, sarifLocation{Physical: physical(rel.Pos), Message: &sarifText{rel.Message}})
		}
		run.Results = append(run.Results, r)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(log)
}

func physical(p Pos) *sarifPhysical {
	if !p.IsValid() {
		return nil
	}
	out := new(sarifPhysical)
	out.Artifact.URI = fileURI(p.File)
	if p.Line > 0 {
		out.Region = &sarifRegion{StartLine: p.Line, StartColumn: p.Column}
	}
	return out
}

// fileURI returns a relative reference for a relative path, which viewers
// resolve against the checkout, and a file: URI for an absolute one.
func fileURI(file string) string {
	file = filepath.ToSlash(filepath.Clean(file))
	u := url.URL{Path: file}
	if strings.HasPrefix(file, "/") {
		u.Scheme = "file"
		return u.String()
	}
	return u.String()
}
