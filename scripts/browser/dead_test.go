//go:build browser

package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/tasks"
)

// Some dead tasks come back, and all others are deleted.
func TestDead(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	for i := range 3 {
		r.schedule("invoice.send", fmt.Sprintf("invoice-%d", i), 0)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead?topic=invoice.send")
	p.shows("main", "invoice-2")
	if err := r.Admin().PauseTopic(r.Context(), "invoice.send", true); err != nil { // and stays
		t.Fatal(err)
	}
	p.press("Choose invoice-1")
	p.press("Requeue 1 task")
	p.shows("dialog", "Requeue 1 chosen task?")
	p.confirms("Requeue", 1)
	p.shows(".notices", "1 task came back.")
	p.hides(`[aria-label="Dead tasks"]`, "invoice-1")
	if n := r.Stats().Total.Dead; n != 2 {
		t.Errorf("%d are dead", n)
	}
	p.press("Delete all")
	p.press("Keep")
	p.press("Delete all")
	p.shows("#counted", "2 tasks.")
	p.confirms("Delete", 2)
	p.shows("main", "No task of this topic is dead.")
	if s := r.Stats().Total; s.Dead != 0 || s.Ready != 1 {
		t.Errorf("%d are dead, and %d ready", s.Dead, s.Ready)
	}
	p.content()
}

// What is asked about stays as it is, whatever the page shows meanwhile: a task that was chosen has
// been deleted by another caller, and all others are left alone.
func TestChosenStay(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	for i := range 3 {
		r.schedule("invoice.send", fmt.Sprintf("invoice-%d", i), 0)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead?topic=invoice.send")
	p.shows(`[aria-label="Dead tasks"]`, "invoice-2")
	p.press("Choose invoice-1")
	p.press("Delete 1 task")
	p.shows("dialog", "Delete 1 chosen task?")
	if _, err := r.Admin().DeleteDead(r.Context(), "invoice.send", []string{"invoice-1"}); err != nil {
		t.Fatal(err)
	}
	p.hides(`[aria-label="Dead tasks"]`, "invoice-1")
	p.shows("dialog", "Delete 1 chosen task?")
	p.confirms("Delete", 1)
	p.shows("dialog", "0 tasks deleted, 1 not.")
	if n := r.Stats().Total.Dead; n != 2 {
		t.Errorf("%d are dead", n)
	}
	p.content()
}

// All means all of those that were dead when the user was asked: what dies meanwhile stays.
func TestDiedMeanwhile(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	r.schedule("invoice.send", "invoice-before", 0)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead?topic=invoice.send")
	p.shows(`[aria-label="Dead tasks"]`, "invoice-before")
	p.press("Delete all")
	p.shows("#counted", "1 task.")
	r.schedule("invoice.send", "invoice-after", 0)
	p.shows(`[aria-label="Dead tasks"]`, "invoice-after")
	p.confirms("Delete", 1)
	p.shows(".notices", "1 task deleted.")
	p.hides(`[aria-label="Dead tasks"]`, "invoice-before")
	p.shows(`[aria-label="Dead tasks"]`, "invoice-after")
	p.content()
}

// The reason and the error of a task whose topic was deleted are the same: it is said once. All
// dead tasks are counted, on whatever page.
func TestWhyDead(t *testing.T) {
	r := serve(t)
	for i := range 21 {
		r.schedule("invoice.send", fmt.Sprintf("invoice-%02d", i), time.Hour)
	}
	if _, err := r.Admin().KillTopic(t.Context(), "invoice.send", -1); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead?topic=invoice.send")
	p.shows("#why", "its topic was deleted")
	p.shows("#why tbody tr", "21")
	p.hides("main", "the topic was deleted")
	p.press("Next")
	p.shows("#why tbody tr", "21")
	p.content()
}

// What is dead and why, of all topics and of one. The tasks of one reason come back, all of them
// and no others.
func TestDeadByReason(t *testing.T) {
	r := serve(t)
	if err := r.Handle("invoice.send", func(_ context.Context, d *tasks.Delivery) error {
		if strings.HasPrefix(d.ID, "a") {
			return tasks.Kill(fmt.Errorf("order %s: HTTP 503", strings.TrimPrefix(d.ID, "a")))
		}
		return tasks.Kill(errors.New("no such template"))
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 25 {
		r.schedule("invoice.send", fmt.Sprint("a", i), 0)
	}
	r.schedule("invoice.send", "b", 0)
	r.breaks("mail", "refused")
	r.schedule("mail", "m", 0)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead")
	p.shows("#why", "order #: HTTP 503")
	p.shows("#why", "refused")
	p.press("no such template")
	p.shows("h1", "Dead of invoice.send")
	p.shows("#why tr.chosen", "no such template")
	p.hides(`[aria-label="Dead tasks"]`, "a0")
	p.press("order #: HTTP 503")
	p.shows("#why tr.chosen", "25")
	p.hides(`[aria-label="Dead tasks"]`, "no such template")
	if err := r.Admin().PauseTopic(r.Context(), "invoice.send", true); err != nil { // and stays
		t.Fatal(err)
	}
	p.content()
	p.press("Requeue all of these")
	p.shows("#counted", "25 tasks.")
	p.confirms("Requeue", 25)
	p.shows(".notices", "25 tasks came back.")
	p.hides("#why", "order #: HTTP 503")
	p.press("All reasons")
	p.shows(`[aria-label="Dead tasks"]`, "no such template")
	if s := r.Stats().Total; s.Dead != 2 || s.Ready != 25 {
		t.Errorf("%d are dead, and %d ready", s.Dead, s.Ready)
	}
	p.content()
}

// On a narrow screen all tasks of a page are chosen at once, too.
func TestChooseAllOnAPhone(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	for i := range 3 {
		r.schedule("invoice.send", fmt.Sprintf("invoice-%d", i), 0)
	}
	p := open(t)
	p.hurries()
	p.do("make it narrow", chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
	p.load(r.url + "/#/dead?topic=invoice.send")
	p.shows(`[aria-label="Dead tasks"]`, "invoice-2")
	if !eval[bool](p, `(box => { box.click(); return box.offsetHeight > 0; })(document.querySelector("label.all input"))`) {
		t.Error("the box that chooses all is not to be seen")
	}
	// It comes from below the bar of views.
	eval[int](p, `document.querySelector("label.all input").scrollIntoView(); 0`)
	p.press("Delete 3 tasks")
	p.confirms("Delete", 3)
	p.shows("main", "No task of this topic is dead.")
	p.content()
}

// The dead of a group come back, and those of another one stay.
func TestRequeueGroup(t *testing.T) {
	r := serve(t)
	r.breaks("newsletter", "no such template")
	for i := range 4 {
		if _, err := r.Schedule(t.Context(), tasks.Request{ID: fmt.Sprint("news-", i), Topic: "newsletter", Group: fmt.Sprint("campaign-", i%2)}); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead?topic=newsletter")
	p.shows("#why tbody tr", "4")
	p.fill(`main [name="group"]`, "campaign-1")
	p.press("Find")
	p.hides(`[aria-label="Dead tasks"]`, "news-0")
	if err := r.Admin().PauseTopic(r.Context(), "newsletter", true); err != nil { // and stays
		t.Fatal(err)
	}
	p.press("Requeue all of these")
	p.shows("#counted", "2 tasks.")
	p.confirms("Requeue", 2)
	p.shows(".notices", "2 tasks came back.")
	if s := r.Stats().Total; s.Dead != 2 || s.Ready != 2 {
		t.Errorf("%d are dead, and %d ready", s.Dead, s.Ready)
	}
	p.content()
}

// Dead tasks of all topics come back slowly. The others of a topic whose first ten fail again stay,
// and the page says why.
func TestRequeueSlowly(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	var mended atomic.Bool
	if _, err := r.Admin().ChangeTopic(t.Context(), "order.unpaid", -1, func(set *tasks.TopicSettings) error {
		set.Retry.MaxAttempts = 1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.Handle("order.unpaid", func(context.Context, *tasks.Delivery) error {
		if mended.Load() {
			return nil
		}
		return errors.New("refused")
	}); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		r.schedule("invoice.send", fmt.Sprint("invoice-", i), 0)
		r.schedule("order.unpaid", fmt.Sprint("order-", i), 0)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/dead")
	p.shows("#count", "24 dead of all topics.")
	mended.Store(true)
	p.press("Requeue slowly")
	p.shows("#counted", "24 tasks.")
	p.confirms("Requeue", 24)
	p.shows("dialog", "22 tasks came back.")
	p.shows("dialog li", "Stopped: invoice.send: the first 10 failed again: no such template")
	p.press("Close")
	p.shows("#count", "12 dead of all topics.")
	if s := r.Stats().Total; s.Dead != 12 || s.Delivered != 12 {
		t.Errorf("%d are dead, and %d were delivered", s.Dead, s.Delivered)
	}
	p.content()
}

// Requeue yesterday's dead: those of today stay.
func TestRequeueByTime(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	r.schedule("invoice.send", "invoice-now", 0)
	p, _ := openAtNoon(t)
	p.hurries()
	p.load(r.url + "/#/dead?topic=invoice.send")
	p.shows("main", "invoice-now")
	p.pick(`main [name="died"]`, "yesterday")
	p.shows("main", "No dead task is as the filter says.")
	p.pick(`main [name="died"]`, "hour")
	p.shows("main", "invoice-now")
	if err := r.Admin().PauseTopic(r.Context(), "invoice.send", true); err != nil { // and stays
		t.Fatal(err)
	}
	p.press("Requeue all of these")
	p.shows("#counted", "1 task.")
	p.confirms("Requeue", 1)
	p.shows(".notices", "1 task came back.")
	if s := r.Stats().Total; s.Dead != 0 || s.Ready != 1 {
		t.Errorf("%d are dead, and %d ready", s.Dead, s.Ready)
	}
	p.content()
}

// Move a campaign by a day: more tasks than a call takes.
func TestMoveGroup(t *testing.T) {
	r := serve(t)
	due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	for i := range 700 {
		if _, err := r.Schedule(t.Context(), tasks.Request{ID: fmt.Sprint("news-", i), Topic: "newsletter", Group: "autumn", Due: due}); err != nil {
			t.Fatal(err)
		}
	}
	r.schedule("newsletter", "other", time.Hour)
	p := open(t)
	p.load(r.url + "/#/tasks")
	p.fill(`main [name="group"]`, "autumn")
	p.press("Find")
	p.press("Move all of these")
	p.shows("#counted", "700 tasks.")
	p.confirms("Move", 700)
	p.shows(".notices", "700 tasks moved.")
	for _, id := range []string{"news-0", "news-699"} {
		task, err := r.Get(t.Context(), id)
		if err != nil || !task.Due.Equal(due.Add(24*time.Hour)) {
			t.Errorf("%s is due %v, %v", id, task.Due, err)
		}
	}
	if task, err := r.Get(t.Context(), "other"); err != nil || task.Due.After(due.Add(time.Hour)) {
		t.Errorf("another task is due %v, %v", task.Due, err)
	}
	p.content()
}

// The payload of a dead task is mended, and the task sent again in the same step. What is no JSON
// is not sent.
func TestMend(t *testing.T) {
	r := serve(t)
	if err := r.Handle("invoice.send", func(_ context.Context, d *tasks.Delivery) error {
		if strings.Contains(string(d.Payload), "wrong") {
			return tasks.Kill(errors.New("no such template"))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "invoice-1", Topic: "invoice.send", Payload: []byte(`{"template":"wrong"}`)}); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/tasks/invoice-1")
	p.shows("main", "no such template")
	if err := r.Admin().PauseTopic(r.Context(), "invoice.send", true); err != nil {
		t.Fatal(err)
	}
	p.press("Mend and send again")
	p.fill(`dialog [name="payload"]`, `{"template":`)
	p.shows("dialog", "Must be JSON")
	p.fill(`dialog [name="payload"]`, `{"template":"right","order":12345678901234567891}`)
	p.press("Send it")
	p.shows(".notices", "The task is back.")
	p.shows("main pre", "right")
	got, err := r.Get(t.Context(), "invoice-1")
	if err != nil || string(got.Payload) != `{"template":"right","order":12345678901234567891}` || got.State == tasks.Dead {
		t.Errorf("%s, %v, %v", got.Payload, got.State, err)
	}
	p.content()
}
