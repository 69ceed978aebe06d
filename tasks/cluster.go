package tasks

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A cluster is what the engine tells of its tasks and shards to the rooms that deal with other
// nodes. Methods whose names end with Locked are called with the lock held. None of them waits.
type cluster interface {
	// entryLocked returns how the id of a task is registered in the directory that nodes share.
	// It reports false if it is not.
	entryLocked(sl *store.Slot) (recovery.Refiling, bool)
	// endedLocked is called when the task of a slot is about to leave for good.
	endedLocked(sl *store.Slot)
	// compareEntries compares what entryLocked has returned with the directory.
	compareEntries(ctx context.Context, entries []recovery.Refiling)
	// register registers what entryLocked has returned.
	register(ctx context.Context, entries []recovery.Refiling)

	// stagedLocked is called when a term of a shard has come to another stage.
	stagedLocked(h *ownedShard)
	// acquiredLocked is called when a term of a shard begins.
	acquiredLocked()
	// rewoundLocked is called when the ledger has lost confirmed writes.
	rewoundLocked()
	// lateVerdictLocked sends a verdict to the node that has the task's shard now.
	lateVerdictLocked(v lateVerdict)

	// backlogJudged is called when the sweep has judged whether there is a backlog.
	backlogJudged()
	// endOffloadedLocked ends a delivery that a worker has made for another node.
	endOffloadedLocked(d *delivery, v task.Judgement)
	// returnUnusedLocked returns deliveries to the nodes that they came from.
	returnUnusedLocked(ds []*delivery)
}

// rooms are the cluster of a Scheduler, which may be a single node.
type rooms struct{ *Scheduler }

func (r rooms) entryLocked(sl *store.Slot) (recovery.Refiling, bool) {
	if r.shared == nil || r.singleNodeLocked() {
		return recovery.Refiling{}, false
	}
	return r.directoryUpdateLocked(sl)
}

func (r rooms) endedLocked(sl *store.Slot) { r.addTombstoneLocked(sl) }

func (r rooms) compareEntries(ctx context.Context, entries []recovery.Refiling) {
	r.assertSampled(ctx, entries)
}

func (r rooms) register(ctx context.Context, entries []recovery.Refiling) {
	if len(entries) == 0 || r.singleNode() {
		return
	}
	if err := r.assert(ctx, entries); err != nil && !r.isClosing() {
		r.cfg.Log.Warn("the audit could not reach the directory of ids", "node", r.cfg.Node, "error", err)
	}
}

func (r rooms) stagedLocked(h *ownedShard) {
	switch h.stage {
	case active:
		delete(r.missing, h.shardID)
	case evicting:
		r.missLocked(h.shardID)
	}
	if r.shared != nil {
		r.chooseShardsLocked()
	}
}

func (r rooms) acquiredLocked() {
	if r.shared != nil {
		r.shared.acquired++
		r.wakeReconciler()
	}
}

func (r rooms) rewoundLocked() {
	if r.shared != nil {
		r.reindexLocked() // the directory may have lost something as well
	}
}

func (r rooms) lateVerdictLocked(v lateVerdict) { r.addLateVerdictLocked(v) }

func (r rooms) backlogJudged() { r.announceBacklog() }

func (r rooms) endOffloadedLocked(d *delivery, v task.Judgement) {
	r.Scheduler.endOffloadedLocked(d, v)
}

func (r rooms) returnUnusedLocked(ds []*delivery) { r.Scheduler.returnUnusedLocked(ds) }
