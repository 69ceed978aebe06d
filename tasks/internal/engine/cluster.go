package engine

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Cluster is what the engine tells of its tasks and shards to the rooms that deal with other
// nodes. Methods whose names end with Locked are called with the lock held. None of them waits.
type Cluster interface {
	// entryLocked returns how the id of a task is registered in the directory that nodes share.
	// It reports false if it is not.
	EntryLocked(sl *store.Slot) (recovery.Refiling, bool)
	// endedLocked is called when the task of a slot is about to leave for good.
	EndedLocked(sl *store.Slot)
	// compareEntries compares what entryLocked has returned with the directory.
	CompareEntries(ctx context.Context, entries []recovery.Refiling)
	// register registers what entryLocked has returned.
	Register(ctx context.Context, entries []recovery.Refiling)

	// stagedLocked is called when a term of a shard has come to another stage.
	StagedLocked(h *OwnedShard)
	// acquiredLocked is called when a term of a shard begins.
	AcquiredLocked()
	// rewoundLocked is called when the ledger has lost confirmed writes.
	RewoundLocked()
	// lateVerdictLocked sends a verdict to the node that has the task's shard now.
	LateVerdictLocked(v LateVerdict)

	// backlogJudged is called when the sweep has judged whether there is a backlog.
	BacklogJudged()
	// endOffloadedLocked ends a delivery that a worker has made for another node.
	EndOffloadedLocked(d *Delivery, v task.Judgement)
	// returnUnusedLocked returns deliveries to the nodes that they came from.
	ReturnUnusedLocked(ds []*Delivery)

	// status is what this node shows the others with every heartbeat.
	Status() []byte
	// doubted is called when the directory may have lost entries.
	Doubted()
	// sendLastVerdicts sends the late verdicts that are left when Close begins.
	SendLastVerdicts(ctx context.Context)
	// leave ends the connection with the other nodes: this node asks no other any more, and
	// callers learn that it closes.
	Leave()
}
