package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
)

// loadGraves learns which ids are dead, and how many of which topic.
func (s *Scheduler) loadGraves(ctx context.Context) error {
	return s.ledger.ListDead(ctx, "", recovery.Ref{}, func(e recovery.Entry) bool {
		s.keptTopic([]byte(e.Spot.Label)).gauges[Dead]++
		s.graves[s.book.index.hash(e.ID)] = struct{}{}
		return true
	})
}

// DeadTasks lists the dead tasks of a topic, the longest dead first, 1 to 1,000
// at a time (0 means 100). Errors: ErrInvalid, ErrUnavailable, ErrClosed.
func (s *Scheduler) DeadTasks(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	if !validName(topic) {
		return Page{}, &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	limit, after, err := pageBounds(limit, cursor)
	if err != nil {
		return Page{}, err
	}
	if s.isClosing() {
		return Page{}, ErrClosed
	}
	var page Page
	var last recovery.Ref
	more := false
	err = s.ledger.ListDead(ctx, topic, after, func(e recovery.Entry) bool {
		if len(page.Tasks) == limit {
			more = true
			return false
		}
		last = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if f, err := decode(e.Data); err == nil {
			page.Tasks = append(page.Tasks, s.describe(last.ID, &f, Dead))
		}
		return true
	})
	if err != nil {
		return Page{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if more {
		page.Cursor = encodeCursor(last)
	}
	return page, nil
}

// Requeue makes dead tasks of a topic pending again, due at once and with all
// their attempts before them: those with the given ids, or all if ids is nil. It
// returns how many; ids that are not among the topic's dead are passed over.
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrClosed; then some
// may be done already.
func (s *Scheduler) Requeue(ctx context.Context, topic string, ids []string) (int, error) {
	return s.exhume(ctx, topic, ids, opRequeue)
}

// DeleteDead deletes dead tasks of a topic. Arguments and errors: as of Requeue.
func (s *Scheduler) DeleteDead(ctx context.Context, topic string, ids []string) (int, error) {
	return s.exhume(ctx, topic, ids, opForget)
}

// cancelDead deletes one dead task, whatever its topic.
func (s *Scheduler) cancelDead(ctx context.Context, id string) error {
	n, err := s.exhumeSome(ctx, "", []string{id}, opForget)
	if err != nil || n != 0 {
		return err
	}
	// Somebody else may have taken it from among the dead at the same time.
	s.mu.Lock()
	_, known := s.book.find([]byte(id))
	buried := s.buriedLocked([]byte(id))
	s.unlock()
	if known || !buried {
		return s.Cancel(ctx, id)
	}
	return ErrNotFound
}

func (s *Scheduler) exhume(ctx context.Context, topic string, ids []string, o op) (int, error) {
	const some = 500
	if !validName(topic) {
		return 0, &InvalidError{Fields: []FieldError{{"topic", nameProblem}}}
	}
	total := 0
	if ids != nil {
		for len(ids) > 0 {
			k := min(some, len(ids))
			n, err := s.exhumeSome(ctx, topic, ids[:k], o)
			total += n
			if err != nil {
				return total, err
			}
			ids = ids[k:]
		}
		return total, nil
	}
	// As many as are dead by now; for what dies meanwhile there is another call.
	after := recovery.Ref{}
	for left := s.deadCount(topic); left > 0; {
		var ids []string
		err := s.ledger.ListDead(ctx, topic, after, func(e recovery.Entry) bool {
			if len(ids) == min(some, left) {
				return false
			}
			ids = append(ids, string(e.ID))
			after = recovery.Ref{ID: ids[len(ids)-1], Next: e.Spot.At}
			return true
		})
		if err != nil {
			return total, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if len(ids) == 0 {
			break
		}
		n, err := s.exhumeSome(ctx, topic, ids, o)
		total += n
		if err != nil {
			return total, err
		}
		left -= len(ids)
	}
	return total, nil
}

func (s *Scheduler) deadCount(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.topics[topic]; ok {
		return int(t.gauges[Dead])
	}
	return 0
}

// exhumeSome locks the ids, reads their records under the lock and takes them from
// among the dead. An empty topic means any.
func (s *Scheduler) exhumeSome(ctx context.Context, topic string, ids []string, o op) (int, error) {
	locked := make(map[string]uint32, len(ids))
	s.mu.Lock()
	if s.ended {
		s.unlock()
		return 0, ErrClosed
	}
	for shard := range s.terms.Shards {
		if err := s.writable(shard); err != nil {
			s.unlock()
			return 0, err
		}
	}
	for _, id := range ids {
		key := []byte(id)
		if _, known := s.book.find(key); !known && s.buriedLocked(key) {
			locked[id] = s.checkLocked(key, 0)
		}
	}
	s.unlock()

	keys := make([]string, 0, len(locked))
	for id := range locked {
		keys = append(keys, id)
	}
	c := newCall(len(keys))
	ctx, cancel := s.within(ctx)
	defer cancel()
	var refused error
	err := s.ledger.GetDead(ctx, keys, func(i int, e recovery.Entry) {
		f, err := decode(e.Data)
		if err != nil || topic != "" && string(f.topic) != topic {
			return
		}
		s.mu.Lock()
		defer s.unlock()
		if refused == nil {
			refused = s.exhumeLocked(locked[keys[i]], len(locked), e, &f, o, c, i)
		}
		if refused == nil {
			delete(locked, keys[i])
		}
	})
	s.mu.Lock()
	for _, n := range locked {
		s.uncheckLocked(n)
	}
	c.complete()
	s.unlock()
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	} else {
		err = refused
	}
	if late := s.await(ctx, c); err == nil {
		err = late
	}
	return s.countDone(c, len(keys)-len(locked)), err
}

// exhumeLocked takes one of the ids that are locked from among the dead.
func (s *Scheduler) exhumeLocked(n uint32, locked int, e recovery.Entry, f *fields, o op, c *call, i int) error {
	if o == opRequeue {
		if err := s.admitLocked(e.Shard, 0, len(e.Data)); err != nil {
			return err
		}
		if others := s.book.used - locked; others >= s.cfg.MaxPending {
			return fmt.Errorf("%w: %d tasks are pending", ErrOverloaded, others)
		}
	}
	t := s.keptTopic(f.topic)
	sl := s.book.slot(n)
	sl.topic, sl.shard, sl.stored, sl.state = t.number, uint16(e.Shard), e.Spot.At, vacant
	if o == opRequeue {
		now := s.now()
		f.state, f.attempt, f.due, f.next = recPending, 0, now, now
		f.revision++
		s.scratch = f.encode(s.scratch[:0])
		s.book.rewrite(n, s.scratch)
		sl.next = now
		s.setLocked(sl, requeuing)
	} else {
		s.book.rewrite(n, e.Data)
		s.setLocked(sl, finishing) // which, unlike cancelling, is not shown as pending
	}
	c.expect(i, n)
	s.writeLocked(write{slot: n, op: o, call: c, index: i})
	return nil
}

// countDone is how many of the writes that were sent have succeeded.
func (s *Scheduler) countDone(c *call, sent int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := 0
	for _, err := range c.errs {
		if err != nil {
			failed++
		}
	}
	return sent - failed
}
