package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// rooms is the engine.Cluster of a node whose ledger is a recovery.Fleet. Cluster.Fleet is nil
// before Share, and stays nil if that ledger lacks a directory or a bus.
type rooms struct{ *Cluster }

// Shares implements engine.Creation.
func (r rooms) Shares() bool { return r.Fleet != nil }

// NewID implements engine.Creation.
func (r rooms) NewID() (string, recovery.ShardID) { return r.makeID() }

// FindSpooled implements engine.Creation.
func (r rooms) FindSpooled(ctx context.Context, p *engine.Plan) error {
	if !r.namesShard(p) {
		return nil
	}
	return r.spooledElsewhere(ctx, []string{p.ID})[0]
}

// ClaimsLocked implements engine.Creation.
func (r rooms) ClaimsLocked(p *engine.Plan) bool { return r.needsClaimLocked(p) }

// Claim implements engine.Creation.
func (r rooms) Claim(ctx context.Context, claims []*engine.IDClaim) { r.register(ctx, claims) }

// UnclaimedLocked implements engine.Creation.
func (r rooms) UnclaimedLocked(id string, entry recovery.DirectoryEntry) {
	r.Fleet.tombstones.push(Tombstone{id, entry, r.engine.Elapsed()})
}

// EntryLocked implements engine.IDDirectory.
func (r rooms) EntryLocked(sl *store.Slot) (recovery.DirectoryUpdate, bool) {
	if r.Fleet == nil || r.NeverHadPeers() {
		return recovery.DirectoryUpdate{}, false
	}
	return r.directoryUpdateLocked(sl)
}

// EndedLocked implements engine.IDDirectory.
func (r rooms) EndedLocked(sl *store.Slot) { r.addTombstoneLocked(sl) }

// CompareEntries implements engine.IDDirectory.
func (r rooms) CompareEntries(ctx context.Context, entries []recovery.DirectoryUpdate) {
	r.assertSampled(ctx, entries)
}

// Register implements engine.IDDirectory.
func (r rooms) Register(ctx context.Context, entries []recovery.DirectoryUpdate) {
	if len(entries) == 0 || r.NeverHadPeers() {
		return
	}
	if err := r.assert(ctx, entries); err != nil && !r.engine.IsClosing() {
		r.engine.Config.Log.Warn("the audit could not reach the directory of ids", "node", r.engine.Config.Node, "error", err)
	}
}

// StagedLocked implements engine.ShardObserver.
func (r rooms) StagedLocked(h *engine.OwnedShard) {
	if h.ShardID != 0 && h.ShardID.Node() == r.engine.NodeNumber {
		switch h.Stage {
		case engine.Acquired, engine.Active:
			r.missing.note(h.ShardID, false, h.Stage == engine.Active)
		case engine.Evicting:
			r.missing.note(h.ShardID, !r.engine.Draining, !r.engine.Draining)
		}
	}
	if r.Fleet != nil {
		r.chooseShardsLocked()
	}
}

// AcquiredLocked implements engine.ShardObserver.
func (r rooms) AcquiredLocked() {
	if r.Fleet != nil {
		r.Fleet.indexing.add(0, 1)
		r.wakeReconciler()
	}
}

// RewoundLocked implements engine.ShardObserver.
func (r rooms) RewoundLocked() {
	if r.Fleet != nil {
		r.reindex() // the directory may have lost something as well
	}
}

// CallReadAhead implements engine.ShardObserver.
func (r rooms) CallReadAhead(ctx context.Context, node string, shardID recovery.ShardID, position string) error {
	if r.peerCalls.CallReadAhead == nil {
		return nil
	}
	return r.peerCalls.CallReadAhead(ctx, node, shardID, position)
}

// LateVerdictLocked implements engine.ShardObserver.
func (r rooms) LateVerdictLocked(v engine.LateVerdict) {
	r.forward(target{shardID: v.ShardID}, settlement{outcomeOf(v.Receipt, v.Verdict), v.Until})
}

// BacklogJudged implements engine.Offload.
func (r rooms) BacklogJudged(is bool) { r.announceBacklog(is) }

// EndOffloadedLocked implements engine.Offload.
func (r rooms) EndOffloadedLocked(d *engine.Delivery, v task.Judgement) {
	r.Cluster.endOffloadedLocked(d, v)
}

// ReturnUnusedLocked implements engine.Offload.
func (r rooms) ReturnUnusedLocked(ds []*engine.Delivery) { r.ReturnUnused(ds) }

// Status implements engine.NodeReporter.
func (r rooms) Status() []byte { return r.Cluster.status() }

// TellSettings implements engine.NodeReporter.
func (r rooms) TellSettings(ctx context.Context) { r.tellSettings(ctx) }

// Doubted implements engine.IDDirectory.
func (r rooms) Doubted() { r.Cluster.doubted() }

// SendLastVerdicts implements engine.NodeReporter.
func (r rooms) SendLastVerdicts(ctx context.Context) { r.Cluster.sendLast(ctx) }

// Leave implements engine.NodeReporter.
func (r rooms) Leave() { r.unshare() }
