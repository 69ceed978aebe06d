package cluster

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

// Replace replaces a task that is here, or creates it.
func (s *Cluster) Replace(ctx context.Context, p *engine.Plan) (task.Task, error) {
	wanted, err := record.Decode(p.Rec)
	if err != nil {
		return task.Task{}, err
	}
	for p.Chosen {
		t, err := s.engine.Move(ctx, p.ID, p.By, func(rec *record.Fields, w *engine.Write) {
			old := *rec
			*rec, w.Fired = wanted, false
			rec.Created, rec.Revision = old.Created, old.Revision
			rec.Flags = old.Flags & record.ChosenID // who made the id does not change
		})
		if !errors.Is(err, task.ErrNotFound) || task.TermsOf(ctx).Conditional() {
			t.Repeated = err == nil
			return t, err
		}
		// Between the look and the creation another caller may create it: then it
		// is there to be replaced.
		t, err = s.engine.Create(ctx, p)
		if !errors.Is(err, task.ErrExists) && !t.Repeated {
			return t, err
		}
	}
	return s.engine.Create(ctx, p)
}
