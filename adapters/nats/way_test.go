package nats

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapsehq/lapse/adapters/internal/brokertest"
	"github.com/lapsehq/lapse/tasks"
)

func TestConfigFaults(t *testing.T) {
	_, err := New(Config{
		URLs:    []string{"nats://here:4222", "http://user:secret@there", "%zz:secret"},
		Options: []natsgo.Option{natsgo.RootCAs("/nowhere")},
		Timeout: time.Millisecond,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"urls[1]", "urls[2]", "options[0]", "timeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not in %q", part, err)
		}
	}
	if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "urls[0]") {
		t.Errorf("%q", err)
	}
}

func TestSettings(t *testing.T) {
	w, err := New(Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	brokertest.Settings(t, w, map[string][]string{
		`{"subject":"orders.expired"}`:                   nil,
		`{"subject":"` + strings.Repeat("x", 512) + `"}`: nil,
		`{}`:                                             {"subject"},
		`{"subject":null}`:                               {"subject"},
		`{"subject":7}`:                                  {"subject"},
		`{"subject":""}`:                                 {"subject"},
		`{"subject":"orders.*"}`:                         {"subject"},
		`{"subject":"orders.>"}`:                         {"subject"},
		`{"subject":"orders..expired"}`:                  {"subject"},
		`{"subject":"orders."}`:                          {"subject"},
		`{"subject":".orders"}`:                          {"subject"},
		`{"subject":"two words"}`:                        {"subject"},
		`{"subject":"a\r\nPUB b 0\r\n"}`:                 {"subject"},
		`{"subject":"$JS.API.STREAM.DELETE.ORDERS"}`:     {"subject"},
		`{"subject":"_INBOX.x"}`:                         {"subject"},
		`{"subject":"` + strings.Repeat("x", 513) + `"}`: {"subject"},
		`{"Subject":"a","stream":"ORDERS"}`:              {"subject", "Subject", "stream"},
	})
}

func connected(t *testing.T, s *server) *Way {
	t.Helper()
	w, err := New(Config{URLs: []string{"nats://" + s.addr}, Timeout: 2 * time.Second, Options: []natsgo.Option{natsgo.ReconnectWait(time.Millisecond), natsgo.ReconnectJitter(0, 0)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// stored is what a stream has.
func streamed(t *testing.T, s *server, name string) (all []*jetstream.RawStreamMsg) {
	t.Helper()
	stream, err := s.js.Stream(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

func TestMessage(t *testing.T) {
	s := startServer(t)
	w := connected(t, s)
	d := brokertest.Delivery("a")
	d.Attempt, d.Group, d.Payload = 3, "g", []byte("\x00 no {text\xff\r\n")
	d.Headers = map[string]string{
		"tenant": "eu: ☃", "lapse-id": "forged", "nats-msg-id": "forged", "nats-rollup": "all", "empty": "",
	}
	if err := brokertest.Deliverer(t, w, `{"subject":"test.message"}`)(d)[0]; err != nil {
		t.Fatal(err)
	}
	m := streamed(t, s, "TEST")[0]
	if m.Subject != "test.message" || !bytes.Equal(m.Data, d.Payload) {
		t.Errorf("on %s came %q", m.Subject, m.Data)
	}
	headers := map[string]string{
		"lapse-id": "a", "lapse-topic": "orders", "lapse-due": "2026-01-02T04:04:05.678Z", "lapse-attempt": "3", "lapse-group": "g",
		"Nats-Msg-Id": "a/1767323045678/1", "tenant": "eu: ☃", "empty": "",
	}
	for name, value := range headers {
		if v := m.Header[name]; len(v) != 1 || v[0] != value {
			t.Errorf("%s: %q, want %q", name, v, value)
		}
	}
	if len(m.Header) != len(headers) {
		t.Errorf("headers %v", m.Header)
	}
}

// A repeated attempt is one message. A task that was scheduled again under the same id, or changed,
// is another one.
func TestRepetition(t *testing.T) {
	s := startServer(t)
	w := connected(t, s)
	deliver := brokertest.Deliverer(t, w, `{"subject":"test.repetition"}`)
	again, changed, anew := brokertest.Delivery("a"), brokertest.Delivery("a"), brokertest.Delivery("a")
	again.Attempt, changed.Revision, anew.Created = 2, 2, brokertest.Created.Add(time.Millisecond)
	for _, d := range []*tasks.Delivery{brokertest.Delivery("a"), again, changed, anew} {
		if err := deliver(d)[0]; err != nil {
			t.Fatal(err)
		}
	}
	if all := streamed(t, s, "TEST"); len(all) != 3 || all[0].Header.Get("lapse-attempt") != "1" {
		t.Errorf("%d messages, want 3", len(all))
	}
	brokertest.Counts(t, w, map[string]int64{"stored": 3, "duplicate": 1})
}

// Each task of a batch has an outcome of its own.
func TestRefusal(t *testing.T) {
	s := startServer(t)
	s.stream(t, jetstream.StreamConfig{Name: "SMALL", Subjects: []string{"small"}, MaxMsgSize: 1000})
	s.stream(t, jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	w := connected(t, s)
	large, enormous := brokertest.Delivery("large"), brokertest.Delivery("enormous")
	large.Payload, enormous.Payload = make([]byte, 2000), make([]byte, 2<<20)
	errs := brokertest.Deliverer(t, w, `{"subject":"small"}`)(brokertest.Delivery("a"), large, enormous, brokertest.Delivery("b"))
	if errs[0] != nil || errs[1] == nil || errs[2] == nil || errs[3] != nil {
		t.Errorf("two of four are too large: %v", errs)
	}
	errs = brokertest.Deliverer(t, w, `{"subject":"full"}`)(brokertest.Delivery("a"), brokertest.Delivery("b"))
	if errs[0] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), "maximum messages") {
		t.Errorf("the stream has one place: %v", errs)
	}
	errs = brokertest.Deliverer(t, w, `{"subject":"unheard"}`)(brokertest.Delivery("a"))
	if !errors.Is(errs[0], jetstream.ErrNoStreamResponse) {
		t.Errorf("no stream listens: %v", errs)
	}
	brokertest.Counts(t, w, map[string]int64{"stored": 3, "refused": 3, "no_stream": 1})
}

// While the server is gone attempts fail at once, from the first one on; when it is back,
// so is the connection.
func TestServerGone(t *testing.T) {
	s := startServer(t)
	s.stop()
	w := connected(t, s)
	deliver := brokertest.Deliverer(t, w, `{"subject":"test.gone"}`)
	if err := deliver(brokertest.Delivery("a"))[0]; err == nil {
		t.Fatal("delivered without a receiver")
	}
	s.start(t)
	if n := untilDelivered(t, deliver, "a"); n == 0 {
		t.Fatal("it is not delivered")
	}
	s.stop()
	for range 3 {
		if err := deliver(brokertest.Delivery("b"))[0]; err == nil {
			t.Fatal("delivered without a receiver")
		}
	}
	s.start(t)
	untilDelivered(t, deliver, "b")
	if all := streamed(t, s, "TEST"); len(all) != 2 {
		t.Errorf("%d messages, want 2", len(all))
	}
	w.Close()
	if err := deliver(brokertest.Delivery("c"))[0]; !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	w.Close()
}

func untilDelivered(t *testing.T, deliver func(...*tasks.Delivery) []error, id string) (attempts int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	over := time.After(30 * time.Second)
	for {
		attempts++
		err := deliver(brokertest.Delivery(id))[0]
		if err == nil {
			return attempts
		}
		select {
		case <-tick.C:
		case <-over:
			t.Fatalf("%s is not delivered: %v", id, err)
		}
	}
}
