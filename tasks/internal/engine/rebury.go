package engine

import (
	"context"
	"math"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A burial that the ledger has lost is written again, be it of a dead task or of a finished one
// that is kept. What memory has of it decides what is written:
//
//	memory has              the ledger has    what is written
//	the record              any               the record
//	a brief record          an older record   that one, as dead or finished
//	a brief record          nothing           the brief record, with briefError
//	only that it is buried  an older record   that one, as dead or finished
//	only that it is buried  nothing           nothing: it is forgotten, and counts in Counts.Lost
//
// Memory has records of what was buried since this process took the shard, and if the shard was
// handed over, of what was buried right before, as many as Index.Burials has room for. Of what
// was buried before it has only the index.

// briefError is the last error of a finished task of which memory had only a brief record.
const briefError = "the ledger has lost this task; its payload and headers are gone"

// buriedLocked enters a task whose burial the ledger has confirmed among the dead.
func (s *Engine) buriedLocked(t *Topic, sl *store.Slot, rec []byte) {
	id := s.Store.ID(sl)
	s.addDeadLocked(t, int(sl.Shard), id, record.Next(rec))
	if h := s.OwnedLocked(int(sl.Shard)); h.mine() {
		s.Dead.Remember(s.Store.Hash(id), uint32(h.ShardID), id, rec, s.Elapsed())
	}
}

// A lostBurial is a burial that the ledger has lost.
type lostBurial struct {
	id      string
	pending int64         // where the ledger has an older record of the task, if it has one
	earlier recovery.Spot // of an earlier burial that the ledger has; zero: it has none
	// isPending says of one that a buriedPiece has found that the ledger has such a record.
	isPending bool
}

// BuryAgain buries tasks again of which the ledger has older records. It returns how many burials
// it has begun.
func (s *Restoration) BuryAgain(dead []recovery.Ref) (begun int, err error) {
	lost := make([]lostBurial, len(dead))
	for i := range dead {
		lost[i] = lostBurial{id: dead[i].ID, pending: dead[i].Next}
	}
	return s.rebury(s.Life.Context, s.lockDead(lost), lost, nil)
}

// reburyAndWait writes lost burials again whose ids are locked, and returns once the ledger has
// confirmed them, or ctx ends. It returns how many it has confirmed.
func (s *Restoration) reburyAndWait(ctx context.Context, locked map[string]uint32, lost []lostBurial) (confirmed int, err error) {
	c := NewPendingWrite(0)
	c.Phase.Store(sent) // a burial is never taken back
	_, err = s.rebury(ctx, locked, lost, c)
	s.mu.Lock()
	c.complete()
	s.mu.Unlock()
	if late := s.Await(ctx, c); err == nil {
		err = late
	}
	for _, answer := range s.OutcomesOf(c) {
		if answer == nil {
			confirmed++
		}
	}
	return confirmed, err
}

// rebury begins to write lost burials again, for c if that is not nil, and returns how many. It
// passes over those that are not locked, and unlocks those that it does not write.
//
// The ids are locked while older records of them are read: a burial that ends between the read and
// its answer leaves a dead record, and a second one would add another member to the ledger's index.
func (s *Restoration) rebury(ctx context.Context, locked map[string]uint32, lost []lostBurial, c *PendingWrite) (begun int, err error) {
	var refs []recovery.Ref
	earlier := make(map[string]recovery.Spot)
	for _, l := range lost {
		if _, ours := locked[l.id]; !ours {
			continue
		}
		refs = append(refs, recovery.Ref{ID: l.id, Next: l.pending})
		if l.earlier.Place == recovery.Dead {
			earlier[l.id] = l.earlier
		}
	}
	if len(refs) == 0 {
		return 0, nil
	}
	var unread []string // records that stay where they are
	begin := func(id string, older *recovery.Entry, f *record.Fields) {
		n, still := locked[id]
		if !still || s.Ended || !s.Term.mine() || !s.OutsideLocked(s.Store.Hash([]byte(id))).Buried() {
			return
		}
		if s.reburyLocked(n, older, f, earlier[id], c) {
			delete(locked, id)
			begun++
		}
	}
	err = s.Ledger.Get(ctx, s.Shard, refs, func(i int, e recovery.Entry) {
		f, err := record.Decode(e.Data)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			unread = append(unread, refs[i].ID)
			return
		}
		begin(refs[i].ID, &e, &f)
	})
	s.mu.Lock()
	defer func() { s.unlock() }()
	for _, id := range unread {
		s.UncheckLocked(locked[id])
		delete(locked, id)
	}
	if err == nil {
		for i := range refs {
			if i%AtOnce == AtOnce-1 {
				s.unlock()
				s.mu.Lock()
			}
			begin(refs[i].ID, nil, nil)
		}
	}
	for _, n := range locked {
		s.UncheckLocked(n)
	}
	return begun, err
}

// lockDead locks those of the ids that are dead by memory, and of which nothing else is under way.
func (s *Restoration) lockDead(lost []lostBurial) (locked map[string]uint32) {
	locked = make(map[string]uint32, len(lost))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ended || !s.Term.mine() {
		return locked
	}
	for i := range lost {
		key := []byte(lost[i].id)
		if _, at := s.LookupLocked(key); at.Buried() {
			locked[lost[i].id] = s.Store.EnterChecking(key, 0)
		}
	}
	return locked
}

// reburyLocked begins to write a lost burial again. older is the record that the ledger has of the
// task, with its fields; nil: it has none. It reports false if nothing is known that could be
// written.
func (s *Restoration) reburyLocked(n uint32, older *recovery.Entry, f *record.Fields, earlier recovery.Spot, c *PendingWrite) bool {
	sl := s.Store.Slot(n)
	id := s.Store.ID(sl)
	hash := s.Store.Hash(id)
	number, here := s.Term.dead[hash]
	if !here && s.Term.dead != nil {
		return false // it is dead in another shard
	}
	stored := int64(store.NotStored)
	if older != nil {
		stored = older.Spot.At
	}
	b, has := s.Dead.Burials.Find(hash)
	switch {
	case has && (!b.Brief || older == nil):
		s.Writes.scratch = append(s.Writes.scratch[:0], b.Record...)
		if b.Brief {
			brief, err := record.Decode(b.Record)
			if err != nil {
				return false
			}
			brief.LastError = []byte(briefError)
			s.Writes.scratch = brief.Append(s.Writes.scratch[:0])
		}
	case older != nil:
		if _, kept := s.Dead.Kept[hash]; kept {
			s.finishAgainLocked(f, id, s.Term, s.Now())
		} else {
			f.State, f.Next = record.Dead, s.Now()
			f.Flags &^= record.Claimed | record.HasLease
			f.Release()
			f.LastError = []byte("dead; the ledger has lost why")
		}
		s.Writes.scratch = f.Append(s.Writes.scratch[:0])
	default:
		return false
	}
	w := Write{slot: n, op: opRebury, pending: c}
	s.Store.Rewrite(n, s.Writes.scratch)
	sl = s.Store.Slot(n)
	sl.Topic, sl.Shard, sl.State = s.keptTopicLocked(record.Topic(s.Store.Record(sl))).Number, uint16(s.Shard), store.Vacant
	if sl.Stored = stored; stored == store.NotStored {
		// Not a creation, which a ledger without room refuses.
		sl.Stored = record.Next(s.Store.Record(sl))
	}
	if earlier.Place == recovery.Dead && older == nil {
		w.after, sl.Stored = s.labelledLocked(earlier.Label), earlier.At
	}
	s.SetLocked(sl, store.Finishing)
	// The confirmation counts it again. The task may have been dead the longest.
	counts := s.buriedAsLocked(sl)
	if here {
		counts = s.TopicTable.ByNumber[number]
	}
	s.removeDeadLocked(counts, s.Shard, s.Store.ID(sl), math.MinInt64)
	if c != nil {
		w.index = c.extend(n)
	}
	s.writeLocked(w)
	return true
}
