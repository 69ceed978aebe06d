package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A receiver pulls tasks from a node, or from another one while that is away, and settles them at
// any node.
type receiver struct {
	fleet *fleet
	home  *node
	rng   *rand.Rand
	job   bool // it acknowledges all tasks
}

// lease is how long a receiver may hold a task.
const lease = 3 * time.Second

// A pulled task, in the answer to a reserve call.
type pulled struct {
	ID         string
	State      string
	Attempt    int
	DueAt      time.Time `json:"due_at"`
	LeaseUntil time.Time `json:"lease_until"`
	Receipt    string
	Node       string
	Group      string
	Headers    map[string]string
	Payload    struct{ N int }

	answer answer // that it was in
}

// held is a delivery that is to be settled.
type held struct {
	receipt  string
	delivery *crash.Delivery // nil: not one of the history
	settled  func(s crash.Settlement)
}

func (w *receiver) work(ctx context.Context) {
	var settling sync.WaitGroup
	defer settling.Wait()
	places := make(chan struct{}, 8) // of settlements under way
	for ctx.Err() == nil {
		r := w.home.latest()
		if r.over() || w.rng.IntN(10) == 0 {
			if r = w.fleet.pick(ctx, w.rng, nil); r == nil {
				return
			}
		}
		topic, of := w.fleet.topicToPull(w.rng)
		wait := "500ms"
		if of != nil {
			wait = "50ms" // so that the others do not wait
		}
		a := w.fleet.ask(r, http.MethodPost, "/v1/topics/"+topic+"/reserve", fmt.Appendf(nil, `{"max":100,"wait":%q,"lease":%q}`, wait, lease))
		if a.outcome != crash.Done {
			w.fleet.rest(50 * time.Millisecond)
			continue
		}
		var got struct{ Tasks []pulled }
		w.fleet.decode(a, &got)
		name := "receive"
		if of != nil {
			name = of.name
		}
		w.fleet.use(name, a.Start)
		type manner struct {
			verb  string
			after time.Duration
			once  bool
		}
		said := map[manner][]held{}
		for i := range got.Tasks {
			p := &got.Tasks[i]
			p.answer = a
			h, tag := handled{verb: w.verdict()}, "receive"
			if of != nil {
				h, tag = of.pulled(w.fleet, p), of.name
			} else if h.verb == "bury" {
				tag = "dead"
			}
			one := held{receipt: p.Receipt, settled: h.settled}
			if !h.outside {
				one.delivery = &crash.Delivery{Span: a.Span, ID: p.ID, Owner: p.Node, Due: p.DueAt, LeaseUntil: p.LeaseUntil, Attempt: p.Attempt}
				w.fleet.history.Deliver(p.Payload.N, one.delivery)
				if of != nil || h.verb != "ack" {
					w.fleet.use(tag, a.Start, p.Payload.N)
				}
			}
			m := manner{h.verb, h.after, h.once}
			said[m] = append(said[m], one)
		}
		for m, list := range said {
			if m.verb == "" {
				continue
			}
			rng := rand.New(rand.NewPCG(w.rng.Uint64(), 1))
			places <- struct{}{}
			settling.Go(func() {
				defer func() { <-places }()
				w.fleet.rest(m.after)
				w.fleet.settle(ctx, rng, m.verb, list, m.once)
				if m.verb == "extend" {
					w.fleet.settle(ctx, rng, "ack", list, false)
				}
				if m.verb == "ack" && !m.once && rng.IntN(20) == 0 {
					// A repeated ack is answered as the first one.
					w.fleet.settle(ctx, rng, "ack", list, false)
				}
			})
		}
	}
}

// topicToPull chooses the topic of a reserve call, and the feature that it belongs to: nil if that
// is the one of most tasks.
func (f *fleet) topicToPull(rng *rand.Rand) (name string, of *feature) {
	if len(f.pulls) == 0 || rng.IntN(2) == 0 {
		return topic, nil
	}
	name = f.pulls[rng.IntN(len(f.pulls))]
	for _, w := range f.features {
		if _, ok := w.topics[name]; ok {
			return name, w
		}
	}
	return topic, nil
}

// verdict is how a delivery is settled; "" if it is forgotten, and its lease runs out.
func (w *receiver) verdict() string {
	dice := w.rng.IntN(100)
	switch {
	case w.job || dice < 87:
		return "ack"
	case dice < 91:
		return "release"
	case dice < 94:
		return "extend"
	case dice < 97:
		return "bury"
	}
	return ""
}

var verbs = map[string]crash.Verb{"ack": crash.Ack, "release": crash.Release, "extend": crash.Extend, "bury": crash.Bury}

// settle settles deliveries at any node. It sends those without a definite answer again, to another
// node, a few times.
func (f *fleet) settle(ctx context.Context, rng *rand.Rand, verb string, list []held, once bool) {
	r := f.pick(ctx, rng, nil)
	tries := 6
	if once {
		tries = 1
	}
	for range tries {
		if r == nil || len(list) == 0 {
			return
		}
		receipts := make([]string, len(list))
		for i, h := range list {
			receipts[i] = h.receipt
		}
		body, _ := json.Marshal(map[string]any{"receipts": receipts}) // never fails
		a := f.ask(r, http.MethodPost, "/v1/receipts/"+verb, body)
		var said struct {
			Recorded   bool
			LeaseUntil time.Time `json:"lease_until"`
			Errors     []struct {
				Index   int
				Problem struct {
					Type   string
					Status int
				}
			}
		}
		if a.outcome == crash.Done {
			f.decode(a, &said)
		}
		all := crash.Settlement{Span: a.Span, Verb: verbs[verb], Outcome: a.outcome, Recorded: said.Recorded, Until: said.LeaseUntil}
		each := make([]crash.Settlement, len(list))
		again := make([]bool, len(list))
		for i := range each {
			each[i], again[i] = all, a.again()
		}
		for _, e := range said.Errors {
			each[e.Index].Outcome = f.meaning(verb, e.Problem.Status, []byte(e.Problem.Type))
			each[e.Index].Recorded = false
			again[e.Index] = e.Problem.Status == http.StatusServiceUnavailable
		}
		var rest []held
		for i, h := range list {
			if h.delivery != nil {
				f.history.Settle(h.delivery, each[i])
			}
			if h.settled != nil {
				h.settled(each[i])
			}
			if again[i] {
				rest = append(rest, h)
			}
		}
		if list = rest; len(list) > 0 {
			r = f.follow(ctx, rng, r.node)
		}
	}
}

// requeueDead requeues at most limit dead tasks, and returns how many are listed. It returns -1 if
// the list is refused.
func (f *fleet) requeueDead(r *run, limit int) int {
	a := f.ask(r, http.MethodGet, fmt.Sprintf("/v1/topics/%s/dead?limit=%d", topic, limit), nil)
	if a.outcome != crash.Done {
		return -1
	}
	var list struct{ Tasks []pulled }
	f.decode(a, &list)
	if len(list.Tasks) == 0 {
		return 0
	}
	due := time.Now().Add(300 * time.Millisecond).Truncate(time.Millisecond)
	ids := make([]string, len(list.Tasks))
	for i, t := range list.Tasks {
		ids[i] = t.ID
	}
	body, _ := json.Marshal(map[string]any{"ids": ids, "due_at": rig.Wire(due)}) // never fails
	a = f.ask(r, http.MethodPost, "/v1/topics/"+topic+"/dead/requeue", body)
	var back struct{ Unknown []string }
	outcome := crash.Unknown // some of it may have been done
	if a.outcome == crash.Done {
		f.decode(a, &back)
		outcome = crash.Done
	}
	unknown := map[string]bool{}
	for _, id := range back.Unknown {
		unknown[id] = true
	}
	for _, t := range list.Tasks {
		change := crash.Change{Span: a.Span, Kind: crash.Requeue, Outcome: outcome, Due: due}
		if unknown[t.ID] {
			change.Outcome = crash.Missing
		}
		f.history.Change(t.Payload.N, change)
		f.use("dead", a.Start, t.Payload.N)
	}
	return len(list.Tasks)
}

// requeue repeats requeueDead until ctx ends.
func (f *fleet) requeue(ctx context.Context, rng *rand.Rand) {
	tick := time.NewTicker(700 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if r := f.pick(ctx, rng, nil); r != nil {
			f.requeueDead(r, 1+rng.IntN(20))
		}
	}
}
