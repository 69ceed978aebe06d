package ledgertest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/recovery"
)

// testGetDead reads dead records by id, whatever their label.
func testGetDead(f *fixture) {
	hits := 0
	count := func(int, recovery.Entry) { hits++ }
	if err := f.ledger.GetDead(f.ctx(), []string{"absent"}, count); err != nil || hits != 0 {
		f.Fatalf("GetDead in an empty ledger: %d found, %v", hits, err)
	}
	f.fill(20)
	f.put("dead-3", pending(noon), "requeued")
	f.remove("dead-4")
	err := f.ledger.GetDead(f.ctx(), []string{"dead-2", "task-1", "dead-3", "absent", "dead-4", "dead-5"},
		func(i int, e recovery.Entry) {
			hits++
			id := map[int]string{0: "dead-2", 5: "dead-5"}[i]
			if got := (record{e.Spot, string(e.Data)}); string(e.ID) != id || got != f.model[id] {
				f.Errorf("GetDead: position %d is %s at %+v", i, e.ID, e.Spot)
			}
		})
	if err != nil || hits != 2 {
		f.Errorf("GetDead found %d records, want 2: %v", hits, err)
	}
}

// listing returns the ids under a label, from after on, up to limit.
func (f *fixture) listing(label string, after recovery.Ref, limit int) []string {
	f.Helper()
	var ids []string
	f.listDead(f.ledger, label, after, func(e recovery.Entry) bool {
		ids = append(ids, string(e.ID))
		return len(ids) < limit
	})
	return ids
}

// testListDead: labels that begin alike do not mix, and the longest dead comes
// first.
func testListDead(f *fixture) {
	all := recovery.Ref{}
	for i, label := range []string{"order", "order.paid", "order.unpaid", "orders", "a", "z"} {
		f.put(fmt.Sprint("late-", i), dead(label, noon+100), label)
		f.put(fmt.Sprint("early-", i), dead(label, noon), label)
		f.put(fmt.Sprint("also-early-", i), dead(label, noon), label)
	}
	if got, want := f.listing("order", all, 10), []string{"also-early-0", "early-0", "late-0"}; !slices.Equal(got, want) {
		f.Errorf("ListDead(order) = %v, want %v", got, want)
	}
	if got := f.listing("orde", all, 10); len(got) != 0 {
		f.Errorf("ListDead(orde) = %v, want none", got)
	}
	var labels []string
	f.listDead(f.ledger, "", all, func(e recovery.Entry) bool {
		if n := len(labels); n == 0 || labels[n-1] != e.Spot.Label {
			labels = append(labels, e.Spot.Label)
		}
		return true
	})
	if want := "a order order.paid order.unpaid orders z"; strings.Join(labels, " ") != want {
		f.Errorf("ListDead of all goes through the labels %v, want %s", labels, want)
	}
	if got, want := f.listing("order", recovery.Ref{Next: noon}, 10), []string{"also-early-0", "early-0", "late-0"}; !slices.Equal(got, want) {
		f.Errorf("ListDead(order) from noon on = %v, want %v", got, want)
	}
	if got, want := f.listing("order", recovery.Ref{Next: noon + 1}, 10), []string{"late-0"}; !slices.Equal(got, want) {
		f.Errorf("ListDead(order) after noon = %v, want %v", got, want)
	}
	if got := f.listing("", all, 4); len(got) != 4 {
		f.Errorf("ListDead goes on after visit said no: %v", got)
	}
	if err := f.ledger.ListDead(f.ctx(), "", recovery.Ref{ID: "late-0", Next: noon}, func(recovery.Entry) bool { return true }); err == nil {
		f.Error("ListDead of all labels accepts a place to go on from")
	}
}

// testListDeadPages walks a label page by page while its records go.
func testListDeadPages(f *fixture) {
	var want []string
	var changes []recovery.Change
	for i := range 700 {
		id := fmt.Sprintf("dead-%03d", i)
		want = append(want, id)
		changes = append(changes, f.change(id, dead("topic", noon+int64(i/10)), id))
	}
	f.apply(changes...)
	var got []string
	after := recovery.Ref{}
	for {
		page := f.listing("topic", after, 33)
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
		last := page[len(page)-1]
		after = recovery.Ref{ID: last, Next: f.model[last].spot.At}
		f.remove(last) // the place to go on from may be gone
	}
	if !slices.Equal(got, want) {
		f.Errorf("page by page, ListDead gives %d records, want %d in order", len(got), len(want))
	}
}
