package tasks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Limits of a Grant.
const (
	MaxGrantTopics = 100 // patterns of one grant
)

// A Grant says which topics a caller may use, and how much of a node they may take up. It
// goes with the context of each call of that caller: see WithGrant. The zero value, like no
// grant, allows everything.
type Grant struct {
	// Topics are patterns: the name of a topic, or the beginning of names and an asterisk,
	// such as "order.*". Empty: all topics.
	Topics []string
	// MaxTopics bounds the topics that match Topics and have tasks, the dead included, on
	// each node: a task that would bring in another one is refused. 0: no bound.
	MaxTopics int
	// MaxPending bounds the tasks in topics that match Topics, the dead not included, on
	// each node, whichever caller has scheduled them: further ones are refused. 0: no bound.
	MaxPending int
	// Reserved lets the caller bring in topics beyond MaxTopics-ReservedTopics.
	Reserved bool
}

// ErrNotGranted is returned when a Grant does not allow the topic that is named, or that of
// the task with the id.
var ErrNotGranted = errors.New("the topic is none of those that the caller may use")

// CheckPattern returns what is wrong with a pattern of topics, or "".
func CheckPattern(pattern string) string {
	if pattern == "*" {
		return ""
	}
	if !validName(strings.TrimSuffix(pattern, "*")) {
		return "must be the name of a topic, or the beginning of names and an asterisk"
	}
	return ""
}

// matches tells whether a topic has that name, or one that begins so.
func matches(pattern, topic string) bool {
	if start, many := strings.CutSuffix(pattern, "*"); many {
		return strings.HasPrefix(topic, start)
	}
	return pattern == topic
}

// Allows tells whether the topic may be used. No grant allows all.
func (g *Grant) Allows(topic string) bool {
	return g == nil || anyMatches(g.Topics, topic)
}

// anyMatches tells whether a topic matches one of the patterns, or there are none.
func anyMatches(patterns []string, topic string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return matches(p, topic) })
}

// Equal tells whether two grants allow the same.
func (g *Grant) Equal(o *Grant) bool {
	if g == nil || o == nil {
		return g == o
	}
	return slices.Equal(g.Topics, o.Topics) && g.MaxTopics == o.MaxTopics && g.MaxPending == o.MaxPending && g.Reserved == o.Reserved
}

// A Version names a task as a caller has seen it. Each change by a caller makes another one,
// and so does another task under the same id.
type Version struct {
	Revision int64     // Task.Revision
	Created  time.Time // Task.Created; zero: of any task
}

// AnyVersion is the version of every task that exists.
var AnyVersion = Version{Revision: -1}

// Terms are what goes with the context of a call.
type terms struct {
	grant   *Grant
	version Version // that the task must have; zero: it does not matter
}

type termsKey struct{}

// WithGrant makes the context of a call for which the grant holds: what names a topic that it
// does not allow, or a task of such a topic, is refused with ErrNotGranted; what is about many
// tasks is about those of its topics; and no task is created beyond its bounds.
func WithGrant(ctx context.Context, g *Grant) context.Context {
	t := terms{grant: g}
	if before := termsOf(ctx); before != nil {
		t.version = before.version
	}
	return t.in(ctx)
}

// WithVersion makes the context of a Cancel, Fire, Replace or Reschedule that does nothing,
// and returns ErrRevision, unless the task has that version.
func WithVersion(ctx context.Context, v Version) context.Context {
	t := terms{version: v}
	if before := termsOf(ctx); before != nil {
		t.grant = before.grant
	}
	return t.in(ctx)
}

// in makes the context of a call on these terms.
func (t terms) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, termsKey{}, &t)
}

func termsOf(ctx context.Context) *terms {
	t, _ := ctx.Value(termsKey{}).(*terms)
	return t
}

// GrantOf returns the grant of a call, nil if there is none.
func GrantOf(ctx context.Context) *Grant {
	if t := termsOf(ctx); t != nil {
		return t.grant
	}
	return nil
}

// patternsOf returns the patterns of a call's grant, nil for all topics.
func patternsOf(ctx context.Context) []string {
	if g := GrantOf(ctx); g != nil {
		return g.Topics
	}
	return nil
}

// granted checks the name of a topic.
func granted(ctx context.Context, topic string) error {
	if !GrantOf(ctx).Allows(topic) {
		return ErrNotGranted
	}
	return nil
}

// errVersion is answered when a task has another version than the caller has seen.
var errVersion error = &kindError{"the task has another revision", ErrRevision}

// conditional tells that the call is about a version that must exist.
func (t *terms) conditional() bool { return t != nil && t.version != (Version{}) }

// permit checks a task.
func (t *terms) permit(topic string, revision, created int64) error {
	switch {
	case t == nil:
		return nil
	case !t.grant.Allows(topic):
		return ErrNotGranted
	case t.version == (Version{}), t.version == AnyVersion:
		return nil
	case t.version.Revision != revision, !t.version.Created.IsZero() && t.version.Created.UnixMilli() != created:
		return errVersion
	}
	return nil
}

// permitLocked checks a task in memory that is at rest.
func (s *Scheduler) permitLocked(t *terms, sl *slot) error {
	if t == nil {
		return nil
	}
	f := s.book.fields(sl)
	return t.permit(s.byNumber[sl.topic].name, int64(f.Revision), f.Created)
}

// wireTerms are the terms of a call on their way to another node.
type wireTerms struct {
	Topics     []string `json:",omitempty"`
	MaxTopics  int      `json:",omitempty"`
	MaxPending int      `json:",omitempty"`
	Reserved   bool     `json:",omitempty"`
	Revision   int64    `json:",omitempty"`
	Created    int64    `json:",omitempty"`
}

// encodeTerms returns the terms of a call; nil if there are none.
func encodeTerms(ctx context.Context) *wireTerms {
	t := termsOf(ctx)
	if t == nil {
		return nil
	}
	w := &wireTerms{Revision: t.version.Revision}
	if !t.version.Created.IsZero() {
		w.Created = t.version.Created.UnixMilli()
	}
	if g := t.grant; g != nil {
		w.Topics, w.MaxTopics, w.MaxPending, w.Reserved = g.Topics, g.MaxTopics, g.MaxPending, g.Reserved
	}
	return w
}

// in makes the context of a question that another node has asked on these terms.
func (w *wireTerms) in(ctx context.Context) context.Context {
	if w == nil {
		return ctx
	}
	t := terms{grant: &Grant{w.Topics, w.MaxTopics, w.MaxPending, w.Reserved}, version: Version{Revision: w.Revision}}
	if w.Created != 0 {
		t.version.Created = fromMillis(w.Created)
	}
	return t.in(ctx)
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
func (s *Scheduler) quota(ctx context.Context, g *Grant) (*quota, error) {
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
		if anyMatches(q.patterns, topic) {
			list = append(list, q)
		}
	}
	return list
}

// countQuota has the topics that are there count in a quota, and no more in another one:
// a few under one lock. Topics that come meanwhile do so by themselves.
func (s *Scheduler) countQuota(q, old *quota) {
	s.eachTopic(func(t *topic) {
		t.quotas = slices.DeleteFunc(t.quotas, func(o *quota) bool { return o == old })
		if !anyMatches(q.patterns, t.name) || slices.Contains(t.quotas, q) {
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
func (s *Scheduler) topicForLocked(a *admission, name string) (*topic, error) {
	if q := a.quota; q != nil && a.grant.MaxTopics > 0 && q.topics >= a.grant.MaxTopics {
		if t, known := s.topics[name]; !known || !t.occupied {
			return nil, fmt.Errorf("%w: %d of its topics have tasks", ErrQuota, q.topics)
		}
	}
	return s.topicLocked(name, a.grant.reserved())
}

// ErrQuota is a kind of ErrOverloaded: a bound of the caller's Grant is reached.
var ErrQuota error = &kindError{"a bound of the caller is reached", ErrOverloaded}

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

// reserved tells whether a caller may have the reserved places of topics.
func (g *Grant) reserved() bool { return g != nil && g.Reserved }

// An admission is what a creation is bounded by.
type admission struct {
	grant *Grant
	quota *quota // nil: the grant has no bounds
}

func (s *Scheduler) admission(ctx context.Context) (admission, error) {
	by := admission{grant: GrantOf(ctx)}
	var err error
	by.quota, err = s.quota(ctx, by.grant)
	return by, err
}
