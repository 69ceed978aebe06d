package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/engine/dispatch"
	"github.com/lapsehq/lapse/tasks/internal/engine/minutes"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// KeptSuffix ends the labels of finished tasks in the ledger.
const KeptSuffix = "!"

// CheckConsistency compares everything that a scheduler keeps twice: the book
// with its index and its arena, the gauges and queues with a recount, and, where
// no write is under way, memory with the ledger. Nothing may be running.
func (r *Rig) CheckConsistency() {
	r.T.Helper()
	if errs := consistent(r.Engine(), r.Mem); errs != nil {
		r.T.Fatalf("inconsistent: %v", errs)
	}
}

// A consistency compares an engine with itself.
type consistency struct{ engine *engine.Engine }

// consistent compares an engine with itself, and with what its ledger has.
func consistent(e *engine.Engine, ledger recovery.Ledger) error {
	s := consistency{e}
	Mutex(s.engine).Lock()
	errs := errors.Join(s.checkBook(), s.engine.Store.Check(), s.checkTopics(), s.checkRetrying(), s.checkMissed(), s.checkOpen())
	Mutex(s.engine).Unlock()
	return errors.Join(errs, s.checkLedger(ledger))
}

// WantCounted checks those counts that are right at any moment.
func WantCounted(t *testing.T, e *engine.Engine) {
	t.Helper()
	Mutex(e).Lock()
	defer Mutex(e).Unlock()
	Want(t, "counts", errors.Join(consistency{e}.checkRetrying(), consistency{e}.checkMissed()), nil)
}

// checkBook compares slots with timers and with what is counted of them.
func (s consistency) checkBook() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	b := s.engine.Store
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
		case store.Creating, store.Moving, store.Replacing:
			arriving++
		case store.Checking:
			continue
		}
		if f, err := record.Decode(b.Record(sl)); err != nil {
			fault("record of %s: %w", id, err)
		} else if string(f.Topic) != strings.TrimSuffix(s.engine.TopicTable.ByNumber[sl.Topic].Name, KeptSuffix) {
			fault("%s: topic %s in its record, %s in its slot", id, f.Topic, s.engine.TopicTable.ByNumber[sl.Topic].Name)
		}
		if _, ok := s.engine.Writes.Deferred[n]; ok && sl.Flags&store.Writing == 0 {
			fault("%s: a write is deferred behind none", id)
		}
	}
	if n := s.engine.Runner.Len(); n != armed && !s.engine.Ended {
		fault("%d timers for %d armed tasks", n, armed)
	}
	// A move that was given up is counted until the committer gives it back.
	if arriving > s.engine.Writes.Arriving || writes == 0 && s.engine.Writes.Arriving != 0 && !s.engine.Ended {
		fault("%d tasks are being created or moved, %d are counted", arriving, s.engine.Writes.Arriving)
	}
	return errs
}

// checkRetrying counts the tasks that are retrying, or held, again. It holds whatever is under way.
func (s consistency) checkRetrying() (errs error) {
	retrying, held := make([]int64, len(s.engine.TopicTable.ByNumber)), make([]int64, len(s.engine.TopicTable.ByNumber))
	for n := uint32(1); n < s.engine.Store.Slots(); n++ {
		sl := s.engine.Store.Slot(n)
		if sl.State.Shown() != tasks.Pending {
			continue
		}
		f := s.engine.Store.Fields(sl)
		if f.Attempt > 0 {
			retrying[sl.Topic]++
		}
		is := f.Flags&record.Held != 0
		if is {
			held[sl.Topic]++
		}
		if is != (sl.Next == record.HeldUntil) || is != (f.Next == record.HeldUntil) {
			errs = errors.Join(errs, fmt.Errorf("%s: held %v by its flag, next %d, in its record %d", s.engine.Store.ID(sl), is, sl.Next, f.Next))
		}
	}
	for i, t := range s.engine.TopicTable.ByNumber {
		if t.Held != held[i] {
			errs = errors.Join(errs, fmt.Errorf("topic %q counts %d held, there are %d", t.Name, t.Held, held[i]))
		}
		if t.Retrying != retrying[i] {
			errs = errors.Join(errs, fmt.Errorf("topic %q counts %d retrying, there are %d", t.Name, t.Retrying, retrying[i]))
		}
	}
	return errs
}

// checkMissed counts the tasks again of which an attempt has failed since their deadline. It holds
// whatever is under way. Of a task that was moved it is not known whether the attempts that its
// record counts were made since then.
func (s consistency) checkMissed() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	again := make([]minutes.Missed, len(s.engine.TopicTable.ByNumber))
	now := s.engine.Now()
	for n := uint32(1); n < s.engine.Store.Slots(); n++ {
		sl := s.engine.Store.Slot(n)
		shown := sl.State.Shown()
		if shown == 0 || sl.State == store.Burying {
			if sl.State != store.Vacant && sl.Flags.IsMissed() {
				fault("%s counts as missed in state %d", s.engine.Store.ID(sl), sl.State)
			}
			continue
		}
		f, is := s.engine.Store.Fields(sl), sl.Flags.IsMissed()
		failed := int64(f.Attempt)
		if f.State == record.Parked || f.Flags&record.Claimed != 0 && shown != tasks.Pending {
			failed-- // the last one is under way, or its end is not known
		}
		switch held := sl.Next == record.HeldUntil; {
		case is && (f.Attempt == 0 || held), !is && failed > 0 && !held && f.Revision == 0 && f.Due <= now:
			fault("%s counts as missed: %v, after %d attempts, held %v, revision %d", s.engine.Store.ID(sl), is, f.Attempt, held, f.Revision)
		case is:
			again[sl.Topic].Enter(f.Due)
			if shown == tasks.Ready {
				again[sl.Topic].Ready++
			}
		}
	}
	for i, t := range s.engine.TopicTable.ByNumber {
		m, want := &t.Missed, &again[i]
		if m.Count != want.Count || m.Ready != want.Ready || !m.SameMinutes(want) {
			fault("topic %q counts %+v as missed, there are %+v", t.Name, m, want)
		}
	}
	return errs
}

// checkTopics counts the gauges and the queues again.
func (s consistency) checkTopics() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	gauges := make([][tasks.Dead + 1]int64, len(s.engine.TopicTable.ByNumber))
	readies := make([]int, len(s.engine.TopicTable.ByNumber))
	strays := make([]int, len(s.engine.TopicTable.ByNumber))
	grouped, places := make([]int, len(s.engine.TopicTable.ByNumber)), make([]int, len(s.engine.TopicTable.ByNumber))
	for n := uint32(1); n < s.engine.Store.Slots(); n++ {
		if sl := s.engine.Store.Slot(n); sl.State != store.Vacant {
			gauges[sl.Topic][sl.State.Shown()]++
			switch {
			case sl.State == store.Ready && sl.Flags&store.Stray != 0:
				strays[sl.Topic]++
			case sl.State == store.Ready && sl.Flags&store.InGroup != 0:
				grouped[sl.Topic]++
			case sl.State.Occupying() && sl.Flags&store.Occupies != 0:
				places[sl.Topic]++
			case sl.State == store.Ready:
				readies[sl.Topic]++
			}
		}
	}
	workers, pledged, backlog := 0, 0, 0
	for i, t := range s.engine.TopicTable.ByNumber {
		workers += t.Workers
		if t.AsyncSettle {
			pledged += t.Busy
		}
		if t.Pushed {
			backlog += t.Takeable()
		}
		if pushed := t.Deliverer != nil && !t.Settings.Paused; t.Pushed != pushed {
			fault("topic %q counts for a backlog: %v", t.Name, t.Pushed)
		}
		if s.engine.Dispatch.Neglected(&t.Line) {
			fault("topic %q: no receiver was woken for its ready tasks", t.Name)
		}
		for _, state := range []tasks.State{tasks.Pending, tasks.Ready, tasks.Delivering} {
			if t.Gauges[state] != gauges[i][state] {
				fault("topic %q counts %d %s, there are %d", t.Name, t.Gauges[state], state, gauges[i][state])
			}
		}
		if t.Occupied != (t.Slots > 0 || t.Gauges[tasks.Dead] > 0) {
			fault("topic %q has tasks: %v", t.Name, t.Occupied)
		}
		items, live := 0, 0
		t.Queue.Each(func(it dispatch.Item) {
			items++
			if _, _, ok := s.engine.Store.Unpack(it.Value, store.Ready); ok {
				live++
			}
		})
		if live != readies[i] || t.Queue.Live != live || t.Queue.Count != items {
			fault("topic %q: %d ready; its queue holds %d, %d of them live, and counts %d, %d", t.Name, readies[i], items, live, t.Queue.Count, t.Queue.Live)
		}
		if g := t.Groups; g != nil {
			live, busy := g.Check(func(value uint64) bool {
				_, _, ok := s.engine.Store.Unpack(value, store.Ready)
				return ok
			})
			if live != grouped[i] || busy != places[i] || g.Live != live || g.Counted != g.Free {
				fault("topic %q: %d ready in groups, which hold %d and count %d; %d places, %d are counted; %d may begin, %d are counted",
					t.Name, grouped[i], live, g.Live, places[i], busy, g.Free, g.Counted)
			}
		} else if grouped[i] != 0 || places[i] != 0 {
			fault("topic %q has no groups, %d tasks in them and %d places", t.Name, grouped[i], places[i])
		}
		if t.Strays.Live != strays[i] {
			fault("topic %q: %d strays, %d are counted", t.Name, strays[i], t.Strays.Live)
		}
		if t.Deliverer == nil && (t.Workers != 0 || t.Busy != 0) || t.Busy > t.Workers {
			fault("topic %q: %d of %d workers are busy", t.Name, t.Busy, t.Workers)
		}
	}
	for _, q := range s.engine.TopicTable.Quotas.ByPatterns {
		counted := engine.Quota{}
		for _, t := range s.engine.TopicTable.ByNumber {
			if t.Name != "" && !strings.HasSuffix(t.Name, KeptSuffix) && task.AnyMatches(q.Patterns, t.Name) {
				counted.Tasks += t.Slots
				counted.Buried += t.CountBuried()
				if t.Occupied {
					counted.Topics++
				}
			}
		}
		if counted.Tasks != q.Tasks || counted.Topics != q.Topics || counted.Buried != q.Buried {
			fault("a quota counts %d tasks and %d buried ones of %d topics, there are %d and %d of %d", q.Tasks, q.Buried, q.Topics, counted.Tasks, counted.Buried, counted.Topics)
		}
	}
	if workers != s.engine.Dispatch.Workers || pledged != s.engine.Dispatch.ReservedInFlight || backlog != s.engine.Dispatch.Backlog {
		fault("%d workers, %d pledged, %d in the backlog; counted %d, %d, %d", workers, pledged, backlog, s.engine.Dispatch.Workers, s.engine.Dispatch.ReservedInFlight, s.engine.Dispatch.Backlog)
	}
	return errs
}

// checkOpen compares the open deliveries with the states.
func (s consistency) checkOpen() (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	away := 0
	for n, l := range s.engine.Dispatch.Leases {
		if l.LeasedOut {
			away++
		}
		if st := s.engine.Store.Slot(n).State; st != store.Delivering {
			fault("slot %d has an open delivery and state %d", n, st)
		}
	}
	if away != s.engine.Dispatch.LeasedOut {
		fault("%d deliveries are away, %d are counted", away, s.engine.Dispatch.LeasedOut)
	}
	for n := uint32(1); n < s.engine.Store.Slots(); n++ {
		if _, open := s.engine.Dispatch.Leases[n]; s.engine.Store.Slot(n).State == store.Delivering && !open {
			fault("slot %d is being delivered without a lease", n)
		}
	}
	for n := range s.engine.Writes.Waiting {
		if st := s.engine.Store.Slot(n).State; !st.Busy() || st == store.Vacant {
			fault("slot %d has state %d and is waited for", n, st)
		}
	}
	return errs
}

// checkLedger compares memory with the ledger, record by record.
func (s consistency) checkLedger(ledger recovery.Ledger) (errs error) {
	fault := func(format string, args ...any) { errs = errors.Join(errs, fmt.Errorf(format, args...)) }
	pendings, deads, err := dump(ledger)
	if err != nil {
		return err
	}
	Mutex(s.engine).Lock()
	defer Mutex(s.engine).Unlock()
	underWay := 0
	for n := uint32(1); n < s.engine.Store.Slots(); n++ {
		sl := s.engine.Store.Slot(n)
		if sl.State == store.Vacant {
			continue
		}
		if !engine.AtRest(sl) {
			underWay++
			continue
		}
		id := string(s.engine.Store.ID(sl))
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
		marked := record.Flags(e.Data)&record.Claimed != 0 && record.Attempt(e.Data) == record.Attempt(s.engine.Store.Record(sl))
		if rec := s.engine.Store.Record(sl); !marked && !bytes.Equal(rec, e.Data) {
			fault("%s: the ledger has another record:\n%x\n%x", id, e.Data, rec)
		}
	}
	if underWay != 0 {
		return errs // the rest may be on its way
	}
	for id := range pendings {
		fault("%s is in the ledger, not in memory", id)
	}
	if dead, kept := len(s.engine.Dead.IDs), len(s.engine.Dead.Kept); len(deads) != dead+kept {
		fault("%d dead and finished in the ledger, %d dead and %d finished in the index", len(deads), dead, kept)
	}
	byTopic := make(map[string]int64)
	for id, e := range deads {
		at := s.engine.OutsideLocked(s.engine.Store.Hash([]byte(id)))
		if !at.Buried() {
			fault("%s is dead and not in the index", id)
		}
		if kept := strings.HasSuffix(e.Spot.Label, KeptSuffix); kept != (at == engine.AmongKept) || kept != record.IsFinished(e.Data[1]) {
			fault("%s is finished by its label: %v; by memory or its record it is not so", id, kept)
		}
		byTopic[e.Spot.Label]++
	}
	for _, t := range s.engine.TopicTable.ByNumber {
		if t.Gauges[tasks.Dead] != byTopic[t.Name] {
			fault("topic %q counts %d dead, the ledger has %d", t.Name, t.Gauges[tasks.Dead], byTopic[t.Name])
		}
	}
	return errs
}

// Dump reads the whole ledger of the rig.
func (r *Rig) Dump() (pendings, deads map[string]recovery.Entry) {
	r.T.Helper()
	pendings, deads, err := dump(r.Mem)
	if err != nil {
		r.T.Fatal("reading the ledger:", err)
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

// CheckQuotas counts everything anew.
func (r *Rig) CheckQuotas() {
	r.T.Helper()
	Mutex(r.Engine()).Lock()
	defer Mutex(r.Engine()).Unlock()
	if err := (consistency{r.Engine()}).checkTopics(); err != nil {
		r.T.Error(err)
	}
}
