package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

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
