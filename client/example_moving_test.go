package client_test

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/client"
)

// What docs/moving.md shows. It is compiled and not run: its server is elsewhere.
func Example_afterAsynq() {
	ctx, send := context.Background(), func([]byte) error { return nil }

	c, err := client.New(client.Options{URL: "http://127.0.0.1:7480"})
	must(err)
	_, err = c.Schedule(ctx, client.Request{Topic: "mail.welcome", Delay: time.Hour, Payload: []byte(`{"user":1}`)})
	must(err)

	w, err := client.NewWorker(c, "mail.welcome", func(ctx context.Context, d *client.Delivery) error { return send(d.Payload) },
		client.WorkerOptions{Concurrency: 16})
	must(err)
	err = w.Run(ctx)
	must(err)
}
