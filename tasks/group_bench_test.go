package tasks_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkCancelGroup cancels groups on disk: one of 100,000 tasks, and 100,000 of three
// by 64 callers.
func BenchmarkCancelGroup(b *testing.B) {
	for _, c := range []struct {
		name            string
		groups, members int
	}{{"1x100000", 1, 100_000}, {"100000x3", 100_000, 3}} {
		b.Run(c.name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				cancelGroups(b, c.groups, c.members)
			}
			b.ReportMetric(float64(c.groups*b.N)/b.Elapsed().Seconds(), "groups/s")
			b.ReportMetric(float64(c.groups*c.members*b.N)/b.Elapsed().Seconds(), "tasks/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// cancelGroups measures the cancelling only.
func cancelGroups(b *testing.B, groups, members int) {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	ledger, err := diskledger.Open(b.TempDir(), diskledger.Options{Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	s, err := tasks.Open(b.Context(), ledger, tasks.Config{Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	requests := make([]tasks.Request, 0, tasks.MaxBatch)
	for i := range groups * members {
		requests = append(requests, tasks.Request{ID: fmt.Sprint("t", i), Topic: "x", Group: fmt.Sprint("g", i%groups), Delay: time.Hour})
		if len(requests) == tasks.MaxBatch || i == groups*members-1 {
			if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
				b.Fatal(err)
			}
			requests = requests[:0]
		}
	}
	names := make(chan string, groups)
	for i := range groups {
		names <- fmt.Sprint("g", i)
	}
	close(names)
	callers := min(64, groups)
	failed := make(chan error, callers)
	b.StartTimer()
	for range callers {
		go func() {
			for name := range names {
				if c, err := s.CancelGroup(b.Context(), name); err != nil || c.Cancelled != members {
					failed <- fmt.Errorf("%s: %+v, %w", name, c, err)
					return
				}
			}
			failed <- nil
		}()
	}
	for range callers {
		if err := <-failed; err != nil {
			b.Error(err)
		}
	}
	b.StopTimer()
	if err := s.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}
