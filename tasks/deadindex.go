package tasks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// A deadIndex is memory's index of the dead. The ledger has their records, and may lose
// them: an id that memory takes for dead and the ledger does not know could neither be
// created nor deleted. Memory therefore asks the ledger before it refuses an id as dead, and
// compares the whole index with the ledger's when it has a reason to (see deadCheck).
//
// Only the index of a ledger that is a recovery.DeadChecker is corrected. Guarded by
// Scheduler.mu.
type deadIndex struct {
	ids     map[uint64]struct{}     // hashes of the ids of the dead
	checks  map[*deadCheck]struct{} // that are under way
	doubted bool                    // a comparison of all shards was asked for
	running bool                    // such a comparison is under way
}

// errUnburied is answered while the ledger has an older record of a task in place of the
// dead one: it is written again.
var errUnburied = fmt.Errorf("%w: the ledger has lost that the task is dead, which is being written again", ErrUnavailable)

// A lostDead is an id that memory takes for dead and of which the ledger has no dead record.
type lostDead struct {
	id       string
	shard    int
	h        *ownedShard // of the shard
	unburied int64       // the time of its pending record, if the ledger has one
	pending  bool        // it has
}

// findLostDead asks the ledger for ids that the caller has locked, and returns those that
// memory takes for dead and of which the ledger has no dead record.
func (s *engine) findLostDead(ctx context.Context, ids []string) (lost []lostDead, err error) {
	checker, ok := s.ledger.(recovery.DeadChecker)
	if !ok || len(ids) == 0 {
		return nil, nil
	}
	byShard := make(map[int][]lostDead)
	s.mu.Lock()
	for _, id := range ids {
		hash := s.store.Hash([]byte(id))
		for n, h := range s.shards {
			if !h.mine() {
				continue
			}
			if _, dead := h.dead[hash]; dead {
				byShard[n] = append(byShard[n], lostDead{id: id, shard: n, h: h})
				break
			}
		}
	}
	s.mu.Unlock()
	for n, dead := range byShard {
		names := make([]string, len(dead))
		for i := range dead {
			names[i] = dead[i].id
		}
		has, err := checker.HasDead(ctx, n, names)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		var missing []lostDead
		var refs []recovery.Ref
		for i := range dead {
			if !has[i] {
				missing = append(missing, dead[i])
				refs = append(refs, recovery.Ref{ID: dead[i].id})
			}
		}
		if len(refs) == 0 {
			continue
		}
		// What is pending in the ledger is not gone: the ledger has lost the burial.
		if err := s.ledger.Get(ctx, n, refs, func(i int, e recovery.Entry) {
			missing[i].unburied, missing[i].pending = e.Spot.At, true
		}); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		lost = append(lost, missing...)
	}
	return lost, nil
}

// forgetLostLocked takes lost ids, still locked, out of the index of the dead. It reports
// whether all of them are out: one whose shard is being restored stays, and so does one
// that the ledger still has as pending.
func (s *engine) forgetLostLocked(lost []lostDead) (all bool) {
	forgotten := 0
	for _, l := range lost {
		if l.h.reconciles == 0 && !l.pending && s.forgetDeadLocked(l.h, s.store.Hash([]byte(l.id))) {
			forgotten++
		}
	}
	if len(lost) > 0 {
		s.doubtDeadLocked() // others may be lost as well
	}
	if forgotten > 0 {
		s.cfg.Log.Error("the ledger had lost dead tasks; their ids are free", "node", s.cfg.Node, "tasks", forgotten)
	}
	return forgotten == len(lost)
}

// buryLost buries those again that the ledger has as pending. They must not be locked.
func (s *engine) buryLost(lost []lostDead) {
	for _, l := range lost {
		if l.pending {
			ref := recovery.Ref{ID: l.id, Next: l.unburied}
			if _, err := s.buryAgain(l.shard, l.h, []recovery.Ref{ref}); err != nil && !s.isClosing() {
				s.cfg.Log.Warn("a dead task cannot be written again at the moment", "node", s.cfg.Node, "task", l.id, "error", err)
			}
		}
	}
}

// forgetDeadLocked takes a hash out of the index of the dead of a shard.
func (s *engine) forgetDeadLocked(h *ownedShard, hash uint64) bool {
	number, known := h.dead[hash]
	if !known || !h.mine() {
		return false
	}
	delete(h.dead, hash)
	delete(s.dead.ids, hash)
	s.byNumber[number].lostDead()
	return true
}

// recheckDead asks the ledger whether it has the dead records of these ids, and forgets
// that they are dead if it has not. It waits for changes of them that are under way. It
// fails also while the ledger has an older record of one of them.
func (s *engine) recheckDead(ctx context.Context, ids []string) error {
	if _, ok := s.ledger.(recovery.DeadChecker); !ok {
		return nil
	}
	ctx, cancel := s.within(ctx)
	defer cancel()
	x := redrive{engine: s, op: opForget}
	locked, _, err := x.lock(ctx, ids)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(locked))
	for id := range locked {
		names = append(names, id)
	}
	lost, err := s.findLostDead(ctx, names)
	s.mu.Lock()
	if !s.forgetLostLocked(lost) && err == nil {
		err = errUnburied
	}
	for _, n := range locked {
		s.uncheckLocked(n)
	}
	s.unlock()
	s.buryLost(lost)
	return err
}

// recheckIllegible asks the ledger for an id whose record this version could not read, and
// forgets the id if the ledger has no such record any more.
func (s *engine) recheckIllegible(ctx context.Context, id string) error {
	finder, ok := s.ledger.(recovery.Finder)
	if !ok {
		return nil
	}
	key := []byte(id)
	s.mu.Lock()
	if _, known := s.store.Find(key); known || s.ended || !s.illegibleLocked(key) {
		s.unlock()
		return nil
	}
	n := s.checkLocked(key, store.Sought)
	gen := s.store.Slot(n).Gen
	s.unlock()
	there := false
	err := finder.Find(ctx, id, func(recovery.Entry) { there = true })
	s.mu.Lock()
	defer s.unlock()
	if sl := s.store.Slot(n); sl.State != store.Checking || sl.Gen != gen {
		return nil // replay has come across it
	}
	hash := s.store.Hash(key)
	if _, known := s.illegible[hash]; known && err == nil && !there {
		delete(s.illegible, hash)
		s.unknown--
		s.cfg.Log.Warn("a task that could not be read is gone from the ledger; its id is free", "node", s.cfg.Node, "task", id)
	}
	if s.store.Slot(n).Flags&store.Nominated == 0 {
		s.uncheckLocked(n)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// recheck is recheckDead or recheckIllegible, after a refusal. It reports whether the ledger
// has answered; the refused call is then made once more, and means it.
func (s *engine) recheck(ctx context.Context, id string, refusal error) bool {
	switch {
	case errors.Is(refusal, ErrDead):
		return s.recheckDead(ctx, []string{id}) == nil
	case errors.Is(refusal, errIllegible):
		return s.recheckIllegible(ctx, id) == nil
	}
	return false
}

// What memory knows of the dead: which ids they have (deadIndex.ids), how many there
// are of each topic (topic.gauges), and when the first of these died.

// oldestDead is when the first of those that are dead in a topic died. It may lag behind, but
// only to an earlier time: no task that is dead died before it.
type oldestDead struct {
	at     int64 // Unix ms; math.MaxInt64: none that the sweep could delete
	gone   bool  // that task is dead no longer: the ledger knows the next one
	asking bool  // the ledger is being asked
}

// addDeadLocked records that a task is dead, on record. It may be called again: the ledger's
// index shows a task before its burial is confirmed.
func (s *engine) addDeadLocked(t *topic, shard int, id []byte, died int64) {
	hash := s.store.Hash(id)
	for c := range s.dead.checks {
		delete(c.missing, hash)
	}
	_, again := s.dead.ids[hash]
	if h := s.ownedLocked(shard); h != nil && h.dead != nil {
		if _, again = h.dead[hash]; !again {
			h.dead[hash] = t.number
		}
	}
	if again {
		return
	}
	s.dead.ids[hash] = struct{}{}
	if t.gauges[Dead] == 0 || died < t.oldest.at {
		t.oldest.at = died
	}
	t.gauges[Dead]++
	t.countLocked(0)
}

// removeDeadLocked records that a task, which had died then, is dead no longer, on record. died
// is noneDead if the caller knows the next one already. It changes nothing if memory has
// found out before that the ledger had lost the task.
func (s *engine) removeDeadLocked(t *topic, shard int, id []byte, died int64) {
	hash := s.store.Hash(id)
	if h := s.ownedLocked(shard); h != nil && h.dead != nil {
		if _, known := h.dead[hash]; !known {
			return
		}
		delete(h.dead, hash)
	}
	delete(s.dead.ids, hash)
	t.gauges[Dead]--
	t.countLocked(0)
	if l := &t.oldest; died != noneDead && (died <= l.at || l.asking) {
		l.gone = true
	}
}

// askLocked begins to ask the ledger for the oldest dead task. It returns what is known so far,
// for learnLocked.
func (l *oldestDead) askLocked() int64 {
	l.asking, l.gone = true, false
	return l.at
}

// learnLocked ends it with the answer. If a task has left the dead meanwhile, the answer may be
// about that one, and the ledger is asked again. If a task has died earlier than all others, by
// a clock that was set back, that time is the answer.
func (l *oldestDead) learnLocked(before, answer int64) {
	l.asking = false
	if l.at != before {
		answer = min(l.at, answer)
	}
	l.at = answer
}

// lostDead records that a task is not among the dead of its topic, and perhaps never was.
func (t *topic) lostDead() {
	t.gauges[Dead]--
	t.countLocked(0)
	t.oldest.gone = true // perhaps: the ledger knows the next one
}

// deadSince returns when the first of those that are dead died; zero if there is none.
func (t *topic) deadSince() time.Time {
	if t.gauges[Dead] == 0 || t.oldest.at == noneDead {
		return time.Time{}
	}
	return fromMillis(t.oldest.at)
}

// noneDead is the answer that there is none.
const noneDead = math.MaxInt64

// visitDead is visitPage for the dead.
func (s *engine) visitDead(ctx context.Context, q *listQuery, visit func(t Task, at int64, shard int) bool) (last *recovery.Ref, err error) {
	if s.isClosing() {
		return nil, ErrClosed
	}
	var at recovery.Ref
	count, listed, full := 0, 0, false
	err = s.ledger.ListDead(ctx, q.Topic, q.After, func(e recovery.Entry) bool {
		if count == q.Limit || full {
			last = &at
			return false
		}
		at = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		listed++
		if f, err := record.Decode(e.Data); err == nil {
			count++
			full = !visit(s.describe(at.ID, &f, Dead), at.Next, e.Shard)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if last == nil && q.After == (recovery.Ref{}) {
		s.noteListed(q.Topic, listed)
	}
	return last, nil
}

// noteListed has memory compared with the ledger if a whole list of a topic's dead has fewer
// tasks than memory counts.
func (s *engine) noteListed(topic string, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.topics[topic]; ok && t.gauges[Dead] > int64(count) {
		s.doubtDeadLocked()
	}
}

// cancelDead deletes one dead task, whatever its topic.
func (s *engine) cancelDead(ctx context.Context, id string) error {
	x := redrive{engine: s, op: opForget, terms: task.TermsOf(ctx)}
	if err := x.piece(ctx, []string{id}); err != nil || x.done != 0 {
		return err
	}
	// Another caller may have taken it from among the dead at the same time.
	s.mu.Lock()
	_, known := s.store.Find([]byte(id))
	buried := s.buriedLocked([]byte(id))
	s.unlock()
	if known || !buried {
		return s.cancelHere(ctx, id)
	}
	return ErrNotFound
}
