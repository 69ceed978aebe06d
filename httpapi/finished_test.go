package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/ledgertest"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A topic with keep_finished shows what has become of its tasks. The same POST is a repeat, another
// one a conflict, and a PUT makes a new task.
func TestFinishedTasks(t *testing.T) {
	r := newRig(t)
	topic := r.want(r.do("PUT", "/v1/topics/t", `{"keep_finished":"30d"}`), 200)
	if topic["keep_finished"] != "30d" {
		t.Errorf("the topic shows %v", topic["keep_finished"])
	}
	topic = r.want(r.do("PATCH", "/v1/topics/t", `{"lease":"1m"}`), 200)
	if topic["keep_finished"] != "30d" {
		t.Errorf("after a patch of something else it shows %v", topic["keep_finished"])
	}
	const request = `{"id":"a","topic":"t","payload":{"order":42}}`
	r.want(r.do("POST", "/v1/tasks", request), 201)
	v := r.want(r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`), 200)
	receipt := receiptOf(v["tasks"].([]any)[0].(map[string]any))
	r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receipt+`"]}`), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"b","topic":"t","delay":"1h"}`), 201)
	r.want(r.do("DELETE", "/v1/tasks/b", ""), 204)

	finished := func(what string, v map[string]any, outcome string) {
		t.Helper()
		if v["state"] != "finished" || v["outcome"] != outcome || v["finished_at"] == nil || v["reason"] != nil || v["died_at"] != nil {
			t.Errorf("%s: %v", what, v)
		}
	}
	finished("GET", r.want(r.do("GET", "/v1/tasks/a", ""), 200), "delivered")
	finished("GET", r.want(r.do("GET", "/v1/tasks/b", ""), 200), "cancelled")
	finished("the same POST", r.want(r.do("POST", "/v1/tasks", request), 200), "delivered")
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","payload":{"order":43}}`), 409)
	for _, details := range []string{"", "&details=false"} {
		list := r.want(r.do("GET", "/v1/tasks?topic=t&state=finished"+details, ""), 200)["tasks"].([]any)
		if len(list) != 2 {
			t.Fatalf("%d are listed", len(list))
		}
		finished("the list", list[0].(map[string]any), "delivered")
		finished("the list", list[1].(map[string]any), "cancelled")
	}
	r.want(r.do("GET", "/v1/tasks?state=finished", ""), 422)
	r.want(r.do("POST", "/v1/tasks/actions", `{"action":"fire","filter":{"topic":"t","state":"finished"}}`), 422)
	if dead := r.want(r.do("GET", "/v1/topics/t/dead", ""), 200)["tasks"].([]any); len(dead) != 0 {
		t.Errorf("dead: %v", dead)
	}
	r.want(r.do("DELETE", "/v1/tasks/b", ""), 204)
	r.want(r.do("DELETE", "/v1/tasks/a", ""), 404)
	r.want(r.do("PATCH", "/v1/tasks/a", `{"delay":"1h"}`), 404)
	r.want(r.do("POST", "/v1/tasks/a/fire", ""), 404)
	counts := r.want(r.do("GET", "/v1/topics/t", ""), 200)["counts"].(map[string]any)
	if got := fmt.Sprint(counts["finished"], counts["dead"], counts["delivered"]); got != "2 0 1" {
		t.Errorf("finished, dead, delivered: %s", got)
	}
	if v := r.want(r.do("PUT", "/v1/tasks/a", request), 201); v["state"] != "pending" && v["state"] != "ready" {
		t.Errorf("PUT: %v", v)
	}
}

// While the ledger has no room for what a task leaves, no answer says that it is recorded.
func TestFinishedWithoutRoom(t *testing.T) {
	faulty := ledgertest.Wrap(memledger.New())
	quiet := slog.New(slog.DiscardHandler)
	scheduler, err := tasks.Open(t.Context(), faulty, tasks.Config{Log: quiet, AnswerWithin: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scheduler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	api, err := New(Config{Scheduler: scheduler, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, api)
	r.want(r.do("PUT", "/v1/topics/t", `{"keep_finished":"1h"}`), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 201)
	r.want(r.do("POST", "/v1/tasks", `{"id":"b","topic":"t","delay":"1h"}`), 201)
	v := r.want(r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`), 200)
	receipts := `{"receipts":["` + receiptOf(v["tasks"].([]any)[0].(map[string]any)) + `"]}`

	faulty.SetCondition(fmt.Errorf("%w: %w", recovery.ErrFull, recovery.ErrReserveUsed))
	r.waitFor("the ledger has no room", func() bool { return scheduler.Readiness().Condition != "" })
	for range 2 {
		if v := r.want(r.do("POST", "/v1/receipts/ack", receipts), 200); v["settled"] != 1.0 || v["recorded"] != false {
			t.Errorf("the ack: %v", v)
		}
	}
	if v := r.want(r.do("DELETE", "/v1/tasks/b", ""), 503); v["type"] != "/problems/outcome_unknown" || v["recorded"] != false {
		t.Errorf("the cancel: %v", v)
	}
	r.refused(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 503, "ledger_unavailable", "")
	a := r.do("POST", "/v1/tasks", `{"topic":"t"}`)
	if r.refused(a, 503, "ledger_unavailable", ""); !strings.Contains(string(a.body), "available: the ledger is running out of room; /readyz tells more") {
		t.Errorf("it does not say why: %s", a.body)
	}

	faulty.SetCondition(nil)
	r.waitFor("both ends are recorded", func() bool { return scheduler.Stats().Total.Finished == 2 })
	if v := r.want(r.do("POST", "/v1/receipts/ack", receipts), 200); v["recorded"] != true {
		t.Errorf("the ack, repeated: %v", v)
	}
	r.want(r.do("DELETE", "/v1/tasks/b", ""), 204)
	if v := r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 200); v["outcome"] != "delivered" {
		t.Errorf("created again: %v", v)
	}
}
