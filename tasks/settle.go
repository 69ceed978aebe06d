package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// Settle ends (or extends) deliveries by their receipts, and returns once the
// ledger has confirmed what it must, or after Config.AnswerWithin. Each receipt
// has its own answer, in order. A repeated acknowledgement gets the answer of the
// first. The error is for the call as a whole: ErrInvalid, ErrClosed.
//
// A receipt counts as long as its attempt was not ended or handed out again;
// also after a restart in between.
func (s *Scheduler) Settle(ctx context.Context, v Verdict, receipts []string) ([]Settled, error) {
	settlings, err := s.engine.CheckVerdict(&v, receipts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.engine.Within(ctx)
	defer cancel()
	if s.shared != nil {
		return s.settleAll(ctx, &v, settlings)
	}
	here := make([]*engine.Settling, len(settlings))
	for i := range settlings {
		here[i] = &settlings[i]
	}
	if err := s.engine.SettleHere(ctx, &v, here); err != nil {
		return nil, err
	}
	return engine.SettledOf(settlings), nil
}
