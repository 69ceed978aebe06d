package tasks

import (
	"context"
	"errors"

	"github.com/lapsehq/lapse/recovery"
)

// A Part is what a program does with its scheduler before it waits, such as Topic.Handler. It must
// return. Run does not wait for goroutines that it has begun: a program with a server of its own,
// which ends before the scheduler, uses Open and Close.
type Part func(ctx context.Context, s *Scheduler) error

// Run is the life of a program that embeds a scheduler. It opens the scheduler on the ledger, which
// it owns from then on, has each part do its work, in order, and waits until ctx ends or the
// scheduler does. Then it closes the scheduler, as Close does, and returns. The ctx of the parts
// ends before that, or when the scheduler does.
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
//	defer stop()
//	err := tasks.Run(ctx, memledger.New(), tasks.Config{}, unpaid.Handler(cancelOrder))
//
// It returns nil after an end of ctx that lost nothing. Errors: as of Open; that of the part that
// failed; why the scheduler has ended by itself, as Scheduler.Err; what could not be written.
func Run(ctx context.Context, ledger recovery.Ledger, cfg Config, parts ...Part) error {
	s, err := Open(ctx, ledger, cfg)
	if err != nil {
		return errors.Join(err, ledger.Close())
	}
	err = s.serve(ctx, parts)
	return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
}

// serve has the parts do their work, and waits for the end.
func (s *Scheduler) serve(ctx context.Context, parts []Part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	for _, part := range parts {
		if err := part(ctx, s); err != nil {
			return errors.Join(err, s.Err())
		}
	}
	<-ctx.Done()
	return s.Err()
}
