package httpapi

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

// A holdingObserver does not return from the end of a lease until it may.
type holdingObserver chan struct{}

func (o holdingObserver) Observe(e tasks.Event) {
	if e.Kind == tasks.EventRetried {
		<-o
	}
}

// /healthz is 503 once the scheduler has not moved for ten seconds, and not sooner; it is 200 again
// when the scheduler goes on.
func TestHungSchedulerIsNotAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet, observer := slog.New(slog.DiscardHandler), make(holdingObserver)
		scheduler, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{Log: quiet, Observer: observer})
		if err != nil {
			t.Fatal(err)
		}
		defer scheduler.Close(t.Context())
		api, err := New(Config{Scheduler: scheduler, Log: quiet})
		if err != nil {
			t.Fatal(err)
		}
		defer api.Close()
		probe := func() (int, string) {
			w := httptest.NewRecorder()
			api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/healthz", nil))
			return w.Code, w.Body.String()
		}
		if _, err := scheduler.Schedule(t.Context(), tasks.Request{Topic: "x"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if _, err := scheduler.Reserve(t.Context(), "x", 1, 0, time.Second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // of the bubble: the lease is over, and the sweep hangs
		if status, body := probe(); status != http.StatusOK {
			t.Errorf("at the first probe: %d %s", status, body)
		}
		time.Sleep(5 * time.Second)
		if status, body := probe(); status != http.StatusOK {
			t.Errorf("after 5 s: %d %s", status, body)
		}
		time.Sleep(5 * time.Second)
		if status, body := probe(); status != http.StatusServiceUnavailable || !strings.Contains(body, `"status":"stuck"`) || !strings.Contains(body, "its sweep") {
			t.Errorf("after 10 s: %d %s", status, body)
		}
		close(observer)
		synctest.Wait()
		time.Sleep(time.Second)
		if status, body := probe(); status != http.StatusOK {
			t.Errorf("when it goes on: %d %s", status, body)
		}
	})
}
