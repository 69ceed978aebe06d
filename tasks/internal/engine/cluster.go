package engine

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Cluster receives from the engine what other nodes must learn of its tasks and shards. Methods
// whose names end with Locked are called with the lock held, and do not wait. Those that take a
// context are called without it, and may wait for the ledger or another node.
type Cluster interface {
	Creation
	IDDirectory
	ShardObserver
	Offload
	NodeReporter
}

// A Creation keeps ids unique among all nodes, and says where their tasks belong.
type Creation interface {
	// Shares reports whether several nodes can have the tasks of the ledger. It may be called with
	// the lock held.
	Shares() bool
	// NewID makes an id, and returns the shard that it tells; 0 if the ledger has none.
	NewID() (string, recovery.ShardID)
	// FindSpooled returns an *Elsewhere if another node has spooled a task with the id that the
	// caller has chosen, and ErrUnavailable if that is not known.
	FindSpooled(ctx context.Context, p *Plan) error
	// Registers reports whether ids that callers choose have to be registered: there are other
	// nodes, or have been. It may be called with the lock held.
	Registers() bool
	// Claim registers ids, and sets the error of each.
	Claim(ctx context.Context, claims []*IDClaim)
	// UnclaimedLocked is called when an id was registered, and its task was not created.
	UnclaimedLocked(id string, entry recovery.DirectoryEntry)
}

// An IDDirectory has the ids that callers have chosen, for all nodes.
type IDDirectory interface {
	// EndedLocked is called when the task of a slot is about to leave for good.
	EndedLocked(sl *store.Slot)
	// CompareEntries compares entries of tasks with the directory.
	CompareEntries(ctx context.Context, entries []recovery.DirectoryUpdate)
	// Register registers entries of tasks.
	Register(ctx context.Context, entries []recovery.DirectoryUpdate)
	// Doubted is called when the directory may have lost entries.
	Doubted()
}

// A ShardObserver is notified of changes of the terms of this node.
type ShardObserver interface {
	// HeldLocked is called when a term of a shard begins, and again, read, once memory has all of
	// the shard.
	HeldLocked(shardID recovery.ShardID, read bool)
	// LostLocked is called when another node has a shard.
	LostLocked(shardID recovery.ShardID)
	// RewoundLocked is called when the ledger has lost confirmed writes.
	RewoundLocked()
	// CallReadAhead has a node read a shard that is about to be its own, see Engine.ReadAhead.
	CallReadAhead(ctx context.Context, node string, shardID recovery.ShardID, position string) error
	// LateVerdictLocked sends a verdict to the node that has the task's shard now.
	LateVerdictLocked(v LateVerdict)
}

// An Offload lets other nodes deliver a part of a backlog.
type Offload interface {
	// BacklogJudged is called when the sweep has judged whether there is a backlog.
	BacklogJudged(is bool)
	// EndOffloadedLocked ends a delivery that a worker has made for another node.
	EndOffloadedLocked(d *Delivery, v task.Judgement)
	// ReturnUnused returns deliveries to the nodes that they came from. It may be called with the
	// lock held.
	ReturnUnused(ds []*Delivery)
}

// A NodeReporter reports on this node to the others.
type NodeReporter interface {
	// Status returns the report of this node that goes with every heartbeat.
	Status() []byte
	// TellSettings has the other nodes take over settings that this one has changed. It waits until
	// those that answer have, for a bounded time.
	TellSettings(ctx context.Context)
	// SendLastVerdicts sends the late verdicts that are left when Close begins.
	SendLastVerdicts(ctx context.Context)
	// Leave ends the connection with the other nodes: this node asks no other any more, and
	// callers learn that it closes.
	Leave()
}

// NoCluster is the Cluster of a node whose ledger is its own: there is no other node to tell.
type NoCluster struct{}

// Shares implements Creation.
func (NoCluster) Shares() bool { return false }

// NewID implements Creation.
func (NoCluster) NewID() (string, recovery.ShardID) { return task.NewID(), 0 }

// FindSpooled implements Creation.
func (NoCluster) FindSpooled(context.Context, *Plan) error { return nil }

// Registers implements Creation.
func (NoCluster) Registers() bool { return false }

// Claim implements Creation.
func (NoCluster) Claim(context.Context, []*IDClaim) {}

// UnclaimedLocked implements Creation.
func (NoCluster) UnclaimedLocked(string, recovery.DirectoryEntry) {}

// EndedLocked implements IDDirectory.
func (NoCluster) EndedLocked(*store.Slot) {}

// CompareEntries implements IDDirectory.
func (NoCluster) CompareEntries(context.Context, []recovery.DirectoryUpdate) {}

// Register implements IDDirectory.
func (NoCluster) Register(context.Context, []recovery.DirectoryUpdate) {}

// Doubted implements IDDirectory.
func (NoCluster) Doubted() {}

// HeldLocked implements ShardObserver.
func (NoCluster) HeldLocked(recovery.ShardID, bool) {}

// LostLocked implements ShardObserver.
func (NoCluster) LostLocked(recovery.ShardID) {}

// RewoundLocked implements ShardObserver.
func (NoCluster) RewoundLocked() {}

// CallReadAhead implements ShardObserver.
func (NoCluster) CallReadAhead(context.Context, string, recovery.ShardID, string) error { return nil }

// LateVerdictLocked implements ShardObserver.
func (NoCluster) LateVerdictLocked(LateVerdict) {}

// BacklogJudged implements Offload.
func (NoCluster) BacklogJudged(bool) {}

// EndOffloadedLocked implements Offload.
func (NoCluster) EndOffloadedLocked(*Delivery, task.Judgement) {}

// ReturnUnused implements Offload.
func (NoCluster) ReturnUnused([]*Delivery) {}

// Status implements NodeReporter.
func (NoCluster) Status() []byte { return nil }

// TellSettings implements NodeReporter.
func (NoCluster) TellSettings(context.Context) {}

// SendLastVerdicts implements NodeReporter.
func (NoCluster) SendLastVerdicts(context.Context) {}

// Leave implements NodeReporter.
func (NoCluster) Leave() {}

// An Elsewhere is why a task cannot be created here: its id belongs to another shard, or
// to a node that has it and has not registered it yet.
type Elsewhere struct {
	ShardID recovery.ShardID
	Node    string // instead of the shard
	// Unregistered: the caller has chosen the id, and the shard is where this node would create
	// the task. The directory has not been asked yet.
	Unregistered bool
}

func (e *Elsewhere) Error() string {
	if e.Node != "" {
		return "the id is in use at node " + e.Node
	}
	return fmt.Sprintf("the id belongs to shard %d of node number %d", e.ShardID.Shard(), e.ShardID.Node())
}

// tells reports whether an id contains the ID of the shard: such ids are not registered.
func tells(id []byte, shardID recovery.ShardID) bool {
	const length, version = 36, 14
	if len(id) != length || id[version] != '7' {
		return false
	}
	told, ok := recovery.ShardIDOf(string(id))
	return ok && told == shardID
}
