package redisledger

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// silence makes a still node one that has heard nothing for long.
func (m *fleetNode) silence() {
	long := time.Now().Add(-2 * time.Hour)
	m.member.Answered(long)
	m.member.Probe().SeenHeld(long)
}

// forgetAdoption has b adopt the shards of a, which is silent, and finish the record in shard 1. A
// failover forgets both. It returns b's term of that shard.
func forgetAdoption(t *testing.T) (a, b *fleetNode, n int) {
	t.Helper()
	servers := redistest.StartSentinel(t)
	a, b = join(t, servers.URL(), "a", still), join(t, servers.URL(), "b", still)
	ids := a.put(t)
	b.member.KeepOnce()
	servers.Master.Do("wait", 1, 5000)
	servers.ShutReplicaOut()
	for range 2 {
		b.age(t, 2*time.Hour, "a")
		b.look(t)
	}
	b.waitAcquired(t, 4)
	n = b.member.Holds("a", 1).Number
	if err := b.Apply(t.Context(), n, batchOf(remove(ids[1]), put("y", "new"))); err != nil {
		t.Fatal(err)
	}
	servers.FailOver()
	for _, m := range []*fleetNode{a, b} {
		eventually(t, "it reaches the new master", func() bool { return m.member.Poll(t.Context()) == nil })
	}
	a.silence()
	return a, b, n
}

// A failover forgets an adoption, and the node that was adopted from comes back. It uses its shards
// no more: the adopter claims them again, whichever of both looks first.
func TestForgottenAdoptionFromTheReturned(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(t *testing.T, a, b *fleetNode){
		"Rests": func(t *testing.T, a, _ *fleetNode) {
			t.Helper()
			if err := a.Apply(t.Context(), 1, batchOf(put("x", "1"))); err == nil || errors.Is(err, recovery.ErrLost) {
				t.Errorf("Apply before its first heartbeat: %v", err)
			}
		},
		"AdopterLooksBefore": func(t *testing.T, a, b *fleetNode) {
			t.Helper()
			eventually(t, "a sends a heartbeat", func() bool { return a.member.Beat(t.Context()) == nil })
			b.member.KeepOnce()
			if _, lost := b.told(); lost > 0 {
				t.Errorf("b has given up %d shards", lost)
			}
		},
		"AdopterWasSilentAsWell": func(_ *testing.T, _, b *fleetNode) { b.silence() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, n := forgetAdoption(t)
			first(t, a, b)
			eventually(t, "the shards of a rest", func() bool {
				a.member.KeepOnce()
				mark := a.client.HGet(t.Context(), a.member.Term(1).Keys.Tasks(), layout.AffirmField).Val()
				return strings.HasSuffix(mark, " rests")
			})
			if a.Standing().Certain {
				t.Error("a is certain")
			}
			if err := a.Apply(t.Context(), 1, batchOf(put("x", "1"))); err == nil || errors.Is(err, recovery.ErrLost) {
				t.Errorf("Apply at rest: %v", err)
			}
			eventually(t, "b has claimed them", func() bool {
				b.member.KeepOnce()
				return !slices.Contains(holders(t, b.client, a), "a")
			})
			if err := b.Apply(t.Context(), n, batchOf(put("y", "new"))); err != nil {
				t.Error(err)
			}
			eventually(t, "a has lost its shards", func() bool {
				a.member.KeepOnce()
				_, lost := a.told()
				return lost == 4
			})
			if _, lost := b.told(); lost > 0 {
				t.Errorf("b has lost %d shards", lost)
			}
		})
	}
}

// A node comes back after a silence in which none has adopted its shards. After a failover they
// rest until the other node has looked at its own. The server that it knows forgets nothing.
func TestRestIsOver(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	a, b := join(t, servers.URL(), "a", still), join(t, servers.URL(), "b", still)
	a.put(t)
	a.silence()
	if err := a.Apply(t.Context(), 0, batchOf(put(a.ShardID(0).NewID(), "1"))); err != nil {
		t.Errorf("Apply at the server that it knows: %v", err)
	}
	if a.member.KeepOnce(); !a.Standing().Certain {
		t.Error("not certain at the server that it knows")
	}
	servers.Master.Do("wait", 1, 5000)
	servers.FailOver()
	for _, m := range []*fleetNode{a, b} {
		eventually(t, "it reaches the new master", func() bool { return m.member.Poll(t.Context()) == nil })
	}
	a.silence()
	beats := func() int {
		n, err := b.client.Get(t.Context(), b.keys.Heartbeat("b")).Int()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := beats()
	eventually(t, "the rest is over", func() bool {
		a.member.KeepOnce()
		if a.Standing().Certain {
			return true
		}
		b.member.KeepOnce()
		return false
	})
	if n := beats() - before; n < 2 {
		t.Errorf("the rest was over after %d heartbeats of b", n)
	}
	if err := a.Apply(t.Context(), 0, batchOf(put(a.ShardID(0).NewID(), "2"))); err != nil {
		t.Error(err)
	}
	if mark := a.client.HGet(t.Context(), a.member.Term(0).Keys.Tasks(), layout.AffirmField).Val(); mark != "4" {
		t.Errorf("the shard is affirmed as %q", mark)
	}
}

// The other node is dead: the rest is over all the same.
func TestRestBesideTheDead(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	a, b := join(t, servers.URL(), "a", nil), join(t, servers.URL(), "b", nil)
	eventually(t, "a sees b", func() bool { return !a.Standing().Alone })
	b.room.Store(-1)
	servers.Master.Do("wait", 1, 5000)
	b.crash()
	servers.FailOver()
	a.silence()
	eventually(t, "a is certain", func() bool {
		return a.Standing().Certain && a.Apply(t.Context(), 0, batchOf(put(a.ShardID(0).NewID(), "1"))) == nil
	})
}

// Redis forgets a hand-over while its receiver is silent, and the giver has ended without leaving
// the registry: the receiver has the content, and keeps it.
func TestForgottenHandOverInASilence(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	keys, shardID := a.member.Term(1).Keys, a.ShardID(1)
	before := server.Do("hget", keys.Tasks(), layout.OwnerField)
	at, err := a.Position(1)
	if err != nil {
		t.Fatal(err)
	}
	read := func([]recovery.Entry) error { return nil }
	if _, err := b.ReadAhead(t.Context(), shardID, at, read, func(recovery.Entry) {}); err != nil {
		t.Fatal(err)
	}
	if err := a.Transfer(t.Context(), 1, "b", at); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
		t.Fatalf("Accept = %v, %v", ok, err)
	}
	a.crash()
	forgetsHandOver(server, keys, before, ids[1])
	b.silence()
	b.member.KeepOnce()
	if _, lost := b.told(); lost > 0 || b.member.Holds("a", 1) == nil {
		t.Errorf("b has lost %d shards", lost)
	}
	if err := b.Apply(t.Context(), b.member.Holds("a", 1).Number, batchOf(remove(ids[1]))); err != nil {
		t.Error(err)
	}
}
