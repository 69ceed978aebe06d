package engine

import (
	"slices"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// EntryLocked returns how the id of a task in memory is entered in the directory. It reports false
// if it is not: Lapse made the id, the id tells its shard, or memory has no record of the task, as
// of one that is being looked up and of one that lost writes have brought back (see deleteSome):
// nothing is known of such a task but its id.
func (s *Engine) EntryLocked(sl *store.Slot) (recovery.DirectoryUpdate, bool) {
	if !s.Store.Chosen(sl) {
		return recovery.DirectoryUpdate{}, false
	}
	id, f := s.Store.ID(sl), s.entryOfLocked(sl)
	if tells(id, f.ShardID) {
		return recovery.DirectoryUpdate{}, false
	}
	return recovery.DirectoryUpdate{ID: string(id), New: f}, true
}

// registeredLocked is EntryLocked for a task of which the directory has to know now.
func (s *Engine) registeredLocked(sl *store.Slot) (recovery.DirectoryUpdate, bool) {
	switch sl.State {
	case store.Vacant, store.Checking, store.Registering:
		return recovery.DirectoryUpdate{}, false
	}
	if !s.OwnedLocked(int(sl.Shard)).takes() || !s.Cluster.Registers() {
		return recovery.DirectoryUpdate{}, false
	}
	return s.EntryLocked(sl)
}

// A Registry is the tasks of an engine as the directory of ids lists them.
type Registry struct{ *Engine }

// Some returns the entries of tasks in memory: of those in AtOnce slots from one on, and the slot
// behind them, which is 0 after the last one.
func (s Registry) Some(from uint32) (entries []recovery.DirectoryUpdate, next uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	next = from + AtOnce
	for n := from; n < min(next, s.Store.Slots()); n++ {
		if u, ok := s.registeredLocked(s.Store.Slot(n)); ok {
			entries = append(entries, u)
		}
	}
	if next >= s.Store.Slots() {
		next = 0
	}
	return entries, next
}

// Dead returns the entry of a dead task. It reports false if it has none, or its shard is leaving.
func (s Registry) Dead(e recovery.Entry) (recovery.DirectoryUpdate, bool) {
	f, err := record.Decode(e.Data)
	if err != nil || f.Flags&record.ChosenID == 0 {
		return recovery.DirectoryUpdate{}, false
	}
	t := s.Shards.view.Load().term(e.Shard)
	if !t.at.takes() || tells(e.ID, t.of.ShardID) {
		return recovery.DirectoryUpdate{}, false
	}
	return recovery.DirectoryUpdate{ID: string(e.ID), New: DirectoryEntryOf(t.of.ShardID, e.ID, f.Created)}, true
}

// Still returns those of some entries that are still entries of tasks in memory.
func (s Registry) Still(entries []recovery.DirectoryUpdate) []recovery.DirectoryUpdate {
	return s.those(entries, func(u *recovery.DirectoryUpdate) bool {
		n, known := s.Store.Find([]byte(u.ID))
		if !known {
			return false
		}
		now, ok := s.registeredLocked(s.Store.Slot(n))
		return ok && now.New == u.New
	})
}

// Orphans returns those of some changes, which remove directory entries, whose entries no task has:
// this node holds the shard, and has read it, so that it would know the task.
func (s Registry) Orphans(changes []recovery.DirectoryUpdate) []recovery.DirectoryUpdate {
	return s.those(changes, func(u *recovery.DirectoryUpdate) bool {
		_, at := s.LookupLocked([]byte(u.ID))
		return at == Absent && s.Shards.view.Load().find(u.Old.ShardID).at.takes()
	})
}

// those returns those of some directory entries for which is, called with the mutex held,
// reports true.
func (s Registry) those(all []recovery.DirectoryUpdate, is func(u *recovery.DirectoryUpdate) bool) (some []recovery.DirectoryUpdate) {
	for part := range slices.Chunk(all, AtOnce) {
		s.mu.Lock()
		for i := range part {
			if is(&part[i]) {
				some = append(some, part[i])
			}
		}
		s.mu.Unlock()
	}
	return some
}

// BuryDuplicate makes a task dead, with a reason, whose id is another node's: the one that has this
// directory entry. It reports whether the task is dead now, or was. A task that is being delivered
// or changed is left until that is over.
func (s Registry) BuryDuplicate(entry recovery.DirectoryUpdate, reason string) bool {
	s.mu.Lock()
	defer s.unlock()
	n, at := s.LookupLocked([]byte(entry.ID))
	if s.Ended || at != InMemory {
		return !s.Ended && at.Buried()
	}
	sl := s.Store.Slot(n)
	now, ok := s.registeredLocked(sl)
	if !ok || now.New != entry.New || sl.State != store.Pending && sl.State != store.Ready || s.writableLocked(int(sl.Shard)) != nil {
		return false
	}
	c := NewPendingWrite(0)
	c.Phase.Store(sent) // a death is never taken back
	s.buryWaitingLocked(n, sl, record.Buried, reason, c)
	c.complete()
	return true
}
