//go:build browser

package browser

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// While the server starts the page says what it waits for, and then shows figures by itself.
func TestStartingPage(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	api, err := httpapi.New(httpapi.Config{Log: quiet, Starting: func() recovery.Health {
		return recovery.Health{Where: "redis://far:6379/0", Err: errors.New("connection refused"),
			Waiting: []recovery.Waiting{{What: "the ledger", Detail: "for far", Since: time.Now().Add(-time.Minute)}}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	url, _ := listen(t, api)
	p := open(t)
	p.hurries()
	p.load(url)
	p.shows("h1", "Lapse is starting")
	p.shows("main", "redis://far:6379/0")
	p.shows("main", "connection refused")
	p.shows("main", "the ledger for far since 1m")
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = scheduler.Close(context.Background()) })
	api.Attach(scheduler)
	p.shows("h1", "Nothing is late.")
}

// behind serves what the server answers, but for the requests of which answer says that it has
// answered them.
func (r *rig) behind(answer func(http.ResponseWriter, *http.Request) bool) (at string) {
	r.Helper()
	target, err := url.Parse(r.url)
	if err != nil {
		r.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	return serveAt(r.T, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if !answer(w, q) {
			proxy.ServeHTTP(w, q)
		}
	}))
}

// hanging is a server that can be made to answer nothing.
func hanging(t *testing.T) (r *rig, at string, hangs *atomic.Bool) {
	t.Helper()
	r = serve(t)
	hangs = new(atomic.Bool)
	over := make(chan struct{})
	at = r.behind(func(_ http.ResponseWriter, q *http.Request) bool {
		if !strings.HasPrefix(q.URL.Path, "/v1/") || !hangs.Load() {
			return false
		}
		select {
		case <-q.Context().Done():
		case <-over:
		}
		return true
	})
	t.Cleanup(func() { close(over) })
	return r, at, hangs
}

// A server that takes requests and answers none does not look healthy. The page recovers by itself.
func TestServerThatHangs(t *testing.T) {
	r, url, hangs := hanging(t)
	p := open(t)
	p.hurries()
	p.load(url)
	p.shows(`[data-figure="pending"] dd`, "0")
	hangs.Store(true)
	p.shows(".fresh.bad", "As of ")
	p.shows("#gone", "nothing came within 10 s")
	hangs.Store(false)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p.shows(`[data-figure="pending"] dd`, "1")
	p.shows(".fresh", "Live")
}

// A tab that is hidden asks nothing, and asks at once when it is shown again.
func TestHiddenTab(t *testing.T) {
	r := serve(t)
	p := open(t)
	p.load(r.url)
	p.shows(`[data-figure="pending"] dd`, "0")
	show := func(shown string) {
		p.ask(`Object.defineProperty(document, "hidden", {configurable: true, value: ` + shown + ` === false}); document.dispatchEvent(new Event("visibilitychange")); return "";`)
	}
	show("false")
	begun := p.ask(`
		const from = performance.now();
		await new Promise(r => setTimeout(r, 5000)); // two periods and more
		return performance.getEntriesByType("resource").filter(e => e.startTime > from && e.name.includes("/v1/")).map(e => e.name).join()`)
	if begun != "" {
		t.Errorf("a tab that is hidden has asked for %s", begun)
	}
	r.schedule("order.unpaid", "order-42", time.Hour)
	show("true")
	p.shows(`[data-figure="pending"] dd`, "1")
	p.content()
}

// All can be reached and done by the keyboard alone, and the focus can be seen.
func TestKeyboard(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/tasks/order-42")
	p.shows("main", "Scheduled")
	focus := func() string { return eval[string](p, `document.activeElement.textContent.trim()`) }
	var seen []string
	for range 30 {
		p.key("\t")
		text := focus()
		if eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
			t.Errorf("the focus on %q cannot be seen", text)
		}
		if seen = append(seen, text); text == "Cancel" {
			break
		}
	}
	if focus() != "Cancel" {
		t.Fatalf("the keyboard reaches %q alone", seen)
	}
	p.key("\r")
	p.shows("dialog", "Cancel the task?")
	p.key("\x1b")
	p.waits(func() (bool, string) { return p.text("dialog") == "", "Escape does not close the dialog" })
	if focus() != "Cancel" {
		t.Errorf("after the dialog the focus is on %q", focus())
	}
	p.content()
}

// Where one call fails and all others are answered, what it has told before looks old, and the page
// says why. So does the heading that is made of it.
func TestPartThatIsOld(t *testing.T) {
	r := serve(t)
	r.schedule("cart.reminder", "cart-1", 0)
	var fails atomic.Bool
	url := r.behind(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path != "/v1/topics" && q.URL.Path != "/v1/diagnosis" || !fails.Load() {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(`{"title":"Away","detail":"n3 does not answer"}`))
		return true
	})
	p := open(t)
	p.hurries()
	p.load(url)
	p.shows("h1", "cart.reminder is late.")
	p.shows("#worst", "cart.reminder")
	fails.Store(true)
	p.shows("#worst .fresh.bad", "n3 does not answer")
	p.shows("#worst .stale", "cart.reminder")
	p.shows("h1.stale", "cart.reminder is late.")
	p.shows(".head .fresh", "Live")
	if p.text("#fleet .stale") != "" {
		t.Error("the nodes look old, too")
	}
	fails.Store(false)
	p.waits(func() (bool, string) { return p.text("#worst .stale") == "", "it still looks old" })
}

// Different questions are not asked at the same instant: by a clock that stands at a multiple of
// all periods, none waits for a whole one. Another page waits as long for the same ones.
func TestQuestionsDoNotMeet(t *testing.T) {
	url := serve(t).url
	p := open(t)
	p.begins(`const timeout = setTimeout, stands = Date.now() - Date.now() % 60_000, waits = window.waits = [];
		Date.now = () => stands;
		window.setTimeout = (f, ms, ...rest) => { waits.push(ms); return timeout(f, ms === 4000 ? 1e6 : ms, ...rest); };`)
	first := "[]"
	for range 2 {
		p.load("about:blank")
		p.load(url)
		p.shows("h1", "Nothing is late.")
		const asked = `[...new Set(waits.filter(ms => ms > 0 && ![100, 250, 4000, 60_000].includes(ms)))]`
		p.waits(func() (bool, string) {
			return eval[bool](p, asked+`.length >= 8 && `+first+`.every(ms => waits.includes(ms))`), eval[string](p, asked+".join()") + ", the first page " + first
		})
		if met := eval[string](p, `waits.filter(ms => [2000, 3000, 5000, 10_000, 15_000, 30_000].includes(ms)).join()`); met != "" {
			t.Errorf("whole periods of %s ms", met)
		}
		first = eval[string](p, "JSON.stringify("+asked+".filter(ms => ms % 1000))")
	}
}

// A view of another version than the page has it loaded anew, once: then the page says what is
// wrong.
func TestViewOfAnotherVersion(t *testing.T) {
	var old, pages atomic.Int64
	old.Store(1)
	url := serve(t).behind(func(w http.ResponseWriter, q *http.Request) bool {
		if q.URL.Path == "/" {
			pages.Add(1)
		}
		if !strings.HasSuffix(q.URL.Path, "/views/dead.js") || old.Load() == 0 {
			return false
		}
		w.Header().Set("Content-Type", "text/javascript")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write([]byte(`import {noMore} from "../api.js"; export const Dead = noMore;`))
		return true
	})
	p := open(t)
	p.load(url + "/#/dead")
	p.waits(func() (bool, string) { return pages.Load() == 2, "the page is not loaded anew" })
	p.shows("main .fault", "The page is of another version than the server.")
	if n := pages.Load(); n != 2 {
		t.Errorf("it was loaded %d times", n)
	}
	old.Store(0)
	p.press("Try again")
	p.shows("h1", "No task is dead")
}
