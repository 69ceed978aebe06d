package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

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
	for wait := time.Second; wait < time.Minute; wait *= 2 {
		handled.Store(0)
		due := time.Now().Add(wait).Truncate(time.Millisecond)
		if err := b.schedule(ctx, "burst", pending, batch, senders, due); err != nil {
			return err
		}
		rest := time.Until(due) - 50*time.Millisecond // for the collector, which measured calls
		if rest < 0 {
			if err := b.await(ctx, &handled); err != nil {
				return err
			}
			continue
		}
		time.Sleep(rest)
		return b.measured("burst", 1, func() (int, error) { return pending, b.await(ctx, &handled) })
	}
	return errors.New("the tasks cannot be scheduled before they are due")
}

// await returns when the tasks of the burst are handled and off the ledger.
func (b *bout) await(ctx context.Context, handled *atomic.Int64) error {
	return b.until(ctx, func() (bool, error) {
		if handled.Load() < pending {
			return false, nil
		}
		t, err := b.s.Topic("burst")
		// What is acknowledged counts as delivered before the ledger has forgotten it.
		return t.Counts.Pending+t.Counts.Ready+t.Counts.Delivering == 0 && b.s.Stats().Ledger.Queued == 0, err
	})
}
