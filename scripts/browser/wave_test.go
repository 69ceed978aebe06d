//go:build browser

package browser

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
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

// Who did what, the latest first, and back again.
func TestLogOfActions(t *testing.T) {
	r := serve(t)
	if err := r.PauseTopic(t.Context(), "order.unpaid", true); err != nil {
		t.Fatal(err)
	}
	at := time.Now().UTC().Format(time.RFC3339)
	entry := `{"id":"2","at":"` + at + `","verb":"pause","by":"ann","door":"http","from":"10.0.0.9","node":"n1","topic":"order.unpaid","count":0,"partial":false},` +
		`{"id":"1","at":"` + at + `","verb":"cancel","by":"","door":"http","node":"n1","topic":"cart","group":"g1","detail":"{\"group\":\"g1\"}","count":30,"partial":false}`
	url := r.told(map[string]func() string{"GET /v1/audit": func() string { return `{"entries":[` + entry + `]}` }})
	p := open(t)
	p.load(url)
	p.press("Log of actions")
	p.shows("main table", "ann")
	p.shows("main table", "without a token")
	p.shows("main table", "30")
	p.press("Undo pause of order.unpaid")
	p.shows("dialog h2", "Undo pause of order.unpaid?")
	p.submits()
	p.shows(".notices", "It is undone.")
	p.waits(func() (bool, string) {
		topic, err := r.Topic("order.unpaid")
		return err == nil && !topic.Settings.Paused, "the topic is still paused"
	})
	p.content()
}
