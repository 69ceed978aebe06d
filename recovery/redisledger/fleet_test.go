package redisledger

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/redisledger/internal/layout"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

var _ interface {
	recovery.Fleet
	recovery.Reporter
	recovery.SharedSettings
	recovery.Finder
	recovery.Conditioner
} = (*Ledger)(nil)

// A fleetNode is one node of a fleet, with a memory that only records the calls of its watcher.
type fleetNode struct {
	*Ledger
	lives *lives
	terms recovery.Terms
	room  atomic.Int64
	asked atomic.Value // a func() that is called when the room is asked for; or nothing

	mu       sync.Mutex // guards everything below
	acquired []int
	lost     []int
	ended    []error
}

// join starts a node. Without patience it neither sends heartbeats nor watches by itself: the test
// does both.
func join(t testing.TB, url, node string, change func(o *Options)) *fleetNode {
	t.Helper()
	v := newLives(url)
	v.opts.Node, v.opts.Shards = node, 4
	if change != nil {
		change(&v.opts)
	}
	return v.join(t)
}

// join starts the next process of a node.
func (v *lives) join(t testing.TB) *fleetNode {
	t.Helper()
	m := &fleetNode{Ledger: v.open(t), lives: v}
	m.room.Store(math.MaxInt32)
	m.Watch(recovery.Watcher{
		Acquired: func(shard int, _ bool) { m.note(func() { m.acquired = append(m.acquired, shard) }) },
		Lost:     func(shard int, _ error) { m.note(func() { m.lost = append(m.lost, shard) }) },
		Ended:    func(err error) { m.note(func() { m.ended = append(m.ended, err) }) },
		Room: func() int {
			if asked, ok := m.asked.Load().(func()); ok {
				asked()
			}
			return int(m.room.Load())
		},
		Status: func() []byte { return []byte("status of " + m.opts.Node) },
	})
	m.terms = adopt(t, m.Ledger)
	eventually(t, "it has looked at the others", func() bool {
		return m.member.Probe().Looked()
	})
	return m
}

func (m *fleetNode) note(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// still makes a node that does nothing by itself.
func still(o *Options) { o.FailoverAfter = time.Hour }

// transfer hands a shard over as it stands.
func (m *fleetNode) transfer(t testing.TB, n int, to string) error {
	t.Helper()
	at, err := m.Position(n)
	if err != nil {
		return err
	}
	return m.Transfer(t.Context(), n, to, at)
}

func (m *fleetNode) crash() { m.lives.crash() }

// told returns how many shards memory was told to have acquired and lost.
func (m *fleetNode) told() (acquired, lost int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.acquired), len(m.lost)
}

// waitAcquired waits until Acquired was called for n shards.
func (m *fleetNode) waitAcquired(t testing.TB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s has acquired %d shards", m.opts.Node, n), func() bool {
		acquired, _ := m.told()
		return acquired >= n
	})
}

// look makes a still node poll the others once, as if it had done so all the time, and then adopt
// shards of dead nodes.
func (m *fleetNode) look(t testing.TB) {
	t.Helper()
	if err := m.member.Poll(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.member.Probe().LookNow()
	m.member.RestoreOrigins(t.Context())
	m.member.AdoptIfDue(t.Context())
}

// age makes a still node see no heartbeat of the others for so long.
func (m *fleetNode) age(t testing.TB, silent time.Duration, nodes ...string) {
	t.Helper()
	for range 2 { // once for the entries, and once for the counts
		if err := m.member.Poll(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.member.Probe().Age(silent, nodes...); err != nil {
		t.Fatal(err)
	}
}

// put writes a record into each shard of a node's own, and returns their ids.
func (m *fleetNode) put(t testing.TB) (ids []string) {
	t.Helper()
	for n := range m.terms.Shards {
		id := m.ShardID(n).NewID()
		if err := m.Apply(t.Context(), n, batchOf(put(id, "of "+m.opts.Node))); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// wantFound finds records by their ids.
func (m *fleetNode) wantFound(t testing.TB, ids []string) {
	t.Helper()
	for _, id := range ids {
		found := 0
		if err := m.Find(t.Context(), id, func(e recovery.Entry) {
			if shardID, _ := recovery.ShardIDOf(id); m.ShardID(e.Shard) == shardID {
				found++
			}
		}); err != nil || found != 1 {
			t.Errorf("%s finds %s %d times: %v", m.opts.Node, id, found, err)
		}
	}
}

// holders are the nodes that the tokens of a node's shards name.
func holders(t testing.TB, c redis.UniversalClient, m *fleetNode) []string {
	t.Helper()
	var nodes []string
	for n := range m.opts.Shards {
		keys := m.keys.Shard(m.opts.Node, n)
		owner, err := layout.ParseToken(c.HGet(context.Background(), keys.Tasks(), layout.OwnerField).Val())
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, owner.Node)
	}
	return nodes
}

// A node dies: the others adopt its shards, each once, and find its records.
func TestAdoption(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) string{
		"Standalone": func(t *testing.T) string { return redistest.Start(t).URL() },
		"Cluster":    func(t *testing.T) string { return redistest.StartCluster(t).URL() },
	} {
		t.Run(name, func(t *testing.T) {
			url := start(t)
			wide := func(o *Options) { o.Shards = 16 }
			a, b, c := join(t, url, "a", wide), join(t, url, "b", nil), join(t, url, "c", nil)
			ids := a.put(t)
			a.crash()
			eventually(t, "all shards are adopted", func() bool {
				ofB, _ := b.told()
				ofC, _ := c.told()
				return ofB+ofC >= 16
			})
			ofB, lostB := b.told()
			ofC, lostC := c.told()
			t.Logf("b has adopted %d, c %d", ofB, ofC)
			if ofB+ofC != 16 || lostB+lostC != 0 {
				t.Fatalf("b has acquired %d and lost %d, c %d and %d", ofB, lostB, ofC, lostC)
			}
			now := holders(t, b.client, a)
			for n, id := range ids {
				winner, other := b, c
				if now[n] == "c" {
					winner, other = c, b
				}
				winner.wantFound(t, []string{id})
				if err := other.Find(t.Context(), id, func(recovery.Entry) { t.Errorf("both find %s", id) }); err != nil {
					t.Error(err)
				}
				shardID, _ := recovery.ShardIDOf(id)
				at, err := other.Locate(t.Context(), shardID, true)
				if want := (recovery.Holder{Shard: -1, Node: now[n], Live: true}); err != nil || at != want {
					t.Errorf("Locate: %+v, %v, want %+v", at, err, want)
				}
				if at, err = winner.Locate(t.Context(), shardID, false); err != nil || at.Shard < 0 || winner.ShardID(at.Shard) != shardID {
					t.Errorf("Locate at the holder: %+v, %v", at, err)
				}
			}
		})
	}
}

// At first a survivor takes no more than its own part.
func TestOwnPartFirst(t *testing.T) {
	url := redistest.Start(t).URL()
	wide := func(o *Options) { still(o); o.Shards = 16 }
	a, b := join(t, url, "a", wide), join(t, url, "b", still)
	join(t, url, "c", still)
	a.crash()
	b.member.KeepOnce()
	b.age(t, 2*time.Hour, "a")
	b.look(t)
	part := 0
	for n := range 16 {
		if b.member.Probe().Part("a", n, a.ShardID(n), "b", "c") == "b" {
			part++
		}
	}
	b.waitAcquired(t, part)
	if got := len(b.member.All()); got != 4+part || part == 0 || part == 16 {
		t.Errorf("it holds %d shards; its part is %d", got, part)
	}
}

// A part that its survivor has not adopted is adopted by others after a while.
func TestAdoptTheirPart(t *testing.T) {
	t.Parallel()
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", nil), join(t, url, "b", nil)
	join(t, url, "c", nil).room.Store(-1) // it is alive and takes nothing
	a.put(t)
	a.crash()
	b.waitAcquired(t, 4)
}

// While Redis is stopped no node can send a heartbeat, and so no node counts as dead.
func TestRedisOutageKillsNoNode(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	nodes := []*fleetNode{join(t, server.URL(), "a", nil), join(t, server.URL(), "b", nil)}
	for _, m := range nodes {
		m.put(t)
		eventually(t, "it sees the other", func() bool { return len(m.seen(t)) == 2 && !m.Standing().Alone })
	}
	for range 3 {
		paused := time.Now()
		server.Pause()
		eventually(t, "the outage is long, and no node is certain", func() bool {
			outage := time.Since(paused) > 2*nodes[0].opts.FailoverAfter
			return outage && !nodes[0].Standing().Certain && !nodes[1].Standing().Certain
		})
		eventually(t, "it says that it cannot look", func() bool { return nodes[0].unseen(t) })
		server.Resume()
		eventually(t, "all are certain again", func() bool {
			return nodes[0].Standing().Certain && nodes[1].Standing().Certain
		})
		eventually(t, "it looks again", func() bool { return !nodes[0].unseen(t) })
	}
	for _, m := range nodes {
		// A whole watch later, still no node is dead.
		since := time.Now()
		eventually(t, "the watch has gone on", func() bool { return m.watched() > 0 && time.Since(since) > m.opts.FailoverAfter })
		if acquired, lost := m.told(); acquired+lost > 0 {
			t.Errorf("%s has acquired %d shards and lost %d", m.opts.Node, acquired, lost)
		}
	}
}

// seen returns the names of the nodes that a node sees.
func (m *fleetNode) seen(t testing.TB) (names []string) {
	t.Helper()
	nodes, err := m.Peers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		names = append(names, n.Name)
	}
	return names
}

// unseen reports whether a node says that it cannot look at the others.
func (m *fleetNode) unseen(t testing.TB) bool {
	t.Helper()
	nodes, err := m.Peers(t.Context())
	if err != nil || len(nodes) != 2 {
		t.Fatal(nodes, err)
	}
	return nodes[1].Unseen
}

// watched is how long ago the last poll was answered.
func (m *fleetNode) watched() time.Duration {
	answered, _ := m.member.Probe().Watched()
	return time.Since(answered)
}

// A node is dead when it was silent for its own FailoverAfter, if that is longer than another's:
// until shortly before, it is certain of its shards.
func TestFailoverAfterOfOthers(t *testing.T) {
	url := redistest.Start(t).URL()
	a, b := join(t, url, "a", func(o *Options) { o.FailoverAfter = 10 * time.Hour }), join(t, url, "b", still)
	b.member.KeepOnce()
	lives := func() bool {
		nodes, err := b.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return nodes[0].Live
	}
	b.age(t, 5*time.Hour, "a")
	b.look(t)
	if acquired, _ := b.told(); acquired > 0 || !lives() {
		t.Error("a node that is certain of its shards is taken for dead")
	}
	if err := b.transfer(t, 0, a.opts.Node); err != nil {
		t.Error(err)
	}
	b.age(t, 6*time.Hour, "a")
	b.look(t)
	b.waitAcquired(t, 5)
	if lives() {
		t.Error("a dead node is taken for alive")
	}
}
