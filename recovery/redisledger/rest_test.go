package redisledger

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
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
// failover forgets both, and what unseen does before. It returns b's term of that shard.
func forgetAdoption(t *testing.T, unseen func(a *fleetNode)) (a, b *fleetNode, n int) {
	t.Helper()
	servers := redistest.StartSentinel(t)
	a, b = join(t, servers.URL(), "a", still), join(t, servers.URL(), "b", still)
	ids := a.put(t)
	b.member.KeepOnce()
	servers.Master.Do("wait", 1, 5000)
	servers.ShutReplicaOut()
	if unseen != nil {
		unseen(a)
	}
	n = b.adopts(t, a, ids[1])
	servers.FailOver()
	for _, m := range []*fleetNode{a, b} {
		eventually(t, "it reaches the new master", func() bool { return m.member.Poll(t.Context()) == nil })
	}
	a.silence()
	return a, b, n
}

// adopts has a node adopt the shards of another one, and finish a record in shard 1. It returns its
// term of that shard.
func (m *fleetNode) adopts(t testing.TB, from *fleetNode, id string) (n int) {
	t.Helper()
	for range 2 {
		m.age(t, 2*time.Hour, from.opts.Node)
		m.look(t)
	}
	m.waitAcquired(t, 4)
	n = m.member.Holds(from.opts.Node, 1).Number
	if err := m.Apply(t.Context(), n, batchOf(remove(id), put("y", "new"))); err != nil {
		t.Fatal(err)
	}
	return n
}

// A failover forgets an adoption, and the node that was adopted from comes back. It uses its shards
// no more: the adopter claims them again, whichever of both looks first.
func TestForgottenAdoptionFromTheReturned(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]func(t *testing.T, a, b *fleetNode){
		"Rests": func(t *testing.T, a, _ *fleetNode) {
			t.Helper()
			a.wantRest(t, 1)
			for range 4 { // a connection to the former master ends with the first
				a.member.KeepOnce()
			}
			a.wantRest(t, 1)
		},
		"RestsInTheNextSilence": func(t *testing.T, a, b *fleetNode) {
			t.Helper()
			for range 4 {
				a.member.KeepOnce()
			}
			for _, m := range []*fleetNode{a, b} {
				m.member.Probe().KnowServers()
				m.silence()
			}
			a.member.KeepOnce()
			a.wantRest(t, 1)
		},
		"AdopterLooksBefore": func(t *testing.T, a, _ *fleetNode) {
			t.Helper()
			eventually(t, "a sends a heartbeat", func() bool { return a.member.Beat(t.Context()) == nil })
		},
		"ReturnsAndDies": func(t *testing.T, a, b *fleetNode) {
			t.Helper()
			eventually(t, "a sends a heartbeat", func() bool { return a.member.Beat(t.Context()) == nil })
			b.age(t, 2*time.Hour, "a")
		},
		"AdopterWasSilentAsWell": func(_ *testing.T, _, b *fleetNode) { b.silence() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b, n := forgetAdoption(t, nil)
			first(t, a, b)
			b.claims(t, a, n)
			eventually(t, "a has lost its shards", func() bool {
				a.member.KeepOnce()
				_, lost := a.told()
				return lost == 4
			})
		})
	}
}

// wantRest wants a batch of a shard, and its hand-over, to be refused for now, and the node not to
// be certain.
func (m *fleetNode) wantRest(t testing.TB, shard int) {
	t.Helper()
	if err := m.Apply(t.Context(), shard, batchOf(put("x", "1"))); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply at rest: %v", err)
	}
	if err := m.transfer(t, shard, "b"); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Errorf("Transfer at rest: %v", err)
	}
	if m.Standing().Certain {
		t.Error("it is certain")
	}
}

// claims wants the adopter to claim the shards of a again, and to keep shard n.
func (m *fleetNode) claims(t testing.TB, a *fleetNode, n int) {
	t.Helper()
	eventually(t, "they are claimed", func() bool {
		m.member.KeepOnce()
		return !slices.Contains(holders(t, m.client, a), "a")
	})
	if err := m.Apply(t.Context(), n, batchOf(put("y", "new"))); err != nil {
		t.Error(err)
	}
	if _, lost := m.told(); lost > 0 {
		t.Errorf("it has lost %d shards", lost)
	}
}

// The failover forgets the last batch of the node that was adopted from as well.
func TestForgottenAdoptionAndBatch(t *testing.T) {
	t.Parallel()
	a, b, n := forgetAdoption(t, func(a *fleetNode) {
		if err := a.Apply(t.Context(), 1, batchOf(put("late", "1"))); err != nil {
			t.Fatal(err)
		}
	})
	for range 4 {
		a.member.KeepOnce()
	}
	a.wantRest(t, 1)
	b.claims(t, a, n)
}

// A node is killed and adopted from, and its next process runs when Redis forgets the adoption.
func TestForgottenAdoptionFromTheKilled(t *testing.T) {
	a, b, n, forget := adoptionToForget(t)
	a.crash()
	a.lives.join(t).member.KeepOnce()
	forget()
	b.claims(t, a, n)
}

// A node that has come back, and given its shards up, finds them as it has left them.
func TestForgottenAdoptionAfterTheReturn(t *testing.T) {
	a, b, n, forget := adoptionToForget(t)
	a.silence()
	a.member.KeepOnce()
	eventually(t, "a has lost its shards", func() bool { _, lost := a.told(); return lost == 4 })
	for n := range 4 {
		a.Forget(n)
	}
	forget()
	a.member.KeepOnce()
	b.claims(t, a, n)
}

// adoptionToForget has b adopt the shards of a, and finish the record in shard 1, of which b's term
// is returned. forget undoes both.
func adoptionToForget(t *testing.T) (a, b *fleetNode, n int, forget func()) {
	t.Helper()
	server := redistest.Start(t)
	a, b = join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	keys := make([]layout.ShardKeys, 4)
	tokens := make([]any, 4)
	for n := range keys {
		keys[n] = a.member.Term(n).Keys
		tokens[n] = server.Do("hget", keys[n].Tasks(), layout.OwnerField)
	}
	b.member.KeepOnce()
	n = b.adopts(t, a, ids[1])
	return a, b, n, func() {
		for n := range keys {
			forgetsHandOver(server, keys[n], tokens[n], ids[n])
		}
	}
}

// A hand-over is not answered, and its receiver takes the shard. Redis forgets both, and the last
// batch of the giver, which hands the shard over again.
func TestForgottenHandOverInDoubt(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	shardID, keys := a.ShardID(1), a.member.Term(1).Keys
	before := server.Do("hget", keys.Tasks(), layout.OwnerField)
	if err := a.Apply(t.Context(), 1, batchOf(put("late", "1"))); err != nil {
		t.Fatal(err)
	}
	at := b.readsAhead(t, a, 1)
	a.client.AddHook(&lossOf{digest: conn.ClaimScript.Digest})
	if err := a.Transfer(t.Context(), 1, "b", at); !errors.Is(err, recovery.ErrUnanswered) {
		t.Fatalf("Transfer: %v", err)
	}
	if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
		t.Fatalf("Accept: %v, %v", ok, err)
	}
	b.waitAcquired(t, 1)
	n := b.member.Holds("a", 1).Number
	if err := b.Apply(t.Context(), n, batchOf(remove(ids[1]), put("y", "new"))); err != nil {
		t.Fatal(err)
	}
	forgetsHandOver(server, keys, before, ids[1]) // its batch 1, and a has confirmed 2
	a.member.KeepOnce()
	if err := a.Transfer(t.Context(), 1, "b", at); err != nil {
		t.Errorf("Transfer, repeated: %v", err)
	}
	if err := a.Apply(t.Context(), 1, batchOf(put("x", "1"))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply of the giver: %v", err)
	}
	b.member.KeepOnce()
	if err := b.Apply(t.Context(), n, batchOf(put("y2", "new"))); err != nil {
		t.Errorf("Apply of the receiver: %v", err)
	}
}

// readsAhead reads a shard of another node, and returns its position.
func (m *fleetNode) readsAhead(t testing.TB, of *fleetNode, shard int) (at string) {
	t.Helper()
	at, err := of.Position(shard)
	if err != nil {
		t.Fatal(err)
	}
	read := func([]recovery.Entry) error { return nil }
	if _, err := m.ReadAhead(t.Context(), of.ShardID(shard), at, read, func(recovery.Entry) {}); err != nil {
		t.Fatal(err)
	}
	return at
}

// A node comes back after a silence in which none has adopted its shards. After a failover they
// rest until the other node has looked at its own. The server that it knows forgets nothing.
func TestRestIsOver(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	a, b := join(t, servers.URL(), "a", still), join(t, servers.URL(), "b", still)
	a.put(t)
	for range 2 {
		a.silence()
		if err := a.Apply(t.Context(), 0, batchOf(put(a.ShardID(0).NewID(), "1"))); err != nil {
			t.Errorf("Apply at the server that it knows: %v", err)
		}
		if a.member.KeepOnce(); !a.Standing().Certain {
			t.Error("not certain at the server that it knows")
		}
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
}

// A node was alone when it fell silent. Another one joins, and adopts.
func TestRestOfOneThatWasAlone(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	a := join(t, servers.URL(), "a", still)
	ids := a.put(t)
	b := join(t, servers.URL(), "b", still)
	b.member.KeepOnce()
	servers.Master.Do("wait", 1, 5000)
	servers.ShutReplicaOut()
	n := b.adopts(t, a, ids[1])
	servers.FailOver()
	eventually(t, "b reaches the new master", func() bool { return b.member.Poll(t.Context()) == nil })
	a.silence()
	for range 4 { // it does not know of b before its next heartbeat
		if err := a.Apply(t.Context(), 1, batchOf(put("x", "1"))); err == nil {
			t.Fatal("a batch was written")
		}
	}
	b.claims(t, a, n)
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
	at := b.readsAhead(t, a, 1)
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
