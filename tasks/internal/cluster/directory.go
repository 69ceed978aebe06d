package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// Ids that callers choose do not tell where their tasks are, and two nodes may be asked
// for the same one at the same time. So such an id is registered, in a directory that the
// nodes share, before its task is created: the node that has registered it creates the task,
// and the others ask that node.
//
//	absent -> registering*   the slot is entered, so that other callers wait here
//	registering -> creating  registered under the ID of the task's shard
//	registering -> absent    it is registered elsewhere, or the directory has not answered
//
// An entry outlives its task, by RemoveAfter or, after a crash, for longer. Where an id is
// registered under a shard that is held here, and no task is known, the entry is replaced by one
// with another nonce; so a node that is about to remove the old entry leaves the new one alone.
//
// Ids that tell their shard are never registered: their tasks are always kept there.

// registeredAtOnce is how many ids are registered with one call of the directory.
const registeredAtOnce = 10_000

// Claim registers the ids of claims, with one call of the directory for all of them.
//
// The directory may turn out to have lost entries when it answers. Then other nodes may have
// tasks with these ids that it does not name: all are asked, and the new entry of an id that
// one of them has is removed again.
func (s *Cluster) Claim(ctx context.Context, rs []*engine.IDClaim) {
	doubts := s.Fleet.ledger.Standing().Doubts
	s.registerOnce(ctx, rs)
	for now := s.Fleet.ledger.Standing().Doubts; now != doubts; now = s.Fleet.ledger.Standing().Doubts {
		doubts = now
		registered := slices.DeleteFunc(slices.Clone(rs), func(r *engine.IDClaim) bool { return r.Err != nil })
		s.registerOnce(ctx, rs)
		var out []recovery.DirectoryUpdate
		for _, r := range registered {
			if r.Err != nil {
				out = append(out, recovery.DirectoryUpdate{ID: r.ID, Old: r.Want})
			}
		}
		if len(out) == 0 {
			continue
		}
		if _, err := s.Fleet.ledger.Update(ctx, out); err != nil {
			for _, change := range out {
				s.Fleet.tombstones.push(Tombstone{change.ID, change.Old, s.engine.Elapsed()})
			}
		}
	}
}

// registerOnce is Claim, as far as the directory has lost nothing.
func (s *Cluster) registerOnce(ctx context.Context, rs []*engine.IDClaim) {
	ids := make([]string, len(rs))
	for i, r := range rs {
		ids[i] = r.ID
	}
	has, err := s.queryUnindexed(ctx, ids)
	if err != nil {
		for _, r := range rs {
			r.Err = err
		}
		return
	}
	var ask []*engine.IDClaim
	for i, r := range rs {
		if r.Err = nil; has[i] != "" {
			r.Err = &engine.Elsewhere{Node: has[i]}
			continue
		}
		ask = append(ask, r)
	}
	for part := range slices.Chunk(ask, registeredAtOnce) {
		s.registerPart(ctx, part)
	}
}

func (s *Cluster) registerPart(ctx context.Context, rs []*engine.IDClaim) {
	changes := make([]recovery.DirectoryUpdate, len(rs))
	for i, r := range rs {
		changes[i] = recovery.DirectoryUpdate{ID: r.ID, Old: r.Stale.DirectoryEntry, New: r.Want}
	}
	now, err := s.Fleet.ledger.Update(ctx, changes)
	if err != nil {
		for _, r := range rs {
			r.Err = fmt.Errorf("%w: directory of ids: %w", task.ErrUnavailable, err)
			s.Fleet.tombstones.push(Tombstone{r.ID, r.Want, s.engine.Elapsed()}) // may have landed
		}
		return
	}
	for i, r := range rs {
		switch {
		case now[i] == r.Want:
		case now[i].ShardID == 0:
			r.Stale, r.Err = engine.StaleEntry{}, engine.ErrStale // the entry has been removed
		default:
			r.Err = s.registeredBefore(ctx, r, now[i])
		}
	}
}

// registeredBefore handles an id that is registered already. It returns engine.ErrStale if that is
// under a shard that is held here, or by no node.
func (s *Cluster) registeredBefore(ctx context.Context, r *engine.IDClaim, now recovery.DirectoryEntry) error {
	h, err := s.locate(ctx, now.ShardID, false)
	switch {
	case err != nil:
		return err
	case h.Node == "":
		r.Stale = engine.StaleEntry{DirectoryEntry: now, Vacant: true}
		return engine.ErrStale
	case h.Shard < 0:
		return &engine.Elsewhere{ShardID: now.ShardID}
	case s.engine.Term(now.ShardID) == nil:
		return engine.ErrNotHeld // it is just coming or going
	}
	r.Stale = engine.StaleEntry{DirectoryEntry: now}
	return engine.ErrStale
}

// queryUnindexed asks the nodes whose ids may not all be registered whether they have some. It
// returns the node that has each; empty if none has. Errors: ErrUnavailable when one of
// them, or this node, cannot tell.
func (s *Cluster) queryUnindexed(ctx context.Context, ids []string) ([]string, error) {
	found := make([]string, len(ids))
	nodes, err := s.unindexed(ctx)
	if err != nil || len(nodes) == 0 {
		return found, err
	}
	for from := 0; from < len(ids) && err == nil; from += HasAtOnce {
		part := ids[from:min(from+HasAtOnce, len(ids))]
		askEach(ctx, s, nodes, HasMethod, HasQuery{part}, func(node string, a HasReply, failed error) {
			if failed != nil {
				err = final(failed)
			}
			for i, has := range a.Has[:min(len(a.Has), len(part))] {
				if has {
					found[from+i] = node
				}
			}
		})
	}
	return found, err
}

// HasAtOnce is how many ids a node is asked for with one call.
const HasAtOnce = 2000

// unindexed names the other nodes that have to be asked for ids that are not registered. A dead
// node cannot be asked: while it holds anything, no node can say what it has. A node that has
// adopted all its shards is among those that may not have registered their ids.
func (s *Cluster) unindexed(ctx context.Context) ([]string, error) {
	names, err := s.Fleet.ledger.Unindexed(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	if s.engine.Acquiring() {
		return nil, engine.ErrAcquiring
	}
	nodes, err := s.Fleet.ledger.Peers(ctx)
	if err != nil {
		return nil, unavailable(err)
	}
	for _, n := range nodes {
		if !n.Self && !n.Live && slices.Contains(names, n.Name) {
			return nil, task.KindOf(errOwnerSilent, "node "+n.Name+" may have the task and sends no heartbeat")
		}
	}
	return names, nil
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, recovery.ErrOwnerLost) {
		return fmt.Errorf("%w: %w", errOwnerLost, err)
	}
	return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
}

// CompareEntries compares ids of tasks in memory with the directory. If one is missing, the
// directory has lost something, and no node knows what else: the audit samples no dead task.
// So all ids of this node are registered anew, and until then the other nodes ask it.
func (s *Cluster) CompareEntries(ctx context.Context, sampled []recovery.DirectoryUpdate) {
	if len(sampled) == 0 {
		return
	}
	ids := make([]string, len(sampled))
	for i := range sampled {
		ids[i] = sampled[i].ID
	}
	now, err := s.Fleet.ledger.Lookup(ctx, ids)
	if err == nil {
		err = s.assert(ctx, s.misplaced(sampled, now))
	}
	if err != nil && !s.engine.IsClosing() {
		s.engine.Config.Log.Warn("the audit could not reach the directory of ids", "node", s.engine.Config.Node, "error", err)
	}
}

// misplaced returns the samples that the directory has under another shard, and has all ids
// registered anew if one is missing. Tasks that have left memory since do not count.
func (s *Cluster) misplaced(sampled []recovery.DirectoryUpdate, now []recovery.DirectoryEntry) (other []recovery.DirectoryUpdate) {
	var differ []recovery.DirectoryUpdate
	for i, f := range now {
		if f != sampled[i].New {
			differ = append(differ, recovery.DirectoryUpdate{ID: sampled[i].ID, Old: f, New: sampled[i].New})
		}
	}
	missing := false
	for _, u := range s.registry().Still(differ) {
		if u.Old.ShardID == 0 {
			missing = true
		} else {
			other = append(other, recovery.DirectoryUpdate{ID: u.ID, New: u.New})
		}
	}
	if wanted, done, _ := s.Fleet.indexing.read(); missing && wanted == done {
		s.engine.Config.Log.Error("directory entries lost; registering all ids again", "node", s.engine.Config.Node)
		s.reindex()
	}
	return other
}

// HasMethod asks which of the ids a node has.
var HasMethod = Method[HasQuery, HasReply]{Name: "has"}

type (
	// A HasQuery asks which of the ids a node has, registered or not.
	HasQuery struct{ IDs []string }
	// A HasReply says which of the ids the node has.
	HasReply struct{ Has []bool }
)

// HandleHas reports which ids this node has. From then on this node registers the ids of tasks that
// it creates: an id that it lacks now, it will not have without an entry in the directory.
func (s *Cluster) HandleHas(ctx context.Context, _ string, q HasQuery) (HasReply, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	a := HasReply{Has: make([]bool, len(q.IDs))}
	if err := s.engine.LoadUnknown(ctx, q.IDs); err != nil {
		return a, err
	}
	for i, id := range q.IDs {
		if a.Has[i] = s.Knows(id); !a.Has[i] {
			if err := s.inMissingSpool(id); err != nil {
				return a, err
			}
		}
	}
	return a, nil
}
