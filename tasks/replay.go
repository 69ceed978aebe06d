package tasks

import (
	"errors"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// replay reads the ledger's pending tasks back. What is overdue is delivered
// while it still runs. It ends when the settings and the dead are known as well.
func (s *engine) replay() {
	w := replayWatch{s: s, what: "replay"}
	s.mu.Lock()
	s.progress.Began = time.Now() // the first report comes with the first records
	s.mu.Unlock()
	err := recovery.Replay(s.ctx, s.ledger, (*memory)(s), func(p recovery.Progress) {
		s.mu.Lock()
		s.progress = p
		s.mu.Unlock()
		if w.fails(p) {
			return
		}
		if p.Read == 0 && p.Done {
			return // nothing to tell
		}
		s.cfg.Log.Info("replay", "node", s.cfg.Node, "read", p.Read, "elapsed", p.Elapsed.Round(time.Millisecond), "done", p.Done)
	})
	if err == nil {
		if !s.outlast(s.settingsRead, s.deadRead) {
			return
		}
		s.mu.Lock()
		defer s.unlock()
		close(s.replayed)
		s.decideLocked()
		return
	}
	select {
	case <-s.closing:
	default:
		s.cfg.Log.Error("replay ended before it was complete", "node", s.cfg.Node, "error", err)
	}
}

// replayFailsEvery is the time between two log lines about a replay that makes no progress.
const replayFailsEvery = 10 * time.Second

// A replayWatch tells readiness and the log if a replay makes no progress.
type replayWatch struct {
	s    *engine
	what string    // the name in readiness
	told time.Time // when the last line was written
}

// fails takes a report of a replay, and reports whether the last read has failed.
func (w *replayWatch) fails(p recovery.Progress) bool {
	if p.Err == nil {
		w.s.waits.Clear(w.what)
		return false
	}
	w.s.waits.Set(w.what, p.Err.Error())
	if now := time.Now(); w.told.IsZero() || now.Sub(w.told) >= replayFailsEvery {
		w.told = now
		w.s.cfg.Log.Warn("replay waits for the ledger", "node", w.s.cfg.Node, "replay", w.what, "read", p.Read, "error", p.Err)
	}
	return true
}

// memory is the side of a Scheduler that replay fills.
type memory engine

// Load arms the tasks of a page that are not known yet.
func (m *memory) Load(page []recovery.Entry) {
	s := (*engine)(m)
	if !s.learnTopicsOf(s.ctx, page) {
		return
	}
	for len(page) > 0 {
		n := min(atOnce, len(page))
		var seconds []secondRecord
		s.mu.Lock()
		now := s.now()
		for _, e := range page[:n] {
			h := s.store.Hash(e.ID)
			if n, known := s.store.FindHashed(h, e.ID); known {
				if sl := s.store.Slot(n); sl.State == store.Checking && sl.Flags&store.Sought != 0 {
					// It is being looked up, which may fail: this is its record.
					s.resolveLocked(n, e, true)
				} else {
					seconds = s.secondRecordOfLocked(sl, &e, seconds)
				}
				continue
			}
			if !s.ownedLocked(e.Shard).takes() {
				continue
			}
			if f, ok := s.readableLocked(&e); ok {
				n, sl := s.store.Enter(e.ID, e.Data)
				s.restoreLocked(n, sl, e, &f, now)
			}
		}
		s.unlock()
		s.resolveSecondRecords(seconds)
		page = page[n:]
	}
}

// Lock locks the nominated ids that are not known, or shares the lock of those
// that are being looked up.
func (m *memory) Lock(page []recovery.Entry) []int {
	s := (*engine)(m)
	var seconds []secondRecord
	defer func() { s.resolveSecondRecords(seconds) }()
	s.mu.Lock()
	defer s.unlock()
	var locked []int
	for i := range page {
		if !s.ownedLocked(page[i].Shard).takes() {
			break // lost since; all of a page are of one shard
		}
		n, known := s.store.Find(page[i].ID)
		if known && s.store.Slot(n).State == store.Registering {
			// It was no node's when a caller asked for it, and comes with a shard.
			s.abortLocked(n, s.store.Slot(n))
			known = false
		}
		if !known {
			n = s.checkLocked(page[i].ID, store.Nominated)
		} else if sl := s.store.Slot(n); sl.State == store.Checking && sl.Flags&(store.Sought|store.Nominated) == store.Sought {
			sl.Flags |= store.Nominated
		} else {
			seconds = s.secondRecordOfLocked(sl, &page[i], seconds)
			continue
		}
		// Until it is resolved, the shard's number cannot come to mean another one.
		s.store.Slot(n).Shard = uint16(page[i].Shard)
		locked = append(locked, i)
	}
	return locked
}

// Resolve arms a locked id, or gives it up.
func (m *memory) Resolve(e recovery.Entry, found bool) {
	s := (*engine)(m)
	found = found && s.learnTopicsOf(s.ctx, []recovery.Entry{e})
	s.mu.Lock()
	defer s.unlock()
	n, known := s.store.Find(e.ID)
	if !known {
		return
	}
	// The look-up that shared the lock may have been faster.
	if sl := s.store.Slot(n); sl.State == store.Checking && sl.Flags&store.Nominated != 0 {
		s.resolveLocked(n, e, found)
	}
}

// resolveLocked arms a task that is being checked, gives it up, or finishes it again.
func (s *engine) resolveLocked(n uint32, e recovery.Entry, found bool) {
	f, readable := record.Fields{}, false
	h := s.ownedLocked(e.Shard)
	if found && h.takes() {
		f, readable = s.readableLocked(&e)
	}
	if !readable {
		s.uncheckLocked(n)
		return
	}
	s.store.Rewrite(n, e.Data)
	sl := s.store.Slot(n)
	sl.Flags &^= store.Sought | store.Nominated
	if s.finishedLocked(&e, &f, h) {
		// This process has finished it, and the ledger has lost that since.
		sl.Shard, sl.Stored, sl.State = uint16(e.Shard), e.Spot.At, store.Vacant
		s.setLocked(sl, store.Finishing)
		s.writeLocked(write{slot: n, op: opFinish})
		return
	}
	s.restoreLocked(n, sl, e, &f, s.now())
	s.notifyLocked(n)
}

// illegibleLines is how many records that cannot be read are told one by one.
const illegibleLines = 20

// readableLocked takes a record apart. One that this binary cannot read is left in
// the ledger, untouched, and counted.
func (s *engine) readableLocked(e *recovery.Entry) (record.Fields, bool) {
	f, err := record.Decode(e.Data)
	if err == nil && !(task.ValidName(string(e.ID)) && task.ValidName(string(f.Topic))) {
		err = record.ErrBad
	}
	if err != nil {
		h := s.store.Hash(e.ID)
		if _, again := s.illegible[h]; again {
			return f, false
		}
		s.illegible[h] = uint16(e.Shard)
		s.unknown++
		switch {
		case s.unknown > illegibleLines: // the lock is held, and a downgrade may leave a million
		case errors.Is(err, record.ErrNewer):
			s.cfg.Log.Warn("a task was written by a newer version; it is kept, and not delivered here", "task", string(e.ID), "error", err)
		default:
			s.cfg.Log.Error("a task cannot be read; it is kept, and not delivered", "task", string(e.ID), "error", err)
		}
		if s.unknown == illegibleLines {
			s.cfg.Log.Warn("further tasks that cannot be read here are only counted")
		}
		return f, false
	}
	return f, true
}

// restoreLocked takes a task up where its record says it stands.
func (s *engine) restoreLocked(n uint32, sl *store.Slot, e recovery.Entry, f *record.Fields, now int64) {
	t := s.keptTopic(f.Topic)
	sl.Topic, sl.Shard = t.number, uint16(e.Shard)
	sl.Next, sl.Stored, sl.State = f.Next, e.Spot.At, store.Vacant
	if f.State != record.Parked {
		s.armLocked(n, sl, now)
		s.foundLocked(t, sl, f, s.ownedLocked(e.Shard).since)
		return
	}
	// A delivery that was open when the node was closed: its receipt still
	// counts until its lease ends.
	s.setLocked(sl, store.Delivering)
	rest := min(max(0, millisDuration(f.LeaseRest)), MaxLease)
	s.open[n] = lease{nonce: f.Nonce, attempt: f.Attempt, until: s.elapsed() + rest}
	s.leaveOpenLocked(n)
}
