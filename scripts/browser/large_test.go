//go:build browser

package browser

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/client"
)

// transferred is how many bytes the page has loaded so far.
const transferred = `performance.getEntriesByType("resource").concat(performance.getEntriesByType("navigation")).reduce((n, e) => n + e.transferSize, 0)`

// TestLargeFleet loads the overview of three nodes with LAPSE_TASKS pending tasks in 2,000 topics.
// The page is small, and what a refresh asks for too. It prints how long the first paint takes
// beside that of an empty server, and how late tasks are while 20 pages are open and while none is.
func TestLargeFleet(t *testing.T) {
	number, _ := strconv.Atoi(os.Getenv("LAPSE_TASKS"))
	if number == 0 {
		t.Skip("LAPSE_TASKS is not set, such as to 1000000")
	}
	p := open(t)
	empty := serve(t)
	nodes := serveFleet(t)
	var clients []*client.Client
	for _, n := range nodes {
		c, err := client.New(client.Options{URL: n.url})
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	for i := 0; i < number; i += 10_000 {
		var batch []client.Request
		for n := i; n < min(i+10_000, number); n++ {
			batch = append(batch, client.Request{Topic: fmt.Sprintf("topic.%04d", n%2000), Delay: time.Hour + time.Duration(n%86400)*time.Second})
		}
		if _, err := clients[i/10_000%len(clients)].ScheduleBatch(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	p.load(nodes[0].url)
	p.shows(`[data-figure="pending"] dd`, eval[string](p, "new Intl.NumberFormat().format("+strconv.Itoa(number)+")"))
	p.waits(func() (bool, string) {
		return eval[bool](p, `performance.getEntriesByType("resource").some(e => e.name.includes("forecast"))`), "the forecast is not asked for"
	})
	first := eval[int](p, transferred)
	if first > 150<<10 {
		t.Errorf("the first paint takes %d bytes", first)
	}
	refreshes := func() int {
		return eval[int](p, `performance.getEntriesByType("resource").filter(e => e.name.includes("v1/stats")).length`)
	}
	from := refreshes()
	p.waits(func() (bool, string) { return refreshes() >= from+5, "the page does not refresh itself" })
	refresh := (eval[int](p, transferred) - first) / 5
	if refresh > 20<<10 {
		t.Errorf("a refresh takes %d bytes", refresh)
	}
	t.Logf("%d bytes are loaded first, %d with a refresh", first, refresh)
	for range 5 {
		t.Logf("first paint after %v; of an empty server after %v", p.paint(nodes[0].url), p.paint(empty.url))
	}
	t.Logf("p99 of lateness with no page: %v", nodes[0].lateness(clients[0], "before"))
	var tabs []*tab
	for i := range 20 {
		tabs = append(tabs, p.another())
		tabs[i].load(nodes[i%3].url)
	}
	t.Logf("p99 of lateness with 20 pages: %v", nodes[0].lateness(clients[0], "with"))
	for _, other := range tabs {
		other.content()
	}
	p.content()
}

// paint loads a page anew, and returns the time of its first paint of figures.
func (p *tab) paint(url string) time.Duration {
	p.Helper()
	p.load("about:blank")
	began := time.Now()
	p.load(url)
	p.do("wait for figures", chromedp.WaitVisible(chromedp.CSS(`[data-figure="pending"] dd`)))
	return time.Since(began).Round(time.Millisecond)
}

// another opens another page in the same browser.
func (p *tab) another() *tab {
	ctx, closeTab := chromedp.NewContext(p.ctx)
	p.Cleanup(closeTab)
	return &tab{T: p.T, ctx: ctx}
}

// lateness schedules 5,000 tasks within ten seconds, and returns how late 99 of 100 were pulled.
func (r *rig) lateness(c *client.Client, topic string) time.Duration {
	r.Helper()
	const number = 5000
	shop := &shop{got: make(map[string]int)}
	pull(r.T, c, topic, shop)
	due := time.Now().Add(2 * time.Second)
	var batch []client.Request
	for n := range number {
		batch = append(batch, client.Request{Topic: topic, DueAt: due.Add(time.Duration(n) * 2 * time.Millisecond)})
	}
	if _, err := c.ScheduleBatch(r.Context(), batch); err != nil {
		r.Fatal(err)
	}
	(&tab{T: r.T}).waitsFor(nightPatience, func() (bool, string) { return shop.tasks() == number, "tasks are missing" })
	found, _, err := r.FleetTopic(r.Context(), topic)
	if err != nil {
		r.Fatal(err)
	}
	return found.Counts.Lateness.Quantile(0.99)
}
