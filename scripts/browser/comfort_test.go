//go:build browser

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// copies has the page keep what it copies, for copied.
func (p *tab) copies() {
	p.Helper()
	eval[int](p, `(window.copied = "", navigator.clipboard.writeText = async text => { window.copied = text; }, 0)`)
}

// copied presses a button, and returns what it has copied.
func (p *tab) copied(label string) (text string) {
	p.Helper()
	eval[int](p, `(window.copied = "", 0)`)
	p.press(label)
	p.waits(func() (bool, string) {
		text = eval[string](p, "window.copied")
		return text != "", label + " copies nothing"
	})
	return text
}

// What is needed elsewhere can be copied: ids, payloads, errors, and calls as curl.
func TestCopy(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template: invoice_v2")
	r.schedule("invoice.send", "invoice-7", 0)
	p := open(t)
	p.load(r.url + "/#/tasks/invoice-7")
	p.shows("main", "Died")
	p.copies()
	for label, want := range map[string]string{
		"Copy the id": "invoice-7", "Copy the error": "no such template: invoice_v2", "Copy the payload": `"of": "invoice-7"`,
		"As curl the call for the task as curl": "curl '" + r.url + "/v1/tasks/invoice-7'",
	} {
		if got := p.copied(label); !strings.Contains(got, want) {
			t.Errorf("%s copies %q, want %q", label, got, want)
		}
	}
	p.content()
}

// Times are told by the clock of the reader, whose zone the page names, or in UTC. The choice is
// remembered, and so is the theme.
func TestClockAndTheme(t *testing.T) {
	r := serve(t)
	due := time.Date(time.Now().Year()+1, 7, 1, 12, 0, 0, 0, time.UTC)
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "order-1", Topic: "order.unpaid", Due: due}); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.do("live in Kolkata", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
		return err
	}))
	p.load(r.url + "/#/tasks/order-1")
	p.shows(".zone", "GMT+5:30")
	p.shows(".story", "17:30:00")
	p.press("Move")
	p.shows("dialog", "by your clock (GMT+5:30)")
	p.press("Leave it")
	p.press("Times are in GMT+5:30. Change the clock")
	p.shows(".zone", "UTC")
	p.shows(".story", "12:00:00")
	p.press("Theme: auto. Change it")
	p.press("Theme: light. Change it")
	dark := func() bool {
		return eval[string](p, `getComputedStyle(document.body).backgroundColor`) == "rgb(19, 21, 25)"
	}
	p.waits(func() (bool, string) { return dark(), "the page is not dark" })
	p.load("about:blank")
	p.load(r.url + "/#/tasks/order-1")
	p.shows(".zone", "UTC")
	p.shows(".story", "12:00:00")
	p.shows(".foot", "Theme: dark")
	if !dark() {
		t.Error("the theme is forgotten")
	}
	p.press("Move")
	p.shows("dialog", "New deadline, in UTC")
	if got := eval[string](p, `document.querySelector('dialog [name="due"]').value`); !strings.HasSuffix(got, "T12:00") && !strings.HasSuffix(got, "T12:00:00") {
		t.Errorf("the deadline is asked for from %s on", got)
	}
	p.content()
}

// A page of a list is in the address: Back of the browser, and the way back to the list, lead to
// the page and the filter that were left.
func TestBackToThePage(t *testing.T) {
	r := serve(t)
	for i := range 30 {
		r.schedule("order.unpaid", fmt.Sprintf("order-%02d", i), time.Hour+time.Duration(i)*time.Second)
	}
	p := open(t)
	p.load(r.url + "/#/tasks?topic=order.unpaid")
	p.shows("main table", "order-00")
	p.press("Next")
	p.shows("main table", "order-25")
	p.press("order-25")
	p.shows("main", "Story")
	eval[int](p, "(history.back(), 0)")
	p.shows("main table", "order-25")
	p.shows(".pages", "Page 2")
	p.press("order-26")
	p.shows("main", "Story")
	p.press("Tasks")
	p.shows("main table", "order-00") // the view begins anew
	eval[int](p, "(history.back(), 0)")
	p.shows("main", "Story")
	eval[int](p, "(history.back(), 0)")
	p.shows("main table", "order-26")
	p.press("order-26")
	p.shows("main", "Story")
	p.do("go back to the list", chromedp.Click(`//a[@class="back"]`, chromedp.NodeVisible))
	p.shows("main table", "order-26")
	p.shows(".pages", "Page 2")
	if topic := eval[string](p, `document.querySelector('main [name="topic"]').value`); topic != "order.unpaid" {
		t.Errorf("the filter is of the topic %q", topic)
	}
	p.press("Back")
	p.shows("main table", "order-00")
	p.content()
}

// An empty server shows the first steps, which go away with the first task. That is made on the
// page; what the server refuses stands beside its field, and nowhere else.
func TestFirstSteps(t *testing.T) {
	r := serve(t)
	p := open(t)
	p.hurries()
	p.load(r.url)
	p.shows("#first-steps", "Schedule a task")
	p.shows("#first-steps pre", "curl '"+r.url+`/v1/tasks' --json '{"topic":"hello"`)
	p.press("New task")
	p.fill(`[name="delay"]`, "soon")
	p.press("Schedule")
	p.shows("dialog .wrong", "must be")
	p.shows("dialog .fault", "See the marked fields.")
	p.fill(`[name="delay"]`, "2h")
	p.fill(`[name="id"]`, "hello-1")
	p.fill(`[name="payload"]`, "{")
	p.press("Schedule")
	p.shows("dialog .wrong", "must be JSON")
	p.fill(`[name="payload"]`, `{"text": "world"}`)
	p.copies()
	want := "curl '" + r.url + `/v1/tasks' --json '{"topic":"hello","id":"hello-1","delay":"2h","payload":{"text":"world"}}'`
	if got := p.copied("Copy as curl this call as curl"); got != want {
		t.Errorf("copied is %s, want %s", got, want)
	}
	p.press("Schedule")
	p.shows("h1", "hello-1")
	p.shows("main pre", `"text": "world"`)
	made, err := r.Get(t.Context(), "hello-1")
	if err != nil || !json.Valid(made.Payload) {
		t.Errorf("the task is %+v, %v", made, err)
	}
	p.press("Overview")
	p.shows(`[data-figure="pending"] dd`, "1")
	p.waits(func() (bool, string) {
		return eval[bool](p, `!document.querySelector("#first-steps")`), "the first steps are still there"
	})
}

// A dialog whose topic has changed meanwhile takes that over, says so, and saves with the next
// press.
func TestNewestSettings(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.load(r.url + "/#/topics/order.unpaid")
	p.press("Edit settings")
	p.fill(`[name="weight"]`, "7")
	if _, err := r.Admin().ChangeTopic(t.Context(), "order.unpaid", -1, func(set *tasks.TopicSettings) error { set.Lease = 2 * time.Minute; return nil }); err != nil {
		t.Fatal(err)
	}
	p.press("Save")
	p.shows("dialog .fault", "The settings have changed meanwhile. Lease: 2m")
	p.press("Save")
	p.shows(".notices", "The settings are saved.")
	p.waits(func() (bool, string) {
		topic, err := r.Topic("order.unpaid")
		return err == nil && topic.Settings.Weight == 7 && topic.Settings.Lease == 2*time.Minute, fmt.Sprintf("the settings are %+v, %v", topic.Settings, err)
	})
}

// A node that has died is said once, with links to the others, at the view that is open.
func TestOtherNodes(t *testing.T) {
	redis := redistest.Start(t)
	serveRedisBy(t, redisledger.Options{URL: "redis://" + redis.Addr, Node: "n2", Address: "http://n2.example:7480"})
	r := serveRedis(t, redis.Addr, "n1")
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/topics")
	p.shows("#reach", "All 2 nodes")
	p.waits(func() (bool, string) {
		return eval[bool](p, `performance.getEntriesByType("resource").some(e => e.name.includes("v1/nodes"))`), "the nodes are not asked for"
	})
	r.stop()
	p.shows("#gone", "The server does not answer. That is so for ")
	p.waits(func() (bool, string) {
		href := eval[string](p, `document.querySelector("#gone a")?.href ?? ""`)
		return href == "http://n2.example:7480/#/topics", "the link leads to " + href
	})
	if told := eval[int](p, `document.body.textContent.split("does not answer").length - 1`); told != 1 {
		t.Errorf("it is said %d times", told)
	}
}

// shifted is how much of the view has moved while it came.
const shifted = `(async () => {
	const list = await new Promise(done => { const o = new PerformanceObserver(l => { done(l.getEntries()); o.disconnect(); }); o.observe({type: "layout-shift", buffered: true}); setTimeout(() => done([]), 500); });
	return list.map(e => e.value.toFixed(4) + " " + e.sources.map(s => (s.node?.nodeType === 1 ? s.node.outerHTML : s.node?.textContent ?? "").slice(0, 120)).join(" | ")).join("\n") + "\n" + list.reduce((n, e) => n + e.value, 0);
})()`

// What a view shows first stays where it is while the rest arrives.
func TestNothingMoves(t *testing.T) {
	r := serve(t)
	r.breaks("invoice.send", "no such template: invoice_v2")
	for i := range 12 {
		r.schedule("invoice.send", fmt.Sprint("invoice-", i), 0)
		r.schedule("cart", fmt.Sprint("cart-", i), time.Minute)
	}
	p := open(t)
	p.shiftsOf(r.url)
	p.delays()
	p.shiftsOf(r.url)
	p.content()
	empty := serveOn(t, memledger.New(), tasks.Config{}, httpapi.Config{})
	p.shiftsOf(empty.url)
}

// delays makes the answers come to the pages that are loaded from now on one after another.
func (p *tab) delays() {
	p.Helper()
	const script = `{
		const ask = fetch, after = [["v1/topics", 100], ["v1/tasks", 150], ["v1/history", 200], ["v1/forecast", 250], ["v1/nodes", 300]];
		window.fetch = async (url, ...rest) => {
			const answer = await ask(url, ...rest);
			await new Promise(done => { setTimeout(done, after.find(([path]) => String(url).includes(path))?.[1] ?? 0); });
			return answer;
		};
	}`
	p.do("delay", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: script})
		return err
	}))
}

// shiftsOf opens each view on a wide screen and a narrow one, and sums up what has moved.
func (p *tab) shiftsOf(url string) {
	p.Helper()
	for _, width := range []int64{1280, 360} {
		p.do("resize", chromedp.EmulateViewport(width, 800))
		for _, place := range []struct{ hash, shows string }{
			{"", "live"}, {"#/topics", "topic"}, {"#/topics/invoice.send", "topic"}, {"#/tasks", "Find"}, {"#/dead", "dead"}, {"#/nodes", "live"},
		} {
			p.load("about:blank")
			p.load(url + "/" + place.hash)
			p.waits(func() (bool, string) {
				return strings.Contains(strings.ToLower(p.text("main")), strings.ToLower(place.shows)) && !strings.Contains(p.text("main"), "Loading…"), place.hash + " does not come"
			})
			moved := p.ask("return " + shifted)
			at := strings.LastIndex(moved, "\n")
			var sum float64
			if _, err := fmt.Sscan(moved[at+1:], &sum); err != nil {
				p.Fatalf("%q: %v", moved, err)
			}
			if sum > 0.02 {
				p.Errorf("%s at %d shifts by %.3f:\n%s", place.hash, width, sum, moved[:at])
			}
		}
	}
}

// A topic has addresses of its logs and its shop: each of its tasks has links that lead there, by
// its id, in a tab that learns nothing of this one. An address that is none of the web is refused.
func TestLinksOfATopic(t *testing.T) {
	r := serve(t)
	if _, err := r.Schedule(t.Context(), tasks.Request{ID: "order:42", Topic: "order.unpaid", Group: "a:b", Delay: time.Hour}); err != nil {
		t.Fatal(err)
	}
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/topics/order.unpaid")
	p.press("Edit settings")
	p.fill(`[name="links"]`, "logs javascript:alert(1)")
	p.press("Save")
	p.shows("dialog .wrong", "must be an address with http:// or https://")
	p.fill(`[name="links"]`, "logs https://logs.example/?q={id}&g={group}")
	p.press("Save")
	p.shows(".notices", "The settings are saved.")
	p.shows("main", "Linkslogs")
	p.load("about:blank")
	p.load(r.url + "/#/tasks/order:42")
	p.shows(".beside", "logs")
	const link = `(a => [a?.href, a?.target, a?.rel].join(" "))(document.querySelector(".beside a.button"))`
	want := "https://logs.example/?q=order%3A42&g=a%3Ab _blank noopener noreferrer"
	p.waits(func() (bool, string) { got := eval[string](p, link); return got == want, "the link is " + got })
}
