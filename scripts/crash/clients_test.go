//go:build fault

package crash

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

const topic = "crash"

// A client schedules, moves and cancels tasks of its own, one request after the other, and records
// every answer.
type client struct {
	t       *testing.T
	name    int
	rng     *rand.Rand
	server  *server
	history *History
	numbers *atomic.Int64 // of all clients: the last number given to a task
	own     []order       // accepted tasks, to be moved and cancelled
}

// An order is a task as a client asks for it. Without an id one is made.
type order struct {
	n     int
	id    string
	topic string // the one that is pulled, if empty
	due   time.Time
}

func (o order) where() string { return cmp.Or(o.topic, topic) }

func (o order) MarshalJSON() ([]byte, error) {
	id := ""
	if o.id != "" {
		id = fmt.Sprintf(`"id":%q,`, o.id)
	}
	return fmt.Appendf(nil, `{%s"topic":%q,"due_at":%q,"payload":{"n":%d}}`, id, o.where(), rig.Wire(o.due), o.n), nil
}

// work goes on over all runs of the server until ctx is over.
func (c *client) work(ctx context.Context) {
	r := c.server.after(ctx, 0)
	for r != nil && ctx.Err() == nil {
		var o Outcome
		switch dice := c.rng.IntN(100); {
		case dice < 50:
			o = c.create(ctx, r)
		case dice < 65:
			o = c.batch(r)
		case dice < 85 && len(c.own) > 0:
			o = c.move(r)
		case len(c.own) > 0:
			o = c.cancel(r)
		}
		if o == Unknown {
			r = c.server.again(ctx, r)
		}
	}
}

// order makes a new one, due soon: some at once, some after the next crash.
func (c *client) order() order {
	o := order{n: int(c.numbers.Add(1)), due: c.soon()}
	if c.rng.IntN(2) == 0 {
		o.id = fmt.Sprintf("c%d-%d", c.name, o.n)
	}
	return o
}

func (c *client) soon() time.Time {
	return time.Now().Add(time.Duration(c.rng.IntN(4000)-100) * time.Millisecond).Truncate(time.Millisecond)
}

// create schedules one task. If it has an id, a request without an answer, or
// answered 503, is repeated, as a careful client does.
func (c *client) create(ctx context.Context, r *run) Outcome {
	o := c.order()
	body, err := json.Marshal(o)
	if err != nil {
		c.t.Error(err)
	}
	var answer struct{ ID string }
	for again := false; ; again = true {
		status, span, err := r.call(http.MethodPost, "/v1/tasks", body, &answer)
		got := outcome(status, err)
		c.history.Change(o.n, Change{Span: span, Kind: Create, Outcome: got, Due: o.due})
		if got == Refused && status != http.StatusTooManyRequests {
			c.t.Errorf("create answered %d, repeated: %v", status, again)
		}
		if got == Done {
			o.id = answer.ID
			c.keep(o)
		}
		if got != Unknown || o.id == "" {
			return got
		}
		if r = c.server.again(ctx, r); r == nil {
			return Unknown
		}
	}
}

// batch schedules up to 50 tasks in one request.
func (c *client) batch(r *run) Outcome {
	orders := make([]order, 1+c.rng.IntN(50))
	for i := range orders {
		orders[i] = c.order()
	}
	body, err := json.Marshal(orders)
	if err != nil {
		c.t.Error(err)
	}
	var answer struct {
		Accepted int
		IDs      []string
		Errors   []struct {
			Index   int
			Problem struct {
				Type   string
				Status int
			}
		}
	}
	status, span, err := r.call(http.MethodPost, "/v1/tasks/batch", body, &answer)
	got := outcome(status, err)
	each := make([]Outcome, len(orders))
	for i := range each {
		each[i] = got
	}
	if got == Done {
		for _, e := range answer.Errors {
			each[e.Index] = outcome(e.Problem.Status, nil)
		}
		if answer.Accepted+len(answer.Errors) != len(orders) || len(answer.IDs) != len(orders) {
			c.t.Errorf("batch of %d: accepted %d, %d ids, %d errors", len(orders), answer.Accepted, len(answer.IDs), len(answer.Errors))
			return got
		}
	}
	for i, o := range orders {
		c.history.Change(o.n, Change{Span: span, Kind: Create, Outcome: each[i], Due: o.due})
		if each[i] == Done {
			o.id = answer.IDs[i]
			c.keep(o)
		}
	}
	return got
}

// keep remembers some of the accepted tasks.
func (c *client) keep(o order) {
	if len(c.own) < 200 {
		c.own = append(c.own, o)
		return
	}
	c.own[c.rng.IntN(len(c.own))] = o
}

func (c *client) move(r *run) Outcome {
	o := &c.own[c.rng.IntN(len(c.own))]
	o.due = c.soon()
	body := fmt.Appendf(nil, `{"due_at":%q}`, rig.Wire(o.due))
	status, span, err := r.call(http.MethodPatch, "/v1/tasks/"+o.id, body, nil)
	got := outcome(status, err)
	c.history.Change(o.n, Change{Span: span, Kind: Move, Outcome: got, Due: o.due})
	return got
}

// cancel treats the task as over, whatever the answer: the client changes nothing after a
// cancellation.
func (c *client) cancel(r *run) Outcome {
	i := c.rng.IntN(len(c.own))
	o := c.own[i]
	c.own[i] = c.own[len(c.own)-1]
	c.own = c.own[:len(c.own)-1]
	status, span, err := r.call(http.MethodDelete, "/v1/tasks/"+o.id, nil, nil)
	got := outcome(status, err)
	c.history.Change(o.n, Change{Span: span, Kind: Cancel, Outcome: got})
	return got
}

// batchBody is the body of a batch call for these orders.
func batchBody(orders []order) []byte {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, o := range orders {
		if i > 0 {
			b.WriteByte(',')
		}
		one, _ := o.MarshalJSON() // never fails
		b.Write(one)
	}
	b.WriteByte(']')
	return b.Bytes()
}
