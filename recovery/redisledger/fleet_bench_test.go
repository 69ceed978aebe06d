package redisledger

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery/redisledger/internal/identity"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/member"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// fillRegistry registers nodes up to a number, each with 16 shards and a status of 300 bytes.
func fillRegistry(b testing.TB, l *Ledger, nodes int) {
	b.Helper()
	const shards = 16
	for n := range nodes - 1 {
		name := fmt.Sprintf("10.0.0.%d:7480", n)
		number, err := l.member.Number(b.Context(), name)
		if err != nil {
			b.Fatal(err)
		}
		e := member.Entry{
			Incarnation: layout.NewIncarnation(), Generation: 1, Counts: []int{shards}, Number: number,
			Version: "1.2.3", Address: "http://" + name, Format: 1, Layout: 1, Process: identity.Self(),
		}
		if _, err := l.client.Pipelined(b.Context(), func(p redis.Pipeliner) error {
			p.HSet(b.Context(), l.keys.Nodes(), name, e.Encode())
			p.HSet(b.Context(), l.keys.Status(), name, strings.Repeat("s", 300))
			p.Incr(b.Context(), l.keys.Heartbeat(name))
			for i := range shards {
				keys := l.keys.Shard(name, i)
				p.HSet(b.Context(), keys.Tasks(), layout.OwnerField, layout.NewToken(name, e.Incarnation, 1).String(), layout.SequenceField, 1)
				p.SAdd(b.Context(), keys.Pending(), layout.AnchorMember)
			}
			return nil
		}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFleet measures the background work of one node among 50: all times are those of one
// round trip and of the work on both of its ends.
func BenchmarkFleet(b *testing.B) {
	server := redistest.Start(b)
	l := join(b, server.URL(), "self", func(o *Options) { still(o); o.Shards = 16 }).Ledger
	fillRegistry(b, l, 50)
	if err := l.member.Poll(b.Context()); err != nil {
		b.Fatal(err)
	}
	run := func(name string, f func(ctx context.Context) error) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := f(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("Watch", l.member.Poll)
	run("Survey", func(ctx context.Context) error {
		found, err := l.member.Probe().ReadOwners(ctx)
		if err == nil && found != 800 {
			err = fmt.Errorf("%d shards were found", found)
		}
		return err
	})
	run("Keep", func(context.Context) error { l.member.KeepOnce(); return l.Health().Err })
	run("Beat", l.member.Beat)
	run("Nodes", func(ctx context.Context) error { _, err := l.Nodes(ctx); return err })
	run("Standing", func(context.Context) error { _ = l.Standing(); return nil })
	id := []byte(l.ShardID(3).NewID())
	run("ShardOf", func(context.Context) error { _ = l.member.ShardFor(id); return nil })
	chosen := []byte("order-42")
	run("ShardOfChosen", func(context.Context) error { _ = l.member.ShardFor(chosen); return nil })
}
