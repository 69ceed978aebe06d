package rabbitmq

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/lapsehq/lapse/tasks/delivertest"
)

func TestConformance(t *testing.T) {
	addr, conn := shared(t)
	delivertest.Run(t, func(t *testing.T, r *delivertest.Receiver) delivertest.Rig {
		// The messages belong to one case: the next one uses the same ids.
		queue := strings.ReplaceAll(t.Name(), "/", ".")
		proxy := delivertest.NewProxy(t, addr)
		way := made(t, Config{URLs: []string{"amqp://" + proxy.Addr}, Timeout: time.Second})
		rig := &rig{
			Stored: delivertest.Stored{Way: way, Delivery: `{"routing_key":"` + queue + `"}`},
			Proxy:  proxy, t: t, way: way, receiver: r, queue: queue,
		}
		rig.read(conn)
		return rig
	})
}

// made makes a way that tries again at once when there is no connection.
func made(t *testing.T, cfg Config) *Way {
	t.Helper()
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.link.Pause = 0
	t.Cleanup(w.Close)
	return w
}

// A rig delivers through a proxy, and reads the queue past it.
type rig struct {
	delivertest.Stored
	*delivertest.Proxy
	t        *testing.T
	way      *Way
	receiver *delivertest.Receiver
	queue    string
}

// Break returns, once the fault is over, when there is a connection again.
func (r *rig) Break(f delivertest.Fault) {
	r.Proxy.Break(f)
	if f != delivertest.None {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if ch, err := r.way.acquire(ctx); err == nil {
			r.way.release(ch, true)
			return
		}
	}
	r.t.Error("the connection does not come back")
}

// read hands the messages of the queue to the receiver.
func (r *rig) read(conn *amqp.Connection) {
	ch := declared(r.t, conn, r.queue, nil)
	messages, err := ch.Consume(r.queue, "", true, true, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for m := range messages {
			headers := map[string]string{}
			for name, value := range m.Headers {
				headers[name], _ = value.(string)
			}
			attempt, _ := strconv.Atoi(headers["lapse-attempt"])
			r.receiver.Receive(context.Background(), delivertest.Arrival{ID: m.MessageId, Attempt: attempt, Payload: m.Body, Headers: headers})
		}
	})
	r.t.Cleanup(func() { _ = ch.Close(); reading.Wait() })
}

// declared makes a durable queue.
func declared(t *testing.T, conn *amqp.Connection, queue string, args amqp.Table) *amqp.Channel {
	t.Helper()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(queue, true, false, false, false, args); err != nil {
		t.Fatal(err)
	}
	return ch
}
