//go:build browser

package browser

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/tasks"
)

// The pictures of the dashboard in the documentation: with LAPSE_SCREENSHOTS, a folder, this leaves
// dashboard.png, dashboard-phone.png and dashboard-task.png there. Three nodes have worked before
// for as long as LAPSE_SCREENSHOTS_AFTER says, 10s by default.
func TestPictures(t *testing.T) {
	folder := os.Getenv("LAPSE_SCREENSHOTS")
	if folder == "" {
		t.Skip("LAPSE_SCREENSHOTS is not set, to a folder")
	}
	after, err := time.ParseDuration(cmp.Or(os.Getenv("LAPSE_SCREENSHOTS_AFTER"), "10s"))
	if err != nil {
		t.Fatal(err)
	}
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == "/invoices" {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte(`{"error":"no such template: invoice_v2"}`))
		}
	}))
	defer shop.Close()
	nodes := serveFleet(t)
	for topic, path := range map[string]string{"order.unpaid": "/orders", "invoice.send": "/invoices", "coupon.expiring": "/coupons", "newsletter": "/news"} {
		set := tasks.TopicSettings{Kind: "webhook", Delivery: json.RawMessage(`{"url":"` + shop.URL + path + `"}`), Paused: topic == "newsletter"}
		set.Retry = tasks.Retry{MaxAttempts: 3, MinBackoff: 500 * time.Millisecond, MaxBackoff: 2 * time.Second}
		if _, err := nodes[0].SetTopic(t.Context(), topic, set, -1); err != nil {
			t.Fatal(err)
		}
	}
	chance := rand.New(rand.NewPCG(1, 2))
	for _, load := range []struct {
		topic  string
		number int
		within time.Duration
	}{
		{"order.unpaid", 50_000, 100 * time.Minute}, {"invoice.send", 1000, 100 * time.Minute},
		{"coupon.expiring", 30_000, 24 * time.Hour}, {"cart.reminder", 40, time.Second}, {"newsletter", 500, time.Second},
	} {
		var batch []tasks.Request
		for i := range load.number {
			batch = append(batch, tasks.Request{ID: fmt.Sprintf("%.4s-%d", load.topic, i), Topic: load.topic, Group: "shop-" + load.topic[:1],
				Delay: time.Duration(chance.Int64N(int64(load.within))), Payload: fmt.Appendf(nil, `{"number":%d}`, i)})
		}
		for i := 0; i < len(batch); i += 10_000 {
			if _, err := nodes[i/10_000%3].ScheduleBatch(t.Context(), batch[i:min(i+10_000, len(batch))]); err != nil {
				t.Fatal(err)
			}
		}
	}
	began := time.Now()
	p := open(t)
	p.load(nodes[0].url)
	p.waitsFor(after+patience, func() (bool, string) {
		up := time.Since(began)
		return up >= after && nodes[0].fleetCount(func(c *tasks.Counts) int64 { return c.Dead }) > 0, fmt.Sprintf("the node is up for %v", up)
	})
	dead, err := nodes[0].Admin().DeadTasks(t.Context(), "invoice.send", 1, "")
	if err != nil || len(dead.Tasks) == 0 {
		t.Fatal("no task is dead", err)
	}
	for _, shot := range []struct {
		name, theme, hash, shows string
		width, height            int64
	}{
		{"dashboard", "light", "#/", "is failing", 1280, 800},
		{"dashboard-phone", "dark", "#/", "is failing", 390, 844},
		{"dashboard-task", "dark", "#/tasks/" + dead.Tasks[0].ID, "Attempt 3 failed", 390, 844},
	} {
		phone := shot.width < 1000
		var as []chromedp.EmulateViewportOption
		if phone {
			as = append(as, chromedp.EmulateMobile, chromedp.EmulateTouch, chromedp.EmulateScale(1.5))
		}
		p.do("resize", chromedp.EmulateViewport(shot.width, shot.height, as...))
		p.theme(shot.theme)
		p.load("about:blank")
		p.load(nodes[0].url + "/" + shot.hash)
		p.shows("main", shot.shows)
		if shot.hash == "#/" {
			p.shows("#reach", "All 3 nodes")
			p.shows("#fleet", "n3")
			p.shows("main", "delivered")
			p.shows(`[data-figure="soon"] dd`, ",")
		}
		of := chromedp.FullScreenshot(100)
		if phone {
			of = chromedp.CaptureScreenshot()
		}
		p.picture(filepath.Join(folder, shot.name+".png"), of)
	}
	p.content()
}
