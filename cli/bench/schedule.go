package bench

import (
	"context"
	"errors"
	"time"
)

// Single has callers schedule tasks one a request. It closes the system.
func Single(ctx context.Context, s System, l Load) (Result, error) {
	return schedule(ctx, s, l, "single", 1, l.Callers)
}

// Batch has senders schedule tasks many a request. It closes the system. ErrNoBatch is returned if
// the system accepts none.
func Batch(ctx context.Context, s System, l Load) (Result, error) {
	return schedule(ctx, s, l, "batch", l.Batch, senders)
}

func schedule(ctx context.Context, s System, l Load, name string, size, callers int) (r Result, err error) {
	b := &bout{s: s, l: l}
	defer func() { err = errors.Join(err, s.Close()) }()

	makers := make([]maker, callers)
	due := far(time.Now())
	send := func(round int, noted func(caller int, took time.Duration)) func(context.Context, int, int, int) error {
		return func(ctx context.Context, c, from, to int) error {
			tasks := makers[c].batch(round, from, to, l.Payload, due)
			began := time.Now()
			var err error
			if size == 1 {
				err = s.Schedule(ctx, tasks[0])
			} else {
				err = s.ScheduleBatch(ctx, tasks)
			}
			noted(c, time.Since(began))
			return err
		}
	}
	// The first requests make connections and buffers that are used again.
	warm := callers * size * 4
	if err := share(ctx, warm, size, callers, send(0, func(int, time.Duration) {})); err != nil {
		return r, err
	}
	answers := make([]histogram, callers)
	for i := range answers {
		answers[i] = newHistogram()
	}
	began := time.Now()
	if err := share(ctx, l.Tasks, size, callers, send(1, func(c int, took time.Duration) { record(answers[c], took) })); err != nil {
		return r, err
	}
	took := time.Since(began)
	for _, h := range answers[1:] {
		answers[0].Merge(h)
	}
	st, err := b.s.Standing(ctx)
	if err != nil {
		return r, err
	}
	return Result{
		Workload: name, Tasks: l.Tasks, Callers: callers, Batch: size, Payload: l.Payload,
		Seconds: took.Seconds(), TasksPerSecond: float64(l.Tasks) / took.Seconds(),
		Answers: distribution(answers[0]),
		Faults:  Faults{Lost: max(0, warm+l.Tasks-st.Left)},
	}, nil
}
