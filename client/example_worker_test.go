package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// lapse stands for a server elsewhere: it starts one in this process.
func lapse() (*client.Client, func()) {
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(context.Background(), memledger.New(), tasks.Config{Log: quiet})
	must(err)
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet})
	must(err)
	server := httptest.NewServer(api)
	c, err := client.New(client.Options{URL: server.URL})
	must(err)
	return c, func() {
		api.Close()
		c.Close()
		server.Close()
		must(scheduler.Close(context.Background()))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// An unpaid order is cancelled when its time has run out, unless it is paid first.
func Example_orderTimeout() {
	c, end := lapse()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	type order struct {
		Customer string `json:"customer"`
	}
	unpaid := client.NewTopic[order]("order.unpaid")
	w, err := unpaid.Worker(c, func(_ context.Context, o order, d *client.Delivery) error {
		fmt.Printf("%s of %s is cancelled\n", d.ID, o.Customer)
		stop()     // a shop would go on
		return nil // an error would have it delivered again, later
	}, client.WorkerOptions{})
	must(err)

	place := func(id, customer string) {
		// 30 minutes, in a shop
		_, err := unpaid.Schedule(ctx, c, id, 50*time.Millisecond, order{customer})
		must(err)
	}
	place("order-41", "Ada")
	place("order-42", "Grace")
	// Ada pays. After nil the timeout is never delivered; ErrDelivering or
	// ErrNotFound would say that it was too late.
	must(c.Cancel(ctx, "order-41"))

	must(w.Run(ctx))
	// Output: order-42 of Grace is cancelled
}

// A receiver of a server elsewhere.
func ExampleWorker() {
	c, end := lapse()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	type Order struct{ Number int }
	cancelOrder := func(_ context.Context, number int) error {
		fmt.Println("order", number, "is cancelled")
		stop() // a shop would go on
		return nil
	}

	unpaid := client.NewTopic[Order]("order.unpaid")
	_, err := unpaid.Schedule(ctx, c, "order-42", 0, Order{42})
	must(err)
	w, err := unpaid.Worker(c, func(ctx context.Context, o Order, d *client.Delivery) error {
		return cancelOrder(ctx, o.Number) // nil acknowledges, an error: again later
	}, client.WorkerOptions{Concurrency: 16})
	must(err)
	err = w.Run(ctx) // until ctx ends, and what is under way is done
	must(err)
	// Output: order 42 is cancelled
}

// One coupon has several deadlines: two reminders and the end. They share a group, and
// are scheduled with one request.
func Example_couponReminder() {
	c, end := lapse()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	expires := time.Now().Add(70 * time.Millisecond) // in a shop: in four weeks
	reminder := func(before time.Duration, text string) client.Request {
		return client.Request{
			ID: "coupon-7:" + text, Topic: "coupon", Group: "coupon-7", Due: expires.Add(-before),
			Payload:     fmt.Appendf(nil, "%q", text),
			MaxLateness: time.Hour, // a reminder that comes too late is worse than none
		}
	}
	results, err := c.ScheduleBatch(ctx, []client.Request{
		reminder(40*time.Millisecond, "a-week-left"), // 7 * 24 * time.Hour
		reminder(20*time.Millisecond, "a-day-left"),  // 24 * time.Hour
		{ID: "coupon-7:expired", Topic: "coupon", Group: "coupon-7", Due: expires, Payload: []byte(`"expired"`)},
	})
	must(err)
	for _, r := range results {
		if r.Problem != nil {
			panic(r.Problem)
		}
	}

	w, err := client.NewTopic[string]("coupon").Worker(c, func(_ context.Context, what string, d *client.Delivery) error {
		fmt.Println(d.Group, what)
		if what == "expired" {
			stop()
		}
		return nil
	}, client.WorkerOptions{Concurrency: 1}) // one at a time, the oldest deadline first
	must(err)
	must(w.Run(ctx))
	// Output:
	// coupon-7 a-week-left
	// coupon-7 a-day-left
	// coupon-7 expired
}

// Each customer who joins a group buy has a task at the same deadline, which checks whether enough
// customers have joined. A Batcher sends the tasks of customers who join at the same moment with
// few calls.
func Example_groupBuy() {
	c, end := lapse()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	b, err := client.NewBatcher(c, client.BatcherOptions{})
	must(err)
	closes := time.Now().Add(200 * time.Millisecond)
	var joining sync.WaitGroup
	for i := range 30 {
		joining.Go(func() { // each would be a request to the shop
			_, err := b.Schedule(ctx, client.Request{
				// A customer who joins twice has one task.
				ID: fmt.Sprintf("groupbuy-9:user-%d", i), Topic: "groupbuy.closed", Group: "groupbuy-9", Due: closes,
			})
			must(err)
		})
	}
	joining.Wait()
	must(b.Close(ctx))

	var mu sync.Mutex
	confirmed := 0
	w, err := client.NewWorker(c, "groupbuy.closed", func(_ context.Context, d *client.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		// With fewer customers, they would get their money back.
		if confirmed++; confirmed == 30 {
			fmt.Println(d.Group, "is closed, and", confirmed, "orders are confirmed")
			stop()
		}
		return nil
	}, client.WorkerOptions{Concurrency: 10})
	must(err)
	must(w.Run(ctx))
	// Output: groupbuy-9 is closed, and 30 orders are confirmed
}

// Replace debounces: each change puts the deadline off, and only the last one is delivered.
func ExampleClient_Replace_debounce() {
	c, end := lapse()
	defer end()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()

	for version := range 5 {
		_, err := c.Replace(ctx, client.Request{
			ID: "doc-7", Topic: "document.changed", Delay: 300 * time.Millisecond,
			Payload: fmt.Appendf(nil, `{"version":%d}`, version),
		})
		// ErrDelivering would say that the last version is being indexed at this moment:
		// under another id this one follows it.
		must(err)
	}
	w, err := client.NewWorker(c, "document.changed", func(_ context.Context, d *client.Delivery) error {
		fmt.Printf("%s is indexed: %s\n", d.ID, d.Payload)
		stop()
		return nil
	}, client.WorkerOptions{})
	must(err)
	must(w.Run(ctx))
	// Output: doc-7 is indexed: {"version":4}
}
