package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// redrivenAtOnce bounds how many dead tasks are locked, and read, at once.
const redrivenAtOnce = 500

// A redrive requeues or deletes dead tasks, in pieces.
type redrive struct {
	*engine
	topic string      // empty: any
	op    op          // opRequeue, opForget or opExpire
	due   int64       // opRequeue: the new deadline
	until int64       // opExpire: only of those that had died by then
	terms *task.Terms // of a caller who has named one task; nil: none
	// enough is when to stop, if something was done, on the clock of elapsed; 0: never.
	enough time.Duration

	done   int
	missed bool     // opExpire: another caller was about to change one of them
	found  []string // ids that were asked for, and are done
	passed []string // ids that were asked for, and are not among the dead of the topic
}

// once leaves out ids that come twice: they must not be found missing the second time.
func once(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		conflicting := seen[id]
		seen[id] = true
		return conflicting
	})
}

// tired reports whether it has been at work for long enough.
func (x *redrive) tired() bool {
	return x.enough > 0 && x.done > 0 && x.elapsed() >= x.enough
}

// these redrives the tasks with the given ids, of which none comes twice. It returns how many
// of the ids it has not come to.
func (x *redrive) these(ctx context.Context, ids []string) (left int, err error) {
	for len(ids) > 0 && !x.tired() {
		some := ids[:min(redrivenAtOnce, len(ids))]
		if err := x.piece(ctx, some); err != nil {
			return len(ids), err
		}
		ids = ids[len(some):]
	}
	return len(ids), nil
}

// all redrives those of the topic's dead that are behind a position in the list: all that
// had died by a time, and of later ones only until there were as many as were dead in the
// beginning, or tasks that die again at once would keep it at work for ever. (They are not
// just left out: another node's clock may be ahead. And not all are counted: a shard that
// has come since has its own.) It returns the position to which it has come, how many are
// left to count, and whether it has come to the end.
func (x *redrive) all(ctx context.Context, after recovery.Ref, died int64, left int) (recovery.Ref, int, bool, error) {
	before := x.deadCount(x.topic)
	for !x.tired() {
		var ids []string
		err := x.ledger.ListDead(ctx, x.topic, after, func(e recovery.Entry) bool {
			if len(ids) == redrivenAtOnce || left <= len(ids) && e.Spot.At > died {
				return false
			}
			ids = append(ids, string(e.ID))
			after = recovery.Ref{ID: ids[len(ids)-1], Next: e.Spot.At}
			return true
		})
		if err != nil {
			return after, left, false, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		if len(ids) == 0 {
			x.noteRest(before)
			return after, left, true, nil
		}
		if err := x.piece(ctx, ids); err != nil {
			return after, left, false, err
		}
		left -= len(ids)
	}
	return after, left, false, nil
}

func (s *engine) newRedrive(q *redriveQuery) *redrive {
	x := &redrive{engine: s, topic: q.Topic, op: opRequeue, due: q.Due}
	if q.Delete {
		x.op = opForget
	} else if x.due == 0 {
		x.due = s.now() // which is past, and so due at once
	}
	return x
}

// piece locks the ids, reads their records under the lock and takes them from among
// the dead. It returns once the ledger has confirmed that, and counts what was done
// also where it returns an error.
func (x *redrive) piece(ctx context.Context, ids []string) error {
	ctx, cancel := x.within(ctx)
	defer cancel()
	locked, forgotten, err := x.lock(ctx, ids)
	if err != nil {
		return err
	}
	keys := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := locked[id]; return !ok })
	c := newPendingWrite(len(keys))
	var refused error
	var sent []int // positions in keys, and in the call
	seen := make([]bool, len(keys))
	err = x.ledger.GetDead(ctx, keys, func(i int, e recovery.Entry) {
		seen[i] = true
		f, err := record.Decode(e.Data)
		if err == nil && x.terms != nil {
			if refused = x.terms.Permit(string(f.Topic), int64(f.Revision), f.Created); refused != nil {
				return
			}
		}
		if err != nil || x.topic != "" && string(f.Topic) != x.topic || x.op == opExpire && e.Spot.At > x.until {
			return
		}
		x.mu.Lock()
		defer x.unlock()
		n, still := locked[keys[i]]
		if !still || refused != nil {
			return
		}
		if !x.ownedLocked(e.Shard).takes() || forgotten != x.shardCounts.forgotten {
			refused = errNotHeld // since it was read, and the number may stand for another shard
			return
		}
		if refused = x.redriveLocked(n, len(locked), e, &f, c, i); refused == nil {
			delete(locked, keys[i])
			sent = append(sent, i)
		}
	})
	var lost []lostDead
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	} else if lost, err = x.findLostDead(ctx, unseen(keys, seen)); err == nil {
		err = refused
	}
	x.mu.Lock()
	if !x.forgetLostLocked(lost) && err == nil {
		err = errUnburied
	}
	for _, n := range locked {
		x.uncheckLocked(n)
	}
	c.complete()
	x.unlock()
	x.buryLost(lost)
	// That an outcome is open weighs more than why no more was begun.
	if late := x.await(ctx, c); err == nil || errors.Is(late, ErrUnknown) {
		err = late
	}
	done := make(map[string]bool, len(sent))
	answers := x.outcomesOf(c)
	for _, i := range sent {
		switch {
		case answers[i] == nil:
			done[keys[i]] = true
		case err == nil:
			err = answers[i]
		}
	}
	x.done += len(done)
	for _, id := range ids {
		if done[id] {
			x.found = append(x.found, id)
		} else {
			x.passed = append(x.passed, id)
		}
	}
	return err
}

// unseen are the keys that were not seen.
func unseen(keys []string, seen []bool) (ids []string) {
	for i, id := range keys {
		if !seen[i] {
			ids = append(ids, id)
		}
	}
	return ids
}

// lock locks those of the ids that are dead, so that their records can be read while no other
// caller changes them, and returns how many terms were forgotten by then. A caller waits until
// a change of one of them is over: only then is it known whether it stays dead. The sweep passes
// over it.
func (x *redrive) lock(ctx context.Context, ids []string) (locked map[string]uint32, forgotten int, err error) {
	for waits := 0; ; {
		x.mu.Lock()
		err := x.openLocked()
		if err != nil {
			x.unlock()
			return nil, 0, err
		}
		ch := x.busyLocked(ids)
		x.missed = ch != nil
		if x.missed && x.op != opExpire {
			x.unlock() // with none of them locked, or two callers would wait for each other
			if err := x.waitBusy(ctx, ch, waits); err != nil {
				return nil, 0, err
			}
			waits++
			continue
		}
		locked, forgotten = make(map[string]uint32, len(ids)), x.shardCounts.forgotten
		for _, id := range ids {
			key := []byte(id)
			if _, known := x.store.Find(key); !known && x.buriedLocked(key) {
				locked[id] = x.checkLocked(key, 0)
			}
		}
		x.unlock()
		return locked, forgotten, nil
	}
}

// openLocked tells whether dead tasks may be changed: which shards they are in is not
// known yet.
func (x *redrive) openLocked() error {
	switch {
	case x.ended:
		return ErrClosed
	case x.unsure():
		return errUnsure
	case !isClosed(x.deadRead):
		return errDeadUnread
	}
	for shard, h := range x.shards {
		if !h.takes() {
			continue
		}
		if err := x.writable(shard); err != nil {
			return err
		}
	}
	return nil
}

// busyLocked returns a channel that is closed when the first of the ids that another caller is
// taking from among the dead is at rest; nil if there is none.
func (x *redrive) busyLocked(ids []string) <-chan struct{} {
	for _, id := range ids {
		key := []byte(id)
		if n, known := x.store.Find(key); known && x.store.Slot(n).State.Busy() && x.buriedLocked(key) {
			return x.watchLocked(n)
		}
	}
	return nil
}

// redriveLocked takes one of the ids that are locked from among the dead.
func (x *redrive) redriveLocked(n uint32, locked int, e recovery.Entry, f *record.Fields, c *pendingWrite, i int) error {
	if x.op == opRequeue {
		if err := x.admitLocked(e.Shard, 0, len(e.Data)); err != nil {
			return err
		}
		if others := x.store.Len() - locked; others >= x.cfg.MaxPending {
			return fmt.Errorf("%w: %d tasks are pending", ErrOverloaded, others)
		}
	}
	t := x.keptTopic(f.Topic)
	sl := x.store.Slot(n)
	sl.Topic, sl.Shard, sl.Stored, sl.State = t.number, uint16(e.Shard), e.Spot.At, store.Vacant
	if x.op == opRequeue {
		f.State, f.Attempt, f.Due, f.Next = record.Pending, 0, x.due, x.due
		f.Revision++
		x.scratch = f.Append(x.scratch[:0])
		x.store.Rewrite(n, x.scratch)
		sl.Next = x.due
		x.setLocked(sl, store.Requeuing)
	} else {
		x.store.Rewrite(n, e.Data)
		x.setLocked(sl, store.Finishing) // which, unlike cancelling, is not shown as pending
	}
	c.add(i, n)
	x.writeLocked(write{slot: n, op: x.op, pending: c, index: i})
	return nil
}

// noteRest has memory compared with the ledger if all of a topic's dead were taken from
// there, and memory still counts some.
func (x *redrive) noteRest(before int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if t, ok := x.topics[x.topic]; ok && before > 0 && t.gauges[Dead] > 0 {
		x.doubtDeadLocked()
	}
}

func (s *engine) deadCount(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.topics[topic]; ok {
		return int(t.gauges[Dead])
	}
	return 0
}

// A redriveQuery asks for dead tasks of a topic to be requeued or deleted: those with the
// ids, or as many as are dead.
type redriveQuery struct {
	Topic  string
	Delete bool
	Due    int64    // the new deadline; 0: now
	All    bool     // instead of the ids
	IDs    []string `json:",omitempty"`
	Died   int64    `json:",omitempty"` // of all: when it was asked for, and those that were dead are meant
	// Of all, when it has been asked before: how many are left to count, and behind which.
	Left  int `json:",omitempty"`
	After recovery.Ref
}
