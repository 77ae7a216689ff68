package main

import (
	"encoding/json"
	"io"
	"slices"
	"strconv"
	"strings"
)

// printJSON writes v indented, with text as it is ('<' is not escaped).
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printEach writes one as it is, several as a list.
func printEach[T any](w io.Writer, all []T) error {
	if len(all) == 1 {
		return printJSON(w, all[0])
	}
	return printJSON(w, all)
}

// ranges writes sorted numbers as "0-3,6".
func ranges(in []int) string {
	s := slices.Sorted(slices.Values(in))
	var parts []string
	for i := 0; i < len(s); {
		j := i
		for j+1 < len(s) && s[j+1] <= s[j]+1 {
			j++
		}
		part := strconv.Itoa(s[i])
		if s[j] > s[i] {
			part += "-" + strconv.Itoa(s[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ",")
}
