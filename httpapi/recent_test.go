package httpapi

import (
	"testing"
	"time"
)

// A topic, and the sum of all, show how late tasks are that no receiver has taken yet, and why the
// last attempt failed.
func TestRecentLatenessIsShown(t *testing.T) {
	r := newRig(t)
	due := time.Now().Add(-3 * time.Hour).UTC().Format(time.RFC3339)
	r.want(r.do("POST", "/v1/tasks", `{"id":"late","topic":"t","due_at":"`+due+`"}`), 201)
	for path, counts := range map[string]func(v map[string]any) any{
		"/v1/topics/t": func(v map[string]any) any { return v["counts"] },
		"/v1/topics":   func(v map[string]any) any { return v["topics"].([]any)[0].(map[string]any)["counts"] },
		"/v1/stats":    func(v map[string]any) any { return v["total"] },
	} {
		c := counts(r.want(r.do("GET", path, ""), 200)).(map[string]any)
		recent := c["recent"].(map[string]any)
		most, err := time.ParseDuration(recent["max"].(string))
		if err != nil || most < 3*time.Hour || most > 4*time.Hour {
			t.Errorf("%s: the greatest lateness is %v", path, recent["max"])
		}
		if recent["count"] != 1.0 || recent["p99"] != recent["p50"] {
			t.Errorf("%s: recent %v", path, recent)
		}
		since, err := time.Parse(time.RFC3339, c["ready_oldest_at"].(string))
		if err != nil || since.UTC().Format(time.RFC3339) != due {
			t.Errorf("%s: ready since %v; want %s", path, c["ready_oldest_at"], due)
		}
		if c["receivers"] != 0.0 {
			t.Errorf("%s: %v receivers", path, c["receivers"])
		}
	}

	receipt := r.reserve("t", `{}`, 1)[0].(map[string]any)["receipt"].(string)
	r.want(r.do("POST", "/v1/receipts/release", `{"receipts":["`+receipt+`"],"reason":"out of stock","delay":"1h"}`), 200)
	v := r.want(r.do("GET", "/v1/topics/t", ""), 200)
	if _, shown := v["counts"].(map[string]any)["ready_oldest_at"]; shown || v["last_error"] != "out of stock" {
		t.Errorf("after a failed attempt it shows %v", v)
	}
	at, err := time.Parse(time.RFC3339, v["last_failed_at"].(string))
	if err != nil || time.Since(at) > time.Minute || at.After(time.Now()) {
		t.Errorf("failed at %v", v["last_failed_at"])
	}
}

// A task that waits for another attempt is counted and listed as retrying, and is pending.
func TestRetryingIsShown(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"fresh","topic":"t","delay":"1h"}`), 201)
	r.want(r.do("POST", "/v1/tasks", `{"id":"again","topic":"t"}`), 201)
	receipt := receiptOf(r.reserve("t", `{"wait":"10s"}`, 1)[0])
	r.want(r.do("POST", "/v1/receipts/release", `{"receipts":["`+receipt+`"],"delay":"1h"}`), 200)
	for path, within := range map[string]string{"/v1/topics/t": "counts", "/v1/stats": "total"} {
		c := r.want(r.do("GET", path, ""), 200)[within].(map[string]any)
		if c["retrying"] != 1.0 || c["pending"] != 2.0 {
			t.Errorf("%s: %v pending, %v of them retrying", path, c["pending"], c["retrying"])
		}
	}
	list := r.want(r.do("GET", "/v1/tasks?state=retrying", ""), 200)["tasks"].([]any)
	if len(list) != 1 {
		t.Fatalf("%d are listed", len(list))
	}
	if task := list[0].(map[string]any); task["id"] != "again" || task["state"] != "pending" || task["attempt"] != 1.0 {
		t.Errorf("listed: %v", task)
	}
}

// The number of calls of reserve that wait is shown.
func TestReceiversAreShown(t *testing.T) {
	r := newRig(t)
	served := make(chan int, 1)
	go func() {
		ds, _ := r.scheduler.Reserve(t.Context(), "t", 1, time.Minute, 0)
		served <- len(ds)
	}()
	shown := func() int {
		return int(r.want(r.do("GET", "/v1/stats", ""), 200)["total"].(map[string]any)["receivers"].(float64))
	}
	r.until("receivers", 1, shown)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t"}`), 201)
	if n := <-served; n != 1 || shown() != 0 {
		t.Errorf("the receiver got %d tasks, %d wait", n, shown())
	}
}
