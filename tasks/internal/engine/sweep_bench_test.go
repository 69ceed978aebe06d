package engine_test

import (
	"context"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

func benched(b *testing.B, n int) *Scheduler {
	b.Helper()
	l, err := diskledger.Open(b.TempDir(), diskledger.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s, err := Open(b.Context(), l, Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	<-rig.Engine(s).Reading.Replayed
	due := time.Now().Add(1000 * time.Hour)
	requests := make([]Request, MaxBatch)
	for first := 0; first < n; first += len(requests) {
		for i := range requests {
			requests[i] = Request{Topic: "x", Due: due.Add(time.Duration(first+i) * time.Millisecond), Payload: make([]byte, 200)}
		}
		if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
			b.Fatal(err)
		}
	}
	return s
}

func spent() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// scheduling schedules tasks one after the other until stop is closed, and returns
// how long each took.
func scheduling(b *testing.B, s *Scheduler, stop <-chan struct{}) <-chan []time.Duration {
	out := make(chan []time.Duration, 1)
	go func() {
		var took []time.Duration
		for {
			select {
			case <-stop:
				slices.Sort(took)
				out <- took
				return
			default:
			}
			began := time.Now()
			if _, err := s.Schedule(context.Background(), Request{Topic: "y", Delay: time.Hour}); err != nil {
				b.Error(err)
			}
			took = append(took, time.Since(began))
		}
	}()
	return out
}

func inMillis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkSweep measures, with 1 million tasks pending far in the future on the
// embedded ledger, the share of one core that an idle node uses, and what one sweep and
// one search through everything cost; and of a full sweep, with 100,000 tasks, how long
// it takes, the share of a core, and what a lone caller's schedules take beside it and
// without it.
func BenchmarkSweep(b *testing.B) {
	s := benched(b, 1_000_000)
	defer s.Close(context.Background())
	<-time.After(5 * time.Second) // for what the ledger does after so many writes

	b.Run("Idle", func(b *testing.B) {
		for b.Loop() {
			busy, began := spent(), time.Now()
			<-time.After(10 * time.Second)
			b.ReportMetric(100*float64(spent()-busy)/float64(time.Since(began)), "%core")
		}
		b.ReportMetric(0, "ns/op")
	})
	b.Run("Once", func(b *testing.B) {
		for b.Loop() {
			rig.Engine(s).SweepOnce(false)
		}
	})
	b.Run("SearchAll", func(b *testing.B) {
		for b.Loop() {
			if rig.Engine(s).SearchOverdue(true) != 0 {
				b.Fatal("something was overdue")
			}
		}
	})
	b.Run("Full", func(b *testing.B) {
		s := benched(b, 100_000)
		defer s.Close(context.Background())
		for b.Loop() {
			stop := make(chan struct{})
			alone := scheduling(b, s, stop)
			<-time.After(5 * time.Second)
			close(stop)
			before := <-alone

			fulls := s.Stats().FullSweeps
			busy, began := spent(), time.Now()
			rig.Engine(s).SweepOnce(true)
			for tick := time.Tick(100 * time.Millisecond); s.Stats().FullSweeps == fulls; {
				<-tick
			}
			b.ReportMetric(time.Since(began).Seconds(), "s/sweep")
			b.ReportMetric(100*float64(spent()-busy)/float64(time.Since(began)), "%core")

			fulls = s.Stats().FullSweeps
			stop = make(chan struct{})
			rig.Engine(s).SweepOnce(true)
			beside := scheduling(b, s, stop)
			<-time.After(5 * time.Second)
			close(stop)
			during := <-beside
			if s.Stats().FullSweeps != fulls {
				b.Log("the sweep was over before the schedules")
			}
			b.ReportMetric(inMillis(before[len(before)/2]), "alone-p50-ms")
			b.ReportMetric(inMillis(before[len(before)*99/100]), "alone-p99-ms")
			b.ReportMetric(inMillis(during[len(during)/2]), "beside-p50-ms")
			b.ReportMetric(inMillis(during[len(during)*99/100]), "beside-p99-ms")
		}
		b.ReportMetric(0, "ns/op")
	})
}
