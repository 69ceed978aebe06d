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

func TestPurge(t *testing.T) {
	r := newRig(t)
	for i := range 3 {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"t%d","topic":"t","delay":"1h"}`, i)), 201)
	}
	r.want(r.do("POST", "/v1/tasks", `{"id":"u","topic":"u","delay":"1h"}`), 201)
	r.want(r.do("POST", "/v1/tasks", `{"id":"out","topic":"t"}`), 201)
	receipt := receiptOf(r.reserve("t", `{"wait":"60s"}`, 1)[0])
	if v := r.want(r.do("DELETE", "/v1/topics/t/tasks", ""), 200); v["cancelled"] != 3.0 || v["delivering"] != 1.0 {
		t.Errorf("purged %v", v)
	}
	if v := r.want(r.do("DELETE", "/v1/topics/t/tasks", ""), 200); v["cancelled"] != 0.0 || v["delivering"] != 1.0 {
		t.Errorf("purged again %v", v)
	}
	r.refused(r.do("GET", "/v1/tasks/t0", ""), 404, "not_found", "")
	r.want(r.do("DELETE", "/v1/tasks/t0", ""), 204) // as after a cancel
	r.want(r.do("GET", "/v1/tasks/u", ""), 200)
	if v := r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receipt+`"]}`), 200); v["settled"] != 1.0 {
		t.Errorf("settled %v", v)
	}
	if v := r.want(r.do("DELETE", "/v1/topics/none/tasks", ""), 200); v["cancelled"] != 0.0 {
		t.Errorf("of an unknown topic: %v", v)
	}
}

// When the ledger stops in the middle, the problem says how many tasks were done.
func TestPurgeThatStopsInTheMiddle(t *testing.T) {
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
	const n, each = 9000, 300 // some pieces
	lines := strings.Repeat(`{"topic":"t","delay":"1h"}`+"\n", each)
	for range n / each { // each is accepted within the second
		if v := r.want(r.do("POST", "/v1/tasks/batch", lines, "Content-Type: application/x-ndjson"), 200); v["accepted"] != float64(each) {
			t.Fatalf("accepted %v", v["accepted"])
		}
	}
	faulty.Inject(ledgertest.Fault{Op: ledgertest.Apply, Nth: 3, Times: -1})
	a := r.do("DELETE", "/v1/topics/t/tasks", "")
	r.refused(a, 503, "outcome_unknown", "")
	v := r.want(a, 503)
	done, _ := v["done"].(float64)
	if done < 1 || done >= n || a.header.Get("Retry-After") == "" || !strings.Contains(v["detail"].(string), "were done before") {
		t.Errorf("answered %s", a.body)
	}
	// What the piece that stopped has cancelled in memory is not on record yet.
	a = r.do("DELETE", "/v1/topics/t/tasks", "")
	r.refused(a, 503, "outcome_unknown", "")
	if v := r.want(a, 503); v["recorded"] != false || v["done"] != nil {
		t.Errorf("during the outage it is answered %s", a.body)
	}
	faulty.Heal()
	for a = r.do("DELETE", "/v1/topics/t/tasks", ""); a.status == 503; {
		a = r.do("DELETE", "/v1/topics/t/tasks", "")
	}
	r.want(a, 200)
	if c := scheduler.Stats().Total; c.Cancelled != n || c.Pending != 0 {
		t.Errorf("in the end %d are cancelled, %d pending", c.Cancelled, c.Pending)
	}
}
