package main

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lapsehq/lapse/scripts/pair/measure"
	"github.com/lapsehq/lapse/tasks"
)

const (
	singles = 10_000 // tasks of 64 callers
	lone    = 250    // tasks of one caller
	pending = 100_000
	batch   = 1_000
	senders = 4
)

func init() {
	register(1, "single", "memory disk redis", func(ctx context.Context, b *bout) error {
		return b.scheduled(ctx, "single", singles, 1, 64)
	})
	register(2, "lone", "memory disk redis", func(ctx context.Context, b *bout) error {
		n := lone
		if b.ledger == "memory" {
			n = singles
		}
		return b.scheduled(ctx, "lone", n, 1, 1)
	})
	register(3, "batch", "memory disk redis", func(ctx context.Context, b *bout) error {
		const n = pending / batch / rounds * batch
		b.filled += rounds * n
		return b.scheduled(ctx, "batch", n, batch, senders)
	})
}

// scheduled measures rounds of n tasks that are scheduled, some a call.
func (b *bout) scheduled(ctx context.Context, path string, n, each, callers int) error {
	return b.measured(measure.Path{Name: path, Rounds: rounds, Round: func(int) (int, error) {
		return n, b.schedule(ctx, "pair", n, each, callers, ahead())
	}})
}

// ahead is when tasks are due that are not to be delivered.
func ahead() time.Time { return time.Now().Add(24 * time.Hour) }

// payload is 200 bytes of JSON.
var payload = append(append([]byte(`{"order":"`), bytes.Repeat([]byte("0123456789"), 19)[:188]...), `"}`...)

// fill makes sure that there are tasks to list, to export and to read again.
func (b *bout) fill(ctx context.Context) error {
	missing := pending - b.filled
	b.filled = pending
	return b.schedule(ctx, "pair", missing, batch, senders, ahead())
}

// schedule schedules n tasks, some a call, by callers at the same time.
func (b *bout) schedule(ctx context.Context, topic string, n, each, callers int, due time.Time) error {
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for int(next.Add(int64(each))) <= n && failed.Load() == nil {
				if err := b.send(ctx, topic, each, due); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (b *bout) send(ctx context.Context, topic string, n int, due time.Time) error {
	if n == 1 {
		_, err := b.s.Schedule(ctx, tasks.Request{Topic: topic, Due: due, Payload: payload})
		return err
	}
	requests := make([]tasks.Request, n)
	for i := range requests {
		requests[i] = tasks.Request{Topic: topic, Due: due, Payload: payload}
	}
	results, err := b.s.ScheduleBatch(ctx, requests)
	for i := range results {
		if results[i].Err != nil {
			return results[i].Err
		}
	}
	return err
}
