package httpapi

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

func TestRequestID(t *testing.T) {
	r := newRig(t)
	if a := r.do("GET", "/healthz", "", "X-Request-Id: mine-1"); a.header.Get("X-Request-Id") != "mine-1" {
		t.Errorf("the answer has the id %q", a.header.Get("X-Request-Id"))
	}
	for _, id := range []string{"", `a"b`, strings.Repeat("x", 129), "a b"} {
		a := r.do("GET", "/healthz", "", "X-Request-Id: "+id)
		if got := a.header.Get("X-Request-Id"); len(got) != 16 {
			t.Errorf("for %q the answer has the id %q", id, got)
		}
	}
}

func TestAccessLog(t *testing.T) {
	log := make(lines, 10)
	r := newRigWith(t, tasks.Config{}, Config{Log: slog.New(log)})
	r.do("GET", "/v1/tasks/a", "", "X-Request-Id: mine")
	line := <-log
	for _, part := range []string{"request_id=mine", "method=GET", "path=/v1/tasks/a", "status=404"} {
		if !strings.Contains(line, part) {
			t.Errorf("the log has %q, without %s", line, part)
		}
	}
}

func TestPanicsAreAnswered(t *testing.T) {
	log := make(lines, 10)
	r := newRigWith(t, tasks.Config{}, Config{Log: slog.New(log)})
	r.api.engine.GET("/panic", func(*gin.Context) { panic("secret") })
	r.api.engine.GET("/late", func(c *gin.Context) {
		c.Writer.WriteHeaderNow()
		panic("secret")
	})
	a := r.do("GET", "/panic", "")
	r.refused(a, 500, "internal", "")
	if strings.Contains(string(a.body), "secret") {
		t.Errorf("the answer tells %s", a.body)
	}
	if line := <-log; !strings.Contains(line, "panicked") || !strings.Contains(line, "panic=secret") {
		t.Errorf("the log has %q", line)
	}
	q, err := http.NewRequestWithContext(t.Context(), "GET", r.url+"/late", nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := r.client.Do(q); err == nil {
		a.Body.Close()
		t.Error("an answer that was cut short looks complete")
	}
	r.want(r.do("GET", "/healthz", ""), 200)
}

func TestNewChecksItsConfig(t *testing.T) {
	for _, n := range []int64{-1, 1, 2 << 30} {
		if _, err := newServer(Config{MaxBody: n}); err == nil {
			t.Errorf("MaxBody %d was accepted", n)
		}
	}
}

func TestHealth(t *testing.T) {
	r := newRig(t)
	if v := r.want(r.do("GET", "/healthz", ""), 200); v["status"] != "alive" {
		t.Errorf("/healthz shows %v", v)
	}
	// memledger has nothing to replay, but the scheduler may not have noticed yet.
	r.until("the status of /readyz", http.StatusOK, func() int { return r.do("GET", "/readyz", "").status })
	v := r.want(r.do("GET", "/readyz", ""), 200)
	if v["ready"] != true || v["ledger"].(map[string]any)["ok"] != true || v["replay"].(map[string]any)["over"] != true {
		t.Errorf("/readyz shows %v", v)
	}
}

func TestReadinessDuringReplayAndOutage(t *testing.T) {
	s := &Server{ending: context.Background()}
	if r := s.wireReadiness(tasks.Readiness{Replayed: 7, LedgerOK: true}); r.Ready || r.Replay.Records != 7 || r.Replay.Over {
		t.Errorf("during replay it is %+v", r)
	}
	// An outage shows in the answer, but tasks are delivered: it is no reason to send callers away.
	if r := s.wireReadiness(tasks.Readiness{Ready: true, Condition: "disk low"}); !r.Ready || r.Ledger.OK || r.Ledger.Condition != "disk low" {
		t.Errorf("during an outage it is %+v", r)
	}
	if a := statusOf(false, 1); a.Status != 503 || a.RetryAfter != "1" {
		t.Errorf("answered %+v", a)
	}
}

func TestClosedScheduler(t *testing.T) {
	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	api, err := New(Config{Scheduler: scheduler})
	if err != nil {
		t.Fatal(err)
	}
	if err := scheduler.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := serve(t, api)
	r.want(r.do("GET", "/healthz", ""), 503)
	r.refused(r.do("POST", "/v1/tasks", `{"topic":"t"}`), 503, "shutting_down", "")
	r.refused(r.do("POST", "/v1/tasks/batch", `[{"topic":"t"}]`), 503, "shutting_down", "")
	r.refused(r.do("POST", "/v1/topics/t/reserve", `{"wait":"60s"}`), 503, "shutting_down", "")
	r.refused(r.do("POST", "/v1/receipts/ack", `{"receipts":["a"]}`), 503, "shutting_down", "")
	r.refused(r.do("PUT", "/v1/topics/t", `{}`), 503, "shutting_down", "")
}

func TestStats(t *testing.T) {
	r := newRigWith(t, tasks.Config{Node: "here"}, Config{Version: "v1.2.3"})
	r.want(r.do("POST", "/v1/tasks", `{"topic":"t"}`), 201)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"u","delay":"1h"}`), 201)
	r.reserve("t", `{"wait":"60s"}`, 1)
	v := r.want(r.do("GET", "/v1/stats", ""), 200)
	total := v["total"].(map[string]any)
	if v["node"] != "here" || v["version"] != "v1.2.3" || total["pending"] != 1.0 || total["delivering"] != 1.0 || total["scheduled"] != 2.0 {
		t.Errorf("/v1/stats shows %v", v)
	}
	if l := total["lateness"].(map[string]any); l["count"] != 1.0 {
		t.Errorf("lateness is %v", l)
	}
	if s := v["sweep"].(map[string]any); fmt.Sprint(s["rescued"], s["missed_wakes"], s["backlog"], s["backlogs"], s["concurrency"], s["full"]) != "0 0 0 0 64 map[count:0 took:0s]" {
		t.Errorf("sweep is %v", s)
	}
	var swept Stats
	wireFigures(&swept, &tasks.Figures{SweepStats: tasks.SweepStats{FullSweeps: 2, FullSweepAt: time.Date(2026, 3, 1, 3, 0, 0, 5e6, time.UTC), FullSweepTook: 90 * time.Second}})
	if full := swept.Sweep.Full; full != (FullSweep{2, "2026-03-01T03:00:00.005Z", duration(90 * time.Second)}) {
		t.Errorf("full sweeps are %+v", full)
	}
	if topics := v["topics"].([]any); len(topics) != 2 {
		t.Errorf("topics are %v", topics)
	}
}

func TestQuantiles(t *testing.T) {
	var h tasks.Histogram
	if l := wireLateness(&h); l != (Lateness{}) {
		t.Errorf("of nothing: %+v", l)
	}
	h.Counts[0], h.Counts[3] = 98, 2
	if l := wireLateness(&h); l.P50 != duration(tasks.LatenessBounds[0]) || l.P99 != duration(tasks.LatenessBounds[3]) {
		t.Errorf("got %+v", l)
	}
	h.Counts[len(tasks.LatenessBounds)] = 1000
	if l := wireLateness(&h); l.P50 != duration(tasks.LatenessBounds[len(tasks.LatenessBounds)-1]) {
		t.Errorf("above all bounds: %+v", l)
	}
}

func TestMetricsAreServedIfGiven(t *testing.T) {
	r := newRig(t)
	r.refused(r.do("GET", "/metrics", ""), 404, "no_such_route", "")
	h := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("lapse_up 1\n")) })
	r = newRigWith(t, tasks.Config{}, Config{Metrics: func(*tasks.Scheduler) http.Handler { return h }})
	if a := r.do("GET", "/metrics", "", "Accept: text/plain"); a.status != 200 || string(a.body) != "lapse_up 1\n" {
		t.Errorf("answered %d %s", a.status, a.body)
	}
	w := httptest.NewRecorder()
	r.api.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 {
		t.Errorf("answered %d", w.Code)
	}
}
