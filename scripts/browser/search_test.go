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

// A searched answers the searches of a page: with what answer says, or with a problem of a status.
func (r *rig) searched(answer func(n int64, cursor string) (status int, more string)) (at string, asked *atomic.Int64) {
	r.Helper()
	asked = new(atomic.Int64)
	return r.behind(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path != "/v1/search" {
			return false
		}
		status, more := answer(asked.Add(1), q.URL.Query().Get("cursor"))
		w.Header().Set("Content-Type", "application/json")
		if w.WriteHeader(status); status != http.StatusOK {
			_, _ = fmt.Fprintf(w, `{"title": "It fails", "status": %d, "detail": "%s"}`, status, more)
			return true
		}
		_, _ = fmt.Fprintf(w, `{"scope": "fleet", "covers": ["a"], "missing": [], "tasks": [], "topics": [], "looked_at": 1000, "of": 1000, %s}`, more)
		return true
	}), asked
}

// What an incomplete search has found stays while its repeat fails, with why, and until one ends.
func TestSearchThatFails(t *testing.T) {
	var state atomic.Int64
	url, asked := serve(t).searched(func(n int64, cursor string) (int, string) {
		switch {
		case state.Load() == 1:
			return http.StatusServiceUnavailable, "n3 does not answer"
		case n > 1 && cursor == "":
			return http.StatusOK, `"groups": [], "complete": true, "next_cursor": "c"`
		case n > 1:
			return http.StatusOK, `"groups": [{"name": "g-1", "match": "begin", "topic": "x"}, {"name": "g-2", "match": "begin", "topic": "x"}], "complete": true`
		}
		state.Store(1)
		return http.StatusOK, `"groups": [{"name": "g-1", "match": "begin", "topic": "x"}], "complete": false`
	})
	p := open(t)
	p.paced("[[10000, 300], [20000, 300], [40000, 300], [80000, 300], [160000, 300], [300000, 300]]", 1)
	p.load(url + "/#/search?q=g")
	p.shows("#progress", "Looked at all 1,000 tasks: found 1 group. It is not complete.")
	p.shows("main .fault", "n3 does not answer")
	p.shows("#progress", "Looked at all 1,000 tasks: found 1 group. It is not complete.")
	before := asked.Load()
	p.waits(func() (bool, string) { return asked.Load() > before+3, "it does not repeat" })
	p.shows("#progress", "Looked at all 1,000 tasks: found 1 group. It is not complete.")
	p.shows("main table", "g-1")
	state.Store(2)
	p.shows("#progress", "Looked at all 1,000 tasks: found 2 groups.")
	p.hides("#progress", "not complete")
	p.hides("main", "n3 does not answer")
}

// A search that is refused is not repeated. With a cursor that is refused it begins without it.
func TestSearchThatIsRefused(t *testing.T) {
	url, asked := serve(t).searched(func(n int64, cursor string) (int, string) {
		switch {
		case cursor == "old":
			return http.StatusUnprocessableEntity, "the cursor is of another search"
		case n == 1:
			return http.StatusOK, `"groups": [{"name": "g-1", "match": "begin", "topic": "x"}], "complete": true, "next_cursor": "old"`
		case n == 3:
			return http.StatusOK, `"groups": [{"name": "g-2", "match": "begin", "topic": "x"}], "complete": true`
		}
		return http.StatusUnprocessableEntity, "q is wrong"
	})
	p := open(t)
	p.paced("[[10000, 300], [20000, 300]]", 1)
	p.load(url + "/#/search?q=g")
	p.shows("#progress", "Looked at all 1,000 tasks: found 2 groups.")
	p.load("about:blank")
	p.load(url + "/#/search?q=wrong")
	p.shows("main .fault", "q is wrong")
	p.ask(`await new Promise(r => setTimeout(r, 1500)); return ""`) // five pauses
	if n := asked.Load(); n != 4 {
		t.Errorf("it has asked %d times", n)
	}
}

// Each pause before a search that stays incomplete is twice as long as the one before, 5 min at
// most.
func TestSearchRepeatsMoreSeldom(t *testing.T) {
	url, asked := serve(t).searched(func(int64, string) (int, string) {
		return http.StatusOK, `"groups": [], "complete": false`
	})
	p := open(t)
	p.paced("[[10000, 100], [20000, 101], [40000, 102], [80000, 103], [160000, 104], [300000, 60000]]", 1)
	p.load(url + "/#/search?q=g")
	p.waits(func() (bool, string) { return asked.Load() == 6, fmt.Sprintf("it has asked %d times", asked.Load()) })
	p.ask(`await new Promise(r => setTimeout(r, 1000)); return ""`)
	if n := asked.Load(); n != 6 {
		t.Errorf("it has asked %d times", n)
	}
}
