package kafka_test

import (
	"context"
	"log"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A receiver of what {"kind": "kafka", "topic": "orders.expired"} delivers.
func Example_receiver() {
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers("127.0.0.1:9092"),
		kgo.ConsumerGroup("cancellers"), kgo.ConsumeTopics("orders.expired"),
		kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
	)
	if err != nil {
		log.Fatal(err)
	}
	for {
		fetches := client.PollFetches(ctx)
		for _, failure := range fetches.Errors() {
			log.Print(failure.Err)
		}
		for _, r := range fetches.Records() {
			var id string
			for _, h := range r.Headers {
				if h.Key == "lapse-id" {
					id = string(h.Value)
				}
			}
			// Idempotent by the id: a record may come twice.
			if err := cancelOrder(ctx, id, r.Value); err != nil {
				log.Fatal(err) // nothing of this poll is committed: it comes again
			}
		}
		if err := client.CommitUncommittedOffsets(ctx); err != nil {
			log.Print(err)
		}
		client.AllowRebalance()
	}
}

func cancelOrder(context.Context, string, []byte) error { return nil }
