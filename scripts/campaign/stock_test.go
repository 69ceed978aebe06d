package campaign

import (
	"bytes"
	"fmt"
	"net/http"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A stock of tasks that are due in hours makes it take its time to read what a node has handed
// over, or has left. None of them is lost.

// fillStock schedules the stock at all nodes.
func (f *fleet) fillStock(tasks int) {
	const batch = 5000
	due := rig.Wire(f.started.Add(10 * time.Hour))
	for i := 0; i < tasks; i += batch {
		var body bytes.Buffer
		for n := i; n < min(tasks, i+batch); n++ {
			fmt.Fprintf(&body, `{"topic":"stock","id":"far-%d","due_at":%q,"payload":%q}`+"\n", n, due, bytes.Repeat([]byte("p"), 100))
		}
		if !rig.Within(20*time.Millisecond, startWithin, func() bool {
			var made struct{ Accepted int }
			a := f.post(f.nodes[i/batch%len(f.nodes)].latest(), "/v1/tasks/batch", "application/x-ndjson", body.Bytes())
			if a.outcome == crash.Done {
				f.decode(a, &made)
			}
			return made.Accepted == min(tasks, i+batch)-i
		}) {
			f.t.Fatal("the stock cannot be scheduled")
		}
	}
	f.stock = tasks
}

// judgeStock looks for the whole stock in an export.
func (f *fleet) judgeStock() {
	there := map[string]bool{}
	whole, after := f.stock == 0, ""
	read := rig.Within(20*time.Millisecond, startWithin, func() bool {
		for !whole {
			a := f.ask(f.nodes[0].latest(), http.MethodGet, "/v1/export?topic=stock"+after, nil)
			if a.outcome != crash.Done {
				return false
			}
			for line := range linesOf(a.body) {
				var l struct{ Type, ID, Cursor string }
				if err := json.Unmarshal(line, &l); err != nil {
					f.wrong("strange answer", "a line of an export: %v: %.200s", err, line)
					return false
				}
				there[l.ID] = true
				after, whole = "&cursor="+l.Cursor, l.Type == "end"
			}
		}
		return true
	})
	if !read {
		f.wrong("no export", "the stock cannot be read")
		return
	}
	missing := 0
	for n := range f.stock {
		if !there[fmt.Sprintf("far-%d", n)] {
			missing++
		}
	}
	if missing > 0 {
		f.broke("schedule", crash.Span{Start: f.started, End: f.started.Add(time.Second)}, "%d of %d tasks that are due in hours are lost", missing, f.stock)
	}
}
