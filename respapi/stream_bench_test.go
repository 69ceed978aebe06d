package respapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	. "github.com/lapsehq/lapse/respapi"
	"github.com/lapsehq/lapse/tasks"
)

// cpu returns the processor time that this process has taken.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkReserveAck takes tasks and acknowledges them, 100 at a time, over the Redis port and
// over HTTP. Its figures are tasks for a second of processor time, the client's included.
func BenchmarkReserveAck(b *testing.B) {
	const each = 100
	var overHTTP float64
	for _, way := range []string{"http", "resp"} {
		b.Run(way, func(b *testing.B) {
			quiet := slog.New(slog.DiscardHandler)
			scheduler, err := tasks.Open(b.Context(), ledgertest.Null{}, tasks.Config{Log: quiet, MaxPending: 10_000_000})
			if err != nil {
				b.Fatal(err)
			}
			defer scheduler.Close(b.Context())
			round, end := map[string]func(*testing.B, *tasks.Scheduler) (func(), func()){"http": httpRounds, "resp": respRounds}[way](b, scheduler)
			defer end()
			requests := make([]tasks.Request, each)
			for n := range b.N {
				for i := range requests {
					requests[i] = tasks.Request{ID: fmt.Sprint("order:", n, ":", i), Topic: "t", Due: time.UnixMilli(900_000_000_000), Payload: []byte(`{"order":123456789,"customer":"c-9876543"}`)}
				}
				if _, err := scheduler.ScheduleBatch(b.Context(), requests); err != nil {
					b.Fatal(err)
				}
			}
			runtime.GC()
			b.ResetTimer()
			began := cpu()
			for range b.N {
				round()
			}
			rate := float64(b.N*each) / (cpu() - began).Seconds()
			b.ReportMetric(rate, "tasks/cpu-s")
			if way == "http" {
				overHTTP = rate
			} else if overHTTP > 0 {
				b.ReportMetric(rate/overHTTP, "of-http")
			}
		})
	}
}

func respRounds(b *testing.B, scheduler *tasks.Scheduler) (round, end func()) {
	server, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Attach(scheduler); err != nil {
		b.Fatal(err)
	}
	r := &rig{server: server, scheduler: scheduler}
	l := httptest.NewUnstartedServer(nil).Listener
	go func() { _ = server.Serve(l) }()
	r.addr = l.Addr().String()
	nc := connectTo(b, r.addr)
	in := bufio.NewReader(nc)
	line := func() string {
		text, err := in.ReadString('\n')
		if err != nil || text[0] == '-' {
			b.Fatal(text, err)
		}
		return text
	}
	fmt.Fprint(nc, "XGROUP CREATE expired:t g $ MKSTREAM\r\n")
	line()
	count := func() (n int) { _, _ = fmt.Sscan(line()[1:], &n); return n }
	bulk := func() []byte {
		p := make([]byte, count()+2)
		if _, err := io.ReadFull(in, p); err != nil {
			b.Fatal(err)
		}
		return p[:len(p)-2]
	}
	return func() {
		fmt.Fprint(nc, "*9\r\n$10\r\nXREADGROUP\r\n$5\r\nGROUP\r\n$1\r\ng\r\n$1\r\nc\r\n$5\r\nCOUNT\r\n$3\r\n100\r\n$7\r\nSTREAMS\r\n$9\r\nexpired:t\r\n$1\r\n>\r\n")
		line()
		line()
		bulk()
		n := count()
		var ack bytes.Buffer
		fmt.Fprintf(&ack, "*%d\r\n$4\r\nXACK\r\n$9\r\nexpired:t\r\n$1\r\ng\r\n", n+3)
		for range n {
			line()
			id := bulk()
			fmt.Fprintf(&ack, "$%d\r\n%s\r\n", len(id), id)
			for range count() {
				bulk()
			}
		}
		if _, err := nc.Write(ack.Bytes()); err != nil {
			b.Fatal(err)
		}
		if got := line(); got != ":100\r\n" {
			b.Fatal(got)
		}
	}, func() { nc.Close(); _ = server.Close(b.Context()) }
}

func httpRounds(b *testing.B, scheduler *tasks.Scheduler) (round, end func()) {
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	s := httptest.NewServer(api)
	call := func(path, body string, answer any) {
		q, err := http.NewRequestWithContext(b.Context(), "POST", s.URL+path, strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		a, err := s.Client().Do(q)
		if err != nil {
			b.Fatal(err)
		}
		defer a.Body.Close()
		if err := json.NewDecoder(a.Body).Decode(answer); err != nil || a.StatusCode != 200 {
			b.Fatal(a.Status, err)
		}
	}
	return func() {
		var reserved struct {
			Tasks []struct {
				ID, Receipt string
				Payload     json.RawMessage
			}
		}
		call("/v1/topics/t/reserve", `{"max":100}`, &reserved)
		receipts := make([]string, len(reserved.Tasks))
		for i, t := range reserved.Tasks {
			receipts[i] = t.Receipt
		}
		body, err := json.Marshal(map[string]any{"receipts": receipts})
		if err != nil {
			b.Fatal(err)
		}
		var settled struct{ Settled int }
		if call("/v1/receipts/ack", string(body), &settled); settled.Settled != 100 {
			b.Fatal(settled)
		}
	}, s.Close
}

// BenchmarkAckPipeline acknowledges 256 entries by as many commands of one pipeline, over Redis.
func BenchmarkAckPipeline(b *testing.B) {
	const each = 256
	quiet := slog.New(slog.DiscardHandler)
	ledger, err := redisledger.Open(redisledger.Options{URL: redistest.Start(b).URL(), Node: "bench", Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	scheduler, err := tasks.Open(b.Context(), ledger, tasks.Config{Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer scheduler.Close(b.Context())
	server, err := New(Config{Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Attach(scheduler); err != nil {
		b.Fatal(err)
	}
	defer server.Close(b.Context())
	l := httptest.NewUnstartedServer(nil).Listener
	go func() { _ = server.Serve(l) }()
	nc := connectTo(b, l.Addr().String())
	w := &wire{b, nc, bufio.NewReader(nc)}
	fmt.Fprint(nc, "XGROUP CREATE expired:t g $ MKSTREAM\r\n")
	w.line()
	took := time.Duration(0)
	for n := range b.N {
		requests := make([]tasks.Request, each)
		for i := range requests {
			requests[i] = tasks.Request{ID: fmt.Sprint("order:", n, ":", i), Topic: "t", Due: time.UnixMilli(900_000_000_000)}
		}
		if _, err := scheduler.ScheduleBatch(b.Context(), requests); err != nil {
			b.Fatal(err)
		}
		var acks strings.Builder
		count := 0
		for count < each {
			fmt.Fprint(nc, "XREADGROUP GROUP g c COUNT 256 BLOCK 1000 STREAMS expired:t >\r\n")
			for _, id := range idsOf(w.answer()) {
				fmt.Fprintf(&acks, "XACK expired:t g %s\r\n", id)
				count++
			}
		}
		began := time.Now()
		fmt.Fprint(nc, acks.String())
		for range each {
			if got := w.line(); got != ":1" {
				b.Fatal(got)
			}
		}
		took += time.Since(began)
	}
	b.ReportMetric(float64(b.N*each)/took.Seconds(), "acks/s")
}
