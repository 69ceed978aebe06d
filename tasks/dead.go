package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// DeadTasks lists the dead tasks of a topic at all nodes, the longest dead first, 1 to 1,000
// at a time (0 means 100). Errors: as of List.
func (s Admin) DeadTasks(ctx context.Context, topic string, limit int, cursor string) (Page, error) {
	if !task.ValidName(topic) {
		return Page{}, task.Invalid("topic", task.NameProblem)
	}
	return s.List(ctx, Query{Topic: topic, State: Dead, Limit: limit, Cursor: cursor})
}

// Requeue makes dead tasks of a topic pending again, at the nodes that have them, with a new
// deadline, the same for all of them, and all their attempts before them. Where it returns
// an error, what it tells about Requeued is right, but for what a node that has not answered
// may have done, and repeating the call does the rest.
//
// With r.Mend one task gets other content in the same write: whatever happens, it is dead as it
// was, or pending as it is to be.
//
// Errors: ErrInvalid, ErrTooLarge, ErrOverloaded, ErrUnavailable, ErrUnknown, ErrClosed; with
// several nodes also ErrNodeAway and ErrReplaying, as of Purge.
func (s Admin) Requeue(ctx context.Context, topic string, r Requeue) (Requeued, error) {
	if err := engine.Granted(ctx, topic); err != nil {
		return Requeued{}, err
	}
	var f task.Faults
	if !task.ValidName(topic) {
		f.Add("topic", task.NameProblem)
	}
	q := query.Redrive{Topic: topic, All: r.IDs == nil, IDs: r.IDs}
	if !r.Due.IsZero() || r.Delay != 0 {
		q.Due = engine.Deadline(&f, s.engine.Config.Clock(), r.Due, r.Delay)
	}
	if r.Mend != nil && len(r.IDs) != 1 {
		f.Add("ids", "must be one: another payload, headers or delivery is for one task")
	}
	if err := f.Err(); err != nil {
		return Requeued{}, err
	}
	var err error
	if q.Mend, err = s.checkMend(ctx, topic, r.Mend); err != nil {
		return Requeued{}, err
	}
	done, err := s.cluster.Redrive(ctx, q)
	if err != nil {
		return Requeued{Requeued: done.Done}, err
	}
	return Requeued{Requeued: done.Done, Unknown: done.Unknown}, nil
}

// checkMend returns a mend as records have it. Errors: ErrInvalid, ErrTooLarge.
func (s *Scheduler) checkMend(ctx context.Context, topic string, m *task.Mend) (*query.Mend, error) {
	if m == nil {
		return nil, nil
	}
	var f task.Faults
	f.CheckHeaders(m.Headers)
	f.CheckSettings(m.Target)
	if err := f.Err(); err != nil {
		return nil, err
	}
	if len(m.Payload) > s.engine.Config.MaxPayload {
		return nil, fmt.Errorf("%w: payload must be at most %d bytes", ErrTooLarge, s.engine.Config.MaxPayload)
	}
	q := &query.Mend{Payload: m.Payload, Headers: record.EncodeHeaders(m.Headers), HasHeaders: m.Headers != nil, HasTarget: m.Target != nil}
	if len(q.Headers) > task.MaxHeaderBytes {
		return nil, fmt.Errorf("%w: headers must be at most %d bytes together", ErrTooLarge, task.MaxHeaderBytes)
	}
	if q.HasTarget && !m.Target.IsZero() {
		_ = s.engine.LearnTopic(ctx, topic) // or else its settings are not known here
		var err error
		if q.Target, err = s.engine.TargetFor(topic, m.Target); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// DeleteDead deletes dead tasks of a topic, at the nodes that have them: those with the given
// ids, or all if ids is nil. It returns how many; ids that are not among the topic's dead are
// passed over. Errors: as of Requeue, but that ErrOverloaded only comes when too many calls
// between nodes are under way; then some may be done already.
func (s Admin) DeleteDead(ctx context.Context, topic string, ids []string) (int, error) {
	if err := engine.Granted(ctx, topic); err != nil {
		return 0, err
	}
	if !task.ValidName(topic) {
		return 0, task.Invalid("topic", task.NameProblem)
	}
	r, err := s.cluster.Redrive(ctx, query.Redrive{Topic: topic, Delete: true, All: ids == nil, IDs: ids})
	return r.Done, err
}
