package engine

import (
	"cmp"

	"github.com/lapsehq/lapse/tasks/task"
)

// topicPageBytes: a page of topics ends behind the one with which it has so many bytes, by an
// estimate.
const topicPageBytes = 4 << 20

// CountsLocked returns the counts of a topic as they are shown.
func (s *Engine) CountsLocked(t *Topic) task.Counts {
	c := t.Counts
	c.Pending, c.Ready, c.Delivering, c.Dead = t.Gauges[task.Pending], t.Gauges[task.Ready], t.Gauges[task.Delivering], t.Gauges[task.Dead]
	c.Retrying, c.Held = t.Retrying, t.Held
	if t.kept != nil {
		c.Finished = t.kept.Gauges[task.Dead]
	}
	c.DeadOldest = t.deadSince()
	c.Receivers = int64(t.Reservers.Local)
	s.recentLocked(t, &c)
	return c
}

// DescribeLocked returns a topic as callers see it.
func (s *Engine) DescribeLocked(t *Topic) task.Topic {
	c := s.CountsLocked(t)
	d := task.Topic{Name: t.Name, Settings: t.Settings, Revision: t.stored.revision, Counts: c}
	d.Settings.Kind = t.Kind()
	if t.undeliverable != nil {
		d.Undeliverable = t.undeliverable.Error()
	}
	if t.lastFail != 0 {
		d.LastError, d.LastFailed = t.lastError, FromMillis(t.lastFail)
	}
	d.ConcurrencySet, d.ConcurrencyNow = t.stored.own, max(t.Settings.Concurrency, s.Dispatch.RaisedFor(&t.Line))
	return d
}

// DescribeUnmet returns a topic that this node has not met, as it would be here.
func (s *Engine) DescribeUnmet(name string) task.Topic {
	e := s.Config.Resolved[name]
	t := task.Topic{Name: name, Settings: e.Set.WithDefaults(), ConcurrencySet: e.Set.Concurrency != 0}
	t.Settings.Kind = cmp.Or(t.Settings.Kind, task.Pull)
	t.ConcurrencyNow = t.Settings.Concurrency
	if e.Undeliverable != nil {
		t.Undeliverable = e.Undeliverable.Error()
	}
	return t
}

// IsDeleted reports whether a topic was deleted and has no settings since, as far as this node
// knows.
func (s *Engine) IsDeleted(name string) bool {
	s.Mu.Lock()
	defer s.Unlock()
	t, ok := s.TopicTable.ByName[name]
	return ok && t.stored.deleted
}

// DescribeSome makes a page of topics, as far as they fit into one. Those that were
// forgotten meanwhile, or are gone, are left out.
func (s *Engine) DescribeSome(names []string) (page task.TopicPage) {
	bytes := 0
	for i := 0; i < len(names); {
		s.Mu.Lock()
		for end := min(i+AtOnce, len(names)); i < end && bytes < topicPageBytes; i++ {
			if t, ok := s.TopicTable.ByName[names[i]]; ok && !s.goneLocked(t) {
				page.Topics = append(page.Topics, s.DescribeLocked(t))
				bytes += describedBytes + len(t.Settings.Delivery) + len(t.lastError)
			}
		}
		s.Unlock()
		if bytes >= topicPageBytes && i < len(names) {
			page.NextCursor = names[i-1]
			return page
		}
	}
	return page
}

// describedBytes is about how many bytes of an answer a topic takes up, besides Delivery
// and its last error.
const describedBytes = 1280

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
