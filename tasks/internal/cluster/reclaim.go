package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

const (
	// reclaimEvery is how often this node asks for those of its own shards that others
	// hold, at first; after failures less often, down to reclaimRarely.
	reclaimEvery, reclaimRarely = 100 * time.Millisecond, 3 * time.Second
	// ReclaimReady is how long after Open the node is not ready because others hold shards
	// of its own. Then it is, without them.
	ReclaimReady = 30 * time.Second
)

// joinFleet begins what a node does because other nodes share its ledger.
func (s *Cluster) joinFleet() {
	if s.engine.Fleet == nil {
		return
	}
	for _, shardID := range s.engine.Terms.Away {
		s.missing.note(shardID, true, false) // it may have been accepted already
	}
	s.engine.Life.Go(s.engine.CertaintyLoop)
	s.engine.Life.Go(s.reclaimLoop)
}

// missing are the shards of this node's own that it does not hold. The engine tells of the stages
// of shards under its mutex, so mu is taken under that, and nothing is called under mu.
type missing struct {
	mu sync.Mutex // guards everything below
	// is has the shards of which something was heard; true: one is missing.
	is      map[recovery.ShardID]bool
	ended   bool // none is missed any more
	settled bool // the node was ready once
}

// note says whether a shard is missing. If it is not anew, what was said before stays.
func (m *missing) note(shardID recovery.ShardID, is, anew bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.is[shardID]; anew || !known {
		m.is[shardID] = is && !m.ended
	}
}

func (m *missing) has(shardID recovery.ShardID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.is[shardID]
}

// end says that none is missing, now or later: this node is being drained.
func (m *missing) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	for shardID := range m.is {
		m.is[shardID] = false
	}
}

// list returns the missing shards.
func (m *missing) list() (shardIDs []recovery.ShardID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for shardID, is := range m.is {
		if is {
			shardIDs = append(shardIDs, shardID)
		}
	}
	slices.Sort(shardIDs)
	return shardIDs
}

// Settled reports whether the node can do its work: it has read the shards that it held at first,
// and has got its own shards back or has waited for them for long enough. Later losses do not
// change that: they are no reason to keep callers away. away is how many are missing.
func (s *Cluster) Settled() (settled bool, away int) {
	away = len(s.missing.list())
	m := &s.missing
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.settled || !s.engine.IsFirstReplayed() {
		return m.settled, away
	}
	m.settled = away == 0 || s.engine.Elapsed() > ReclaimReady
	if m.settled && away > 0 {
		s.engine.Config.Log.Warn("ready without own shards", "node", s.engine.Config.Node, "shards", away)
	}
	return m.settled, away
}

// reclaimLoop asks the holders of this node's own shards to release them.
func (s *Cluster) reclaimLoop() {
	for pause := reclaimEvery; s.engine.Life.Rest(pause); {
		if s.reclaimAll() {
			pause = reclaimEvery
		} else {
			pause = min(2*pause, reclaimRarely)
		}
	}
}

// reclaimAll asks for all that are missing, one after another, so that no more than one
// is on its way at a time. It reports whether it is of use to ask again soon.
func (s *Cluster) reclaimAll() bool {
	shardIDs := s.missing.list()
	if len(shardIDs) == 0 || s.engine.Unsure() {
		return true
	}
	good := true
	for _, shardID := range shardIDs {
		if s.engine.IsClosing() {
			break
		}
		if !s.missing.has(shardID) { // any more: this node is being drained, for example
			continue
		}
		if err := s.reclaim(shardID); err != nil {
			s.engine.Config.Log.Debug("shard not reclaimed yet", "node", s.engine.Config.Node, "shard", shardID, "error", err)
			good = false
		}
	}
	return good
}

// reclaim asks for one shard. Watcher.Acquired is called once the shard was transferred.
func (s *Cluster) reclaim(shardID recovery.ShardID) error {
	ctx, cancel := s.engine.Within(s.engine.Life.Context)
	defer cancel()
	if s.engine.Holds(shardID) {
		return nil
	}
	// It may have been transferred, and the answer lost.
	if accepted, err := s.engine.Fleet.Accept(ctx, shardID); err != nil || accepted {
		return err
	}
	at, err := s.engine.Fleet.Locate(ctx, shardID, true)
	if at.Retired {
		s.missing.note(shardID, false, true) // or else it comes with Watcher.Acquired
	}
	if err != nil || at.Node == "" || !at.Live {
		return err // if its holder is dead, a node is about to adopt it
	}
	return s.Fetch(ctx, at.Node, shardID)
}

var errNoPeers = errors.New("no connection to other nodes")

// Fetch takes a shard over from a node that lives. It returns nil once memory has all of the shard,
// and ErrHandingOver where that takes longer than a call may: then it is to be called again.
func (s *Cluster) Fetch(ctx context.Context, node string, shardID recovery.ShardID) error {
	if s.peerCalls.CallRelease == nil {
		return errNoPeers
	}
	s.engine.KeepAhead(shardID)
	released := s.peerCalls.CallRelease(ctx, node, shardID)
	if released != nil && !errors.Is(released, engine.ErrNotHeld) {
		return released
	}
	// A node that does not hold it any more may have transferred it to this one before.
	accepted, err := s.engine.Fleet.Accept(ctx, shardID)
	switch {
	case err != nil:
		return err
	case !accepted && released != nil:
		return released
	case !accepted:
		return engine.ErrNotHeld
	}
	return s.engine.AwaitShard(ctx, shardID)
}
