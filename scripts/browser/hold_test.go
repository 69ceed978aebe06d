//go:build browser

package browser

import (
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A task is held and resumed on its page.
func TestHold(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/tasks/order-42")
	p.press("Hold")
	p.pressIn("dialog", "Hold")
	p.shows(".notices", "The task is held.")
	p.shows(".story", "Held, with 59m")
	p.shows(".story", "Waits until it is resumed")
	p.content()
	held, err := r.Get(r.Context(), "order-42")
	if err != nil || held.State != tasks.Held {
		t.Errorf("it is %v, %v", held.State, err)
	}
	p.press("Resume")
	p.pressIn("dialog", "Resume")
	p.shows(".notices", "The countdown goes on.")
	p.shows(".story", "Attempt 1 begins")
	if got, err := r.Get(r.Context(), "order-42"); err != nil || got.State != tasks.Pending || !got.Due.After(held.Due) {
		t.Errorf("it is %v, due %v after %v, %v", got.State, got.Due, held.Due, err)
	}
}

// All tasks that a filter selects are held, found by their state, and resumed.
func TestHoldMany(t *testing.T) {
	r := serve(t)
	for _, id := range []string{"order-1", "order-2", "order-3"} {
		r.schedule("order.unpaid", id, time.Hour)
	}
	r.schedule("coupon", "coupon-1", time.Hour)
	p := open(t)
	p.load(r.url + "/#/tasks?topic=order.unpaid")
	p.press("Hold all of these")
	p.shows("dialog", "3 tasks.")
	p.confirms("Hold", 3)
	p.shows(".notices", "3 tasks held.")
	p.shows("main table", " left")
	if n := r.Stats().Total.Held; n != 3 {
		t.Errorf("%d are held", n)
	}
	p.load(r.url)
	p.shows(`[data-figure="pending"]`, "3 held")
	p.load(r.url + "/#/tasks?state=held")
	p.shows("main table", "order-3")
	p.hides("main table", "coupon-1")
	p.content()
	p.press("Resume all of these")
	p.shows("dialog", "3 tasks.")
	p.confirms("Resume", 3)
	p.shows("main", "No task is as the filter says.")
	if n := r.Stats().Total; n.Held != 0 || n.Pending != 4 {
		t.Errorf("%d of %d are held", n.Held, n.Pending)
	}
}
