package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/recovery/memledger"
	"github.com/lapsehq/lapse/tasks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// here is the configuration of a developer's server.
var here = Config{Allow: []string{"loopback"}}

func newWay(t testing.TB, cfg Config) *Way {
	t.Helper()
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// settingsOf is a delivery object.
func settingsOf(fields map[string]any) json.RawMessage {
	text, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	return text
}

// to makes what delivers a topic's tasks to a URL; fields are name, value and so on.
func to(t testing.TB, w *Way, url string, fields ...any) tasks.Deliverer {
	t.Helper()
	all := map[string]any{"url": url}
	for i := 0; i < len(fields); i += 2 {
		all[fields[i].(string)] = fields[i+1]
	}
	d, err := w.Deliverer("order.unpaid", settingsOf(all))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// order is a delivery of a task, with what a receiver sees of it.
func order(payload string) *tasks.Delivery {
	return &tasks.Delivery{Task: tasks.Task{
		ID: "order-42", Topic: "order.unpaid", Payload: []byte(payload), Attempt: 1,
		Due: time.Date(2026, 11, 20, 14, 6, 41, 249e6, time.UTC),
	}}
}

// serve runs a receiver until the test is over.
func serve(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// counted checks that one attempt has been counted, with this outcome.
func (w *Way) counted(t *testing.T, outcome string) {
	t.Helper()
	for name, n := range w.Tally() {
		if want := name == outcome; n != map[bool]int64{true: 1}[want] {
			t.Errorf("%d attempts count as %s, want one of %s", n, name, outcome)
		}
	}
}

// open runs a scheduler with the way.
func open(t testing.TB, w *Way) *tasks.Scheduler {
	t.Helper()
	s, err := tasks.Open(t.Context(), memledger.New(), tasks.Config{
		Ways: []tasks.Way{w}, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Grace: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil && !errors.Is(err, tasks.ErrClosed) {
			t.Error(err)
		}
	})
	return s
}

// topic gives a topic of the scheduler this way of delivery.
func topic(t testing.TB, s *tasks.Scheduler, name string, set tasks.TopicSettings, fields map[string]any) {
	t.Helper()
	set.Kind, set.Delivery = Kind, settingsOf(fields)
	if _, err := s.SetTopic(t.Context(), name, set, -1); err != nil {
		t.Fatal(err)
	}
}

func schedule(t testing.TB, s *tasks.Scheduler, r tasks.Request) string {
	t.Helper()
	task, err := s.Schedule(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return task.ID
}

// until waits for something that must come.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if holds() {
			return
		}
		if t.Context().Err() != nil {
			t.Fatalf("the test was over before %s", what)
		}
	}
}
