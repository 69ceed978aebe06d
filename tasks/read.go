package tasks

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

func (s *engine) get(ctx context.Context, id string) (Task, error) {
	n, sl, err := s.lockTask(ctx, id)
	for rechecked := false; errors.Is(err, ErrDead); {
		t, absent := s.getDead(ctx, id)
		if rechecked || !errors.Is(absent, ErrNotFound) {
			return t, absent
		}
		// It has just been requeued or deleted, or the ledger has lost it.
		if err = s.recheckDead(ctx, []string{id}); err != nil {
			return t, err
		}
		rechecked = true
		n, sl, err = s.lockTask(ctx, id)
	}
	switch {
	case err != nil:
		return Task{}, err
	}
	defer s.unlock()
	if h := s.ownedLocked(int(sl.Shard)); h != nil && h.transferring {
		return Task{}, errHandedOver // the other node may have changed it
	}
	if err := s.permitLocked(task.TermsOf(ctx), sl); err != nil {
		return Task{}, err
	}
	return s.taskLocked(n), nil
}

func (s *engine) getDead(ctx context.Context, id string) (Task, error) {
	var t Task
	found, refused := false, error(nil)
	err := s.ledger.GetDead(ctx, []string{id}, func(_ int, e recovery.Entry) {
		if f, err := record.Decode(e.Data); err == nil {
			t, found = s.describe(id, &f, Dead), true
			refused = task.TermsOf(ctx).Permit(t.Topic, t.Revision, f.Created)
		}
	})
	switch {
	case err != nil:
		return Task{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	case !found:
		return Task{}, ErrNotFound
	case refused != nil:
		return Task{}, refused
	}
	return t, nil
}

// taskLocked describes a task as it stands.
func (s *engine) taskLocked(n uint32) Task {
	sl := s.store.Slot(n)
	f := s.store.Fields(sl)
	t := s.describe(string(s.store.ID(sl)), &f, sl.State.Shown())
	t.Next = fromMillis(sl.Next)
	t.Spooled = sl.Shard == spoolShard
	if l, ok := s.open[n]; ok {
		t.Attempt = int(l.attempt)
	}
	return t
}

// describe makes a Task of a record. Nothing of it points into the record.
func (s *engine) describe(id string, f *record.Fields, state State) Task {
	t := Task{
		ID: id, Topic: string(f.Topic), State: state,
		Due: fromMillis(f.Due), Next: fromMillis(f.Next), Created: fromMillis(f.Created),
		Payload: append([]byte(nil), f.Payload...), Group: string(f.Group),
		MaxLateness: millisDuration(f.MaxLateness),
		Attempt:     int(f.Attempt), Revision: int64(f.Revision),
		LastError: string(f.LastError), Node: s.cfg.Node,
	}
	if len(f.Headers) > 0 {
		t.Headers, _ = record.DecodeHeaders(f.Headers) // checked by decode
	}
	if state == Dead {
		t.Died, t.Next, t.Reason = t.Next, t.Due, reasons[f.State]
	}
	return t
}
