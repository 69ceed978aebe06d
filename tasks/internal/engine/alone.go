package engine

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Alone is the Cluster of a node whose ledger is its own: there is no other node to tell.
type Alone struct{}

// Shares implements Creation.
func (Alone) Shares() bool { return false }

// NewID implements Creation.
func (Alone) NewID() (string, recovery.ShardID) { return task.NewID(), 0 }

// FindSpooled implements Creation.
func (Alone) FindSpooled(context.Context, *Plan) error { return nil }

// ClaimsLocked implements Creation.
func (Alone) ClaimsLocked(*Plan) bool { return false }

// Claim implements Creation.
func (Alone) Claim(context.Context, []*IDClaim) {}

// UnclaimedLocked implements Creation.
func (Alone) UnclaimedLocked(string, recovery.DirectoryEntry) {}

// EntryLocked implements Directory.
func (Alone) EntryLocked(*store.Slot) (recovery.DirectoryUpdate, bool) {
	return recovery.DirectoryUpdate{}, false
}

// EndedLocked implements Directory.
func (Alone) EndedLocked(*store.Slot) {}

// CompareEntries implements Directory.
func (Alone) CompareEntries(context.Context, []recovery.DirectoryUpdate) {}

// Register implements Directory.
func (Alone) Register(context.Context, []recovery.DirectoryUpdate) {}

// Doubted implements Directory.
func (Alone) Doubted() {}

// StagedLocked implements ShardObserver.
func (Alone) StagedLocked(*OwnedShard) {}

// AcquiredLocked implements ShardObserver.
func (Alone) AcquiredLocked() {}

// RewoundLocked implements ShardObserver.
func (Alone) RewoundLocked() {}

// LateVerdictLocked implements ShardObserver.
func (Alone) LateVerdictLocked(LateVerdict) {}

// BacklogJudged implements Offload.
func (Alone) BacklogJudged() {}

// EndOffloadedLocked implements Offload.
func (Alone) EndOffloadedLocked(*Delivery, task.Judgement) {}

// ReturnUnusedLocked implements Offload.
func (Alone) ReturnUnusedLocked([]*Delivery) {}

// Status implements Membership.
func (Alone) Status() []byte { return nil }

// SendLastVerdicts implements Membership.
func (Alone) SendLastVerdicts(context.Context) {}

// Leave implements Membership.
func (Alone) Leave() {}
