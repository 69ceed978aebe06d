package engine

import "github.com/lapsehq/lapse/tasks/task"

// A Rank has the figures of a topic by which topics are sorted.
type Rank struct {
	Name   string
	Oldest int64 // since when its oldest ready task has been due, Unix ms; 0: none is ready

	Pending, Ready, Dead int64 // now
	Failed, FailedRecent int64 // attempts, since the start and in the last minutes
	Paused               bool
}

// Ranks returns those of all topics, in no order.
func (s *Engine) Ranks() []Rank {
	var all []Rank
	s.EachTopic(func(t *Topic) {
		if s.goneLocked(t) {
			return
		}
		r := Rank{
			Name: t.Name, Paused: t.Settings.Paused, Failed: t.Counts.Failed,
			Pending: t.Gauges[task.Pending], Ready: t.Gauges[task.Ready], Dead: t.Gauges[task.Dead],
		}
		r.Oldest, _ = t.Queue.Oldest(staleLooks, s.staleLocked)
		if t.recent != nil {
			r.FailedRecent = t.recent.failures(s.Elapsed())
		}
		all = append(all, r)
	})
	return all
}

// Add adds the figures of another node.
func (r *Rank) Add(o *Rank) {
	r.Pending += o.Pending
	r.Ready += o.Ready
	r.Dead += o.Dead
	r.Failed += o.Failed
	r.FailedRecent += o.FailedRecent
	if r.Oldest == 0 || o.Oldest != 0 && o.Oldest < r.Oldest {
		r.Oldest = o.Oldest
	}
}
