//go:build fault

package movein

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A subscriber is a receiver that was written for Redis' own expiry events. It knows nothing of
// Lapse.
type subscriber struct {
	mu    sync.Mutex
	heard map[string][]time.Time
}

func subscribe(t *testing.T, c *redis.Client) *subscriber {
	t.Helper()
	s := &subscriber{heard: map[string][]time.Time{}}
	events := c.Subscribe(t.Context(), "__keyevent@0__:expired")
	if _, err := events.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { events.Close(); <-done })
	go func() {
		defer close(done)
		for m := range events.Channel(redis.WithChannelSize(1 << 20)) {
			s.mu.Lock()
			s.heard[m.Payload] = append(s.heard[m.Payload], time.Now())
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *subscriber) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.heard)
}

// TestMoveIn is the main job: LAPSE_TASKS keys (50,000 unless set) with TTLs and a subscriber that
// stays as it is. One command moves them in, and follows the writers, which then move one after
// the other. The subscriber hears of every key, in time, from Lapse alone: Redis' own events are
// off.
func TestMoveIn(t *testing.T) {
	keys := number(t, "LAPSE_TASKS", 50_000)
	writers, each := 4, 500
	source := redistest.Start(t, "hz 100")
	l := serve(t, "--delivery-redis", source.URL())
	if _, err := l.ChangeTopic(t.Context(), "order.expired", map[string]any{
		"delivery": map[string]any{"kind": "pubsub", "compat": "keyevent", "db": 0, "min_receivers": 1}, "concurrency": 1000,
	}, client.AnyRevision); err != nil {
		t.Fatal(err)
	}
	c := source.Client()
	s := subscribe(t, c)
	began := time.Now()
	fill(t, c, 0, keys, func(i int) time.Duration {
		// Those that expire before they are in are Redis' own.
		return 20*time.Second + time.Duration(keys)*100*time.Microsecond + time.Duration(i)*10*time.Second/time.Duration(keys)
	})
	i := l.startImport(t, "redis", "--from", source.URL(), "--match", "order:*", "--topic", "order.expired", "--watch", "--configure")
	wait(t, "import that follows", func() bool { return l.left(t, "order.expired") >= keys })
	t.Logf("%d keys are in after %s", keys, time.Since(began).Round(time.Millisecond))

	// Writers go on: the first half of each with Redis, then with Lapse. Some delete their keys.
	var mu sync.Mutex
	due := map[string]time.Time{}
	deleted := map[string]bool{}
	w := rig.NewWorkers(t)
	for n := range writers {
		w.Go(func() {
			for k := range each {
				key := fmt.Sprintf("order:w%d-%d", n, k)
				at := time.Now().Add(10 * time.Second).Truncate(time.Millisecond)
				var err error
				if k < each/2 {
					err = c.Do(t.Context(), "SET", key, "v", "PXAT", at.UnixMilli()).Err()
				} else {
					_, err = l.Put(t.Context(), client.Request{ID: key, Topic: "order.expired", DueAt: at})
				}
				if err != nil {
					t.Error(err)
					return
				}
				gone := k%10 == 0
				if gone && k < each/2 {
					err = c.Del(t.Context(), key).Err()
				} else if gone {
					err = l.Cancel(t.Context(), key)
				}
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				due[key], deleted[key] = at, gone
				mu.Unlock()
			}
		})
	}
	w.Wait()
	for i := range keys {
		at, err := time.Time{}, error(nil)
		if i%1000 == 0 { // deadlines are read again where they matter to the judge
			at, err = expiry(t, c, fmt.Sprint("order:", i))
		}
		if err == nil && !at.IsZero() {
			due[fmt.Sprint("order:", i)] = at
		}
	}
	want := keys
	for key := range due {
		if strings.HasPrefix(key, "order:w") && !deleted[key] {
			want++
		}
	}
	wait(t, "expiry of every key", func() bool { return s.count() >= want && l.left(t, "order.expired") == 0 })
	if err := i.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := i.cmd.Wait(); err != nil {
		t.Errorf("the import: %v: %s", err, &i.errs)
	}
	t.Logf("the import: %s%s", &i.errs, &i.out)
	s.judge(t, want, due, deleted)
}

// expiry is when a key expires.
func expiry(t *testing.T, c *redis.Client, key string) (time.Time, error) {
	ms, err := c.Do(t.Context(), "PEXPIRETIME", key).Int64()
	if err != nil || ms < 0 {
		return time.Time{}, err
	}
	return time.UnixMilli(ms), nil
}

// judge compares what was heard with what was to be heard.
func (s *subscriber) judge(t *testing.T, want int, due map[string]time.Time, deleted map[string]bool) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	twice, early := 0, 0
	var late []time.Duration
	for key, at := range s.heard {
		if len(at) > 1 {
			twice++
		}
		if deleted[key] {
			t.Errorf("%s was deleted", key)
		}
		if d, known := due[key]; known {
			if at[0].Before(d) {
				early++
			}
			late = append(late, at[0].Sub(d))
		}
	}
	if len(s.heard) != want || twice > 0 || early > 0 {
		t.Errorf("heard of %d keys, want %d; %d twice, %d early", len(s.heard), want, twice, early)
	}
	slices.Sort(late)
	t.Logf("%d expiries; late p50 %s, p99 %s, at most %s", len(s.heard), late[len(late)/2].Round(time.Microsecond),
		late[len(late)*99/100].Round(time.Microsecond), late[len(late)-1].Round(time.Microsecond))
}
