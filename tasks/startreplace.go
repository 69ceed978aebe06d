package tasks

import (
	"cmp"
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// A StartedReplace is a Replace whose caller does not wait for the ledger.
type StartedReplace struct{ write *engine.PendingWrite }

// StartReplace is Replace for a caller that does not wait: answered is called once with the
// outcome, unless GiveUp comes before. It must be quick and must not call the scheduler, whose lock
// is held. It reports false, and has done nothing, where the task cannot be written at once: an
// earlier change of it is under way, another node may have it, or the request is refused. Then
// Replace tells.
func (s Admin) StartReplace(ctx context.Context, r *Request, answered func(error)) (StartedReplace, bool) {
	c := s.engine.StartReplace(ctx, r, answered)
	return StartedReplace{c}, c != nil
}

// GiveUp ends the wait for a Replace that was started: from then on answered is not called. cause
// is why; nil: AnswerWithin has passed. It is called once. Errors: ErrUnavailable if nothing was
// done, ErrUnknown if it may have been done; nil if answered was called before.
func (s Admin) GiveUp(r StartedReplace, cause error) error {
	return s.engine.GiveUp(r.write, cmp.Or(cause, engine.ErrLate))
}

// AnswerWithin returns how long a call waits for the ledger, see Config.AnswerWithin.
func (s Admin) AnswerWithin() time.Duration { return s.engine.Config.AnswerWithin }
