//go:build browser

package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/lapsehq/lapse/tasks"
)

// Where is order 42: the key / and a part of its id lead to it from any view, in whatever state it
// is, with groups and topics of the name. The address keeps the search, and Back returns to it.
func TestWhereIsIt(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	r.schedule("order.unpaid", "an-order-42", time.Hour)
	r.schedule("coupon", "coupon-1", time.Hour)
	r.breaks("invoice.42", "no such template")
	r.schedule("invoice.42", "dead-ORDER-421", 0)
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "other", Topic: "order.unpaid", Group: "group-of-order-42", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.load(r.url + "/#/nodes")
	p.shows("main", "live")
	p.do("press /", chromedp.KeyEvent("/"))
	p.do("type", chromedp.KeyEvent("order-42\r"))
	p.shows("#progress", "Looked at all")
	p.shows("#progress", "3 tasks, 1 group.")
	p.shows(`main table[aria-label="Tasks"]`, "dead-ORDER-421")
	p.shows(`main table[aria-label="Groups"]`, "group-of-order-42")
	p.hides("main", "coupon-1")
	if first := p.text(`main table[aria-label="Tasks"] tbody tr a.id`); first != "order-42" {
		t.Errorf("the first one is %q", first)
	}
	if at := eval[string](p, "location.hash"); at != "#/search?q=order-42" {
		t.Errorf("the address is %s", at)
	}
	p.press("order-42")
	p.shows("main", "Scheduled")
	p.do("go back", chromedp.NavigateBack())
	p.shows("#progress", "3 tasks, 1 group.")
	p.load(r.url + "/#/search?q=nowhere")
	p.shows("#progress", "found nothing")
	p.content()
	p.load(r.url + "/#/search?q=a/b") // which the console complains about
	p.shows("main .fault", "characters that ids, groups and topics have")
}

// While a name is typed, what begins so is suggested; arrows and Enter lead there. Ctrl-K begins.
func TestSuggestions(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "first", time.Hour)
	r.schedule("order.paid", "order-7", time.Hour)
	p := open(t)
	p.load(r.url + "/#/nodes")
	p.shows("main", "live")
	p.do("press Ctrl-K", chromedp.KeyEvent("k", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.do("type", chromedp.KeyEvent("order"))
	p.shows("#suggested", "order.unpaid")
	p.shows("#suggested", "order-7")
	p.key(kb.ArrowDown)
	p.key(kb.ArrowDown)
	if at := p.text(`#suggested [aria-selected="true"]`); at == "" {
		t.Error("none is chosen")
	}
	p.do("press Enter", chromedp.KeyEvent("\r"))
	p.shows("h1", "order.unpaid")
	p.waits(func() (bool, string) {
		return eval[bool](p, `document.activeElement.tagName === "H1"`), "the view is not read from its top"
	})
	p.do("press /", chromedp.KeyEvent("/"))
	p.do("type", chromedp.KeyEvent("order-7"))
	p.shows("#suggested", "order-7")
	p.key(kb.Escape)
	p.waits(func() (bool, string) {
		return eval[bool](p, `document.querySelector("#suggested").hidden`), "still suggests"
	})
	p.content()
}

// A search goes on by itself, says how far it is, and stops where the user says so. Without a node
// it says that it is not complete, and begins again.
func TestSearchGoesOn(t *testing.T) {
	r := serve(t)
	var parts, ends atomic.Int64
	url := r.behind(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path != "/v1/search" {
			return false
		}
		n := parts.Add(1)
		part := map[string]any{
			"scope": "fleet", "covers": []string{"a"}, "missing": []any{map[string]string{"node": "n3", "error": "no answer"}}, "tasks": []any{}, "topics": []any{},
			"groups": []any{map[string]string{"name": fmt.Sprint("g-", n%5), "match": "begin", "topic": "x"}}, "looked_at": 10 * n, "of": 1_000_000, "complete": false,
		}
		if ends.Load() == 2 {
			part["missing"], part["complete"] = []any{}, true
		}
		if ends.Load() == 0 {
			part["next_cursor"] = fmt.Sprint(n)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(part)
		return true
	})
	p := open(t)
	p.paced("[[10000, 300]]", 1)
	p.load(url + "/#/search?q=g")
	p.waits(func() (bool, string) { return parts.Load() > 5, "it does not go on" })
	p.shows("#progress", "so far, in about")
	p.press("Stop")
	p.shows("#progress", "Stopped")
	p.shows("main table", "g-2")
	ends.Store(1)
	p.press("Go on")
	p.shows("#progress", "Looked at all 1,000,000 tasks")
	p.shows("#progress", "not complete, without what n3 has")
	ends.Store(2)
	p.shows("#progress", "tasks: found 1 group.")
	p.hides("#progress", "not complete")
	p.content()
}
