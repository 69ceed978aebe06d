package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// DeadTasks lists the dead tasks of a topic at all nodes, the longest dead first, 1 to 1,000
// at a time (0 means 100). Errors: as of List.
func (s *Scheduler) DeadTasks(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	if !task.ValidName(topic) {
		return Page{}, task.Invalid("topic", task.NameProblem)
	}
	return s.List(ctx, Query{Topic: topic, State: Dead, Limit: limit, Cursor: cursor})
}

// visitDead is visitPage for the dead.
func (s *Scheduler) visitDead(ctx context.Context, q *listQuery, visit func(t Task, at int64, shard int) bool) (last *recovery.Ref, err error) {
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
func (s *Scheduler) noteListed(topic string, count int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.topics[topic]; ok && t.gauges[Dead] > int64(count) {
		s.doubtDeadLocked()
	}
}

// Requeue makes dead tasks of a topic pending again, at the nodes that have them, with a new
// deadline, the same for all of them, and all their attempts before them. Where it returns
// an error, what it tells about Requeued is right, but for what a node that has not answered
// may have done, and repeating the call does the rest.
//
// Errors: ErrInvalid, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrClosed; with several nodes
// also ErrNodeAway and ErrReplaying, as of Purge.
func (s *Scheduler) Requeue(ctx context.Context, topic string, r Requeue) (Requeued, error) {
	if err := granted(ctx, topic); err != nil {
		return Requeued{}, err
	}
	var f task.Faults
	if !task.ValidName(topic) {
		f.Add("topic", task.NameProblem)
	}
	q := redriveQuery{Topic: topic, All: r.IDs == nil, IDs: r.IDs}
	if !r.Due.IsZero() || r.Delay != 0 {
		q.Due = deadline(&f, s.cfg.Clock(), r.Due, r.Delay)
	}
	if err := f.Err(); err != nil {
		return Requeued{}, err
	}
	done, unknown, err := s.redrive(ctx, q)
	if err != nil {
		return Requeued{Requeued: done}, err
	}
	return Requeued{Requeued: done, Unknown: unknown}, nil
}

// DeleteDead deletes dead tasks of a topic, at the nodes that have them: those with the given
// ids, or all if ids is nil. It returns how many; ids that are not among the topic's dead are
// passed over. Errors: as of Requeue, but that ErrOverloaded only comes when too many questions
// between nodes are under way; then some may be done already.
func (s *Scheduler) DeleteDead(ctx context.Context, topic string, ids []string) (int, error) {
	if err := granted(ctx, topic); err != nil {
		return 0, err
	}
	if !task.ValidName(topic) {
		return 0, task.Invalid("topic", task.NameProblem)
	}
	done, _, err := s.redrive(ctx, redriveQuery{Topic: topic, Delete: true, All: ids == nil, IDs: ids})
	return done, err
}

// cancelDead deletes one dead task, whatever its topic.
func (s *Scheduler) cancelDead(ctx context.Context, id string) error {
	x := redrive{Scheduler: s, op: opForget, terms: task.TermsOf(ctx)}
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
