//go:build fault

package movein

import (
	"fmt"
	"path/filepath"
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

// TestMainJob has LAPSE_TASKS keys (50,000 unless set) with TTLs and a subscriber that stays as it
// is. One command moves them in, to a server that keeps its tasks in a Redis of its own, and
// follows the writers, which then move one after the other. Every tenth key goes to workers that
// acknowledge it. When half of the keys have expired, an export and an import move the other half
// to a server that keeps its tasks on disk. The subscriber and the workers hear of every key once,
// in time, from Lapse alone: Redis' own events are off.
func TestMainJob(t *testing.T) {
	keys := number(t, "LAPSE_TASKS", 50_000)
	writers, each := 4, 500
	source := redistest.Start(t, "hz 100")
	first := serveOn(t, "--redis", redistest.Start(t, "appendonly yes").URL(), "--node", "first", "--delivery-redis", source.URL())
	for topic, settings := range map[string]map[string]any{
		"order.expired": {"delivery": map[string]any{"kind": "pubsub", "compat": "keyevent", "db": 0, "min_receivers": 1}, "concurrency": 1000},
		"cart.expired":  {},
	} {
		if _, err := first.ChangeTopic(t.Context(), topic, settings, client.AnyRevision); err != nil {
			t.Fatal(err)
		}
	}
	c := source.Client()
	s := subscribe(t, c)
	began := time.Now()
	// Those that expire before they are in are Redis' own, so there is time for the import. Between
	// the two halves there is time for the export and the import.
	room := 12*time.Second + time.Duration(keys)*100*time.Microsecond
	ttl := func(i int) time.Duration {
		after := room + time.Duration(i)*10*time.Second/time.Duration(keys)
		if i >= keys/2 {
			after += room
		}
		return after
	}
	fill(t, c, "order", 0, keys*9/10, func(i int) time.Duration { return ttl(i * 10 / 9) })
	fill(t, c, "cart", 0, keys/10, func(i int) time.Duration { return ttl(i * 10) })
	orders := first.startImport(t, "redis", "--from", source.URL(), "--match", "order:*", "--topic", "order.expired", "--watch", "--configure")
	carts := first.startImport(t, "redis", "--from", source.URL(), "--match", "cart:*", "--topic", "cart.expired")
	wait(t, "import that follows", func() bool { return first.left(t, "order.expired") >= keys*9/10 })
	if err := carts.cmd.Wait(); err != nil {
		t.Fatalf("the import of carts: %v: %s", err, &carts.errs)
	}
	t.Logf("%d keys are in after %s", keys, time.Since(began).Round(time.Millisecond))
	worker := first.receive(t, "cart.expired")

	// Writers go on: the first half of each with Redis, then with Lapse. Some delete their keys.
	due, deleted := write(t, c, first, writers, each)
	for i := 0; i < keys*9/10; i += 1000 { // the judge wants the deadlines of some
		key := fmt.Sprint("order:", i)
		if at := expiry(t, c, key); !at.IsZero() {
			due[key] = at
		}
	}
	want := keys * 9 / 10
	for key := range due {
		if strings.HasPrefix(key, "order:w") && !deleted[key] {
			want++
		}
	}
	half := want - keys*9/20
	wait(t, "expiry of the first half", func() bool {
		return s.count() >= half && first.left(t, "order.expired") <= keys*9/20 && first.left(t, "cart.expired") <= keys/20
	})
	got := worker.end()
	if err := orders.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := orders.cmd.Wait(); err != nil {
		t.Errorf("the import: %v: %s", err, &orders.errs)
	}
	t.Logf("the import: %s%s", &orders.errs, &orders.out)

	second := moveOut(t, first, source.URL())
	again := second.receive(t, "cart.expired")
	wait(t, "expiry of every key", func() bool {
		return s.count() >= want && second.left(t, "order.expired") == 0 && second.left(t, "cart.expired") == 0
	})
	s.judge(t, want, due, deleted)
	for id, n := range again.end() {
		got[id] += n
	}
	once(t, got, keys/10, func(i int) string { return fmt.Sprint("cart:", i) }, func(int) bool { return false })
}

// write has writers set keys of which each second half is set at Lapse. It returns when they are
// due, and which were deleted.
func write(t *testing.T, c *redis.Client, l *lapse, writers, each int) (due map[string]time.Time, deleted map[string]bool) {
	t.Helper()
	var mu sync.Mutex
	due, deleted = map[string]time.Time{}, map[string]bool{}
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
					_, err = l.Replace(t.Context(), client.Request{ID: key, Topic: "order.expired", Due: at})
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
	return due, deleted
}

// moveOut moves everything from a server to one that keeps its tasks on disk, as docs/export.md
// says, and returns that.
func moveOut(t *testing.T, from *lapse, redis string) *lapse {
	t.Helper()
	began := time.Now()
	topics := []string{"order.expired", "cart.expired"}
	run := func(l *lapse, args ...string) {
		t.Helper()
		if out, err := l.command(args...).CombinedOutput(); err != nil {
			t.Fatalf("lapse %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "all.ndjson.zst")
	run(from, append([]string{"topics", "pause"}, topics...)...)
	run(from, "export", "--output", file)
	from.stop()
	to := serve(t, "--delivery-redis", redis)
	run(to, "import", "file", file)
	run(to, append([]string{"topics", "resume"}, topics...)...)
	t.Logf("moved out in %s", time.Since(began).Round(time.Millisecond))
	return to
}

// expiry is when a key expires; zero if it does not, or is gone.
func expiry(t *testing.T, c *redis.Client, key string) time.Time {
	t.Helper()
	ms, err := c.Do(t.Context(), "PEXPIRETIME", key).Int64()
	if err != nil {
		t.Fatal(err)
	}
	if ms < 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
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
