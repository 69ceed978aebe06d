package tasks

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// checkConsistency compares everything that a scheduler keeps twice: the book
// with its index and its arena, the gauges and queues with a recount, and, where
// no write is under way, memory with the ledger. Nothing may be running.
func (r *rig) checkConsistency() {
	r.t.Helper()
	if errs := r.Scheduler.check(r.mem); errs != nil {
		r.t.Fatalf("inconsistent: %v", errs)
	}
}

// check compares a scheduler with itself, and with what its ledger has.
func (s *Scheduler) check(ledger recovery.Ledger) error {
	s.engine.mu.Lock()
	errs := errors.Join(s.checkBook(), s.engine.store.Check(), s.checkTopics(), s.checkOpen())
	s.engine.mu.Unlock()
	return errors.Join(errs, s.checkLedger(ledger))
}

// checkBook compares slots with timers and with what is counted of them.
func (s *Scheduler) checkBook() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	b := s.engine.store
	armed, arriving, writes := 0, 0, 0
	for n := uint32(1); n < b.Slots(); n++ {
		sl := b.Slot(n)
		if sl.State == store.Vacant {
			continue
		}
		id := string(b.ID(sl))
		if sl.Flags&store.Writing != 0 {
			writes++
		}
		switch sl.State {
		case store.Pending:
			if sl.Timer != 0 {
				armed++
			}
		case store.Creating, store.Moving:
			arriving++
		case store.Checking:
			continue
		}
		if f, err := record.Decode(b.Record(sl)); err != nil {
			fault("record of %s: %w", id, err)
		} else if string(f.Topic) != s.engine.byNumber[sl.Topic].name {
			fault("%s: topic %s in its record, %s in its slot", id, f.Topic, s.engine.byNumber[sl.Topic].name)
		}
		if _, ok := s.engine.deferred[n]; ok && sl.Flags&store.Writing == 0 {
			fault("%s: a write is deferred behind none", id)
		}
	}
	if n := s.engine.runner.Len(); n != armed && !s.engine.ended {
		fault("%d timers for %d armed tasks", n, armed)
	}
	// A move that was given up is counted until the committer gives it back.
	if arriving > s.engine.arriving || writes == 0 && s.engine.arriving != 0 && !s.engine.ended {
		fault("%d tasks are being created or moved, %d are counted", arriving, s.engine.arriving)
	}
	return errs
}

// checkTopics counts the gauges and the queues again.
func (s *Scheduler) checkTopics() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	gauges := make([][Dead + 1]int64, len(s.engine.byNumber))
	readies := make([]int, len(s.engine.byNumber))
	for n := uint32(1); n < s.engine.store.Slots(); n++ {
		if sl := s.engine.store.Slot(n); sl.State != store.Vacant {
			gauges[sl.Topic][sl.State.Shown()]++
			if sl.State == store.Ready {
				readies[sl.Topic]++
			}
		}
	}
	workers, pledged, backlog := 0, 0, 0
	for i, t := range s.engine.byNumber {
		workers += t.workers
		if t.asyncSettle {
			pledged += t.busy
		}
		if t.pushed {
			backlog += t.queue.live
		}
		if pushed := t.deliverer != nil && !t.settings.Paused; t.pushed != pushed {
			fault("topic %q counts for a backlog: %v", t.name, t.pushed)
		}
		if s.engine.neglectedLocked(t) {
			fault("topic %q: nobody has been woken for its ready tasks", t.name)
		}
		for _, state := range []State{Pending, Ready, Delivering} {
			if t.gauges[state] != gauges[i][state] {
				fault("topic %q counts %d %s, there are %d", t.name, t.gauges[state], state, gauges[i][state])
			}
		}
		if t.occupied != (t.slots > 0 || t.gauges[Dead] > 0) {
			fault("topic %q has tasks: %v", t.name, t.occupied)
		}
		items, live := 0, 0
		t.queue.each(func(it item) {
			items++
			if _, _, ok := s.engine.store.Unpack(it.value, store.Ready); ok {
				live++
			}
		})
		if live != readies[i] || t.queue.live != live || t.queue.count != items {
			fault("topic %q: %d ready; its queue holds %d, %d of them live, and counts %d, %d", t.name, readies[i], items, live, t.queue.count, t.queue.live)
		}
		if t.deliverer == nil && (t.workers != 0 || t.busy != 0) || t.busy > t.workers {
			fault("topic %q: %d of %d workers are busy", t.name, t.busy, t.workers)
		}
	}
	for _, q := range s.engine.quotas.byPatterns {
		counted := quota{}
		for _, t := range s.engine.byNumber {
			if t.name != "" && task.AnyMatches(q.patterns, t.name) {
				counted.tasks += t.slots
				if t.occupied {
					counted.topics++
				}
			}
		}
		if counted.tasks != q.tasks || counted.topics != q.topics {
			fault("a quota counts %d tasks of %d topics, there are %d of %d", q.tasks, q.topics, counted.tasks, counted.topics)
		}
	}
	if workers != s.engine.workers || pledged != s.engine.reservedInFlight || backlog != s.engine.backlog {
		fault("%d workers, %d pledged, %d in the backlog; counted %d, %d, %d", workers, pledged, backlog, s.engine.workers, s.engine.reservedInFlight, s.engine.backlog)
	}
	return errs
}

// checkOpen compares the open deliveries with the states.
func (s *Scheduler) checkOpen() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	away := 0
	for n, l := range s.engine.open {
		if l.leasedOut {
			away++
		}
		if st := s.engine.store.Slot(n).State; st != store.Delivering {
			fault("slot %d has an open delivery and state %d", n, st)
		}
	}
	if away != s.engine.leasedOut {
		fault("%d deliveries are away, %d are counted", away, s.engine.leasedOut)
	}
	for n := uint32(1); n < s.engine.store.Slots(); n++ {
		if _, open := s.engine.open[n]; s.engine.store.Slot(n).State == store.Delivering && !open {
			fault("slot %d is being delivered without a lease", n)
		}
	}
	for n := range s.engine.waiting {
		if st := s.engine.store.Slot(n).State; !st.Busy() || st == store.Vacant {
			fault("slot %d has state %d and is waited for", n, st)
		}
	}
	return errs
}

// checkLedger compares memory with the ledger, record by record.
func (s *Scheduler) checkLedger(ledger recovery.Ledger) (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	pendings, deads, err := dump(ledger)
	if err != nil {
		return err
	}
	s.engine.mu.Lock()
	defer s.engine.mu.Unlock()
	underWay := 0
	for n := uint32(1); n < s.engine.store.Slots(); n++ {
		sl := s.engine.store.Slot(n)
		if sl.State == store.Vacant {
			continue
		}
		if !atRest(sl) {
			underWay++
			continue
		}
		id := string(s.engine.store.ID(sl))
		e, ok := pendings[id]
		if !ok {
			fault("%s is in memory, not in the ledger", id)
			continue
		}
		delete(pendings, id)
		if e.Spot.At != sl.Stored || e.Shard != int(sl.Shard) {
			fault("%s: the ledger has it in shard %d at %d, memory believes %d, %d", id, e.Shard, e.Spot.At, sl.Shard, sl.Stored)
		}
		// The mark of a claim goes when the next attempt begins.
		marked := record.Flags(e.Data)&record.Claimed != 0 && record.Attempt(e.Data) == record.Attempt(s.engine.store.Record(sl))
		if rec := s.engine.store.Record(sl); !marked && !bytes.Equal(rec, e.Data) {
			fault("%s: the ledger has another record:\n%x\n%x", id, e.Data, rec)
		}
	}
	if underWay != 0 {
		return errs // the rest may be on its way
	}
	for id := range pendings {
		fault("%s is in the ledger, not in memory", id)
	}
	if len(deads) != len(s.engine.dead.ids) {
		fault("%d dead in the ledger, %d in the index", len(deads), len(s.engine.dead.ids))
	}
	byTopic := make(map[string]int64)
	for id, e := range deads {
		if !s.engine.buriedLocked([]byte(id)) {
			fault("%s is dead and not in the index", id)
		}
		byTopic[e.Spot.Label]++
	}
	for _, t := range s.engine.byNumber {
		if t.gauges[Dead] != byTopic[t.name] {
			fault("topic %q counts %d dead, the ledger has %d", t.name, t.gauges[Dead], byTopic[t.name])
		}
	}
	return errs
}

// dump reads the whole ledger of the rig.
func (r *rig) dump() (pendings, deads map[string]recovery.Entry) {
	r.t.Helper()
	pendings, deads, err := dump(r.mem)
	if err != nil {
		r.t.Fatal("reading the ledger:", err)
	}
	return pendings, deads
}

// dump reads a whole ledger.
func dump(ledger recovery.Ledger) (pendings, deads map[string]recovery.Entry, err error) {
	pendings, deads = make(map[string]recovery.Entry), make(map[string]recovery.Entry)
	keep := func(to map[string]recovery.Entry, e recovery.Entry) {
		e.ID, e.Data = bytes.Clone(e.ID), bytes.Clone(e.Data)
		to[string(e.ID)] = e
	}
	ctx := context.Background()
	err = ledger.Scan(ctx, func(page []recovery.Entry) error {
		for _, e := range page {
			err := ledger.Get(ctx, e.Shard, []recovery.Ref{{ID: string(e.ID), Next: e.Spot.At}}, func(_ int, e recovery.Entry) { keep(pendings, e) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = ledger.ListDead(ctx, "", recovery.Ref{}, func(e recovery.Entry) bool { keep(deads, e); return true })
	}
	return pendings, deads, err
}
