package tasks_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkPerGroup is BenchmarkBurst of 100,000 tasks in groups, with and without a bound of the
// deliveries of one group at once.
func BenchmarkPerGroup(b *testing.B) {
	const n = 100_000
	for _, groups := range []int{10, 100_000} {
		for _, bound := range []int{0, 4} {
			b.Run(fmt.Sprintf("groups=%d/bound=%d", groups, bound), func(b *testing.B) {
				for b.Loop() {
					b.StopTimer()
					s := open(b, memledger.New(), tasks.Config{})
					if err := s.Handle("burst", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
						b.Fatal(err)
					}
					if _, err := s.SetTopic(b.Context(), "burst", tasks.TopicSettings{ConcurrencyPerGroup: bound}, -1); err != nil {
						b.Fatal(err)
					}
					due := time.Now().Add(4 * time.Second)
					requests := make([]tasks.Request, 1000)
					for first := 0; first < n; first += len(requests) {
						for i := range requests {
							requests[i] = tasks.Request{Topic: "burst", Due: due, Payload: payload200, Group: fmt.Sprint("g", (first+i)%groups)}
						}
						if _, err := s.ScheduleBatch(context.Background(), requests); err != nil {
							b.Fatal(err)
						}
					}
					if time.Now().After(due) {
						b.Fatal("the burst began before all tasks were scheduled")
					}
					<-time.After(time.Until(due))
					b.StartTimer()
					for s.Stats().Total.Delivered < n || s.Stats().Ledger.Queued > 0 {
						<-time.After(2 * time.Millisecond)
					}
					b.StopTimer()
					b.ReportMetric(n/time.Since(due).Seconds(), "tasks/s")
					if err := s.Close(context.Background()); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			})
		}
	}
}
