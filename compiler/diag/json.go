package diag

// JSON is the contract form of a diagnostic: `vet --format json` and the
// diagnostics of `plan -o json`. Fields may be added, never renamed.
type JSON struct {
	Code     string        `json:"code"`
	Severity Severity      `json:"severity"`
	File     string        `json:"file"`
	Line     int           `json:"line"`
	Column   int           `json:"column"`
	Path     string        `json:"path"`
	Summary  string        `json:"summary"`
	Detail   string        `json:"detail"`
	Remedy   string        `json:"remedy"`
	Related  []RelatedJSON `json:"related"`
}

// RelatedJSON is the contract form of a related place.
type RelatedJSON struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Message string `json:"message"`
}

// JSON returns the contract form of the list, in its order. It is never nil,
// so that an empty list prints as [].
func (l List) JSON() []JSON {
	out := make([]JSON, 0, len(l))
	for _, d := range l {
		j := JSON{Code: d.Code, Severity: d.Severity, File: d.Pos.File, Line: d.Pos.Line, Column: d.Pos.Column,
			Path: d.Path, Summary: d.Summary, Detail: d.Detail, Remedy: d.Remedy, Related: make([]RelatedJSON, 0, len(d.Related))}
		for _, r := range d.Related {
			j.Related = append(j.Related, RelatedJSON{r.Pos.File, r.Pos.Line, r.Pos.Column, r.Message})
		}
		out = append(out, j)
	}
	return out
}
