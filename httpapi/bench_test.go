package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/diskledger"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/scripts/pair/measure"
	"github.com/lapsehq/lapse/tasks"
)

// bare accepts everything and keeps nothing, not even in memory. What remains is the cost of HTTP
// and of decoding.
type bare struct{}

func (bare) Schedule(_ context.Context, r tasks.Request) (tasks.Task, error) {
	return tasks.Task{ID: bareID(&r), Topic: r.Topic, State: tasks.Pending, Payload: r.Payload, Headers: r.Headers, Revision: 1, Node: "local"}, nil
}

func (bare) ScheduleBatch(_ context.Context, rs []tasks.Request) ([]tasks.Result, error) {
	results := make([]tasks.Result, len(rs))
	for i := range rs {
		results[i].ID = bareID(&rs[i])
	}
	return results, nil
}

// bareID makes an id where the scheduler would: it is part of the answer.
func bareID(r *tasks.Request) string {
	if r.ID != "" {
		return r.ID
	}
	return tasks.NewID()
}

// variants runs a benchmark without a scheduler, with one on a ledger that keeps
// nothing, in memory, on disk and on Redis, one after the other: only within one run do figures
// compare. It reports tasks a second and the processor time a task of this process, and the ratios
// of both to those of the null ledger.
func variants(b *testing.B, tasksEach int, run func(b *testing.B, r *rig)) {
	quiet := slog.New(slog.DiscardHandler)
	var floor, least float64
	measured := func(b *testing.B, r *rig) (rate, cost float64) {
		b.ResetTimer()
		began := processorTime(b)
		run(b, r)
		spent := processorTime(b) - began
		b.StopTimer()
		cost = float64(spent.Microseconds()) / float64(b.N*tasksEach)
		b.ReportMetric(cost, "cpu-us/task")
		rate = float64(b.N*tasksEach) / b.Elapsed().Seconds()
		b.ReportMetric(rate, "tasks/s")
		b.ReportMetric(0, "ns/op")
		return rate, cost
	}
	b.Run("bare", func(b *testing.B) {
		api, err := newServer(Config{Log: quiet})
		if err != nil {
			b.Fatal(err)
		}
		api.attach(bare{})
		measured(b, serve(b, api))
	})
	ledgers := []struct {
		name string
		open func(b *testing.B) recovery.Ledger
	}{
		{"null", func(*testing.B) recovery.Ledger { return ledgertest.Null{} }},
		{"memledger", func(*testing.B) recovery.Ledger { return memledger.New() }},
		{"diskledger", func(b *testing.B) recovery.Ledger {
			l, err := diskledger.Open(b.TempDir(), diskledger.Options{Log: quiet})
			if err != nil {
				b.Fatal(err)
			}
			return l
		}},
		{"redisledger", func(b *testing.B) recovery.Ledger {
			server := redistest.Start(b, "appendonly yes", "appendfsync everysec")
			l, err := redisledger.Open(redisledger.Options{URL: server.URL(), Node: "bench", Log: quiet})
			if err != nil {
				b.Fatal(err)
			}
			return l
		}},
		{"twonodes", func(b *testing.B) recovery.Ledger {
			server := redistest.Start(b, "appendonly yes", "appendfsync everysec")
			return company(b, server, quiet)
		}},
	}
	for _, l := range ledgers {
		b.Run(l.name, func(b *testing.B) {
			ledger := l.open(b)
			scheduler, err := tasks.Open(b.Context(), ledger, tasks.Config{Log: quiet})
			if err != nil {
				b.Fatal(err)
			}
			if d, ok := ledger.(recovery.Directory); ok {
				over := time.Now().Add(time.Minute)
				for names := []string{""}; len(names) > 0; time.Sleep(10 * time.Millisecond) {
					if names, err = d.Unindexed(b.Context()); err != nil {
						b.Fatal(err)
					}
					if time.Now().After(over) {
						b.Fatalf("after a minute, ids of %q are not in the directory", names)
					}
				}
			}
			b.Cleanup(func() {
				if err := scheduler.Close(context.Background()); err != nil {
					b.Error(err)
				}
			})
			api, err := New(Config{Scheduler: scheduler, Log: quiet})
			if err != nil {
				b.Fatal(err)
			}
			rate, cost := measured(b, serve(b, api))
			if l.name == "null" {
				floor, least = rate, cost
			} else if floor > 0 {
				b.ReportMetric(rate/floor, "of-null")
				b.ReportMetric(cost/least, "cpu-of-null")
			}
		})
	}
}

func processorTime(b *testing.B) time.Duration {
	spent, err := measure.ProcessorTime(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	return spent
}

// company opens a ledger of a node that is not the only one: ids chosen by callers have to be
// registered in the directory.
func company(b *testing.B, server *redistest.Server, log *slog.Logger) recovery.Ledger {
	open := func(node string) *redisledger.Ledger {
		l, err := redisledger.Open(redisledger.Options{URL: server.URL(), Node: node, Log: log})
		if err != nil {
			b.Fatal(err)
		}
		return l
	}
	other, err := tasks.Open(b.Context(), open("other"), tasks.Config{Log: log})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := other.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return open("bench")
}

const benchTask = `{"topic":"order.unpaid","delay":"720h","payload":{"order":123456789,"customer":"c-9876543","amount":"123.45","items":[{"sku":"ABC-123","n":1},{"sku":"DEF-456","n":2}],"note":"cancel unless paid, please"},"headers":{"tenant":"eu"}}`

func (r *rig) call(b *testing.B, method, path, body string, status int) {
	q, err := http.NewRequestWithContext(b.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		b.Error(err)
		return
	}
	if body != "" {
		q.Header.Set("Content-Type", "application/json")
	}
	a, err := r.client.Do(q)
	if err != nil {
		b.Error(err)
		return
	}
	_, err = io.Copy(io.Discard, a.Body)
	a.Body.Close()
	if err != nil || a.StatusCode != status {
		b.Errorf("status %d, %v", a.StatusCode, err)
	}
}

// BenchmarkHTTPSingle schedules tasks one by one from 64 callers, which are another process: the
// processor time is that of the server alone.
func BenchmarkHTTPSingle(b *testing.B) {
	variants(b, 1, func(b *testing.B, r *rig) {
		load := exec.CommandContext(b.Context(), os.Args[0], strconv.Itoa(b.N))
		load.Env = append(os.Environ(), loadVariable+"="+r.url)
		if out, err := load.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
	})
}

// loadVariable names the server that this process is to load, if it is to do nothing else.
const loadVariable = "LAPSE_TEST_LOAD"

// loadMain schedules as many tasks as the argument says, by 64 callers, and ends the process.
func loadMain(url string) {
	var group errgroup.Group
	var next atomic.Int64
	n, err := strconv.ParseInt(os.Args[1], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}
	for range 64 {
		group.Go(func() error {
			for next.Add(1) <= n {
				if err := send(client, url); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// send schedules a task.
func send(client *http.Client, url string) error {
	a, err := client.Post(url+"/v1/tasks", "application/json", strings.NewReader(benchTask))
	if err != nil {
		return err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusCreated {
		err = fmt.Errorf("%s: %s", a.Status, text)
	}
	return err
}

// BenchmarkHTTPBatch schedules 1,000 tasks a request from 4 callers.
func BenchmarkHTTPBatch(b *testing.B) {
	const size = 1000
	for _, ids := range []string{"made", "chosen"} {
		b.Run(ids, func(b *testing.B) {
			variants(b, size, func(b *testing.B, r *rig) {
				var number atomic.Int64
				b.SetParallelism(2)
				b.RunParallel(func(p *testing.PB) {
					body := "[" + strings.Repeat(benchTask+",", size-1) + benchTask + "]"
					for p.Next() {
						if ids == "chosen" {
							body = chosenBatch(int(number.Add(1)), size)
						}
						r.call(b, "POST", "/v1/tasks/batch", body, 200)
					}
				})
			})
		})
	}
}

func chosenBatch(number, size int) string {
	var text bytes.Buffer
	text.WriteByte('[')
	for i := range size {
		if i > 0 {
			text.WriteByte(',')
		}
		fmt.Fprintf(&text, `{"id":"order-%d-%d",%s`, number, i, benchTask[1:])
	}
	text.WriteByte(']')
	return text.String()
}

// BenchmarkDecodeBatch is the decoder alone.
func BenchmarkDecodeBatch(b *testing.B) {
	const size = 1000
	data := []byte("[" + strings.Repeat(benchTask+",", size-1) + benchTask + "]")
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		batch := &batch{requests: make([]tasks.Request, 0, size)}
		if err := batch.array(data); err != nil || len(batch.requests) != size {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "tasks/s")
}
