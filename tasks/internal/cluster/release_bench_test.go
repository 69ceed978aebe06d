package cluster_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/cluster"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// BenchmarkTransfer measures how long a shard of 10,000 tasks is on its way from one node to
// another, beside what else the first one holds: for so long its tasks may be late.
func BenchmarkTransfer(b *testing.B) {
	for _, beside := range []int{0, 1_000_000} {
		b.Run(fmt.Sprint("beside=", beside), func(b *testing.B) { benchmarkRelease(b, beside) })
	}
}

func benchmarkRelease(b *testing.B, beside int) {
	const size, leases = 10_000, 100
	fleet := memfleet.New()
	nodes := make(map[string]*Scheduler)
	for _, name := range []string{"a", "b"} {
		s, err := rig.OpenWith(b.Context(), fleet.Join(name, 2), Config{Node: name, AnswerWithin: time.Minute, Log: slog.New(slog.DiscardHandler)}, rig.Parts{Peers: cluster.PeerCalls{
			CallRelease: func(ctx context.Context, node string, shardID recovery.ShardID) error {
				return rig.Engine(nodes[node]).ReleaseShard(ctx, shardID, name)
			},
		}})
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = s.Close(context.Background()) }()
		<-rig.Engine(s).Reading.Replayed
		nodes[name] = s
	}
	// No node asks for what is its own, so that only the benchmark moves it.
	for _, s := range nodes {
		rig.Mutex(rig.Engine(s)).Lock()
		rig.Engine(s).NodeNumber = 0
		rig.Mutex(rig.Engine(s)).Unlock()
	}
	a := nodes["a"]
	moving, other := recovery.NewShardID(1, 0), recovery.NewShardID(1, 1)
	fillHome := func(shardID recovery.ShardID, n int, due time.Duration) {
		for n > 0 {
			some := make([]Request, min(n, MaxBatch))
			for i := range some {
				some[i] = Request{ID: shardID.NewID(), Topic: "x", Delay: due, Payload: make([]byte, 200)}
			}
			results, err := a.ScheduleBatch(b.Context(), some)
			if err != nil || results[0].Err != nil {
				b.Fatal(err, results[0].Err)
			}
			n -= len(some)
		}
	}
	fillHome(moving, leases, 0)
	if ds, err := a.Reserve(b.Context(), "x", leases, time.Second, time.Hour); err != nil || len(ds) != leases {
		b.Fatal(len(ds), err)
	}
	fillHome(moving, size-leases, time.Hour)
	fillHome(other, beside, time.Hour)
	from, to := "a", "b"
	for b.Loop() {
		if err := rig.Cluster(nodes[to]).AcceptOffer(b.Context(), moving, from); err != nil {
			b.Fatal(err)
		}
		for {
			if whole, _, _ := rig.Engine(nodes[to]).OwnedShards(); slices.Contains(whole, moving) {
				break
			}
			time.Sleep(50 * time.Microsecond)
		}
		from, to = to, from
	}
}
