package tasks_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A shop is the code of an application, which docs/embedding.md tests.
type shop struct {
	scheduler *tasks.Scheduler

	mu        sync.Mutex // guards cancelled: handlers run in goroutines of their own
	cancelled []string
}

func newShop(s *tasks.Scheduler) (*shop, error) {
	shop := &shop{scheduler: s}
	return shop, s.Handle("order.unpaid", func(_ context.Context, d *tasks.Delivery) error {
		shop.mu.Lock()
		defer shop.mu.Unlock()
		shop.cancelled = append(shop.cancelled, d.ID)
		return nil
	})
}

func (s *shop) order(ctx context.Context, id string) error {
	_, err := s.scheduler.Schedule(ctx, tasks.Request{ID: id, Topic: "order.unpaid", Delay: 30 * time.Minute})
	return err
}

// gone are the orders that were cancelled.
func (s *shop) gone() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cancelled)
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
		if got := shop.gone(); len(got) != 0 {
			t.Fatalf("%v are cancelled early", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if got := shop.gone(); len(got) != 1 || got[0] != "order-42" {
			t.Fatalf("%v are cancelled, not order-42", got)
		}
	})
}
