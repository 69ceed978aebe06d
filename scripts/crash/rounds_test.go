//go:build fault

package crash

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestKillRounds kills the server twenty times while clients schedule, move and
// cancel and receivers pull and settle, and then judges what each was told.
func TestKillRounds(t *testing.T) {
	const rounds, clients, receivers = 20, 8, 2
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

	s := newServer(t)
	first := s.start()
	first.ready(t)
	// Failed attempts come back soon, and the setting has to outlive the crashes.
	retry := []byte(`{"retry":{"max_attempts":1000,"min_backoff":"50ms","max_backoff":"500ms"}}`)
	if status, _, err := first.call(http.MethodPut, "/v1/topics/"+topic, retry, nil); outcome(status, err) != Done {
		t.Fatalf("setting the topic up: %d, %v", status, err)
	}
	s.kill()

	h := NewHistory()
	var numbers atomic.Int64
	var working sync.WaitGroup
	asking, stopAsking := context.WithCancel(t.Context())
	defer stopAsking()
	for i := range clients {
		c := &client{t: t, name: i, rng: rand.New(rand.NewPCG(seed, uint64(i))), server: s, history: h, numbers: &numbers}
		working.Go(func() { c.work(asking) })
	}
	pulling, stopPulling := context.WithCancel(t.Context())
	defer stopPulling()
	var pulls sync.WaitGroup
	for i := range receivers {
		w := &receiver{t: t, rng: rand.New(rand.NewPCG(seed, uint64(100+i))), server: s, history: h}
		pulls.Go(func() { w.work(pulling) })
	}

	rng := rand.New(rand.NewPCG(seed, 1000))
	var slowest time.Duration
	for range rounds {
		r := s.start()
		slowest = max(slowest, r.ready(t))
		// The length of a life is what this test is about, not a wait.
		<-time.After(time.Duration(100+rng.IntN(800)) * time.Millisecond)
		s.kill()
	}
	s.start().ready(t)
	stopAsking()
	working.Wait()
	drained(t, s, h, time.Minute)
	stopPulling()
	pulls.Wait()

	v := Judge(h)
	t.Logf("%d rounds, slowest to be ready %s: %v", rounds, slowest.Round(time.Millisecond), v)
	if len(v.Faults) > 0 {
		t.Errorf("%d promises were broken", len(v.Faults))
	}
	if v.Accepted == 0 || v.Cancelled == 0 || v.Moved == 0 || v.Again[NotRecorded] == 0 {
		t.Error("the clients have not tried everything that is to be judged")
	}
}
