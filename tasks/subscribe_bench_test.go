package tasks_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkSubscriptions measures what readers cost a burst: tasks are scheduled in
// batches, due at once, and handled. Each round runs without readers and with each kind of
// them, one after the other, so that what the machine does besides hits all alike; the
// figures are the shortest time with readers by the shortest without.
func BenchmarkSubscriptions(b *testing.B) {
	const number = 100_000
	otherTopic := tasks.EventFilter{Topics: []string{"other"}}
	var heard atomic.Int64
	cases := []struct {
		name    string
		readers int
		filter  tasks.EventFilter
		reads   bool
	}{
		{"none", 0, tasks.EventFilter{}, false},
		{"1-stuck", 1, tasks.EventFilter{}, false},
		{"1-fast", 1, tasks.EventFilter{}, true},
		{"100-stuck", 100, tasks.EventFilter{}, false},
		{"100-of-another-topic", 100, otherTopic, true},
	}
	took := make([]time.Duration, len(cases))
	for b.Loop() {
		for i, c := range cases {
			b.StopTimer()
			s := open(b, memledger.New(), tasks.Config{})
			var handled atomic.Int64
			done := make(chan struct{})
			if err := s.Handle("burst", func(context.Context, *tasks.Delivery) error {
				if handled.Add(1) == number {
					close(done)
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			var readers sync.WaitGroup
			var open []*tasks.Subscription
			for range c.readers {
				u, err := s.Subscribe(c.filter)
				if err != nil {
					b.Fatal(err)
				}
				open = append(open, u)
				if c.reads {
					readers.Go(func() {
						for {
							events, lost, err := u.Next(context.Background())
							if err != nil {
								return
							}
							heard.Add(int64(len(events)) + lost)
						}
					})
				}
			}
			b.StartTimer()
			began := time.Now()
			fill(b, s, number, "burst", func(int) time.Time { return began })
			<-done
			if d := time.Since(began); took[i] == 0 || d < took[i] {
				took[i] = d
			}
			b.StopTimer()
			for _, u := range open {
				u.Close()
			}
			readers.Wait()
			if err := s.Close(context.Background()); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, c := range cases {
		b.ReportMetric(float64(took[i])/float64(took[0]), fmt.Sprint(c.name, "/none"))
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/number, "ns/task")
	if heard.Load() == 0 {
		b.Error("no subscriber received an event")
	}
}
