package campaign

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// grown is what features note during a run.
type grown struct {
	exporting sync.Mutex // held by the one caller that exports

	mu      sync.Mutex // guards what follows
	held    []*order   // left held by callers
	waves   map[int]*wave
	deaths  map[int]*death
	lanes   []stay
	targets map[int]*target
	hooks   *http.Server
	url     string // of the receiver of webhooks

	tasks, keys     *objects
	events, streams *timers
}

func newGrown() *grown {
	return &grown{waves: map[int]*wave{}, deaths: map[int]*death{}, targets: map[int]*target{},
		tasks: newObjects(stepOfTask), keys: newObjects(stepOfKey), events: newTimers(), streams: newTimers()}
}

func (g *grown) leaveHeld(list []*order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = append(g.held, list...)
}

func (g *grown) takeHeld() []*order {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := g.held
	g.held = nil
	return list
}

// linesOf goes through the lines of a text.
func linesOf(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(text) {
			if line = bytes.TrimSpace(line); len(line) > 0 && !yield(line) {
				return
			}
		}
	}
}

// chosen is a new task with an id, in a topic of its own, and with terms.
func (c *caller) chosen(prefix, topic string, terms crash.Terms) *order {
	o := c.fresh()
	o.id, o.topic = fmt.Sprintf("%s%d-%d", prefix, c.name, c.last), topic
	c.fleet.history.Agree(o.n, terms)
	return o
}

// ask creates a task as it is, and records the answer. It reports whether it was accepted.
func (c *caller) post(o *order, r *run) bool {
	o.as = o.body()
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks", o.as)
	change := crash.Change{Span: a.Span, Kind: crash.Create, Outcome: a.outcome, Due: o.due, Anew: o.posted && a.status == http.StatusCreated}
	if a.outcome == crash.Done {
		var made struct {
			ID  string
			Due time.Time `json:"due_at"`
		}
		c.fleet.decode(a, &made)
		change.ID, change.Due = made.ID, made.Due
		if !o.posted {
			c.load.accepted.Add(1)
		}
		o.posted = true
	}
	c.fleet.history.Change(o.n, change)
	return a.outcome == crash.Done
}

var keptFeature = feature{
	name: "kept", does: "keep_finished: creations that are repeated after the end, GET of what is finished, cancellations",
	acts:   []act{{4, (*caller).keepOne}, {5, (*caller).keepAgain}, {3, (*caller).keepLook}, {1, (*caller).keepCancel}},
	topics: map[string]string{"kept": `,"keep_finished":"1h"`},
	pulled: func(*fleet, *pulled) handled { return handled{verb: mostly("ack", "release")} },
}

// mostly is the first of some verbs, or sometimes one of the others.
func mostly(verb string, others ...string) string {
	if i := rand.IntN(10 * len(others)); i < len(others) {
		return others[i]
	}
	return verb
}

func (c *caller) keepOne(_ context.Context, r *run) {
	o := c.chosen("k", "kept", crash.Terms{Kept: true})
	if c.post(o, r) {
		c.kept = append(c.kept, o)
	}
}

// someKept is a task that is kept, as long as it has not been cancelled. A recent one half of the
// time.
func (c *caller) someKept() *order {
	if len(c.kept) == 0 {
		return nil
	}
	from := 0
	if c.rng.IntN(2) == 0 {
		from = max(0, len(c.kept)-5)
	}
	o := c.kept[from+c.rng.IntN(len(c.kept)-from)]
	c.using = append(c.using, o.n)
	return o
}

func (c *caller) keepAgain(_ context.Context, r *run) {
	if o := c.someKept(); o != nil {
		c.post(o, r)
	}
}

func (c *caller) keepLook(_ context.Context, r *run) {
	if o := c.someKept(); o != nil {
		a := c.fleet.ask(r, http.MethodGet, "/v1/tasks/"+o.id, nil)
		if a.outcome == crash.Done {
			return // it may be shown as cancelled
		}
		c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Look, Outcome: a.outcome})
	}
}

func (c *caller) keepCancel(_ context.Context, r *run) {
	if o := c.someKept(); o != nil {
		a := c.fleet.ask(r, http.MethodDelete, "/v1/tasks/"+o.id, nil)
		if a.outcome != crash.Missing { // as of any finished task
			c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Cancel, Outcome: a.outcome})
		}
	}
}

// A death is what is known of the burial of a task, and of the tasks that followed it.
type death struct {
	span     crash.Span // of the first burial that may have counted
	recorded bool
	by       map[string]bool // the ids of its follow-ups
}

var onDeadFeature = feature{
	name: "on_dead", does: "tasks that are buried, and the tasks that follow them",
	acts: []act{{5, func(c *caller, _ context.Context, r *run) {
		c.post(c.chosen("d", "mortal", crash.Terms{Mortal: true}), r)
	}}},
	topics: map[string]string{"mortal": `,"on_dead":{"topic":"after"}`, "after": ""},
	pulled: (*fleet).mortal,
	left:   func(f *fleet) string { return f.unfollowed() },
	judge:  (*fleet).judgeDeaths,
}

func (g *grown) deathLocked(n int) *death {
	d := g.deaths[n]
	if d == nil {
		d = &death{by: map[string]bool{}}
		g.deaths[n] = d
	}
	return d
}

func (f *fleet) mortal(p *pulled) handled {
	g := f.grown
	if p.Headers["lapse-dead-topic"] != "" {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.deathLocked(p.Payload.N).by[p.ID] = true
		return handled{verb: "ack", outside: true}
	}
	n, span := p.Payload.N, p.answer.Span
	return handled{verb: mostly("bury", "ack", "release"), settled: func(s crash.Settlement) {
		if s.Outcome != crash.Done && s.Outcome != crash.Unknown {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		d := g.deathLocked(n)
		d.recorded = d.recorded || s.Recorded
		if d.span.Start.IsZero() {
			d.span = span
		}
		d.span.End = time.Now()
	}}
}

// unfollowed says how many deaths that are on record no task has followed.
func (f *fleet) unfollowed() string {
	n := 0
	for _, d := range f.deathsWithout() {
		if _, ok := f.bench().Forgotten(f.history, d.span); !ok {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("no task has followed %d that died", n)
}

func (f *fleet) deathsWithout() (list []*death) {
	g := f.grown
	g.mu.Lock()
	defer g.mu.Unlock()
	for n, d := range g.deaths {
		if d.recorded && len(d.by) == 0 && f.wasBuried(n) {
			list = append(list, d)
		}
	}
	return list
}

// wasBuried reports whether the burial of a task was recorded: what was settled otherwise is not
// followed.
func (f *fleet) wasBuried(n int) bool {
	return slices.ContainsFunc(f.history.Task(n).Deliveries, func(d *crash.Delivery) bool {
		return slices.ContainsFunc(d.Settlements, func(s crash.Settlement) bool {
			return s.Verb == crash.Bury && s.Outcome == crash.Done && s.Recorded
		})
	})
}

func (f *fleet) judgeDeaths() {
	for _, d := range f.deathsWithout() {
		f.broke("on_dead", d.span, "no task has followed one that was buried at %s", d.span)
	}
	f.grown.mu.Lock()
	defer f.grown.mu.Unlock()
	for n, d := range f.grown.deaths {
		if len(d.by) > 1 {
			f.broke("on_dead", d.span, "task %d was buried at %s, and followed by %d tasks", n, d.span, len(d.by))
		}
	}
}

// A stay is a delivery of a topic with one place for each group: from when it was surely open until
// when it may not have been.
type stay struct {
	group, node string // the owner
	asked       time.Time
	got, until  time.Time
}

var groupFeature = feature{
	name: "group", does: "concurrency_per_group: one delivery of a group at a time, at each node",
	excuses: "while a node reads what has come to it, one too many may begin",
	acts: []act{{5, func(c *caller, _ context.Context, r *run) {
		o := c.chosen("l", "lanes", crash.Terms{})
		o.group = fmt.Sprintf("lane%d", c.rng.IntN(6))
		c.post(o, r)
	}}},
	topics: map[string]string{"lanes": `,"concurrency_per_group":1`},
	pulled: func(f *fleet, p *pulled) handled {
		f.grown.mu.Lock()
		defer f.grown.mu.Unlock()
		after := time.Duration(rand.IntN(4)) * 50 * time.Millisecond
		// It is settled after that, and not before: settle is called then.
		f.grown.lanes = append(f.grown.lanes, stay{p.Group, p.Node, p.answer.Start, p.answer.End, p.answer.End.Add(after)})
		return handled{verb: "ack", after: after}
	},
	judge: func(f *fleet) {
		f.grown.mu.Lock()
		defer f.grown.mu.Unlock()
		for i, one := range f.grown.lanes {
			for _, other := range f.grown.lanes[max(0, i-300):i] {
				meet := one.group == other.group && one.node == other.node &&
					(one.asked.After(other.got) && one.got.Before(other.until) || other.asked.After(one.got) && other.got.Before(one.until))
				if meet && !f.disturbed(other.asked, one.got, movesTasks) {
					f.broke("group", crash.Span{Start: other.asked, End: one.got}, "two deliveries of %s at once at %s: %s-%s and %s-%s", one.group, one.node,
						rig.Stamp(other.got), rig.Stamp(other.until), rig.Stamp(one.got), rig.Stamp(one.until))
				}
			}
		}
	},
}

// A wave is the tasks of one group of a topic that coalesces.
type wave struct{ orders []*order }

var coalesceFeature = feature{
	name: "coalesce", does: "misfire: coalesce, groups of three tasks of which a start may skip the earlier ones",
	acts:   []act{{3, (*caller).coalesce}},
	topics: map[string]string{"waves": `,"misfire":"coalesce"`},
	pulled: (*fleet).wave,
	judge: func(f *fleet) {
		for _, n := range f.grown.skipped(f.history) {
			life := f.history.Task(n).Changes[0].Span
			life.End = f.delivered
			if !f.disturbed(f.started, f.delivered, movesTasks) {
				f.broke("coalesce", life, "task %d was skipped, and no node has begun to hold it", n)
			}
		}
	},
}

// coalesce schedules the tasks of a group.
func (c *caller) coalesce(_ context.Context, r *run) {
	w := &wave{}
	for range 3 {
		o := c.chosen("w", "waves", crash.Terms{Skippable: true})
		w.orders = append(w.orders, o)
		o.group = "w" + w.orders[0].id
	}
	c.fleet.grown.mu.Lock()
	for _, o := range w.orders {
		c.fleet.grown.waves[o.n] = w
	}
	c.fleet.grown.mu.Unlock()
	for _, o := range w.orders {
		c.post(o, r)
	}
}

// wave acknowledges a task. Those of its group with an earlier deadline may have been skipped, once
// that counts.
func (f *fleet) wave(p *pulled) handled {
	n := p.Payload.N
	return handled{verb: "ack", settled: func(s crash.Settlement) {
		if s.Outcome != crash.Done {
			return
		}
		f.grown.mu.Lock()
		defer f.grown.mu.Unlock()
		w := f.grown.waves[n]
		for _, o := range w.orders {
			if o.n != n && !o.due.After(p.DueAt) {
				f.history.Agree(o.n, crash.Terms{Skippable: true, Skipped: true})
			}
		}
	}}
}

// skipped lists the tasks that were accepted and never delivered.
func (g *grown) skipped(h *crash.History) (list []int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := range g.waves {
		task := h.Task(n)
		if task != nil && task.Terms.Skipped && len(task.Deliveries) == 0 && len(task.Changes) > 0 && task.Changes[0].Outcome == crash.Done {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}
