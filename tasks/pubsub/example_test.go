package pubsub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/pubsub"
)

// Every instance of a shop caches prices in its own memory. A campaign ends at an instant:
// then all of them forget the price, because of a task that is published on a channel.
// An instance that listens to Redis' expiry events would do it with the same code, if
// later.
func Example_cacheInvalidation() {
	client, err := redisledger.Connect(exampleURL, 4) // such as redis://127.0.0.1:6379
	if err != nil {
		panic(err)
	}
	defer client.Close()
	scheduler, err := tasks.Open(context.Background(), memledger.New(), tasks.Config{
		Ways: []tasks.Way{pubsub.New(client, pubsub.Config{})},
		Topics: map[string]tasks.TopicSettings{"price.ends": {
			Kind:     pubsub.Kind,
			Delivery: json.RawMessage(`{"compat":"keyevent","min_receivers":1}`),
		}},
	})
	if err != nil {
		panic(err)
	}
	defer scheduler.Close(context.Background())

	// An instance of the shop: a cache, and what empties it.
	cache := map[string]string{"price:7": "9.90", "price:8": "4.50"}
	subscription := client.Subscribe(context.Background(), "__keyevent@0__:expired")
	defer subscription.Close()
	if _, err := subscription.Receive(context.Background()); err != nil { // it is subscribed
		panic(err)
	}

	// The campaign.
	_, err = scheduler.Schedule(context.Background(), tasks.Request{
		ID: "campaign-7", Topic: "price.ends", Delay: 50 * time.Millisecond,
		Headers: map[string]string{"key": "price:7"},
	})
	if err != nil {
		panic(err)
	}
	message, err := subscription.ReceiveMessage(context.Background())
	if err != nil {
		panic(err)
	}
	delete(cache, message.Payload)
	fmt.Println(message.Payload, "is forgotten; left are", cache)
	// Output:
	// price:7 is forgotten; left are map[price:8:4.50]
}

// A subscriber of Redis' expiry events needs no change.
func Example_subscriber() {
	ctx, stop := context.WithCancel(context.Background())
	stop() // a shop would go on
	client, err := redisledger.Connect(exampleURL, 4)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	forget := func(session string) { fmt.Println(session, "is forgotten") }

	events := client.Subscribe(ctx, "__keyevent@0__:expired")
	defer events.Close()
	if ctx.Err() != nil {
		return
	}
	for m := range events.Channel() {
		forget(m.Payload) // session:77
	}
	// Output:
}
