//go:build browser

package browser

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/client"
	"github.com/lapsehq/lapse/recovery/redisledger/redistest"
)

// A watchman reads the headline of the page, and mends what it names.
type watchman struct {
	*tab
	url    string
	says   string            // the headline
	mended map[string]func() // by what the headline says
}

// watch reads the headline until all is mended, and it is one of these. What it names is mended
// once.
func (w *watchman) watch(until ...string) {
	w.Helper()
	w.load(w.url + "/?" + strconv.FormatInt(time.Now().UnixNano(), 36))
	w.waitsFor(nightPatience, func() (bool, string) {
		says := w.text("h1")
		if says != w.says {
			w.says = says
			w.Logf("%s the page says: %s", time.Now().Format("15:04:05"), says)
		}
		for cause, mend := range w.mended {
			if strings.Contains(says, cause) {
				delete(w.mended, cause)
				mend()
			}
		}
		return len(w.mended) == 0 && slices.Contains(until, says) && eval[bool](w.tab, `document.querySelector(".head .fresh")?.textContent === "Live"`), "the headline is " + says
	})
}

// TestMidnight is the night of three nodes, of which the page tells: a topic that fails, a node
// that dies, a Redis that stands still, one after the other. The watchman finds each cause in the
// headline, and mends it. Then the wave of LAPSE_TASKS tasks, which were scheduled before all of
// that, goes through to its last task. The page says how far it is, and when it is through.
func TestMidnight(t *testing.T) {
	number, _ := strconv.Atoi(os.Getenv("LAPSE_TASKS"))
	if number == 0 {
		t.Skip("LAPSE_TASKS is not set, such as to 200000")
	}
	p, shop := open(t), openShop(t)
	withProcesses(t, 5*time.Second, func(redis *redistest.Server, nodes []*process) {
		topics, paths := []string{"coupon.expiring", "mail.reminder", "groupbuy.close", "cart.reminder"}, "/hooks/"
		var clients []*client.Client
		for _, n := range nodes {
			clients = append(clients, n.client)
		}
		hook := func(topic, path string) {
			body, _ := json.Marshal(map[string]any{"delivery": map[string]any{"kind": "webhook", "url": shop.url + path}, "retry": map[string]any{"max_attempts": 2, "min_backoff": "100ms", "max_backoff": "200ms"}})
			nodes[0].does("PUT", "/v1/topics/"+topic, string(body))
		}
		for _, topic := range topics {
			hook(topic, paths+topic)
		}
		hook("order.unpaid", "/orders/v1/unpaid")
		began := time.Now()
		midnight := began.Add(45*time.Second + time.Duration(number)*100*time.Microsecond).Truncate(time.Minute).Add(time.Minute)
		waveOf(t, clients, topics, number, midnight)
		t.Logf("%d tasks were scheduled in %v, due from %s", number, time.Since(began).Round(time.Second), midnight.Format("15:04:05"))

		w := &watchman{tab: p, url: nodes[1].url}
		w.mended = map[string]func(){}
		w.watch("Nothing is late.")
		const orders = 300
		for i := range orders {
			if _, err := clients[i%3].Schedule(t.Context(), client.Request{Topic: "order.unpaid", Payload: []byte(fmt.Sprintf(`"order.unpaid-%d"`, i))}); err != nil {
				t.Fatal(err)
			}
		}
		w.mended["order.unpaid is failing"] = func() {
			p.press("order.unpaid")
			p.shows("#trouble", "404")
			p.shows(`[data-figure="dead"] dd`, strconv.Itoa(orders))
			p.press("Edit settings")
			p.fill(`[name="way"]`, `{"url":"`+shop.url+paths+`unpaid"}`)
			p.press("Save")
			p.shows(".notices", "The settings are saved.")
			p.load(w.url + "/#/dead?topic=order.unpaid")
			p.shows("main", "404")
			p.press("Requeue all")
			p.confirms("Requeue", orders)
			p.shows(".notices", fmt.Sprint(orders, " tasks came back."))
			p.load(w.url + "/#/")
		}
		// What has failed is told for five minutes.
		mended := []string{"order.unpaid is failing.", "Nothing is late."}
		w.watch(mended...)
		nodes[2].kill()
		w.mended["n3 is down, and others have its tasks"] = nodes[2].start
		w.watch(mended...)
		redis.Pause()
		w.mended["The ledger does not answer"] = redis.Resume
		w.watch(mended...)
		t.Logf("all is mended after %v, %v before midnight", time.Since(began).Round(time.Second), time.Until(midnight).Round(time.Second))

		p.load(w.url + "/#/waves?from=" + midnight.UTC().Format(time.RFC3339))
		all := eval[string](p, "new Intl.NumberFormat('en').format("+strconv.Itoa(number)+")")
		p.waits(func() (bool, string) {
			text := p.text("#wave")
			return strings.Contains(text, all+" tasks fall due.") || time.Now().After(midnight), "the page says " + text
		})
		said, steps := "", 0
		p.waitsFor(nightPatience+time.Until(midnight), func() (bool, string) {
			if now := p.text("#wave"); now != said {
				if said = now; steps%5 == 0 || strings.Contains(said, "All") {
					t.Logf("%s the page says: %s", time.Now().Format("15:04:05"), said)
				}
				steps++
			}
			return strings.Contains(said, "All "+all+" tasks are through, since "), said
		})
		if n := shop.tasks(); n != number+orders {
			t.Errorf("the page says that all is through, and %d of %d tasks have come", n, number+orders)
		}
		if len(shop.early) > 0 {
			t.Errorf("%d tasks came early, such as %s", len(shop.early), shop.early[0])
		}
		p.press("Overview")
		for _, figure := range []string{"overdue", "ready", "delivering", "pending", "dead"} {
			p.shows(`[data-figure="`+figure+`"] dd`, "0")
		}
	})
}

// waveOf schedules so many tasks, as many for each topic, that are due within five seconds.
func waveOf(t *testing.T, clients []*client.Client, topics []string, number int, due time.Time) {
	t.Helper()
	for i := 0; i < number; i += 1000 {
		var batch []client.Request
		for n := i; n < min(i+1000, number); n++ {
			topic := topics[n%len(topics)]
			id := fmt.Sprintf("%s-%d", topic, n)
			batch = append(batch, client.Request{ID: id, Topic: topic, Due: due.Add(time.Duration(n%5000) * time.Millisecond), Payload: []byte(`"` + id + `"`)})
		}
		results, err := clients[i/1000%len(clients)].ScheduleBatch(t.Context(), batch)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Problem != nil {
				t.Fatal(r.Problem)
			}
		}
	}
}
