//go:build fault

package crash

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A caller schedules, moves, replaces, fires, cancels and reads tasks of its own, one request after
// the other, each at another node.
type caller struct {
	fleet *fleet
	name  int
	rng   *rand.Rand
	ahead time.Duration   // the latest deadline, from now
	mild  bool            // schedules only
	pace  <-chan struct{} // one for each request
	own   []order         // accepted tasks
}

func (c *caller) work(ctx context.Context) {
	for {
		select {
		case <-c.pace:
		case <-ctx.Done():
			return
		}
		r := c.fleet.pick(ctx, c.rng, nil)
		if r == nil {
			return
		}
		dice := c.rng.IntN(100)
		switch {
		case dice < 30, len(c.own) == 0:
			c.create(ctx, r)
		case dice < 50 || c.mild:
			c.batch(r)
		case dice < 65:
			c.move(r)
		case dice < 73:
			c.replace(r)
		case dice < 82:
			c.fire(r)
		case dice < 91:
			c.cancel(r)
		default:
			c.look(r)
		}
	}
}

func (c *caller) order() order {
	o := order{n: int(c.fleet.numbers.Add(1)), due: c.soon()}
	if c.rng.IntN(2) == 0 {
		o.id = fmt.Sprintf("c%d-%d", c.name, o.n)
	}
	switch c.rng.IntN(5) {
	case 0:
		o.topic = hookTopic
	case 1:
		o.topic = asyncTopic
	}
	return o
}

// soon is a deadline that is past at once, or comes while a node is away, or when it is back.
func (c *caller) soon() time.Time {
	return time.Now().Add(rand.N(c.ahead) - c.ahead/20).Truncate(time.Millisecond)
}

// create schedules one task. If it has an id, a request without a definite answer is repeated at
// another node, as a careful client does.
func (c *caller) create(ctx context.Context, r *run) {
	o := c.order()
	body, _ := o.MarshalJSON() // never fails
	for r != nil {
		a := c.fleet.ask(r, http.MethodPost, "/v1/tasks", body)
		c.fleet.history.Change(o.n, Change{Span: a.Span, Kind: Create, Outcome: a.outcome, Due: o.due})
		switch {
		case a.outcome == Done:
			var made struct{ ID string }
			a.decode(c.fleet.t, &made)
			o.id = made.ID
			c.keep(o)
			return
		case a.outcome != Unknown && a.status != http.StatusTooManyRequests && a.status != http.StatusServiceUnavailable:
			c.fleet.t.Errorf("create answered %d: %s", a.status, a.body)
		}
		if !a.again || o.id == "" {
			return
		}
		r = c.fleet.follow(ctx, c.rng, r)
	}
}

// follow waits a little, and picks another node.
func (f *fleet) follow(ctx context.Context, rng *rand.Rand, not *run) *run {
	select {
	case <-time.After(50 * time.Millisecond): // sooner than Retry-After asks for
	case <-ctx.Done():
	}
	return f.pick(ctx, rng, not)
}

// batch schedules up to 50 tasks in one request.
func (c *caller) batch(r *run) {
	orders := make([]order, 1+c.rng.IntN(50))
	for i := range orders {
		orders[i] = c.order()
	}
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks/batch", batchBody(orders))
	each := make([]Outcome, len(orders))
	for i := range each {
		each[i] = a.outcome
	}
	var made struct {
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
	if a.outcome == Done {
		a.decode(c.fleet.t, &made)
		for _, e := range made.Errors {
			each[e.Index] = c.fleet.judge("a task of a batch", e.Problem.Status, []byte(e.Problem.Type))
			if each[e.Index] == Done || each[e.Index] == Missing {
				c.fleet.t.Errorf("a task of a batch was answered %d", e.Problem.Status)
			}
		}
		if made.Accepted+len(made.Errors) != len(orders) || len(made.IDs) != len(orders) {
			c.fleet.t.Errorf("batch of %d: accepted %d, %d ids, %d errors", len(orders), made.Accepted, len(made.IDs), len(made.Errors))
			return
		}
	}
	for i, o := range orders {
		c.fleet.history.Change(o.n, Change{Span: a.Span, Kind: Create, Outcome: each[i], Due: o.due})
		if each[i] == Done {
			o.id = made.IDs[i]
			c.keep(o)
		}
	}
}

// keep remembers some of the accepted tasks, preferably those that are not yet due.
func (c *caller) keep(o order) {
	if len(c.own) < 200 {
		c.own = append(c.own, o)
		return
	}
	oldest := 0
	for range 4 {
		if i := c.rng.IntN(len(c.own)); c.own[i].due.Before(c.own[oldest].due) {
			oldest = i
		}
	}
	c.own[oldest] = o
}

// any is the index of a random accepted task, preferably one that is not due.
func (c *caller) any() int {
	i := c.rng.IntN(len(c.own))
	for range 4 {
		if c.own[i].due.After(time.Now()) {
			break
		}
		i = c.rng.IntN(len(c.own))
	}
	return i
}

func (c *caller) move(r *run) {
	o := &c.own[c.any()]
	o.due = c.soon()
	a := c.fleet.ask(r, http.MethodPatch, "/v1/tasks/"+o.id, fmt.Appendf(nil, `{"due_at":%q}`, rig.Wire(o.due)))
	c.fleet.history.Change(o.n, Change{Span: a.Span, Kind: Move, Outcome: a.outcome, Due: o.due})
}

// replace puts a task with another deadline in the place of one. A finished task exists again after
// it.
func (c *caller) replace(r *run) {
	o := &c.own[c.any()]
	o.due = c.soon()
	body := fmt.Appendf(nil, `{"topic":%q,"due_at":%q,"payload":{"n":%d}}`, o.where(), rig.Wire(o.due), o.n)
	a := c.fleet.ask(r, http.MethodPut, "/v1/tasks/"+o.id, body)
	c.fleet.history.Change(o.n, Change{Span: a.Span, Kind: Replace, Outcome: a.outcome, Due: o.due, Anew: a.status == http.StatusCreated})
}

func (c *caller) fire(r *run) {
	o := &c.own[c.any()]
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks/"+o.id+"/fire", nil)
	change := Change{Span: a.Span, Kind: Fire, Outcome: a.outcome}
	if a.outcome == Done {
		var fired struct {
			Due time.Time `json:"due_at"`
		}
		a.decode(c.fleet.t, &fired)
		change.Due = fired.Due
	}
	c.fleet.history.Change(o.n, change)
}

// cancel treats the task as over, whatever the answer: the caller changes nothing after a
// cancellation.
func (c *caller) cancel(r *run) {
	i := c.any()
	o := c.own[i]
	c.own[i] = c.own[len(c.own)-1]
	c.own = c.own[:len(c.own)-1]
	a := c.fleet.ask(r, http.MethodDelete, "/v1/tasks/"+o.id, nil)
	c.fleet.history.Change(o.n, Change{Span: a.Span, Kind: Cancel, Outcome: a.outcome})
}

func (c *caller) look(r *run) {
	o := &c.own[c.any()]
	a := c.fleet.ask(r, http.MethodGet, "/v1/tasks/"+o.id, nil)
	c.fleet.history.Change(o.n, Change{Span: a.Span, Kind: Look, Outcome: a.outcome})
}

// A fleetReceiver pulls tasks from a node, or from another one while that is away, and settles them
// at any node.
type fleetReceiver struct {
	fleet   *fleet
	home    *node
	rng     *rand.Rand
	careful bool // it acknowledges all tasks
}

// fleetLease is how long a fleetReceiver may hold a task.
const fleetLease = 2 * time.Second

func (w *fleetReceiver) work(ctx context.Context) {
	body := fmt.Appendf(nil, `{"max":100,"wait":"500ms","lease":%q}`, fleetLease)
	for ctx.Err() == nil {
		r := w.home.latest()
		if r.ended() {
			if r = w.fleet.pick(ctx, w.rng, r); r == nil {
				return
			}
		}
		a := w.fleet.ask(r, http.MethodPost, "/v1/topics/"+topic+"/reserve", body)
		if a.outcome != Done {
			r = w.fleet.follow(ctx, w.rng, r)
			if r == nil {
				return
			}
			a = w.fleet.ask(r, http.MethodPost, "/v1/topics/"+topic+"/reserve", body)
		}
		if a.outcome != Done {
			continue
		}
		var got struct{ Tasks []pulled }
		a.decode(w.fleet.t, &got)
		var acks, releases []held
		for _, p := range got.Tasks {
			d := &Delivery{Span: a.Span, Owner: p.Node, Due: p.DueAt, LeaseUntil: p.LeaseUntil, Attempt: p.Attempt}
			w.fleet.history.Deliver(p.Payload.N, d)
			switch dice := w.rng.IntN(100); {
			case w.careful || dice < 95:
				acks = append(acks, held{p.Receipt, d})
			case dice < 98:
				releases = append(releases, held{p.Receipt, d})
			default: // forgotten: its lease runs out
			}
		}
		w.fleet.settle(ctx, w.rng, "release", releases)
		w.fleet.settle(ctx, w.rng, "ack", acks)
	}
}

// settle settles deliveries at any node. It sends those without a definite answer again, to another
// node.
func (f *fleet) settle(ctx context.Context, rng *rand.Rand, verb string, list []held) {
	r := f.pick(ctx, rng, nil)
	for r != nil && len(list) > 0 {
		receipts := make([]string, len(list))
		for i, h := range list {
			receipts[i] = h.receipt
		}
		body, _ := json.Marshal(map[string]any{"receipts": receipts}) // never fails
		a := f.ask(r, http.MethodPost, "/v1/receipts/"+verb, body)
		var all settledAnswer
		if a.outcome == Done {
			a.decode(f.t, &all)
		}
		each := all.outcomes(a.outcome, len(list))
		again := make([]bool, len(list))
		for _, e := range all.Errors {
			each[e.Index].outcome = f.judge(verb, e.Problem.Status, []byte(e.Problem.Type))
			again[e.Index] = e.Problem.Status == http.StatusServiceUnavailable
		}
		var rest []held
		for i, h := range list {
			f.history.Settle(h.delivery, Settlement{Span: a.Span, Verb: verbs[verb], Outcome: each[i].outcome, Recorded: each[i].recorded})
			if a.again || again[i] {
				rest = append(rest, h)
			}
		}
		if list = rest; len(list) > 0 {
			r = f.follow(ctx, rng, r)
		}
	}
}
