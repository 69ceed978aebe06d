package tasks_test

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
)

// A node keeps a shard until the next owner has its content in memory. The next owner does not
// read the ledger for it again, which may have lost the content by then.
func TestShardIsKeptUntilItWasRead(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		pending := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Minute})
		dead := a.create(Request{ID: a.idAt(0), Topic: "y"})
		a.settle(Bury, a.pullOwn("y", dead)[0])
		release := b.member.hold("ReadAhead")
		never := b.member.hold("ScanShard")
		drained := make(chan error, 1)
		go func() { drained <- a.Drain(context.Background()) }()
		pass(20 * time.Second)
		if n := a.Stats(); n.ShardsHeld != 1 || n.Total.Pending != 1 || n.ShardsYielded != 0 {
			t.Errorf("while the next owner reads: %d shards, %d tasks, %d transferred", n.ShardsHeld, n.Total.Pending, n.ShardsYielded)
		}
		select {
		case err := <-drained:
			t.Fatalf("Drain has ended: %v", err)
		default:
		}
		release()
		want(t, "Drain", <-drained, nil)
		if n := b.Stats(); n.Total.Pending != 1 || n.Total.Dead != 1 {
			t.Errorf("the next owner knows %d pending and %d dead tasks", n.Total.Pending, n.Total.Dead)
		}
		if _, err := b.Engine().Get(t.Context(), pending); err != nil {
			t.Error(err)
		}
		never()
		b.check()
	})
}

// What is ended while a shard is loaded stays ended, although it was pending when the shard was
// read.
func TestEndedWhileAShardIsLoaded(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, a *node, id string){
		"cancelled": func(t *testing.T, a *node, id string) { want(t, "Cancel", a.Cancel(t.Context(), id), nil) },
		"acknowledged": func(t *testing.T, a *node, id string) {
			pass(time.Minute)
			want(t, "ack", a.ack(a.pullOwn("x", id)[0]).Err, nil)
		},
		"buried": func(t *testing.T, a *node, id string) {
			pass(time.Minute)
			a.settle(Bury, a.pullOwn("x", id)[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			fleetBubble(t, 0, func(t *testing.T, f *fleet) {
				a := f.join("a", 1, Config{})
				id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Minute})
				var page []recovery.Entry
				want(t, "Get", a.member.Get(t.Context(), 0, []recovery.Ref{{ID: id}}, func(_ int, e recovery.Entry) {
					page = append(page, recovery.Entry{Shard: 0, ID: []byte(id), Spot: e.Spot, Data: bytes.Clone(e.Data)})
				}), nil)
				if len(page) != 1 {
					t.Fatalf("read: %+v", page)
				}
				end(t, a, id)
				(*engine.Memory)(a.Engine()).LoadAhead(page)
				pass(2 * time.Minute)
				if n := a.Stats(); n.Total.Pending+n.Total.Ready != 0 {
					t.Errorf("%d tasks are pending, %d ready", n.Total.Pending, n.Total.Ready)
				}
				a.check()
			})
		})
	}
}

// While a node reads a shard, the kernel copies nothing beside it.
func TestHugePagesWaitForShards(t *testing.T) {
	hugePages(t)
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		release := b.member.hold("ReadAhead")
		done := make(chan error, 1)
		go func() { done <- a.Engine().ReleaseShard(context.Background(), a.shardID(0), "b") }()
		for range 5000 {
			b.create(Request{ID: b.idAt(0), Topic: "x", Delay: time.Hour, Payload: make([]byte, 32<<10)})
		}
		pass(5 * time.Second)
		if askedForHugePages(b.log) {
			t.Error("the kernel was asked for huge pages while a shard was read")
		}
		release()
		want(t, "hand-over", <-done, ErrUnavailable)
		want(t, "the next hand-over", a.handTo(b), nil)
		pass(5 * time.Second)
		if !askedForHugePages(b.log) {
			t.Error("the kernel was not asked for huge pages once the shard was read")
		}
	})
}

// What cannot be read ahead is not given up: it goes on where it is, and leaves at the next
// attempt.
func TestReadAheadFails(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Second})
		b.member.fail("ReadAhead", errors.New("no"))
		want(t, "hand-over", a.handTo(b), ErrUnavailable)
		pass(2 * time.Second)
		want(t, "ack", a.ack(a.pullOwn("x", id)[0]).Err, nil)
		want(t, "the next hand-over", a.handTo(b), nil)
		b.check()
	})
}

// Writes that the ledger loses while the next owner reads are found before the shard changes hands,
// and written again by the node that has them.
func TestLossWhileAShardIsRead(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		id := a.create(Request{ID: a.idAt(0), Topic: "x", Delay: time.Hour})
		release := b.member.hold("ReadAhead")
		done := make(chan error, 1)
		go func() { done <- a.Engine().ReleaseShard(context.Background(), a.shardID(0), "b") }()
		pass(100 * time.Millisecond)
		a.Engine().Rewound(a.member, 0)
		pass(time.Second)
		want(t, "hand-over", <-done, ErrUnavailable)
		release()
		pass(time.Second)
		if n := a.Stats(); n.ShardsHeld != 1 || n.Total.Pending != 1 {
			t.Errorf("%d shards, %d tasks", n.ShardsHeld, n.Total.Pending)
		}
		want(t, "the next hand-over", a.handTo(b), nil)
		if _, err := b.Engine().Get(t.Context(), id); err != nil {
			t.Error(err)
		}
		b.check()
	})
}

// A node that was cut off, and still believes to hold a shard that another node has adopted, reads
// the shard before it gets it back.
func TestReadAheadByAFormerOwner(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 1, Config{}), f.join("b", 1, Config{})
		a.member.Cut(true)
		b.member.AdoptFrom(a.member.Member)
		pass(time.Second)
		at, err := b.member.Locate(t.Context(), a.shardID(0), true)
		want(t, "Locate", err, nil)
		position, err := b.member.Position(at.Shard)
		want(t, "Position", err, nil)
		if a.Stats().ShardsHeld != 1 {
			t.Fatal("the node that was cut off knows of its loss")
		}
		if err := a.Engine().ReadAhead(t.Context(), a.shardID(0), position); err == nil {
			t.Error("a node says that it has read a shard that it cannot reach")
		}
		a.member.Cut(false)
		pass(time.Second)
	})
}

// A shard that was read ahead in vain is forgotten, and a node reads few of them at a time.
func TestReadAheadIsBounded(t *testing.T) {
	fleetBubble(t, 0, func(t *testing.T, f *fleet) {
		a, b := f.join("a", 5, Config{}), f.join("b", 1, Config{})
		read := func(n int) error {
			position, err := a.member.Position(n)
			want(t, "Position", err, nil)
			return b.Engine().ReadAhead(t.Context(), a.shardID(n), position)
		}
		for n := range 4 {
			want(t, "ReadAhead", read(n), nil)
		}
		want(t, "ReadAhead of one more", read(4), ErrUnavailable)
		pass(time.Minute)
		want(t, "ReadAhead later", read(4), nil)
		if err := b.Engine().ReadAhead(t.Context(), a.shardID(4), "elsewhere"); err == nil {
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
	want(t, "Drain", a.Drain(t.Context()), nil)
	want(t, "Close", a.Close(context.Background()), nil)
	servers.FailOver()
	b.waitFor("it holds all shards", func() bool { return b.Stats().ShardsHeld == 8 && !b.Engine().Unsure() })
	b.waitFor("every shard was made equal to memory", func() bool {
		s := b.Stats()
		return s.Rewinds >= 8 && s.Ledger.Queued == 0 && !b.Engine().Restoring()
	})
	g.nodes = g.nodes[1:]
	g.wantTold(wanted)
	g.wantAfterChange()
}
