package httpapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

func TestTopics(t *testing.T) {
	r := newRig(t)
	r.refused(r.do("GET", "/v1/topics/t", ""), 404, "topic_not_found", "")
	r.refused(r.do("DELETE", "/v1/topics/t", ""), 404, "topic_not_found", "")
	const settings = `{"delivery":{"kind":"pull"},"retry":{"max_attempts":3,"min_backoff":"2s","max_backoff":"1d12h"},
		"lease":90000,"concurrency":5,"count_crashes":true,"paused":true}`
	a := r.do("PUT", "/v1/topics/t", settings)
	v := r.want(a, 200)
	if a.header.Get("ETag") != `"1"` {
		t.Errorf("ETag %s", a.header.Get("ETag"))
	}
	if got := fmt.Sprintln(v["name"], v["delivery"], v["retry"], v["lease"], v["concurrency"], v["count_crashes"], v["paused"], v["revision"]); got !=
		"t map[kind:pull] map[max_attempts:3 max_backoff:1d12h min_backoff:2s] 1m30s 5 true true 1\n" {
		t.Errorf("answered %s", got)
	}
	if fmt.Sprint(v["concurrency_set"], v["concurrency_now"]) != "true 5" {
		t.Errorf("with a concurrency of its own it shows %v, %v", v["concurrency_set"], v["concurrency_now"])
	}
	set := strings.TrimSuffix(string(a.body), "}\n")
	if got := r.do("GET", "/v1/topics/t", ""); !strings.HasPrefix(string(got.body), set+`,"scope":`) || got.header.Get("ETag") != `"1"` {
		t.Errorf("GET shows %s, want %s", got.body, a.body)
	}
	v = r.want(r.do("PUT", "/v1/topics/t", `{}`), 200)
	if got := fmt.Sprintln(v["retry"], v["lease"], v["concurrency"], v["paused"]); got != "map[max_age:1d max_attempts:1e+06 max_backoff:10m min_backoff:1s] 30s 64 false\n" {
		t.Errorf("with defaults it shows %s", got)
	}
	if fmt.Sprint(v["concurrency_set"], v["concurrency_now"]) != "false 64" {
		t.Errorf("with the default concurrency it shows %v, %v", v["concurrency_set"], v["concurrency_now"])
	}
	if list := r.want(r.do("GET", "/v1/topics", ""), 200)["topics"].([]any); len(list) != 1 {
		t.Errorf("listed %v", list)
	}
	r.want(r.do("DELETE", "/v1/topics/t", ""), 204)
	gone := func() {
		t.Helper()
		r.refused(r.do("GET", "/v1/topics/t", ""), 404, "topic_not_found", "")
		r.refused(r.do("DELETE", "/v1/topics/t", ""), 404, "topic_not_found", "")
		if list := r.want(r.do("GET", "/v1/topics", ""), 200)["topics"].([]any); len(list) != 0 {
			t.Errorf("deleted, it is listed: %v", list)
		}
	}
	gone()
	r.reserve("t", `{"wait":"10ms"}`, 0) // a receiver does not bring it back
	gone()
	r.refused(r.do("PUT", "/v1/topics/t", `{}`, `If-Match: *`), 412, "precondition_failed", "")
	r.want(r.do("PATCH", "/v1/topics/t", `{"lease":"1m"}`), 200)
	if v := r.want(r.do("GET", "/v1/topics/t", ""), 200); v["lease"] != "1m" || v["concurrency"] != 64.0 {
		t.Errorf("set up again by PATCH, it shows %v", v)
	}
	r.want(r.do("DELETE", "/v1/topics/t", ""), 204)
	gone()
	r.want(r.do("PUT", "/v1/topics/t", `{}`), 200)
	r.want(r.do("GET", "/v1/topics/t", ""), 200)
}

func TestTopicsAreChangedConditionally(t *testing.T) {
	r := newRig(t)
	n := 0
	put := func(header string) answer { // other settings each time, since equal ones change nothing
		n++
		return r.do("PUT", "/v1/topics/t", fmt.Sprintf(`{"concurrency":%d}`, n), header)
	}
	r.refused(put(`If-Match: *`), 412, "precondition_failed", "")
	r.refused(put(`If-Match: "1"`), 412, "precondition_failed", "")
	r.want(put(`If-None-Match: *`), 200)
	r.refused(put(`If-None-Match: *`), 412, "precondition_failed", "")
	r.want(put(`If-Match: *`), 200)
	r.refused(put(`If-Match: "1"`), 412, "precondition_failed", "")
	r.want(put(`If-Match: "2"`), 200)
	r.refused(r.do("PUT", "/v1/topics/t", `{}`, `If-Match: "3"`, `If-None-Match: *`), 422, "invalid", "If-Match")
	r.refused(put(`If-None-Match: "3"`), 422, "invalid", "If-None-Match")
	r.refused(r.do("DELETE", "/v1/topics/t", "", `If-Match: "2"`), 412, "precondition_failed", "")
	r.refused(r.do("DELETE", "/v1/topics/t", "", `If-Match: 3`), 422, "invalid", "If-Match")
	r.want(r.do("DELETE", "/v1/topics/t", "", `If-Match: "3"`), 204)
	r.refused(r.do("DELETE", "/v1/topics/t", "", `If-Match: *`), 412, "precondition_failed", "")
}

func TestPauseAndResume(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/topics/t/pause", ""), 204)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t"}`), 201)
	if v := r.want(r.do("GET", "/v1/topics/t", ""), 200); v["paused"] != true {
		t.Errorf("paused, it shows %v", v)
	}
	r.reserve("t", `{"wait":"50ms"}`, 0)
	r.want(r.do("POST", "/v1/topics/t/resume", ""), 204)
	r.reserve("t", `{"wait":"60s"}`, 1)
	r.refused(r.do("POST", "/v1/topics/-/pause", ""), 422, "invalid", "topic")
}

// bury makes n tasks of a topic dead.
func (r *rig) bury(topic string, n int) {
	r.Helper()
	for i := range n {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"%s%d","topic":"%s"}`, topic, i, topic)), 201)
		receipt := receiptOf(r.reserve(topic, `{"wait":"60s"}`, 1)[0])
		r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receipt+`"]}`), 200)
	}
}

func TestDead(t *testing.T) {
	r := newRig(t)
	r.bury("t", 4)
	r.bury("u", 1)
	v := r.want(r.do("GET", "/v1/topics/t/dead?limit=3", ""), 200)
	if len(v["tasks"].([]any)) != 3 || v["next_cursor"] == nil {
		t.Errorf("listed %v", v)
	}
	v = r.want(r.do("GET", "/v1/topics/t/dead?limit=3&cursor="+v["next_cursor"].(string), ""), 200)
	if len(v["tasks"].([]any)) != 1 || v["next_cursor"] != nil {
		t.Errorf("the next page is %v", v)
	}
	r.refused(r.do("GET", "/v1/topics/t/dead?cursor=x", ""), 422, "invalid", "cursor")

	v = r.want(r.do("GET", "/v1/topics/t", ""), 200)
	if c := v["counts"].(map[string]any); c["dead_oldest_at"] == nil || c["dead"] != 4.0 || c["expired"] != 0.0 {
		t.Errorf("counts %v", c)
	}
	if v := r.want(r.do("GET", "/v1/tasks/t0", ""), 200); v["reason"] != "buried" {
		t.Errorf("a dead task: %v", v)
	}

	v = r.want(r.do("POST", "/v1/topics/t/dead/requeue", `{"ids":["t0","unknown","u0"]}`), 200)
	if v["requeued"] != 1.0 || fmt.Sprint(v["unknown"]) != "[unknown u0]" {
		t.Errorf("requeued %v", v)
	}
	if task := r.reserve("t", `{"wait":"60s"}`, 1)[0].(map[string]any); task["id"] != "t0" || task["attempt"] != 1.0 {
		t.Errorf("back comes %v", task)
	}
	r.want(r.do("DELETE", "/v1/topics/t/dead", `{"ids":["t1"]}`), 204)
	r.refused(r.do("GET", "/v1/tasks/t1", ""), 404, "not_found", "")
	v = r.want(r.do("POST", "/v1/topics/t/dead/requeue", `{"ids":["t2"],"due_at":"2030-01-31T12:00:00Z"}`), 200)
	if v["requeued"] != 1.0 || v["unknown"] != nil {
		t.Errorf("requeued %v", v)
	}
	if v := r.want(r.do("GET", "/v1/tasks/t2", ""), 200); v["due_at"] != "2030-01-31T12:00:00.000Z" || v["state"] != "pending" || v["reason"] != nil {
		t.Errorf("back comes %v", v)
	}
	if v := r.want(r.do("POST", "/v1/topics/t/dead/requeue", `{"delay":"1h","all":true}`), 200); v["requeued"] != 1.0 {
		t.Errorf("requeued %v", v)
	}
	r.reserve("t", `{}`, 0) // not due yet
	r.want(r.do("DELETE", "/v1/topics/u/dead", `{"all":true}`), 204)
	if n := r.scheduler.Stats().Total.Dead; n != 0 {
		t.Errorf("%d are dead", n)
	}
}

// Topics are searched and sorted by the server, so that a page of the worst is small however many
// topics there are. Without them, the answer of the stats is small too.
func TestWorstOfManyTopics(t *testing.T) {
	r := newRig(t)
	const many = 2000
	all := make([]tasks.Request, many)
	for i := range all {
		all[i] = tasks.Request{Topic: fmt.Sprintf("shop%04d", i), Delay: time.Hour}
	}
	if _, err := r.scheduler.ScheduleBatch(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	r.bury("Zebra", 1)
	r.want(r.do("POST", "/v1/topics/shop1000/pause", ""), 204)
	due := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"shop1999","due_at":"`+due+`"}`), 201)
	a := r.do("GET", "/v1/topics?sort=worst&limit=4", "")
	v := r.want(a, 200)
	var names []any
	for _, topic := range v["topics"].([]any) {
		names = append(names, topic.(map[string]any)["name"])
	}
	if got := fmt.Sprint(v["matched"], names); got != "2001 [shop1999 Zebra shop1000 shop0000]" {
		t.Errorf("the worst are %s", got)
	}
	if len(a.body) > 6<<10 {
		t.Errorf("4 topics take %d bytes", len(a.body))
	}
	next := r.want(r.do("GET", "/v1/topics?sort=worst&limit=4&cursor="+v["next_cursor"].(string), ""), 200)
	if first := next["topics"].([]any)[0].(map[string]any)["name"]; first != "shop0001" {
		t.Errorf("the next page begins with %v", first)
	}
	r.refused(r.do("GET", "/v1/topics?sort=dead&cursor="+v["next_cursor"].(string), ""), 422, "invalid", "cursor")
	r.refused(r.do("GET", "/v1/topics?sort=best", ""), 422, "invalid", "sort")
	v = r.want(r.do("GET", "/v1/topics?search=zeb", ""), 200)
	if c := v["topics"].([]any)[0].(map[string]any)["counts"].(map[string]any); v["matched"] != 1.0 || c["failed_recent"] != 1.0 {
		t.Errorf("found %v", v)
	}
	a = r.do("GET", "/v1/stats?topics=false", "")
	if v = r.want(a, 200); v["topics_left_out"] != 2001.0 || len(v["topics"].([]any)) > 0 || len(a.body) > 4<<10 {
		t.Errorf("%d bytes of stats: %v", len(a.body), v)
	}
}

func TestStatsWithoutTopics(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":"1h"}`), 201)
	for _, scope := range []string{"fleet", "node"} {
		v := r.want(r.do("GET", "/v1/stats?topics=false&scope="+scope, ""), 200)
		if v["topics_left_out"] != 1.0 || len(v["topics"].([]any)) > 0 || v["total"].(map[string]any)["pending"] != 1.0 {
			t.Errorf("of the %s: %v", scope, v)
		}
	}
}
