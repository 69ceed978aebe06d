package client_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/lapsehq/lapse/client"
)

func Example() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: "http://127.0.0.1:7480"})
	if err != nil {
		log.Fatal(err)
	}

	// The order has 30 minutes to be paid.
	_, err = c.Schedule(ctx, client.Request{
		ID: "order-42", Topic: "order.unpaid", Delay: 30 * time.Minute, Payload: []byte(`{"order":42}`),
	})
	if err != nil {
		log.Fatal(err)
	}

	// It was paid: nothing is to happen any more.
	switch err := c.Cancel(ctx, "order-42"); {
	case errors.Is(err, client.ErrDelivering), errors.Is(err, client.ErrNotFound):
		log.Print("too late: its time has run out")
	case err != nil:
		log.Fatal(err)
	}
}

func ExampleClient_Reserve() {
	ctx := context.Background()
	c, err := client.New(client.Options{URL: "http://127.0.0.1:7480"})
	if err != nil {
		log.Fatal(err)
	}
	for ctx.Err() == nil {
		deliveries, err := c.Reserve(ctx, "order.unpaid", client.Reservation{Max: 10, Wait: 30 * time.Second})
		if err != nil {
			log.Fatal(err)
		}
		for _, d := range deliveries {
			log.Printf("order %s is cancelled", d.Payload)
			if _, err := c.Ack(ctx, d.Receipt); err != nil {
				log.Print(err) // it is delivered again, after its lease
			}
		}
	}
}
