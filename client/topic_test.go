package client_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/client"
)

// What a topic makes of values, and what it refuses.
func TestTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		c, _, _ := within(t, client.Options{})
		type order struct{ Number int }
		orders := client.NewTopic[order]("orders")
		_, err := orders.Schedule(ctx, c, "a", time.Hour, order{1})
		check(t, "Schedule", err, nil)
		_, err = orders.Replace(ctx, c, "a", 0, order{2})
		check(t, "Put", err, nil)
		got, err := c.Reserve(ctx, orders.Name(), client.Reservation{Wait: time.Minute})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		if v, err := orders.Value(&got[0]); err != nil || v.Number != 2 {
			t.Errorf("value %v, %v", v, err)
		}

		none := client.NewTopic[func()]("orders")
		_, err = none.Schedule(ctx, c, "b", 0, func() {})
		check(t, "Schedule of what has no JSON", err, client.ErrInvalid)
		_, err = none.Replace(ctx, c, "b", 0, func() {})
		check(t, "Put of what has no JSON", err, client.ErrInvalid)
		_, err = client.NewTopic[int]("").Schedule(ctx, c, "b", 0, 1)
		check(t, "Schedule without a topic", err, client.ErrInvalid)
		if _, err := client.NewTopic[int]("").Worker(c, nil, client.WorkerOptions{}); err == nil {
			t.Error("a worker without a topic")
		}
	})
}
