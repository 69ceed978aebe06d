package webhook_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/webhook"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// hook receives tasks: what docs/delivery.md shows.
func hook(cancel func(order int, task string) error) http.Handler {
	verifier, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hooks/lapse", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || verifier.Verify(body, r.Header) != nil {
			http.Error(w, "not genuine", http.StatusUnauthorized)
			return
		}
		var task struct{ Order int }
		if json.Unmarshal(body, &task) != nil {
			http.Error(w, "no order", http.StatusGone) // no further attempt could mend it
			return
		}
		if err := cancel(task.Order, r.Header.Get("ce-id")); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError) // again, after the backoff
		}
	})
	return mux
}

// A program that embeds Lapse brings the way along, and a topic chooses it.
func Example() {
	ctx, done := context.Background(), make(chan string)
	receiver := httptest.NewServer(hook(func(order int, task string) error {
		done <- fmt.Sprintf("%s: order %d is cancelled", task, order)
		return nil
	}))
	defer receiver.Close()

	way, err := webhook.New(webhook.Config{
		Allow:   []string{"loopback"},
		Secrets: map[string][]string{"shop": {secret}},
	})
	if err != nil {
		panic(err)
	}
	defer way.Close()
	scheduler, err := tasks.Open(ctx, memledger.New(), tasks.Config{Ways: []tasks.Way{way}})
	if err != nil {
		panic(err)
	}
	defer scheduler.Close(ctx)
	settings := tasks.TopicSettings{
		Kind:     webhook.Kind,
		Delivery: json.RawMessage(`{"url":"` + receiver.URL + `/hooks/lapse","secret":"shop"}`),
	}
	if _, err := scheduler.SetTopic(ctx, "order.unpaid", settings, -1); err != nil {
		panic(err)
	}
	order := tasks.Request{ID: "order-42", Topic: "order.unpaid", Delay: 10 * time.Millisecond, Payload: []byte(`{"order":42}`)}
	if _, err := scheduler.Schedule(ctx, order); err != nil {
		panic(err)
	}
	fmt.Println(<-done)
	// Output: order-42: order 42 is cancelled
}
