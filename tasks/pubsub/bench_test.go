package pubsub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/pubsub"
)

// BenchmarkBurst publishes tasks that are due at one instant, from the ledger in the same Redis, to
// one subscriber in this process, until it has all of them. It compares them with bare pipelines of
// PUBLISH, which record and forget nothing, to the same subscriber.
//
//	go test -run '^$' -bench Burst -benchtime 3x ./tasks/pubsub
func BenchmarkBurst(b *testing.B) {
	const n = 200_000
	var lapse, bare time.Duration
	for b.Loop() {
		b.StopTimer()
		server := redistest.Start(b)
		lapse += burst(b, server, n)
		bare += bareBurst(b, server, n)
		b.StartTimer()
	}
	b.ReportMetric(float64(n*b.N)/lapse.Seconds(), "tasks/s")
	b.ReportMetric(float64(n*b.N)/bare.Seconds(), "bare/s")
	b.ReportMetric(bare.Seconds()/lapse.Seconds(), "of-bare")
}

const keyevents = "__keyevent@0__:expired"

// awaitAll returns a channel that is closed when n messages have come.
func awaitAll(b *testing.B, server *redistest.Server, n int) <-chan struct{} {
	client := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: time.Minute})
	events := client.Subscribe(b.Context(), keyevents)
	if _, err := events.Receive(b.Context()); err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer client.Close()
		defer events.Close()
		for range n {
			if _, err := events.ReceiveMessage(context.Background()); err != nil {
				b.Error(err)
				return
			}
		}
	}()
	return done
}

func burst(b *testing.B, server *redistest.Server, n int) time.Duration {
	deliveries, err := redisledger.Connect(server.URL(), 64)
	if err != nil {
		b.Fatal(err)
	}
	defer deliveries.Close()
	quiet := slog.New(slog.DiscardHandler)
	ledger, err := redisledger.Open(redisledger.Options{URL: server.URL(), Node: "bench", Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	s, err := tasks.Open(b.Context(), ledger, tasks.Config{
		Log: quiet, AnswerWithin: time.Minute, Ways: []tasks.Way{pubsub.New(deliveries, pubsub.Config{})},
		Topics: map[string]tasks.TopicSettings{"x": {Kind: pubsub.Kind, Delivery: json.RawMessage(`{"compat":"keyevent"}`), Concurrency: 1024, Paused: true}},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.Close(context.Background()) }()
	for first := 0; first < n; first += 1000 {
		requests := make([]tasks.Request, 1000)
		for i := range requests {
			requests[i] = tasks.Request{ID: fmt.Sprint("session:", first+i), Topic: "x", Payload: []byte(`{}`)}
		}
		results, err := s.ScheduleBatch(b.Context(), requests)
		if err != nil || results[0].Err != nil {
			b.Fatal(err, results[0].Err)
		}
	}
	done := awaitAll(b, server, n)
	begin := time.Now()
	if err := s.Admin().PauseTopic(b.Context(), "x", false); err != nil {
		b.Fatal(err)
	}
	<-done
	return time.Since(begin)
}

func bareBurst(b *testing.B, server *redistest.Server, n int) time.Duration {
	done := awaitAll(b, server, n)
	client := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer client.Close()
	begin := time.Now()
	const senders, atOnce = 4, 256
	for k := range senders {
		go func() {
			for i := k * n / senders; i < (k+1)*n/senders; {
				p := client.Pipeline()
				for range min(atOnce, (k+1)*n/senders-i) {
					p.Publish(context.Background(), keyevents, fmt.Sprint("session:", i))
					i++
				}
				if _, err := p.Exec(context.Background()); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	<-done
	return time.Since(begin)
}
