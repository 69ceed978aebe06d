package redisledger

import (
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A node that is not certain of its own shards adopts nothing.
func TestUncertainAdoptsNothing(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", nil), join(t, url, "b", still)
	a.crash()
	b.member.KeepOnce() // and knows that it is not alone
	b.age(t, 2*time.Hour, "a")
	long := time.Now().Add(-2 * time.Hour)
	b.member.Probe().SeenHeld(long)
	b.look(t)
	if acquired, _ := b.told(); acquired > 0 || len(b.member.All()) != 4 {
		t.Error("it has adopted")
	}
	b.member.KeepOnce()
	b.look(t)
	b.waitAcquired(t, 4)
}

// A node whose polls are not answered any more adopts no further shard: the owner may have come
// back since the last poll.
func TestAdoptsOnlyWhileItWatches(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	a.put(t)
	a.crash()
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.asked.Store(func() { b.member.Probe().AgePoll(30 * time.Minute) }) // before the first shard
	b.look(t)
	b.waitAcquired(t, 1)
	if n := len(b.member.All()); n != 5 {
		t.Errorf("it holds %d shards: it was to adopt one, for which its last poll was fresh", n)
	}
	b.asked.Store(func() {})
	b.age(t, 2*time.Hour, "a") // the watch has begun anew
	b.look(t)
	b.waitAcquired(t, 4)
}

// A node comes back while others adopt its shards: shards that it finds to be its own stay its
// own, though their adoption was decided before.
func TestComesBackDuringAdoption(t *testing.T) {
	silence := func(t *testing.T) (a, b *fleetNode) {
		url := redistest.Start(t).URL()
		a, b = join(t, url, "a", still), join(t, url, "b", still)
		a.put(t)
		a.member.KeepOnce() // and knows that it is not alone
		b.age(t, 2*time.Hour, "a")
		long := time.Now().Add(-2 * time.Hour)
		a.member.Probe().SeenHeld(long)
		a.member.Answered(long)
		return a, b
	}
	want := func(t *testing.T, a, b *fleetNode) {
		t.Helper()
		acquired, _ := b.told()
		if now := holders(t, b.client, a); acquired > 0 || slices.ContainsFunc(now, func(node string) bool { return node != "a" }) {
			t.Errorf("%d were adopted, and they are held by %v", acquired, now)
		}
		if !a.Standing().Certain {
			t.Error("it is not certain again")
		}
	}
	t.Run("after the decision", func(t *testing.T) {
		a, b := silence(t)
		adopt, err := b.member.Probe().DecideAdoption(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		a.member.KeepOnce()
		want(t, a, b)
		adopt(t.Context())
		want(t, a, b)
		a.put(t) // its batches are not disturbed

		// Once more, after a silence that does not end.
		b.age(t, 2*time.Hour, "a")
		b.look(t)
		b.waitAcquired(t, 4)
	})
	t.Run("before the owners are read", func(t *testing.T) {
		a, b := silence(t)
		a.member.KeepOnce()
		b.member.Probe().LookNow()
		b.member.AdoptIfDue(t.Context())
		want(t, a, b)
	})
}

// An adopter dies as well: its adopted shards are adopted together with its own, and a process
// that starts under its name takes them at once.
func TestAdoptFromAnAdopter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", nil), join(t, server.URL(), "b", nil)
	ids := a.put(t)
	a.crash()
	b.waitAcquired(t, 4)
	b.crash()
	b = b.lives.join(t)
	b.waitAcquired(t, 4)
	b.wantFound(t, ids)

	c := join(t, server.URL(), "c", nil)
	ids = append(ids, b.put(t)...)
	b.crash()
	c.waitAcquired(t, 8)
	c.wantFound(t, ids)
}

// A node that has shut down cleanly is adopted from if it does not come back in time.
func TestAdoptFromTheReleased(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", nil), join(t, url, "b", nil)
	ids := a.put(t)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b.waitAcquired(t, 4)
	b.wantFound(t, ids)
}

// No call is sent to a node that has shut down cleanly, though it is not dead yet.
func TestLocateTheReleased(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	shardID := a.ShardID(0)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	if at, err := b.Locate(t.Context(), shardID, false); err != nil || at.Node != "a" || at.Live {
		t.Errorf("Locate: %+v, %v", at, err)
	}
}

// A shard is adopted only if memory has room for it. Shards that were adopted and not read yet
// count.
func TestRoom(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", func(o *Options) { o.Shards = 3 }), join(t, url, "b", still)
	for n, size := range []int{4, 5, 2} {
		if err := a.Apply(t.Context(), n, batchOf(numbered(size, size)[0]...)); err != nil {
			t.Fatal(err)
		}
	}
	a.crash()
	b.member.KeepOnce()
	b.room.Store(6)
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 2)
	b.look(t)
	if acquired, _ := b.told(); acquired != 2 {
		t.Fatalf("%d shards were adopted", acquired)
	}
	if got, want := b.Health().Warnings[len(b.Health().Warnings)-1], "1 shards of dead nodes wait until there is room for 5 tasks in memory"; got != want {
		t.Errorf("warned of %q", got)
	}
	b.note(func() {
		for _, n := range b.acquired { // they are read
			if err := b.ScanShard(t.Context(), n, func([]recovery.Entry) error { return nil }); err != nil {
				t.Error(err)
			}
		}
	})
	b.look(t)
	b.waitAcquired(t, 3)
	if slices.ContainsFunc(b.Health().Warnings, func(s string) bool { return s[0] == '1' }) {
		t.Errorf("still warned of %q", b.Health().Warnings)
	}
}

// A node's own unread records take room as well.
func TestRoomBeforeReplay(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	a.put(t)
	b.put(t)
	a.crash()
	b.crash()
	b = b.lives.join(t)
	b.room.Store(4)
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	if acquired, _ := b.told(); acquired > 0 {
		t.Fatal("it has adopted before it has read its own")
	}
	if err := b.Scan(t.Context(), func([]recovery.Entry) error { return nil }); err != nil {
		t.Fatal(err)
	}
	b.look(t)
	b.waitAcquired(t, 4)
}

// Shards that a newer version may have written are left to nodes that can read them.
func TestNewerIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]struct {
		format int
		entry  func(server *redistest.Server, raw string)
	}{
		"format": {format: 2},
		"layout": {entry: func(server *redistest.Server, raw string) {
			server.Do("hset", "lapse:nodes", "a", raw[:len(raw)-1]+`,"layout":99}`)
		}},
		"nonsense": {entry: func(server *redistest.Server, _ string) { server.Do("hset", "lapse:nodes", "a", "[7]") }},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			a := join(t, server.URL(), "a", func(o *Options) { o.Format = spoil.format })
			b := join(t, server.URL(), "b", still)
			a.crash()
			if spoil.entry != nil {
				spoil.entry(server, server.Do("hget", "lapse:nodes", "a").(string))
			}
			b.member.KeepOnce()
			b.age(t, 2*time.Hour, "a")
			b.look(t)
			if n := len(b.member.All()); n != 4 {
				t.Errorf("it holds %d shards", n)
			}
			if !slices.ContainsFunc(b.Health().Warnings, func(s string) bool { return len(s) > 0 && s[0] != 'a' || name != "format" }) {
				t.Errorf("nothing is said of it: %q", b.Health().Warnings)
			}
			if spoil.format > 0 {
				join(t, server.URL(), "c", func(o *Options) { o.Format = 2 }).waitAcquired(t, 4)
			}
		})
	}
}
