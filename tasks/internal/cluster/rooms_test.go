package cluster

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

func newRooms() *Cluster {
	var cfg task.Checked
	cfg.Log, cfg.AnswerWithin, cfg.Clock = slog.New(slog.DiscardHandler), time.Minute, time.Now
	return New(engine.New(context.Background(), nil, cfg), PeerCalls{})
}

// A demand that is renewed between its entry and the count of its first receiver is not lost.
func TestDemandIsPutBack(t *testing.T) {
	s, key := newRooms(), demandKey{"x", time.Minute}
	x := &s.Peers.demands
	x.listed = s.engine.Elapsed()
	w := x.enter(key)
	s.renew() // it has no receiver yet
	if x.find(key) != nil {
		t.Fatal("a demand without a receiver stays")
	}
	w.want.Add(1)
	if s.startSearch(w, false); x.find(key) != w {
		t.Error("the demand of a receiver is not known")
	}
	if s.renew(); x.find(key) != w || x.enter(key) != w {
		t.Error("the demand of a receiver was dropped")
	}
}

// A remote waiter that is announced again while it is about to be dropped stays.
func TestRemoteWaiterIsAnnouncedAgain(t *testing.T) {
	s, key := newRooms(), remoteWaiterKey{"b", "x", time.Minute}
	x := &s.Peers.waiters
	g := s.updated(key, DemandMessage{Serial: 1, Want: 1})
	if g == nil || x.byKey[key] != g {
		t.Fatal("a demand has no remote waiter")
	}
	s.updated(key, DemandMessage{Serial: 2, Want: 0})
	if s.isWanted(g) {
		t.Error("it is wanted")
	}
	s.updated(key, DemandMessage{Serial: 3, Want: 1})
	if s.drop(g, false); x.byKey[key] != g || g.gone {
		t.Error("it was dropped although it is wanted again")
	}
	if s.drop(g, true); x.byKey[key] != nil || !g.gone {
		t.Error("it stays although the queue has refused it")
	}
}

// An offload that has found nothing more to do goes on if it was announced again meanwhile, and
// ends if its topic is not delivered any more.
func TestOffloadEnds(t *testing.T) {
	s, key := newRooms(), offloadKey{"b", "x"}
	x := &s.Peers.Offloads
	h := &offload{key: key, way: "w", news: make(chan struct{}, 1)}
	x.byKey[key] = h
	h.until.Store(offloadOver)
	told := []engine.BacklogTopic{{Topic: "x", Way: "w", Ready: 1}, {Topic: "y", Way: "w", Ready: 1}}
	if others := x.announce("b", told, time.Second); len(others) != 1 || others[0].Topic != "y" {
		t.Errorf("announced and not begun: %v", others)
	}
	if x.end(h, false, time.Second) || x.Len() != 1 {
		t.Error("it has ended although it was announced again")
	}
	if x.announce("c", nil, time.Second); !h.open(time.Second) {
		t.Error("another node has ended it")
	}
	if x.announce("b", []engine.BacklogTopic{{Topic: "x", Way: "v", Ready: 1}}, time.Second); h.open(time.Second) {
		t.Error("it goes on although the topic is delivered otherwise there")
	}
	if !x.end(h, true, time.Second) || x.Len() != 0 {
		t.Error("it has not ended")
	}
}

// What the engine has said of a shard before the node looks which shards others hold counts.
func TestMissingShards(t *testing.T) {
	m := missing{is: make(map[recovery.ShardID]bool)}
	m.note(1, false, false) // acquired at once
	m.note(2, true, true)   // acquired and lost
	m.note(3, false, true)  // active
	for shardID := range recovery.ShardID(5) {
		m.note(shardID, true, false) // others held it at first
	}
	if got := m.list(); !slices.Equal(got, []recovery.ShardID{0, 2, 4}) {
		t.Errorf("missing: %v", got)
	}
	m.note(4, false, false)
	if m.note(2, false, true); !slices.Equal(m.list(), []recovery.ShardID{0, 4}) {
		t.Errorf("missing: %v", m.list())
	}
}

// Ids that come while all are registered are registered as well.
func TestIndexingBeginsAnew(t *testing.T) {
	var x indexing
	x.add(1, 2)
	goal, _, _ := x.read()
	x.add(1, -2)
	if !x.finish(goal) {
		t.Error("what has come meanwhile is forgotten")
	}
	goal, done, acquired := x.read()
	if x.finish(goal) || goal != 2 || done != 1 || acquired != 0 {
		t.Errorf("read %d, %d, %d", goal, done, acquired)
	}
}
