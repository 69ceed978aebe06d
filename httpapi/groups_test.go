package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// listed are the ids of a list, page by page.
func (r *rig) listed(path string) string {
	r.Helper()
	var ids []string
	for after := ""; ; {
		v := r.want(r.do("GET", path+"limit=2"+after, ""), 200)
		for _, task := range v["tasks"].([]any) {
			ids = append(ids, task.(map[string]any)["id"].(string))
		}
		next, more := v["next_cursor"]
		if !more {
			return strings.Join(ids, " ")
		}
		after = "&cursor=" + next.(string)
	}
}

// Several deadlines of one order are scheduled in one request, and listed and cancelled together,
// as far as they are left.
func TestGroupOfSeveralDeadlines(t *testing.T) {
	r := newRig(t)
	v := r.want(r.do("POST", "/v1/tasks/batch", `[
		{"id":"coupon-7.close","topic":"coupon.close","group":"coupon-7","delay":"30d"},
		{"id":"coupon-7.week","topic":"coupon.warn","group":"coupon-7","delay":"23d","payload":{"coupon":7,"left":"7d"}},
		{"id":"coupon-7.day","topic":"coupon.warn","group":"coupon-7","delay":"29d","payload":{"coupon":7,"left":"1d"}},
		{"id":"coupon-8.close","topic":"coupon.close","group":"coupon-8","delay":"31d"},
		{"id":"alone","topic":"coupon.close","delay":"1d"}]`), 200)
	if v["accepted"] != 5.0 {
		t.Fatalf("accepted %v", v)
	}
	week := r.want(r.do("GET", "/v1/tasks/coupon-7.week", ""), 200)["due_at"].(string)
	for path, want := range map[string]string{
		"/v1/groups/coupon-7?due_from=" + week + "&":                             "coupon-7.week coupon-7.day coupon-7.close",
		"/v1/groups/coupon-7?due_to=" + week + "&":                               "",
		"/v1/groups/coupon-7?id_prefix=coupon-7.c&":                              "coupon-7.close",
		"/v1/groups/coupon-7?error=timeout&":                                     "",
		"/v1/tasks?due_from=" + week + "&id_prefix=coupon-7&topic=coupon.close&": "coupon-7.close",
		"/v1/groups/coupon-7?":                                                   "coupon-7.week coupon-7.day coupon-7.close",
		"/v1/tasks?group=coupon-7&":                                              "coupon-7.week coupon-7.day coupon-7.close",
		"/v1/tasks?group=coupon-7&topic=coupon.warn&":                            "coupon-7.week coupon-7.day",
		"/v1/tasks?group=coupon-7&state=ready&":                                  "",
		"/v1/tasks?group=coupon-7&topic=unknown&":                                "",
		"/v1/groups/coupon-8?":                                                   "coupon-8.close",
		"/v1/groups/unknown?":                                                    "",
		"/v1/tasks?topic=coupon.close&":                                          "alone coupon-7.close coupon-8.close",
		"/v1/tasks?":                                                             "alone coupon-7.week coupon-7.day coupon-7.close coupon-8.close",
		"/v1/tasks?group=coupon-7&topic=coupon.warn&state=pending&":              "coupon-7.week coupon-7.day",
	} {
		if got := r.listed(path); got != want {
			t.Errorf("GET %s lists %q, want %q", path, got, want)
		}
	}
	r.want(r.do("POST", "/v1/tasks/coupon-7.week/fire", ""), 202)
	receipt := receiptOf(r.reserve("coupon.warn", `{"wait":"60s"}`, 1)[0])
	a := r.do("DELETE", "/v1/groups/coupon-7", "")
	r.want(a, 200)
	if got := strings.TrimSpace(string(a.body)); got != `{"cancelled":2,"delivering":["coupon-7.week"]}` {
		t.Errorf("answered %s", got)
	}
	r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receipt+`"]}`), 200)
	a = r.do("DELETE", "/v1/groups/coupon-7", "")
	r.want(a, 200)
	if got := strings.TrimSpace(string(a.body)); got != `{"cancelled":0,"delivering":[]}` {
		t.Errorf("repeated, it is answered %s", got)
	}
	r.refused(r.do("GET", "/v1/tasks/coupon-7.close", ""), 404, "not_found", "")
	if got := r.listed("/v1/groups/coupon-8?"); got != "coupon-8.close" {
		t.Errorf("the other group has %q", got)
	}
}

// A task belongs to the group of its last content.
func TestGroupOfAReplacedTask(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/tasks/a", `{"topic":"t","group":"g","delay":"1h"}`), 201)
	r.want(r.do("PUT", "/v1/tasks/a", `{"topic":"t","group":"h","delay":"1h"}`), 200)
	if g, h := r.listed("/v1/groups/g?"), r.listed("/v1/groups/h?"); g != "" || h != "a" {
		t.Errorf("g has %q, h %q", g, h)
	}
	if v := r.want(r.do("DELETE", "/v1/groups/g", ""), 200); v["cancelled"] != 0.0 {
		t.Errorf("answered %v", v)
	}
	r.want(r.do("PUT", "/v1/tasks/a", `{"topic":"t","delay":"1h"}`), 200)
	if v := r.want(r.do("DELETE", "/v1/groups/h", ""), 200); v["cancelled"] != 0.0 {
		t.Errorf("answered %v", v)
	}
	r.want(r.do("GET", "/v1/tasks/a", ""), 200)
}

// Those that are being delivered are named up to a thousand.
func TestGroupOfManyDeliveries(t *testing.T) {
	r := newRig(t)
	const n = tasks.MaxGroupDelivering + 3
	body := strings.Repeat(`{"topic":"t","group":"g"}`+"\n", n)
	r.want(r.do("POST", "/v1/tasks/batch", body, "Content-Type: application/x-ndjson"), 200)
	for taken := 0; taken < n; {
		v := r.want(r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s","max":1000}`), 200)
		taken += len(v["tasks"].([]any))
	}
	v := r.want(r.do("DELETE", "/v1/groups/g", ""), 200)
	if len(v["delivering"].([]any)) != tasks.MaxGroupDelivering || v["more_delivering"] != 3.0 || v["cancelled"] != 0.0 {
		t.Errorf("%d named, %v more, %v cancelled", len(v["delivering"].([]any)), v["more_delivering"], v["cancelled"])
	}
}

// When the ledger stops in the middle, the problem says how many tasks were done.
func TestCancelGroupThatStopsInTheMiddle(t *testing.T) {
	faulty := ledgertest.Wrap(memledger.New())
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(t.Context(), faulty, tasks.Config{Log: quiet, AnswerWithin: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	api, err := New(Config{Scheduler: scheduler, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		faulty.Heal()
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	r := serve(t, api)
	const n = 9000 // some pieces
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"topic":"t%d","group":"g","delay":"1h"}`+"\n", i%3)
	}
	r.want(r.do("POST", "/v1/tasks/batch", lines.String(), "Content-Type: application/x-ndjson"), 200)
	faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: 3, Times: -1})
	a := r.do("DELETE", "/v1/groups/g", "")
	r.refused(a, 503, "outcome_unknown", "")
	v := r.want(a, 503)
	if done, _ := v["done"].(float64); done < 1 || done >= n || a.header.Get("Retry-After") == "" {
		t.Errorf("answered %s", a.body)
	}
	faulty.Heal()
	for a = r.do("DELETE", "/v1/groups/g", ""); a.status == 503; {
		a = r.do("DELETE", "/v1/groups/g", "")
	}
	r.want(a, 200)
	if c := scheduler.Stats().Total; c.Cancelled != n || c.Pending != 0 {
		t.Errorf("in the end %d are cancelled, %d pending", c.Cancelled, c.Pending)
	}
}
