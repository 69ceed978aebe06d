package webhook

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

const (
	atOnce = 64     // deliveries, and requests of the bare client
	burst  = 10_000 // tasks that are due at the same time
)

// BenchmarkWebhook delivers tasks that are all due, and lets a bare client of net/http post
// the same to the same receiver: deliveries a second of both, and how they compare. Each
// iteration is 10,000 tasks.
func BenchmarkWebhook(b *testing.B) {
	for _, secret := range []string{"", "shop"} {
		b.Run(map[string]string{"": "unsigned", "shop": "signed"}[secret], func(b *testing.B) { compare(b, secret) })
	}
}

func compare(b *testing.B, secret string) {
	s := serve(b, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	payload := fmt.Appendf(nil, `{"order":42,"note":%q}`, bytes.Repeat([]byte("x"), 200))
	cfg := here
	cfg.Secrets = map[string][]string{"shop": {newSecret}}
	scheduler := open(b, newWay(b, cfg))
	set := tasks.TopicSettings{Concurrency: atOnce, Paused: true}
	fields := map[string]any{"url": s.URL}
	if secret != "" {
		fields["secret"] = secret
	}
	topic(b, scheduler, "burst", set, fields)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: atOnce}}
	defer client.CloseIdleConnections()

	var bare, lapse time.Duration
	rounds := int64(0)
	for b.Loop() {
		rounds++
		bare += posts(b, client, s.URL, payload)
		lapse += deliveries(b, scheduler, payload, rounds*burst)
	}
	perSecond := func(d time.Duration) float64 { return float64(rounds*burst) / d.Seconds() }
	b.ReportMetric(perSecond(bare), "bare/s")
	b.ReportMetric(perSecond(lapse), "lapse/s")
	b.ReportMetric(100*bare.Seconds()/lapse.Seconds(), "%_of_bare")
}

// posts sends requests without a scheduler.
func posts(b *testing.B, client *http.Client, url string, payload []byte) time.Duration {
	began := time.Now()
	var all sync.WaitGroup
	for i := range atOnce {
		all.Go(func() {
			for range (burst - i + atOnce - 1) / atOnce {
				answer, err := client.Post(url, "application/json", bytes.NewReader(payload))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, answer.Body)
				answer.Body.Close()
			}
		})
	}
	all.Wait()
	return time.Since(began)
}

// deliveries measures the time from when deliveries are allowed until all are settled.
func deliveries(b *testing.B, s *tasks.Scheduler, payload []byte, sum int64) time.Duration {
	requests := make([]tasks.Request, burst)
	for i := range requests {
		requests[i] = tasks.Request{Topic: "burst", Payload: payload}
	}
	if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
		b.Fatal(err)
	}
	counts := func() tasks.Counts {
		t, err := s.Topic("burst")
		if err != nil {
			b.Fatal(err)
		}
		return t.Counts
	}
	until(b, "all are due", func() bool { return counts().Ready == burst })
	began := time.Now()
	if err := s.Admin().PauseTopic(b.Context(), "burst", false); err != nil {
		b.Fatal(err)
	}
	until(b, "all are settled", func() bool { return counts().Delivered == sum })
	took := time.Since(began)
	if err := s.Admin().PauseTopic(b.Context(), "burst", true); err != nil {
		b.Fatal(err)
	}
	return took
}

// BenchmarkWebhookBesideOneThatHangs delivers a steady rate of tasks for 5 s, alone and while
// another topic has all its places taken by a receiver that answers nothing for 30 s. It reports
// how late the tasks come to their own receiver, on the same host.
func BenchmarkWebhookBesideOneThatHangs(b *testing.B) {
	for b.Loop() {
		besideOneThatHangs(b)
	}
}

func besideOneThatHangs(b *testing.B) {
	m := &meter{hung: make(chan struct{})}
	s := serve(b, m.receive)
	scheduler := open(b, newWay(b, here))
	topic(b, scheduler, "steady", tasks.TopicSettings{}, map[string]any{"url": s.URL + "/steady"})
	topic(b, scheduler, "hanging", tasks.TopicSettings{Lease: time.Minute}, map[string]any{"url": s.URL + "/hang", "timeout": "30s"})
	defer close(m.hung)
	p50, p99 := m.measure(b, scheduler)
	b.ReportMetric(p50, "p50_alone_ms")
	b.ReportMetric(p99, "p99_alone_ms")
	for range 1000 {
		schedule(b, scheduler, tasks.Request{Topic: "hanging"})
	}
	until(b, "all places hang", func() bool { return m.hanging() >= atOnce })
	p50, p99 = m.measure(b, scheduler)
	b.ReportMetric(p50, "p50_beside_ms")
	b.ReportMetric(p99, "p99_beside_ms")
}

// A meter is a receiver that measures how late requests come, and hangs where it is told to.
type meter struct {
	hung chan struct{} // until it is closed

	mu    sync.Mutex // guards the rest
	late  []time.Duration
	hangs int
}

func (m *meter) receive(_ http.ResponseWriter, r *http.Request) {
	came := time.Now()
	_, _ = io.Copy(io.Discard, r.Body)
	if r.URL.Path == "/hang" {
		m.mu.Lock()
		m.hangs++
		m.mu.Unlock()
		select {
		case <-m.hung:
		case <-r.Context().Done():
		}
		return
	}
	due, _ := time.Parse(time.RFC3339, r.Header.Get("lapse-due")) // a wrong one is very late
	m.mu.Lock()
	defer m.mu.Unlock()
	m.late = append(m.late, came.Sub(due))
}

func (m *meter) hanging() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.hangs
}

// measure delivers 500 tasks a second for 5 s, and returns how late they came, in ms.
func (m *meter) measure(b *testing.B, s *tasks.Scheduler) (p50, p99 float64) {
	const steady, every = 2500, 2 * time.Millisecond
	requests := make([]tasks.Request, steady)
	due := time.Now().Add(200 * time.Millisecond)
	for i := range requests {
		requests[i] = tasks.Request{Topic: "steady", Due: due.Add(time.Duration(i) * every)}
	}
	if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
		b.Fatal(err)
	}
	until(b, "all have come", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.late) == steady
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(m.late)
	ms := func(q float64) float64 { return float64(m.late[int(q*(steady-1))]) / float64(time.Millisecond) }
	p50, p99 = ms(0.5), ms(0.99)
	m.late = nil
	return p50, p99
}
