package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// rooms are the cluster of a Scheduler, which may be a single node.
type rooms struct{ *Cluster }

func (r rooms) EntryLocked(sl *store.Slot) (recovery.Refiling, bool) {
	if r.Fleet == nil || r.singleNodeLocked() {
		return recovery.Refiling{}, false
	}
	return r.directoryUpdateLocked(sl)
}

func (r rooms) EndedLocked(sl *store.Slot) { r.addTombstoneLocked(sl) }

func (r rooms) CompareEntries(ctx context.Context, entries []recovery.Refiling) {
	r.assertSampled(ctx, entries)
}

func (r rooms) Register(ctx context.Context, entries []recovery.Refiling) {
	if len(entries) == 0 || r.SingleNode() {
		return
	}
	if err := r.assert(ctx, entries); err != nil && !r.engine.IsClosing() {
		r.engine.Config.Log.Warn("the audit could not reach the directory of ids", "node", r.engine.Config.Node, "error", err)
	}
}

func (r rooms) StagedLocked(h *engine.OwnedShard) {
	switch h.Stage {
	case engine.Active:
		delete(r.Missing, h.ShardID)
	case engine.Evicting:
		r.missLocked(h.ShardID)
	}
	if r.Fleet != nil {
		r.chooseShardsLocked()
	}
}

func (r rooms) AcquiredLocked() {
	if r.Fleet != nil {
		r.Fleet.acquired++
		r.wakeReconciler()
	}
}

func (r rooms) RewoundLocked() {
	if r.Fleet != nil {
		r.reindexLocked() // the directory may have lost something as well
	}
}

func (r rooms) LateVerdictLocked(v engine.LateVerdict) { r.addLateVerdictLocked(v) }

func (r rooms) BacklogJudged() { r.announceBacklog() }

func (r rooms) EndOffloadedLocked(d *engine.Delivery, v task.Judgement) {
	r.Cluster.endOffloadedLocked(d, v)
}

func (r rooms) ReturnUnusedLocked(ds []*engine.Delivery) { r.Cluster.ReturnUnusedLocked(ds) }

func (r rooms) Status() []byte { return r.Cluster.status() }

func (r rooms) Doubted() { r.Cluster.doubted() }

func (r rooms) SendLastVerdicts(ctx context.Context) { r.Cluster.sendLastVerdicts(ctx) }

func (r rooms) Leave() { r.unshare() }
