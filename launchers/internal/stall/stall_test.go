package stall

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slow is a server that sends nothing until its connection is given up.
type slow struct{ during context.Context }

func (s slow) Read([]byte) (int, error) {
	<-s.during.Done()
	return 0, context.Cause(s.during)
}

func TestWatch(t *testing.T) {
	why := errors.New("it sent nothing")
	synctest.Test(t, func(t *testing.T) {
		during, awaiting, stop := Watch(t.Context(), time.Second, why)
		defer stop()
		time.Sleep(time.Second / 2) // until the answer begins
		body := awaiting(io.MultiReader(strings.NewReader("a"), strings.NewReader("b"), slow{during}))
		buf := make([]byte, 1)
		for range 2 {
			if _, err := body.Read(buf); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Hour) // the one who reads
		}
		if during.Err() != nil {
			t.Error("the reader's own time counts")
		}
		if _, err := body.Read(buf); !errors.Is(err, why) {
			t.Error(err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // no answer at all
		during, _, stop := Watch(t.Context(), time.Second, why)
		defer stop()
		<-during.Done()
		if !errors.Is(context.Cause(during), why) {
			t.Error(context.Cause(during))
		}
	})
}
