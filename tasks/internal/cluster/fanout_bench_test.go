package cluster_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// BenchmarkAllNodes asks one node about many tasks: a page of 100 of 10,000 tasks at each
// node, and a group of ten tasks, spread over the nodes, that is cancelled.
func BenchmarkAllNodes(b *testing.B) {
	for _, ledger := range []string{"memory", "redis"} {
		for _, n := range []int{1, 3} {
			b.Run(fmt.Sprintf("%s/%dNodes", ledger, n), func(b *testing.B) {
				nodes := benchedNodes(b, benchedFleets[ledger], n)
				for _, s := range nodes {
					requests := make([]tasks.Request, tasks.MaxBatch)
					for i := range requests {
						requests[i] = tasks.Request{Topic: "x", Delay: time.Hour + time.Duration(i)*time.Millisecond, Payload: make([]byte, 200)}
					}
					if _, err := s.ScheduleBatch(b.Context(), requests); err != nil {
						b.Fatal(err)
					}
				}
				b.Run("List", func(b *testing.B) {
					for b.Loop() {
						if page, err := nodes[0].List(b.Context(), tasks.Query{}); err != nil || len(page.Tasks) != 100 {
							b.Fatal(len(page.Tasks), err)
						}
					}
				})
				b.Run("CancelGroup", func(b *testing.B) {
					for b.Loop() {
						b.StopTimer()
						for i := range 10 {
							if _, err := nodes[i%n].Schedule(b.Context(), tasks.Request{Topic: "x", Group: "g", Delay: time.Hour}); err != nil {
								b.Fatal(err)
							}
						}
						b.StartTimer()
						if got, err := nodes[0].CancelGroup(b.Context(), "g"); err != nil || got.Cancelled != 10 {
							b.Fatal(got, err)
						}
					}
				})
			})
		}
	}
}
