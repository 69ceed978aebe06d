package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

func TestSchedule(t *testing.T) {
	r := newRig(t)
	a := r.do("POST", "/v1/tasks", `{"id":"order-42","topic":"order.unpaid","delay":"30m","payload":{"order":42},
		"headers":{"tenant":"eu"},"max_lateness":"2h","group":"order-42"}`)
	v := r.want(a, 201)
	if a.header.Get("Location") != "/v1/tasks/order-42" {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	for field, want := range map[string]any{
		"id": "order-42", "topic": "order.unpaid", "state": "pending", "attempt": 0.0, "revision": 1.0,
		"max_lateness": "2h", "group": "order-42", "node": "local",
	} {
		if v[field] != want {
			t.Errorf("%s is %v, want %v", field, v[field], want)
		}
	}
	if got := fmt.Sprint(v["payload"], v["headers"]); got != "map[order:42] map[tenant:eu]" {
		t.Errorf("payload and headers are %s", got)
	}
	times := make(map[string]time.Time)
	for _, field := range []string{"due_at", "next_at", "created_at"} {
		at, err := time.Parse("2006-01-02T15:04:05.000Z", v[field].(string))
		if err != nil {
			t.Errorf("%s: %v", field, err)
		}
		times[field] = at
	}
	// The creation is cut to a millisecond, the deadline rounded up to one.
	if wait := times["due_at"].Sub(times["created_at"]); wait < 30*time.Minute || wait > 30*time.Minute+time.Millisecond || v["due_at"] != v["next_at"] {
		t.Errorf("due %v after its creation", wait)
	}
	if got := r.want(r.do("GET", "/v1/tasks/order-42", ""), 200); got["id"] != "order-42" {
		t.Errorf("GET shows %v", got)
	}
}

func TestScheduleIsIdempotent(t *testing.T) {
	r := newRig(t)
	const request = `{"id":"a","topic":"t","delay":"1h","payload":1}`
	r.want(r.do("POST", "/v1/tasks", request), 201)
	if v := r.want(r.do("POST", "/v1/tasks", request), 200); v["id"] != "a" {
		t.Errorf("the repeated request shows %v", v)
	}
	r.refused(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h","payload":2}`), 409, "id_taken", "")
	if n := r.scheduler.Stats().Total.Scheduled; n != 1 {
		t.Errorf("%d tasks were scheduled", n)
	}
}

func TestScheduleMakesAnID(t *testing.T) {
	r := newRig(t)
	v := r.want(r.do("POST", "/v1/tasks", `{"topic":"t","delay":3600000}`), 201)
	if id := v["id"].(string); len(id) != 36 || id[14] != '7' {
		t.Errorf("made the id %q", id)
	}
}

func TestPut(t *testing.T) {
	r := newRig(t)
	a := r.do("PUT", "/v1/tasks/a", `{"topic":"t","due_at":"2031-01-02T03:04:05.0000001Z"}`)
	v := r.want(a, 201)
	if v["due_at"] != "2031-01-02T03:04:05.001Z" {
		t.Errorf("due at %v, which should be rounded up", v["due_at"])
	}
	if a.header.Get("Location") != "/v1/tasks/a" {
		t.Errorf("Location %q", a.header.Get("Location"))
	}
	v = r.want(r.do("PUT", "/v1/tasks/a", `{"id":"a","topic":"u","delay":"7d","payload":[]}`), 200)
	if v["topic"] != "u" || v["revision"] != 2.0 {
		t.Errorf("replaced, it shows %v", v)
	}
	r.refused(r.do("PUT", "/v1/tasks/a", `{"id":"b","topic":"u"}`), 422, "invalid", "id")
}

func TestPatch(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h","payload":1}`), 201)
	v := r.want(r.do("PATCH", "/v1/tasks/a", `{"due_at":"2031-01-02T03:04:05Z"}`), 200)
	if v["due_at"] != "2031-01-02T03:04:05.000Z" || v["payload"] != 1.0 {
		t.Errorf("moved, it shows %v", v)
	}
	v = r.want(r.do("PATCH", "/v1/tasks/a", `{"payload":null}`), 200)
	if p, ok := v["payload"]; !ok || p != nil || v["due_at"] != "2031-01-02T03:04:05.000Z" {
		t.Errorf("with a payload of null, it shows %v", v)
	}
	r.refused(r.do("PATCH", "/v1/tasks/a", `{}`), 422, "invalid", "body")
	r.refused(r.do("PATCH", "/v1/tasks/unknown", `{"delay":"1s"}`), 404, "not_found", "")
}

func TestCancel(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`), 201)
	r.want(r.do("DELETE", "/v1/tasks/a", ""), 204)
	r.want(r.do("DELETE", "/v1/tasks/a", ""), 204)
	r.refused(r.do("GET", "/v1/tasks/a", ""), 404, "not_found", "")
	r.refused(r.do("DELETE", "/v1/tasks/b", ""), 404, "not_found", "")
}

func TestFireAndConflicts(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`), 201)
	r.want(r.do("POST", "/v1/tasks/a/fire", ""), 202)
	receipt := receiptOf(r.reserve("t", `{"wait":"60s"}`, 1)[0])
	if v := r.want(r.do("GET", "/v1/tasks/a", ""), 200); v["state"] != "delivering" || v["attempt"] != 1.0 {
		t.Errorf("handed out, it shows %v", v)
	}
	r.refused(r.do("DELETE", "/v1/tasks/a", ""), 409, "delivering", "")
	r.refused(r.do("PUT", "/v1/tasks/a", `{"topic":"t"}`), 409, "delivering", "")
	r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receipt+`"],"reason":"no such order"}`), 200)
	v := r.want(r.do("GET", "/v1/tasks/a", ""), 200)
	if v["state"] != "dead" || v["last_error"] != "no such order" || v["died_at"] == nil {
		t.Errorf("buried, it shows %v", v)
	}
	r.refused(r.do("POST", "/v1/tasks/a/fire", ""), 409, "dead", "")
}

func TestHoldAndResume(t *testing.T) {
	r := newRig(t)
	made := r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":"1h"}`), 201)
	held := r.want(r.do("POST", "/v1/tasks/a/hold", ""), 200)
	left, err := time.ParseDuration(fmt.Sprint(held["remaining"]))
	if err != nil || held["state"] != "held" || held["revision"] != 2.0 || held["due_at"] != made["due_at"] || held["next_at"] != made["due_at"] ||
		left > time.Hour+time.Second || left < 59*time.Minute {
		t.Errorf("held, it shows %v", held)
	}
	a := r.do("POST", "/v1/tasks/a/hold", "")
	if again := r.want(a, 200); again["revision"] != 2.0 || again["held_at"] != held["held_at"] || a.header.Get("ETag") == "" {
		t.Errorf("held again, it shows %v", again)
	}
	if got := r.listed("/v1/tasks?state=held&"); got != "a" {
		t.Errorf("listed %s", got)
	}
	n := r.want(r.do("GET", "/v1/stats", ""), 200)["total"].(map[string]any)
	if n["held"] != 1.0 || n["pending"] != 1.0 {
		t.Errorf("counted %v", n)
	}
	if f := r.want(r.do("GET", "/v1/forecast?window=2h", ""), 200); f["held"] != 1.0 || f["later"] != 0.0 {
		t.Errorf("forecast %v", f)
	}
	resumed := r.want(r.do("POST", "/v1/tasks/a/resume", ""), 200)
	if _, shown := resumed["held_at"]; shown || resumed["state"] != "pending" || resumed["revision"] != 3.0 || resumed["remaining"] != nil {
		t.Errorf("resumed, it shows %v", resumed)
	}
	r.refused(r.do("POST", "/v1/tasks/a/hold", "", "If-Match: "+a.header.Get("ETag")), 412, "precondition_failed", "")
	r.refused(r.do("POST", "/v1/tasks/b/hold", ""), 404, "not_found", "")
	r.refused(r.do("POST", "/v1/tasks/b/resume", ""), 404, "not_found", "")

	r.want(r.do("POST", "/v1/tasks", `{"id":"b","topic":"t"}`), 201)
	r.reserve("t", `{"wait":"60s"}`, 1)
	r.refused(r.do("POST", "/v1/tasks/b/hold", ""), 409, "delivering", "")
	for _, action := range []string{"hold", "resume"} {
		if m, d, f := r.actions(`{"action":"` + action + `","ids":["a","none"]}`); m != 2 || d != 1 || fmt.Sprint(f) != "[none not_found]" {
			t.Errorf("%s: %v selected, %v done, %v", action, m, d, f)
		}
		if m, d, f := r.actions(`{"action":"` + action + `","filter":{"topic":"t","id_prefix":"a"}}`); m != map[string]float64{"hold": 1}[action] || d != m || f != nil {
			t.Errorf("%s: %v selected, %v done, %v", action, m, d, f)
		}
	}
	r.refused(r.do("POST", "/v1/tasks/actions", `{"action":"resume","filter":{"state":"ready"}}`), 422, "invalid", "filter.state")
}

func TestList(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"t%d","topic":"t","delay":"%dh"}`, i, 5-i)), 201)
	}
	r.want(r.do("POST", "/v1/tasks", `{"id":"other","topic":"u","delay":"1m"}`), 201)
	var seen []string
	after := ""
	for {
		v := r.want(r.do("GET", "/v1/tasks?topic=t&state=pending&limit=2"+after, ""), 200)
		for _, task := range v["tasks"].([]any) {
			seen = append(seen, task.(map[string]any)["id"].(string))
		}
		next, more := v["next_cursor"]
		if !more {
			break
		}
		after = "&cursor=" + next.(string)
	}
	if got := strings.Join(seen, " "); got != "t4 t3 t2 t1 t0" {
		t.Errorf("listed %s", got)
	}
	v := r.want(r.do("GET", "/v1/tasks?topic=none", ""), 200)
	if list, ok := v["tasks"].([]any); !ok || len(list) != 0 {
		t.Errorf("an empty list shows %v", v)
	}
}

// What comes in as a payload goes out byte for byte, in whatever form it was.
func TestPayloadKeepsItsBytes(t *testing.T) {
	t.Parallel()
	for i, payload := range []string{
		`{"a":1, "a" : 2,  "b":[ ]}`, `12345678901234567890123456789.000000000000000000001`, `1e999`, `-0`,
		`"\u00e9\ud83d\ude00 <&>"`, `"é"`, `null`, `false`, `[1 ,2]`, `"\ud800"`,
	} {
		r := newRig(t)
		id := fmt.Sprint("p", i)
		if a := r.do("POST", "/v1/tasks", `{"id":"`+id+`","topic":"t","payload": `+payload+` }`); a.status != 201 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		ds, err := r.scheduler.Reserve(t.Context(), "t", 1, tasks.MaxWait, 0)
		if err != nil || len(ds) != 1 {
			t.Fatal(ds, err)
		}
		if string(ds[0].Payload) != payload {
			t.Errorf("the receiver got %s, want %s", ds[0].Payload, payload)
		}
		a := r.do("GET", "/v1/tasks/"+id, "")
		var want bytes.Buffer
		if err := json.Compact(&want, []byte(payload)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(a.body, []byte(`"payload":`+want.String()+`,`)) {
			t.Errorf("GET shows %s, want the payload %s", a.body, want.String())
		}
	}
}

func TestPayloadOfAProgramMayBeNoJSON(t *testing.T) {
	r := newRig(t)
	for id, payload := range map[string]string{"a": "hello", "b": "{}x", "c": "\xff", "d": `"\x"`} {
		if _, err := r.scheduler.Schedule(t.Context(), tasks.Request{ID: id, Topic: "t", Delay: time.Hour, Payload: []byte(payload)}); err != nil {
			t.Fatal(err)
		}
		v := r.want(r.do("GET", "/v1/tasks/"+id, ""), 200)
		if _, shown := v["payload"]; shown || v["payload_base64"] == nil {
			t.Errorf("%q is shown as %v", payload, v)
		}
	}
}
