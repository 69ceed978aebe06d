package redisledger

import (
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

var _ interface {
	recovery.Directory
	recovery.DirectoryScanner
	recovery.Bus
} = (*Ledger)(nil)

// waitUnindexed waits until a node counts these others as unindexed.
func (m *fleetNode) waitUnindexed(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, m.opts.Node+" sees which nodes are not indexed", func() bool {
		names, err := m.Unindexed(t.Context())
		return err == nil && slices.Equal(names, want)
	})
}

func (m *fleetNode) mark(t *testing.T, indexed bool) {
	t.Helper()
	if err := m.MarkIndexed(t.Context(), indexed); err != nil {
		t.Fatalf("MarkIndexed: %v", err)
	}
}

// slow nodes do not take each other for dead while a test runs.
func slow(o *Options) { o.FailoverAfter = 20 * time.Second }

func TestIndexed(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", slow), join(t, url, "b", slow)
	a.waitUnindexed(t) // the names are new
	a.mark(t, false)
	b.waitUnindexed(t, "a")
	b.mark(t, false)
	a.waitUnindexed(t, "b")
	b.mark(t, true)
	b.crash()
	b.lives.join(t)
	a.waitUnindexed(t)
	a.mark(t, true)
	if err := b.MarkIndexed(t.Context(), true); err == nil {
		t.Error("a process that has ended marks its successor")
	}
}

// Redis loses the registry: no node knows whether the directory is still there.
func TestIndexedIsForgotten(t *testing.T) {
	server := redistest.Start(t)
	a, b := join(t, server.URL(), "a", nil), join(t, server.URL(), "b", nil)
	a.mark(t, true)
	b.mark(t, true)
	a.waitUnindexed(t)
	server.Do("flushall")
	a.waitUnindexed(t, "b")
}

// Dead nodes that hold shards are named. A node that adopts them is named from then on, until it
// has registered the ids that came with them.
func TestUnindexedDead(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b, c := join(t, url, "a", nil), join(t, url, "b", nil), join(t, url, "c", nil)
	a.room.Store(-1)
	c.room.Store(-1)
	b.mark(t, false)
	a.mark(t, true)
	c.mark(t, true)
	b.crash()
	eventually(t, "b is dead", func() bool {
		peers, err := a.Peers(t.Context())
		return err == nil && slices.ContainsFunc(peers, func(n recovery.Node) bool { return n.Name == "b" && !n.Live })
	})
	a.waitUnindexed(t, "b")
	c.waitUnindexed(t, "b")
	if err := a.MarkIndexed(t.Context(), true); err != nil {
		t.Errorf("before it has acquired a shard: %v", err)
	}

	// No node in between sees an empty answer.
	seen := make(chan []string, 1)
	go func() {
		for {
			names, err := c.Unindexed(t.Context())
			if err != nil || !slices.Equal(names, []string{"b"}) {
				seen <- names
				return
			}
		}
	}()
	a.room.Store(1000)
	a.waitAcquired(t, 4)
	if names := <-seen; !slices.Contains(names, "a") {
		t.Errorf("while its shards were adopted, not b but %q was named", names)
	}
	c.waitUnindexed(t, "a")
	if err := a.MarkIndexed(t.Context(), true); err == nil {
		t.Error("ids that may not have been known of count as registered")
	}
	a.mark(t, true)
	c.waitUnindexed(t)
}

// Where all ids are registered, those of an acquired shard are so too.
func TestIndexedAdoption(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", nil), join(t, url, "b", nil)
	a.mark(t, true)
	b.mark(t, true)
	a.waitUnindexed(t)
	b.crash()
	a.waitAcquired(t, 4)
	a.mark(t, true)
	if !a.member.Registration().Indexed {
		t.Error("a is not indexed")
	}
}

// Until memory knows of an acquired shard, it cannot have registered its ids.
func TestAcquiredUnknownToMemory(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", slow), join(t, url, "b", slow)
	hold := make(chan struct{})
	a.mark(t, false)
	b.mark(t, false)
	a.member.Notices.Add(func(recovery.Watcher) { <-hold })
	b.waitUnindexed(t, "a")
	transfer(t, b, 0, a)
	for range 3 {
		if err := a.MarkIndexed(t.Context(), true); err == nil {
			t.Error("ids that no node knows of count as registered")
		}
	}
	close(hold)
	a.waitAcquired(t, 1)
	eventually(t, "it may be said again", func() bool { return a.MarkIndexed(t.Context(), true) == nil })
}

// transfer gives a shard to another node, which accepts it.
func transfer(t *testing.T, from *fleetNode, shard int, to *fleetNode) {
	t.Helper()
	shardID := from.ShardID(shard)
	eventually(t, "the successor is known", func() bool { return from.transfer(t, shard, to.opts.Node) == nil })
	if ok, err := to.Accept(t.Context(), shardID); !ok || err != nil {
		t.Fatalf("Accept: %v, %v", ok, err)
	}
}

// A node of a new name has no ids to register. If it ends right after its start, the others need
// not wait for its shards before they create ids.
func TestNewNameDies(t *testing.T) {
	url := redistest.Start(t).URL()
	a := join(t, url, "a", still)
	for _, name := range []string{"b", "c", "d"} {
		m := join(t, url, name, still)
		m.crash()
		for _, silent := range []time.Duration{0, 20 * time.Hour} {
			a.age(t, silent, name)
			a.member.Probe().ForgetOwners()
			if names, err := a.Unindexed(t.Context()); err != nil || len(names) != 0 {
				t.Errorf("%v after the end of %s: Unindexed = %q, %v", silent, name, names, err)
			}
		}
	}
}

// A name of which Redis has lost the registration, but not the shards, is not new.
func TestNameThatLostItsRegistration(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", still), join(t, url, "b", still)
	b.mark(t, false)
	b.crash()
	if err := a.client.HDel(t.Context(), a.keys.Nodes(), "b").Err(); err != nil {
		t.Fatal(err)
	}
	b.lives.join(t)
	if err := a.member.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names, err := a.Unindexed(t.Context()); err != nil || !slices.Equal(names, []string{"b"}) {
		t.Errorf("Unindexed = %q, %v", names, err)
	}
}
