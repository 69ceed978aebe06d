package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// In a topic with TopicSettings.KeepFinished, the write that ends a task does not delete its record
// but moves it to the place of the dead, under a label that no topic can have: the topic's name and
// keptSuffix. There it is found by its id, and deleted by the retention sweep like one of the dead.
// Memory counts it in a Topic of its own, Topic.kept, and has its id in Index.Kept of package
// deadindex. It never counts as dead.
//
// A task is deleted as without the setting while it is in the spool, and while Config.MaxPending
// finished tasks are kept. A ledger that takes no new records keeps it all the same; see
// heldback.go.

// keptSuffix makes the label of the finished tasks of a topic. It is no character of a name.
const keptSuffix = "!"

// ErrKept is returned for the id of a finished task that is kept. It is a kind of ErrFinished.
var ErrKept = task.KindOf(ErrFinished, "the task is finished")

// keptOfLocked returns the topic that has the finished tasks of a topic.
func (s *Engine) keptOfLocked(t *Topic) *Topic {
	if t.kept == nil {
		t.kept = &Topic{Name: t.Name + keptSuffix, keeping: keeping{of: t}}
		s.numberLocked(t.kept)
	}
	return t.kept
}

// labelledLocked returns the topic that a label of the ledger stands for, making it if needed.
func (s *Engine) labelledLocked(label string) *Topic {
	if name, kept := strings.CutSuffix(label, keptSuffix); kept {
		return s.keptOfLocked(s.keptTopicLocked([]byte(name)))
	}
	return s.keptTopicLocked([]byte(label))
}

// buriedAsLocked returns the topic in which a task counts whose record is that of a dead or a
// finished one.
func (s *Engine) buriedAsLocked(sl *store.Slot) *Topic {
	t := s.TopicTable.ByNumber[sl.Topic]
	if record.IsFinished(record.State(s.Store.Record(sl))) {
		return s.keptOfLocked(t)
	}
	return t
}

// labelOf returns the label under which the ledger lists a record of a dead or finished task.
func labelOf(rec []byte) string {
	label := string(record.Topic(rec))
	if record.IsFinished(record.State(rec)) {
		label += keptSuffix
	}
	return label
}

// keepLocked has a write that is about to end a task keep its record. state is one of package
// record. last is the lease of a delivery; otherwise it has the number of the last attempt alone.
func (s *Engine) keepLocked(t *Topic, sl *store.Slot, w *Write, state uint8, last Lease) {
	switch {
	case sl.Shard == SpoolShard:
		return
	case len(s.Dead.Kept) >= s.Config.MaxPending:
		if s.keptTold.isDue(s.Elapsed(), keptTooManyEvery) {
			s.Config.Log.Warn("finished tasks are not kept: as many are kept as max_pending allows",
				"node", s.Config.Node, "topic", t.Name, "kept", len(s.Dead.Kept))
		}
		return
	}
	f := s.Store.Fields(sl)
	w.keeps, w.at = true, s.Now()
	finish(&f, state, w.at)
	f.Attempt = last.Attempt
	if state == record.Delivered {
		// It has room: the task is about to leave memory.
		f.Attempts = record.AppendAttempt(f.Attempts, s.pastAttemptLocked(sl, last, record.Acked, ""))
	}
	if w.op == opCancel {
		w.rec = f.Append(nil) // it may be taken back
		return
	}
	s.Writes.scratch = f.Append(s.Writes.scratch[:0])
	s.Store.Rewrite(w.slot, s.Writes.scratch)
}

// keptTooManyEvery is the time between two log lines about finished tasks that are not kept.
const keptTooManyEvery = time.Minute

// A seldom is when a line was logged that would come for many tasks, by Elapsed; 0: never.
type seldom time.Duration

// isDue reports whether the line is to be logged now, once in a period, and notes that it is.
func (l *seldom) isDue(now, every time.Duration) bool {
	if *l != 0 && now-time.Duration(*l) < every {
		return false
	}
	*l = seldom(max(now, 1))
	return true
}

// finish makes a record that of a finished task.
func finish(f *record.Fields, state uint8, at int64) {
	f.State, f.Next = state, at
	f.Flags &^= record.Claimed | record.HasLease
	f.LeaseRest, f.Nonce = 0, 0
	f.Release()
}

// finishAgainLocked makes an older record that of a finished task: the ledger has lost the newer
// one.
func (s *Engine) finishAgainLocked(f *record.Fields, id []byte, h *OwnedShard, at int64) {
	state := keptStates[s.Outcomes.FindSince(s.Store.Hash(id), h.past).Kind]
	if state == record.Delivered && f.Flags&record.Claimed == 0 {
		f.Attempt++
	}
	finish(f, state, at)
}

// keptChangeLocked completes the change of a write that keeps the record of its task.
func (s *Engine) keptChangeLocked(c *recovery.Change, w *Write, sl *store.Slot) {
	c.Data = w.rec
	if w.op == opFinish {
		c.Data = s.Store.Record(sl)
	}
	c.To = recovery.Spot{Place: recovery.Dead, At: w.at, Label: s.keptOfLocked(s.TopicTable.ByNumber[sl.Topic]).Name}
}

// endedLocked takes a finished task out of memory, whose end is on record.
func (s *Engine) endedLocked(w *Write, t *Topic, sl *store.Slot) {
	if w.keeps {
		rec := s.Store.Record(sl)
		if w.op == opCancel {
			rec = w.rec
		}
		s.buriedLocked(s.keptOfLocked(t), sl, rec)
	} else {
		s.Cluster.EndedLocked(sl)
	}
	s.leaveLocked(w.slot, sl)
}

// endsOf are what the states of the records of finished tasks say. See package record.
var endsOf = [record.States]task.Outcome{
	record.Delivered: task.OutcomeDelivered, record.Cancelled: task.OutcomeCancelled, record.Skipped: task.OutcomeSkipped,
}

// keptStates are the states of the records of finished tasks, by what memory remembers of them.
var keptStates = [...]uint8{
	0: record.Finished, store.WasCancelled: record.Cancelled, store.WasDelivered: record.Delivered, store.WasSkipped: record.Skipped,
}

// keptOutcome returns what a caller is told who wants to cancel a finished task that is kept:
// ErrCancelled, or an error of getBuried, such as ErrKept.
func (s *Engine) keptOutcome(ctx context.Context, id string) error {
	t, err := s.getBuried(ctx, id)
	switch {
	case err != nil:
		return err
	case t.Outcome == task.OutcomeCancelled:
		return ErrCancelled
	}
	return ErrKept
}

// A KeptRepeat is a request for a task with the id of a finished one that is kept, or the import of
// a task with the id of one that is dead or finished.
type KeptRepeat struct {
	ID    string
	Which Which
	Index int // of the request, in a batch

	Task task.Task
	// Err is nil if the finished task was requested with the same content, and task.ErrExists if it
	// was not. It is ErrKept if there is no such task any more: then the request has to be made
	// once more.
	Err error
}

// Which tells whether a record is that of the task which a plan is about.
type Which struct {
	Print    uint64 // the fingerprint of the request
	Imported bool
	Created  int64 // of an imported task
}

// Is reports whether a record is that of the task.
func (w Which) Is(rec []byte) bool {
	return record.Fingerprint(rec) == w.Print && (!w.Imported || record.Created(rec) == w.Created)
}

// Which tells which task a plan is about.
func (p *Plan) Which() Which {
	return Which{p.Print, p.Imported, record.Created(p.Rec)}
}

// CompareKept compares requests with the finished tasks that have their ids. It reads all of them
// from the ledger at once.
func (s *Engine) CompareKept(ctx context.Context, all []KeptRepeat) {
	ids := make([]string, len(all))
	for i := range all {
		ids[i], all[i].Err = all[i].ID, ErrKept
	}
	err := s.Ledger.GetDead(ctx, ids, func(i int, e recovery.Entry) {
		r := &all[i]
		f, err := record.Decode(e.Data)
		switch {
		case err != nil:
			r.Err = ErrIllegible
		case !record.IsFinished(f.State) && !r.Which.Imported: // another task, which has died since
		case !r.Which.Is(e.Data):
			r.Err = task.ErrExists
		default:
			r.Task, r.Err = s.describeBuried(r.ID, &f), nil
			r.Task.Repeated = true
		}
	})
	var gone []string
	for i := range all {
		switch {
		case err != nil:
			all[i].Err = fmt.Errorf("%w: %w", task.ErrUnavailable, err)
		case errors.Is(all[i].Err, ErrKept):
			gone = append(gone, all[i].ID)
		}
	}
	if len(gone) == 0 {
		return
	}
	// The ledger may have lost them.
	if err := s.RecheckDead(ctx, gone); err != nil {
		for i := range all {
			if errors.Is(all[i].Err, ErrKept) {
				all[i].Err = err
			}
		}
	}
}

// repeatKept returns the answer to a request with the id of a finished task that is kept. Error
// ErrKept: there is no such task any more.
func (s *Engine) repeatKept(ctx context.Context, p *Plan) (task.Task, error) {
	one := []KeptRepeat{{ID: p.ID, Which: p.Which()}}
	s.CompareKept(ctx, one)
	t, err := one[0].Task, one[0].Err
	t.ID = p.ID
	if errors.Is(err, ErrKept) {
		if late := s.KeptPause(ctx); late != nil {
			err = late
		}
	}
	return t, err
}

// KeptPause waits before a look at an id anew that memory takes for that of a finished task, and
// the ledger does not. Errors: ErrClosed, ErrUnavailable.
func (s *Engine) KeptPause(ctx context.Context) error {
	err := s.RestWithin(ctx, BusyPause)
	if err != nil && !errors.Is(err, task.ErrClosed) {
		err = fmt.Errorf("%w: the finished task of this id cannot be found: %w", task.ErrUnavailable, err)
	}
	return err
}

// DropKept deletes a finished task that is kept, so that a new one can have its id. It passes over
// a task that another caller is about to delete. Errors: task.ErrNotGranted if the task is of a
// topic that the caller may not use; those of a redrive.
func (s *Engine) DropKept(ctx context.Context, id string) error {
	x := Redrive{Engine: s, Op: OpExpire, kept: true, Until: math.MaxInt64, conds: task.ConditionsOf(ctx)}
	return x.Piece(ctx, []string{id})
}

// markImportedLocked marks an imported task whose deadline has passed while no node held it. A
// caller who leaves before the answer does not undo an import: a repeated one would take the task
// for one that was imported before and cancelled since.
func (s *Engine) markImportedLocked(sl *store.Slot, t *Topic, p *Plan) {
	if !p.Imported {
		return
	}
	sl.Flags |= store.Wanted
	if record.State(p.Rec) != record.Pending || record.Attempt(p.Rec) != 0 || p.Next >= s.Now() {
		return
	}
	sl.Flags |= store.Misfired
	if t.Settings.Misfire == task.MisfireCoalesce && s.Store.Grouped(sl) {
		t.Undecided = true
	}
}
