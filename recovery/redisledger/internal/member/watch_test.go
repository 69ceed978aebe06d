package member

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// Survivors share the shards of a dead node, and leave them to the node itself if that is back.
func TestParts(t *testing.T) {
	var w watch
	count := map[string]int{}
	for n := range 16 {
		count[w.partLocked(seenShard{node: "a", index: n, shardID: recovery.NewShardID(777, n)}, []string{"b", "c", "d"})]++
	}
	for _, node := range []string{"b", "c", "d"} {
		if count[node] < 5 {
			t.Errorf("the parts are %v", count)
		}
	}
	if part := w.partLocked(seenShard{node: "b", index: 1}, []string{"a", "b"}); part != "b" {
		t.Errorf("what is b's falls to %s", part)
	}
}

// A shard is left to others if a newer version may have written into it: that of the node whose
// shard it is, or of the one that owned it last.
func TestNewerThanThisVersion(t *testing.T) {
	of := func(format int) *peerState { return &peerState{entry: Entry{Format: format}} }
	w := watch{nodes: map[string]*peerState{"old": of(1), "now": of(2), "new": of(3), "unreadable": {fault: errors.New("no entry")}}}
	for _, c := range []struct{ node, owner, newer string }{
		{"now", "now", ""}, {"now", "old", ""}, {"now", "gone", ""}, {"gone", "now", ""},
		{"new", "new", "new"}, {"new", "now", "new"}, {"new", "gone", "new"}, {"now", "new", "new"},
		{"unreadable", "now", "unreadable"}, {"now", "unreadable", "unreadable"},
	} {
		shard := seenShard{node: c.node}
		shard.token.Node = c.owner
		if node, newer := w.newerLocked(shard, 2); node != c.newer || newer != (c.newer != "") {
			t.Errorf("a shard of %s that %s owned: %q, %v; want %q", c.node, c.owner, node, newer, c.newer)
		}
	}
}

// How the watch interprets its views.
func TestWatch(t *testing.T) {
	const gap = time.Second
	entry := func(incarnation string) string { return `{"incarnation":"` + incarnation + `","number":7}` }
	began := time.Now()
	at := func(seconds float64) time.Time { return began.Add(time.Duration(seconds * float64(time.Second))) }
	steady := func(seconds float64, incarnation, count string) view {
		return view{
			asked: at(seconds), answered: at(seconds + 0.1),
			entries: map[string]string{"a": entry(incarnation)}, counts: map[string]string{"a": count},
		}
	}
	for name, test := range map[string]struct {
		views  []view
		broken int // before this view a poll was not answered
		want   time.Duration
	}{
		"silent":               {views: []view{steady(0, "x", "1"), steady(0.5, "x", "1"), steady(1, "x", "1")}, want: 900 * time.Millisecond},
		"a heartbeat":          {views: []view{steady(0, "x", "1"), steady(0.5, "x", "2"), steady(1, "x", "2")}, want: 400 * time.Millisecond},
		"another process":      {views: []view{steady(0, "x", "1"), steady(0.5, "y", "1"), steady(1, "y", "1")}, want: 400 * time.Millisecond},
		"a gap":                {views: []view{steady(0, "x", "1"), steady(0.5, "x", "1"), steady(2, "x", "1")}},
		"a poll unanswered":    {views: []view{steady(0, "x", "1"), steady(0.5, "x", "1"), steady(1, "x", "1")}, broken: 2},
		"an answer came late":  {views: []view{steady(0, "x", "1"), {asked: at(0.5), answered: at(1.5), entries: map[string]string{"a": entry("x")}, counts: map[string]string{"a": "1"}}}},
		"counted from the end": {views: []view{steady(0, "x", "1"), steady(0.5, "x", "1")}, want: 400 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			var w watch
			for n, v := range test.views {
				if w.refused = 0; n > 0 && n == test.broken {
					w.refused = 1
				}
				w.see(v, gap)
			}
			if got := w.silentLocked(w.nodes["a"]); got != test.want {
				t.Errorf("silent for %v, want %v", got, test.want)
			}
		})
	}
}

// The pause between two reads of all owners grows with the nodes. For three nodes it follows from
// the default failover time.
func TestOwnersPollPause(t *testing.T) {
	m := New(Config{FailoverAfter: 10 * time.Second})
	for nodes, want := range map[int]time.Duration{1: 30 * time.Second, 3: 30 * time.Second, 30: 300 * time.Second} {
		m.peers.nodes = map[string]*peerState{}
		for n := range nodes {
			m.peers.nodes[strconv.Itoa(n)] = new(peerState)
		}
		for range 100 {
			m.peers.mu.Lock()
			got := m.ownersPauseLocked()
			m.peers.mu.Unlock()
			if got < want*3/4 || got >= want*5/4 {
				t.Errorf("with %d nodes it is %v; want about %v", nodes, got, want)
			}
		}
	}
}

// What is known of other nodes holds while polls are answered or under way, and after one that was
// refused for a second alone.
func TestUnseen(t *testing.T) {
	now := time.Now()
	const failoverAfter = 20 * time.Second // a poll each second
	for _, c := range []struct {
		ago     time.Duration
		refused int
		unseen  bool
	}{
		{900 * time.Millisecond, 2, false}, {1100 * time.Millisecond, 2, true}, {2900 * time.Millisecond, 1, false},
		{2900 * time.Millisecond, 0, false}, {3100 * time.Millisecond, 0, true},
	} {
		w := watch{answered: now.Add(-c.ago), refused: c.refused}
		if unseen := w.unseenLocked(failoverAfter, now); unseen != c.unseen {
			t.Errorf("%v after an answer, %d refused since: %v", c.ago, c.refused, unseen)
		}
	}
}
