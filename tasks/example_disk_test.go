package tasks_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/tasks"
)

type Order struct{ Number int }

func cancelOrder(context.Context, int) error { return nil }

var unpaid = tasks.NewTopic[Order]("order.unpaid")

// Tasks that outlive the process: Run opens the scheduler on a directory, and closes it.
func ExampleRun() {
	dir, err := os.MkdirTemp("", "lapse")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ledger, err := diskledger.Open(dir, diskledger.Options{})
	if err != nil {
		panic(err)
	}

	cancel := func(ctx context.Context, o Order, _ *tasks.Delivery) error {
		return cancelOrder(ctx, o.Number) // an error or a panic: again later
	}
	ctx, stop := context.WithCancel(context.Background())
	err = tasks.Run(ctx, ledger, quiet, unpaid.Handler(cancel), func(ctx context.Context, s *tasks.Scheduler) error {
		defer stop() // a shop would go on
		t, err := unpaid.Schedule(ctx, s, "order-42", 30*time.Minute, Order{42})
		fmt.Println(t.ID, "is", t.State)
		return err
	})
	fmt.Println(err)
	// Output:
	// order-42 is pending
	// <nil>
}
