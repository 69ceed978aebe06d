package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// A Load is the size of a workload.
type Load struct {
	Tasks      int           // how many; Steady: Rate times Duration instead
	Callers    int           // Single: how many goroutines schedule
	Batch      int           // Batch, and to fill: tasks a request
	Payload    int           // bytes, at least MinPayload
	Rate       int           // Steady: tasks a second
	Duration   time.Duration // Steady: for how long tasks fall due. Memory: the idle time
	Background int           // Steady: tasks that are pending far ahead meanwhile
	// Rest, of Burst and Steady, is the least time between the last acceptance and the first
	// deadline.
	Rest     time.Duration
	Patience time.Duration // after this time without a delivery, missing tasks count as lost
}

// senders is how many goroutines send batches: more would only queue.
const senders = 4

// far is when tasks are due that are not to be delivered.
func far(base time.Time) func(int) time.Time {
	due := base.Add(24 * time.Hour).Truncate(time.Second)
	return func(int) time.Time { return due }
}

// A bout is one workload on one system.
type bout struct {
	s      System
	l      Load
	rounds rounds
	behind int // tasks that stay pending: Load.Background
}

// fill schedules tasks 0 to n-1 of a round, in batches if the system accepts batches.
func (b *bout) fill(ctx context.Context, round, n int, due func(i int) time.Time) error {
	makers := make([]maker, max(b.l.Callers, senders))
	err := share(ctx, n, b.l.Batch, senders, func(ctx context.Context, c, from, to int) error {
		return b.s.ScheduleBatch(ctx, makers[c].batch(round, from, to, b.l.Payload, due))
	})
	if !errors.Is(err, ErrNoBatch) {
		return err
	}
	return share(ctx, n, 1, b.l.Callers, func(ctx context.Context, c, from, to int) error {
		return b.s.Schedule(ctx, makers[c].batch(round, from, to, b.l.Payload, due)[0])
	})
}

// An outcome is the result of one appointment.
type outcome struct {
	tally  *tally
	filled float64       // tasks accepted a second
	took   time.Duration // from the first deadline until all were handled and forgotten
}

// refills is how often a base that came too soon is put further ahead.
const refills = 5

// appointment has n tasks fall due, each so long after a base that lies ahead, and waits until they
// are handled and forgotten. The base is a whole second because some systems count in seconds. A
// rehearsal with tasks that are due at once warms everything up and shows how long filling takes.
// If the base comes before all tasks are accepted, the run does not count: the tasks are delivered,
// and it is repeated with more time.
func (b *bout) appointment(ctx context.Context, n int, after func(i int) time.Duration) (outcome, error) {
	if err := b.s.Receive(ctx, b.rounds.got); err != nil {
		return outcome{}, err
	}
	trial := min(n, max(n/20, 1000), 20_000)
	now := time.Now().Truncate(time.Millisecond)
	round, t := b.rounds.begin(trial, func(int) time.Time { return now })
	began := time.Now()
	if err := b.fill(ctx, round, trial, t.due); err != nil {
		return outcome{}, err
	}
	ahead := time.Since(began) * time.Duration(n) / time.Duration(trial) * 3 / 2
	if err := b.await(ctx, t); err != nil {
		return outcome{}, err
	}
	for range refills {
		began := time.Now()
		base := began.Add(ahead + b.l.Rest + time.Second).Truncate(time.Second)
		round, t := b.rounds.begin(n, func(i int) time.Time { return base.Add(after(i)) })
		if err := b.fill(ctx, round, n, t.due); err != nil {
			return outcome{}, err
		}
		took := time.Since(began)
		inTime := time.Now().Before(base)
		if err := b.await(ctx, t); err != nil {
			return outcome{}, err
		}
		if inTime {
			return outcome{t, float64(n) / took.Seconds(), time.Since(base)}, nil
		}
		ahead = 2 * max(ahead, took)
	}
	return outcome{}, fmt.Errorf("%d tasks could not be scheduled before they were due, in %d attempts with ever more time", n, refills)
}

// await returns once a round's tasks are handled and forgotten, or when nothing has come for
// Load.Patience. Tasks that are missing then are lost.
func (b *bout) await(ctx context.Context, t *tally) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var last int64
	moved := t.due(0) // no delivery can have come before this time
	if now := time.Now(); now.After(moved) {
		moved = now
	}
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		came, left := t.first.Load(), 0
		if came > last {
			last, moved = came, time.Now()
		}
		patient := time.Since(moved) < b.l.Patience
		if t.complete() || !patient {
			st, err := b.s.Standing(ctx)
			if err != nil {
				return err
			}
			left = st.Left - b.behind
			if t.complete() && left <= 0 {
				return nil
			}
		}
		if !patient {
			if t.complete() {
				return fmt.Errorf("%d tasks were handled and are not forgotten after %v", left, b.l.Patience)
			}
			return nil
		}
	}
}

// finish closes the system, so that nothing is delivered any more, and counts.
func (b *bout) finish(ctx context.Context, r *Result) error {
	st, err := b.s.Standing(ctx)
	if err != nil {
		return errors.Join(err, b.s.Close())
	}
	err = b.s.Close()
	r.Faults = b.rounds.faults()
	r.Explained = st.Explained
	return err
}
