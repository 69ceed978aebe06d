package client_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// movedTasks is how many tasks BenchmarkMoveTasks moves, unless LAPSE_MOVE_TASKS says otherwise.
const movedTasks = 100_000

// moveBatch is how many tasks are scheduled with one request, and moveAtOnce how many requests are
// under way: as ImportFrom does it.
const moveBatch, moveAtOnce = 10_000, 3

// BenchmarkMoveTasks schedules tasks by batches, exports them, and imports them into an empty
// ledger of either kind, over HTTP. The rate of the batches is that of the ledger of the source;
// compare an import with the batches of a source of the same kind in the same run. Then the target
// is exported as well, and must have the same lines.
func BenchmarkMoveTasks(b *testing.B) {
	n := movedTasks
	if text := os.Getenv("LAPSE_MOVE_TASKS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	ledgers := map[string]func(b *testing.B) recovery.Ledger{
		"disk": func(b *testing.B) recovery.Ledger {
			l, err := diskledger.Open(filepath.Join(b.TempDir(), "data"), diskledger.Options{MinFree: -1})
			check(b, "Open", err, nil)
			return l
		},
		"redis": func(b *testing.B) recovery.Ledger {
			l, err := redisledger.Open(redisledger.Options{URL: redistest.Start(b, "appendonly yes").URL(), Node: "n1", Log: slog.New(slog.DiscardHandler), Format: tasks.Format})
			check(b, "Open", err, nil)
			return l
		},
	}
	for _, from := range []string{"disk", "redis"} {
		for _, to := range []string{"disk", "redis"} {
			b.Run(from+"-to-"+to, func(b *testing.B) {
				for b.Loop() {
					source, target := servedOn(b, ledgers[from](b)), servedOn(b, ledgers[to](b))
					rate := func(what string, do func()) {
						began := time.Now()
						do()
						b.ReportMetric(float64(n)/time.Since(began).Seconds(), what+"-tasks/s")
					}
					rate("batch", func() { scheduleMany(b, source, n) })
					file := filepath.Join(b.TempDir(), "all.ndjson")
					rate("export", func() { exportTo(b, source, file) })
					rate("import", func() {
						f, err := os.Open(file)
						check(b, "Open", err, nil)
						defer f.Close()
						done, err := target.ImportFrom(b.Context(), f, client.ImportOptions{AtOnce: moveAtOnce}, func(e client.ImportError) { b.Errorf("line %d: %v", e.Line, e.Problem) })
						check(b, "ImportFrom", err, nil)
						if done.Imported != int64(n) {
							b.Fatalf("imported %+v", done)
						}
					})
					again := filepath.Join(b.TempDir(), "again.ndjson")
					exportTo(b, target, again)
					sameLines(b, file, again, n)
				}
			})
		}
	}
}

// servedOn starts a real server on a ledger.
func servedOn(b *testing.B, ledger recovery.Ledger) *client.Client {
	b.Helper()
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(b.Context(), ledger, tasks.Config{Log: quiet, Node: "n1", MaxInFlight: 1_000_000, AnswerWithin: 10 * time.Second})
	check(b, "tasks.Open", err, nil)
	api, err := httpapi.New(httpapi.Config{Scheduler: scheduler, Log: quiet})
	check(b, "httpapi.New", err, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(b, "Listen", err, nil)
	server := api.HTTPServer()
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	c := made(b, client.Options{URL: "http://" + listener.Addr().String(), Timeout: time.Minute})
	b.Cleanup(func() {
		c.Close()
		if err := errors.Join(server.Shutdown(context.Background()), scheduler.Close(context.Background())); err != nil {
			b.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			b.Error(err)
		}
	})
	return c
}

// scheduleMany schedules tasks with a payload of 200 bytes.
func scheduleMany(b *testing.B, c *client.Client, n int) {
	b.Helper()
	payload := fmt.Appendf(nil, `{"order":"%0187d"}`, 1)
	var all sync.WaitGroup
	slots := make(chan struct{}, moveAtOnce)
	for from := 0; from < n; from += moveBatch {
		requests := make([]client.Request, min(moveBatch, n-from))
		for i := range requests {
			requests[i] = client.Request{ID: fmt.Sprint("order-", from+i), Topic: "order.unpaid", Delay: time.Hour, Payload: payload}
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			results, err := c.ScheduleBatch(b.Context(), requests)
			if err != nil {
				b.Error(err)
			}
			for _, r := range results {
				if r.Problem != nil {
					b.Error(r.Problem)
				}
			}
		})
	}
	all.Wait()
}

// exportTo exports into a file.
func exportTo(b *testing.B, c *client.Client, name string) {
	b.Helper()
	f, err := os.Create(name)
	check(b, "Create", err, nil)
	for p, err := range c.ExportPages(b.Context(), client.ExportQuery{}) {
		check(b, "ExportPages", err, nil)
		_, err = f.Write(p.Lines)
		check(b, "Write", err, nil)
	}
	check(b, "Close", f.Close(), nil)
}

// sameLines fails the benchmark unless two exports have the same lines, each once, but for the
// first.
func sameLines(b *testing.B, one, two string, n int) {
	b.Helper()
	seed := maphash.MakeSeed()
	read := func(name string) map[uint64]bool {
		f, err := os.Open(name)
		check(b, "Open", err, nil)
		defer f.Close()
		all := make(map[uint64]bool, n)
		r := bufio.NewReaderSize(f, 1<<20)
		for first := true; ; first = false {
			line, err := r.ReadBytes('\n')
			if errors.Is(err, io.EOF) {
				return all
			}
			check(b, "Read", err, nil)
			if !first {
				all[maphash.Bytes(seed, line)] = true
			}
		}
	}
	had, has := read(one), read(two)
	for line := range had {
		if !has[line] {
			b.Fatal("a line of the source is not in the target")
		}
	}
	if len(had) != len(has) || len(had) != n+1 {
		b.Errorf("the source has %d lines, the target %d", len(had), len(has))
	}
}
