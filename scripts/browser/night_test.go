//go:build browser

package browser

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/httpapi"
	"github.com/lapsehq/lapse/recovery/redisledger"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/webhook"
)

// nightPatience bounds what many tasks may take.
const nightPatience = 5 * time.Minute

// A shop receives the webhooks of six topics, and counts how often it has had each task.
type shop struct {
	url string

	mu    sync.Mutex
	got   map[string]int
	early []string        // tasks that came before their deadline
	late  []time.Duration // of those that were pulled
}

func openShop(t *testing.T) *shop {
	s := &shop{got: make(map[string]int)}
	mux := http.NewServeMux()
	mux.HandleFunc("/hooks/", func(_ http.ResponseWriter, r *http.Request) { s.receive(r, 0) })
	mux.HandleFunc("/slow/", func(_ http.ResponseWriter, r *http.Request) { s.receive(r, 20*time.Millisecond) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// receive answers a webhook, whose body is the task's id, after a while.
func (s *shop) receive(r *http.Request, after time.Duration) {
	id, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	due, _ := time.Parse(time.RFC3339, r.Header.Get("lapse-due"))
	early := time.Now().Before(due)
	select {
	case <-time.After(after):
		s.take(strings.Trim(string(id), `"`), early)
	case <-r.Context().Done():
	}
}

// take notes that a task has come.
func (s *shop) take(id string, early bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.got[id]++; early {
		s.early = append(s.early, id)
	}
}

// tasks returns how many tasks have come, some of them perhaps more than once.
func (s *shop) tasks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// serveFleet runs three servers that share a Redis.
func serveFleet(t *testing.T) (nodes []*rig) {
	t.Helper()
	redis := redistest.Start(t)
	for _, name := range []string{"n1", "n2", "n3"} {
		nodes = append(nodes, serveRedis(t, redis.Addr, name))
	}
	return nodes
}

// serveRedis runs a server that keeps its tasks in a Redis.
func serveRedis(t *testing.T, addr, name string) *rig {
	t.Helper()
	return serveRedisBy(t, redisledger.Options{URL: "redis://" + addr, Node: name})
}

// serveRedisBy is serveRedis with options.
func serveRedisBy(t *testing.T, by redisledger.Options) *rig {
	t.Helper()
	by.Log = slog.New(slog.DiscardHandler)
	ledger, err := redisledger.Open(by)
	if err != nil {
		t.Fatal(err)
	}
	way, err := webhook.New(webhook.Config{Allow: []string{"loopback"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(way.Close)
	return serveOn(t, ledger, tasks.Config{Node: by.Node, Ways: []tasks.Way{way}}, httpapi.Config{})
}

// fleetCount returns a figure of all nodes.
func (r *rig) fleetCount(of func(*tasks.Counts) int64) int {
	r.Helper()
	st, _, err := r.Admin().FleetTotals(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return int(of(&st.Total))
}

// pull receives the tasks of a topic until the returned function is called, or the test ends.
func pull(t *testing.T, c *client.Client, topic string, shop *shop) (stop func()) {
	t.Helper()
	take := func(_ context.Context, d *client.Delivery) error {
		late := time.Since(d.Due)
		shop.mu.Lock()
		shop.late = append(shop.late, late)
		shop.mu.Unlock()
		shop.take(d.ID, late < 0)
		return nil
	}
	w, err := client.NewWorker(c, topic, take, client.WorkerOptions{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = w.Run(ctx) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return stop
}

// An engineer is woken: of six topics at three nodes one fails, one is slow and one is paused. The
// page says which and why. The engineer mends the topic, brings its dead back, resumes the one that
// is paused, and everything is delivered. LAPSE_TASKS is the number of tasks.
func TestNight(t *testing.T) {
	number, err := strconv.Atoi(cmp.Or(os.Getenv("LAPSE_TASKS"), "6000"))
	if err != nil || number < 600 {
		t.Fatal("LAPSE_TASKS must be a number from 600")
	}
	p := open(t)
	nodes := serveFleet(t)
	shop := openShop(t)
	var clients []*client.Client
	for _, n := range nodes {
		c, err := client.New(client.Options{URL: n.url})
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	topics := []string{"coupon.expiring", "order.unpaid", "mail.reminder", "groupbuy.close", "cart.reminder", "stock.release"}
	paths := []string{"/hooks/coupon", "/orders/v1/unpaid", "/slow/mail", "/hooks/groupbuy", "/hooks/cart", ""}
	for i, topic := range topics {
		set := tasks.TopicSettings{Paused: topic == "groupbuy.close"}
		if paths[i] != "" {
			set.Kind, set.Delivery = "webhook", json.RawMessage(`{"url":"`+shop.url+paths[i]+`"}`)
			set.Retry = tasks.Retry{MaxAttempts: 2, MinBackoff: 100 * time.Millisecond, MaxBackoff: 200 * time.Millisecond}
		}
		if _, err := nodes[i%3].SetTopic(t.Context(), topic, set, -1); err != nil {
			t.Fatal(err)
		}
	}
	pull(t, clients[2], "stock.release", shop)
	each := number / len(topics)
	waveOf(t, clients, topics, each*len(topics), time.Now().Add(time.Duration(number)*50*time.Microsecond))
	counted := eval[string](p, "new Intl.NumberFormat().format("+strconv.Itoa(each)+")")
	p.load(nodes[1].url)
	p.waitsFor(nightPatience, func() (bool, string) {
		dead := nodes[1].fleetCount(func(c *tasks.Counts) int64 { return c.Dead })
		return dead == each, fmt.Sprintf("%d are dead", dead)
	})
	p.shows("h1", "order.unpaid is failing.")
	p.shows("#reach", "All 3 nodes")
	p.shows("#worst", "groupbuy.close")
	p.shows("#worst", "paused")
	p.press("order.unpaid")
	p.shows("#trouble", "404")
	p.shows(`[data-figure="dead"] dd`, counted)
	p.press("Edit settings")
	p.fill(`[name="way"]`, `{"url":"`+shop.url+`/hooks/unpaid"}`)
	p.press("Save")
	p.shows(".notices", "The settings are saved.")

	p.load(nodes[1].url + "/#/dead?topic=order.unpaid")
	p.shows("main", "404")
	p.press("Requeue all")
	if each > 1000 {
		p.shows("dialog", "To go on") // it may not have counted to the last
		p.fill("#field-typed", eval[string](p, `(label => label.includes("type all") ? "all" : label.split(": ")[1])(document.querySelector('[for="field-typed"]').textContent)`))
	}
	p.submits()
	p.waitsFor(nightPatience, func() (bool, string) {
		text := p.text(".notices") + p.text("dialog")
		return strings.Contains(text, counted+" tasks came back."), "the page says " + text
	})
	p.load(nodes[2].url + "/#/topics/groupbuy.close")
	p.press("Resume")
	p.hides("h1", "paused")
	p.waitsFor(nightPatience, func() (bool, string) {
		left := nodes[0].fleetCount(func(c *tasks.Counts) int64 { return c.Pending + c.Ready + c.Delivering + c.Dead })
		return shop.tasks() == len(topics)*each && left == 0, fmt.Sprintf("%d tasks have come, %d are left", shop.tasks(), left)
	})
	p.load(nodes[0].url + "/#/")
	p.shows(`[data-figure="ready"]`, "all that was due is handed out")
	for _, figure := range []string{"ready", "delivering", "pending", "dead"} {
		p.shows(`[data-figure="`+figure+`"] dd`, "0")
	}
	p.hides("#worst", "dead")
	p.hides("#worst", "paused")
	p.content()
	twice := 0
	for _, n := range shop.got {
		if n > 1 {
			twice++
		}
	}
	t.Logf("%d tasks of %d topics were delivered, %d of them more than once", len(shop.got), len(topics), twice)
	if len(shop.early) > 0 {
		t.Errorf("%d tasks came early, such as %s", len(shop.early), shop.early[0])
	}
}
