package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// BenchmarkAcrossNodes asks for tasks, and cancels them, at the node that holds them and at
// another one: one after another for the median, then from 64 callers for the rate.
func BenchmarkAcrossNodes(b *testing.B) {
	fleets := map[string]func(b *testing.B) func(node string) recovery.Ledger{
		"memory": func(*testing.B) func(string) recovery.Ledger {
			f := memledger.NewFleet()
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
	for _, name := range []string{"memory", "redis"} {
		b.Run(name, func(b *testing.B) {
			ledger := fleets[name](b)
			var nodes []*Scheduler
			for _, node := range []string{"a", "b"} {
				s, err := Open(b.Context(), ledger(node), Config{Node: node, Log: slog.New(slog.DiscardHandler)})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = s.Close(context.Background()) })
				nodes = append(nodes, s)
			}
			for deadline := time.Now().Add(20 * time.Second); !nodes[0].isIndexed(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					b.Fatal("the first node has not filed its ids")
				}
			}
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
