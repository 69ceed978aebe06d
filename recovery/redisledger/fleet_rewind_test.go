package redisledger

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// Redis comes back empty under several nodes: each reclaims its shards, adopted ones too, and its
// number. A node that dies then leaves all of them to be found.
func TestEmptyDatasetOfAFleet(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b, c := join(t, server.URL(), "a", nil), join(t, server.URL(), "b", nil), join(t, server.URL(), "c", nil)
	c.room.Store(-1)
	a.put(t)
	a.crash()
	b.waitAcquired(t, 4)
	shardIDs := map[recovery.ShardID]bool{}
	var rewound diary
	rewound.watch(b.Ledger)
	for _, s := range b.member.All() {
		shardIDs[b.ShardID(s.Number)] = true
	}
	server.Do("flushall")
	rewound.wait(t, 8)
	eventually(t, "all are registered again", func() bool { return server.Do("hlen", "lapse:nodes") == int64(3) })
	for _, s := range b.member.All() {
		if err := b.Apply(t.Context(), s.Number, batchOf(put(b.ShardID(s.Number).NewID(), "again"))); err != nil {
			t.Error(err)
		}
	}
	b.crash()
	c.room.Store(100)
	c.waitAcquired(t, 8)
	for _, n := range c.acquired {
		if !shardIDs[c.ShardID(n)] {
			t.Errorf("shard %d of node number %d had no holder", c.ShardID(n).Shard(), c.ShardID(n).Node())
		}
		size := 0
		if err := c.ScanShard(t.Context(), n, func(page []recovery.Entry) error { size += len(page); return nil }); err != nil || size != 1 {
			t.Errorf("a shard has %d records: %v", size, err)
		}
	}
}

// Redis loses an adoption: the adopter, whose token had the higher epoch, reclaims the shard.
func TestForgottenAdoption(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	keys := a.member.Term(1).Keys
	before := server.Do("hget", keys.Tasks(), layout.OwnerField)
	a.crash()
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	var d diary
	d.watch(b.Ledger)
	s := b.member.Holds("a", 1)
	if err := b.Apply(t.Context(), s.Number, batchOf(remove(ids[1]), put("y", "new"))); err != nil {
		t.Fatal(err)
	}
	server.Do("hset", keys.Tasks(), layout.OwnerField, before, layout.SequenceField, 1, ids[1], "\x00\x00\x00\x00\x00\x00\x00\x00old")
	server.Do("sadd", keys.Pending(), ids[1])
	b.member.KeepOnce()
	d.wait(t, 1)
	if err := b.Apply(t.Context(), s.Number, batchOf(remove(ids[1]))); err != nil {
		t.Fatal(err)
	}
	c := server.Client()
	defer c.Close()
	if diff := cmp.Diff(content{"y": "new"}, held(t, c, keys)); diff != "" {
		t.Errorf("the shard (-want +got):\n%s", diff)
	}
}

// A failover loses an adoption, and a third node finds the shards as the dead node has left them.
// It leaves them to the adopter, which claims them again with all that it has done since.
func TestFailoverLosesAnAdoption(t *testing.T) {
	t.Parallel()
	servers := redistest.StartSentinel(t)
	a, b, c := join(t, servers.URL(), "a", still), join(t, servers.URL(), "b", still), join(t, servers.URL(), "c", still)
	a.put(t)
	a.crash()
	b.member.KeepOnce()
	c.member.KeepOnce()
	servers.Master.Do("wait", 1, 5000)
	servers.ShutReplicaOut()
	for range 2 { // its part, and that of c
		b.age(t, 2*time.Hour, "a")
		b.look(t)
	}
	b.waitAcquired(t, 4)
	servers.FailOver()
	looks := func() {
		t.Helper()
		for range 2 {
			c.age(t, 2*time.Hour, "a")
			c.look(t)
		}
		if acquired, _ := c.told(); acquired > 0 {
			t.Errorf("c has adopted %d shards", acquired)
		}
	}
	eventually(t, "c reaches the new master", func() bool { return c.member.Poll(t.Context()) == nil })
	looks()
	eventually(t, "b has its shards", func() bool {
		b.member.KeepOnce()
		return !slices.ContainsFunc(holders(t, c.client, a), func(node string) bool { return node != "b" })
	})
	looks()
}

// forgetsHandOver resets a shard to its state before the first batch and the hand-over after it.
func forgetsHandOver(server *redistest.Server, keys layout.ShardKeys, before any, id string) {
	server.Do("hset", keys.Tasks(), layout.OwnerField, before, layout.SequenceField, 1, id, "\x00\x00\x00\x00\x00\x00\x00\x00old")
	server.Do("sadd", keys.Pending(), id)
}

// handOver has a node give its shard 1 with a record to another one. It returns the ids of the
// node's records, the keys of the shard, and the token before.
func handOver(t *testing.T, server *redistest.Server, from, to *fleetNode) (ids []string, keys layout.ShardKeys, before any) {
	t.Helper()
	ids, keys = from.put(t), from.member.Term(1).Keys
	shardID := from.ShardID(1)
	before = server.Do("hget", keys.Tasks(), layout.OwnerField)
	if err := from.transfer(t, 1, to.opts.Node); err != nil {
		t.Fatal(err)
	}
	if ok, err := to.Accept(t.Context(), shardID); !ok || err != nil {
		t.Fatalf("Accept: %v, %v", ok, err)
	}
	return ids, keys, before
}

// A node has handed its shards over and ends. Redis, restarted, has lost that, and the next process
// of the node's name starts before the successor has noticed: it does not take the shards.
func TestForgottenHandOverOfTheEnded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	quick := func(o *Options) { o.FailoverAfter = 4 * time.Second }
	a, b := join(t, server.URL(), "a", quick), join(t, server.URL(), "b", quick)
	ids, keys, before := handOver(t, server, a, b)
	b.waitAcquired(t, 1)
	n := b.member.Holds("a", 1).Number
	if err := b.Apply(t.Context(), n, batchOf(remove(ids[1]), put("y", "new"))); err != nil {
		t.Fatal(err)
	}
	a.crash()
	forgetsHandOver(server, keys, before, ids[1])
	next := a.lives.join(t)
	if next.member.Holds("a", 1) != nil {
		t.Error("the next process has taken the shard")
	}
	if err := b.Apply(t.Context(), n, batchOf(put("z", "newer"))); err != nil {
		t.Errorf("Apply of the successor: %v", err)
	}
	if next.member.Holds("a", 0) == nil {
		t.Error("the next process has not taken what was not handed over")
	}
}

// Redis loses a hand-over, and its receiver has not noticed yet: the giver, whose token is back,
// does not take the shard, and nothing is lost that the receiver has done.
func TestForgottenHandOver(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Answered", "Unanswered", "UnansweredAndAccepted"} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
			ids := a.put(t)
			shardID, keys := a.ShardID(1), a.member.Term(1).Keys
			before := server.Do("hget", keys.Tasks(), layout.OwnerField)
			if name != "Answered" {
				a.client.AddHook(&lossOf{digest: conn.ClaimScript.Digest})
				if err := a.transfer(t, 1, "b"); !errors.Is(err, recovery.ErrUnanswered) {
					t.Fatalf("Yield: %v", err)
				}
			} else if err := a.transfer(t, 1, "b"); err != nil {
				t.Fatal(err)
			}
			if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
				t.Fatalf("Accept: %v, %v", ok, err)
			}
			b.waitAcquired(t, 1)
			n := b.member.Holds("a", 1).Number
			var d diary
			d.watch(b.Ledger)
			if err := b.Apply(t.Context(), n, batchOf(remove(ids[1]), put("y", "new"))); err != nil {
				t.Fatal(err)
			}
			gone := 0
			if name == "UnansweredAndAccepted" {
				a.member.KeepOnce()
				eventually(t, "the giver is told", func() bool { _, gone = a.told(); return gone == 1 })
			}
			forgetsHandOver(server, keys, before, ids[1])
			if name == "Unanswered" {
				if err := a.transfer(t, 1, "b"); err != nil {
					t.Errorf("Yield, repeated: %v", err)
				}
			}
			a.member.KeepOnce()
			a.look(t)
			if ok, err := a.Accept(t.Context(), shardID); ok || err != nil {
				t.Errorf("the giver accepts what it gave: %v, %v", ok, err)
			}
			b.member.KeepOnce()
			d.wait(t, 1)
			if err := b.Apply(t.Context(), n, batchOf(remove(ids[1]), put("y", "new"))); err != nil {
				t.Fatal(err)
			}
			a.member.KeepOnce()
			if acquired, lost := a.told(); acquired > 0 || lost != gone {
				t.Errorf("the giver was told of %d and %d", acquired, lost)
			}
			c := server.Client()
			defer c.Close()
			if diff := cmp.Diff(content{"y": "new"}, held(t, c, keys)); diff != "" {
				t.Errorf("the shard (-want +got):\n%s", diff)
			}
		})
	}
}

// Redis loses the last batch of a shard that is about to be handed over, and keeps its token: the
// shard stays where its content is, and is handed over after that was written again.
func TestTransferFindsLostBatches(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	a.put(t)
	var d diary
	d.watch(a.Ledger)
	s := a.member.Term(0)
	if err := a.Apply(t.Context(), 0, batchOf(put("x", "new"))); err != nil {
		t.Fatal(err)
	}
	at, err := s.Position()
	if err != nil {
		t.Fatal(err)
	}
	server.Do("hset", s.Keys.Tasks(), layout.SequenceField, at.Sequence-1)
	for _, attempt := range []string{"once", "again"} { // b has read it without the batch
		if err := a.Transfer(t.Context(), 0, "b", at.String()); err == nil || errors.Is(err, recovery.ErrLost) {
			t.Errorf("Transfer of a shard whose last batch is lost, %s: %v", attempt, err)
		}
	}
	d.wait(t, 1)
	if ok, err := b.Accept(t.Context(), a.ShardID(0)); ok || err != nil {
		t.Errorf("the next owner has it: %v, %v", ok, err)
	}
	eventually(t, "the shard is handed over as it is now", func() bool { return a.transfer(t, 0, "b") == nil })
}

// Redis loses everything after a hand-over that the receiver has not accepted: the giver, asked for
// the shard once more, hands it over again.
func TestEmptyAfterATransfer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	a.put(t)
	shardID, keys := a.ShardID(0), a.member.Term(0).Keys
	if err := a.transfer(t, 0, "b"); err != nil {
		t.Fatal(err)
	}
	server.Do("del", keys.Tasks(), keys.Pending())
	if ok, err := b.Accept(t.Context(), shardID); ok || err != nil {
		t.Errorf("the receiver accepts what names no owner: %v, %v", ok, err)
	}
	if ok, err := a.Accept(t.Context(), shardID); ok || err != nil {
		t.Errorf("the giver accepts what it gave: %v, %v", ok, err)
	}
	if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
		t.Errorf("the receiver does not get it: %v, %v", ok, err)
	}
}

// Redis loses a hand-over that its receiver has not accepted: the receiver gets the shard, and is
// told that batches may be lost as well.
func TestForgottenBeforeItWasAccepted(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	for n, looks := range []func(){
		a.member.KeepOnce,
		func() { a.look(t) },
		func() { // because the receiver has asked for it again
			if ok, err := a.Accept(t.Context(), a.ShardID(2)); ok || err != nil {
				t.Errorf("the giver accepts what it gave: %v, %v", ok, err)
			}
		},
	} {
		keys := a.member.Term(n).Keys
		before := server.Do("hget", keys.Tasks(), layout.OwnerField)
		if err := a.transfer(t, n, "b"); err != nil {
			t.Fatal(err)
		}
		forgetsHandOver(server, keys, before, ids[n])
		if ok, err := b.Accept(t.Context(), a.ShardID(n)); ok || err != nil {
			t.Errorf("the successor accepts what names the giver: %v, %v", ok, err)
		}
		looks()
		if ok, err := b.Accept(t.Context(), a.ShardID(n)); !ok || err != nil {
			t.Errorf("shard %d: the successor does not get it: %v, %v", n, ok, err)
		}
	}
	b.waitAcquired(t, 3)
	b.wantFound(t, ids[:3])
	epochs := func() (all []int64) {
		for n := range 3 {
			at, err := b.member.Holds("a", n).Position()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, at.Token.Epoch)
		}
		return all
	}
	before := epochs()
	b.member.KeepOnce()
	for n, epoch := range epochs() {
		if epoch <= before[n] {
			t.Errorf("shard %d: the successor does not find that batches may be lost", n)
		}
	}
	// The state that came back belongs to its holder again, and no older state does.
	if err := b.transfer(t, b.member.Holds("a", 0).Number, "a"); err != nil {
		t.Fatal(err)
	}
	a.member.KeepOnce()
	a.waitAcquired(t, 1)
	if n := a.member.Probe().Transferred(); n != 2 {
		t.Errorf("it remembers to have given %d shards", n)
	}
	if err := a.transfer(t, a.acquired[0], "b"); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	b.waitAcquired(t, 4)
}

// Redis loses two hand-overs of one shard: each giver repeats its own, and the node that has the
// shard in memory goes on.
func TestForgottenWhileHandedOn(t *testing.T) {
	server := redistest.Start(t)
	a, b, c := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still), join(t, server.URL(), "c", still)
	ids := a.put(t)
	shardID, keys := a.ShardID(1), a.member.Term(1).Keys
	before := server.Do("hget", keys.Tasks(), layout.OwnerField)
	from, n := a, 1
	for _, to := range []*fleetNode{b, c} {
		if err := from.transfer(t, n, to.opts.Node); err != nil {
			t.Fatal(err)
		}
		if ok, err := to.Accept(t.Context(), shardID); !ok || err != nil {
			t.Fatalf("Accept: %v, %v", ok, err)
		}
		to.waitAcquired(t, 1)
		from, n = to, to.acquired[0]
	}
	var d diary
	d.watch(c.Ledger)
	forgetsHandOver(server, keys, before, ids[1])
	a.member.KeepOnce()
	b.look(t)
	c.member.KeepOnce()
	d.wait(t, 1)
	if err := c.Apply(t.Context(), n, batchOf(put("y", "new"))); err != nil {
		t.Error(err)
	}
	if a.member.Holds("a", 1) != nil || b.member.Holds("a", 1) != nil {
		t.Error("a giver holds it")
	}
}

// Redis loses a hand-over, and the receiver has died: the giver adopts the shard in the same round,
// with a token that the receiver cannot take for an older one.
func TestForgottenHandOverToTheDead(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids, keys, before := handOver(t, server, a, b)
	forgetsHandOver(server, keys, before, ids[1])
	a.age(t, 2*time.Hour, "b")
	a.look(t)
	s := a.member.Holds("a", 1)
	if s == nil {
		t.Fatal("it was not adopted")
	}
	a.wantFound(t, ids[1:2])
	n := b.member.Holds("a", 1).Number
	if err := b.Apply(t.Context(), n, batchOf(put("x", "late"))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply of the successor: %v", err)
	}
	if err := a.Apply(t.Context(), s.Number, batchOf(put("y", "new"))); err != nil {
		t.Error(err)
	}
}

// A node is cut off with a former master of Redis, and adopts there a shard that its owner goes on
// writing. Reconnected, it gives the shard up: the owner has never lost it.
func TestAdoptionThatNeverHappened(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	keys := a.member.Term(1).Keys
	before := server.Do("hget", keys.Tasks(), layout.OwnerField)
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	n := b.member.Holds("a", 1).Number

	server.Do("hset", keys.Tasks(), layout.OwnerField, before, layout.SequenceField, 1)
	if err := a.member.Beat(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Apply(t.Context(), 1, batchOf(put("new", "1"))); err != nil {
		t.Fatal(err)
	}
	if err := b.Apply(t.Context(), n, batchOf(remove(ids[1]))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply of the adopter: %v", err)
	}
	if err := a.Apply(t.Context(), 1, batchOf(put("newer", "1"))); err != nil {
		t.Errorf("Apply of the holder: %v", err)
	}
	c := server.Client()
	defer c.Close()
	if diff := cmp.Diff(content{ids[1]: "of a", "new": "1", "newer": "1"}, held(t, c, keys)); diff != "" {
		t.Errorf("the shard (-want +got):\n%s", diff)
	}
}

// A node that may have been adopted from waits before it claims an adopted shard whose token is
// gone, and half as long as the shard's first holder, whose memory is the older one.
func TestAdoptedShardAfterOversleeping(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	a.put(t)
	a.crash()
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	s := b.member.Holds("a", 0)
	b.member.Answered(time.Now().Add(-2 * time.Hour))
	server.Do("del", s.Keys.Tasks())
	own := b.member.Term(0).Keys.Tasks()
	server.Do("del", own)
	doubted := func(n int) bool {
		t.Helper()
		err := b.Apply(t.Context(), n, batchOf(put("x", "1")))
		if errors.Is(err, recovery.ErrLost) {
			t.Fatal(err)
		}
		return err != nil
	}
	if !doubted(s.Number) || !doubted(0) {
		t.Error("no doubt")
	}
	if err := b.member.Probe().Age(20 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if doubted(s.Number) || !doubted(0) {
		t.Error("the adopted shard is not claimed first")
	}
	if err := b.member.Probe().Age(20 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if doubted(0) {
		t.Error("no living node has the shard, and it is not claimed")
	}
}

// A process that has lost its name has lost all its shards, and Ended is called once.
func TestEnded(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	a.crash()
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	b.lives.all[0].dead.Store(true)
	successor := b.lives.join(t)
	ended := func() []error {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.ended
	}
	for range 2 {
		b.member.KeepOnce()
		if err := b.member.Beat(t.Context()); err != nil { // as one that was under way meanwhile
			t.Fatal(err)
		}
		eventually(t, "memory is told", func() bool { return len(ended()) > 0 })
	}
	b.member.Notices.Deliver(t.Context())
	if all := ended(); len(all) != 1 || !errors.Is(all[0], recovery.ErrLost) {
		t.Errorf("told %v", all)
	}
	if _, lost := b.told(); lost > 0 {
		t.Errorf("told of %d shards besides", lost)
	}
	for n := range 8 {
		if err := b.Apply(t.Context(), n, batchOf(put("x", "1"))); !errors.Is(err, recovery.ErrLost) {
			t.Errorf("Apply to shard %d: %v", n, err)
		}
	}
	if b.Standing().Certain {
		t.Error("it is certain of what it has lost")
	}
	successor.waitAcquired(t, 4) // shards that the process before it had adopted
	keys := successor.member.Term(0).Keys
	c := successor.client
	c.HSet(t.Context(), keys.Tasks(), layout.OwnerField, layout.NewToken("b", b.member.Self.Incarnation, 99).String())
	if ok, err := b.Accept(t.Context(), successor.ShardID(0)); ok || err != nil {
		t.Errorf("it gains a shard: %v, %v", ok, err)
	}
}
