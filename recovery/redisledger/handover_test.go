package redisledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/conn"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A shard is handed over: its giver can write nothing more to it and gets no notice, and its
// receiver reads its content and writes to it.
func TestTransferAndAccept(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"Standalone": func(t *testing.T) string { return redistest.Start(t).URL() },
		"Cluster":    func(t *testing.T) string { return redistest.StartCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			url := start(t)
			a, b := join(t, url, "a", still), join(t, url, "b", still)
			ids := a.put(t)
			shardID := a.ShardID(2)
			if ok, err := b.Accept(t.Context(), shardID); ok || err != nil {
				t.Errorf("b accepts what was not transferred: %v, %v", ok, err)
			}
			if err := a.transfer(t, 2, "b"); err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{
				"Yield again": a.transfer(t, 2, "b"),
				"Apply":       a.Apply(t.Context(), 2, batchOf(put("x", "late"))),
				"Get":         a.Get(t.Context(), 2, nil, nil),
				"ScanShard":   a.ScanShard(t.Context(), 2, nil),
			} {
				if !errors.Is(err, recovery.ErrLost) {
					t.Errorf("%s after it was transferred: %v", what, err)
				}
			}
			a.member.KeepOnce()
			for range 2 { // the message may come twice
				if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
					t.Fatalf("Accept: %v, %v", ok, err)
				}
			}
			b.waitAcquired(t, 1)
			if acquired, lost := a.told(); acquired+lost > 0 {
				t.Errorf("the giver was told of %d and %d", acquired, lost)
			}
			b.wantFound(t, ids[2:3])
			n := b.acquired[0]
			if err := b.Apply(t.Context(), n, batchOf(put("more", "1"))); err != nil {
				t.Error(err)
			}
			at, err := a.Locate(t.Context(), shardID, false)
			if want := (recovery.Holder{Shard: -1, Node: "b", Live: true}); err != nil || at != want {
				t.Errorf("Locate: %+v, %v, want %+v", at, err, want)
			}
			// And back, under another number: memory has not called Forget for the first.
			if err := b.transfer(t, n, "a"); err != nil {
				t.Fatal(err)
			}
			if ok, err := a.Accept(t.Context(), shardID); !ok || err != nil {
				t.Fatalf("Accept: %v, %v", ok, err)
			}
			a.waitAcquired(t, 1)
			if a.acquired[0] == 2 {
				t.Error("the number was used again")
			}
			a.Forget(2)
			if err := a.transfer(t, a.acquired[0], "b"); err != nil {
				t.Fatal(err)
			}
			a.Forget(a.acquired[0])
			b.Forget(n)
			if ok, err := b.Accept(t.Context(), shardID); !ok || err != nil {
				t.Fatalf("Accept: %v, %v", ok, err)
			}
			b.waitAcquired(t, 2)
			if b.acquired[1] != n {
				t.Errorf("a number that was forgotten is not used again: %v", b.acquired)
			}
		})
	}
}

// The answer to a hand-over is lost, or the message about it.
func TestHandOverUnanswered(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	a.client.AddHook(&lossOf{digest: conn.ClaimScript.Digest})
	if err := a.transfer(t, 0, "b"); !errors.Is(err, recovery.ErrUnanswered) {
		t.Fatalf("Yield: %v", err)
	}
	entry := server.Do("hget", b.keys.Nodes(), "b")
	server.Do("hdel", b.keys.Nodes(), "b") // it can get no shard any more, but may have got one
	if err := a.transfer(t, 0, "b"); err != nil {
		t.Errorf("Yield, repeated: %v", err)
	}
	server.Do("hset", b.keys.Nodes(), "b", entry)
	b.client.AddHook(&lossOf{digest: conn.ClaimScript.Digest})
	if ok, err := b.Accept(t.Context(), a.ShardID(0)); ok || !errors.Is(err, errNoAnswer) {
		t.Fatalf("Accept: %v, %v", ok, err)
	}
	b.look(t) // no message tells it
	b.waitAcquired(t, 1)

	// A shard of the node's own is found with the next heartbeat.
	if err := b.transfer(t, b.acquired[0], "a"); err != nil {
		t.Fatal(err)
	}
	a.member.KeepOnce()
	a.waitAcquired(t, 1)

	// An answer is lost, and the receiver has accepted the shard already.
	a.client.AddHook(&lossOf{digest: conn.ClaimScript.Digest})
	if err := a.transfer(t, 1, "b"); !errors.Is(err, recovery.ErrUnanswered) {
		t.Fatalf("Yield: %v", err)
	}
	if ok, err := b.Accept(t.Context(), a.ShardID(1)); !ok || err != nil {
		t.Fatalf("Accept: %v, %v", ok, err)
	}
	if err := a.transfer(t, 1, "b"); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Yield, repeated after it was accepted: %v", err)
	}
}

// A command that was not sent has certainly not moved the shard.
func TestTransferWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	join(t, server.URL(), "b", still)
	next := layout.NewToken("b", "x", 9)
	at, err := a.Position(0)
	if err != nil {
		t.Fatal(err)
	}
	server.Kill()
	for _, open := range []bool{false, true} {
		if open {
			a.member.Probe().Transfer(0, next)
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{t.Context(), over} {
			if err := a.Transfer(ctx, 0, "b", at); err == nil || errors.Is(err, recovery.ErrUnanswered) != open {
				t.Errorf("Yield, with another one open: %v: %v", open, err)
			}
		}
	}
}

// A shard is not transferred while the outcome of its last batch is open: memory would never learn
// what its new owner has read.
func TestTransferWithOpenBatch(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	a.client.AddHook(&lossOf{digest: conn.ApplyScript.Digest})
	batch := batchOf(put("x", "1"))
	if err := a.Apply(t.Context(), 0, batch); !errors.Is(err, errNoAnswer) {
		t.Fatalf("Apply: %v", err)
	}
	if err := a.transfer(t, 0, "b"); err == nil || errors.Is(err, recovery.ErrLost) {
		t.Errorf("Yield: %v", err)
	}
	if err := a.Apply(t.Context(), 0, batch); err != nil {
		t.Errorf("Apply, repeated: %v", err)
	}
	transfer(t, a, 0, b)
}

// A batch of an earlier term that is still in flight must not take the number of one of the new
// term.
func TestLateBatchOfAnEarlierTerm(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	s := a.member.Term(0)
	late := copied(s.Arguments(batchOf(put("x", "late"))))
	a.member.Probe().Lose(0) // as if it was lost by mistake
	a.member.KeepOnce()
	a.waitAcquired(t, 1)
	conn.ApplyScript.Send(t.Context(), a.client, late)
	if err := a.Apply(t.Context(), a.acquired[0], batchOf(put("y", "new"))); err != nil {
		t.Fatal(err)
	}
	c := server.Client()
	defer c.Close()
	if diff := cmp.Diff(content{"y": "new"}, held(t, c, s.Keys)); diff != "" {
		t.Errorf("the shard (-want +got):\n%s", diff)
	}
}

// Shards are transferred only to nodes that can take them.
func TestTransferToUnknownNode(t *testing.T) {
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", func(o *Options) { still(o); o.Format = 2 })
	join(t, server.URL(), "old", func(o *Options) { still(o); o.Format = 1 })
	newer := func(o *Options) { still(o); o.Format = 3 }
	ended := join(t, server.URL(), "ended", newer)
	if err := ended.Close(); err != nil {
		t.Fatal(err)
	}
	join(t, server.URL(), "dead", newer).crash()
	server.Do("hset", "lapse:nodes", "ancient", `{"incarnation":"x"}`)
	server.Do("hset", "lapse:nodes", "strange", `{"incarnation":"x","number":9,"layout":99}`)
	a.age(t, 2*time.Hour, "dead")
	for _, node := range []string{"a", "absent", "old", "ended", "dead", "ancient", "strange"} {
		if err := a.transfer(t, 0, node); err == nil || errors.Is(err, recovery.ErrLost) {
			t.Errorf("Yield to %s: %v", node, err)
		}
	}
	join(t, server.URL(), "newer", newer)
	if err := a.transfer(t, 0, "newer"); err != nil {
		t.Error(err)
	}
}

// A node that comes back finds its shards with others, knows where new records would belong, and
// gets the shards back one by one.
func TestComingBack(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", nil), join(t, url, "b", nil)
	ids := a.put(t)
	a.crash()
	b.waitAcquired(t, 4)
	shardIDs := []recovery.ShardID{a.ShardID(0), a.ShardID(1), a.ShardID(2), a.ShardID(3)}

	a = a.lives.join(t)
	if a.terms.Shards != 0 || !slices.Equal(a.terms.Away, shardIDs) {
		t.Fatalf("it holds %d, and away are %v, want %v", a.terms.Shards, a.terms.Away, shardIDs)
	}
	if n := a.terms.ShardOf([]byte(ids[2])); n != -1 {
		t.Errorf("a new record belongs in %d", n)
	}
	if err := b.transfer(t, b.acquired[0], "a"); err != nil {
		t.Fatal(err)
	}
	a.waitAcquired(t, 1)
	back := slices.IndexFunc(ids, func(id string) bool { return a.terms.ShardOf([]byte(id)) >= 0 })
	if back < 0 || a.ShardID(a.acquired[0]) != shardIDs[back] {
		t.Fatalf("it has acquired %v", a.acquired)
	}
	a.wantFound(t, ids[back:back+1])
	for _, n := range b.acquired[1:] {
		if err := b.transfer(t, n, "a"); err != nil {
			t.Fatal(err)
		}
	}
	a.waitAcquired(t, 4)
	a.wantFound(t, ids)
	for n := range 100 {
		id := []byte{byte('a' + n%26), byte('0' + n/26)}
		if at := a.terms.ShardOf(id); a.ShardID(at).Shard() != layout.ShardOf(id, 4) {
			t.Fatalf("%s belongs in %d", id, at)
		}
	}
}

// A survivor retires empty shards, just as their node comes back: the node takes those that it
// uses, and no other.
func TestRetiredWhileComingBack(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	a.crash()
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	a.lives.opts.Shards = 3
	a = a.lives.join(t)
	var shardIDs []recovery.ShardID
	for _, n := range []int{1, 2, 3} {
		s := b.member.Holds("a", n)
		shardIDs = append(shardIDs, b.ShardID(s.Number))
		if err := b.member.RetireAdopted(t.Context(), s); err != nil || !errors.Is(s.Loss(), recovery.ErrRetired) {
			t.Fatalf("shard %d was not retired: %v, %v", n, s.Loss(), err)
		}
	}
	if ok, err := a.Accept(t.Context(), shardIDs[0]); !ok || err != nil {
		t.Errorf("Accept: %v, %v", ok, err)
	}
	a.member.KeepOnce()
	a.look(t)
	a.waitAcquired(t, 2)
	if ok, err := a.Accept(t.Context(), shardIDs[2]); ok || err != nil {
		t.Errorf("Accept of one that is not used any more: %v, %v", ok, err)
	}
	at, err := a.Locate(t.Context(), shardIDs[2], true)
	if want := (recovery.Holder{Shard: -1, Retired: true}); err != nil || at != want {
		t.Errorf("Locate: %+v, %v, want %+v", at, err, want)
	}
	for _, n := range a.acquired {
		if err := a.Apply(t.Context(), n, batchOf(put(a.ShardID(n).NewID(), "new"))); err != nil {
			t.Error(err)
		}
	}
}

// A node learns by its next batch or heartbeat, of each shard by itself, that others have adopted
// its shards, and changes nothing any more.
func TestLoserIsRefused(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", still), join(t, server.URL(), "b", still)
	ids := a.put(t)
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.room.Store(1)
	b.look(t) // there is room for one
	b.waitAcquired(t, 1)
	shard := b.ShardID(b.acquired[0]).Shard()
	if err := a.Apply(t.Context(), shard, batchOf(remove(ids[shard]))); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("Apply: %v", err)
	}
	eventually(t, "memory is told", func() bool { _, lost := a.told(); return lost == 1 })
	b.wantFound(t, ids[shard:shard+1])
	for n := range 4 {
		if err := a.Apply(t.Context(), n, batchOf(put("x", "1"))); (err == nil) == (n == shard) {
			t.Errorf("Apply to shard %d: %v", n, err)
		}
	}
	b.room.Store(100)
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 4)
	a.member.KeepOnce()
	eventually(t, "memory is told", func() bool { _, lost := a.told(); return lost == 4 })
	if len(a.ended) > 0 || a.Health().Err != nil {
		t.Errorf("it has ended, or fails: %v, %v", a.ended, a.Health().Err)
	}
}

// A node that acquires a shard reads only the dead records of that one, and finds out if the shard
// is lost meanwhile.
func TestScanDead(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a := join(t, server.URL(), "a", still)
	for n := range 2 {
		for i := range deadAtOnce + 1 {
			id := fmt.Sprintf("dead-%d-%d", n, i)
			for _, c := range []recovery.Change{put(id, "1"), bury(id, "1")} {
				if err := a.Apply(t.Context(), n, batchOf(c)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	visit := func(meanwhile func()) (found int, err error) {
		err = a.ScanDead(t.Context(), 1, func(e recovery.Entry) {
			if !strings.HasPrefix(string(e.ID), "dead-1-") || e.Shard != 1 || e.Data != nil || e.Spot.Label != "topic" || e.Spot.At != noon {
				t.Errorf("it visits %+v", e)
			}
			found++
			meanwhile()
		})
		return found, err
	}
	if n, err := visit(func() {}); n != deadAtOnce+1 || err != nil {
		t.Errorf("ScanDead visits %d: %v", n, err)
	}
	server.Do("hset", a.member.Term(1).Keys.Tasks(), layout.OwnerField, "b#x#9")
	if _, err := visit(a.member.KeepOnce); !errors.Is(err, recovery.ErrLost) {
		t.Errorf("ScanDead of a shard that is lost meanwhile: %v", err)
	}
}
