package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

// The directory keeps ids unique among the nodes. Where Redis has lost an entry of it, two
// nodes may have created a task with the same id before that is noticed. The task that is
// registered stays, and its node answers for the id; the other one is buried.

const conflictReason = "another node has a task with the same id: the directory of ids had lost this one"

// isConflict reports whether another node answers for the id of a task that is dead here.
func (s *Cluster) isConflict(id string) bool {
	if s.Fleet == nil {
		return false
	}
	_, ok := s.Fleet.conflict.find(id)
	return ok
}

// Doubted is called by the ledger when the directory may have lost entries.
func (s *Cluster) Doubted() {
	if s.Fleet != nil {
		s.reindex()
	}
}

// doubtfulWithin bounds how long the other nodes are asked for an id that the directory
// names, while it may have lost a newer entry of it.
const doubtfulWithin = 500 * time.Millisecond

// lostFromDirectory names the node that has a task whose entry the directory may have lost,
// so that it names a former place of the id; empty if no node says so.
func (s *Cluster) lostFromDirectory(ctx context.Context, id string) string {
	if !s.Fleet.ledger.Standing().Doubtful {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, doubtfulWithin)
	defer cancel()
	has, _ := s.queryUnindexed(ctx, []string{id}) // those that have answered
	return has[0]
}

// reportConflict handles an id of a task of this node that is registered for another shard. An
// entry of a task that is gone is replaced. If the other node has a task with that id, the
// one here is buried, and the conflict is logged, once.
func (s *Cluster) reportConflict(ctx context.Context, mine recovery.DirectoryUpdate, other recovery.DirectoryEntry) {
	h, err := s.locate(ctx, other.ShardID, false)
	switch {
	case err != nil:
		return // the next audit finds it again
	case h.Shard >= 0 || h.Node == "":
		mine.Old = other
		_, _ = s.Fleet.ledger.Update(ctx, []recovery.DirectoryUpdate{mine})
		return
	case !h.Live:
		return
	}
	// An id that the other node is just registering may turn out to be this one's.
	a, err := Call(ctx, s, h.Node, HasMethod, HasQuery{IDs: []string{mine.ID}})
	if err != nil || len(a.Has) != 1 || !a.Has[0] {
		return
	}
	if s.registry().BuryDuplicate(mine, conflictReason) && s.Fleet.conflict.put(mine.ID, struct{}{}) {
		s.engine.Config.Log.Error("duplicate task id; burying the unregistered task",
			"node", s.engine.Config.Node, "task", mine.ID, "here", mine.New.ShardID, "registered", other.ShardID, "at", h.Node)
	}
}

// ofRetired are the changes that take entries out whose shard no node holds or will hold: it
// was retired as nothing was left in it, or no node has its number any more. An id that is
// created again has another nonce.
func (c *reconciler) ofRetired(ctx context.Context, page []Tombstone) (changes []recovery.DirectoryUpdate) {
	shardIDs, err := c.Fleet.ledger.ShardIDs(ctx)
	if err != nil {
		return nil // the registry may lack a node; the walk comes by again
	}
	retired := make(map[recovery.ShardID]bool)
	registered := make(map[recovery.ShardID]bool, len(shardIDs))
	for _, shardID := range shardIDs {
		registered[shardID] = true
	}
	for _, l := range page {
		shardID := l.Entry.ShardID
		gone, known := retired[shardID]
		if !known {
			gone = !registered[shardID]
			if !gone {
				// Locate asks Redis only if the holder is dead.
				h, err := c.Fleet.ledger.Locate(ctx, shardID, false)
				gone = err == nil && h.Retired
			}
			retired[shardID] = gone
		}
		if gone {
			changes = append(changes, recovery.DirectoryUpdate{ID: l.ID, Old: l.Entry})
		}
	}
	return changes
}
