package store

import (
	"fmt"
	"testing"

	"github.com/lapsehq/lapse/tasks/internal/record"
)

// BenchmarkGroupedMemory tells what the group of a task costs, in bytes a task, in groups
// of one, of three, and of all.
func BenchmarkGroupedMemory(b *testing.B) {
	const n = 1_000_000
	for name, members := range map[string]int{"of1": 1, "of3": 3, "of1000000": n} {
		b.Run(name, func(b *testing.B) {
			for range b.N {
				book := New()
				var links, firsts int
				for i := range n {
					f := record.Fields{Topic: []byte("x"), Group: fmt.Append(nil, "g", i/members)}
					_, sl := book.Enter(fmt.Append(nil, "t", i), f.Append(nil))
					links += len(book.arena.links(sl.rec))
				}
				for i := range book.groups.tables {
					firsts += 8 * cap(book.groups.tables[i].firsts)
				}
				b.ReportMetric(float64(links+firsts)/n, "B/task")
			}
		})
	}
}
