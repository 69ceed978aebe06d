package httpapi

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkStatsReaders measures how late the tasks of one topic are delivered, on a node with
// 100,000 topics: alone, beside eight readers of the stats that never pause, and, for comparison,
// beside eight of /healthz, which keep the processors as busy and compute nothing.
func BenchmarkStatsReaders(b *testing.B) {
	const topics, perSecond, lasts = 100_000, 500, 5 * time.Second
	r := newRig(b)
	all := make([]tasks.Request, 10_000)
	for from := 0; from < topics-1; from += len(all) {
		for i := range all {
			all[i] = tasks.Request{Topic: fmt.Sprintf("t%06d", min(from+i, topics-2)), Delay: 24 * time.Hour}
		}
		if _, err := r.scheduler.ScheduleBatch(tasks.WithGrant(b.Context(), &tasks.Grant{Reserved: true}), all); err != nil {
			b.Fatal(err)
		}
	}
	var mu sync.Mutex
	var late []time.Duration
	if err := r.scheduler.Handle("measured", func(_ context.Context, d *tasks.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		late = append(late, time.Since(d.Due))
		return nil
	}); err != nil {
		b.Fatal(err)
	}
	measure := func() (p99 time.Duration) {
		late = nil
		tick := time.NewTicker(time.Second / perSecond)
		defer tick.Stop()
		for range perSecond * int(lasts/time.Second) {
			<-tick.C
			if _, err := r.scheduler.Schedule(b.Context(), tasks.Request{Topic: "measured", Delay: 50 * time.Millisecond}); err != nil {
				b.Fatal(err)
			}
		}
		for r.scheduler.Stats().Total.Pending > topics {
			time.Sleep(10 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(late)
		return late[len(late)*99/100]
	}
	// readers call a path, without a pause, while the lateness is measured.
	readers := func(path string) (p99 time.Duration, perSecond float64) {
		ctx, cancel := context.WithCancel(b.Context())
		var all sync.WaitGroup
		var reads atomic.Int64
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					req, _ := http.NewRequestWithContext(ctx, http.MethodGet, r.url+path, nil)
					if answer, err := r.client.Do(req); err == nil {
						_, _ = io.Copy(io.Discard, answer.Body)
						answer.Body.Close()
						reads.Add(1)
					}
				}
			})
		}
		p99 = measure()
		cancel()
		all.Wait()
		return p99, float64(reads.Load()) / lasts.Seconds()
	}
	for b.Loop() {
		b.ReportMetric(float64(measure())/1e6, "alone-p99-ms")
		busy, _ := readers("/healthz")
		b.ReportMetric(float64(busy)/1e6, "beside-healthz-p99-ms")
		beside, reads := readers("/v1/stats")
		b.ReportMetric(float64(beside)/1e6, "beside-p99-ms")
		b.ReportMetric(reads, "reads/s")
	}
	b.ReportMetric(0, "ns/op")
}
