package bench

import (
	"context"
	"errors"
	"time"
)

// Burst lets all tasks fall due at one instant and measures until they are handled
// and forgotten. It closes the system.
func Burst(ctx context.Context, s System, l Load) (r Result, err error) {
	b := &bout{s: s, l: l}
	o, err := b.appointment(ctx, l.Tasks, func(base time.Time) func(int) time.Time {
		return func(int) time.Time { return base }
	})
	if err != nil {
		return r, errors.Join(err, s.Close())
	}
	r = Result{
		Workload: "burst", Tasks: l.Tasks, Batch: l.Batch, Payload: l.Payload,
		Seconds: o.took.Seconds(), TasksPerSecond: float64(l.Tasks) / o.took.Seconds(), FilledPerSecond: o.filled,
	}
	err = b.finish(ctx, &r)
	r.Lateness = distribution(o.tally.lateness())
	return r, err
}
