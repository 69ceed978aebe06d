package tasks

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// rooms are the cluster of a Scheduler, which may be a single node.
type rooms struct{ *cluster }

func (r rooms) EntryLocked(sl *store.Slot) (recovery.Refiling, bool) {
	if r.shared == nil || r.singleNodeLocked() {
		return recovery.Refiling{}, false
	}
	return r.directoryUpdateLocked(sl)
}

func (r rooms) EndedLocked(sl *store.Slot) { r.addTombstoneLocked(sl) }

func (r rooms) CompareEntries(ctx context.Context, entries []recovery.Refiling) {
	r.assertSampled(ctx, entries)
}

func (r rooms) Register(ctx context.Context, entries []recovery.Refiling) {
	if len(entries) == 0 || r.singleNode() {
		return
	}
	if err := r.assert(ctx, entries); err != nil && !r.engine.IsClosing() {
		r.engine.Config.Log.Warn("the audit could not reach the directory of ids", "node", r.engine.Config.Node, "error", err)
	}
}

func (r rooms) StagedLocked(h *engine.OwnedShard) {
	switch h.Stage {
	case engine.Active:
		delete(r.missing, h.ShardID)
	case engine.Evicting:
		r.missLocked(h.ShardID)
	}
	if r.shared != nil {
		r.chooseShardsLocked()
	}
}

func (r rooms) AcquiredLocked() {
	if r.shared != nil {
		r.shared.acquired++
		r.wakeReconciler()
	}
}

func (r rooms) RewoundLocked() {
	if r.shared != nil {
		r.reindexLocked() // the directory may have lost something as well
	}
}

func (r rooms) LateVerdictLocked(v engine.LateVerdict) { r.addLateVerdictLocked(v) }

func (r rooms) BacklogJudged() { r.announceBacklog() }

func (r rooms) EndOffloadedLocked(d *engine.Delivery, v task.Judgement) {
	r.cluster.endOffloadedLocked(d, v)
}

func (r rooms) ReturnUnusedLocked(ds []*engine.Delivery) { r.cluster.returnUnusedLocked(ds) }

func (r rooms) Status() []byte { return r.cluster.status() }

func (r rooms) Doubted() { r.cluster.doubted() }

func (r rooms) SendLastVerdicts(ctx context.Context) { r.cluster.sendLastVerdicts(ctx) }

func (r rooms) Leave() { r.unshare() }
