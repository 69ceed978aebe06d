package tasks_test

import (
	"context"
	"os"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
)

type Order struct{ Number int }

func cancelOrder(context.Context, int) error { return nil }

// What README.md shows: tasks that outlive the process.
func Example_readme() {
	dir, err := os.MkdirTemp("", "lapse")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	embed := func(ctx context.Context) error {
		ledger, err := diskledger.Open(dir, diskledger.Options{})
		if err != nil {
			return err
		}
		s, err := tasks.Open(ctx, ledger, quiet)
		if err != nil {
			return err
		}
		defer func() { _ = s.Close(ctx) }()

		err = tasks.Handle(s, "order.unpaid", func(ctx context.Context, o Order, _ *tasks.Delivery) error {
			return cancelOrder(ctx, o.Number) // an error or a panic: again later
		})
		if err != nil {
			return err
		}
		_, err = s.Schedule(ctx, tasks.Request{
			ID: "order-42", Topic: "order.unpaid", Delay: 30 * time.Minute, Payload: []byte(`{"Number":42}`),
		})
		return err
	}
	if err := embed(context.Background()); err != nil {
		panic(err)
	}
	// Output:
}
