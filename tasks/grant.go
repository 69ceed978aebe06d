package tasks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/store"
	"github.com/lapsehq/lapse/tasks/task"
)

// granted checks the name of a topic.
func granted(ctx context.Context, topic string) error {
	if !GrantOf(ctx).Allows(topic) {
		return ErrNotGranted
	}
	return nil
}

// permitLocked checks a task in memory that is at rest.
func (s *engine) permitLocked(t *task.Terms, sl *store.Slot) error {
	if t == nil {
		return nil
	}
	f := s.store.Fields(sl)
	return t.Permit(s.byNumber[sl.Topic].name, int64(f.Revision), f.Created)
}

// A quota counts what matches the patterns of a grant. Guarded by Scheduler.mu.
type quota struct {
	patterns []string
	topics   int           // that have tasks, be it dead ones
	tasks    int           // that are not dead
	used     time.Duration // when it was asked for last, on the clock of elapsed
	ready    chan struct{} // closed when the topics that were there before are counted
}

// quotas are those that are kept: they count as topics and tasks come and go, so that no
// creation has to look at all topics. After a start they count what replay reads. Which bounds
// hold is not their affair: tokens of the same topics share the counts.
type quotas struct {
	byPatterns map[string]*quota
}

const (
	// maxQuotas bounds them; beyond it, the one that was used longest ago is forgotten.
	maxQuotas = 1000
)

// quota returns what a grant's bounds are compared with; nil if it has none.
func (s *engine) quota(ctx context.Context, g *Grant) (*quota, error) {
	if g == nil || g.MaxTopics == 0 && g.MaxPending == 0 {
		return nil, nil
	}
	key := strings.Join(g.Topics, " ")
	s.mu.Lock()
	q, known := s.quotas.byPatterns[key]
	var old *quota
	if !known {
		q = &quota{patterns: slices.Clone(g.Topics), ready: make(chan struct{})}
		old = s.quotas.add(key, q)
	}
	q.used = s.elapsed()
	s.mu.Unlock()
	if !known {
		s.countQuota(q, old)
		close(q.ready)
	}
	select {
	case <-q.ready:
		return q, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// add returns the quota that is forgotten for this one, nil if there is room.
func (k *quotas) add(key string, q *quota) (old *quota) {
	if k.byPatterns == nil {
		k.byPatterns = make(map[string]*quota)
	}
	if len(k.byPatterns) >= maxQuotas {
		oldest := ""
		for name, o := range k.byPatterns {
			if old == nil || o.used < old.used {
				oldest, old = name, o
			}
		}
		delete(k.byPatterns, oldest)
	}
	k.byPatterns[key] = q
	return old
}

// of returns the quotas in which a topic counts.
func (k *quotas) of(topic string) (list []*quota) {
	for _, q := range k.byPatterns {
		if task.AnyMatches(q.patterns, topic) {
			list = append(list, q)
		}
	}
	return list
}

// countQuota has the topics that are there count in a quota, and no more in another one:
// a few under one lock. Topics that come meanwhile do so by themselves.
func (s *engine) countQuota(q, old *quota) {
	s.eachTopic(func(t *topic) {
		t.quotas = slices.DeleteFunc(t.quotas, func(o *quota) bool { return o == old })
		if !task.AnyMatches(q.patterns, t.name) || slices.Contains(t.quotas, q) {
			return
		}
		t.quotas = append(t.quotas, q)
		q.tasks += t.slots
		if t.occupied {
			q.topics++
		}
	})
}

// roomLocked tells whether the caller may have one more task.
func (a *admission) roomLocked() error {
	if q := a.quota; q != nil && a.grant.MaxPending > 0 && q.tasks >= a.grant.MaxPending {
		return fmt.Errorf("%w: %d tasks are pending in its topics", ErrQuota, q.tasks)
	}
	return nil
}

// topicForLocked returns the topic of a task that the caller wants, making it if needed.
func (s *engine) topicForLocked(a *admission, name string) (*topic, error) {
	if q := a.quota; q != nil && a.grant.MaxTopics > 0 && q.topics >= a.grant.MaxTopics {
		if t, known := s.topics[name]; !known || !t.occupied {
			return nil, fmt.Errorf("%w: %d of its topics have tasks", ErrQuota, q.topics)
		}
	}
	return s.topicLocked(name, a.grant.HasReserved())
}

// countLocked notes that tasks have come (1), gone (-1), or died or come back (0).
func (t *topic) countLocked(change int) {
	t.slots += change
	occupied := t.slots > 0 || t.gauges[Dead] > 0
	moved := 0
	switch {
	case occupied && !t.occupied:
		moved, t.deleted = 1, false // with new tasks it is a topic that was never set up
	case t.occupied && !occupied:
		moved = -1
	}
	t.occupied = occupied
	for _, q := range t.quotas {
		q.tasks += change
		q.topics += moved
	}
}

// An admission is what a creation is bounded by.
type admission struct {
	grant *Grant
	quota *quota // nil: the grant has no bounds
}

func (s *engine) admission(ctx context.Context) (admission, error) {
	by := admission{grant: GrantOf(ctx)}
	var err error
	by.quota, err = s.quota(ctx, by.grant)
	return by, err
}
