//go:build browser

package browser

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/tasks"
)

// A task shows its payload as it was written, and its absence.
func TestTaskAsItIs(t *testing.T) {
	r := serve(t)
	p := open(t)
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "large", Topic: "x", Delay: time.Hour, Payload: []byte(`{"order":12345678901234567891}`)}); err != nil {
		t.Fatal(err)
	}
	p.load(r.url + "/#/tasks/large")
	p.shows("main pre", "12345678901234567891")
	p.load(r.url + "/#/tasks/order-43")
	p.shows("main", "No node has a task with this id")
}

// What falls due in the next ten minutes: one click from the overview.
func TestWhatFallsDue(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-soon", 5*time.Minute)
	r.schedule("order.unpaid", "order-later", 15*time.Minute)
	p := open(t)
	p.load(r.url)
	p.shows(`[data-figure="soon"] dd`, "1")
	p.do("follow the figure", chromedp.Click(chromedp.CSS(`[data-figure="soon"] a`)))
	p.shows("main", "order-soon")
	p.hides("main", "order-later")
	p.content()
}

// The filters select, and stand in the address.
func TestFilters(t *testing.T) {
	r := serve(t)
	for i := range 25 {
		r.schedule("order.unpaid", fmt.Sprintf("order-%02d", i), time.Duration(i+1)*time.Minute)
	}
	r.schedule("coupon", "coupon-1", time.Second)
	p := open(t)
	p.load(r.url + "/#/tasks")
	p.shows("main", "coupon-1")
	p.fill(`[name="topic"]`, "order.unpaid")
	p.press("Find")
	p.hides("main table", "coupon-1")
	p.press("Next")
	p.shows("main table", "order-24")
	if at := eval[string](p, "location.hash"); !strings.HasPrefix(at, "#/tasks?topic=order.unpaid&at=") || !strings.HasSuffix(at, "&page=2") {
		t.Errorf("the address is %s", at)
	}
	p.fill(`main [name="find"]`, "order-unknown") // which is no complaint in the console
	p.press("Find")
	p.shows("main", "No task is as the filter says.")
	p.fill(`main [name="find"]`, "order-07")
	p.press("Find")
	p.hides("main table", "order-24")
	p.shows("main table", "order-07")
	p.content()
}

// A task is moved, fired and cancelled.
func TestActions(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	before, err := r.Get(r.Context(), "order-42")
	if err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.load(r.url + "/#/tasks/order-42")
	p.press("Move")
	p.press("1 day later")
	p.pressIn("dialog", "Move")
	p.shows(".notices", "new deadline")
	after, err := r.Get(r.Context(), "order-42")
	if by := after.Due.Sub(before.Due); err != nil || by < 24*time.Hour-time.Second || by > 24*time.Hour+time.Second {
		t.Errorf("it was moved by %v, %v", by, err)
	}
	p.press("Fire now")
	p.pressIn("dialog", "Fire now")
	p.shows("main", "Ready: waits for its receiver")
	p.press("Cancel")
	p.press("Keep")
	p.press("Cancel")
	p.pressIn("dialog", "Cancel the task")
	p.shows("main", "The task is finished, or was cancelled, meanwhile.")
	if _, err := r.Get(r.Context(), "order-42"); err == nil {
		t.Error("the task is still there")
	}
}

// What happened to a task: each of its attempts, when, by which receiver and with which error.
func TestStory(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	r.schedule("invoice.send", "invoice-7", 0)
	p := open(t)
	p.load(r.url + "/#/tasks/invoice-7")
	p.shows(".story", "Attempt 1 failed")
	p.shows(".story", "no such template")
	task, err := r.Get(t.Context(), "invoice-7")
	if err != nil || len(task.Attempts) != 1 {
		t.Fatal(task, err)
	}
	p.shows(".story", "by "+task.Attempts[0].By)
	p.shows(".story", "Died: its attempts were used up")
	p.content()
}

// A topic's page sets for how long finished tasks are kept. The page of such a task says what has
// become of it, and offers nothing to do.
func TestFinished(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	p.shows("main", "not kept")
	p.press("Edit settings")
	p.fill(`[name="keep_finished"]`, "1d")
	p.press("Save")
	p.shows(".notices", "The settings are saved.")
	p.shows("main", "kept for 1d")
	p.waits(func() (bool, string) { // until the node of the task has heard of it
		topic, err := r.Topic("order.unpaid")
		return err == nil && topic.Settings.KeepFinished > 0, fmt.Sprintf("the topic is %+v, %v", topic.Settings, err)
	})
	p.load(r.url + "/#/tasks/order-42")
	p.press("Cancel")
	p.pressIn("dialog", "Cancel the task")
	p.shows(".notices", "The task is cancelled.")
	p.shows(".story", "Cancelled by a caller")
	p.hides("main", "Fire now")
	p.load(r.url + "/#/topics/order.unpaid")
	p.press("1 now")
	p.shows("main table", "order-42")
	p.shows("main table", "cancelled")
	p.hides("main", "all of these")
	p.load(r.url + "/#/tasks?state=finished")
	p.shows("main", "Finished tasks are listed of one topic: name it.")
	p.fill(`main [name="topic"]`, "order.unpaid")
	p.press("Find")
	p.shows("main table", "order-42")
	p.fill(`main [name="group"]`, "autumn")
	p.press("Find")
	p.shows("main", "No task is as the filter says.")
	p.content()
}

// A task that has changed since it was read is not changed blindly.
func TestChangedMeanwhile(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/tasks/order-42")
	p.press("Cancel")
	if _, err := r.Reschedule(r.Context(), "order-42", tasks.Move{Delay: new(2 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	p.pressIn("dialog", "Cancel the task")
	p.shows("dialog", "The task has changed meanwhile.")
	if _, err := r.Get(r.Context(), "order-42"); err != nil {
		t.Error(err)
	}
}

// A task that is not dead any more does not come back: the page says so, and not that it did.
func TestRequeuedMeanwhile(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template")
	r.schedule("invoice.send", "invoice-7", 0)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/tasks/invoice-7")
	p.press("Requeue")
	p.shows("dialog", "Requeue the task?")
	if _, err := r.Admin().DeleteDead(r.Context(), "invoice.send", []string{"invoice-7"}); err != nil {
		t.Fatal(err)
	}
	p.shows("main", "The task is finished, or was cancelled, meanwhile.")
	p.pressIn("dialog", "Requeue")
	p.shows("dialog", "The task is not dead any more")
}

// What is done with all tasks is done with those on the screen: while the form says something else,
// nothing is. The question names how many there are, and by what they were selected.
func TestOnlyWhatIsShown(t *testing.T) {
	r := serve(t)
	for i := range 30 {
		if _, err := r.Schedule(t.Context(), tasks.Request{ID: fmt.Sprintf("proof-%02d", i), Topic: "proof", Group: fmt.Sprint("g", 1+i%3/2), Delay: time.Hour}); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t)
	p.load(r.url + "/#/tasks?topic=proof")
	p.shows("main", "Cancel all of these")
	p.fill(`main [name="group"]`, "g2")
	p.shows(".bulk", "press Find to see what it selects")
	p.hides("main", "all of these")
	p.press("Choose proof-00") // and what is chosen one by one needs no filter
	p.shows("main", "Cancel 1 task")
	p.press("Choose proof-00")
	p.press("Find")
	p.hides("main table", "proof-00")
	p.press("Cancel all of these")
	p.shows("dialog h2", "Cancel 10 tasks of proof in group g2?")
	p.press("Keep")
	p.press("Cancel all of these")
	p.confirms("Cancel", 10)
	p.shows(".notices", "10 tasks cancelled.")
	if n := r.Stats().Total.Pending; n != 20 {
		t.Errorf("%d are left", n)
	}
	p.content()
}

// More than a thousand tasks are changed only by a user who has typed their number.
func TestTypedNumber(t *testing.T) {
	r := serve(t)
	for i := range 1001 {
		r.schedule("proof", fmt.Sprint("proof-", i), time.Hour)
	}
	p := open(t)
	p.load(r.url + "/#/tasks?topic=proof")
	p.press("Cancel all of these")
	p.shows("dialog", "To go on, type how many tasks: 1,001")
	const submit = `document.querySelector("dialog [type=submit]")`
	if !eval[bool](p, submit+".disabled") {
		t.Error("the button is on before the number is typed")
	}
	p.fill("#field-typed", "100")
	if !eval[bool](p, submit+".disabled") {
		t.Error("the button is on with another number")
	}
	p.fill("#field-typed", "1,001")
	p.content()
	p.submits()
	p.shows(".notices", "1,001 tasks cancelled.")
}

// Over each list stands how many tasks it has, by state, in the words of its filter.
func TestCountOverLists(t *testing.T) {
	r := serve(t)
	for i := range 30 {
		delay := time.Hour
		if i%3 == 0 {
			delay = 0
		}
		if _, err := r.Schedule(t.Context(), tasks.Request{ID: fmt.Sprint("p", i), Topic: "proof", Group: []string{"g1", "g2"}[i%2], Delay: delay}); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t)
	p.load(r.url + "/#/tasks?topic=proof")
	p.shows("#count", "20 pending, 10 ready of proof.")
	p.load(r.url + "/#/tasks?topic=proof&group=g1")
	p.shows("#count", "10 pending, 5 ready of proof in group g1.")
	p.press("Cancel all of these")
	p.shows("dialog", "Cancel 15 tasks of proof in group g1?")
	p.press("Keep")
	if _, err := r.Admin().KillTopic(r.Context(), "proof", -1); err != nil {
		t.Fatal(err)
	}
	p.load(r.url + "/#/dead?topic=proof&group=g2")
	p.shows("#count", "15 dead of proof in group g2.")
	p.load(r.url + "/#/tasks?topic=none")
	p.shows("#count", "No task of none.")
	p.content()
}
