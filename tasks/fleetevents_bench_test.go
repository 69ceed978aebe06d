package tasks_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
)

// BenchmarkFleetSubscriptions measures what readers at node a cost a burst at node b, as
// BenchmarkSubscriptions does for one node: the ratio of the shortest times, and of the processor
// times of both nodes together. Both nodes are in one process, with a bus in memory.
func BenchmarkFleetSubscriptions(b *testing.B) {
	const number = 100_000
	cases := []struct {
		name    string
		readers int
		filter  EventFilter
	}{
		{"none", 0, EventFilter{}},
		{"1", 1, EventFilter{}},
		{"1-of-another-topic", 1, EventFilter{Topics: []string{"other"}}},
		{"10-of-another-topic", 10, EventFilter{Topics: []string{"other"}}},
		{"10", 10, EventFilter{}},
	}
	took, used := make([]time.Duration, len(cases)), make([]time.Duration, len(cases))
	heard := make([]atomic.Int64, len(cases))
	for b.Loop() {
		for i, c := range cases {
			b.StopTimer()
			fleet := memfleet.New()
			var nodes []*Scheduler
			for _, name := range []string{"a", "b"} {
				s, err := Open(b.Context(), fleet.Join(name, 4), Config{Node: name, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				nodes = append(nodes, s)
			}
			var handled atomic.Int64
			done := make(chan struct{})
			if err := nodes[1].Handle("burst", func(context.Context, *Delivery) error {
				if handled.Add(1) == number {
					close(done)
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			var readers sync.WaitGroup
			var open []*FleetSubscription
			for range c.readers {
				u, err := nodes[0].Admin().FleetSubscribe(b.Context(), c.filter)
				if err != nil {
					b.Fatal(err)
				}
				open = append(open, u)
				readers.Go(func() {
					for {
						n, err := u.Next(context.Background())
						if err != nil {
							return
						}
						heard[i].Add(int64(len(n.Events)))
					}
				})
			}
			b.StartTimer()
			began, before := time.Now(), processorTime(b)
			fill(b, nodes[1], number, "burst", func(int) time.Time { return began })
			<-done
			if d := time.Since(began); took[i] == 0 || d < took[i] {
				took[i] = d
			}
			if d := processorTime(b) - before; used[i] == 0 || d < used[i] {
				used[i] = d
			}
			b.StopTimer()
			for _, u := range open {
				u.Close()
			}
			readers.Wait()
			for _, s := range nodes {
				if err := s.Close(context.Background()); err != nil {
					b.Fatal(err)
				}
			}
			b.StartTimer()
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, c := range cases {
		b.ReportMetric(float64(took[i])/float64(took[0]), fmt.Sprint(c.name, "/none"))
		b.ReportMetric(float64(used[i])/float64(used[0]), fmt.Sprint(c.name, "-cpu/none"))
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/number, "ns/task")
	b.ReportMetric(float64(heard[1].Load())/float64(b.N), "events-heard/burst")
}

// processorTime is what this process has used.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
