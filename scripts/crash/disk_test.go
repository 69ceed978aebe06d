//go:build fault && linux

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestDiskFull schedules on a small file system until the server refuses. It
// must refuse with 503 and keep what it has accepted, deliver it, take its
// acknowledgements, and survive a crash in that state.
func TestDiskFull(t *testing.T) {
	s := newServer(t)
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=384m"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	// Registered after newServer's, hence run before it: kill first.
	t.Cleanup(func() {
		if r := s.latest(); r != nil {
			r.signal(syscall.SIGKILL)
			<-r.exited
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	s.data = dir + "/data"
	r := s.start()
	r.ready(t)

	h := NewHistory()
	filler := fill()
	due := time.Now().Add(15 * time.Second).Truncate(time.Millisecond)
	refused, n := 0, 0
	for refused < 3 {
		var body strings.Builder
		const size = 100
		for i := range size {
			fmt.Fprintf(&body, "%c{\"topic\":%q,\"due_at\":%q,\"payload\":{\"n\":%d,\"filler\":%q}}", "[,"[min(i, 1)], topic, wire(due), n+i, filler)
		}
		body.WriteByte(']')
		var answer struct{ Accepted int }
		status, span, err := r.call(http.MethodPost, "/v1/tasks/batch", []byte(body.String()), &answer)
		got := outcome(status, err)
		switch {
		case err != nil:
			t.Fatal(err)
		case status == http.StatusServiceUnavailable:
			refused++
		case got != Done || answer.Accepted != size:
			t.Fatalf("answered %d, %d accepted", status, answer.Accepted)
		}
		for i := range size {
			h.Change(n+i, Change{Span: span, Kind: Create, Outcome: got, Due: due})
		}
		if n += size; n > 1_000_000 {
			t.Fatal("the disk does not get full")
		}
	}
	accepted := h.Owed()
	t.Logf("refused after %d tasks of %d KiB", accepted, len(filler)>>10)

	if status, _, err := r.call(http.MethodGet, "/healthz", nil, nil); outcome(status, err) != Done {
		t.Errorf("healthz answered %d, %v", status, err)
	}
	s.kill()
	s.start().ready(t)

	pulling, stopPulling := context.WithCancel(t.Context())
	defer stopPulling()
	var pulls sync.WaitGroup
	for i := range 2 {
		w := &receiver{t: t, rng: rand.New(rand.NewPCG(2, uint64(i))), server: s, history: h, careful: true}
		pulls.Go(func() { w.work(pulling) })
	}
	drained(t, s, h, time.Until(due)+time.Minute)
	stopPulling()
	pulls.Wait()
	v := Judge(h)
	t.Log(v)
	if len(v.Faults) > 0 {
		t.Errorf("%d promises were broken", len(v.Faults))
	}
	// With room again, tasks are taken again.
	every(t, 100*time.Millisecond, time.Minute, func() bool {
		status, _, err := s.latest().call(http.MethodPost, "/v1/tasks", []byte(`{"topic":"crash","delay":"1h"}`), nil)
		return outcome(status, err) == Done
	})
}

// fill is text that does not compress.
func fill() string {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
	text := make([]byte, 32<<10)
	for i := range text {
		text[i] = letters[rand.IntN(len(letters))]
	}
	return string(text)
}
