package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkEventStreams measures what readers of events, on connections of their own, cost a burst
// of tasks that are scheduled and handled at once. Each round runs without readers and with each
// kind of them, so that other load of the machine affects all alike. The figures are the shortest
// time with readers divided by the shortest without. A reader that reads takes a part of the
// machine, which is also that of the server.
func BenchmarkEventStreams(b *testing.B) {
	const number = 100_000
	cases := []struct {
		name    string
		readers int
		reads   bool
	}{{"none", 0, false}, {"1-stuck", 1, false}, {"1-reading", 1, true}, {"20-stuck", 20, false}, {"20-reading", 20, true}}
	took, lost := make([]time.Duration, len(cases)), make([]int64, len(cases))
	for b.Loop() {
		for i, c := range cases {
			b.StopTimer()
			r := newRigWith(b, tasks.Config{}, Config{})
			done, handled := make(chan struct{}), 0
			if _, err := r.scheduler.SetTopic(b.Context(), "x", tasks.TopicSettings{Concurrency: 1}, -1); err != nil {
				b.Fatal(err)
			}
			if err := r.scheduler.Handle("x", func(context.Context, *tasks.Delivery) error {
				if handled++; handled == number {
					close(done)
				}
				return nil
			}); err != nil {
				b.Fatal(err)
			}
			var conns []net.Conn
			for range c.readers {
				conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
				if err != nil {
					b.Fatal(err)
				}
				conns = append(conns, conn)
				fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", eventsPath)
				head := bufio.NewReaderSize(conn, 16)
				if _, err := head.ReadString('\n'); err != nil {
					b.Fatal(err)
				}
				if c.reads {
					go func() { _, _ = io.Copy(io.Discard, conn) }()
				}
			}
			b.StartTimer()
			began := time.Now()
			for range number / 1000 {
				scheduleMany(b, r.scheduler, 1000, 0)
			}
			<-done
			if d := time.Since(began); took[i] == 0 || d < took[i] {
				took[i] = d
			}
			b.StopTimer()
			lost[i] += r.scheduler.Stats().EventsLost
			for _, conn := range conns {
				conn.Close()
			}
			r.streams(0)
			b.StartTimer()
		}
	}
	b.ReportMetric(0, "ns/op")
	for i, c := range cases {
		b.ReportMetric(float64(took[i])/float64(took[0]), c.name+"/none")
		if c.readers > 0 {
			b.ReportMetric(100*float64(lost[i])/float64(int64(b.N)*3*number*int64(c.readers)), c.name+"-lost-%")
		}
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/number, "ns/task")
}

// BenchmarkEncodeEvent measures what one event costs one stream before it is written.
func BenchmarkEncodeEvent(b *testing.B) {
	e := eventStream{}
	v := tasks.Event{Kind: tasks.EventStarted, At: time.Now(), ID: "0199a1b2-7000-7000-8000-000000000000", Topic: "order.unpaid", Attempt: 1, Lateness: 1234567}
	for b.Loop() {
		e.text = e.text[:0]
		e.encode(&v)
	}
}
