package nats

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/lapsehq/lapse/tasks/delivertest"
)

func TestConformance(t *testing.T) {
	s := startServer(t)
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		// The messages belong to one case: the next one uses the same ids.
		subject := "test." + strings.ReplaceAll(t.Name(), "/", ".")
		proxy := delivertest.NewProxy(t, s.addr)
		way, err := New(Config{
			URLs:    []string{"nats://" + proxy.Addr},
			Options: []natsgo.Option{natsgo.ReconnectWait(time.Millisecond), natsgo.ReconnectJitter(0, 0), natsgo.Timeout(time.Second)},
			Timeout: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		rig := &rig{
			Stored: delivertest.Stored{Way: way, Delivery: `{"subject":"` + subject + `"}`},
			Proxy:  proxy, t: t, server: s, way: way, receiver: r, subject: subject,
		}
		rig.read()
		return rig
	})
}

// A rig delivers through a proxy, and reads past it what the stream has.
type rig struct {
	delivertest.Stored
	*delivertest.Proxy
	t        *testing.T
	server   *server
	way      *Way
	receiver *delivertest.Receiver
	subject  string
}

// Break returns, once the fault is over, when the connection is there again.
func (r *rig) Break(f delivertest.Fault) {
	r.Proxy.Break(f)
	if f != delivertest.None {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	c, err := r.way.link.Get(ctx)
	for err == nil && ctx.Err() == nil {
		if err := c.conn.FlushTimeout(time.Second); err == nil {
			return
		}
	}
	r.t.Errorf("the connection does not come back: %v", err)
}

// read hands the messages of the stream to the receiver, with their times.
func (r *rig) read() {
	consumer, err := r.server.js.OrderedConsumer(r.t.Context(), "TEST", jetstream.OrderedConsumerConfig{FilterSubjects: []string{r.subject}})
	if err != nil {
		r.t.Fatal(err)
	}
	reading, err := consumer.Consume(func(m jetstream.Msg) {
		headers := map[string]string{}
		for name := range m.Headers() {
			headers[name] = m.Headers().Get(name)
		}
		attempt, _ := strconv.Atoi(headers["lapse-attempt"])
		a := delivertest.Arrival{ID: headers["lapse-id"], Attempt: attempt, Payload: m.Data(), Headers: headers}
		if meta, err := m.Metadata(); err == nil {
			a.At = meta.Timestamp
		}
		r.receiver.Receive(context.Background(), a)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { reading.Stop(); <-reading.Closed() })
}
