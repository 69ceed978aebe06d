package cluster_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// A node keeps a shard until the next owner has its content in memory. The next owner does not
// read the ledger for it again, which may have lost the content by then.
func TestShardIsKeptUntilItWasRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		pending := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Minute})
		dead := a.Create(Request{ID: a.IDAt(0), Topic: "y"})
		a.SettleOne(Bury, a.PullOwn("y", dead)[0])
		release := b.Member.Hold("ReadAhead")
		never := b.Member.Hold("ScanShard")
		drained := make(chan error, 1)
		go func() { drained <- a.Drain(context.Background()) }()
		rig.Pass(20 * time.Second)
		if n := a.Stats(); n.ShardsHeld != 1 || n.Total.Pending != 1 || n.ShardsYielded != 0 {
			t.Errorf("while the next owner reads: %d shards, %d tasks, %d transferred", n.ShardsHeld, n.Total.Pending, n.ShardsYielded)
		}
		select {
		case err := <-drained:
			t.Fatalf("Drain has ended: %v", err)
		default:
		}
		release()
		rig.Want(t, "Drain", <-drained, nil)
		if n := b.Stats(); n.Total.Pending != 1 || n.Total.Dead != 1 {
			t.Errorf("the next owner knows %d pending and %d dead tasks", n.Total.Pending, n.Total.Dead)
		}
		if _, err := b.Engine().Get(t.Context(), pending); err != nil {
			t.Error(err)
		}
		never()
		b.Check()
	})
}

// What is ended while a shard is loaded stays ended, although it was pending when the shard was
// read.
func TestEndedWhileAShardIsLoaded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, a *rig.Node, id string){
		"cancelled": func(t *testing.T, a *rig.Node, id string) { rig.Want(t, "Cancel", a.Cancel(t.Context(), id), nil) },
		"acknowledged": func(t *testing.T, a *rig.Node, id string) {
			rig.Pass(time.Minute)
			rig.Want(t, "ack", a.Ack(a.PullOwn("x", id)[0]).Err, nil)
		},
		"buried": func(t *testing.T, a *rig.Node, id string) {
			rig.Pass(time.Minute)
			a.SettleOne(Bury, a.PullOwn("x", id)[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
				a := f.Join("a", 1, Config{})
				id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Minute})
				var page []recovery.Entry
				rig.Want(t, "Get", a.Member.Get(t.Context(), 0, []recovery.Ref{{ID: id}}, func(_ int, e recovery.Entry) {
					page = append(page, recovery.Entry{Shard: 0, ID: []byte(id), Spot: e.Spot, Data: bytes.Clone(e.Data)})
				}), nil)
				if len(page) != 1 {
					t.Fatalf("read: %+v", page)
				}
				end(t, a, id)
				(*engine.Memory)(a.Engine()).LoadAhead(page)
				rig.Pass(2 * time.Minute)
				if n := a.Stats(); n.Total.Pending+n.Total.Ready != 0 {
					t.Errorf("%d tasks are pending, %d ready", n.Total.Pending, n.Total.Ready)
				}
				a.Check()
			})
		})
	}
}

// While a node reads a shard, the kernel copies nothing beside it.
func TestHugePagesWaitForShards(t *testing.T) {
	rig.HugePages(t)
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		release := b.Member.Hold("ReadAhead")
		done := make(chan error, 1)
		go func() { done <- a.Engine().ReleaseShard(context.Background(), a.ShardID(0), "b") }()
		for range 5000 {
			b.Create(Request{ID: b.IDAt(0), Topic: "x", Delay: time.Hour, Payload: make([]byte, 32<<10)})
		}
		rig.Pass(5 * time.Second)
		if rig.AskedForHugePages(b.Log) {
			t.Error("the kernel was asked for huge pages while a shard was read")
		}
		release()
		rig.Want(t, "hand-over", <-done, ErrUnavailable)
		rig.Want(t, "the next hand-over", a.HandTo(b), nil)
		rig.Pass(5 * time.Second)
		if !rig.AskedForHugePages(b.Log) {
			t.Error("the kernel was not asked for huge pages once the shard was read")
		}
	})
}

// What cannot be read ahead is not given up: it goes on where it is, and leaves at the next
// attempt.
func TestReadAheadFails(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Second})
		b.Member.Fail("ReadAhead", errors.New("no"))
		rig.Want(t, "hand-over", a.HandTo(b), ErrUnavailable)
		rig.Pass(2 * time.Second)
		rig.Want(t, "ack", a.Ack(a.PullOwn("x", id)[0]).Err, nil)
		rig.Want(t, "the next hand-over", a.HandTo(b), nil)
		b.Check()
	})
}

// Writes that the ledger loses while the next owner reads are found before the shard changes hands,
// and written again by the node that has them.
func TestLossWhileAShardIsRead(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		id := a.Create(Request{ID: a.IDAt(0), Topic: "x", Delay: time.Hour})
		release := b.Member.Hold("ReadAhead")
		done := make(chan error, 1)
		go func() { done <- a.Engine().ReleaseShard(context.Background(), a.ShardID(0), "b") }()
		rig.Pass(100 * time.Millisecond)
		a.Engine().Rewound(a.Member, 0)
		rig.Pass(time.Second)
		rig.Want(t, "hand-over", <-done, ErrUnavailable)
		release()
		rig.Pass(time.Second)
		if n := a.Stats(); n.ShardsHeld != 1 || n.Total.Pending != 1 {
			t.Errorf("%d shards, %d tasks", n.ShardsHeld, n.Total.Pending)
		}
		rig.Want(t, "the next hand-over", a.HandTo(b), nil)
		if _, err := b.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		b.Check()
	})
}

// A node that was cut off, and still believes to hold a shard that another node has adopted, reads
// the shard before it gets it back.
func TestReadAheadByAFormerOwner(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 1, Config{}), f.Join("b", 1, Config{})
		a.Member.Cut(true)
		b.Member.AdoptFrom(a.Member.Member)
		rig.Pass(time.Second)
		at, err := b.Member.Locate(t.Context(), a.ShardID(0), true)
		rig.Want(t, "Locate", err, nil)
		position, err := b.Member.Position(at.Shard)
		rig.Want(t, "Position", err, nil)
		if a.Stats().ShardsHeld != 1 {
			t.Fatal("the node that was cut off knows of its loss")
		}
		if err := a.Engine().ReadAhead(t.Context(), a.ShardID(0), position); err == nil {
			t.Error("a node says that it has read a shard that it cannot reach")
		}
		a.Member.Cut(false)
		rig.Pass(time.Second)
	})
}

// A shard that was read ahead in vain is forgotten, and a node reads few of them at a time.
func TestReadAheadIsBounded(t *testing.T) {
	rig.FleetBubble(t, 0, func(t *testing.T, f *rig.Fleet) {
		a, b := f.Join("a", 5, Config{}), f.Join("b", 1, Config{})
		read := func(n int) error {
			position, err := a.Member.Position(n)
			rig.Want(t, "Position", err, nil)
			return b.Engine().ReadAhead(t.Context(), a.ShardID(n), position)
		}
		for n := range 4 {
			rig.Want(t, "ReadAhead", read(n), nil)
		}
		rig.Want(t, "ReadAhead of one more", read(4), ErrUnavailable)
		rig.Pass(time.Minute)
		rig.Want(t, "ReadAhead later", read(4), nil)
		if err := b.Engine().ReadAhead(t.Context(), a.ShardID(4), "elsewhere"); err == nil {
			t.Error("a shard counts as read at a position that it does not have")
		}
	})
}

// A failover forgets a whole hand-over, and what was done right before it, also a task that was
// created, buried or kept in that moment. The node that gave the shards away has ended by then.
func TestFailoverForgetsADrain(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	g := newRedisFleet(t, servers.URL(), "a", "b")
	g.prepare()
	servers.Master.Do("wait", 1, 5000)
	servers.ShutReplicaOut()
	g.settle(Ack, g.pull("in-flight"))
	g.schedule("x", "short-lived")
	g.settle(Bury, g.pull("short-lived"))
	wanted := g.change()
	a, b := g.nodes[0], g.nodes[1]
	rig.Want(t, "Drain", a.Drain(t.Context()), nil)
	rig.Want(t, "Close", a.Close(context.Background()), nil)
	servers.FailOver()
	b.waitFor("it holds all shards", func() bool { return b.Stats().ShardsHeld == 8 && !rig.Engine(b.Scheduler).Unsure() })
	b.waitFor("every shard was made equal to memory", func() bool {
		s := b.Stats()
		return s.Rewinds >= 8 && s.Ledger.Queued == 0 && !rig.Engine(b.Scheduler).Restoring()
	})
	g.nodes = g.nodes[1:]
	g.wantTold(wanted)
	g.wantAfterChange()
}
