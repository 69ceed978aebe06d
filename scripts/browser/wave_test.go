//go:build browser

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/tasks"
)

// told is a server that answers a path with a text.
func (r *rig) told(answers map[string]func() string) string {
	return r.behind(func(w http.ResponseWriter, q *http.Request) bool {
		answer := answers[q.Method+" "+q.URL.Path]
		if answer == nil {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer())
		return true
	})
}

const (
	waveCounts = `"due":%d,"waiting":%d,"delivering":0,"retrying":%d,"held":0,"delivered":%d,"dead":%d,"cancelled":0,"skipped":0,"progress":%g,"rate":30`
	waveText   = `{"scope":"fleet","covers":["n1"],"missing":[],"from":"%s","to":"%s","at":"%s","since":"2026-01-01T00:00:00.000Z","complete":%v,"beyond":2,"total":{%s,"%s":"%s"},` +
		`"topics":[{"name":"order.unpaid",%[5]s}],"others":{` + `"due":7,"waiting":0,"delivering":0,"retrying":0,"held":0,"delivered":7,"dead":0,"cancelled":0,"skipped":0,"progress":1,"rate":1}}`
)

// How far is the wave: the page says so by topic, when it will be through, and when it is. What is
// not known is not through.
func TestWavePage(t *testing.T) {
	r := serve(t)
	from := time.Now().UTC().Truncate(time.Minute).Add(-10 * time.Minute)
	var through, incomplete atomic.Bool
	at := r.told(map[string]func() string{"GET /v1/waves": func() string {
		now := time.Now().UTC().Format(time.RFC3339)
		counts, end := fmt.Sprintf(waveCounts, 3000, 1700, 100, 1190, 10, 0.4), "ends_at"
		if through.Load() {
			counts, end = fmt.Sprintf(waveCounts, 3000, 0, 0, 2990, 10, 1.0), "through_at"
		}
		return fmt.Sprintf(waveText, from.Format(time.RFC3339), from.Add(time.Minute).Format(time.RFC3339), now, !incomplete.Load(), counts, end, now)
	}})
	p := open(t)
	p.hurries()
	p.load(at + "/#/waves?from=" + from.Format(time.RFC3339))
	p.shows("#wave", "1,200 of 3,000 tasks are through.")
	p.shows(`[data-figure="left"] dd`, "1,800")
	p.shows(`[data-figure="end"]`, "Expected end")
	p.shows("main table", "order.unpaid")
	p.shows("main table", "40 %")
	p.shows("main table", "2 other topics")
	if folder := os.Getenv("LAPSE_SCREENSHOTS"); folder != "" {
		p.picture(filepath.Join(folder, "wave.png"), chromedp.FullScreenshot(100))
	}
	through.Store(true)
	incomplete.Store(true)
	p.shows("#wave", "3,000 of 3,000 tasks are through, as far as it is known.")
	p.shows("main", "Not all nodes have answered")
	incomplete.Store(false)
	p.shows("#wave", "All 3,000 tasks are through, since ")
	eval[int](p, axe(t)+"; 0")
	if wrong := p.ask(`return (await axe.run(document)).violations.map(v => v.id + ": " + v.nodes[0].html).join("\n")`); wrong != "" {
		t.Error(wrong)
	}
	p.press("After")
	p.waits(func() (bool, string) {
		return strings.Contains(eval[string](p, "location.hash"), "T"+strings.ReplaceAll(from.Add(time.Minute).Format("15:04"), ":", "%3A")), "the address is " + eval[string](p, "location.hash")
	})
	p.content()
}

// A bar of the forecast leads to its minute, by a click, and by a link for the keyboard.
func TestBarsLeadToWaves(t *testing.T) {
	r := serve(t)
	due := time.Now().UTC().Truncate(time.Minute).Add(30 * time.Minute)
	for range 3 {
		if _, err := r.Schedule(t.Context(), tasks.Request{Topic: "order.unpaid", Due: due}); err != nil {
			t.Fatal(err)
		}
	}
	p := open(t)
	p.load(r.url)
	p.shows("main", "The wave of ")
	const peak = `[...document.querySelectorAll("a")].find(a => a.textContent.startsWith("The wave of"))?.getAttribute("href") ?? ""`
	p.waits(func() (bool, string) { // whole minutes, and the deadline is in them
		href := eval[string](p, peak)
		q, err := url.ParseQuery(strings.TrimPrefix(href, "#/waves?"))
		from, _ := time.Parse(time.RFC3339, q.Get("from"))
		to, _ := time.Parse(time.RFC3339, q.Get("to"))
		return err == nil && from.Equal(from.Truncate(time.Minute)) && !due.Before(from) && due.Before(to) && to.Sub(from) <= 2*time.Minute, "the link leads to " + href
	})
	at := eval[[]float64](p, `(over => { over.scrollIntoView({block: "center"}); const b = over.getBoundingClientRect(); return [b.left + b.width * 0.52, b.top + 40]; })(document.querySelector('[aria-label="Falls due"] .u-over'))`)
	p.do("click at a bar", chromedp.MouseClickXY(at[0], at[1]))
	p.waits(func() (bool, string) {
		hash := eval[string](p, "location.hash")
		return strings.HasPrefix(hash, "#/waves?from="), "the address is " + hash
	})
}

// does makes a request as the command line does.
func (r *rig) does(method, path, body string) {
	r.Helper()
	if err := calls(r.url, method, path, body); err != nil {
		r.Fatal(err)
	}
}

// Who did what, the latest first, and back again: settings with all that a change has replaced, and
// what was done with one task. Acts on many have no way back, though they be named like others.
func TestLogOfActions(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-1", time.Hour)
	was, err := r.Admin().ChangeTopic(t.Context(), "order.unpaid", -1, func(set *tasks.TopicSettings) error {
		set.Weight, set.ConcurrencyPerGroup, set.Links = 3, 2, map[string]string{"logs": "https://logs.example/{id}"}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.does("POST", "/v1/tasks/order-1/hold", "")
	r.does("POST", "/v1/tasks/order-1/resume", "")
	r.does("POST", "/v1/tasks/actions", `{"action":"hold","filter":{"topic":"order.unpaid"}}`)
	r.does("POST", "/v1/tasks/actions", `{"action":"resume","filter":{"topic":"order.unpaid"}}`)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/topics/order.unpaid")
	p.waits(func() (bool, string) { // a node may hear of settings later
		revision := p.ask(`return String((await (await fetch("/v1/topics/order.unpaid")).json()).revision)`)
		return revision == "1", "the topic has revision " + revision
	})
	r.does("PUT", "/v1/topics/order.unpaid", `{"weight":7}`)
	p.load(r.url)
	p.shows("footer", "Log of actions")
	eval[int](p, `[...document.querySelectorAll("a")].find(a => a.textContent === "Log of actions").click() ?? 0`)
	p.shows("main table", "set-topic")
	p.shows("main table", "without a token")
	p.waits(func() (bool, string) {
		rows := eval[string](p, `[...document.querySelectorAll("main tbody tr")].map(r => r.children[2].textContent + (r.querySelector("button") ? "+" : "")).join(" ")`)
		return rows == "set-topic+ resume hold resume+ hold+", "the acts are " + rows
	})
	eval[int](p, axe(t)+"; 0")
	if wrong := p.ask(`return (await axe.run(document)).violations.map(v => v.id + ": " + v.nodes[0].html).join("\n")`); wrong != "" {
		t.Error(wrong)
	}
	p.press("Undo set-topic of order.unpaid")
	p.submits()
	p.shows(".notices", "It is undone.")
	p.waits(func() (bool, string) {
		topic, err := r.Topic("order.unpaid")
		return err == nil && topic.Revision == was.Revision+2 && reflect.DeepEqual(topic.Settings, was.Settings) && topic.ConcurrencySet == was.ConcurrencySet, fmt.Sprintf("the settings are %+v, want %+v", topic, was)
	})
	r.does("POST", "/v1/topics/order.unpaid/pause", "")
	p.shows("main table", "pause")
	p.press("Undo pause of order.unpaid")
	p.shows("dialog h2", "Undo pause of order.unpaid?")
	p.submits()
	p.waits(func() (bool, string) {
		topic, err := r.Topic("order.unpaid")
		return err == nil && !topic.Settings.Paused && topic.Revision == was.Revision+4, fmt.Sprintf("the topic is %+v", topic)
	})
	p.content()
}

// The charts of the past of a topic are of that topic, with its marks and the age of the oldest
// that waits.
func TestPastOfATopic(t *testing.T) {
	r := serve(t)
	r.schedule("order.unpaid", "order-1", 0)
	r.schedule("cart", "cart-1", time.Hour)
	r.breaks("invoice.send", "no such template")
	r.schedule("invoice.send", "invoice-1", 0)
	r.does("PATCH", "/v1/topics/order.unpaid", `{"lease":"1m"}`)
	r.does("POST", "/v1/topics/order.unpaid/pause", "")
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/topics/order.unpaid")
	p.shows(".marks", "order.unpaid was paused")
	p.shows(".marks", "order.unpaid got other settings")
	p.shows("main", "0 delivered since ")
	p.shows("main", "The oldest that waits is late by ")
	p.load(r.url + "/#/topics/invoice.send")
	p.shows("main", "0 delivered, 1 attempt failed since ")
	p.hides("main", "order.unpaid")
	p.content()
}

// A point of fewer nodes than another one is told as such, and one of none is no zero. The
// latest marks are named, what several nodes have noticed once. What could not be read is said.
func TestPastInParts(t *testing.T) {
	r := serve(t)
	var unread atomic.Bool
	now := time.Now().UTC().Truncate(time.Minute)
	at := func(ago int) string { return now.Add(-time.Duration(ago) * time.Minute).Format(time.RFC3339) }
	url := r.told(map[string]func() string{"GET /v1/history": func() string {
		points, marks, why := "", "", ""
		for i := range 30 {
			points += fmt.Sprintf(`,{"at":"%s","nodes":%d,"scheduled":0,"delivered":%d,"failed":0,"dead":0,"cancelled":0,"lateness":{"count":0,"p50":"0s","p99":"0s","max":"0s"}}`, at(29-i), i%3, i%3*10)
		}
		for i := range 7 {
			marks += fmt.Sprintf(`,{"at":"%s","kind":"settings","topic":"order.%d","by":"ann","text":"lease"}`, at(10-i), i)
		}
		for i := range 3 { // one outage
			marks += fmt.Sprintf(`,{"at":"%s","until":"%s","kind":"ledger_outage","node":"n%d"}`, at(2), at(1), i+1)
		}
		if unread.Load() {
			why = `"unread":"the ledger does not tell what it keeps: closed",`
		}
		return `{"scope":"fleet","covers":["n1"],"missing":[],` + why + `"since":"` + at(29) + `","step":"1m","points":[` + points[1:] + `],"marks":[` + marks[1:] + `]}`
	}})
	p := open(t)
	p.hurries()
	p.load(url)
	p.shows("main", "300 delivered since ")
	p.shows("main", "Some minutes are of fewer than 2 nodes.")
	p.shows(".marks", "order.3 got other settings (lease), by ann")
	p.shows(".marks", "n1, n2, n3 had no answer from the ledger, until ")
	p.hides(".marks", "order.2 ")
	over := func(ago int, says string) {
		t.Helper()
		p.waits(func() (bool, string) {
			at := eval[[]float64](p, fmt.Sprintf(`(over => { if (!over) return [0, 0]; over.scrollIntoView({block: "center"}); const b = over.getBoundingClientRect(); return [b.left + b.width * (60 - %d) / 61 + 1, b.top + 40]; })(document.querySelector('[aria-label="Attempts, last hour"] .u-over'))`, ago))
			p.do("point at a bar", chromedp.MouseEvent("mouseMoved", at[0], at[1]))
			now := p.text(`[aria-label="Attempts, last hour"] figcaption`)
			return strings.Contains(now, says), "it says " + now + ", want " + says
		})
	}
	over(29, ": nothing is known")
	over(28, ": 10 delivered, 0 failed, 0 scheduled, of 1 of 2 nodes")
	over(27, ": 20 delivered, 0 failed, 0 scheduled")
	if folder := os.Getenv("LAPSE_SCREENSHOTS"); folder != "" {
		p.picture(filepath.Join(folder, "past.png"), chromedp.FullScreenshot(100))
	}
	unread.Store(true)
	p.shows("main", "the ledger does not tell what it keeps: closed")
	p.content()
}
