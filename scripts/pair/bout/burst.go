package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/scripts/pair/measure"
	"github.com/lapsehq/lapse/tasks"
)

const bursting = 50_000

func init() { register(9, "burst", "memory disk redis", burst) }

// burst lets tasks fall due at one instant, and measures until they are handled and forgotten.
func burst(ctx context.Context, b *bout) error {
	var handled, read atomic.Int64
	if err := b.s.Handle("burst", func(_ context.Context, d *tasks.Delivery) error {
		read.Add(int64(len(d.Payload)))
		handled.Add(1)
		return nil
	}); err != nil {
		return err
	}
	return b.measured(measure.Path{
		Name: "burst", Rounds: 2,
		Prepare: func() error { return b.arm(ctx, &handled) },
		Round:   func(int) (int, error) { return bursting, b.await(ctx, &handled) },
	})
}

// arm schedules the tasks of a burst, and returns a moment before they are due.
func (b *bout) arm(ctx context.Context, handled *atomic.Int64) error {
	for wait := time.Second / 2; wait < time.Minute; wait *= 2 {
		handled.Store(0)
		due := time.Now().Add(wait).Truncate(time.Millisecond)
		if err := b.schedule(ctx, "burst", bursting, batch, senders, due); err != nil {
			return err
		}
		if rest := time.Until(due) - 10*time.Millisecond; rest > 0 {
			time.Sleep(rest)
			return nil
		}
		if err := b.await(ctx, handled); err != nil {
			return err
		}
	}
	return errors.New("the tasks cannot be scheduled before they are due")
}

// await returns when the tasks of the burst are handled and off the ledger.
func (b *bout) await(ctx context.Context, handled *atomic.Int64) error {
	return b.until(ctx, func() (bool, error) {
		if handled.Load() < bursting {
			return false, nil
		}
		t, err := b.s.Topic("burst")
		// What is acknowledged counts as delivered before the ledger has forgotten it.
		return t.Counts.Pending+t.Counts.Ready+t.Counts.Delivering == 0 && b.s.Stats().Ledger.Queued == 0, err
	})
}
