package main

import (
	"context"

	"github.com/lapsehq/lapse/scripts/pair/measure"
	"github.com/lapsehq/lapse/tasks"
)

func init() {
	register(5, "export", "memory disk redis", func(ctx context.Context, b *bout) error {
		if err := b.fill(ctx); err != nil {
			return err
		}
		return b.measured(measure.Path{Name: "export", Rounds: 2, Round: func(int) (int, error) { return b.export(ctx) }})
	})
}

// export reads all tasks that are pending.
func (b *bout) export(ctx context.Context) (n int, err error) {
	for q := (tasks.ExportQuery{}); ; {
		page, err := b.s.Admin().Export(ctx, q)
		if err != nil {
			return n, err
		}
		n += len(page.Tasks)
		if page.Cursor == "" {
			return n, nil
		}
		q.Cursor = page.Cursor
	}
}
