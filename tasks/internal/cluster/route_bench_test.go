package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// benchedFleets are ledgers of many nodes.
var benchedFleets = map[string]func(b *testing.B) func(node string) recovery.Ledger{
	"memory": func(*testing.B) func(string) recovery.Ledger {
		f := memfleet.New()
		return func(node string) recovery.Ledger { return f.Join(node, 16) }
	},
	"redis": func(b *testing.B) func(string) recovery.Ledger {
		server := redistest.Start(b)
		return func(node string) recovery.Ledger {
			l, err := redisledger.Open(redisledger.Options{URL: server.URL(), Node: node, Log: slog.New(slog.DiscardHandler)})
			if err != nil {
				b.Fatal(err)
			}
			return l
		}
	},
}

// benchedNodes opens so many nodes, and waits until they know of each other.
func benchedNodes(b *testing.B, fleet func(b *testing.B) func(string) recovery.Ledger, n int) (nodes []*Scheduler) {
	b.Helper()
	ledger := fleet(b)
	for i := range n {
		node := string(rune('a' + i))
		s, err := Open(b.Context(), ledger(node), Config{Node: node, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = s.Close(context.Background()) })
		nodes = append(nodes, s)
	}
	for deadline := time.Now().Add(20 * time.Second); n > 1 && !rig.Cluster(nodes[0]).IsIndexed(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("the first node has not registered its ids")
		}
	}
	return nodes
}

// BenchmarkScheduleAtNodes schedules from 192 callers of each node, at one and at three of one
// Redis. They cost each other nothing, or three would take less together than one alone.
func BenchmarkScheduleAtNodes(b *testing.B) {
	for _, size := range []int{1, 100} {
		for _, n := range []int{1, 3} {
			b.Run(fmt.Sprintf("batch=%d/nodes=%d", size, n), func(b *testing.B) {
				nodes := benchedNodes(b, benchedFleets["redis"], n)
				var callers atomic.Int64
				b.SetParallelism(192 * n / runtime.GOMAXPROCS(0))
				b.ResetTimer()
				b.RunParallel(func(p *testing.PB) {
					s := nodes[int(callers.Add(1))%n]
					requests := make([]Request, size)
					for p.Next() {
						for i := range requests {
							requests[i] = Request{Topic: "t", Delay: time.Hour, Payload: []byte(`{"order":42}`)}
						}
						results, err := s.ScheduleBatch(b.Context(), requests)
						if err != nil || results[0].Err != nil {
							b.Errorf("%v, %v", results, err)
						}
					}
				})
				b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "tasks/s")
			})
		}
	}
}

// BenchmarkAcrossNodes asks for tasks, and cancels them, at the node that holds them and at
// another one: one after another for the median, then from 64 callers for the rate.
func BenchmarkAcrossNodes(b *testing.B) {
	for _, name := range []string{"memory", "redis"} {
		b.Run(name, func(b *testing.B) {
			nodes := benchedNodes(b, benchedFleets[name], 2)
			for _, ids := range []string{"made", "chosen"} {
				for _, verb := range []string{"get", "cancel"} {
					for i, where := range []string{"here", "there"} {
						b.Run(ids+"/"+verb+"/"+where, func(b *testing.B) { acrossNodes(b, nodes[0], nodes[i], ids, verb) })
					}
				}
			}
		})
	}
}

func acrossNodes(b *testing.B, owner, asked *Scheduler, ids, verb string) {
	const alone = 200
	all := make([]string, b.N+alone)
	for part := range slices.Chunk(all, 1000) {
		requests := make([]Request, len(part))
		for i := range requests {
			requests[i] = Request{Topic: "t", Delay: time.Hour, Payload: []byte(`{"order":42}`)}
			if ids == "chosen" {
				requests[i].ID = NewID() + "-chosen"
			}
		}
		results, err := owner.ScheduleBatch(b.Context(), requests)
		if err != nil {
			b.Fatal(err)
		}
		for i, r := range results {
			if part[i] = r.ID; r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
	do := func(id string) {
		var err error
		if verb == "get" {
			_, err = asked.Get(b.Context(), id)
		} else {
			err = asked.Cancel(b.Context(), id)
		}
		if err != nil {
			b.Error(fmt.Errorf("%s: %w", id, err))
		}
	}
	took := make([]time.Duration, alone)
	for i := range took {
		began := time.Now()
		do(all[b.N+i])
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	var next atomic.Int64
	b.SetParallelism(32) // times two processors
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			do(all[next.Add(1)-1])
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(took[alone/2].Microseconds()), "µs-p50")
	b.ReportMetric(0, "ns/op")
}
