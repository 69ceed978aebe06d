package redisledger

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// While a slot moves, some of a shard's keys are here and some are there, and Redis answers
// TRYAGAIN: nothing was executed, and the batch is repeated until the slot has arrived.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	l := oneShard(cluster.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"), put("b", "1"), put("c", "1"))
	keys := l.member.Term(0).Keys
	// The old master redirects the client to the new one, which answers TRYAGAIN; which of the
	// two answers is the last one depends on the version.
	refused := func(b *recovery.Batch) {
		t.Helper()
		err := errors.Unwrap(l.Apply(t.Context(), 0, b))
		if !redis.HasErrorPrefix(err, "TRYAGAIN") && !redis.HasErrorPrefix(err, "ASK") {
			t.Fatalf("Apply: %v, want TRYAGAIN", err)
		}
	}
	find := func(id, want string) {
		t.Helper()
		got := ""
		if err := l.Find(t.Context(), id, func(e recovery.Entry) { got = string(e.Data) }); err != nil || got != want {
			t.Errorf("Find(%s) = %q, %v, want %q", id, got, err, want)
		}
	}

	move := cluster.BeginMove(keys.Tasks())
	apply(t, l, put("a", "2")) // the keys that always exist are all here
	first := batchOf(bury("b", "2"))
	refused(first) // the dead have no key yet: it might be there
	move.Key(keys.Tasks())
	refused(first)
	find("a", "2")
	if err := l.Scan(t.Context(), func([]recovery.Entry) error { return nil }); err == nil {
		t.Error("a scan of half a shard is called complete")
	}
	move.Key(keys.Pending())
	refused(first)
	move.End()
	persist(t, l, bury("b", "2"))
	apply(t, l, remove("c"))

	m := newMemory()
	if err := recovery.Replay(t.Context(), l, m, nil); err != nil {
		t.Fatal(err)
	}
	m.compare(t, content{"a": "2"})
	if got := l.member.Term(0).Sequence; got != 4 {
		t.Errorf("4 batches were counted as %d", got)
	}
	c := move.To.Client()
	wantHeld(t, c, l, content{"a": "2", "dead b": "2"})
}

// A batch without dead records follows its keys to the other master before that owns the slot.
func TestBatchFollowsItsKeys(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	l := oneShard(cluster.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	keys := l.member.Term(0).Keys
	move := cluster.BeginMove(keys.Tasks())
	move.Key(keys.Tasks())
	move.Key(keys.Pending())
	persist(t, l, put("a", "2"))
	move.End()
	persist(t, l, put("b", "3"))
	wantHeld(t, move.To.Client(), l, content{"a": "2", "b": "3"})
}

// A read over one connection goes where its keys are now, although this process has not noticed
// yet that they have moved.
func TestReadsFollowTheirKeys(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	l := oneShard(cluster.URL()).open(t)
	adopt(t, l)
	apply(t, l, put("a", "1"))
	if _, err := l.PutSetting(t.Context(), "topic/x", 0, []byte("set")); err != nil {
		t.Fatal(err)
	}
	settings := cluster.BeginMove(l.keys.Topics())
	settings.Key(l.keys.Topics())
	settings.Key(l.keys.Changes())
	visited := make(chan error, 1)
	go func() {
		visited <- l.EachSetting(t.Context(), "topic/", func(name string, _ []byte, _ int64) { t.Log("read", name) })
	}()
	settings.End()
	if err := <-visited; err != nil {
		t.Errorf("EachSetting = %v", err)
	}
	if err := l.EachSetting(t.Context(), "topic/", func(string, []byte, int64) {}); err != nil {
		t.Errorf("EachSetting = %v", err)
	}

	keys := l.member.Term(0).Keys
	records := cluster.BeginMove(keys.Tasks())
	for _, key := range []string{keys.Tasks(), keys.Pending()} {
		records.Key(key)
	}
	records.End()
	found := 0
	eventually(t, "the shard is scanned", func() bool {
		found = 0
		return l.ScanShard(t.Context(), 0, func(page []recovery.Entry) error { found += len(page); return nil }) == nil
	})
	if found != 1 {
		t.Errorf("%d records were read, want 1", found)
	}
}

// One master of several comes back without its data, and the data set's id is on another one: its
// shards are reclaimed, and the others work on unaffected.
func TestOneMasterEmpty(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	v := newLives(cluster.URL())
	l := v.open(t)
	var d diary
	d.watch(l)
	adopt(t, l)
	shardID := cluster.Master(l.keys.Dataset())
	var victim *redistest.Server
	lost, kept, count := 0, 0, 0
	for n, s := range l.member.All() { // of 16, each master has some
		if err := l.Apply(t.Context(), n, batchOf(put("before", "1"))); err != nil {
			t.Fatal(err)
		}
		master := cluster.Master(s.Keys.Tasks())
		if victim == nil && master != shardID {
			victim = master
		}
		if master == victim {
			lost = n
			count++
		} else {
			kept = n
		}
	}
	victim.Kill()
	victim.Start()
	d.wait(t, count)
	for _, n := range []int{lost, kept} {
		b := batchOf(put("after", "2"))
		eventually(t, "the batch is written", func() bool { return l.Apply(t.Context(), n, b) == nil })
	}
	all := content{"before": "1", "after": "2"}
	for n, want := range map[int]content{kept: all, lost: {"after": "2"}} {
		c := cluster.Master(l.member.Term(n).Keys.Tasks()).Client()
		defer c.Close()
		if diff := cmp.Diff(want, held(t, c, l.member.Term(n).Keys)); diff != "" {
			t.Errorf("shard %d (-want +got):\n%s", n, diff)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.lost) > 0 {
		t.Errorf("given up: %v", d.lost)
	}
}
