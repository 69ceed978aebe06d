package httpapi

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/metrics"
	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A server whose ledger cannot be reached yet says so, and refuses what it cannot do. Once it has
// its scheduler, it works.
func TestStarting(t *testing.T) {
	api, err := New(Config{
		Starting: func() recovery.Health {
			return recovery.Health{Where: "redis://far:6379/0", Err: errors.New("connection refused"),
				Waiting: []recovery.Waiting{{What: "the ledger", Detail: "for far", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}}}
		},
		Metrics: metrics.Handler,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := serve(t, api)
	for _, path := range []string{"/", "/docs", "/openapi.json", "/problems/starting"} {
		if a := r.do("GET", path, ""); a.status != http.StatusOK {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	r.want(r.do("GET", "/healthz", ""), 200)
	r.refused(r.do("GET", "/nowhere", ""), 404, "no_such_route", "")
	ready := r.want(r.do("GET", "/readyz", ""), 503)
	ledger := ready["ledger"].(map[string]any)
	if w := ready["waiting"].([]any); len(w) != 1 || !reflect.DeepEqual(w[0], map[string]any{"what": "the ledger", "detail": "for far", "since": "2026-01-02T03:04:05.000Z"}) {
		t.Errorf("waiting is %v", w)
	}
	if ready["starting"] != true || ready["ready"] != false || ledger["ok"] != false ||
		ledger["where"] != "redis://far:6379/0" || ledger["condition"] != "connection refused" {
		t.Errorf("%v", ready)
	}
	for _, path := range []string{"/metrics", "/v1/tasks", "/v1/stats", "/v1/events"} {
		a := r.do("GET", path, "")
		r.refused(a, 503, "starting", "")
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", path)
		}
	}
	r.refused(r.do("POST", "/v1/tasks", `{"topic":"x","delay":"1h"}`), 503, "starting", "")

	scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer scheduler.Close(context.Background())
	api.Attach(scheduler)
	r.want(r.do("POST", "/v1/tasks", `{"topic":"x","delay":"1h"}`), 201)
	if a := r.do("GET", "/metrics", ""); a.status != http.StatusOK {
		t.Errorf("/metrics: %d", a.status)
	}
	var after map[string]any // replay of nothing is soon over
	if err := json.Unmarshal(r.do("GET", "/readyz", "").body, &after); err != nil || after["starting"] != false {
		t.Errorf("%v, %v", after, err)
	}
}
