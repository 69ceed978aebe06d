package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	pb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A collector answers as it is told. It is a transport, so that tests can run in fake time.
type collector struct {
	mu      sync.Mutex // guards the rest
	answers []int      // the last one stays
	after   string     // Retry-After
	takes   time.Duration
	times   []time.Time
	spans   int
}

func (c *collector) RoundTrip(q *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.times = append(c.times, time.Now())
	time.Sleep(c.takes)
	status := c.answers[0]
	if len(c.answers) > 1 {
		c.answers = c.answers[1:]
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	if q.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		if body, err = io.ReadAll(z); err != nil {
			return nil, err
		}
	}
	var data pb.TracesData
	if err := proto.Unmarshal(body, &data); err != nil {
		return nil, err
	}
	if status == http.StatusOK {
		for _, r := range data.ResourceSpans {
			for _, s := range r.ScopeSpans {
				c.spans += len(s.Spans)
			}
		}
	}
	a := &http.Response{StatusCode: status, Status: http.StatusText(status), Header: http.Header{}, Body: http.NoBody, Request: q}
	a.Header.Set("Retry-After", c.after)
	return a, nil
}

// rig makes a provider whose queue has room for some spans, and what it logs.
func rig(t *testing.T, c *collector, queue string) (*Provider, *bytes.Buffer) {
	t.Helper()
	return upload(t, map[string]string{"OTEL_BSP_MAX_QUEUE_SIZE": queue, "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, c.RoundTrip)
}

func spans(p *Provider, n int) {
	for range n {
		_, s := p.Tracer("x").Start(context.Background(), "x")
		s.End()
	}
}

// More spans than there is room for are dropped and counted; the others arrive.
func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collector{answers: []int{http.StatusOK}, takes: time.Second}
		p, log := rig(t, c, "4")
		spans(p, 10)
		p.Close()
		p.Close()
		spans(p, 1) // too late
		if c.spans != 4 || !strings.Contains(log.String(), "dropped=6 failed=0") {
			t.Errorf("%d spans arrived: %s", c.spans, log)
		}
	})
}

// What has arrived makes room again.
func TestQueueEmptiesItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collector{answers: []int{http.StatusOK}}
		p, log := rig(t, c, "4")
		for range 5 {
			spans(p, 4)
			time.Sleep(time.Minute)
		}
		p.Close()
		if c.spans != 20 || strings.Contains(log.String(), "lost") {
			t.Errorf("%d spans arrived: %s", c.spans, log)
		}
	})
}

// A collector that is busy is asked again, as late as it says, until the time for a batch is over.
func TestUploadTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collector{answers: []int{503, 429, http.StatusOK}, after: "2"}
		p, log := rig(t, c, "4")
		spans(p, 1)
		time.Sleep(time.Minute)
		p.Close()
		if len(c.times) != 3 || c.spans != 1 || strings.Contains(log.String(), "lost") {
			t.Fatalf("after %d attempts, %d spans have arrived: %s", len(c.times), c.spans, log)
		}
		for i := range 2 {
			if pause := c.times[i+1].Sub(c.times[i]); pause != 2*time.Second {
				t.Errorf("the pause was %v", pause)
			}
		}
	})
}

func TestUploadGivesUp(t *testing.T) {
	for status, attempts := range map[int]int{400: 1, 503: 4, 307: 1} {
		synctest.Test(t, func(t *testing.T) {
			c := &collector{answers: []int{status}}
			p, log := rig(t, c, "4")
			spans(p, 3)
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(c.times) != attempts || p.lost.waiting.Load() != 0 || !strings.Contains(log.String(), "dropped=0 failed=3") {
				t.Errorf("%d: %d attempts, %d spans wait: %s", status, len(c.times), p.lost.waiting.Load(), log)
			}
			p.Close()
		})
	}
}

// A report a minute is enough, and none is forgotten.
func TestLossesAreReportedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collector{answers: []int{400}}
		p, log := rig(t, c, "4")
		for range 10 {
			spans(p, 2)
			time.Sleep(6 * time.Second)
		}
		spans(p, 1)
		p.Close()
		if n := strings.Count(log.String(), "spans were lost"); n != 2 || !strings.Contains(log.String(), "failed=2 ") || !strings.Contains(log.String(), "failed=19 ") {
			t.Errorf("%d reports: %s", n, log)
		}
	})
}

// The end does not wait for a collector that hangs, or that asks for patience.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &collector{answers: []int{503}, after: "3600"}
		p, log := rig(t, c, "4")
		spans(p, 1)
		began := time.Now()
		p.Close()
		if took := time.Since(began); took != 0 || len(c.times) != 1 || !strings.Contains(log.String(), "failed=1") {
			t.Errorf("closed after %v and %d attempts: %s", took, len(c.times), log)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		p, log := rig(t, nil, "4")
		p.client.http.Transport = hanging{}
		spans(p, 1)
		began := time.Now()
		p.Close()
		if took := time.Since(began); took > endWithin || !strings.Contains(log.String(), "failed=1") {
			t.Errorf("closed after %v: %s", took, log)
		}
		time.Sleep(time.Hour) // until the batch has given up
	})
}

// hanging never answers.
type hanging struct{}

func (hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	<-q.Context().Done()
	return nil, q.Context().Err()
}
