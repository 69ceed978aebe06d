//go:build browser

package browser

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/tasks"
)

// The overview shows new figures without a reload.
func TestOverview(t *testing.T) {
	r := serve(t)
	p := open(t)
	p.hurries()
	p.load(r.url)
	p.shows("h1", "Nothing is late.")
	p.shows(`[data-figure="pending"] dd`, "0")
	r.schedule("order.unpaid", "order-42", 5*time.Minute)
	r.schedule("coupon", "coupon-1", time.Hour+time.Minute)
	p.shows(`[data-figure="pending"] dd`, "2")
	p.shows(`[data-figure="soon"] dd`, "1")
	if err := r.Admin().PauseTopic(r.Context(), "order.unpaid", true); err != nil {
		t.Fatal(err)
	}
	p.shows("#worst", "order.unpaid")
	p.shows("#worst", "paused")
	if os.Getenv("LAPSE_LEDGER") == "fleet" {
		p.shows("#reach", "All 3 nodes")
	} else {
		p.shows("#reach", "1 node")
	}
	p.content()
}

// What is late now and since when, and that no receiver pulls it: the overview says so at once.
func TestWhatIsLate(t *testing.T) {
	r := serve(t)
	r.schedule("cart.reminder", "cart-1", 0)
	p := open(t)
	p.hurries()
	p.load(r.url)
	p.shows("h1", "cart.reminder is late.")
	p.shows("#worst", "late1 task overdue; no receiver pulls, the oldest due since ")
	p.press("cart.reminder")
	p.shows("#trouble", "no receiver pulls")
	p.shows(`[data-figure="receivers"] dd`, "0")
	p.shows("main", "cart-1")
	p.content()
}

// Why nothing is delivered can be read on a narrow screen too.
func TestLateIsNotCut(t *testing.T) {
	r := serve(t)
	for i := range 12 {
		r.schedule("cart.reminder.of.a.long.name", fmt.Sprint("cart-", i), 0)
	}
	p := open(t)
	for _, width := range []int64{1000, 390, 320} {
		p.do("resize", chromedp.EmulateViewport(width, 800))
		p.load("about:blank")
		p.load(r.url)
		p.shows("#worst", "no receiver pulls")
		if cut := eval[bool](p, `(e => e.scrollHeight > e.clientHeight && getComputedStyle(e).overflow === "hidden")(document.querySelector("#worst .faults span + span"))`); cut {
			t.Errorf("at %d the reason is cut", width)
		}
	}
	p.content()
}

// Which topic fails, with which error, and what is dead and why.
func TestWhatFails(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template: invoice_v2")
	r.schedule("invoice.send", "invoice-7", 0)
	p := open(t)
	p.load(r.url)
	p.shows("h1", "invoice.send is failing.")
	p.shows("#worst", "1 failed")
	p.shows("#worst", "no such template: invoice_v2")
	p.shows(`[data-figure="dead"] dd`, "1")
	p.press("Dead1")
	p.shows("h1", "1 dead task")
	p.shows("main", "no such template: invoice_v2")
	p.press("invoice.send")
	p.shows("main", "invoice-7")
	p.shows("main", "attempts used up")
	p.content()
}

// Is the wave of midnight through: the last hour says what was delivered and how late, and a filter
// what is left of it.
func TestWave(t *testing.T) {
	r := serve(t)
	done := make(chan struct{}, 20)
	if err := r.Handle("order.unpaid", func(context.Context, *tasks.Delivery) error { done <- struct{}{}; return nil }); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		r.schedule("order.unpaid", "", 0)
	}
	for range 20 {
		<-done
	}
	r.schedule("order.unpaid", "order-tomorrow", 25*time.Hour)
	p, midnight := openAtNoon(t)
	p.load(r.url)
	p.shows("main", "20 delivered")
	p.shows("main", "99 of 100 at most; the latest was")
	p.shows(`[data-figure="ready"]`, "all that was due is handed out")
	p.press("Tasks")
	p.pick(`main [name="due"]`, "midnight")
	p.shows("main", "No task is as the filter says.")
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "cart-left", Topic: "cart", Due: midnight}); err != nil {
		t.Fatal(err)
	}
	p.shows("main table", "cart-left")
	p.content()
}

// Figures that are old look old, and the page says since when. A tab that is hidden asks nothing.
func TestServerThatHasGone(t *testing.T) {
	r := serve(t)
	p := open(t)
	p.hurries()
	p.load(r.url)
	p.shows(`[data-figure="pending"] dd`, "0")
	r.stop()
	p.shows(".fresh.bad", "As of ")
	p.shows("#gone", "The server does not answer. That is so for ")
	p.waits(func() (bool, string) {
		var fresh []string
		for _, element := range []string{"h1", "#reach", ".figures"} {
			if eval[bool](p, `(e => { for (; e; e = e.parentElement) if (getComputedStyle(e).opacity < 1) return false; return true; })(document.querySelector("`+element+`"))`) {
				fresh = append(fresh, element)
			}
		}
		return len(fresh) == 0, fmt.Sprintf("%v are old and look as if they were not", fresh)
	})
}

// refreshed is how many bytes each call of the API that a view makes takes once: a refresh makes no
// more than that.
const refreshed = `[...new Map(performance.getEntriesByType("resource").filter(e => e.name.includes("/v1/")).map(e => [e.name, e])).values()].reduce((n, e) => n + e.transferSize, 0)`

// The page, and what a refresh asks for, are small.
func TestWeight(t *testing.T) {
	r := serve(t)
	for _, topic := range strings.Fields("a b c d e f g h i j k l m n o p q r s t u v w x y z") {
		r.schedule("topic."+topic, "task-"+topic, time.Hour)
	}
	p := open(t)
	p.load(r.url)
	p.shows(`[data-figure="pending"] dd`, "26")
	p.waits(func() (bool, string) {
		return eval[int](p, `performance.getEntriesByType("resource").filter(e => e.name.includes("forecast")).length`) > 0, "nothing was asked for"
	})
	if all := eval[int](p, transferred); all > 110<<10 {
		t.Errorf("the first paint takes %d bytes", all)
	}
	for _, place := range []struct{ hash, shows string }{{"#/", "Nothing is late."}, {"#/topics", "26 topics"}, {"#/tasks", "Tasks"}} {
		p.load("about:blank")
		p.load(r.url + "/" + place.hash)
		p.shows("h1", place.shows)
		if once := eval[int](p, refreshed); once > 12<<10 {
			t.Errorf("a refresh of %s takes %d bytes", place.hash, once)
		}
	}
	p.content()
}

// Lists of tasks leave out what is large of them: a refresh is small whatever their payloads are.
// The view of one task shows its payload.
func TestWeightOfLargeTasks(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", strings.Repeat("no such template; ", 100))
	for i := range 20 {
		for _, topic := range []string{"order.unpaid", "invoice.send"} {
			req := tasks.Request{ID: fmt.Sprint(topic, i), Topic: topic, Payload: []byte(`"` + strings.Repeat("x", 60_000) + `"`), Headers: map[string]string{"about": strings.Repeat("y", 1000)}}
			if _, err := r.Schedule(t.Context(), req); err != nil {
				t.Fatal(err)
			}
		}
	}
	p := open(t)
	for _, place := range []struct{ hash, shows string }{
		{"#/tasks", "order.unpaid19"}, {"#/topics/order.unpaid", "order.unpaid1"}, {"#/dead?topic=invoice.send", "invoice.send10"},
	} {
		p.load("about:blank")
		p.load(r.url + "/" + place.hash)
		p.shows("main", place.shows)
		if once := eval[int](p, refreshed); once > 12<<10 {
			t.Errorf("a refresh of %s takes %d bytes", place.hash, once)
		} else {
			t.Logf("a refresh of %s takes %d bytes", place.hash, once)
		}
	}
	p.load(r.url + "/#/tasks/invoice.send19")
	p.waits(func() (bool, string) {
		return eval[int](p, `document.querySelector("main pre")?.textContent.length ?? 0`) > 60_000, "the payload is not whole"
	})
	p.content()
}

// cutOff names what is wider than the sheet that it is in, and marks that are higher than a line.
const cutOff = `[...document.querySelectorAll(".sheet")].filter(e => e.scrollWidth > e.clientWidth).concat(
	[...document.querySelectorAll(".pill")].filter(e => e.offsetHeight > 30)).map(e => e.textContent.slice(0, 80)).join("; ")`

// On a phone or a tablet no view is wider than the screen, and nothing in it is cut off.
func TestPhone(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send.of.a.rather.long.name", "a rather long error, "+strings.Repeat("which.has.no.space", 10))
	r.schedule("invoice.send.of.a.rather.long.name", "a-rather-long-id-of-a-task-that-may-not-be-cut", 0)
	r.schedule("cart", strings.Repeat("x", 128), 0)
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "news-1", Topic: "newsletter", Group: "campaign-of-the-autumn", Delay: 30 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	for _, width := range []int64{320, 360, 700, 768, 961} {
		p.do("make it narrow", chromedp.EmulateViewport(width, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
		p.fits(r.url, int(width))
	}
	p.load("about:blank")
	p.load(r.url + "/#/topics")
	p.do("make it narrow", chromedp.EmulateViewport(360, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
	p.pick(`[name="sort"]`, "name")
	p.shows("main tbody tr:first-child", "cart")
	p.content()
}

// fits checks that each view of TestPhone is as wide as the screen.
func (p *tab) fits(url string, width int) {
	p.Helper()
	for _, place := range []struct{ hash, shows string }{
		{"", "failing"}, {"#/topics", "cart"}, {"#/topics/cart", "Oldest waiting"}, {"#/tasks", "xxx"}, {"#/tasks/" + strings.Repeat("x", 128), "Story"},
		{"#/tasks?topic=newsletter", "campaign"}, {"#/dead", "invoice"}, {"#/dead?topic=invoice.send.of.a.rather.long.name", "which.has"}, {"#/nodes", "live"},
	} {
		p.load("about:blank")
		p.load(url + "/" + place.hash)
		p.shows("main", place.shows)
		if wide := eval[int](p, "document.documentElement.scrollWidth"); wide > width {
			p.Errorf("%s is %d wide, not %d", place.hash, wide, width)
		}
		if cut := eval[string](p, cutOff); cut != "" {
			p.Errorf("at %d, of %s is cut off: %s", width, place.hash, cut)
		}
	}
}
