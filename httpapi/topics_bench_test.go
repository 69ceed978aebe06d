package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkStatsReaders measures how late the tasks of one topic are delivered, on a node with
// 100,000 topics: alone, beside eight readers of the stats that never pause, and, for comparison,
// beside eight of /healthz, which keep the processors as busy and compute nothing. The readers are
// another process.
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
		over := time.Now().Add(time.Minute)
		for r.scheduler.Stats().Total.Pending > topics {
			if time.Now().After(over) {
				b.Fatal("after a minute, tasks are not delivered")
			}
			time.Sleep(10 * time.Millisecond)
		}
		mu.Lock()
		defer mu.Unlock()
		slices.Sort(late)
		return late[len(late)*99/100]
	}
	// readers are a process of their own that calls a path, without a pause.
	readers := func(path string) (p99 time.Duration, perSecond float64) {
		process := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^TestReaderProcess$", "-test.v")
		process.Env = append(os.Environ(), "LAPSE_READ="+r.url+path)
		stop, err := process.StdinPipe()
		if err != nil {
			b.Fatal(err)
		}
		var said bytes.Buffer
		process.Stdout = &said
		if err := process.Start(); err != nil {
			b.Fatal(err)
		}
		p99 = measure()
		_ = stop.Close()
		if err := process.Wait(); err != nil {
			b.Fatalf("%v: %s", err, &said)
		}
		_, count, _ := strings.Cut(said.String(), "read ")
		if _, err := fmt.Sscan(count, &perSecond); err != nil {
			b.Fatalf("%v: %s", err, &said)
		}
		return p99, perSecond
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

// TestReaderProcess is no test: BenchmarkStatsReaders starts it as a process that reads until its
// standard input ends.
func TestReaderProcess(t *testing.T) {
	url := os.Getenv("LAPSE_READ")
	if url == "" {
		t.Skip("this is the process of BenchmarkStatsReaders")
	}
	ctx, cancel := context.WithCancel(t.Context())
	transport := &http.Transport{MaxIdleConnsPerHost: 8}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport}
	began := time.Now()
	var readers sync.WaitGroup
	var reads atomic.Int64
	for range 8 {
		readers.Go(func() {
			for ctx.Err() == nil {
				req, _ := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
				req.Host = "x"
				if answer, err := client.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
					if answer.StatusCode == http.StatusOK {
						reads.Add(1)
					}
				}
			}
		})
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
	readers.Wait()
	fmt.Println("read", float64(reads.Load())/time.Since(began).Seconds())
}
