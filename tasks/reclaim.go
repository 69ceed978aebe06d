package tasks

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// reclaimEvery is how often this node asks for those of its own shards that others
	// hold, at first; after failures less often, down to reclaimRarely.
	reclaimEvery, reclaimRarely = 100 * time.Millisecond, 3 * time.Second
	// reclaimReady is how long after Open the node is not ready because others hold shards
	// of its own. Then it is, without them.
	reclaimReady = 30 * time.Second
)

// joinFleet begins what a scheduler does because other nodes share its ledger.
func (s *Scheduler) joinFleet() {
	if s.engine.fleet == nil {
		return
	}
	s.engine.mu.Lock()
	for _, shardID := range s.engine.terms.Away {
		if s.engine.shardNumberLocked(shardID) < 0 { // it may have been accepted already
			s.missing[shardID] = true
		}
	}
	s.engine.mu.Unlock()
	s.engine.background.Go(s.lateVerdictLoop)
	s.engine.background.Go(s.engine.certaintyLoop)
	s.engine.background.Go(s.reclaimLoop)
}

// settledLocked tells that the node can do its work: it has read what it held at first,
// and has got its own shards back, or has waited for them long enough. Later losses are no
// reason to keep callers away.
func (s *Scheduler) settledLocked() bool {
	if s.settled || !s.engine.isFirstReplayed() {
		return s.settled
	}
	s.settled = len(s.missing) == 0 || s.engine.elapsed() > reclaimReady
	if s.settled && len(s.missing) > 0 {
		s.engine.cfg.Log.Warn("other nodes have not given back shards of this node; it is ready without them", "node", s.engine.cfg.Node, "shards", len(s.missing))
	}
	return s.settled
}

// missLocked takes note of a shard that this process holds no longer, if it is its own.
func (s *Scheduler) missLocked(shardID recovery.Home) {
	if shardID != 0 && shardID.Node() == s.engine.nodeNumber && !s.engine.draining {
		s.missing[shardID] = true
	}
}

// reclaimLoop asks the holders of this node's own shards to release them.
func (s *Scheduler) reclaimLoop() {
	for pause := reclaimEvery; s.engine.rest(pause); {
		if s.reclaimAll() {
			pause = reclaimEvery
		} else {
			pause = min(2*pause, reclaimRarely)
		}
	}
}

// reclaimAll asks for all that are missing, one after another, so that no more than one
// is on its way at a time. It reports whether it is of use to ask again soon.
func (s *Scheduler) reclaimAll() bool {
	s.engine.mu.Lock()
	shardIDs := slices.Sorted(maps.Keys(s.missing))
	idle := s.engine.draining || s.engine.ended
	s.engine.mu.Unlock()
	if idle || len(shardIDs) == 0 || s.engine.unsure() {
		return true
	}
	good := true
	for _, shardID := range shardIDs {
		if s.engine.isClosing() {
			break
		}
		if err := s.reclaim(shardID); err != nil {
			s.engine.cfg.Log.Debug("a shard of this node is still another one's", "node", s.engine.cfg.Node, "error", err)
			good = false
		}
	}
	return good
}

// reclaim asks for one shard. What was accepted comes with Watcher.Gained.
func (s *Scheduler) reclaim(shardID recovery.Home) error {
	ctx, cancel := s.engine.within(s.engine.ctx)
	defer cancel()
	s.engine.mu.Lock()
	holds := s.engine.shardNumberLocked(shardID) >= 0
	s.engine.mu.Unlock()
	if holds {
		return nil
	}
	// It may have been transferred, and the answer lost.
	if accepted, err := s.engine.fleet.Accept(ctx, shardID); err != nil || accepted {
		return err
	}
	at, err := s.engine.fleet.Locate(ctx, shardID, true)
	if at.Retired {
		s.engine.mu.Lock()
		delete(s.missing, shardID) // or else it comes with Watcher.Gained
		s.engine.mu.Unlock()
	}
	if err != nil || at.Node == "" || !at.Live {
		return err // if its holder is dead, a node is about to adopt it
	}
	return s.fetch(ctx, at.Node, shardID)
}

var errNoPeers = errors.New("this process cannot talk to other nodes")

// fetch takes a shard over from a node that lives.
func (s *Scheduler) fetch(ctx context.Context, node string, shardID recovery.Home) error {
	if s.peerCalls.callRelease == nil {
		return errNoPeers
	}
	if err := s.peerCalls.callRelease(ctx, node, shardID); err != nil {
		return err
	}
	accepted, err := s.engine.fleet.Accept(ctx, shardID)
	if err == nil && !accepted {
		err = errNotHeld
	}
	return err
}
