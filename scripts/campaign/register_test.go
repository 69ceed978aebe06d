package campaign

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lapsehq/lapse/scripts/crash"
	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// The tasks of this feature belong to no caller: all of them use the same few at the same time.
var registerFeature = feature{
	name: "register", does: "several callers at a time create, move, cancel, read and acknowledge one task; its history is checked for linearizability",
	acts: []act{
		{4, func(c *caller, _ context.Context, r *run) { c.register(r, "post") }},
		{6, func(c *caller, _ context.Context, r *run) { c.register(r, "get") }},
		{4, func(c *caller, _ context.Context, r *run) { c.register(r, "move") }},
		{3, func(c *caller, _ context.Context, r *run) { c.register(r, "cancel") }},
	},
	topics: map[string]string{"register": ""},
	pulled: func(f *fleet, p *pulled) handled {
		return handled{verb: mostly("ack", "release"), outside: true, once: true, settled: func(s crash.Settlement) {
			if s.Verb == crash.Ack && (s.Outcome == crash.Done || s.Outcome == crash.Unknown) {
				f.grown.tasks.add(p.ID, request{verb: "ack", unknown: s.Outcome == crash.Unknown, open: !s.Recorded, start: s.Start, end: s.End})
			}
		}}
	},
	judge: func(f *fleet) { f.grown.tasks.judge(f, "register") },
}

// register does one thing with a task. All creations of it are the same request.
func (c *caller) register(r *run, verb string) {
	tasks := c.fleet.grown.tasks
	id := tasks.pick(c.rng.IntN(1<<20), "r")
	q := request{verb: verb}
	method, path, body := http.MethodGet, "/v1/tasks/"+id, []byte(nil)
	switch verb {
	case "post":
		method, path = http.MethodPost, "/v1/tasks"
		due := tasks.deadline(id, c.soon().Add(2*c.fleet.failoverAfter))
		body = fmt.Appendf(nil, `{"topic":"register","id":%q,"due_at":%q}`, id, rig.Wire(due))
		q.due = due.UnixMilli()
	case "move":
		due := c.soon()
		method, body = http.MethodPatch, fmt.Appendf(nil, `{"due_at":%q}`, rig.Wire(due))
		q.due = due.UnixMilli()
	case "cancel":
		method = http.MethodDelete
	}
	a := c.fleet.ask(r, method, path, body)
	q.status, q.start, q.end, q.unknown = a.status, a.Start, a.End, a.outcome == crash.Unknown
	if a.outcome == crash.Refused || q.unknown && verb == "get" {
		return
	}
	if a.outcome == crash.Done && verb != "cancel" {
		var task struct {
			Due time.Time `json:"due_at"`
		}
		c.fleet.decode(a, &task)
		q.n = task.Due.UnixMilli()
	}
	tasks.add(id, q)
}
