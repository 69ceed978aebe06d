//go:build browser

package browser

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A topic's page sets what follows tasks that die, and how many of a group go at once. The story of
// a follow-up begins with the dead task.
func TestTargetsDeathsGroups(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-41", time.Hour) // settings would reach the page's node later
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	p.shows("main", "is followed by nothing")
	p.press("Edit settings")
	p.fill(`[name="on_dead.topic"]`, "by-hand")
	p.fill(`[name="concurrency_per_group"]`, "2")
	p.press("Save")
	p.shows(".notices", "The settings are saved.")
	p.shows("main", "is followed by a task of by-hand")
	p.shows("main", "2 at once on each node")
	p.content()

	// Other nodes of a fleet know the settings within a second.
	r.schedule("order.unpaid", "order-42", 3*time.Second)
	ds, err := r.Reserve(r.Context(), "order.unpaid", 1, tasks.MaxWait, 0)
	if err != nil || len(ds) != 1 {
		t.Fatal(len(ds), err)
	}
	if _, err := r.Settle(r.Context(), tasks.Verdict{Verb: tasks.Bury, Reason: "no such order"}, []string{ds[0].Receipt()}); err != nil {
		t.Fatal(err)
	}
	next, err := r.Reserve(r.Context(), "by-hand", 1, tasks.MaxWait, 0)
	if err != nil || len(next) != 1 {
		t.Fatal(len(next), err)
	}
	p.load(r.url + "/#/tasks/" + next[0].ID)
	p.shows(".story", "Follows order-42 of order.unpaid, which has died")
	p.shows(".story", "no such order")
	p.content()
}
