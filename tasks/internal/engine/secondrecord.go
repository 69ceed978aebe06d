package engine

import (
	"bytes"
	"cmp"
	"errors"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A secondRecord is a record of an id that memory has in another shard. Two nodes have created a
// task with the id if the directory, on another server than the shard, has lost its first entry
// while the owner of that was dead. Or the ledger has lost the end of a task whose id was used
// again in another shard. One of the two stays: the one that was created later, or of the same
// creation the one with the higher revision. The other is deleted, whatever memory does with the
// task meanwhile.
type secondRecord struct {
	shard int
	h     *OwnedShard // of the shard
	ref   recovery.Ref
	// seen is the version of memory's task when it was last looked at: the task may be finished
	// before the two are compared. created is 0 if it was not known yet.
	seen struct {
		created  int64
		revision uint32
	}
}

// look notes the version of memory's task.
func (t *secondRecord) look(b *store.Store, sl *store.Slot) {
	if rec := b.Record(sl); record.Whole(rec) && int(sl.Shard) != t.shard {
		t.seen.created, t.seen.revision = record.Created(rec), record.Revision(rec)
	}
}

// secondRecordOfLocked makes a secondRecord of an entry, if the slot that has its id is another
// record's: memory has it in another shard, or is about to look for it there.
func (s *Engine) secondRecordOfLocked(sl *store.Slot, e *recovery.Entry, seconds []secondRecord) []secondRecord {
	if !isSecondLocked(sl, e.Shard) {
		return seconds
	}
	t := secondRecord{shard: e.Shard, h: s.OwnedLocked(e.Shard), ref: recovery.Ref{ID: string(e.ID), Next: e.Spot.At}}
	t.look(s.Store, sl)
	return append(seconds, t)
}

func isSecondLocked(sl *store.Slot, shard int) bool {
	switch sl.State {
	case store.Vacant, store.Registering:
		return false
	case store.Checking:
		return sl.Flags&store.Nominated != 0 && int(sl.Shard) != shard
	}
	return sl.Shard != SpoolShard && int(sl.Shard) != shard
}

// resolveSecondRecords decides which records stay. It waits while something is under way with their
// tasks.
func (s *Engine) resolveSecondRecords(seconds []secondRecord) {
	newer, older := 0, 0
	var moved []recovery.DirectoryUpdate
	for _, t := range seconds {
		switch isNewer, dirEntry, ok := s.resolveSecondRecord(&t); {
		case !ok:
			continue
		case isNewer:
			newer++
			moved = append(moved, dirEntry...)
		default:
			older++
		}
	}
	if newer+older > 0 {
		s.Config.Log.Warn("duplicate records; deleting the older", "node", s.Config.Node,
			"found_newer", newer, "found_older", older)
	}
	s.Cluster.Register(s.Life.Context, moved)
}

// finishedLocked reports whether this process has finished the task of a record that it reads.
// The record may be a second one that was created later than the finished task: that one is
// another task, whose id is registered again, because the finished one has taken its entry out.
func (s *Engine) finishedLocked(e *recovery.Entry, f *record.Fields, h *OwnedShard) bool {
	past := s.Outcomes.FindSince(s.Store.Hash(e.ID), h.past)
	switch {
	case past.Kind == 0:
		return false
	case past.Covers(f.Created):
		return true
	case s.Ended:
		return false
	}
	id := bytes.Clone(e.ID)
	s.Life.Background.Go(func() {
		s.Config.Log.Warn("newer duplicate record; delivering it", "node", s.Config.Node, "task", string(id))
		var moved []recovery.DirectoryUpdate
		s.mu.Lock()
		if n, known := s.Store.Find(id); known {
			if entry, ok := s.registeredLocked(s.Store.Slot(n)); ok {
				moved = append(moved, entry)
			}
		}
		s.unlock()
		s.Cluster.Register(s.Life.Context, moved)
	})
	return false
}

// resolveSecondRecord reads a second record, and waits until memory's task is at rest if need be.
// It reports whether the second record was the newer one, and how its id is to be registered then.
// ok is false if there is nothing to decide any more.
func (s *Engine) resolveSecondRecord(t *secondRecord) (newer bool, dirEntry []recovery.DirectoryUpdate, ok bool) {
	var backoff recovery.Backoff
	for attempt := 0; ; attempt++ {
		var e recovery.Entry
		err := s.Ledger.Get(s.Life.Context, t.shard, []recovery.Ref{t.ref}, func(_ int, found recovery.Entry) {
			e = found
			e.ID, e.Data, e.Shard = []byte(t.ref.ID), bytes.Clone(found.Data), t.shard
		})
		switch {
		case errors.Is(err, recovery.ErrLost), errors.Is(err, recovery.ErrClosed), s.IsClosing(), err == nil && e.Data == nil:
			return false, nil, false
		case err == nil && s.learnTopicsOf(s.Life.Context, []recovery.Entry{e}):
			var again bool
			if newer, dirEntry, again, ok = s.decideSecondRecord(t, e); !again {
				return newer, dirEntry, ok
			}
		}
		if backoff.Wait(s.Life.Context, attempt) != nil {
			return false, nil, false
		}
	}
}

// isNewer reports whether a second record is newer than memory's task.
func (t *secondRecord) isNewer(f *record.Fields) bool {
	return cmp.Or(cmp.Compare(f.Created, t.seen.created), cmp.Compare(f.Revision, t.seen.revision)) > 0
}

// decideSecondRecord deletes a second record, or has memory take it up and deletes the record
// that it had. It reports again if memory's task is not at rest.
func (s *Engine) decideSecondRecord(t *secondRecord, e recovery.Entry) (newer bool, dirEntry []recovery.DirectoryUpdate, again, ok bool) {
	s.mu.Lock()
	defer s.unlock()
	if s.Ended || s.OwnedLocked(t.shard) != t.h || !t.h.takes() {
		return false, nil, false, false
	}
	f, err := record.Decode(e.Data)
	if err != nil {
		return false, nil, false, false // it is kept where it is
	}
	hash := s.Store.Hash(e.ID)
	n, known := s.Store.FindHashed(hash, e.ID)
	if known {
		sl := s.Store.Slot(n)
		t.look(s.Store, sl)
		switch {
		case int(sl.Shard) == t.shard && sl.State != store.Checking:
			return false, nil, false, false // memory has taken it up since
		case sl.State.Busy() || sl.Flags&store.Writing != 0:
			return false, nil, true, false
		}
		newer = t.isNewer(&f)
		switch {
		case newer && sl.State == store.Delivering:
			return false, nil, true, false // until it is settled, or its lease is out
		case newer:
			s.DisarmLocked(sl)
			s.Committer.Submit(int(sl.Shard), recovery.Change{ID: e.ID, From: recovery.Spot{Place: recovery.Pending, At: sl.Stored}}, Write{op: opUnspooled})
			s.leaveLocked(n, sl)
		}
	} else { // a cancel was about both; an acknowledgement was not about a newer one
		newer = t.isNewer(&f) && s.Outcomes.FindSince(hash, t.h.past).Kind != store.WasCancelled && !s.OutsideLocked(hash).Buried()
	}
	if !newer {
		s.Committer.Submit(t.shard, recovery.Change{ID: e.ID, From: e.Spot}, Write{op: opUnspooled})
		return false, nil, false, true
	}
	n, sl := s.Store.Enter(e.ID, e.Data)
	s.restoreLocked(n, sl, e, &f, s.Now())
	if entry, ok := s.registeredLocked(sl); ok {
		dirEntry = append(dirEntry, entry)
	}
	return true, dirEntry, false, true
}
