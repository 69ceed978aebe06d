package tasks

import (
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/wheel"
)

// atOnce is how many tasks are dealt with before others get the lock.
const atOnce = 256

// armLocked makes a task wait for its next attempt, or ready if that is now.
func (s *engine) armLocked(n uint32, sl *store.Slot, now int64) {
	s.leaveWindowLocked(sl)
	sl.Gen++
	sl.Timer = 0
	if sl.Next <= now {
		s.dueLocked(n, sl, now)
	} else {
		s.waitLocked(n, sl)
	}
}

func (s *engine) waitLocked(n uint32, sl *store.Slot) {
	s.setLocked(sl, store.Pending)
	sl.Timer = s.runner.Add(sl.Next, sl.Value(n))
}

// dueLocked makes a task whose time has come ready, unless it first has to wait for its
// place in its topic's window. Its generation is fresh.
func (s *engine) dueLocked(n uint32, sl *store.Slot, now int64) {
	if t := s.byNumber[sl.Topic]; t.settings.Spread != 0 && s.enterWindowLocked(t, sl) && sl.Next > now {
		s.waitLocked(n, sl)
	} else {
		s.readyLocked(n, sl)
	}
}

// disarmLocked takes a pending or ready task out of the wheel or its queue.
func (s *engine) disarmLocked(sl *store.Slot) {
	switch sl.State {
	case store.Pending:
		if sl.Timer != 0 {
			s.runner.Cancel(sl.Timer)
			sl.Timer = 0
		}
	case store.Ready:
		s.unqueuedLocked(s.byNumber[sl.Topic])
	}
	sl.Gen++
}

// fired is called by the wheel with tasks whose time has come.
func (s *engine) fired(values []uint64) {
	for len(values) > 0 {
		n := min(atOnce, len(values))
		s.mu.Lock()
		now := s.now()
		for _, v := range values[:n] {
			if n, sl, ok := s.store.Unpack(v, store.Pending); ok {
				sl.Timer = wheel.Timer(0)
				sl.Gen++
				s.dueLocked(n, sl, now)
			}
		}
		s.unlock()
		values = values[n:]
	}
}

// readyLocked queues a task for its receiver. Its generation is fresh.
func (s *engine) readyLocked(n uint32, sl *store.Slot) {
	s.setLocked(sl, store.Ready)
	t := s.byNumber[sl.Topic]
	t.queue.push(item{sl.Next, sl.Value(n)})
	s.queuedLocked(t)
	s.wakeLocked(t)
	if t.queue.crowded() {
		t.queue.clean(func(v uint64) bool {
			_, _, live := s.store.Unpack(v, store.Ready)
			return !live
		})
	}
}

// takeLocked takes the next task that may be delivered off a topic's queue. It stays
// ready until the caller says otherwise, which must be before the lock is given up.
// passed counts those that may not be delivered: it gives up at atOnce of them.
func (s *engine) takeLocked(t *topic, passed *int) (uint32, bool) {
	now := s.now()
	for ; *passed < atOnce && !t.stopped() && !s.ended && !s.pausedLocked(); *passed++ {
		it, ok := t.queue.pop()
		if !ok {
			break
		}
		n, sl, live := s.store.Unpack(it.value, store.Ready)
		if !live {
			continue
		}
		s.unqueuedLocked(t)
		if s.isAsideLocked(sl) {
			s.setAsideLocked(sl)
			continue
		}
		if sl.Next > now {
			// The clock was set back: on the new clock it is not due yet.
			s.armLocked(n, sl, now)
			continue
		}
		if s.tooLateLocked(t, sl, now) {
			s.skipLocked(n, sl)
			continue
		}
		if sl.Flags&store.Misfired != 0 && s.missedLocked(n, t, sl) {
			continue
		}
		if s.spent(t, sl) {
			s.expendLocked(n, sl)
			continue
		}
		sl.Gen++
		return n, true
	}
	return 0, false
}

// tooLateLocked tells that a task has passed its max_lateness.
func (s *engine) tooLateLocked(t *topic, sl *store.Slot, now int64) bool {
	rec := s.store.Record(sl)
	if record.Flags(rec)&record.HasMaxLateness == 0 {
		return false
	}
	f, err := record.Decode(rec)
	return err == nil && now-s.deadlineLocked(t, sl, f.Attempt == 0) > f.MaxLateness
}

func (s *engine) skipLocked(n uint32, sl *store.Slot) {
	s.byNumber[sl.Topic].counts.Skipped++
	s.outcomes.Add(s.store.Hash(s.store.ID(sl)), store.Outcome{Kind: store.WasSkipped, Created: record.Created(s.store.Record(sl))})
	s.emitLocked(EventSkipped, sl, Event{})
	s.setLocked(sl, store.Finishing)
	s.writeLocked(write{slot: n, op: opFinish})
}
