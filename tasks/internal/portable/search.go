package portable

import (
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/task"
)

// A Query with a Text is a part of a search: it reads as an export does, and has only what is
// found.

// hasText reports whether the id or the group of a task has the text in it; without a text it has.
func (r *reading) hasText(id, group []byte) bool {
	text := r.query.Text
	return text == "" || task.MatchOf(text, id) != 0 || task.MatchOf(text, group) != 0
}

// found adds a task that was found, unless it was so by its group, which the part has. It reports
// false if no more are wanted.
func (r *reading) found(at Position, t task.Task, shard int) bool {
	if task.MatchOf(r.query.Text, t.Group) != 0 {
		if r.told[t.Group] && task.MatchOf(r.query.Text, t.ID) == 0 {
			return true
		}
		r.told[t.Group] = true
	}
	r.part.Items = append(r.part.Items, Item{Position: at, Task: &t, SeenAt: r.now})
	r.shards = append(r.shards, shard)
	r.bytes += itemBytes + query.SizeOf(&t)
	return !r.filled()
}

// sum counts the tasks of the topics that are asked for.
func (r *reading) sum() {
	r.EachTopic(func(t *engine.Topic) {
		if r.wants(t.Name) {
			r.part.Live += int(t.Gauges[task.Pending] + t.Gauges[task.Ready] + t.Gauges[task.Delivering])
			r.part.Buried += t.CountBuried()
		}
	})
}
