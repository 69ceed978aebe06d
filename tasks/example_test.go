package tasks_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

var quiet = tasks.Config{Log: slog.New(slog.DiscardHandler)}

// Embed the scheduler: open it on a ledger, say who handles a topic, and schedule.
// With diskledger instead of memledger, tasks outlive the process.
func Example() {
	ctx := context.Background()
	s, err := tasks.Open(ctx, memledger.New(), quiet)
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	err = s.Handle("greeting", func(_ context.Context, d *tasks.Delivery) error {
		fmt.Printf("%s says %s\n", d.ID, d.Payload)
		close(done)
		return nil // acknowledges it; an error would have it delivered again, later
	})
	if err != nil {
		panic(err)
	}
	_, err = s.Schedule(ctx, tasks.Request{ID: "hello-1", Topic: "greeting", Delay: 5 * time.Millisecond, Payload: []byte("hello")})
	if err != nil {
		panic(err)
	}
	<-done
	_ = s.Close(ctx)
	// Output: hello-1 says hello
}

// An unpaid order is cancelled when its time has run out, unless it is paid first.
func Example_orderTimeout() {
	ctx := context.Background()
	s, err := tasks.Open(ctx, memledger.New(), quiet)
	if err != nil {
		panic(err)
	}
	defer func() { _ = s.Close(ctx) }()

	type unpaid struct {
		Customer string `json:"customer"`
	}
	expired := make(chan string)
	orders := tasks.NewTopic[unpaid]("order.unpaid")
	err = orders.Handle(s, func(_ context.Context, order unpaid, d *tasks.Delivery) error {
		expired <- d.ID + " of " + order.Customer
		return nil
	})
	if err != nil {
		panic(err)
	}
	place := func(id, customer string) {
		// 30 minutes, in a shop
		_, err := orders.Schedule(ctx, s, id, 50*time.Millisecond, unpaid{customer})
		if err != nil {
			panic(err)
		}
	}
	place("order-41", "Ada")
	place("order-42", "Grace")
	// Ada pays. After nil the timeout is never delivered; ErrDelivering or
	// ErrNotFound would say that it was too late.
	if err := s.Cancel(ctx, "order-41"); err != nil {
		panic(err)
	}
	fmt.Println("cancelled:", <-expired)
	// Output: cancelled: order-42 of Grace
}

// Replace debounces: each change puts the deadline off, and only the last one is
// delivered.
func ExampleScheduler_Replace() {
	ctx := context.Background()
	s, err := tasks.Open(ctx, memledger.New(), quiet)
	if err != nil {
		panic(err)
	}
	defer func() { _ = s.Close(ctx) }()

	indexed := make(chan string)
	err = s.Handle("document.changed", func(_ context.Context, d *tasks.Delivery) error {
		indexed <- string(d.Payload)
		return nil
	})
	if err != nil {
		panic(err)
	}
	for version := range 5 {
		_, err := s.Replace(ctx, tasks.Request{
			ID: "doc-7", Topic: "document.changed", Delay: 100 * time.Millisecond,
			Payload: fmt.Appendf(nil, "version %d", version),
		})
		if err != nil {
			panic(err)
		}
	}
	fmt.Println("indexed:", <-indexed)
	// Output: indexed: version 4
}

// Reschedule gives a task more time.
func ExampleScheduler_Reschedule() {
	ctx := context.Background()
	s, err := tasks.Open(ctx, memledger.New(), quiet)
	if err != nil {
		panic(err)
	}
	defer func() { _ = s.Close(ctx) }()

	task, err := s.Schedule(ctx, tasks.Request{ID: "session-1", Topic: "session.idle", Delay: time.Hour})
	if err != nil {
		panic(err)
	}
	later := 3 * time.Hour
	moved, err := s.Reschedule(ctx, "session-1", tasks.Move{Delay: &later})
	if err != nil {
		panic(err)
	}
	fmt.Println("put off:", moved.Due.Sub(task.Due).Round(time.Hour), "revision", moved.Revision)
	// Output: put off: 2h0m0s revision 2
}

// A receiver in the same process that pulls its tasks: it takes what is due, and
// settles each by its receipt.
func ExampleScheduler_Reserve() {
	ctx := context.Background()
	s, err := tasks.Open(ctx, memledger.New(), quiet)
	if err != nil {
		panic(err)
	}
	defer func() { _ = s.Close(ctx) }()

	if _, err := s.Schedule(ctx, tasks.Request{ID: "mail-1", Topic: "mail"}); err != nil {
		panic(err)
	}
	ds, err := s.Reserve(ctx, "mail", 10, time.Second, time.Minute)
	if err != nil {
		panic(err)
	}
	for _, d := range ds {
		answers, err := s.Settle(ctx, tasks.Verdict{Verb: tasks.Ack}, []string{d.Receipt()})
		if err != nil || answers[0].Err != nil {
			panic("not settled")
		}
		fmt.Println(d.ID, "recorded:", answers[0].Recorded)
	}
	// Output: mail-1 recorded: true
}
