package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// BenchmarkBacklog measures how long 100,000 tasks take that are overdue at one node, and
// whose receiver is slow, with and without another node that takes a part of it.
func BenchmarkBacklog(b *testing.B) {
	const tasks, took = 100_000, 100 * time.Millisecond
	for _, helpers := range []int{0, 1} {
		b.Run(fmt.Sprint("helpers=", helpers), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				fleet := memfleet.New()
				var made atomic.Int64
				all := make(chan struct{})
				var nodes []*Scheduler
				for i := range 1 + helpers {
					name := fmt.Sprint("node-", i)
					s, err := Open(b.Context(), fleet.Join(name, 4), Config{
						Node: name, SweepHelper: [][]string{nil, {"backlog"}}[min(i, 1)], SweepBacklog: 1000, Log: slog.New(slog.DiscardHandler),
						Topics: map[string]TopicSettings{"x": {Concurrency: 256}},
					})
					if err != nil {
						b.Fatal(err)
					}
					nodes = append(nodes, s)
					if err := s.Handle("x", func(context.Context, *Delivery) error {
						time.Sleep(took)
						if made.Add(1) == tasks {
							close(all)
						}
						return nil
					}); err != nil {
						b.Fatal(err)
					}
				}
				due := time.Now().Add(5 * time.Second)
				for from := 0; from < tasks; from += MaxBatch {
					reqs := make([]Request, MaxBatch)
					for i := range reqs {
						reqs[i] = Request{Topic: "x", Due: due, Payload: []byte(`{"order": 1}`)}
					}
					if _, err := nodes[0].ScheduleBatch(b.Context(), reqs); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(time.Until(due))
				b.StartTimer()
				<-all
				b.StopTimer()
				var helped int64
				for _, n := range nodes {
					helped += rig.Cluster(n).Peers.Counts.OffloadedIn.Load()
					_ = n.Close(context.Background())
				}
				b.ReportMetric(float64(helped)/tasks, "helped/task")
				b.StartTimer()
			}
		})
	}
}
