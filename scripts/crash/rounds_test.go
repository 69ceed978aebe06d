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

// TestKillRounds kills the server, many times, while clients schedule, move and cancel and
// receivers pull and settle, and then judges the answers. On Redis there are rounds in which Redis
// is killed or stopped as well, or alone.
func TestKillRounds(t *testing.T) {
	t.Parallel()
	t.Run("Disk", func(t *testing.T) {
		t.Parallel()
		killRounds(t, newServer(t), 20, func(s *server, _ int, life time.Duration) {
			s.start().ready(t)
			// The length of a life is the subject of this test, not a wait.
			<-time.After(life)
			s.kill()
		})
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		killRounds(t, onRedis(t), 3*len(endings), func(s *server, round int, life time.Duration) {
			endings[round%len(endings)](s, life)
		})
	})
}

// Lives of a server on Redis, each with another end.
var endings = []func(s *server, life time.Duration){
	func(s *server, life time.Duration) { // the server is killed
		s.start().ready(s.t)
		<-time.After(life)
		s.kill()
	},
	func(s *server, life time.Duration) { // Redis is killed and comes back
		s.start().ready(s.t)
		<-time.After(life / 2)
		s.redis.Kill()
		<-time.After(life / 4)
		s.redis.Start()
		<-time.After(life / 2)
		s.kill()
	},
	func(s *server, life time.Duration) { // both are killed, Redis first
		s.start().ready(s.t)
		<-time.After(life)
		s.redis.Kill()
		<-time.After(life / 8)
		s.kill()
		s.redis.Start()
	},
	func(s *server, life time.Duration) { // Redis is stopped, and answers late
		s.start().ready(s.t)
		<-time.After(life / 2)
		s.redis.Pause()
		<-time.After(3 * life)
		s.redis.Resume()
		<-time.After(life / 2)
		s.kill()
	},
	func(s *server, life time.Duration) { // a write that was sent to Redis outlives its sender
		s.start().ready(s.t)
		<-time.After(life)
		s.redis.Pause()
		<-time.After(life / 8)
		s.kill()
		s.redis.Resume()
	},
	func(s *server, life time.Duration) { // the server starts before Redis, and both are killed
		s.redis.Kill()
		r := s.start()
		<-time.After(life / 4)
		s.redis.Start()
		r.ready(s.t)
		<-time.After(life / 2)
		s.kill()
		s.redis.Kill()
		s.redis.Start()
	},
}

func killRounds(t *testing.T, s *server, rounds int, round func(s *server, n int, life time.Duration)) {
	const clients, receivers = 8, 2
	seed := rand.Uint64()
	t.Logf("seed %d", seed)

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
	for n := range rounds {
		round(s, n, time.Duration(100+rng.IntN(800))*time.Millisecond)
	}
	began := time.Now()
	s.start().ready(t)
	ready := time.Since(began)
	stopAsking()
	working.Wait()
	drained(t, s, h, time.Minute)
	stopPulling()
	pulls.Wait()

	v := Judge(h)
	t.Logf("%d rounds, ready %s after the last: %v", rounds, ready.Round(time.Millisecond), v)
	if len(v.Faults) > 0 {
		t.Errorf("%d promises were broken", len(v.Faults))
	}
	if v.Accepted == 0 || v.Cancelled == 0 || v.Moved == 0 || v.Again[NotRecorded] == 0 {
		t.Error("the clients have not tried everything that is to be judged")
	}
}
