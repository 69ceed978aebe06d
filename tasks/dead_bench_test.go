package tasks_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkDead measures what 1 million dead tasks cost: a start, memory, and the
// sweep that deletes them when they were kept long enough.
func BenchmarkDead(b *testing.B) { onEachKept(b, dead) }

func dead(b *testing.B, ledger func() recovery.Ledger) {
	const n = 1_000_000
	s := open(b, ledger(), tasks.Config{Topics: map[string]tasks.TopicSettings{"dead": {Concurrency: 1024}}})
	if err := s.Handle("dead", func(context.Context, *tasks.Delivery) error { return tasks.Kill(errors.New("no use")) }); err != nil {
		b.Fatal(err)
	}
	now := time.Now()
	fill(b, s, n, "dead", func(int) time.Time { return now })
	wait(func() bool { return s.Stats().Total.Dead == n })
	shut := func() {
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	shut()
	ahead := time.Duration(0)
	clock := func() time.Time { return time.Now().Add(ahead) }
	for b.Loop() {
		before := heap()
		began := time.Now()
		ahead = 0
		s = open(b, ledger(), tasks.Config{Clock: clock})
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "open-ms")
		b.ReportMetric(float64(heap()-before)/n, "bytes/dead")
		shut()
	}
	ahead = 8 * 24 * time.Hour // a process that starts then has seen no step of its clock
	s = open(b, ledger(), tasks.Config{Clock: clock})
	began := time.Now()
	wait(func() bool { return s.Stats().Total.Expired >= n/10 })
	b.ReportMetric(float64(s.Stats().Total.Expired)/time.Since(began).Seconds(), "expired/s")
	shut()
}

func wait(done func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		<-tick.C
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkDeadReasons measures one call that says why 100,000 dead tasks are dead.
func BenchmarkDeadReasons(b *testing.B) {
	onEachKept(b, func(b *testing.B, ledger func() recovery.Ledger) {
		const n = 100_000
		s := open(b, ledger(), tasks.Config{})
		defer s.Close(context.Background())
		err := s.Handle("dead", func(_ context.Context, d *tasks.Delivery) error {
			return tasks.Kill(fmt.Errorf("order %s: the receiver answered %d after %v", d.ID, 500+len(d.ID)%4, time.Since(d.Due)))
		})
		if err != nil {
			b.Fatal(err)
		}
		now := time.Now()
		fill(b, s, n, "dead", func(int) time.Time { return now })
		wait(func() bool { return s.Stats().Total.Dead == n })
		longest, looked := time.Duration(0), 0
		for i := 0; b.Loop(); i++ {
			// Another question each time, or the answer before would be used again.
			q := tasks.Query{Topic: "dead", DiedFrom: time.UnixMilli(int64(i) + 1)}
			began := time.Now()
			r, err := s.Admin().DeadReasons(b.Context(), q)
			if err != nil {
				b.Fatal(err)
			}
			longest, looked = max(longest, time.Since(began)), looked+r.LookedAt
		}
		b.ReportMetric(float64(longest.Microseconds())/1e3, "ms/slowest")
		b.ReportMetric(float64(looked)/float64(b.N), "looked-at/op")
	})
}
