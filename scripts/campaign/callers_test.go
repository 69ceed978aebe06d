package campaign

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// topic is that of most tasks.
const topic = "campaign"

// An order is the state of a task as its caller knows it.
type order struct {
	n     int    // number in the payload
	id    string // chosen by the caller, or answered
	group string
	topic string // empty: the usual one
	due   time.Time
	as    []byte // the request, if it may be repeated
	// unsure: the deadline is not known, since a request was not answered or has held the task.
	unsure bool
	posted bool
}

func (o *order) body() []byte {
	b := fmt.Appendf(nil, `{"topic":%q,"due_at":%q,"payload":{"n":%d}`, cmp.Or(o.topic, topic), rig.Wire(o.due), o.n)
	if o.id != "" {
		b = fmt.Appendf(b, `,"id":%q`, o.id)
	}
	if o.group != "" {
		b = fmt.Appendf(b, `,"group":%q`, o.group)
	}
	return append(b, '}')
}

// A caller has tasks of its own. It sends one request after the other, each to another node.
type caller struct {
	fleet *fleet
	load  *load
	name  int
	rng   *rand.Rand
	last  int // the number of its last task, without the caller's name
	own   []*order
	group *group // that new tasks join
	done  []*group
	using []int // numbers of the tasks of the present act

	held     []*order // that it has to resume
	kept     []*order
	imported []*order
}

// A group is all tasks that were ever scheduled under its name.
type group struct {
	name   string
	orders []*order
}

func (c *caller) work(ctx context.Context) {
	defer func() { c.fleet.grown.leaveHeld(c.held) }()
	for {
		select {
		case <-c.load.pace:
		case <-ctx.Done():
			return
		}
		r := c.fleet.pick(ctx, c.rng, nil)
		if r == nil {
			return
		}
		start := time.Now()
		c.using = c.using[:0]
		if c.load.job {
			c.jobBatch(ctx, r, c.load.batch)
			c.fleet.use("schedule", start, c.using...)
			continue
		}
		feature, act := c.fleet.choose(c.rng)
		act.do(c, ctx, r)
		c.fleet.use(feature.name, start, c.using...)
	}
}

// pick returns the latest run of a node, preferably not of the one named; also of one that is cut
// off or stopped. It returns nil once ctx is over.
func (f *fleet) pick(ctx context.Context, rng *rand.Rand, not *node) *run {
	for ctx.Err() == nil {
		n := f.nodes[rng.IntN(len(f.nodes))]
		if n == not && len(f.nodes) > 1 {
			continue
		}
		if r := n.latest(); !r.over() || rng.IntN(20) == 0 {
			return r
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// fresh is a new task.
func (c *caller) fresh() *order {
	c.last++
	c.load.made.Add(1)
	o := &order{n: c.name*1_000_000 + c.last, due: c.soon()}
	c.using = append(c.using, o.n)
	return o
}

// next is a new task. Half of them have an id of their own, and a third a group.
func (c *caller) next() *order {
	o := c.fresh()
	if c.rng.IntN(2) == 0 {
		o.id = fmt.Sprintf("c%d-%d", c.name, c.last)
	}
	if c.rng.IntN(3) == 0 {
		if c.group == nil || len(c.group.orders) > 8 {
			if c.group != nil {
				c.done = append(c.done, c.group)
			}
			c.group = &group{name: fmt.Sprintf("g%d-%d", c.name, c.last)}
		}
		o.group = c.group.name
		c.group.orders = append(c.group.orders, o)
	}
	return o
}

// soon is a deadline that is past at once, falls into a fault, or follows it.
func (c *caller) soon() time.Time {
	ahead := int64(c.load.ahead)
	return time.Now().Add(time.Duration(c.rng.Int64N(ahead) - ahead/20)).Truncate(time.Millisecond)
}

// create schedules one task. Without a definite answer it repeats the request at another node if
// the task has an id, also one from the problem, as a careful client does.
func (c *caller) create(ctx context.Context, r *run) {
	o := c.next()
	for range 4 {
		a := c.fleet.ask(r, http.MethodPost, "/v1/tasks", o.body())
		var made struct{ ID, Durability string }
		if a.outcome == crash.Done {
			c.fleet.decode(a, &made)
		} else if a.outcome == crash.Unknown && a.status != 0 {
			_ = json.Unmarshal(a.body, &made) // a problem may name the id
		}
		c.created(o, a, made.ID, made.Durability == "spooled", false)
		switch {
		case a.outcome == crash.Done:
			o.as = o.body() // with its id
			c.keep(o)
			return
		case made.ID != "":
			o.id = made.ID
		}
		if !a.again() || o.id == "" {
			return
		}
		if r = c.fleet.follow(ctx, c.rng, r.node); r == nil {
			return
		}
	}
}

// created records the answer to a creation.
func (c *caller) created(o *order, a answer, id string, spooled, anew bool) {
	if a.outcome != crash.Done {
		id = ""
	} else {
		o.id = id
		c.load.accepted.Add(1)
		if spooled {
			c.fleet.spooled.Add(1)
		}
	}
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Create, Outcome: a.outcome, Due: o.due, ID: id, Spooled: spooled, Anew: anew})
}

// follow waits a little, and picks another node.
func (f *fleet) follow(ctx context.Context, rng *rand.Rand, not *node) *run {
	select {
	case <-time.After(50 * time.Millisecond): // sooner than Retry-After asks for
	case <-ctx.Done():
	}
	return f.pick(ctx, rng, not)
}

// repeat asks once more for a task as it was created: it exists, unless it is finished.
func (c *caller) repeat(_ context.Context, r *run) {
	o := c.any()
	if o == nil || o.as == nil {
		return
	}
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks", o.as)
	var made struct {
		ID  string
		Due time.Time `json:"due_at"`
	}
	due := o.due
	if a.outcome == crash.Done {
		c.fleet.decode(a, &made)
		due = made.Due // of a task that exists: it may have been moved since
	}
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Create, Outcome: a.outcome, Due: due, ID: made.ID, Anew: a.status == http.StatusCreated})
}

// put makes a task by PUT.
func (c *caller) put(_ context.Context, r *run) {
	o := c.next()
	o.id = fmt.Sprintf("c%d-%d", c.name, c.last)
	a := c.fleet.ask(r, http.MethodPut, "/v1/tasks/"+o.id, o.body())
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Replace, Outcome: a.outcome, Due: o.due})
	if a.outcome == crash.Done {
		c.load.accepted.Add(1)
		c.keep(o)
	}
}

// batch schedules many tasks in one request.
func (c *caller) batch(_ context.Context, r *run) {
	size := 1 + c.rng.IntN(2*c.load.batch)
	orders := make([]*order, size)
	for i := range orders {
		orders[i] = c.next()
	}
	c.batched(orders, c.fleet.ask(r, http.MethodPost, "/v1/tasks/batch", batchOf(orders)))
}

// jobBatch schedules a batch, and repeats the tasks that are not accepted, until all are. Only a
// task with an id may be repeated, so all tasks have one.
func (c *caller) jobBatch(ctx context.Context, r *run, size int) {
	orders := make([]*order, size)
	for i := range orders {
		orders[i] = c.next()
		orders[i].id = fmt.Sprintf("c%d-%d", c.name, c.last)
	}
	for len(orders) > 0 && r != nil {
		orders = c.batched(orders, c.fleet.ask(r, http.MethodPost, "/v1/tasks/batch", batchOf(orders)))
		r = c.fleet.follow(ctx, c.rng, r.node)
	}
}

func batchOf(orders []*order) []byte {
	body := []byte{'['}
	for i, o := range orders {
		body = append(append(body, ","[:min(i, 1)]...), o.body()...)
	}
	return append(body, ']')
}

// batched records the answer to a batch, and returns the tasks that may be repeated.
func (c *caller) batched(orders []*order, a answer) (again []*order) {
	each := make([]answer, len(orders))
	for i := range each {
		each[i] = a
	}
	var made struct {
		Accepted int
		IDs      []string
		Spooled  []string
		Errors   []struct {
			Index   int
			Problem struct {
				Type   string
				Status int
			}
		}
	}
	spooled := map[string]bool{}
	if a.outcome == crash.Done {
		c.fleet.decode(a, &made)
		for _, e := range made.Errors {
			each[e.Index].status = e.Problem.Status
			each[e.Index].outcome = c.fleet.meaning("a task of a batch", e.Problem.Status, []byte(e.Problem.Type))
		}
		for _, id := range made.Spooled {
			spooled[id] = true
		}
		if made.Accepted+len(made.Errors) != len(orders) || len(made.IDs) != len(orders) {
			c.fleet.wrong("strange answer", "a batch of %d: accepted %d, %d ids, %d errors", len(orders), made.Accepted, len(made.IDs), len(made.Errors))
			return nil
		}
	}
	for i, o := range orders {
		if each[i].outcome == crash.Done {
			c.created(o, each[i], made.IDs[i], spooled[made.IDs[i]], false)
			o.as = o.body()
			c.keep(o)
			continue
		}
		c.created(o, each[i], "", false, false)
		if o.id != "" && each[i].again() {
			again = append(again, o)
		}
	}
	return again
}

// keep remembers some of the accepted tasks.
func (c *caller) keep(o *order) {
	if len(c.own) < 200 {
		c.own = append(c.own, o)
		return
	}
	c.own = append(append(c.own[:0], c.own[50:]...), o) // most of the oldest ones are over
}

// any is an accepted task: a recent one half of the time, and preferably one that is not due.
func (c *caller) any() *order {
	if len(c.own) == 0 {
		return nil
	}
	from := 0
	if c.rng.IntN(2) == 0 {
		from = max(0, len(c.own)-10)
	}
	var o *order
	for range 5 {
		if o = c.own[from+c.rng.IntN(len(c.own)-from)]; o.due.After(time.Now()) {
			break
		}
	}
	c.using = append(c.using, o.n)
	return o
}
