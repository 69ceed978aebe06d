package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// What follows, and methods in the files of their rooms, are the engine.Cluster of a node whose
// ledger is a recovery.Fleet. Cluster.Fleet is nil if that ledger lacks a directory or a bus.

// Shares implements engine.Creation.
func (s *Cluster) Shares() bool { return s.Fleet != nil }

// FindSpooled implements engine.Creation.
func (s *Cluster) FindSpooled(ctx context.Context, p *engine.Plan) error {
	if !s.namesShard(p) {
		return nil
	}
	return s.spooledElsewhere(ctx, []string{p.ID})[0]
}

// Registers implements engine.Creation.
func (s *Cluster) Registers() bool { return s.Fleet != nil && !s.NeverHadPeers() }

// UnclaimedLocked implements engine.Creation.
func (s *Cluster) UnclaimedLocked(id string, entry recovery.DirectoryEntry) {
	s.Fleet.tombstones.push(Tombstone{id, entry, s.engine.Elapsed()})
}

// EndedLocked implements engine.IDDirectory.
func (s *Cluster) EndedLocked(sl *store.Slot) {
	if s.Fleet == nil || !s.Fleet.multiNode.Load() {
		return
	}
	if u, ok := s.engine.EntryLocked(sl); ok {
		s.UnclaimedLocked(u.ID, u.New)
	}
}

// Register implements engine.IDDirectory.
func (s *Cluster) Register(ctx context.Context, entries []recovery.DirectoryUpdate) {
	if len(entries) == 0 || s.NeverHadPeers() {
		return
	}
	if err := s.assert(ctx, entries); err != nil && !s.engine.IsClosing() {
		s.engine.Config.Log.Warn("the audit could not reach the directory of ids", "node", s.engine.Config.Node, "error", err)
	}
}

// HeldLocked implements engine.ShardObserver.
func (s *Cluster) HeldLocked(shardID recovery.ShardID, read bool) {
	if s.isOwn(shardID) {
		s.missing.note(shardID, false, read)
	}
	if s.Fleet != nil && !read {
		s.Fleet.indexing.add(0, 1)
		s.wakeReconciler()
	}
}

// LostLocked implements engine.ShardObserver.
func (s *Cluster) LostLocked(shardID recovery.ShardID) {
	if s.isOwn(shardID) {
		s.missing.note(shardID, true, true)
	}
}

func (s *Cluster) isOwn(shardID recovery.ShardID) bool {
	return shardID != 0 && shardID.Node() == s.engine.NodeNumber
}

// RewoundLocked implements engine.ShardObserver.
func (s *Cluster) RewoundLocked() {
	if s.Fleet != nil {
		s.reindex() // the directory may have lost something as well
	}
}

// CallReadAhead implements engine.ShardObserver.
func (s *Cluster) CallReadAhead(ctx context.Context, node string, shardID recovery.ShardID, position string) error {
	if s.peerCalls.CallReadAhead == nil {
		return nil
	}
	return s.peerCalls.CallReadAhead(ctx, node, shardID, position)
}

// LateVerdictLocked implements engine.ShardObserver.
func (s *Cluster) LateVerdictLocked(v engine.LateVerdict) {
	s.forward(target{shardID: v.ShardID}, settlement{outcomeOf(v.Receipt, v.Verdict), v.Until})
}
