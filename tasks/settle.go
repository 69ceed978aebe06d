package tasks

import (
	"context"
)

// Settle ends (or extends) deliveries by their receipts, and returns once the
// ledger has confirmed what it must, or after Config.AnswerWithin. Each receipt
// has its own answer, in order. A repeated acknowledgement gets the answer of the
// first. The error is for the call as a whole: ErrInvalid, ErrClosed.
//
// A receipt counts as long as its attempt was not ended or handed out again;
// also after a restart in between.
func (s *Scheduler) Settle(ctx context.Context, v Verdict, receipts []string) ([]Settled, error) {
	return s.cluster.Settle(ctx, v, receipts)
}
