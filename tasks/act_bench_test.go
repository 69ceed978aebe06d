package tasks_test

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkAct cancels 100,000 of 200,000 tasks on disk: with one call for the group, and with
// calls of 1,000 by a filter.
func BenchmarkAct(b *testing.B) {
	const number = 100_000
	for name, cancel := range map[string]func(*tasks.Scheduler) (int, error){
		"group": func(s *tasks.Scheduler) (int, error) {
			done, err := s.CancelGroup(b.Context(), "g")
			return done.Cancelled, err
		},
		"filter": func(s *tasks.Scheduler) (cancelled int, err error) {
			a := tasks.Act{Action: tasks.CancelAction, Query: tasks.Query{Topic: "x"}}
			for {
				done, err := s.Admin().Act(b.Context(), a)
				cancelled += done.Done
				if a.Query.Cursor = done.Cursor; err != nil || a.Query.Cursor == "" {
					return cancelled, err
				}
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				b.StopTimer()
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
				for i := range 2 * number {
					r := tasks.Request{Topic: "other", Delay: time.Hour + time.Duration(i)*time.Millisecond}
					if i%2 == 0 {
						r.Topic, r.Group = "x", "g"
					}
					if requests = append(requests, r); len(requests) == tasks.MaxBatch {
						if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
							b.Fatal(err)
						}
						requests = requests[:0]
					}
				}
				b.StartTimer()
				n, err := cancel(s)
				b.StopTimer()
				if err != nil || n != number {
					b.Fatalf("%d are cancelled, %v", n, err)
				}
				if err := s.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(number*b.N)/b.Elapsed().Seconds(), "tasks/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
