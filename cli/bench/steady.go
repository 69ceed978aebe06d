package bench

import (
	"context"
	"errors"
	"time"
)

// Steady lets tasks fall due at an even rate, all scheduled before. It closes the
// system.
func Steady(ctx context.Context, s System, l Load) (r Result, err error) {
	b := &bout{s: s, l: l}
	if l.Background > 0 {
		round, _ := b.rounds.begin(0, nil)
		if err := b.fill(ctx, round, l.Background, far(time.Now())); err != nil {
			return r, errors.Join(err, s.Close())
		}
		b.behind = l.Background
	}
	n := max(1, int(int64(l.Rate)*l.Duration.Milliseconds()/1000))
	o, err := b.appointment(ctx, n, func(base time.Time) func(int) time.Time {
		return func(i int) time.Time {
			return base.Add(time.Duration(int64(i)*1000/int64(l.Rate)) * time.Millisecond)
		}
	})
	if err != nil {
		return r, errors.Join(err, s.Close())
	}
	r = Result{
		Workload: "steady", Tasks: n, Rate: l.Rate, Batch: l.Batch, Payload: l.Payload, Background: l.Background,
		Seconds: o.took.Seconds(), TasksPerSecond: float64(n) / o.took.Seconds(), FilledPerSecond: o.filled,
	}
	err = b.finish(ctx, &r)
	r.Lateness = distribution(o.tally.lateness())
	return r, err
}
