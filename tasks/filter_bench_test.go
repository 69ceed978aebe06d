package tasks_test

import (
	"context"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkFilter measures a page of a million tasks, and how long it takes to find one of them, by
// all pages.
func BenchmarkFilter(b *testing.B) {
	const number = 1_000_000
	s := open(b, ledgertest.Null{}, tasks.Config{})
	defer s.Close(context.Background())
	far := time.Now().Add(1000 * time.Hour).Truncate(time.Millisecond)
	ids := fill(b, s, number, "filter", func(i int) time.Time { return far.Add(time.Duration(i) * time.Millisecond) })
	last := far.Add((number - 1000) * time.Millisecond)
	for _, c := range []struct {
		name string
		q    tasks.Query
	}{
		{"none", tasks.Query{}},
		{"window", tasks.Query{DueFrom: last}},
		{"prefix", tasks.Query{IDPrefix: ids[number-500]}},
		{"prefix+window", tasks.Query{IDPrefix: ids[number-500], DueFrom: last}},
		{"error", tasks.Query{Error: "timeout"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			pages, longest := 0, time.Duration(0)
			for b.Loop() {
				for q := c.q; ; {
					began := time.Now()
					page, err := s.List(b.Context(), q)
					if err != nil {
						b.Fatal(err)
					}
					longest = max(longest, time.Since(began))
					pages++
					if q.Cursor = page.Cursor; q.Cursor == "" || c.q == (tasks.Query{}) {
						break
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(pages)/1e3, "ms/page")
			b.ReportMetric(float64(longest.Microseconds())/1e3, "ms/slowest-page")
			b.ReportMetric(float64(pages)/float64(b.N), "pages")
		})
	}
}
