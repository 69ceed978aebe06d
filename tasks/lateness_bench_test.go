package tasks_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
)

// lateness collects how late things were.
type lateness struct {
	mu  sync.Mutex
	all []time.Duration
}

func (l *lateness) add(d time.Duration) {
	l.mu.Lock()
	l.all = append(l.all, d)
	l.mu.Unlock()
}

func (l *lateness) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.all)
}

func (l *lateness) early() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.all {
		if d < 0 {
			n++
		}
	}
	return n
}

// quantile returns a quantile in milliseconds.
func (l *lateness) quantile(q float64) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) == 0 {
		return 0
	}
	slices.Sort(l.all)
	return float64(l.all[int(q*float64(len(l.all)-1))]) / float64(time.Millisecond)
}

// BenchmarkLatenessBeside lets a million tasks of one topic fall due in one millisecond, and ten of
// another topic in each millisecond from then on. It measures how late the other topic's tasks are
// until the million are handled. Those were scheduled last: no place is worse for them. The ledger
// keeps nothing: a million records in memory would have the collector take half of the time.
func BenchmarkLatenessBeside(b *testing.B) {
	const million, others, every = 1_000_000, 50_000, 100 * time.Microsecond
	for b.Loop() {
		b.StopTimer()
		s := open(b, ledgertest.Null{}, tasks.Config{})
		var handled, took atomic.Int64
		var late lateness
		due := time.Now().Add(20 * time.Second).Truncate(time.Millisecond)
		handle := func(topic string, f tasks.HandlerFunc) {
			if err := s.Handle(topic, f); err != nil {
				b.Fatal(err)
			}
		}
		handle("burst", func(context.Context, *tasks.Delivery) error {
			if handled.Add(1) == million {
				took.Store(int64(time.Since(due)))
			}
			return nil
		})
		handle("other", func(_ context.Context, d *tasks.Delivery) error {
			if handled.Load() < million {
				late.add(time.Since(d.Due))
			}
			return nil
		})
		fill(b, s, million, "burst", func(int) time.Time { return due })
		fill(b, s, others, "other", func(i int) time.Time { return due.Add(time.Duration(i) * every) })
		if time.Now().After(due) {
			b.Fatal("the burst began before all tasks were scheduled")
		}
		<-time.After(time.Until(due))
		b.StartTimer()
		for s.Stats().Total.Delivered < million+others {
			<-time.After(50 * time.Millisecond)
		}
		b.StopTimer()
		b.ReportMetric(float64(took.Load())/float64(time.Second), "burst-s")
		b.ReportMetric(float64(late.count()), "others")
		b.ReportMetric(late.quantile(0.5), "p50-ms")
		b.ReportMetric(late.quantile(0.99), "p99-ms")
		b.ReportMetric(late.quantile(1), "max-ms")
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
