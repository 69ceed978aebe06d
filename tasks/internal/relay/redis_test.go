package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks/internal/relay"
)

// onRedis opens relays over the bus of a Redis, which echo their calls.
func onRedis(t testing.TB, server *redistest.Server, nodes ...string) []*relay.Relay {
	t.Helper()
	var all []*relay.Relay
	for _, node := range nodes {
		l, err := redisledger.Open(redisledger.Options{URL: server.URL(), Node: node, Shards: 1, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		if _, err := l.Adopt(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, err := relay.New(relay.Config{Bus: l, Node: node, Incarnation: "1",
			Answer: func(_ context.Context, q relay.Call) []byte { return q.Body }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		all = append(all, r)
	}
	return all
}

// Many nodes send a lot to one at the same time. Redis does not close its connection, though its
// limit is an eighth of the default here.
func TestLargeBodiesOverRedis(t *testing.T) {
	server := redistest.Start(t, "client-output-buffer-limit pubsub 4mb 1mb 60")
	relays := onRedis(t, server, "a", "b", "c", "d", "e")
	body := bytes.Repeat([]byte("lapse"), 16<<20/5)
	var wg sync.WaitGroup
	for _, r := range relays[1:] {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			answer, err := r.Call(ctx, "a", "echo", body)
			if err != nil || !bytes.Equal(answer, body) {
				t.Errorf("an answer of %d bytes: %v", len(answer), err)
			}
		})
	}
	wg.Wait()
	if log, err := os.ReadFile(filepath.Join(server.Dir, "log")); err != nil || bytes.Contains(log, []byte("output buffer limits")) {
		t.Errorf("Redis has closed a connection: %v", err)
	}
}

// BenchmarkCallOverRedis is a call of 200 bytes with an equally long answer, between two nodes
// of one Redis. Bare is the rate of one caller without a relay: the call and the answer are
// published and received, and that is all.
func BenchmarkCallOverRedis(b *testing.B) {
	body := make([]byte, 200)
	var floor float64
	rate := func(b *testing.B) float64 {
		rate := float64(b.N) / b.Elapsed().Seconds()
		b.ReportMetric(rate, "calls/s")
		return rate
	}
	b.Run("bare", func(b *testing.B) {
		server := redistest.Start(b)
		answers := echoes(b, server)
		client := redis.NewClient(&redis.Options{Addr: server.Addr})
		b.Cleanup(func() { _ = client.Close() })
		for b.Loop() {
			if err := client.Publish(b.Context(), "call", body).Err(); err != nil {
				b.Fatal(err)
			}
			if _, err := answers.ReceiveMessage(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		floor = rate(b)
	})
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			relays := onRedis(b, redistest.Start(b), "a", "b")
			var left atomic.Int64
			left.Store(int64(b.N))
			b.ResetTimer()
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for left.Add(-1) >= 0 {
						ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
						_, err := relays[0].Call(ctx, "b", "echo", body)
						if cancel(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			if called := rate(b); floor > 0 {
				b.ReportMetric(called/floor, "of-bare")
			}
		})
	}
}

// echoes publishes each call as its answer, and returns the subscription to the answers.
func echoes(b *testing.B, server *redistest.Server) *redis.PubSub {
	b.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	calls, answers := client.Subscribe(b.Context(), "call"), client.Subscribe(b.Context(), "answer")
	for _, s := range []*redis.PubSub{calls, answers} {
		if _, err := s.Receive(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	var echoing sync.WaitGroup
	echoing.Go(func() {
		for {
			m, err := calls.ReceiveMessage(context.Background())
			if err != nil {
				return
			}
			_ = client.Publish(context.Background(), "answer", m.Payload).Err()
		}
	})
	b.Cleanup(func() {
		_, _ = calls.Close(), answers.Close()
		echoing.Wait()
		_ = client.Close()
	})
	return answers
}
