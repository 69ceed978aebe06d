package nats_test

import (
	"context"
	"log"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A receiver of what {"kind": "nats", "subject": "orders.expired"} delivers.
func Example_receiver() {
	ctx := context.Background()
	conn, err := natsgo.Connect("nats://127.0.0.1:4222")
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	// Before the topic is used: without a stream, attempts fail.
	if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		log.Fatal(err)
	}
	consumer, err := js.CreateOrUpdateConsumer(ctx, "ORDERS", jetstream.ConsumerConfig{Durable: "cancellers", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		log.Fatal(err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		log.Fatal(err)
	}
	for {
		m, err := messages.Next()
		if err != nil {
			log.Fatal(err)
		}
		// Idempotent by the id: a message may come twice.
		if err := cancelOrder(ctx, m.Headers().Get("lapse-id"), m.Data()); err != nil {
			_ = m.Nak()
			continue
		}
		_ = m.Ack()
	}
}

func cancelOrder(context.Context, string, []byte) error { return nil }
