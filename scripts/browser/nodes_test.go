//go:build browser

package browser

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/ledgertest/memfleet"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
)

// Which node is down, and which has its tasks.
func TestNodeDown(t *testing.T) {
	fleet := memfleet.New()
	member := fleet.Join("n1", 4)
	r := serveOn(t, member, tasks.Config{Node: "n1"}, httpapi.Config{})
	gone := fleet.Join("n2", 4)
	serveOn(t, gone, tasks.Config{Node: "n2"}, httpapi.Config{})
	gone.Crash()
	p := open(t)
	p.hurries()
	p.load(r.url)
	p.shows("#banners", "n2 is down, and its tasks wait, since ")
	p.shows(".head .fresh.bad", "Of 1 of 2 nodes")
	p.press("1 of 2 nodes")
	p.shows("h1", "n2 is down, and its tasks wait.")
	p.shows("main", "It still owns 4 shards: their tasks wait.")
	member.AdoptFrom(gone)
	p.shows("h1", "n2 is down, and others have its tasks.")
	p.shows("main", "Others hold its tasks.")
	p.shows("main", "holds 4 shards of other nodes")
	p.shows("#reach", "1 node, n2 down")
	p.content()
}

// A node is drained.
func TestDrain(t *testing.T) {
	fleet := memfleet.New()
	r := serveOn(t, fleet.Join("n1", 4), tasks.Config{Node: "n1"}, httpapi.Config{})
	away := serveOn(t, fleet.Join("n2", 4), tasks.Config{Node: "n2"}, httpapi.Config{})
	away.schedule("order.unpaid", "", time.Hour)
	p := open(t)
	p.hurries()
	p.load(r.url + "/#/nodes")
	p.press("Drain n2")
	p.shows("dialog", "It hands its 4 shards over")
	p.pressIn("dialog", "Drain")
	p.shows(".notices", "n2 drains.")
	<-away.Admin().Drained()
	p.shows("main", "holds 4 shards of other nodes")
	p.do("make it narrow", chromedp.EmulateViewport(320, 740, chromedp.EmulateMobile, chromedp.EmulateTouch))
	if cut := eval[string](p, cutOff); cut != "" {
		t.Error("on a phone a mark beside a note is cut off:", cut)
	}
	p.content()
}

// The same on a real Redis: a node is cut off, the page says which one is missing, others adopt
// what it held, and it comes back. Then it is drained.
func TestNodesOnRedis(t *testing.T) {
	redis := redistest.Start(t)
	serve := func(url, name string) *rig {
		return serveRedisBy(t, redisledger.Options{URL: url, Node: name, FailoverAfter: 3 * time.Second})
	}
	proxy := redistest.NewProxy(t, redis.Addr)
	r := serve(redis.URL(), "n1")
	serve(redis.URL(), "n2")
	third := serve(proxy.URL(), "n3")
	third.schedule("order.unpaid", "order-42", time.Hour)
	p := open(t)
	p.hurries()
	p.load(r.url)
	p.shows("#reach", "All 3 nodes")
	proxy.Sever(redistest.Reset)
	p.shows("#banners", "n3 is down, and ") // its tasks wait, and a moment later others have them
	p.shows("#reach", "n3 down")
	p.load(r.url + "/#/nodes")
	p.shows("h1", "n3 is down, and others have its tasks.")
	p.shows("main", "Others hold its tasks.")
	proxy.Heal()
	p.shows("#reach", "All 3 nodes")
	p.hides("main", "Others hold its tasks.")
	p.press("Drain n3")
	p.pressIn("dialog", "Drain")
	p.shows(".notices", "n3 drains.")
	<-third.Admin().Drained()
	p.shows("main", "of other nodes")
	if _, err := r.Get(t.Context(), "order-42"); err != nil {
		t.Error("the task of the node that was drained:", err)
	}
	p.content()
}
