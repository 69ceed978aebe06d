package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

func TestReserveAndAck(t *testing.T) {
	r := newRig(t)
	r.reserve("t", ``, 0) // neither waits nor needs a body
	r.want(r.do("POST", "/v1/tasks/batch", `[{"id":"a","topic":"t","payload":{"n":1}},{"id":"b","topic":"t"}]`), 200)
	first := r.reserve("t", `{"wait":"60s","lease":"1h"}`, 1)[0].(map[string]any)
	if first["state"] != "delivering" || first["attempt"] != 1.0 {
		t.Errorf("reserved %v", first)
	}
	until, err := time.Parse(time.RFC3339, first["lease_until"].(string))
	if err != nil || time.Until(until) < 50*time.Minute {
		t.Errorf("the lease is until %v (%v)", until, err)
	}
	second := r.reserve("t", `{"max":1000,"wait":60000}`, 1)[0]

	v := r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receiptOf(first)+`","nonsense","`+receiptOf(second)+`"]}`), 200)
	errs := v["errors"].([]any)
	if v["settled"] != 2.0 || v["recorded"] != true || len(errs) != 1 {
		t.Fatalf("answered %v", v)
	}
	e := errs[0].(map[string]any)
	if e["index"] != 1.0 || e["problem"].(map[string]any)["type"] != "/problems/bad_receipt" {
		t.Errorf("the error is %v", e)
	}
	// Repeated, an ack has the same answer; another verb comes too late.
	if v := r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receiptOf(first)+`"]}`), 200); v["settled"] != 1.0 {
		t.Errorf("repeated, it is answered %v", v)
	}
	v = r.want(r.do("POST", "/v1/receipts/bury", `{"receipts":["`+receiptOf(first)+`"]}`), 200)
	if v["settled"] != 0.0 || v["errors"].([]any)[0].(map[string]any)["problem"].(map[string]any)["type"] != "/problems/stale_receipt" {
		t.Errorf("buried too late, it is answered %v", v)
	}
	if c := r.scheduler.Stats().Total; c.Delivered != 2 {
		t.Errorf("%d were delivered", c.Delivered)
	}
}

func TestReleaseAndExtend(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 201)
	receipt := receiptOf(r.reserve("t", `{"wait":"60s"}`, 1)[0])
	v := r.want(r.do("POST", "/v1/receipts/extend", `{"receipts":["`+receipt+`"],"lease":"2h"}`), 200)
	until, err := time.Parse(time.RFC3339, v["lease_until"].(string))
	if err != nil || time.Until(until) < time.Hour {
		t.Errorf("extended until %v (%v)", until, err)
	}
	v = r.want(r.do("POST", "/v1/receipts/release", `{"receipts":["`+receipt+`"],"delay":0,"reason":"try again"}`), 200)
	if v["settled"] != 1.0 {
		t.Errorf("answered %v", v)
	}
	again := r.reserve("t", `{"wait":"60s"}`, 1)[0].(map[string]any)
	if again["attempt"] != 2.0 || again["last_error"] != "try again" {
		t.Errorf("delivered again as %v", again)
	}
}

// Long-polls that wait are woken one task each.
func TestLongPollsWakeUp(t *testing.T) {
	r := newRig(t)
	const polls = 8
	got := make(chan string, polls)
	for range polls {
		go func() {
			v := r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`)
			var answer Reserved
			if err := json.Unmarshal(v.body, &answer); err != nil || len(answer.Tasks) != 1 {
				got <- fmt.Sprintf("%s (%v)", v.body, err)
				return
			}
			got <- answer.Tasks[0].ID
		}()
	}
	seen := make(map[string]bool)
	for i := range polls {
		r.want(r.do("POST", "/v1/tasks", fmt.Sprintf(`{"id":"t%d","topic":"t","delay":%d}`, i, 5*i)), 201)
	}
	for range polls {
		seen[<-got] = true
	}
	for i := range polls {
		if !seen[fmt.Sprint("t", i)] {
			t.Errorf("t%d was not delivered: %v", i, seen)
		}
	}
}

func TestCloseEndsLongPolls(t *testing.T) {
	r := newRig(t)
	answers := make(chan answer, 4)
	for range 4 {
		go func() { answers <- r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`) }()
	}
	r.api.Close()
	r.api.Close()
	limit := time.After(30 * time.Second)
	for range 4 {
		select {
		case a := <-answers:
			if v := r.want(a, 200); len(v["tasks"].([]any)) != 0 {
				t.Errorf("answered %v", v)
			}
		case <-limit:
			t.Fatal("a long-poll outlives the server")
		}
	}
	if v := r.want(r.do("GET", "/readyz", ""), 503); v["shutting_down"] != true {
		t.Errorf("/readyz shows %v", v)
	}
}

// lines is a log that hands its messages on.
type lines chan string

func (l lines) Enabled(context.Context, slog.Level) bool { return true }
func (l lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l lines) WithGroup(string) slog.Handler            { return l }
func (l lines) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	select {
	case l <- text:
	default:
	}
	return nil
}

// A caller that hangs up while it waits costs no other receiver a task.
func TestClientGoneWhileWaiting(t *testing.T) {
	log := make(lines, 100)
	r := newRigWith(t, tasks.Config{}, Config{Log: slog.New(log)})
	ctx, cancel := context.WithCancel(t.Context())
	q, err := http.NewRequestWithContext(ctx, "POST", r.url+"/v1/topics/t/reserve", strings.NewReader(`{"wait":"60s"}`))
	if err != nil {
		t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	context.AfterFunc(r.api.ending, cancel)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if a, err := r.client.Do(q); err == nil {
			a.Body.Close()
			t.Error("the request was answered")
		}
	}()
	for { // until the topic exists, which the reserve makes
		if _, err := r.scheduler.Topic("t"); err == nil {
			break
		}
	}
	cancel()
	<-gone
	for line := range log {
		if strings.Contains(line, "path=/v1/topics/t/reserve") {
			break
		}
	}
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 201)
	if task := r.reserve("t", `{"wait":"60s"}`, 1)[0].(map[string]any); task["attempt"] != 1.0 {
		t.Errorf("delivered as %v", task)
	}
}

// A brokenPipe takes no answer.
type brokenPipe struct {
	*httptest.ResponseRecorder
	writes error
}

func (w brokenPipe) Write(b []byte) (int, error) {
	if w.writes != nil {
		return 0, w.writes
	}
	return w.ResponseRecorder.Write(b)
}

func (w brokenPipe) FlushError() error { return errors.New("broken pipe") }

// Tasks reserved for a caller that does not get the answer are ready again, and the attempt does
// not count.
func TestUndeliverableAnswersAreGivenBack(t *testing.T) {
	r := newRig(t)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t"}`), 201)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx context.Context
		w   http.ResponseWriter
	}{
		"flush":  {t.Context(), brokenPipe{ResponseRecorder: httptest.NewRecorder()}},
		"write":  {t.Context(), brokenPipe{httptest.NewRecorder(), errors.New("broken pipe")}},
		"before": {gone, httptest.NewRecorder()},
	} {
		q := httptest.NewRequest("POST", "/v1/topics/t/reserve", strings.NewReader(`{"wait":"60s"}`)).WithContext(c.ctx)
		q.Header.Set("Content-Type", "application/json")
		r.api.ServeHTTP(c.w, q)
		task, err := r.scheduler.Get(t.Context(), "a")
		if err != nil || task.State == tasks.Delivering || task.Attempt != 0 {
			t.Errorf("%s: afterwards the task is %v with attempt %d (%v)", name, task.State, task.Attempt, err)
		}
	}
	if task := r.reserve("t", `{"wait":"60s"}`, 1)[0].(map[string]any); task["attempt"] != 1.0 {
		t.Errorf("delivered as %v", task)
	}
}

func TestReserveFromAHandlersTopic(t *testing.T) {
	r := newRig(t)
	if err := r.scheduler.Handle("h", func(context.Context, *tasks.Delivery) error { return nil }); err != nil {
		t.Fatal(err)
	}
	r.refused(r.do("POST", "/v1/topics/h/reserve", `{}`), 409, "handled", "")
	v := r.want(r.do("PUT", "/v1/topics/h", `{"delivery":{"kind":"handler"},"concurrency":3}`), 200)
	if fmt.Sprint(v["delivery"], v["concurrency"]) != "map[kind:handler] 3" {
		t.Errorf("answered %v", v)
	}
	r.refused(r.do("PUT", "/v1/topics/h", `{"delivery":{"kind":"pull"}}`), 422, "invalid", "delivery.kind")
}

// A delivery that is given back does not count as an attempt: a task with one attempt lives on. A
// receipt that was given back settles nothing more.
func TestReturn(t *testing.T) {
	r := newRig(t)
	r.want(r.do("PUT", "/v1/topics/t", `{"retry":{"max_attempts":1},"lease":"1h"}`), 200)
	r.want(r.do("POST", "/v1/tasks", `{"id":"a","topic":"t","delay":0}`), 201)
	var receipt string
	for range 3 {
		d := r.reserve("t", `{"wait":"60s"}`, 1)[0].(map[string]any)
		if receipt = receiptOf(d); d["attempt"] != 1.0 {
			t.Errorf("delivered as %v", d)
		}
		if v := r.want(r.do("POST", "/v1/receipts/return", `{"receipts":["`+receipt+`"]}`), 200); v["settled"] != 1.0 || v["recorded"] != true {
			t.Errorf("answered %v", v)
		}
	}
	if v := r.want(r.do("POST", "/v1/receipts/ack", `{"receipts":["`+receipt+`"]}`), 200); v["settled"] != 0.0 {
		t.Errorf("a receipt that was given back was acknowledged: %v", v)
	}
	v := r.want(r.do("GET", "/v1/tasks/a", ""), 200)
	if v["state"] != "ready" || v["attempt"] != nil && v["attempt"] != 0.0 || v["last_error"] != nil {
		t.Errorf("left as %v", v)
	}
	counts := r.want(r.do("GET", "/v1/topics/t", ""), 200)["counts"].(map[string]any)
	if a := counts["attempts"].(map[string]any); a["returned"] != 3.0 || counts["failed"] != 0.0 {
		t.Errorf("counted as %v", counts)
	}
}
