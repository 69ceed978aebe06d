package engine

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
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
	act   *query.Act       // for which it is; nil: any task of the topic
	mend  *query.Mend      // opRequeue: of the content; nil: none
	conds *task.Conditions // of a caller who has named one task; nil: none
	// Enough is when to stop, if a task was redriven, on the clock of Elapsed; 0: never.
	Enough time.Duration

	Done   int
	missed bool     // OpExpire: another caller was about to change one of them
	Found  []string // ids that were asked for, and are done
	Acted  []string // that were not, since another act has changed the task after this one began
	Passed []string // ids that were asked for, and are not among the dead of the topic
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
// the position that it has reached, what remains of left, and whether the list goes on.
func (x *Redrive) RedriveTopic(ctx context.Context, after recovery.Ref, until int64, left int) (recovery.Ref, int, bool, error) {
	before := x.DeadCount(x.Topic)
	for !x.tired() {
		var ids []string
		err := x.ListDead(ctx, x.Topic, after, func(e recovery.Entry) bool {
			if len(ids) == RedrivenAtOnce || left <= len(ids) && e.Spot.At > until {
				return false
			}
			ids = append(ids, string(e.ID))
			after = recovery.Ref{ID: ids[len(ids)-1], Next: e.Spot.At}
			return true
		})
		if err != nil {
			return after, left, true, err
		}
		if len(ids) == 0 {
			if before > 0 {
				x.noteListed(x.Topic, 0)
			}
			return after, left, false, nil
		}
		if err := x.Piece(ctx, ids); err != nil {
			return after, left, true, err
		}
		left -= len(ids)
	}
	return after, left, true, nil
}

// Run carries out a query until it has been at work for long enough, and has redriven some; 0:
// nothing is long enough. It reports whether there is more.
func (x *Redrive) Run(ctx context.Context, q *query.Redrive, enough time.Duration) (r query.RedrivePart, more bool, err error) {
	if enough > 0 {
		x.Enough = x.Elapsed() + enough
	}
	if q.All {
		if r.Left = q.Left; q.After == (recovery.Ref{}) {
			r.Left = x.DeadCount(q.Topic)
		}
		r.After, r.Left, more, err = x.RedriveTopic(ctx, q.After, q.Died, r.Left)
	} else {
		r.Left, err = x.RedriveIDs(ctx, q.IDs)
		more = r.Left > 0
	}
	r.Done, r.IDs, r.Acted = x.Done, x.Found, x.Acted
	return r, more, err
}

// NewRedrive returns a redrive that has not begun.
func (s *Engine) NewRedrive(q *query.Redrive) *Redrive {
	x := &Redrive{Engine: s, Topic: q.Topic, Op: opRequeue, due: q.Due, act: q.Act, mend: q.Mend}
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
	p, err := x.lockBuried(ctx, ids, x.Op != OpExpire) // the sweep comes by again
	if err != nil {
		return err
	}
	x.missed = p.missed
	done, acted := make(map[string]bool), make(map[string]bool)
	err = p.change(ctx, func(i int, e recovery.Entry) error {
		f, err := record.Decode(e.Data)
		if err != nil {
			return nil
		}
		if err := x.conds.Permit(string(f.Topic), int64(f.Revision), f.Created); err != nil {
			return err
		}
		if !x.has(p.ids[i], e.Spot.At, &f) {
			return nil
		}
		if x.act != nil {
			if err := x.act.Check(f.Stamp, x.Config.Clock()); err != nil {
				acted[p.ids[i]] = errors.Is(err, query.ErrActedSince)
				return nil
			}
		}
		return p.write(i, &e, func(n uint32) error {
			if x.act != nil && x.act.Dry {
				done[p.ids[i]] = true
				return nil
			}
			return x.redriveLocked(p, Write{slot: n, op: x.Op, index: i}, &e, &f)
		})
	})
	// ErrUnknown takes precedence.
	if err == nil || errors.Is(p.late, task.ErrUnknown) {
		err = p.late
	}
	answers := x.OutcomesOf(p.c)
	for _, i := range p.sent {
		switch {
		case answers[i] == nil:
			done[p.ids[i]] = true
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

// has reports whether the redrive is for a task at the place of the dead.
func (x *Redrive) has(id string, at int64, f *record.Fields) bool {
	return record.IsFinished(f.State) == x.kept && (x.Topic == "" || string(f.Topic) == strings.TrimSuffix(x.Topic, keptSuffix)) &&
		(x.Op != OpExpire || at <= x.Until) && (x.act == nil ||
		x.act.Select.Filter.HasRecord(recovery.Ref{ID: id, Next: at}, f, reasons[f.State]) && task.AnyMatches(x.act.Select.Patterns, string(f.Topic)))
}

// redriveLocked begins to take a task from among the dead.
func (x *Redrive) redriveLocked(p *buriedPiece, w Write, e *recovery.Entry, f *record.Fields) error {
	t, rec := x.labelledLocked(labelOf(e.Data)), e.Data
	if x.Op == opRequeue {
		f.State, f.Attempt, f.Due, f.Next = record.Pending, 0, x.due, x.due
		f.Revision++
		if x.act != nil {
			f.Stamp = cmp.Or(x.act.Stamp, f.Stamp)
		}
		if x.mend != nil {
			x.mend.Apply(f)
		}
		x.Writes.scratch = f.Append(x.Writes.scratch[:0])
		rec = x.Writes.scratch
		if err := p.admitLocked(e.Shard, len(rec)); err != nil {
			return err
		}
	}
	p.beginLocked(w, t, e, rec, x.due)
	return nil
}

// DeadCount returns how many tasks of a topic are dead, or of a label of finished tasks how many
// are kept.
func (s *Engine) DeadCount(label string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	name, kept := strings.CutSuffix(label, keptSuffix)
	t := s.TopicTable.ByName[name]
	if t != nil && kept {
		t = t.kept
	}
	if t == nil {
		return 0
	}
	return int(t.Gauges[task.Dead])
}
