package engine

import (
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
	"github.com/lapsehq/lapse/wheel"
)

// AtOnce is how many tasks are dealt with before others get the lock.
const AtOnce = 256

// armLocked makes a task wait for its next attempt, or ready if that is now.
func (s *Engine) armLocked(n uint32, sl *store.Slot, now int64) {
	s.leaveWindowLocked(sl)
	sl.Gen++
	sl.Timer = 0
	if sl.Next <= now {
		s.dueLocked(n, sl, now)
	} else {
		s.waitLocked(n, sl)
	}
}

func (s *Engine) waitLocked(n uint32, sl *store.Slot) {
	s.SetLocked(sl, store.Pending)
	sl.Timer = s.Runner.Add(sl.Next, sl.Value(n))
}

// dueLocked makes a task whose time has come ready, unless it first has to wait for its
// place in its topic's window. Its generation is fresh.
func (s *Engine) dueLocked(n uint32, sl *store.Slot, now int64) {
	if t := s.TopicTable.ByNumber[sl.Topic]; t.Settings.Spread != 0 && s.enterWindowLocked(t, sl) && sl.Next > now {
		s.waitLocked(n, sl)
	} else {
		s.readyLocked(n, sl)
	}
}

// DisarmLocked takes a pending or ready task out of the wheel or its queue.
func (s *Engine) DisarmLocked(sl *store.Slot) {
	switch sl.State {
	case store.Pending:
		if sl.Timer != 0 {
			s.Runner.Cancel(sl.Timer)
			sl.Timer = 0
		}
	case store.Ready:
		s.unqueuedLocked(s.TopicTable.ByNumber[sl.Topic])
	}
	sl.Gen++
}

// Fired is called by the wheel with tasks whose time has come.
func (s *Engine) Fired(values []uint64) {
	for len(values) > 0 {
		n := min(AtOnce, len(values))
		s.Mu.Lock()
		now := s.Now()
		for _, v := range values[:n] {
			if n, sl, ok := s.Store.Unpack(v, store.Pending); ok {
				sl.Timer = wheel.Timer(0)
				sl.Gen++
				s.dueLocked(n, sl, now)
			}
		}
		s.Unlock()
		values = values[n:]
	}
}

// readyLocked queues a task for its receiver. Its generation is fresh.
func (s *Engine) readyLocked(n uint32, sl *store.Slot) {
	s.SetLocked(sl, store.Ready)
	t := s.TopicTable.ByNumber[sl.Topic]
	t.Queue.Push(Item{sl.Next, sl.Value(n)})
	s.QueuedLocked(t)
	s.WakeLocked(t)
	if t.Queue.Crowded() {
		t.Queue.Clean(func(v uint64) bool {
			_, _, live := s.Store.Unpack(v, store.Ready)
			return !live
		})
	}
}

// takeLocked takes the next task that may be delivered off a topic's queue. It stays
// ready until the caller says otherwise, which must be before the lock is given up.
// passed counts those that may not be delivered: it gives up at AtOnce of them.
func (s *Engine) takeLocked(t *Topic, passed *int) (uint32, bool) {
	now := s.Now()
	for ; *passed < AtOnce && !t.Stopped() && !s.Ended && !s.pausedLocked(); *passed++ {
		it, ok := t.Queue.Pop()
		if !ok {
			break
		}
		n, sl, live := s.Store.Unpack(it.Value, store.Ready)
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
func (s *Engine) tooLateLocked(t *Topic, sl *store.Slot, now int64) bool {
	rec := s.Store.Record(sl)
	if record.Flags(rec)&record.HasMaxLateness == 0 {
		return false
	}
	f, err := record.Decode(rec)
	return err == nil && now-s.deadlineLocked(t, sl, f.Attempt == 0) > f.MaxLateness
}

func (s *Engine) skipLocked(n uint32, sl *store.Slot) {
	s.TopicTable.ByNumber[sl.Topic].Counts.Skipped++
	s.Outcomes.Add(s.Store.Hash(s.Store.ID(sl)), store.Outcome{Kind: store.WasSkipped, Created: record.Created(s.Store.Record(sl))})
	s.emitLocked(task.EventSkipped, sl, task.Event{})
	s.SetLocked(sl, store.Finishing)
	s.writeLocked(Write{slot: n, op: opFinish})
}
