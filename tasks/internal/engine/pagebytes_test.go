package engine_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// What one list or one Reserve answers is bounded in bytes as well, and nothing is left out:
// the rest comes with the next one.
func TestPagesAreBoundedInBytes(t *testing.T) {
	const number, size = 160, 60 << 10
	full := tasks.MaxPageBytes/size + 1 // tasks of a page
	rig.Bubble(t, tasks.Config{}, func(t *testing.T, r *rig.Rig) {
		var ids []string
		payload := []byte(`"` + string(bytes.Repeat([]byte("p"), size)) + `"`)
		for i := range number {
			id := fmt.Sprintf("t%03d", i)
			ids = append(ids, id)
			r.Must(tasks.Request{ID: id, Topic: "x", Group: "g", Delay: time.Second, Payload: payload})
		}
		listed := func(what string, q tasks.Query) {
			t.Helper()
			var got []string
			for q.Limit = 1000; ; {
				page, err := r.List(t.Context(), q)
				rig.Want(t, what, err, nil)
				if n := len(page.Tasks); n > full {
					t.Fatalf("%s: a page of %d tasks of %d bytes", what, n, size)
				}
				got = append(got, rig.IDsOf(page.Tasks)...)
				if q.Cursor = page.Cursor; q.Cursor == "" {
					break
				}
			}
			if !slices.Equal(got, ids) {
				t.Errorf("%s: %d listed, want %d in their order", what, len(got), len(ids))
			}
		}
		listed("of all", tasks.Query{})
		listed("of a group", tasks.Query{Group: "g"})

		rig.Pass(2 * time.Second)
		var got, receipts []string
		for len(got) <= len(ids) {
			ds, err := r.Reserve(t.Context(), "x", tasks.MaxReserve, 0, 0)
			rig.Want(t, "Reserve", err, nil)
			if len(ds) == 0 {
				break
			}
			if len(ds) > full {
				t.Fatalf("%d tasks of %d bytes were reserved at once", len(ds), size)
			}
			for i := range ds {
				got, receipts = append(got, ds[i].ID), append(receipts, ds[i].Receipt())
			}
		}
		if !slices.Equal(got, ids) {
			t.Errorf("%d reserved, want %d in their order", len(got), len(ids))
		}
		_, err := r.Settle(t.Context(), tasks.Verdict{Verb: tasks.Bury}, receipts)
		rig.Want(t, "Settle", err, nil)
		listed("of the dead", tasks.Query{Topic: "x", State: tasks.Dead})
	})
}
