package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// Granted checks the name of a topic.
func Granted(ctx context.Context, topic string) error {
	if !task.GrantOf(ctx).Allows(topic) {
		return task.ErrNotGranted
	}
	return nil
}

// permit checks a task in memory that is at rest.
func (k *topicTable) permit(conds *task.Conditions, b *store.Store, sl *store.Slot) error {
	if conds == nil {
		return nil
	}
	f := b.Fields(sl)
	return conds.Permit(k.ByNumber[sl.Topic].Name, int64(f.Revision), f.Created)
}

// A Quota counts what matches the patterns of a grant. Guarded by Engine.mu.
type Quota struct {
	Patterns []string
	Topics   int           // that have tasks, be it dead ones
	Tasks    int           // that are not dead
	Buried   int           // that are dead, or finished and kept
	used     time.Duration // when it was asked for last, on the clock of elapsed
	ready    chan struct{} // closed when the topics that were there before are counted
}

// quotas are those that are kept: they count as topics and tasks come and go, so that no
// creation has to look at all topics. After a start they count what replay reads. Which bounds
// hold is not their affair: tokens of the same topics share the counts.
type quotas struct {
	ByPatterns map[string]*Quota
}

const (
	// MaxQuotas bounds them; beyond it, the one that was used longest ago is forgotten.
	MaxQuotas = 1000
)

// quota returns the counts that a grant's bounds are compared with; nil if it has no bounds.
func (s *Engine) quota(ctx context.Context, g *task.Grant) (*Quota, error) {
	if g == nil || g.MaxTopics == 0 && g.MaxPending == 0 {
		return nil, nil
	}
	key := strings.Join(g.Topics, " ")
	s.mu.Lock()
	q, known := s.TopicTable.Quotas.ByPatterns[key]
	var old *Quota
	if !known {
		q = &Quota{Patterns: slices.Clone(g.Topics), ready: make(chan struct{})}
		old = s.TopicTable.Quotas.add(key, q)
	}
	q.used = s.Elapsed()
	s.mu.Unlock()
	if !known {
		s.countQuota(q, old)
		close(q.ready)
	}
	select {
	case <-q.ready:
		return q, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", task.ErrUnavailable, context.Cause(ctx))
	}
}

// add returns the quota that is forgotten for this one, nil if there is room.
func (k *quotas) add(key string, q *Quota) (old *Quota) {
	if k.ByPatterns == nil {
		k.ByPatterns = make(map[string]*Quota)
	}
	if len(k.ByPatterns) >= MaxQuotas {
		oldest := ""
		for name, o := range k.ByPatterns {
			if old == nil || o.used < old.used {
				oldest, old = name, o
			}
		}
		delete(k.ByPatterns, oldest)
	}
	k.ByPatterns[key] = q
	return old
}

// of returns the quotas in which a topic counts.
func (k *quotas) of(topic string) (list []*Quota) {
	for _, q := range k.ByPatterns {
		if task.AnyMatches(q.Patterns, topic) {
			list = append(list, q)
		}
	}
	return list
}

// countQuota has the topics that are there count in a quota, and no more in another one:
// a few under one lock. Topics that come meanwhile do so by themselves.
func (s *Engine) countQuota(q, old *Quota) {
	s.EachTopic(func(t *Topic) {
		t.quotas = slices.DeleteFunc(t.quotas, func(o *Quota) bool { return o == old })
		if !task.AnyMatches(q.Patterns, t.Name) || slices.Contains(t.quotas, q) {
			return
		}
		t.quotas = append(t.quotas, q)
		q.Tasks += t.Slots
		q.Buried += t.CountBuried()
		if t.Occupied {
			q.Topics++
		}
	})
}

// RoomLocked returns nil if the caller may have one more task, and otherwise ErrQuota.
func (a *Admission) RoomLocked() error {
	q := a.quota
	switch {
	case q == nil || a.Grant.MaxPending == 0:
	case q.Tasks >= a.Grant.MaxPending:
		return fmt.Errorf("%w: %d tasks are pending in the topics of the caller", task.ErrQuota, q.Tasks)
	case q.Buried >= a.Grant.MaxPending:
		return fmt.Errorf("%w: %d tasks are dead, or finished and kept, in the topics of the caller", task.ErrQuota, q.Buried)
	}
	return nil
}

// TopicForLocked returns the topic of a task that the caller wants, making it if needed.
func (s *Engine) TopicForLocked(a *Admission, name string) (*Topic, error) {
	if q := a.quota; q != nil && a.Grant.MaxTopics > 0 && q.Topics >= a.Grant.MaxTopics {
		if t, known := s.TopicTable.ByName[name]; !known || !t.Occupied {
			return nil, fmt.Errorf("%w: %d topics of the caller have tasks", task.ErrQuota, q.Topics)
		}
	}
	return s.TopicLocked(name, a.Grant.HasReserved())
}

// countLocked notes that tasks have come (1), gone (-1), or died or come back (0).
func (t *Topic) countLocked(change int) {
	t.Slots += change
	occupied := t.Slots > 0 || t.Gauges[task.Dead] > 0
	moved := 0
	switch {
	case occupied && !t.Occupied:
		moved, t.stored.deleted = 1, false // with new tasks it is a topic that was never set up
	case t.Occupied && !occupied:
		moved = -1
	}
	t.Occupied = occupied
	for _, q := range t.quotas {
		q.Tasks += change
		q.Topics += moved
	}
}

// buryLocked notes that a task has died (1), or is among the dead no longer (-1). The finished
// tasks that a topic keeps count as its dead do.
func (t *Topic) buryLocked(change int) {
	t.Gauges[task.Dead] += int64(change)
	t.countLocked(0)
	for _, q := range cmp.Or(t.of, t).quotas {
		q.Buried += change
	}
}

// CountBuried returns how many tasks are dead, or finished and kept.
func (t *Topic) CountBuried() (n int) {
	if t.kept != nil {
		n = t.kept.CountBuried()
	}
	return n + int(t.Gauges[task.Dead])
}

// An Admission is what a call says of the tasks that it creates: their bounds and their trace.
type Admission struct {
	Grant *task.Grant
	conds *task.Conditions   // of the call; nil: none
	quota *Quota             // nil: the grant has no bounds
	trace *task.TraceContext // nil: none
}

// Admission returns what the call says of the tasks that it creates. Error: ErrUnavailable when ctx
// ends before the tasks of the caller's topics are counted.
func (s *Engine) Admission(ctx context.Context) (by Admission, err error) {
	if c := task.ConditionsOf(ctx); c != nil {
		by.Grant, by.conds, by.trace = c.Grant, c, &c.Trace
	}
	by.quota, err = s.quota(ctx, by.Grant)
	return by, err
}
