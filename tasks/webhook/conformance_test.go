package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/delivertest"
	"github.com/lapsehq/lapse/tasks/webhook"
)

func TestConformanceSync(t *testing.T) { conform(t, "sync") }

func TestConformanceAsync(t *testing.T) { conform(t, "async") }

func conform(t *testing.T, mode string) {
	t.Parallel()
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		way, err := webhook.New(webhook.Config{
			Allow:   []string{"loopback"},
			Secrets: map[string][]string{"shop": {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		h := &hooks{t: t, receiver: r, way: way, mode: mode}
		h.server = httptest.NewUnstartedServer(h)
		h.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		h.server.Start()
		t.Cleanup(func() {
			way.Close()
			h.server.Close()
		})
		return h
	})
}

// hooks is a web server that receives what a topic delivers.
type hooks struct {
	t         *testing.T
	receiver  *delivertest.Receiver
	way       *webhook.Way
	mode      string
	server    *httptest.Server
	scheduler atomic.Pointer[tasks.Scheduler]
}

func (h *hooks) Ways() []tasks.Way { return []tasks.Way{h.way} }

func (h *hooks) Settings() tasks.TopicSettings {
	settings, err := json.Marshal(map[string]string{"url": h.server.URL, "mode": h.mode, "secret": "shop"})
	if err != nil {
		h.t.Fatal(err)
	}
	return tasks.TopicSettings{Kind: webhook.Kind, Delivery: settings}
}

func (h *hooks) Serve(_ context.Context, s *tasks.Scheduler, _ string) error {
	h.scheduler.Store(s)
	return nil
}

func (h *hooks) Cannot() map[delivertest.Ability]string {
	if h.mode == "sync" {
		return map[delivertest.Ability]string{delivertest.Receipt: "the answer settles it"}
	}
	return nil
}

// Targets implements delivertest.Targeted.
func (h *hooks) Targets() (own json.RawMessage, refused []json.RawMessage) {
	own = json.RawMessage(`{"url":"` + h.server.URL + `/own?a=1&b=2","timeout":"3s","headers":{"x-own":"1","authorization":"Bearer x"}}`)
	for _, text := range []string{`{"url":"ftp://shop.example"}`, `{"url":"http://10.0.0.1/"}`, `{"mode":"async"}`, `{"headers":{"host":"x"}}`, `{"timeout":"1ms"}`} {
		refused = append(refused, json.RawMessage(text))
	}
	return own, refused
}

// ServeHTTP receives one request and answers it as the test wants. An asynchronous receiver
// that is done says so by the receipt.
func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sender has given up in the middle
	}
	attempt, err := strconv.Atoi(r.Header.Get("lapse-attempt"))
	if err != nil {
		h.t.Error(err)
	}
	headers := make(map[string]string, len(r.Header))
	for name := range r.Header {
		headers[strings.ToLower(name)] = r.Header.Get(name)
	}
	own := r.URL.Path == "/own"
	if own && (r.URL.RawQuery != "a=1&b=2" || r.Header.Get("x-own") != "1" || r.Header.Get("authorization") != "Bearer x") {
		h.t.Errorf("to its own target came %s with %v", r.URL, r.Header)
	}
	if r.Header.Get("webhook-signature") == "" {
		h.t.Error("it is not signed")
	}
	answer := h.receiver.Receive(r.Context(), delivertest.Arrival{Own: own,
		ID: r.Header.Get("ce-id"), Attempt: attempt, Payload: body, Headers: headers, Receipt: r.Header.Get("lapse-receipt"),
	})
	switch answer.Say {
	case delivertest.Accept:
		if h.mode == "async" { // also from a server that is still here when its scheduler is not
			h.acknowledge(r)
		}
	case delivertest.Later:
		w.WriteHeader(http.StatusAccepted)
	case delivertest.Fail:
		http.Error(w, answer.Why, http.StatusInternalServerError)
	case delivertest.Wait:
		w.Header().Set("Retry-After", strconv.Itoa(int(answer.Pause/time.Second)))
		http.Error(w, answer.Why, http.StatusServiceUnavailable)
	case delivertest.Bury:
		http.Error(w, answer.Why, http.StatusGone)
	default:
		panic(http.ErrAbortHandler)
	}
}

// acknowledge settles by the receipt. A scheduler delivers before Open returns, so the one that the
// receiver knows may be the closed one before it. The receiver then asks the next one.
func (h *hooks) acknowledge(r *http.Request) {
	for r.Context().Err() == nil {
		_, err := h.scheduler.Load().Settle(context.Background(), tasks.Verdict{Verb: tasks.Ack}, []string{r.Header.Get("lapse-receipt")})
		if !errors.Is(err, tasks.ErrClosed) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
