package tasks

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

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
	if err := r.assert(ctx, entries); err != nil && !r.engine.isClosing() {
		r.engine.cfg.Log.Warn("the audit could not reach the directory of ids", "node", r.engine.cfg.Node, "error", err)
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

func (r rooms) status() []byte { return r.Scheduler.status() }

func (r rooms) doubted() { r.Scheduler.doubted() }

func (r rooms) sendLastVerdicts(ctx context.Context) { r.Scheduler.sendLastVerdicts(ctx) }

func (r rooms) leave() { r.unshare() }
