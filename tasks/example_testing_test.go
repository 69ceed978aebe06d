package tasks_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A shop is the code of an application, which docs/embedding.md tests.
type shop struct {
	scheduler *tasks.Scheduler
	cancelled []string
}

func newShop(s *tasks.Scheduler) (*shop, error) {
	shop := &shop{scheduler: s}
	return shop, s.Handle("order.unpaid", func(_ context.Context, d *tasks.Delivery) error {
		shop.cancelled = append(shop.cancelled, d.ID)
		return nil
	})
}

func (s *shop) order(ctx context.Context, id string) error {
	_, err := s.scheduler.Schedule(ctx, tasks.Request{ID: id, Topic: "order.unpaid", Delay: 30 * time.Minute})
	return err
}

func (s *shop) pay(ctx context.Context, id string) error { return s.scheduler.Cancel(ctx, id) }

// What docs/embedding.md shows: 30 minutes pass at once.
func TestUnpaidOrdersAreCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s, err := tasks.Open(ctx, memledger.New(), tasks.Config{})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close(context.Background()) }()
		shop, err := newShop(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []string{"order-41", "order-42"} {
			if err := shop.order(ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		if err := shop.pay(ctx, "order-41"); err != nil {
			t.Fatal(err)
		}

		time.Sleep(29 * time.Minute) // of the bubble's clock: no time passes
		synctest.Wait()
		if len(shop.cancelled) != 0 {
			t.Fatalf("%v are cancelled early", shop.cancelled)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if len(shop.cancelled) != 1 || shop.cancelled[0] != "order-42" {
			t.Fatalf("%v are cancelled, not order-42", shop.cancelled)
		}
	})
}
