package bench

import (
	"context"
	"errors"
	"time"
)

// Burst lets all tasks fall due at one instant and measures until they are handled and forgotten.
// It closes the system.
func Burst(ctx context.Context, s System, l Load) (Result, error) {
	return deliver(ctx, s, l, Result{Workload: "burst", Tasks: l.Tasks}, func(int) time.Duration { return 0 })
}

// Steady lets tasks fall due at an even rate, all scheduled before. It closes the system.
func Steady(ctx context.Context, s System, l Load) (Result, error) {
	n := max(1, int(int64(l.Rate)*l.Duration.Milliseconds()/1000))
	return deliver(ctx, s, l, Result{Workload: "steady", Tasks: n, Rate: l.Rate, Background: l.Background}, func(i int) time.Duration {
		return time.Duration(int64(i)*1000/int64(l.Rate)) * time.Millisecond
	})
}

// deliver has the tasks of a result fall due, each so long after an instant, and completes the
// result. It closes the system.
func deliver(ctx context.Context, s System, l Load, r Result, after func(i int) time.Duration) (Result, error) {
	b := &bout{s: s, l: l, behind: r.Background}
	if b.behind > 0 {
		round, _ := b.rounds.begin(0, nil)
		if err := b.fill(ctx, round, b.behind, far(time.Now())); err != nil {
			return Result{}, errors.Join(err, s.Close())
		}
	}
	o, err := b.appointment(ctx, r.Tasks, after)
	if err != nil {
		return Result{}, errors.Join(err, s.Close())
	}
	r.Batch, r.Payload = l.Batch, l.Payload
	r.Seconds, r.TasksPerSecond, r.FilledPerSecond = o.took.Seconds(), float64(r.Tasks)/o.took.Seconds(), o.filled
	err = b.finish(ctx, &r)
	r.Lateness = distribution(o.tally.lateness())
	return r, err
}
