package campaign

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// What callers do to tasks that were accepted.

func (c *caller) move(_ context.Context, r *run) {
	o := c.any()
	if o == nil {
		return
	}
	o.due, o.as = c.soon(), nil
	a := c.fleet.ask(r, http.MethodPatch, "/v1/tasks/"+o.id, fmt.Appendf(nil, `{"due_at":%q}`, rig.Wire(o.due)))
	o.unsure = a.outcome != crash.Done
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Move, Outcome: a.outcome, Due: o.due})
}

// replace puts a task with another deadline in the place of one. A finished task exists again after
// it.
func (c *caller) replace(_ context.Context, r *run) {
	o := c.any()
	if o == nil {
		return
	}
	o.due, o.as = c.soon(), nil
	a := c.fleet.ask(r, http.MethodPut, "/v1/tasks/"+o.id, o.body())
	o.unsure = a.outcome != crash.Done
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Replace, Outcome: a.outcome, Due: o.due, Anew: a.status == http.StatusCreated})
}

func (c *caller) fire(_ context.Context, r *run) {
	o := c.any()
	if o == nil {
		return
	}
	o.as, o.unsure = nil, true
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks/"+o.id+"/fire", nil)
	change := crash.Change{Span: a.Span, Kind: crash.Fire, Outcome: a.outcome}
	if a.outcome == crash.Done {
		var fired struct {
			Due time.Time `json:"due_at"`
		}
		c.fleet.decode(a, &fired)
		change.Due = fired.Due
	}
	c.fleet.history.Change(o.n, change)
}

// cancel treats the task as over, whatever the answer. Some are read afterwards.
func (c *caller) cancel(ctx context.Context, r *run) {
	o := c.any()
	if o == nil {
		return
	}
	c.forget(o)
	a := c.fleet.ask(r, http.MethodDelete, "/v1/tasks/"+o.id, nil)
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Cancel, Outcome: a.outcome})
	if a.outcome == crash.Done && c.rng.IntN(3) == 0 {
		if r := c.fleet.pick(ctx, c.rng, nil); r != nil {
			c.see(o, r)
		}
	}
}

// forget removes a task from the caller's list.
func (c *caller) forget(o *order) {
	c.own = slices.DeleteFunc(c.own, func(other *order) bool { return other == o })
}

func (c *caller) look(_ context.Context, r *run) {
	if o := c.any(); o != nil {
		c.see(o, r)
	}
}

func (c *caller) see(o *order, r *run) {
	a := c.fleet.ask(r, http.MethodGet, "/v1/tasks/"+o.id, nil)
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Look, Outcome: a.outcome})
}

// list looks for all tasks of a group of this caller.
func (c *caller) list(_ context.Context, r *run) {
	g := c.group
	if g == nil {
		return
	}
	a := c.fleet.ask(r, http.MethodGet, "/v1/groups/"+g.name+"?limit=1000", nil)
	if a.outcome != crash.Done {
		return
	}
	var list struct {
		Tasks []struct{ ID string }
		Next  string `json:"next_cursor"`
	}
	c.fleet.decode(a, &list)
	for _, o := range g.orders {
		c.using = append(c.using, o.n)
		there := slices.ContainsFunc(list.Tasks, func(t struct{ ID string }) bool { return t.ID == o.id })
		change := crash.Change{Span: a.Span, Kind: crash.Listed, Outcome: crash.Missing}
		if there {
			change.Outcome = crash.Done
		}
		if o.id != "" && (there || list.Next == "") {
			c.fleet.history.Change(o.n, change)
		}
	}
}

// cancelGroup cancels a whole group, to which no caller adds any more.
func (c *caller) cancelGroup(_ context.Context, r *run) {
	if len(c.done) == 0 {
		return
	}
	g := c.done[len(c.done)-1]
	c.done = c.done[:len(c.done)-1]
	a := c.fleet.ask(r, http.MethodDelete, "/v1/groups/"+g.name, nil)
	var gone struct {
		Delivering []string
		More       int `json:"more_delivering"`
	}
	outcome := crash.Unknown // some of it may have been done
	if a.outcome == crash.Done {
		c.fleet.decode(a, &gone)
		if gone.More == 0 {
			outcome = crash.Done
		}
	}
	for _, o := range g.orders {
		c.using = append(c.using, o.n)
		c.forget(o)
		change := crash.Change{Span: a.Span, Kind: crash.Cancel, Outcome: outcome, Group: true}
		if outcome == crash.Done && slices.Contains(gone.Delivering, o.id) {
			change.Outcome = crash.Refused
		}
		c.fleet.history.Change(o.n, change)
	}
}
