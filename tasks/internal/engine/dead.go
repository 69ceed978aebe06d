package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// The ledger has the records of the dead, and may lose them: an id that memory takes for dead and
// the ledger does not know could neither be created nor deleted. Memory therefore asks the ledger
// before it refuses an id as dead, and compares the whole index with the ledger's when it has a
// reason to (see deadCheck). It corrects only the index of a recovery.DeadChecker.

// errUnburied is answered while the ledger has lost a dead task, and memory has not: it is written
// again.
var errUnburied = task.KindOf(task.ErrUnavailable, "burial lost by the ledger; being written again")

// forgetDeadLocked takes a hash out of the index of the dead of a shard, and counts it as lost.
func (s *Engine) forgetDeadLocked(h *OwnedShard, hash uint64, lost deadindex.Lost) bool {
	number, known := h.dead[hash]
	if !known || !h.mine() {
		return false
	}
	t := s.TopicTable.ByNumber[number]
	s.Dead.Remove(h.dead, hash, t.of != nil)
	t.lostDead()
	if t.of != nil {
		t = t.of
	}
	t.Counts.Lost++
	lost[t.Name]++
	return true
}

// RecheckDead asks the ledger whether it has the dead records of these ids. Those that it has lost
// are written again, or forgotten if memory has no records of them. It waits for changes of them
// that are under way, and fails if one could not be written again in time.
func (s *Engine) RecheckDead(ctx context.Context, ids []string) error {
	if _, ok := s.Ledger.(recovery.DeadChecker); !ok {
		return nil
	}
	ctx, cancel := s.Within(ctx)
	defer cancel()
	p, err := s.lockBuried(ctx, ids, true)
	if err != nil {
		return err
	}
	unburied, rewritten, err := p.finish(ctx, p.ids, nil)
	if rewritten < unburied && err == nil {
		err = errUnburied
	}
	return err
}

// recheckIllegible asks the ledger for an id whose record this version could not read, and
// forgets the id if the ledger has no such record any more.
func (s *Engine) recheckIllegible(ctx context.Context, id string) error {
	finder, ok := s.Ledger.(recovery.Finder)
	if !ok {
		return nil
	}
	key := []byte(id)
	s.mu.Lock()
	if _, at := s.LookupLocked(key); at != Illegible || s.Ended {
		s.unlock()
		return nil
	}
	n := s.Store.EnterChecking(key, store.Sought)
	gen := s.Store.Slot(n).Gen
	s.unlock()
	there := false
	err := finder.Find(ctx, id, func(recovery.Entry) { there = true })
	s.mu.Lock()
	defer s.unlock()
	if sl := s.Store.Slot(n); sl.State != store.Checking || sl.Gen != gen {
		return nil // replay has come across it
	}
	hash := s.Store.Hash(key)
	if _, known := s.Reading.Illegible[hash]; known && err == nil && !there {
		delete(s.Reading.Illegible, hash)
		s.Figures.UnknownRecords--
		s.Config.Log.Warn("a task that could not be read is gone from the ledger; its id is free", "node", s.Config.Node, "task", id)
	}
	if s.Store.Slot(n).Flags&store.Nominated == 0 {
		s.UncheckLocked(n)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", task.ErrUnavailable, err)
	}
	return nil
}

// Recheck is RecheckDead or recheckIllegible, after a refusal. It reports whether the ledger
// has answered; the refused call is then made once more, and means it.
func (s *Engine) Recheck(ctx context.Context, id string, refusal error) bool {
	switch {
	case errors.Is(refusal, task.ErrDead):
		return s.RecheckDead(ctx, []string{id}) == nil
	case errors.Is(refusal, ErrIllegible):
		return s.recheckIllegible(ctx, id) == nil
	}
	return false
}

// addDeadLocked records that a task is dead, on record. It may be called again: the ledger's
// index shows a task before its burial is confirmed.
func (s *Engine) addDeadLocked(t *Topic, shard int, id []byte, died int64) {
	if s.Dead.Add(s.OwnedLocked(shard).deadOf(), s.Store.Hash(id), t.Number, t.of != nil) {
		t.Oldest.Died(died, t.Gauges[task.Dead] == 0)
		t.buryLocked(1)
	}
}

// removeDeadLocked records that a task, which had died then, is dead no longer, on record. died
// is deadindex.None if the caller knows the next one already. It changes nothing if memory has
// found out before that the ledger had lost the task.
func (s *Engine) removeDeadLocked(t *Topic, shard int, id []byte, died int64) {
	if s.Dead.Remove(s.OwnedLocked(shard).deadOf(), s.Store.Hash(id), t.of != nil) {
		t.buryLocked(-1)
		t.Oldest.Left(died)
	}
}

// deadOf returns the dead of a term; nil if there is none, or if its shard cannot leave.
func (h *OwnedShard) deadOf() deadindex.Shard {
	if h == nil {
		return nil
	}
	return h.dead
}

// lostDead records that a task is not among the dead of its topic, and perhaps never was.
func (t *Topic) lostDead() {
	t.buryLocked(-1)
	t.Oldest.Lost()
}

// deadSince returns when the first of those that are dead died; zero if there is none.
func (t *Topic) deadSince() time.Time {
	if t.Gauges[task.Dead] == 0 || t.Oldest.At() == deadindex.None {
		return time.Time{}
	}
	return record.FromMillis(t.Oldest.At())
}

// visitDead is visitPage for the dead, and for the finished tasks that are kept.
func (s *Engine) visitDead(ctx context.Context, q *query.List, bare bool, visit func(t task.Task, at int64, shard int) bool) (last *recovery.Ref, err error) {
	if s.IsClosing() {
		return nil, task.ErrClosed
	}
	var at recovery.Ref
	count, full := 0, false
	x := search{Filter: &q.Filter, bare: bare, until: time.Now().Add(lookTime(ctx))}
	label := q.Topic
	if q.State == task.Finished {
		label += keptSuffix
	}
	err = s.ListDead(ctx, label, q.After, func(e recovery.Entry) bool {
		switch {
		case x.Passed(e.Spot.At):
			return false
		case count == q.Limit || full || x.over():
			last = &at
			return false
		}
		x.look(&e)
		at = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if f, err := record.Decode(e.Data); err == nil && x.HasRecord(at, &f, reasons[f.State]) {
			count++
			if bare {
				full = !visit(task.Task{ID: at.ID}, at.Next, e.Shard)
				return true
			}
			full = !visit(s.ListedBuried(at.ID, &f, q.Brief), at.Next, e.Shard)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	if last == nil && q.After == (recovery.Ref{}) && q.Filter.To == 0 {
		s.noteListed(label, x.looks)
	}
	return last, nil
}

// BuriedLabels returns the labels, from one on, under which the ledger has dead or finished tasks
// of topics that are wanted, in their order. It waits as ListDead does: a burial that is written
// again does not count meanwhile. Errors: those of ListDead.
func (s *Engine) BuriedLabels(ctx context.Context, from string, wanted func(topic string) bool) (labels []string, err error) {
	begun, err := s.awaitDead(ctx)
	if err != nil {
		return nil, err
	}
	s.EachTopic(func(t *Topic) {
		if !wanted(t.Name) {
			return
		}
		for _, l := range []*Topic{t, t.kept} {
			if l != nil && l.Gauges[task.Dead] > 0 && l.Name >= from {
				labels = append(labels, l.Name)
			}
		}
	})
	slices.Sort(labels)
	return slices.Compact(labels), s.restoredSince(begun)
}

// noteListed has memory compared with the ledger if the whole list of a label has fewer tasks than
// memory counts.
func (s *Engine) noteListed(label string, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, kept := strings.CutSuffix(label, keptSuffix)
	t, ok := s.TopicTable.ByName[name]
	if kept && ok {
		t, ok = t.kept, t.kept != nil
	}
	if ok && t.Gauges[task.Dead] > int64(count) {
		s.doubtDeadLocked()
	}
}

// cancelDead deletes one dead task, whatever its topic.
func (s *Engine) cancelDead(ctx context.Context, id string) error {
	x := Redrive{Engine: s, Op: opForget, conds: task.ConditionsOf(ctx)}
	if err := x.Piece(ctx, []string{id}); err != nil || x.Done != 0 {
		return err
	}
	// Another caller may have taken it from among the dead at the same time.
	if !s.lookup(id).Buried() {
		return s.CancelLocal(ctx, id)
	}
	return task.ErrNotFound
}

// Requeued returns up to n ids of tasks that were requeued since the mark of this node's log, see
// store.Requeued.Since.
func (s *Engine) Requeued(since store.Marks, n int) (ids []string, run string, number uint64, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Dead.Requeued.Since(since, n)
}
