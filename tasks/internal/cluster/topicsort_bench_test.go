package cluster_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// BenchmarkWorstTopics measures a page of 20 topics of a fleet of 2 nodes that have so many, the
// worst first. Each page is gathered anew.
func BenchmarkWorstTopics(b *testing.B) {
	for _, topics := range []int{2000, 10_000, 50_000} {
		b.Run(fmt.Sprint(topics), func(b *testing.B) {
			f := rig.NewFleet(b, 2)
			all := make([]Request, MaxBatch)
			for _, n := range f.Nodes {
				for from := 0; from < topics; from += len(all) {
					all = all[:min(len(all), topics-from)]
					for i := range all {
						all[i] = Request{Topic: fmt.Sprintf("t%06d", from+i), Delay: 24 * time.Hour}
					}
					if _, err := n.ScheduleBatch(b.Context(), all); err != nil {
						b.Fatal(err)
					}
				}
			}
			for i := 0; b.Loop(); i++ {
				page, reach, err := f.Nodes[0].Admin().FleetTopics(b.Context(), TopicQuery{Sort: SortWorst, Limit: 20, Search: fmt.Sprintf("%.*s", i%2, "t")})
				if err != nil || len(page.Topics) != 20 || page.Matched != topics || len(reach.Nodes) != 2 {
					b.Fatal(page.Matched, reach, err)
				}
				b.StopTimer()
				for f.Nodes[0].Cluster().Gathered() > 0 {
					time.Sleep(10 * time.Millisecond)
				}
				b.StartTimer()
			}
		})
	}
}
