package logline

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A reader is a writer that may stand still, or fail.
type reader struct {
	mu    sync.Mutex
	text  bytes.Buffer
	gate  chan struct{} // nil: open
	fails bool
}

func (r *reader) Write(b []byte) (int, error) {
	if r.gate != nil {
		<-r.gate
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fails {
		return 0, errors.New("broken pipe")
	}
	return r.text.Write(b)
}

func tell(to io.Writer, dropped int64) { fmt.Fprintf(to, "%d lines were dropped\n", dropped) }

func TestLinesAreInOrder(t *testing.T) {
	r := &reader{}
	w := New(r, tell)
	var want strings.Builder
	for i := range 1000 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		if n, err := w.Write([]byte(line)); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	w.Close(time.Minute)
	if r.text.String() != want.String() || w.Dropped() != 0 {
		t.Errorf("%d bytes are written, and %d lines dropped", r.text.Len(), w.Dropped())
	}
}

// A log that nothing reads keeps its bound, and says afterwards what is missing.
func TestNothingReadsTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reader{gate: make(chan struct{})}
		w := New(r, tell)
		line := []byte(strings.Repeat("x", 999) + "\n")
		for range 5000 {
			_, _ = w.Write(line)
		}
		dropped := w.Dropped()
		if want := int64(5000 - mostBytes/1000); dropped != want {
			t.Errorf("%d lines are dropped, want %d", dropped, want)
		}
		from := time.Now()
		w.Close(time.Second)
		if waited := time.Since(from); waited != time.Second {
			t.Errorf("the end has waited for %v", waited)
		}
		close(r.gate)
		synctest.Wait()
		told := int64(0)
		for text := range strings.Lines(r.text.String()) {
			n := int64(0)
			if _, err := fmt.Sscanf(text, "%d lines were dropped", &n); err == nil {
				told += n
			}
		}
		if told != dropped {
			t.Errorf("the log says that %d lines are missing, and %d are", told, dropped)
		}
		if got := strings.Count(r.text.String(), string(line)); got+int(dropped) != 5000 {
			t.Errorf("%d lines are written, and %d dropped", got, dropped)
		}
	})
}

func TestLogThatFails(t *testing.T) {
	r := &reader{fails: true}
	w := New(r, tell)
	for range 10 {
		_, _ = w.Write([]byte("line\n"))
	}
	w.Close(time.Minute)
	if w.Dropped() != 10 {
		t.Errorf("%d lines are dropped", w.Dropped())
	}
}
