package redisledger

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// change is a change of a pending record.
func change(id, data string) recovery.Change {
	c := put(id, data)
	c.From = c.To
	return c
}

// refuse applies a batch whose creations are refused.
func refuse(t *testing.T, l *Ledger, changes ...recovery.Change) {
	t.Helper()
	if err := l.Apply(t.Context(), 0, batchOf(changes...)); !errors.Is(err, recovery.ErrFull) {
		t.Fatalf("Apply without memory: %v, want ErrFull", err)
	}
}

// Redis is out of memory and evicts nothing: new tasks are refused, and the rest of their batch is
// written. Nothing that may free memory waits: a restart, a replay, heartbeats, deletions, retries,
// burials, settings.
func TestOutOfMemory(t *testing.T) {
	server := redistest.Start(t, "maxmemory-policy noeviction")
	v := oneShard(server.URL())
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"), put("b", "1"), put("c", "1"), put("d", "1"))
	server.Do("config", "set", "maxmemory", "1mb")

	refuse(t, l, put("e", "2"), put("f", "2"))
	wantHeld(t, server.Client(), l, content{"a": "1", "b": "1", "c": "1", "d": "1"})
	if err := l.Condition(); !errors.Is(err, recovery.ErrFull) {
		t.Errorf("Condition without memory: %v", err)
	}
	apply(t, l, change("a", "3")) // nothing is removed, nothing is new
	refuse(t, l, put("e", "4"), remove("a"), change("b", "4"), bury("c", "4"))
	wantHeld(t, server.Client(), l, content{"b": "4", "d": "1", "dead c": "4"})
	bornDead := bury("g", "4")
	bornDead.From = recovery.Spot{}
	refuse(t, l, bornDead, change("b", "4"))
	refuse(t, l, bornDead)
	wantHeld(t, server.Client(), l, content{"b": "4", "d": "1", "dead c": "4"})

	v.crash()
	server.Do("srem", l.member.Term(0).Keys.Pending(), "d") // as if torn: the set needs repair
	l = v.open(t)
	adopt(t, l)
	if err := l.member.Beat(t.Context()); err != nil {
		t.Errorf("a heartbeat without memory: %v", err)
	}
	if _, err := l.PutSetting(t.Context(), "topic", 0, []byte("paused")); err != nil {
		t.Errorf("a setting without memory: %v", err)
	}
	m := newMemory()
	if err := recovery.Replay(t.Context(), l, m, nil); err != nil || len(m.records) != 2 {
		t.Errorf("replay without memory gives %v: %v", m.records, err)
	}
	apply(t, l, remove("b"))
	refuse(t, l, put("e", "5"))

	server.Do("config", "set", "maxmemory", "0")
	apply(t, l, put("e", "6"))
	eventually(t, "there is room again", func() bool { return l.Condition() == nil })
	wantHeld(t, server.Client(), l, content{"d": "1", "e": "6", "dead c": "4"})
}

// What Redis has refused for want of memory is refused for every copy of the batch, whether there
// is memory by then or not.
func TestRefusalIsDecidedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "maxmemory-policy noeviction")
	proxy := redistest.NewProxy(t, server.Addr)
	v := oneShard(proxy.URL())
	v.opts.FailoverAfter = time.Hour // no heartbeat may use a connection that a batch needs
	l := v.open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	unanswered := func(sequence string, changes ...recovery.Change) *recovery.Batch {
		t.Helper()
		proxy.SetDeaf(true)
		defer proxy.SetDeaf(false)
		b := batchOf(changes...)
		if err := l.Apply(t.Context(), 0, b); err == nil || errors.Is(err, recovery.ErrFull) {
			t.Fatalf("a batch without an answer: %v", err)
		}
		server.Wait("the batch was executed", func(c ctx, r *redis.Client) bool {
			return r.HGet(c, l.member.Term(0).Keys.Tasks(), layout.SequenceField).Val() == sequence
		})
		return b
	}
	memory := func(limit string) { server.Do("config", "set", "maxmemory", limit) }
	repeat := func(b *recovery.Batch) (err error) {
		t.Helper()
		eventually(t, "the batch is answered", func() bool {
			err = l.Apply(t.Context(), 0, b)
			return err == nil || errors.Is(err, recovery.ErrFull)
		})
		return err
	}

	memory("1mb")
	b := unanswered("2", put("b", "2"), change("a", "2"))
	memory("0")
	if err := repeat(b); !errors.Is(err, recovery.ErrFull) {
		t.Errorf("refused, and then %v", err)
	}
	wantHeld(t, server.Client(), l, content{"a": "2"})

	b = unanswered("3", put("b", "3"))
	memory("1mb")
	if err := repeat(b); err != nil {
		t.Errorf("written, and then %v", err)
	}
	wantHeld(t, server.Client(), l, content{"a": "2", "b": "3"})

	// The number of a batch that was cut has no meaning for the next owner.
	refuse(t, l, put("c", "4"))
	v.crash()
	memory("0")
	l = v.open(t)
	adopt(t, l)
	for range 3 {
		apply(t, l, change("a", "5"))
	}
	if err := repeat(unanswered("4", put("c", "6"))); err != nil {
		t.Errorf("written by another owner, and then %v", err)
	}
	wantHeld(t, server.Client(), l, content{"a": "5", "b": "3", "c": "6"})
}
