package engine_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// BenchmarkPurge purges a topic of half a million tasks on disk, and tells how long
// others waited meanwhile: worst is the slowest Get.
func BenchmarkPurge(b *testing.B) {
	const n = 500_000
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	for range b.N {
		b.StopTimer()
		ledger, err := diskledger.Open(b.TempDir(), diskledger.Options{Log: quiet})
		if err != nil {
			b.Fatal(err)
		}
		s, err := Open(b.Context(), ledger, Config{Log: quiet})
		if err != nil {
			b.Fatal(err)
		}
		requests := make([]Request, MaxBatch)
		for first := 0; first < n; first += MaxBatch {
			for i := range requests {
				requests[i] = Request{ID: fmt.Sprint("t", first+i), Topic: "x", Delay: time.Hour}
			}
			if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
				b.Fatal(err)
			}
		}
		var over atomic.Bool
		worst := make(chan time.Duration)
		go func() {
			var longest time.Duration
			for !over.Load() {
				began := time.Now()
				_, _ = s.Get(context.Background(), "none")
				longest = max(longest, time.Since(began))
			}
			worst <- longest
		}()
		b.StartTimer()
		p, err := s.Admin().Purge(b.Context(), "x")
		b.StopTimer()
		if over.Store(true); err != nil || p.Cancelled != n {
			b.Fatal(p, err)
		}
		b.ReportMetric(float64((<-worst).Microseconds()), "worst-us")
		if err := s.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkForecast counts a million tasks.
func BenchmarkForecast(b *testing.B) {
	const n = 1_000_000
	s := &engine.Engine{Store: store.New(), Config: task.Checked{Config: Config{Clock: time.Now}}}
	s.Reading.Replayed = make(chan struct{})
	now := s.Now()
	for i := range n {
		_, sl := s.Store.Enter(fmt.Append(nil, "t", i), nil)
		sl.State, sl.Next, sl.Topic = store.Pending, now+int64(i), 1
	}
	b.ResetTimer()
	for range b.N {
		f, err := s.Forecast(b.Context(), Outlook{Window: time.Hour, Step: time.Minute}, now)
		if err != nil || f.Counts[5] == 0 {
			b.Fatal(f, err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(b.N)/math.Ceil(float64(s.Store.Slots())/store.ChunkSlots), "us/lock")
}
