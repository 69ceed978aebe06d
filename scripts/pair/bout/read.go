package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/scripts/pair/measure"
	"github.com/lapsehq/lapse/tasks"
)

func init() {
	register(4, "list", "memory disk", func(ctx context.Context, b *bout) error {
		if err := b.fill(ctx); err != nil {
			return err
		}
		return b.measured(measure.Path{Name: "list", Rounds: rounds, Round: func(int) (int, error) { return b.list(ctx) }})
	})
	register(6, "restart", "disk redis", func(ctx context.Context, b *bout) error {
		if err := b.fill(ctx); err != nil {
			return err
		}
		t, err := b.s.Topic("pair")
		if err != nil {
			return err
		}
		if err := b.stop(); err != nil {
			return err
		}
		n := int(t.Counts.Pending)
		return b.measured(measure.Path{Name: "restart", Rounds: 1, Round: func(int) (int, error) { return n, b.restart(ctx, n) }})
	})
}

// list reads some pages of 1,000 tasks.
func (b *bout) list(ctx context.Context) (n int, err error) {
	q := tasks.Query{Topic: "pair", Limit: 1000}
	for range 20 {
		page, err := b.s.List(ctx, q)
		if err != nil {
			return n, err
		}
		n += len(page.Tasks)
		q.Cursor = page.Cursor
	}
	if n != 20*q.Limit {
		return n, fmt.Errorf("20 pages have %d tasks", n)
	}
	return n, nil
}

// restart opens the ledger again and waits until its tasks are in memory.
func (b *bout) restart(ctx context.Context, n int) error {
	if err := b.start(ctx); err != nil {
		return err
	}
	return b.until(ctx, func() (bool, error) {
		t, err := b.s.Topic("pair")
		if errors.Is(err, tasks.ErrNoTopic) { // before its first task is in memory
			return false, nil
		}
		return int(t.Counts.Pending) >= n, err
	})
}
