package redisledger

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A process that was cut off until the others had forgotten its node may start again at once, as
// no process has the name. They have retired its shards before. An entry that Redis has lost is
// written again, however long the process was cut off.
func TestForgottenWhileCutOff(t *testing.T) {
	for name, retired := range map[string]bool{"forgotten": true, "lost": false} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			join(t, server.URL(), "a", still)
			b := join(t, server.URL(), "b", still)
			b.member.KeepOnce()
			server.Do("hdel", b.keys.Nodes(), "b")
			if retired {
				server.Do("hset", b.member.Term(0).Keys.Tasks(), layout.OwnerField, layout.NewToken(layout.RetiredNode, "x", 3).String())
			}
			b.member.Answered(time.Now().Add(-2 * time.Hour))
			if err := b.member.Beat(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !retired {
				if e, _, err := b.member.ReadEntry(t.Context()); err != nil || e.Incarnation != b.member.Self.Incarnation {
					t.Errorf("the entry is %+v, %v", e, err)
				}
				b.member.KeepOnce()
				b.put(t)
				return
			}
			eventually(t, "memory is told", func() bool {
				b.mu.Lock()
				defer b.mu.Unlock()
				return len(b.ended) == 1 && errors.Is(b.ended[0], recovery.ErrForgotten) && !errors.Is(b.ended[0], recovery.ErrLost)
			})
			if err := b.Apply(t.Context(), 0, batchOf(put("x", "1"))); !errors.Is(err, recovery.ErrLost) {
				t.Errorf("Apply: %v", err)
			}
		})
	}
}

// Redis stands still for longer than failover_after, and is empty afterwards: no node gives up
// what it has in memory, since no other one has it. It need not know that the others could not
// adopt.
func TestEmptyRedisAfterASilenceOfAll(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	quick := func(o *Options) { o.FailoverAfter = time.Second }
	var nodes []*fleetNode
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, join(t, server.URL(), name, quick))
	}
	diaries := make([]diary, len(nodes))
	for i, n := range nodes {
		n.put(t)
		diaries[i].watch(n.Ledger)
	}
	server.Do("flushall")
	server.Kill()
	eventually(t, "the silence is long for all", func() bool {
		return !slices.ContainsFunc(nodes, func(n *fleetNode) bool {
			last, _ := n.member.Report()
			return time.Since(last) < 2*time.Second
		})
	})
	server.Start()
	for i, n := range nodes {
		diaries[i].wait(t, 4)
		n.mu.Lock()
		if len(n.ended) > 0 || len(n.lost) > 0 || len(n.acquired) > 0 {
			t.Errorf("%s has lost %v, acquired %v, ended %v", n.opts.Node, n.lost, n.acquired, n.ended)
		}
		n.mu.Unlock()
		for s := range 4 {
			// A client that was refused often says so for up to a second more, without a look.
			b := batchOf(put(n.ShardID(s).NewID(), "again"))
			eventually(t, "the batch is written", func() bool { return n.Apply(t.Context(), s, b) == nil })
		}
	}
}

// A shard without a token may be that of the node with the longest failover_after, which has doubts
// for half of that. No other node adopts it before.
func TestLostTokenWaitsForTheLongestFailover(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	b := join(t, server.URL(), "b", func(o *Options) { o.FailoverAfter = 3 * time.Hour })
	a.look(t) // it sees b
	keys := b.keys.Shard("b", 1)
	server.Do("hdel", keys.Tasks(), layout.OwnerField)
	for range 3 {
		a.look(t)
		if a.member.Holds("b", 1) != nil {
			t.Fatal("it was adopted while its owner may have doubts")
		}
		a.age(t, 70*time.Minute)
	}
	a.look(t) // from here on another node's part has to wait
	a.age(t, time.Hour)
	a.look(t)
	a.waitAcquired(t, 1)
}

// A node that comes back after others have adopted its shards is not certain before memory has been
// told of each: it would deliver tasks that others have.
func TestUncertainUntilMemoryKnowsItsLosses(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	b := join(t, server.URL(), "b", still)
	b.member.KeepOnce()
	lost, told := make(chan int), make(chan struct{})
	b.Watch(recovery.Watcher{Lost: func(n int, _ error) {
		lost <- n
		<-told
	}})
	b.member.Answered(time.Now().Add(-2 * time.Hour))
	for _, n := range []int{1, 2} {
		taken := layout.NewToken(a.member.Self.Node, a.member.Self.Incarnation, 9)
		keys := b.keys.Shard("b", n)
		server.Do("hset", keys.Tasks(), layout.OwnerField, taken.String())
	}
	b.member.KeepOnce()
	for range 2 {
		<-lost
		if b.Standing().Certain {
			t.Error("it is certain although memory does not know of a lost shard")
		}
		told <- struct{}{}
	}
	eventually(t, "it is certain", func() bool { return b.Standing().Certain })
}
