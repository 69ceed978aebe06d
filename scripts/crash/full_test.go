//go:build fault

package crash

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// testFull fills the storage of a server that was started with tasks that are due
// after a while.
func testFull(t *testing.T, s *server, after time.Duration) {
	f := &filling{t: t, server: s, history: NewHistory(), text: filler(), due: time.Now().Add(after).Truncate(time.Millisecond)}
	f.fill()
	if status, _, err := s.latest().call(http.MethodGet, "/healthz", nil, nil); outcome(status, err) != Done {
		t.Errorf("healthz answered %d, %v", status, err)
	}
	s.kill()
	s.start().ready(t)
	f.fill() // files that the crash has left, such as old logs, are gone: there may be room again

	pulling, stopPulling := context.WithCancel(t.Context())
	defer stopPulling()
	var pulls sync.WaitGroup
	for i := range 2 {
		w := &receiver{t: t, rng: rand.New(rand.NewPCG(2, uint64(i))), server: s, history: f.history, careful: true}
		pulls.Go(func() { w.work(pulling) })
	}
	drained(t, s, f.history, time.Until(f.due)+time.Minute)
	stopPulling()
	pulls.Wait()
	v := Judge(f.history)
	t.Log(v)
	if len(v.Faults) > 0 {
		t.Errorf("%d promises were broken", len(v.Faults))
	}
	// With room again, tasks are accepted again.
	every(t, 100*time.Millisecond, time.Minute, func() bool {
		status, _, err := s.latest().call(http.MethodPost, "/v1/tasks", []byte(`{"topic":"crash","delay":"1h"}`), nil)
		return outcome(status, err) == Done
	})
}

// A filling schedules batches of large tasks.
type filling struct {
	t       *testing.T
	server  *server
	history *History
	text    string
	due     time.Time
	last    int // number of the last task
}

// fill goes on until the server has refused for three seconds.
func (f *filling) fill() {
	f.t.Helper()
	const size = 100
	r := f.server.latest()
	var refusing time.Time // since when
	for refusing.IsZero() || time.Since(refusing) < 3*time.Second {
		var body bytes.Buffer
		for i := range size {
			fmt.Fprintf(&body, "%c{\"topic\":%q,\"due_at\":%q,\"payload\":{\"n\":%d,\"text\":%q}}", "[,"[min(i, 1)], topic, rig.Wire(f.due), f.last+1+i, f.text)
		}
		body.WriteByte(']')
		var answer struct{ IDs []string } // empty where refused: the disk may run low in the middle
		status, span, err := r.call(http.MethodPost, "/v1/tasks/batch", body.Bytes(), &answer)
		switch {
		case err == nil && status == http.StatusServiceUnavailable:
			if refusing.IsZero() {
				refusing = time.Now()
			}
			<-time.After(100 * time.Millisecond) // as Retry-After asks for, only sooner
			continue
		case outcome(status, err) != Done || len(answer.IDs) != size:
			f.t.Fatalf("answered %d, %v, %d ids", status, err, len(answer.IDs))
		}
		refusing = time.Time{}
		for _, id := range answer.IDs {
			f.last++
			if id == "" {
				continue
			}
			f.history.Change(f.last, Change{Span: span, Kind: Create, Outcome: Done, Due: f.due})
		}
		if f.last > 1_000_000 {
			f.t.Fatal("the disk does not get full")
		}
	}
	f.t.Logf("refused after %d tasks of %d KiB", f.last, len(f.text)>>10)
}

// filler is text that does not compress.
func filler() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	text := make([]byte, 32<<10)
	for i := range text {
		text[i] = letters[rand.IntN(len(letters))]
	}
	return string(text)
}
