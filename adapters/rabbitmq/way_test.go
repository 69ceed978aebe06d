package rabbitmq

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/adapters/internal/brokertest"
	"github.com/lapsehq/lapse/tasks"
)

func TestConfigFaults(t *testing.T) {
	_, err := New(Config{URLs: []string{"amqp://here", "http://user:secret@there", "amqp://user:secret@there:x"}, Timeout: 2 * time.Hour})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{"urls[1]", "urls[2]", "timeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s is not in %q", part, err)
		}
	}
	if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "urls[0]") {
		t.Errorf("%q", err)
	}
}

func TestSettings(t *testing.T) {
	w := made(t, Config{})
	long := strings.Repeat("x", 255)
	brokertest.Settings(t, w, map[string][]string{
		`{"routing_key":"orders"}`:                          nil,
		`{"exchange":"","routing_key":"orders"}`:            nil,
		`{"exchange":"shop"}`:                               nil,
		`{"exchange":"shop","routing_key":""}`:              nil,
		`{"exchange":"` + long + `","routing_key":"a b/☃"}`: nil,
		`{}`:                               {"routing_key"},
		`{"exchange":""}`:                  {"routing_key"},
		`{"routing_key":""}`:               {"routing_key"},
		`{"exchange":"","routing_key":""}`: {"routing_key"},
		`{"exchange":null,"routing_key":"orders"}`:            {"exchange"},
		`{"exchange":"a","routing_key":["orders"]}`:           {"routing_key"},
		`{"exchange":"a\u0000","routing_key":"b\n"}`:          {"exchange", "routing_key"},
		`{"exchange":"x` + long + `","routing_key":"orders"}`: {"exchange"},
		`{"exchange":"a","queue":"orders","mandatory":false}`: {"mandatory", "queue"},
	})
}

// queued removes and returns the messages of a queue.
func queued(t *testing.T, conn *amqp.Connection, queue string) (all []amqp.Delivery) {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ch.Close() }()
	for {
		m, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, m)
	}
}

func TestMessage(t *testing.T) {
	addr, conn := shared(t)
	ch := declared(t, conn, "message", nil)
	if err := ch.ExchangeDeclare("shop", "topic", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind("message", "orders.#", "shop", false, nil); err != nil {
		t.Fatal(err)
	}
	w := made(t, Config{URLs: []string{"amqp://" + addr}})
	d := brokertest.Delivery("a")
	d.Attempt, d.Group, d.Payload = 3, "g", []byte("\x00 no {text\xff\r\n")
	d.Headers = map[string]string{"tenant": "eu: ☃", "lapse-id": "forged", "x-delay": "1", "cc": "elsewhere", "content-type": "text/plain", "empty": ""}
	if err := brokertest.Deliverer(t, w, `{"exchange":"shop","routing_key":"orders.expired"}`)(d, brokertest.Delivery("b"))[0]; err != nil {
		t.Fatal(err)
	}
	all := queued(t, conn, "message")
	if len(all) != 2 || all[1].ContentType != "application/json" {
		t.Fatalf("%d messages: %+v", len(all), all)
	}
	m := all[0]
	if m.Exchange != "shop" || m.RoutingKey != "orders.expired" || m.MessageId != "a" || m.DeliveryMode != amqp.Persistent ||
		m.ContentType != "text/plain" || !bytes.Equal(m.Body, d.Payload) {
		t.Errorf("%+v", m)
	}
	headers := amqp.Table{
		"lapse-id": "a", "lapse-topic": "orders", "lapse-due": "2026-01-02T04:04:05.678Z", "lapse-attempt": "3", "lapse-group": "g",
		"tenant": "eu: ☃", "cc": "elsewhere", "empty": "",
	}
	for name, value := range headers {
		if m.Headers[name] != value {
			t.Errorf("%s: %q, want %q", name, m.Headers[name], value)
		}
	}
	if len(m.Headers) != len(headers) {
		t.Errorf("headers %v", m.Headers)
	}
}

// A message that the broker does not store is a failed attempt, and says why. The others of the
// batch are not affected.
func TestRefusal(t *testing.T) {
	addr, conn := shared(t)
	declared(t, conn, "full", amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	declared(t, conn, "other", nil)
	w := made(t, Config{URLs: []string{"amqp://" + addr}})

	errs := brokertest.Deliverer(t, w, `{"routing_key":"full"}`)(brokertest.Delivery("a"), brokertest.Delivery("b"), brokertest.Delivery("c"))
	if errs[0] != nil || !errors.Is(errs[2], ErrRefused) {
		t.Errorf("the queue has one place: %v", errs)
	}
	stored := int64(len(queued(t, conn, "full")))
	if errs := brokertest.Deliverer(t, w, `{"routing_key":"nowhere"}`)(brokertest.Delivery("a"), brokertest.Delivery("b")); !errors.Is(errs[0], ErrUnroutable) || !errors.Is(errs[1], ErrUnroutable) {
		t.Errorf("there is no such queue: %v", errs)
	}
	errs = brokertest.Deliverer(t, w, `{"exchange":"nowhere"}`)(brokertest.Delivery("a"), brokertest.Delivery("b"))
	for _, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "no exchange 'nowhere'") {
			t.Errorf("there is no such exchange: %v", err)
		}
	}
	if err := brokertest.Deliverer(t, w, `{"routing_key":"other"}`)(brokertest.Delivery("a"))[0]; err != nil {
		t.Errorf("after that, elsewhere: %v", err)
	}
	brokertest.Counts(t, w, map[string]int64{"confirmed": stored + 1, "refused": 3 - stored + 2, "unroutable": 2})
}

// More batches at once than there are channels wait for one another.
func TestManyBatches(t *testing.T) {
	addr, conn := shared(t)
	declared(t, conn, "many", nil)
	w := made(t, Config{URLs: []string{"amqp://" + addr}})
	deliver := brokertest.Deliverer(t, w, `{"routing_key":"many"}`)
	const batches, each = 3 * mostChannels, 5
	failed := make(chan error, batches*each)
	for range batches {
		go func() {
			ds := make([]*tasks.Delivery, each)
			for i := range ds {
				ds[i] = brokertest.Delivery(string(rune('a' + i)))
			}
			for _, err := range deliver(ds...) {
				failed <- err
			}
		}()
	}
	for range batches * each {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if n := len(queued(t, conn, "many")); n != batches*each {
		t.Errorf("%d messages, want %d", n, batches*each)
	}
}

// While a broker says that it accepts nothing, nothing is sent.
func TestBlocked(t *testing.T) {
	addr, conn := shared(t)
	declared(t, conn, "blocked", nil)
	w := made(t, Config{URLs: []string{"amqp://" + addr}})
	deliver := brokertest.Deliverer(t, w, `{"routing_key":"blocked"}`)
	l, err := w.link.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	say := make(chan amqp.Blocking)
	heard := make(chan struct{})
	go func() { l.watch(say); close(heard) }()
	say <- amqp.Blocking{Active: true, Reason: "low on disk"}
	say <- amqp.Blocking{Active: true, Reason: "low on memory"} // so that the first has been noted
	if err := deliver(brokertest.Delivery("a"))[0]; !errors.Is(err, ErrBlocked) || !strings.Contains(err.Error(), "low on") {
		t.Errorf("while it takes nothing: %v", err)
	}
	say <- amqp.Blocking{}
	close(say)
	<-heard
	if err := deliver(brokertest.Delivery("a"))[0]; err != nil {
		t.Errorf("afterwards: %v", err)
	}
	brokertest.Counts(t, w, map[string]int64{"confirmed": 1, "blocked": 1})
}

// While the broker is gone attempts fail, and do not ask for it again and again; when
// it is back, what it had is there, and so is the connection.
func TestBrokerGone(t *testing.T) {
	addr, conn := shared(t)
	declared(t, conn, "gone", nil)
	w := made(t, Config{URLs: []string{"amqp://127.0.0.1:1", "amqp://" + addr}})
	deliver := brokertest.Deliverer(t, w, `{"routing_key":"gone"}`)
	if err := deliver(brokertest.Delivery("a"))[0]; err != nil {
		t.Fatalf("by the second of two addresses: %v", err)
	}
	single.stop()
	for range 3 {
		if err := deliver(brokertest.Delivery("b"))[0]; err == nil {
			t.Fatal("delivered without a receiver")
		}
	}
	w.link.Pause = time.Hour
	connect := w.link.Connect
	w.link.Connect = func() (*connection, error) {
		t.Error("there was another attempt to connect")
		return connect()
	}
	for range 10 {
		if err := deliver(brokertest.Delivery("b"))[0]; err == nil {
			t.Fatal("delivered without a receiver")
		}
	}
	w.link.Pause, w.link.Connect = 0, connect
	single.start(t)
	if err := deliver(brokertest.Delivery("b"))[0]; err != nil {
		t.Fatal(err)
	}
	conn, err := amqp.Dial("amqp://" + addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if all := queued(t, conn, "gone"); len(all) != 2 || all[0].MessageId != "a" || all[1].MessageId != "b" {
		t.Errorf("after a restart of the broker it has %d messages, want 2", len(all))
	}
	w.Close()
	if err := deliver(brokertest.Delivery("c"))[0]; !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	w.Close()
}

// A caller that gives up waiting for a channel leaves it to the next one.
func TestNoPatience(t *testing.T) {
	addr, conn := shared(t)
	declared(t, conn, "patience", nil)
	w := made(t, Config{URLs: []string{"amqp://" + addr}})
	if _, err := w.link.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * mostChannels {
		if ch, err := w.acquire(over); err == nil {
			w.release(ch, true)
		} else if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if err := brokertest.Deliverer(t, w, `{"routing_key":"patience"}`)(brokertest.Delivery("a"))[0]; err != nil {
		t.Error(err)
	}
}

// A broker that reads nothing any more breaks the connection, and blocks no other batch.
func TestBrokerThatReadsNothing(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	if _, err := (&punctual{here, time.Millisecond}).Write([]byte("hello?")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it was written: %v", err)
	}
}
