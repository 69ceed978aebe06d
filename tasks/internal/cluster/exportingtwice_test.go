package cluster_test

import (
	"fmt"
	"testing"
	"time"

	. "github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// A task that has died while it was exported stands twice. It is imported as it stands first.
func TestImportOfTaskThatStandsTwice(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		now := time.Now()
		pending := Exported{Task: Task{ID: "a", Topic: "x", State: Pending, Due: now.Add(time.Hour), Next: now.Add(time.Hour), Created: now, Revision: 1}}
		dead := pending
		dead.State, dead.Died = Dead, now
		for _, before := range []bool{false, true} {
			results, err := r.Admin().Import(t.Context(), []Exported{pending, dead})
			rig.Want(t, "Import", err, nil)
			for i, a := range results {
				if a.Err != nil || a.Repeated != (before || i > 0) || a.ID != "a" {
					t.Errorf("line %d: %+v", i, a)
				}
			}
		}
		_, after := exportAll(t, r, ExportQuery{}, nil)
		if got := byID(after)["a"]; got.State != Pending {
			t.Errorf("it is %v", got.State)
		}
	})
}

// An export through a restart begins anew where the tasks begin, and has each task once from there.
func TestExportThroughARestart(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		r.MustSetTopic("x", TopicSettings{KeepFinished: time.Hour})
		for i := range 50 {
			r.Must(Request{ID: fmt.Sprint("task-", i), Topic: "x", Delay: time.Hour})
		}
		r.Finish("done", "x")
		restarted := false
		topics, all := exportAll(t, r, ExportQuery{}, func(pages int) exporter {
			if pages == 2 {
				r.Restart()
				restarted = true
			}
			return r
		})
		if len(topics) != 1 || len(all) != 51 || len(byID(all)) != 51 || !restarted {
			t.Errorf("%d topics, %d tasks, %d of them different", len(topics), len(all), len(byID(all)))
		}
	})
}

// However large the tasks are that are requeued while an export runs, its pages are bounded.
func TestExportOfLargeRequeued(t *testing.T) {
	rig.Bubble(t, Config{}, func(t *testing.T, r *rig.Rig) {
		const dead = 300
		all := make([]Exported, dead)
		now := time.Now()
		for i := range all {
			all[i] = Exported{Task: Task{ID: fmt.Sprint("task-", i), Topic: "x", State: Dead, Due: now, Died: now, Created: now, Revision: 1, Payload: make([]byte, 60_000)}}
		}
		_, err := r.Admin().Import(t.Context(), all)
		rig.Want(t, "Import", err, nil)
		q := ExportQuery{}
		found := map[string]bool{}
		for pages := 1; ; pages++ {
			page, err := r.Admin().Export(t.Context(), q)
			rig.Want(t, "Export", err, nil)
			bytes := 0
			for i := range page.Tasks {
				found[page.Tasks[i].ID] = true
				bytes += len(page.Tasks[i].Payload)
			}
			if bytes > 2*MaxPageBytes {
				t.Errorf("page %d has %d MiB", pages, bytes>>20)
			}
			if q.Cursor = page.Cursor; q.Cursor == "" {
				break
			}
			if pages == 2 {
				n, err := rig.Requeued(r.Admin().Requeue(t.Context(), "x", Requeue{}))
				rig.Want(t, "Requeue", err, nil)
				if n != dead {
					t.Errorf("%d are requeued", n)
				}
				rig.Pass(time.Second)
			}
		}
		if len(found) != dead {
			t.Errorf("the export has %d of %d tasks", len(found), dead)
		}
	})
}

// While nothing happens an export has each task once, and its pages are bounded: also if many large
// tasks stand in one list of the Order, and a page has to end in the middle of it.
func TestExportGivesEachTaskOnce(t *testing.T) {
	const size, each = 600_000, 12
	rig.Bubble(t, Config{MaxPayload: size}, func(t *testing.T, r *rig.Rig) {
		payload := make([]byte, size)
		var dead []Exported
		for i, found := 0, 0; found < each; i++ {
			if id := fmt.Sprint("alike-", i); store.ListOf(store.PlaceOf([]byte(id))) == 7 {
				r.Must(Request{ID: id, Topic: "x", Delay: time.Hour, Payload: payload})
				found++
			}
		}
		for i := range each {
			r.Must(Request{ID: fmt.Sprint("pending-", i), Topic: "x", Delay: time.Hour, Payload: payload})
			now := time.Now()
			dead = append(dead, Exported{Task: Task{ID: fmt.Sprint("dead-", i), Topic: "x", State: Dead, Due: now, Died: now, Created: now, Revision: 1, Payload: payload}})
		}
		_, err := r.Admin().Import(t.Context(), dead)
		rig.Want(t, "Import", err, nil)
		seen := map[string]int{}
		for q, pages := (ExportQuery{}), 1; ; pages++ {
			page, err := r.Admin().Export(t.Context(), q)
			rig.Want(t, "Export", err, nil)
			for i := range page.Tasks {
				seen[page.Tasks[i].ID]++
			}
			if n := len(page.Tasks) * size; n > MaxPageBytes+size {
				t.Errorf("page %d has %d bytes", pages, n)
			}
			if q.Cursor = page.Cursor; q.Cursor == "" {
				break
			}
			if pages > 3*each {
				t.Fatal("it does not end")
			}
		}
		for id, n := range seen {
			if n != 1 {
				t.Errorf("%s stands in it %d times", id, n)
			}
		}
		if len(seen) != 3*each {
			t.Errorf("it has %d of %d tasks", len(seen), 3*each)
		}
	})
}
