package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// RestartFacts are counted from the moment in which the ledger is opened again.
type RestartFacts struct {
	Ready        float64 `json:"ready_ms"`         // until all tasks are in memory again
	FirstOverdue float64 `json:"first_overdue_ms"` // until the first overdue one is delivered
	AllOverdue   float64 `json:"all_overdue_ms"`   // until all of them are handled and forgotten
}

// overdueShare of the tasks are overdue at the restart.
const overdueShare = 10

// restart opens a scheduler again on a ledger with tasks.
func restart(ctx context.Context, ledger Ledger, l Load) (r Result, err error) {
	p, err := ledger.make()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.remove()) }()
	keep := func() error { return nil }

	base := time.Now().Truncate(time.Millisecond)
	overdue := (l.Tasks + overdueShare - 1) / overdueShare
	due := func(i int) time.Time {
		if i < overdue {
			return base
		}
		return base.Add(24*time.Hour + time.Duration(i)*time.Millisecond)
	}
	before, err := p.start(ctx, tasks.TopicSettings{Paused: true}, keep)
	if err != nil {
		return r, err
	}
	b := &bout{s: before, l: l}
	round, t := b.rounds.begin(overdue, due)
	began := time.Now()
	err = b.fill(ctx, round, l.Tasks, due)
	filled := time.Since(began)
	if err := errors.Join(err, before.Close()); err != nil {
		return r, err
	}

	began = time.Now()
	after, err := p.start(ctx, tasks.TopicSettings{}, keep)
	if err != nil {
		return r, err
	}
	b.s, b.behind = after, l.Tasks-overdue
	facts, err := b.measureRestart(ctx, began, t)
	if err != nil {
		return r, errors.Join(err, after.Close())
	}
	st, err := after.Standing(ctx)
	if err != nil {
		return r, errors.Join(err, after.Close())
	}
	r = Result{
		Workload: "restart", Tasks: l.Tasks, Batch: l.Batch, Payload: l.Payload,
		Seconds: facts.Ready / 1000, FilledPerSecond: float64(l.Tasks) / filled.Seconds(), Restart: facts,
	}
	err = b.finish(ctx, &r)
	r.Lost += max(0, b.behind-st.Left)
	return r, err
}

func (b *bout) measureRestart(ctx context.Context, began time.Time, t *tally) (*RestartFacts, error) {
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	var first atomic.Int64
	if err := b.s.Receive(ctx, func(payload []byte) {
		if first.Load() == 0 {
			first.CompareAndSwap(0, int64(time.Since(began)))
		}
		b.rounds.got(payload)
	}); err != nil {
		return nil, err
	}
	facts := &RestartFacts{}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !b.s.(*embedded).scheduler.Readiness().Ready {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
		}
		if _, err := b.s.Standing(ctx); err != nil {
			return nil, err
		}
	}
	facts.Ready = millis(time.Since(began))
	if err := b.await(ctx, t); err != nil {
		return nil, err
	}
	facts.AllOverdue = millis(time.Since(began))
	facts.FirstOverdue = millis(time.Duration(first.Load()))
	return facts, nil
}
