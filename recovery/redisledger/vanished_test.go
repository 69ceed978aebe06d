package redisledger

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// What Redis has lost is not taken for what does not exist: neither the owner of a shard nor the
// nodes that may have an id. It ends with the next heartbeat of those that live.
func TestLostOwners(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(server *redistest.Server, b *fleetNode){
		"everything":   func(server *redistest.Server, _ *fleetNode) { server.Do("flushall") },
		"the registry": func(server *redistest.Server, _ *fleetNode) { server.Do("del", "lapse:nodes") },
		"the registry, numbered": func(server *redistest.Server, _ *fleetNode) {
			server.Do("del", "lapse:nodes", "lapse:numbers:{lapse:nodes}")
		},
		"the entry of a node": func(server *redistest.Server, _ *fleetNode) { server.Do("hdel", "lapse:nodes", "b") },
		"a token": func(server *redistest.Server, b *fleetNode) {
			keys := b.keys.Shard("b", 1)
			server.Do("hdel", keys.Tasks(), layout.OwnerField)
		},
		"a shard": func(server *redistest.Server, b *fleetNode) {
			keys := b.keys.Shard("b", 1)
			server.Do("del", keys.Tasks())
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
			if err := a.member.Poll(t.Context()); err != nil {
				t.Fatal(err)
			}
			shardID := b.ShardID(1)
			lose(server, b)
			h, err := a.Locate(t.Context(), shardID, true)
			if !errors.Is(err, recovery.ErrOwnerLost) && !(err == nil && h.Node == "b") {
				t.Errorf("Locate = %+v, %v", h, err)
			}
			if strings.Contains(what, "a ") { // the registry is complete
				b.member.KeepOnce()
			} else {
				if err := a.member.Poll(t.Context()); err != nil {
					t.Fatal(err)
				}
				if names, err := a.Unindexed(t.Context()); !errors.Is(err, recovery.ErrOwnerLost) {
					t.Errorf("Unindexed = %v, %v", names, err)
				}
				eventually(t, "this node has noticed by itself", func() bool { return server.Do("hexists", "lapse:nodes", "a") == int64(1) })
				b.member.KeepOnce()
			}
			if h, err := a.Locate(t.Context(), shardID, true); err != nil || h.Node != "b" {
				t.Errorf("then Locate = %+v, %v", h, err)
			}
			if names, err := a.Unindexed(t.Context()); err != nil {
				t.Errorf("then Unindexed = %v, %v", names, err)
			}
			if all, err := a.ShardIDs(t.Context()); err != nil || len(all) != 8 {
				t.Errorf("then ShardIDs = %v, %v", all, err)
			}
		})
	}
}

// What does not exist is told as long as nothing is lost: a shard that no node has used, one of a
// node that there is not, and a retired one.
func TestNoOwners(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	number := b.ShardID(0).Node()
	keys := b.keys.Shard("b", 1)
	server.Do("hset", keys.Tasks(), layout.OwnerField, layout.NewToken(layout.RetiredNode, "x", 9).String())
	for what, shardID := range map[string]recovery.ShardID{
		"not used": recovery.NewShardID(number, 100), "retired": b.ShardID(1), "of no node": recovery.NewShardID(number+1, 0),
	} {
		if h, err := a.Locate(t.Context(), shardID, true); err != nil || h.Node != "" || h.Retired != (what == "retired") {
			t.Errorf("%s: Locate = %+v, %v", what, h, err)
		}
	}
}

// Redis loses everything, also of a node that is down. Its shards are looked for all the same, and
// adopted: then their owner says what is left.
func TestLostOwnerThatIsDead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	shardID := b.ShardID(1)
	if err := a.member.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.crash()
	server.Do("flushall")
	lost := func(when string) {
		t.Helper()
		if err := a.member.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
		if h, err := a.Locate(t.Context(), shardID, true); !errors.Is(err, recovery.ErrOwnerLost) {
			t.Errorf("%s: Locate = %+v, %v", when, h, err)
		}
		if nodes, err := a.Peers(t.Context()); err != nil || len(nodes) != 2 {
			t.Errorf("%s: Peers = %+v, %v", when, nodes, err)
		}
	}
	lost("at first")
	a.member.KeepOnce()
	lost("once this node has registered again")
	if err := a.member.Probe().Age(2*time.Hour, "a"); err != nil {
		t.Fatal(err)
	}
	a.member.RestoreVanished(t.Context())
	a.member.KeepOnce()
	lost("once its entry is there again")
	a.look(t) // it sees that the tokens are missing
	a.age(t, 2*time.Hour, "b")
	a.member.KeepOnce()
	a.look(t)
	a.waitAcquired(t, 4)
	if h, err := a.Locate(t.Context(), shardID, true); err != nil || h.Shard < 0 {
		t.Errorf("Locate = %+v, %v", h, err)
	}
}

// A process that slept while another one took over what Redis had lost does not take it back.
func TestLostTokenWhileAsleep(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	keys := b.keys.Shard("b", 1)
	for range 3 { // b's token gets a higher epoch than that of a node that finds none
		server.Do("hdel", keys.Tasks(), layout.OwnerField)
		b.member.KeepOnce()
	}
	server.Do("hset", keys.Tasks(), layout.OwnerField, layout.NewToken("a", a.member.Self.Incarnation, 1).String())
	if err := b.member.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.member.Answered(time.Now().Add(-3 * time.Hour))
	b.member.KeepOnce()
	eventually(t, "the shard is lost", func() bool { _, lost := b.told(); return lost == 1 })
	if got := server.Do("hget", keys.Tasks(), layout.OwnerField); got != layout.NewToken("a", a.member.Self.Incarnation, 1).String() {
		t.Errorf("the token is %v", got)
	}
}

// Redis loses a part of the directory, or all of it, and keeps its replication id: each node has
// doubts, whichever of them asks first.
func TestLostPartOfTheDirectory(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string][]any{
		"everything": {"flushall"}, "a bucket": {"del", "lapse:ids:87"}, "the id of the data set": {"del", "lapse:dataset"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
			file(t, a.Ledger, []recovery.DirectoryUpdate{{ID: "order-42", New: here}}, here)
			for _, n := range []*fleetNode{a, b} {
				if s := n.Standing(); s.Doubts != 0 || s.Doubtful {
					t.Fatalf("at first %s has doubts: %+v", n.opts.Node, s)
				}
			}
			server.Do(lose...)
			if what != "the id of the data set" {
				if _, err := b.Lookup(t.Context(), []string{"order-42"}); err != nil {
					t.Fatal(err)
				}
				if s := b.Standing(); s.Doubts != 1 || !s.Doubtful {
					t.Errorf("after a look at it there are %+v", s)
				}
			}
			for _, n := range []*fleetNode{a, b} {
				n.member.KeepOnce()
				n.look(t)
				if !n.Standing().Doubtful {
					t.Errorf("after its heartbeat %s has no doubts", n.opts.Node)
				}
			}
			doubts := b.Standing().Doubts
			file(t, b.Ledger, []recovery.DirectoryUpdate{{ID: "other", New: there}}, there)
			if now := b.Standing().Doubts; now != doubts {
				t.Errorf("what was noticed is noticed again: %d and %d", doubts, now)
			}
		})
	}
}

// A change of the directory tells as well that a part of it is gone.
func TestLostPartIsNoticedByAChange(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	server.Do("del", "lapse:ids:87")
	file(t, a.Ledger, []recovery.DirectoryUpdate{{ID: "order-42", New: here}}, here)
	if s := a.Standing(); s.Doubts != 1 || !s.Doubtful {
		t.Errorf("there are %+v", s)
	}
}
