package rundir

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
)

// Tail follows a log that is rotated by renaming.
type Tail struct {
	path string
	f    *os.File
	rest []byte // of a line that is not whole yet
}

// NewTail follows path from its last n lines on; all of them if n is negative.
// The file may come later.
func NewTail(path string, n int) (*Tail, error) {
	t := &Tail{path: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return t, nil
	}
	if err != nil {
		return nil, err
	}
	t.f = f
	if n < 0 {
		return t, nil
	}
	at, err := lastLines(f, n)
	if err == nil {
		_, err = f.Seek(at, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return t, nil
}

// lastLines finds where the last n lines of a file begin.
func lastLines(f *os.File, n int) (int64, error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	const block = 32 << 10
	end := st.Size()
	count := 0
	for at := end; at > 0; {
		from := max(0, at-block)
		buf := make([]byte, at-from)
		if _, err := f.ReadAt(buf, from); err != nil {
			return 0, err
		}
		for i := len(buf) - 1; i >= 0; i-- {
			if buf[i] != '\n' || from+int64(i) == end-1 {
				continue
			}
			if count++; count == n {
				return from + int64(i) + 1, nil
			}
		}
		at = from
	}
	if n == 0 {
		return end, nil
	}
	return 0, nil
}

// Lines returns what was added since the last call, whole lines only; with end
// also an unfinished last one. Every line of a file that was put aside comes
// before those of its successor.
func (t *Tail) Lines(end bool) ([]string, error) {
	var out []string
	for {
		if t.f == nil {
			f, err := os.Open(t.path)
			if errors.Is(err, fs.ErrNotExist) {
				return out, nil
			}
			if err != nil {
				return out, err
			}
			t.f = f
		}
		moved := t.moved() // asked first: what was written before it was put aside is read below
		data, err := io.ReadAll(io.LimitReader(t.f, 4<<20))
		if err != nil {
			return out, err
		}
		t.rest = append(t.rest, data...)
		for {
			i := bytes.IndexByte(t.rest, '\n')
			if i < 0 {
				break
			}
			out = append(out, string(t.rest[:i]))
			t.rest = t.rest[i+1:]
		}
		if len(data) == 4<<20 {
			if len(out) == 0 {
				continue // one line: nothing would mean that nothing is there
			}
			return out, nil // more at the next call
		}
		if !moved {
			if end && len(t.rest) > 0 {
				out = append(out, string(t.rest))
				t.rest = nil
			}
			return out, nil
		}
		if err := t.Close(); err != nil {
			return out, err
		}
	}
}

// moved reports whether another file has the path now.
func (t *Tail) moved() bool {
	mine, err1 := t.f.Stat()
	now, err2 := os.Stat(t.path)
	return err1 == nil && err2 == nil && !os.SameFile(mine, now)
}

// Close ends the following.
func (t *Tail) Close() error {
	if t.f == nil {
		return nil
	}
	err := t.f.Close()
	t.f = nil
	return err
}
