package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// RedrivenAtOnce bounds how many dead tasks are locked, and read, at once.
const RedrivenAtOnce = 500

// A Redrive requeues or deletes dead tasks, in pieces.
type Redrive struct {
	*Engine
	Topic string           // its label in the ledger; empty: any
	kept  bool             // finished tasks, in place of the dead
	Op    op               // opRequeue, opForget or OpExpire
	due   int64            // opRequeue: the new deadline
	Until int64            // OpExpire: only tasks that had died by then
	act   *ActQuery        // for which it is; nil: any task of the topic
	conds *task.Conditions // of a caller who has named one task; nil: none
	// Enough is when to stop, if a task was redriven, on the clock of Elapsed; 0: never.
	Enough time.Duration

	Done   int
	missed bool     // OpExpire: another caller was about to change one of them
	Found  []string // ids that were asked for, and are done
	Acted  []string // that were not, since another act has changed the task after this one began
	Passed []string // ids that were asked for, and are not among the dead of the topic
}

// Once returns ids with each one once: a second attempt at one would not find its task.
func Once(ids []string) []string {
	seen := make(map[string]bool, len(ids))
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool {
		conflicting := seen[id]
		seen[id] = true
		return conflicting
	})
}

// tired reports whether the redrive has run for long enough.
func (x *Redrive) tired() bool {
	return x.Enough > 0 && x.Done > 0 && x.Elapsed() >= x.Enough
}

// RedriveIDs redrives the tasks with the given ids, of which none may come twice. It returns how
// many of the ids are left.
func (x *Redrive) RedriveIDs(ctx context.Context, ids []string) (left int, err error) {
	for len(ids) > 0 && !x.tired() {
		some := ids[:min(RedrivenAtOnce, len(ids))]
		if err := x.Piece(ctx, some); err != nil {
			return len(ids), err
		}
		ids = ids[len(some):]
	}
	return len(ids), nil
}

// RedriveTopic redrives dead tasks of the topic after a position in the list: all that died by
// until, and later ones only until it has redriven left tasks in all. So tasks that die again do
// not keep it running. It redrives some later ones because another node's clock may be ahead. The
// count alone would not do: a shard that was acquired since has dead tasks of its own. It returns
// the position that it has reached, what remains of left, and whether the list has ended.
func (x *Redrive) RedriveTopic(ctx context.Context, after recovery.Ref, until int64, left int) (recovery.Ref, int, bool, error) {
	before := x.DeadCount(x.Topic)
	for !x.tired() {
		var ids []string
		err := x.listDead(ctx, x.Topic, after, func(e recovery.Entry) bool {
			if len(ids) == RedrivenAtOnce || left <= len(ids) && e.Spot.At > until {
				return false
			}
			ids = append(ids, string(e.ID))
			after = recovery.Ref{ID: ids[len(ids)-1], Next: e.Spot.At}
			return true
		})
		if err != nil {
			return after, left, false, err
		}
		if len(ids) == 0 {
			x.noteRest(before)
			return after, left, true, nil
		}
		if err := x.Piece(ctx, ids); err != nil {
			return after, left, false, err
		}
		left -= len(ids)
	}
	return after, left, false, nil
}

// NewRedrive returns a redrive that has not begun.
func (s *Engine) NewRedrive(q *RedriveQuery) *Redrive {
	x := &Redrive{Engine: s, Topic: q.Topic, Op: opRequeue, due: q.Due, act: q.Act}
	if q.Delete {
		x.Op = opForget
	} else if x.due == 0 {
		x.due = s.Now() // which is past, and so due at once
	}
	return x
}

// Piece locks the ids, reads their records under the lock and takes them from among
// the dead. It returns once the ledger has confirmed that, and counts what was done
// also where it returns an error.
func (x *Redrive) Piece(ctx context.Context, ids []string) error {
	ctx, cancel := x.Within(ctx)
	defer cancel()
	locked, forgotten, err := x.lock(ctx, ids)
	if err != nil {
		return err
	}
	keys := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := locked[id]; return !ok })
	c := NewPendingWrite(len(keys))
	var refused error
	var sent, dry []int // positions in keys, and in the call
	seen, acted := make([]bool, len(keys)), make(map[string]bool)
	err = x.Ledger.GetDead(ctx, keys, func(i int, e recovery.Entry) {
		seen[i] = true
		f, err := record.Decode(e.Data)
		if err == nil && x.conds != nil {
			if refused = x.conds.Permit(string(f.Topic), int64(f.Revision), f.Created); refused != nil {
				return
			}
		}
		if err != nil || record.IsFinished(f.State) != x.kept || x.Topic != "" && string(f.Topic) != strings.TrimSuffix(x.Topic, keptSuffix) || x.Op == OpExpire && e.Spot.At > x.Until {
			return
		}
		if x.act != nil && !x.act.hasDead(recovery.Ref{ID: keys[i], Next: e.Spot.At}, &f) {
			return
		}
		if x.act != nil {
			if err := x.act.changes(f.Stamp, x.Config.Clock()); err != nil {
				acted[keys[i]] = errors.Is(err, ErrActedSince)
				return
			}
		}
		x.Mu.Lock()
		defer x.Unlock()
		n, still := locked[keys[i]]
		if !still || refused != nil {
			return
		}
		if !x.OwnedLocked(e.Shard).Takes() || forgotten != x.Shards.Counts.forgotten {
			refused = ErrNotHeld // since it was read, and the number may stand for another shard
			return
		}
		if x.act != nil && x.act.Dry {
			dry = append(dry, i)
			return
		}
		if refused = x.redriveLocked(n, len(locked), e, &f, c, i); refused == nil {
			delete(locked, keys[i])
			sent = append(sent, i)
		}
	})
	var lost []lostDead
	if err != nil {
		err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	} else if lost, err = x.findLostDead(ctx, unseen(keys, seen)); err == nil {
		err = refused
	}
	x.Mu.Lock()
	if x.forgetLostLocked(lost) < len(lost) && err == nil {
		err = errUnburied
	}
	again := x.unlockRestLocked(locked, lost)
	c.Complete()
	x.Unlock()
	x.buryLost(ctx, again)
	// ErrUnknown takes precedence.
	if late := x.Await(ctx, c); err == nil || errors.Is(late, task.ErrUnknown) {
		err = late
	}
	done := make(map[string]bool, len(sent)+len(dry))
	for _, i := range dry {
		done[keys[i]] = true
	}
	answers := x.OutcomesOf(c)
	for _, i := range sent {
		switch {
		case answers[i] == nil:
			done[keys[i]] = true
		case err == nil:
			err = answers[i]
		}
	}
	x.Done += len(done)
	for _, id := range ids {
		switch {
		case done[id]:
			x.Found = append(x.Found, id)
		case acted[id]:
			x.Acted = append(x.Acted, id)
		default:
			x.Passed = append(x.Passed, id)
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
func (x *Redrive) lock(ctx context.Context, ids []string) (locked map[string]uint32, forgotten int, err error) {
	for waits := 0; ; {
		x.Mu.Lock()
		err := x.openLocked()
		if err != nil {
			x.Unlock()
			return nil, 0, err
		}
		ch := x.busyLocked(ids)
		x.missed = ch != nil
		if x.missed && x.Op != OpExpire {
			x.Unlock() // with none of them locked, or two callers would wait for each other
			if err := x.WaitBusy(ctx, ch, waits); err != nil {
				return nil, 0, err
			}
			waits++
			continue
		}
		locked, forgotten = make(map[string]uint32, len(ids)), x.Shards.Counts.forgotten
		for _, id := range ids {
			key := []byte(id)
			if _, at := x.LookupLocked(key); at.Buried() {
				locked[id] = x.CheckLocked(key, 0)
			}
		}
		x.Unlock()
		return locked, forgotten, nil
	}
}

// openLocked returns nil if dead tasks may be changed in every shard that this process holds. It
// asks about all shards, since it is not known yet which ones the tasks are in.
func (x *Redrive) openLocked() error {
	switch {
	case x.Ended:
		return task.ErrClosed
	case x.Unsure():
		return ErrUnsure
	case !isClosed(x.Reading.deadRead):
		return errDeadUnread
	}
	for shard, h := range x.Shards.List {
		if !h.Takes() {
			continue
		}
		if err := x.WritableLocked(shard); err != nil {
			return err
		}
	}
	return nil
}

// busyLocked returns a channel that is closed when the first of the ids that another caller is
// taking from among the dead is at rest; nil if there is none.
func (x *Redrive) busyLocked(ids []string) <-chan struct{} {
	for _, id := range ids {
		key := []byte(id)
		hash := x.Store.Hash(key)
		if n, known := x.Store.FindHashed(hash, key); known && x.Store.Slot(n).State.Busy() && x.OutsideLocked(hash).Buried() {
			return x.WatchLocked(n)
		}
	}
	return nil
}

// redriveLocked takes one of the ids that are locked from among the dead.
func (x *Redrive) redriveLocked(n uint32, locked int, e recovery.Entry, f *record.Fields, c *PendingWrite, i int) error {
	if x.Op == opRequeue {
		if err := x.AdmitLocked(e.Shard, 0, len(e.Data)); err != nil {
			return err
		}
		if others := x.Store.Len() - locked; others >= x.Config.MaxPending {
			return fmt.Errorf("%w: %d tasks are pending", task.ErrOverloaded, others)
		}
	}
	t := x.buriedTopicLocked(f)
	sl := x.Store.Slot(n)
	sl.Topic, sl.Shard, sl.Stored, sl.State = t.Number, uint16(e.Shard), e.Spot.At, store.Vacant
	if x.Op == opRequeue {
		f.State, f.Attempt, f.Due, f.Next = record.Pending, 0, x.due, x.due
		f.Revision++
		if x.act != nil {
			f.Stamp = cmp.Or(x.act.Stamp, f.Stamp)
		}
		x.Writes.scratch = f.Append(x.Writes.scratch[:0])
		x.Store.Rewrite(n, x.Writes.scratch)
		sl.Next = x.due
		x.SetLocked(sl, store.Requeuing)
		x.Dead.Requeued.Add(string(e.ID)) // before the ledger can show that it is not dead
	} else {
		x.Store.Rewrite(n, e.Data)
		x.SetLocked(sl, store.Finishing) // which, unlike cancelling, is not shown as pending
	}
	c.add(i, n)
	x.writeLocked(Write{slot: n, op: x.Op, pending: c, index: i})
	return nil
}

// noteRest has memory compared with the ledger if all of a topic's dead were taken from
// there, and memory still counts some.
func (x *Redrive) noteRest(before int) {
	x.Mu.Lock()
	defer x.Mu.Unlock()
	if t, ok := x.TopicTable.ByName[x.Topic]; ok && before > 0 && t.Gauges[task.Dead] > 0 {
		x.doubtDeadLocked()
	}
}

// DeadCount returns how many tasks of a topic are dead.
func (s *Engine) DeadCount(topic string) int {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if t, ok := s.TopicTable.ByName[topic]; ok {
		return int(t.Gauges[task.Dead])
	}
	return 0
}

// A RedriveQuery asks for dead tasks of a topic to be requeued or deleted: those with the
// ids, or as many as are dead.
type RedriveQuery struct {
	Topic  string
	Delete bool
	Due    int64 // the new deadline; 0: now
	All    bool  // instead of the ids
	IDs    []string
	Died   int64 // of all: when it was asked for, and those that were dead are meant
	// Of all, when it has been asked before: how many are left to count, and behind which.
	Left  int
	After recovery.Ref
	// Act is the act that redrives the ids, which may be of any topic if Topic is empty; nil: none.
	Act *ActQuery
}
