package tree

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Map is a JSON object whose members keep their order.
type Map[V any] []Entry[V]

// Entry is a member of a [Map].
type Entry[V any] struct {
	Key   string
	Value V
}

// Get returns the member with that key.
func (m Map[V]) Get(key string) (V, bool) {
	for _, e := range m {
		if e.Key == key {
			return e.Value, true
		}
	}
	var zero V
	return zero, false
}

// Set replaces the member with that key in its place, or appends it.
func (m *Map[V]) Set(key string, v V) {
	for i := range *m {
		if (*m)[i].Key == key {
			(*m)[i].Value = v
			return
		}
	}
	*m = append(*m, Entry[V]{key, v})
}

// MarshalJSON writes an object in the order of the entries.
func (m Map[V]) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, e := range m {
		if i > 0 {
			b.WriteByte(',')
		}
		writeString(&b, e.Key)
		b.WriteByte(':')
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(e.Value); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON reads an object and keeps its order.
func (m *Map[V]) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if tok, err := dec.Token(); err != nil {
		return err
	} else if tok != json.Delim('{') {
		return fmt.Errorf("want an object, got %v", tok)
	}
	*m = nil
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var v V
		if err := dec.Decode(&v); err != nil {
			return err
		}
		*m = append(*m, Entry[V]{key.(string), v})
	}
	return nil
}
