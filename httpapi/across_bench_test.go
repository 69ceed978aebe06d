package httpapi

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkHTTPAcrossNodes reads and cancels tasks at the server whose node holds them, and at
// another one, which asks the first over Redis. It reports calls a second, the median of a call,
// and their ratios to the same calls at the holder.
func BenchmarkHTTPAcrossNodes(b *testing.B) {
	server := redistest.Start(b, "appendonly yes", "appendfsync everysec")
	holder, other := benchedServer(b, server, "a"), benchedServer(b, server, "b")
	for _, verb := range []string{"GET", "DELETE"} {
		for _, callers := range []int{1, 64} {
			var here across
			for _, at := range []struct {
				name  string
				asked *rig
			}{{"here", holder}, {"there", other}} {
				b.Run(fmt.Sprintf("%s/callers=%d/%s", verb, callers, at.name), func(b *testing.B) {
					a := acrossNodes(b, holder, at.asked, verb, callers)
					b.ReportMetric(0, "ns/op")
					b.ReportMetric(a.rate, "calls/s")
					b.ReportMetric(float64(a.median.Microseconds()), "µs-p50")
					if at.asked == holder {
						here = a
					} else if here.rate > 0 {
						b.ReportMetric(a.rate/here.rate, "of-rate")
						b.ReportMetric(float64(a.median)/float64(here.median), "of-p50")
					}
				})
			}
		}
	}
}

// across is what calls at one of two servers took.
type across struct {
	rate   float64 // calls a second
	median time.Duration
}

// benchedServer serves a node of several on one Redis.
func benchedServer(b *testing.B, server *redistest.Server, node string) *rig {
	b.Helper()
	quiet := slog.New(slog.DiscardHandler)
	ledger, err := redisledger.Open(redisledger.Options{URL: server.URL(), Node: node, Log: quiet})
	if err != nil {
		b.Fatal(err)
	}
	return newRigOn(b, ledger, tasks.Config{Node: node}, Config{})
}

// acrossNodes schedules tasks at their holder, and then asks for each of them once.
func acrossNodes(b *testing.B, holder, asked *rig, verb string, callers int) across {
	const size = 1000
	batch := "[" + strings.Repeat(benchTask+",", size-1) + benchTask + "]"
	var ids []any
	for len(ids) < b.N {
		ids = append(ids, holder.want(holder.do("POST", "/v1/tasks/batch", batch), 200)["ids"].([]any)...)
	}
	status := http.StatusOK
	if verb == "DELETE" {
		status = http.StatusNoContent
	}
	took := make([]time.Duration, b.N)
	var next atomic.Int64
	var all sync.WaitGroup
	b.ResetTimer()
	for range callers {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				began := time.Now()
				asked.call(b, verb, "/v1/tasks/"+ids[i].(string), "", status)
				took[i] = time.Since(began)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	slices.Sort(took)
	return across{float64(b.N) / b.Elapsed().Seconds(), took[b.N/2]}
}
