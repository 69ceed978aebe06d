package engine

import (
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// replay reads the ledger's pending tasks back. Overdue tasks are delivered while it still runs. It
// ends when the settings and the dead are known as well.
func (s *Engine) replay() {
	w := replayWatch{s: s, what: "replay"}
	s.mu.Lock()
	s.Reading.Progress.Began = time.Now() // the first report comes with the first records
	s.mu.Unlock()
	err := recovery.Replay(s.Life.Context, s.Ledger, (*Memory)(s), func(p recovery.Progress) {
		s.mu.Lock()
		s.Reading.Progress = p
		s.mu.Unlock()
		if w.fails(p) {
			return
		}
		if p.Read == 0 && p.Done {
			return // nothing to tell
		}
		s.Config.Log.Info("replay", "node", s.Config.Node, "read", p.Read, "elapsed", p.Elapsed.Round(time.Millisecond), "done", p.Done)
	})
	if err == nil {
		if !s.Life.Outlast(s.Reading.settingsRead, s.Reading.deadRead) {
			return
		}
		s.mu.Lock()
		defer s.unlock()
		close(s.Reading.Replayed)
		s.decideLocked()
		return
	}
	select {
	case <-s.Life.Closing:
	default:
		s.Config.Log.Error("replay ended before it was complete", "node", s.Config.Node, "error", err)
	}
}

// replayFailsEvery is the time between two log lines about a replay that makes no progress.
const replayFailsEvery = 10 * time.Second

// A replayWatch tells readiness and the log if a replay makes no progress.
type replayWatch struct {
	s    *Engine
	what string    // the name in readiness
	told time.Time // when the last line was written
}

// fails takes a report of a replay, and reports whether the last read has failed.
func (w *replayWatch) fails(p recovery.Progress) bool {
	if p.Err == nil {
		w.s.Waits.Clear(w.what)
		return false
	}
	w.s.Waits.Set(w.what, p.Err.Error())
	if now := time.Now(); w.told.IsZero() || now.Sub(w.told) >= replayFailsEvery {
		w.told = now
		w.s.Config.Log.Warn("replay waits for the ledger", "node", w.s.Config.Node, "replay", w.what, "read", p.Read, "error", p.Err)
	}
	return true
}

// Memory is the side of an Engine that replay fills.
type Memory Engine

// Load arms the tasks of a page that are not known yet.
func (m *Memory) Load(page []recovery.Entry) { (*Engine)(m).load(page, false) }

// LoadAhead is Load of what was read before the shard was this node's. Since then a caller may have
// found a task of it in the ledger, and ended it.
func (m *Memory) LoadAhead(page []recovery.Entry) { (*Engine)(m).load(page, true) }

func (s *Engine) load(page []recovery.Entry, ahead bool) {
	if !s.learnTopicsOf(s.Life.Context, page) {
		return
	}
	var seconds []secondRecord
	s.InPieces(page, func(piece []recovery.Entry) {
		now := s.Now()
		for _, e := range piece {
			h := s.Store.Hash(e.ID)
			if n, known := s.Store.FindHashed(h, e.ID); known {
				if sl := s.Store.Slot(n); sl.State == store.Checking && sl.Flags&store.Sought != 0 {
					// It is being looked up, which may fail: this is its record.
					s.resolveLocked(n, e, true)
				} else {
					seconds = s.secondRecordOfLocked(sl, &e, seconds)
				}
				continue
			}
			term := s.OwnedLocked(e.Shard)
			if !term.takes() {
				continue
			}
			if f, ok := s.readableLocked(&e); ok && !s.hasEndedLocked(term, h, &f, ahead) {
				n, sl := s.Store.Enter(e.ID, e.Data)
				s.restoreLocked(n, sl, e, &f, now)
			}
		}
	})
	if len(seconds) > 0 {
		s.Life.Background.Go(func() { s.resolveSecondRecords(seconds) })
	}
}

// hasEndedLocked reports whether this process has ended the task of a record since the record was
// read: memory does not know the task any more, and its record is deleted.
func (s *Engine) hasEndedLocked(term *OwnedShard, hash uint64, f *record.Fields, ahead bool) bool {
	if past := s.Outcomes.FindSince(hash, term.past); past.Kind != 0 && past.Covers(f.Created) {
		return true
	}
	_, dead := term.dead[hash]
	return dead && ahead
}

// Lock locks the nominated ids that are not known, or shares the lock of those
// that are being looked up.
func (m *Memory) Lock(page []recovery.Entry) []int {
	s := (*Engine)(m)
	var seconds []secondRecord
	locked, at := make([]int, 0, len(page)), 0
	s.InPieces(page, func(piece []recovery.Entry) {
		for i := range piece {
			var locks bool
			if locks, seconds = s.nominateLocked(&piece[i], seconds); locks {
				locked = append(locked, at+i)
			}
		}
		at += len(piece)
	})
	if len(seconds) > 0 {
		s.Life.Background.Go(func() { s.resolveSecondRecords(seconds) })
	}
	return locked
}

// nominateLocked locks the id of an entry. It reports false if memory knows the task, or does not
// take it.
func (s *Engine) nominateLocked(e *recovery.Entry, seconds []secondRecord) (bool, []secondRecord) {
	if !s.OwnedLocked(e.Shard).takes() {
		return false, seconds // lost since
	}
	n, known := s.Store.Find(e.ID)
	if known && s.Store.Slot(n).State == store.Registering {
		// It was no node's when a caller asked for it, and comes with a shard.
		s.AbortLocked(n, s.Store.Slot(n))
		known = false
	}
	if !known {
		n = s.Store.EnterChecking(e.ID, store.Nominated)
	} else if sl := s.Store.Slot(n); sl.State == store.Checking && sl.Flags&(store.Sought|store.Nominated) == store.Sought {
		sl.Flags |= store.Nominated
	} else {
		return false, s.secondRecordOfLocked(sl, e, seconds)
	}
	// Until it is resolved, the shard's number cannot come to mean another one.
	s.Store.Slot(n).Shard = uint16(e.Shard)
	return true, seconds
}

// Resolve arms locked ids, or gives them up.
func (m *Memory) Resolve(page []recovery.Entry, found bool) {
	s := (*Engine)(m)
	found = found && s.learnTopicsOf(s.Life.Context, page)
	s.InPieces(page, func(piece []recovery.Entry) {
		for i := range piece {
			n, known := s.Store.Find(piece[i].ID)
			if !known {
				continue
			}
			// The look-up that shared the lock may have been faster.
			if sl := s.Store.Slot(n); sl.State == store.Checking && sl.Flags&store.Nominated != 0 {
				s.resolveLocked(n, piece[i], found)
			}
		}
	})
}

// resolveLocked arms a task that is being checked, gives it up, or finishes it again.
func (s *Engine) resolveLocked(n uint32, e recovery.Entry, found bool) {
	f, readable := record.Fields{}, false
	h := s.OwnedLocked(e.Shard)
	if found && h.takes() {
		f, readable = s.readableLocked(&e)
	}
	if !readable {
		s.UncheckLocked(n)
		return
	}
	s.Store.Rewrite(n, e.Data)
	sl := s.Store.Slot(n)
	sl.Flags &^= store.Sought | store.Nominated
	if s.finishedLocked(&e, &f, h) {
		// This process has finished it, and the ledger has lost that since.
		sl.Shard, sl.Stored, sl.State = uint16(e.Shard), e.Spot.At, store.Vacant
		s.SetLocked(sl, store.Finishing)
		s.writeLocked(Write{slot: n, op: opFinish})
		return
	}
	s.restoreLocked(n, sl, e, &f, s.Now())
	s.Writes.notifyLocked(n)
}

// IllegibleLines is how many records that cannot be read are logged one by one.
const IllegibleLines = 20

// readableLocked takes a record apart. One that this binary cannot read is left in
// the ledger, untouched, and counted.
func (s *Engine) readableLocked(e *recovery.Entry) (record.Fields, bool) {
	f, err := record.Decode(e.Data)
	if err == nil && !(task.ValidName(string(e.ID)) && task.ValidName(string(f.Topic))) {
		err = record.ErrBad
	}
	if err != nil {
		h := s.Store.Hash(e.ID)
		if _, again := s.Reading.Illegible[h]; again {
			return f, false
		}
		s.Reading.Illegible[h] = uint16(e.Shard)
		s.Figures.UnknownRecords++
		switch {
		case s.Figures.UnknownRecords > IllegibleLines:
		// A downgrade may leave a million, and mu is held.
		case errors.Is(err, record.ErrNewer):
			s.Config.Log.Warn("a task was written by a newer version; it is kept, and not delivered here", "node", s.Config.Node, "task", string(e.ID), "error", err)
		default:
			s.Config.Log.Error("a task cannot be read; it is kept, and not delivered", "node", s.Config.Node, "task", string(e.ID), "error", err)
		}
		if s.Figures.UnknownRecords == IllegibleLines {
			s.Config.Log.Warn("further tasks that cannot be read here are only counted", "node", s.Config.Node)
		}
		return f, false
	}
	return f, true
}

// restoreLocked takes a task up where its record says it stands.
func (s *Engine) restoreLocked(n uint32, sl *store.Slot, e recovery.Entry, f *record.Fields, now int64) {
	t := s.keptTopicLocked(f.Topic)
	sl.Topic, sl.Shard = t.Number, uint16(e.Shard)
	sl.Next, sl.Stored, sl.State = f.Next, e.Spot.At, store.Vacant
	attempts := f.Attempt
	if f.State == record.Parked {
		attempts-- // the last one is under way
	}
	if attempts > 0 && f.Due <= now && f.Next != record.HeldUntil {
		t.enterMissed(sl, f.Due)
	}
	if f.State != record.Parked {
		s.armLocked(n, sl, now, fresh)
		foundLocked(t, sl, f, s.OwnedLocked(e.Shard).since)
		return
	}
	// A delivery that was open when the node was closed: its receipt still
	// counts until its lease ends.
	s.SetLocked(sl, store.Delivering)
	rest := min(max(0, millisDuration(f.LeaseRest)), task.MaxLease)
	s.Dispatch.Leases[n] = Lease{Nonce: f.Nonce, Attempt: f.Attempt, Until: s.Elapsed() + rest, Began: notKnown}
	s.leaveOpenLocked(n)
}
