package main

import (
	"context"
	"reflect"

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
	export := exportOf(b.s)
	for q := (tasks.ExportQuery{}); ; {
		page, err := export(ctx, q)
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

// exportOf returns the Export of a scheduler's Admin, or the scheduler's own in a commit in which
// it has no Admin.
func exportOf(s *tasks.Scheduler) func(context.Context, tasks.ExportQuery) (tasks.ExportPage, error) {
	of := reflect.ValueOf(s)
	if admin := of.MethodByName("Admin"); admin.IsValid() {
		of = admin.Call(nil)[0]
	}
	return of.MethodByName("Export").Interface().(func(context.Context, tasks.ExportQuery) (tasks.ExportPage, error))
}
