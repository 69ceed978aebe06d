package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// hooks is a way of delivery that keeps what it gets, and knows url and headers.
type hooks struct{}

func (hooks) Kind() tasks.Kind { return "hook" }

func (hooks) Deliverer(_ string, settings json.RawMessage) (tasks.Deliverer, error) {
	var known struct {
		URL     string
		Headers map[string]string
	}
	d := json.NewDecoder(strings.NewReader(string(settings)))
	d.DisallowUnknownFields()
	if err := d.Decode(&known); err != nil || known.URL == "" {
		return nil, &tasks.InvalidError{Fields: []tasks.FieldError{{Field: "url", Problem: "must be given, and nothing unknown"}}}
	}
	return tasks.HandlerFunc(func(ctx context.Context, _ *tasks.Delivery) error { <-ctx.Done(); return ctx.Err() }), nil
}

func newHookRig(t *testing.T) *rig {
	return newRigOn(t, memledger.New(), tasks.Config{Ways: []tasks.Way{hooks{}}}, Config{})
}

const hook = `{"delivery":{"kind":"hook","url":"https://a","headers":{"x":"1","y":"2"}},"lease":"2m","retry":{"max_attempts":3},"rate":{"per_second":5}}`

// A PUT without a delivery does not turn a topic into a pulled one while tasks wait.
func TestPutDoesNotDropTheDelivery(t *testing.T) {
	r := newHookRig(t)
	kind := func() any {
		return r.want(r.do("GET", "/v1/topics/w", ""), 200)["delivery"].(map[string]any)["kind"]
	}
	r.want(r.do("PUT", "/v1/topics/w", hook), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"t","topic":"w","delay":"1h"}`), 201)
	for _, headers := range [][]string{nil, {`If-Match: "1"`}, {"If-Match: *"}} {
		r.refused(r.do("PUT", "/v1/topics/w", `{"lease":"1m"}`, headers...), 409, "delivery_dropped", "")
	}
	if got := kind(); got != "hook" {
		t.Fatalf("it has become %v", got)
	}
	r.refused(r.do("PUT", "/v1/topics/w", `{"lease":"1m"}`, `If-Match: "7"`), 409, "delivery_dropped", "")
	r.want(r.do("PUT", "/v1/topics/w", `{"lease":"1m","delivery":{"kind":"hook","url":"https://b"}}`), 200)
	r.want(r.do("PUT", "/v1/topics/w?replace=true", `{"lease":"1m"}`), 200)
	if got := kind(); got != "pull" {
		t.Fatalf("replaced, it is %v", got)
	}
	r.want(r.do("PUT", "/v1/topics/w", `{"lease":"3m"}`), 200) // there is nothing to drop
	r.want(r.do("PUT", "/v1/topics/w", hook), 200)
	r.want(r.do("PUT", "/v1/topics/w", `{"delivery":{"kind":"pull"}}`), 200) // names pull
	r.want(r.do("PUT", "/v1/topics/w", hook), 200)
	r.do("DELETE", "/v1/tasks/t", "")
	r.want(r.do("PUT", "/v1/topics/w", `{"lease":"1m"}`), 200) // nothing waits
}

// PATCH changes what it names, as RFC 7396 says.
func TestPatchTopic(t *testing.T) {
	r := newHookRig(t)
	shown := func(a answer) string {
		v := r.want(a, 200)
		text, _ := json.Marshal([]any{v["delivery"], v["lease"], v["retry"].(map[string]any)["max_attempts"], v["rate"], v["concurrency_set"], v["revision"]})
		return string(text)
	}
	r.want(r.do("PUT", "/v1/topics/w", hook), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"t","topic":"w","delay":"1h"}`), 201)
	for i, c := range [][2]string{
		{`{"lease":"1m"}`, `[{"headers":{"x":"1","y":"2"},"kind":"hook","url":"https://a"},"1m",3,{"burst":5,"per_second":5},false,2]`},
		{`{"delivery":{"url":"https://b","headers":{"x":null,"z":"3"}}}`, `[{"headers":{"y":"2","z":"3"},"kind":"hook","url":"https://b"},"1m",3,{"burst":5,"per_second":5},false,3]`},
		{`{"rate":{"burst":9},"concurrency":7}`, `[{"headers":{"y":"2","z":"3"},"kind":"hook","url":"https://b"},"1m",3,{"burst":9,"per_second":5},true,4]`},
		{`{"rate":null,"concurrency":null,"lease":null}`, `[{"headers":{"y":"2","z":"3"},"kind":"hook","url":"https://b"},"30s",3,null,false,5]`},
		{`{}`, `[{"headers":{"y":"2","z":"3"},"kind":"hook","url":"https://b"},"30s",3,null,false,5]`},
		{`{"delivery":null}`, `[{"kind":"pull"},"30s",3,null,false,6]`},
	} {
		headers := []string{"Content-Type: application/merge-patch+json"}
		if i%2 == 0 {
			headers = nil // JSON will do
		}
		if diff := cmp.Diff(c[1], shown(r.do("PATCH", "/v1/topics/w", c[0], headers...))); diff != "" {
			t.Errorf("%s:\n%s", c[0], diff)
		}
	}
	// A topic without settings.
	if got := shown(r.do("PATCH", "/v1/topics/new", `{"lease":"9s"}`)); got != `[{"kind":"pull"},"9s",1000000,null,false,1]` {
		t.Error(got)
	}
	for body, field := range map[string]string{
		`{"laese":"1m"}`: "laese", `{"lease":"1ms"}`: "lease", `{"retry":{"max_attempts":0}}`: "retry.max_attempts", `{"retry":{"tries":1}}`: "retry.tries",
		`{"rate":{"burst":3}}`: "rate.per_second", `{"lease":"1m","lease":"2m"}`: "lease", `{"retry":{"max_attempts":1,"max_attempts":2}}`: "retry.max_attempts",
		`{"delivery":{"kind":"none"}}`: "delivery.kind", `{"delivery":{"kind":"hook"}}`: "delivery.url", `{"revision":3}`: "revision", `{"name":"x"}`: "name",
		`[]`: "body", `"x"`: "body", `null`: "body", `{"retry":5}`: "retry",
	} {
		r.refused(r.do("PATCH", "/v1/topics/w", body), 422, "invalid", field)
	}
	r.refused(r.do("PATCH", "/v1/topics/w", `{"lease":`), 400, "malformed", "")
	r.refused(r.do("PATCH", "/v1/topics/w", `{}`, "Content-Type: text/plain"), 415, "unsupported_media_type", "")
	r.refused(r.do("PATCH", "/v1/topics/w", `{}`, `If-Match: "3"`), 412, "precondition_failed", "")
	r.refused(r.do("PATCH", "/v1/topics/unknown", `{}`, `If-Match: *`), 412, "precondition_failed", "")
	r.refused(r.do("PATCH", "/v1/topics/w", `{}`, `If-None-Match: *`), 412, "precondition_failed", "")
	r.want(r.do("PATCH", "/v1/topics/w", `{"lease":"4m"}`, `If-Match: "6"`), 200)
	if got := r.do("GET", "/v1/topics/w", "").header.Get("ETag"); got != `"7"` {
		t.Errorf("the ETag is %s", got)
	}
}

// Patches of different fields at the same time all hold.
func TestPatchesAtTheSameTime(t *testing.T) {
	r := newRig(t)
	done := make(chan int)
	fields := []string{`"lease":"7m"`, `"weight":7`, `"concurrency":7`, `"misfire":"skip"`, `"spread":"7s"`, `"count_crashes":true`, `"dead_retention":"7m"`, `"keep_finished":"7m"`, `"retry":{"max_attempts":7}`}
	for _, field := range fields {
		go func() { done <- r.do("PATCH", "/v1/topics/t", "{"+field+"}").status }()
	}
	for range fields {
		if status := <-done; status != 200 {
			t.Errorf("answered %d", status)
		}
	}
	topic, err := r.scheduler.Topic("t")
	if err != nil {
		t.Fatal(err)
	}
	set := topic.Settings
	if got := fmt.Sprint(set.Lease, set.Weight, set.Concurrency, set.Misfire, set.Spread, set.CountCrashes, set.DeadRetention, set.KeepFinished, set.Retry.MaxAttempts); got != "7m0s 7 7skip7s true 7m0s 7m0s 7" {
		t.Error(got)
	}
}

// Fields that a patch leaves out are stored unchanged, whatever they hold.
func TestSettingsSurviveAPatch(t *testing.T) {
	set := tasks.TopicSettings{
		Kind: "hook", Delivery: json.RawMessage(`{"url":"https://a?b=<c>&d"}`), Retry: tasks.Retry{MaxAttempts: 7, MinBackoff: 1234567 * time.Microsecond, MaxBackoff: 29*24*time.Hour + time.Millisecond},
		Lease: time.Hour + 1500*time.Millisecond, Concurrency: 3, Rate: tasks.Rate{PerSecond: 0.123456789, Burst: 3}, Weight: 1000, Spread: 90 * time.Second,
		Misfire: tasks.MisfireCoalesce, CountCrashes: true, Paused: true, DeadRetention: 3660 * 24 * time.Hour, KeepFinished: 30*24*time.Hour - time.Millisecond,
	}
	got := set
	if err := patched([]byte(`{}`))(&got); err != nil {
		t.Fatal(err)
	}
	var was, is any
	_ = json.Unmarshal(set.Delivery, &was)
	_ = json.Unmarshal(got.Delivery, &is)
	set.Delivery, got.Delivery = nil, nil
	if diff := cmp.Diff(set, got) + cmp.Diff(was, is); diff != "" {
		t.Error(diff)
	}
}

// A patch takes memory, and so time, for its bytes alone, however deep they stand.
func TestDeepPatch(t *testing.T) {
	const depth, size, most = 200, 1 << 20, 16
	patch := strings.Repeat(`{"delivery":`, depth) + `{"a":"` + strings.Repeat("x", size) + `"}` + strings.Repeat("}", depth)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var set tasks.TopicSettings
	if err := patched([]byte(patch))(&set); err == nil {
		t.Error("it is taken")
	}
	runtime.ReadMemStats(&after)
	if took := (after.TotalAlloc - before.TotalAlloc) / size; took > most {
		t.Errorf("it takes %d times its size", took)
	}
}
