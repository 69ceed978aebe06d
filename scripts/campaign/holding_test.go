package campaign

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

var holdFeature = feature{
	name: "hold", does: "POST hold and resume of single tasks",
	acts: []act{{5, (*caller).hold}, {5, (*caller).resume}},
}

// hold stops the countdown of a task. The caller resumes it later.
func (c *caller) hold(_ context.Context, r *run) {
	o := c.any()
	if o == nil {
		return
	}
	o.as, o.unsure = nil, true
	a := c.fleet.ask(r, http.MethodPost, "/v1/tasks/"+o.id+"/hold", nil)
	c.fleet.history.Change(o.n, crash.Change{Span: a.Span, Kind: crash.Hold, Outcome: a.outcome})
	if (a.outcome == crash.Done || a.outcome == crash.Unknown) && !slices.Contains(c.held, o) {
		c.held = append(c.held, o)
	}
}

func (c *caller) resume(_ context.Context, r *run) {
	if len(c.held) == 0 {
		return
	}
	o := c.held[0]
	c.using = append(c.using, o.n)
	if c.fleet.resume(o, r) {
		c.held = c.held[1:]
	}
}

// resume reports whether there is a definite answer.
func (f *fleet) resume(o *order, r *run) bool {
	a := f.ask(r, http.MethodPost, "/v1/tasks/"+o.id+"/resume", nil)
	change := crash.Change{Span: a.Span, Kind: crash.Resume, Outcome: a.outcome}
	if a.outcome == crash.Done {
		var task struct {
			Due time.Time `json:"due_at"`
		}
		f.decode(a, &task)
		change.Due, o.due = task.Due, task.Due
	}
	f.history.Change(o.n, change)
	return a.outcome != crash.Unknown && !a.again()
}

// resumeAll resumes what callers have left held.
func (f *fleet) resumeAll() {
	var resuming sync.WaitGroup
	places := make(chan struct{}, 8) // of requests under way
	for i, o := range f.grown.takeHeld() {
		places <- struct{}{}
		resuming.Go(func() {
			defer func() { <-places }()
			if !rig.Within(50*time.Millisecond, startWithin, func() bool {
				return f.resume(o, f.nodes[i%len(f.nodes)].latest())
			}) {
				f.wrong("not resumed", "no node resumes %s", o.id)
			}
		})
	}
	resuming.Wait()
}

var bulkFeature = feature{
	name: "bulk", does: "actions by a filter: move, shift, fire, hold and resume, cancel, whose cursors are shown to changing nodes",
	acts: []act{{6, (*caller).bulk}},
}

// bulk does one thing with a group of this caller, in calls of a few tasks, each at another node.
func (c *caller) bulk(ctx context.Context, r *run) {
	g := c.group
	if len(c.done) > 0 && c.rng.IntN(2) == 0 {
		g = c.done[c.rng.IntN(len(c.done))]
	}
	if g == nil {
		return
	}
	known := true // the deadlines
	for _, o := range g.orders {
		c.using = append(c.using, o.n)
		o.as = nil
		known = known && !o.unsure && o.id != "" && time.Until(o.due) > 2*time.Second
	}
	const by = time.Second
	switch dice := c.rng.IntN(10); {
	case dice < 3:
		due := c.soon()
		c.act(ctx, r, g, `"action":"move","due_at":"`+rig.Wire(due)+`"`, crash.Move, func(*order) time.Time { return due })
	case dice < 6 && known:
		c.act(ctx, r, g, `"action":"move","shift":"`+by.String()+`"`, crash.Move, func(o *order) time.Time { return o.due.Add(by) })
	case dice < 8:
		c.act(ctx, r, g, `"action":"hold"`, crash.Hold, nil)
		for _, o := range g.orders {
			if o.id != "" && !slices.Contains(c.held, o) {
				c.held = append(c.held, o)
			}
		}
	case len(c.done) > 0:
		g = c.done[len(c.done)-1] // no caller adds to it any more
		c.done = c.done[:len(c.done)-1]
		c.act(ctx, r, g, `"action":"cancel"`, crash.Cancel, nil)
		for _, o := range g.orders {
			c.forget(o)
		}
	}
}

// act runs an action on a group to its end. It is known to be done with all tasks of the group if
// their number is that which the answers count.
func (c *caller) act(ctx context.Context, r *run, g *group, what string, kind crash.Kind, due func(o *order) time.Time) {
	span := crash.Span{Node: r.node.name, Run: r.n, Start: time.Now()}
	cursor, done, complete := "", 0, false
	failed := map[string]crash.Outcome{}
	for tries := 0; tries < 8 && !complete && r != nil; {
		body := `{` + what + `,"filter":{"group":"` + g.name + `"},"limit":3`
		if cursor != "" {
			body += `,"cursor":"` + cursor + `"`
		}
		a := c.fleet.ask(r, http.MethodPost, "/v1/tasks/actions", []byte(body+`}`))
		switch a.outcome {
		case crash.Done:
			var said struct {
				Done   int
				Next   string `json:"next_cursor"`
				Failed []struct {
					ID      string
					Problem struct {
						Type   string
						Status int
					}
				}
			}
			c.fleet.decode(a, &said)
			done += said.Done
			for _, f := range said.Failed {
				// Another action may have been this one, whose answer was lost.
				failed[f.ID] = crash.Unknown
				if f.Problem.Status != http.StatusPreconditionFailed {
					failed[f.ID] = c.fleet.meaning("a task of an action", f.Problem.Status, []byte(f.Problem.Type))
				}
			}
			cursor, complete = said.Next, said.Next == ""
			r = c.fleet.pick(ctx, c.rng, r.node)
		default:
			done = -1 << 30 // some of it may have been done
			tries++
			r = c.fleet.follow(ctx, c.rng, r.node)
		}
	}
	span.End = time.Now()
	for _, o := range g.orders {
		change := crash.Change{Span: span, Kind: kind, Outcome: crash.Unknown, Group: true}
		if outcome, ok := failed[o.id]; ok && done >= 0 {
			change.Outcome = outcome
		} else if complete && (done == len(g.orders) || kind == crash.Cancel && len(failed) == 0) {
			change.Outcome = crash.Done
		}
		if due != nil {
			change.Due = due(o)
			if change.Outcome == crash.Done {
				o.due = change.Due
			}
		}
		o.unsure = o.unsure || change.Outcome != crash.Done || kind == crash.Hold
		c.fleet.history.Change(o.n, change)
	}
}

var exportFeature = feature{
	name: "export", does: "whole exports, each page from another node",
	acts: []act{{1, (*caller).export}},
}

// export reads all pages. What this caller has and no request finishes meanwhile is among them.
func (c *caller) export(ctx context.Context, r *run) {
	if !c.fleet.grown.exporting.TryLock() {
		return
	}
	defer c.fleet.grown.exporting.Unlock()
	orders := append(slices.Clone(c.own), c.kept...)
	span := crash.Span{Node: r.node.name, Run: r.n, Start: time.Now()}
	there, after := map[string]bool{}, ""
	for tries := 0; r != nil; {
		a := c.fleet.ask(r, http.MethodGet, "/v1/export?topic="+topic+"&topic=kept"+after, nil)
		if a.outcome != crash.Done {
			if tries++; tries == 10 {
				return
			}
			r = c.fleet.follow(ctx, c.rng, r.node)
			continue
		}
		whole := false
		for line := range linesOf(a.body) {
			var l struct{ Type, ID, Cursor string }
			if err := json.Unmarshal(line, &l); err != nil {
				c.fleet.wrong("strange answer", "a line of an export: %v: %.200s", err, line)
				return
			}
			switch l.Type {
			case "task", "dead", "finished":
				there[l.ID] = true
			case "next":
				after = "&cursor=" + l.Cursor
			case "end":
				whole = true
			}
		}
		if whole {
			break
		}
		r = c.fleet.pick(ctx, c.rng, r.node)
	}
	if r == nil {
		return
	}
	span.End = time.Now()
	for _, o := range orders {
		change := crash.Change{Span: span, Kind: crash.Exported, Outcome: crash.Missing}
		if there[o.id] {
			change.Outcome = crash.Done
		}
		if o.id != "" {
			c.using = append(c.using, o.n)
			c.fleet.history.Change(o.n, change)
		}
	}
}

var importFeature = feature{
	name: "import", does: "imports of single tasks, repeated at other nodes, also after their end",
	excuses: "what was finished is forgotten when a server that knew it is restarted, and imported again",
	acts:    []act{{4, (*caller).importOne}, {4, (*caller).importAgain}},
}

func (c *caller) importOne(_ context.Context, r *run) {
	o, now := c.chosen("i", "", crash.Terms{}), time.Now()
	o.as = []byte(`{"type":"lapse_export","version":1,"exported_at":"` + rig.Wire(now) + `"}` + "\n" + string(mustLine(o, now)))
	c.imported = append(c.imported, o)
	c.importAs(o, r)
}

func mustLine(o *order, now time.Time) []byte {
	line, _ := json.Marshal(map[string]any{ // never fails
		"type": "task", "id": o.id, "topic": topic, "due_at": rig.Wire(o.due), "next_at": rig.Wire(o.due), "created_at": rig.Wire(now),
		"attempt": 0, "revision": 1, "fingerprint": "0123456789abcdef", "payload": map[string]int{"n": o.n},
	})
	return append(line, '\n')
}

func (c *caller) importAgain(_ context.Context, r *run) {
	if len(c.imported) == 0 {
		return
	}
	o := c.imported[c.rng.IntN(len(c.imported))]
	c.using = append(c.using, o.n)
	c.importAs(o, r)
}

func (c *caller) importAs(o *order, r *run) {
	a := c.fleet.post(r, "/v1/import", "application/x-ndjson", o.as)
	change := crash.Change{Span: a.Span, Kind: crash.Import, Outcome: a.outcome, Due: o.due}
	if a.outcome == crash.Done {
		var said struct {
			Imported, Present int
			Errors            []struct {
				Problem struct {
					Type   string
					Status int
				}
			}
		}
		c.fleet.decode(a, &said)
		change.Present = said.Present == 1
		for _, e := range said.Errors {
			change.Outcome = c.fleet.meaning("a line of an import", e.Problem.Status, []byte(e.Problem.Type))
		}
		if len(said.Errors) == 0 && said.Imported+said.Present != 1 {
			c.fleet.wrong("strange answer", "an import of one task: %s", a.body)
		}
	}
	c.fleet.history.Change(o.n, change)
}
