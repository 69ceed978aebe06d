package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Schedule takes a task in. It returns once the ledger has it: from then on the
// task is delivered, whatever happens to this process.
//
// With Config.Spool it also returns once the spool has the task, if the ledger is away:
// Task.Spooled tells.
//
// A call that is cancelled while it writes returns when the ledger answers, or after
// Config.AnswerWithin. The deadline of ctx ends it at once.
//
// Asked again for the same id with the same content, it returns the task that is
// there, with Repeated set. Errors: ErrInvalid, ErrTooLarge, ErrExists, ErrDead,
// ErrOverloaded, ErrNotGranted, ErrReplaying, ErrUnavailable, ErrUnknown, ErrClosed.
func (s *Scheduler) Schedule(ctx context.Context, r Request) (Task, error) {
	if s.engine.Config.Tracer != nil {
		return s.traced(ctx, r, s.schedule)
	}
	return s.schedule(ctx, r)
}

func (s *Scheduler) schedule(ctx context.Context, r Request) (Task, error) {
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	p, err := s.engine.PlanFor(ctx, &r)
	if err != nil {
		return Task{}, err
	}
	defer p.Free()
	create := s.engine.Create
	if s.cluster.Fleet != nil {
		create = func(ctx context.Context, p *engine.Plan) (Task, error) { return s.cluster.Schedule(ctx, p, &r) }
	}
	t, err := create(ctx, &p)
	return t, s.hideHolder(ctx, &r, err)
}
