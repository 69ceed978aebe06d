package rabbitmq_test

import (
	"context"
	"log"

	amqp "github.com/rabbitmq/amqp091-go"
)

// A receiver of what {"kind": "rabbitmq", "routing_key": "orders.expired"} delivers.
func Example_receiver() {
	ctx := context.Background()
	conn, err := amqp.Dial("amqp://127.0.0.1:5672")
	if err != nil {
		log.Fatal(err)
	}
	ch, err := conn.Channel()
	if err != nil {
		log.Fatal(err)
	}
	// Before the topic is used: without a queue, attempts fail.
	if _, err := ch.QueueDeclare("orders.expired", true, false, false, false, amqp.Table{"x-queue-type": "quorum"}); err != nil {
		log.Fatal(err)
	}
	if err := ch.Qos(64, 0, false); err != nil {
		log.Fatal(err)
	}
	messages, err := ch.Consume("orders.expired", "", false, false, false, false, nil)
	if err != nil {
		log.Fatal(err)
	}
	for m := range messages {
		// Idempotent by the id: a message may come twice.
		if err := cancelOrder(ctx, m.MessageId, m.Body); err != nil {
			_ = m.Nack(false, true)
			continue
		}
		_ = m.Ack(false)
	}
}

func cancelOrder(context.Context, string, []byte) error { return nil }
