package task

import (
	"context"
	"slices"
	"strings"
	"time"
)

// Limits of a Grant.
const (
	MaxGrantTopics = 100 // patterns of one grant
)

// A Grant says which topics a caller may use, and how much of a node they may take up. It goes with
// the context of each call of that caller: see WithGrant. The zero value, like no grant, allows
// everything.
type Grant struct {
	// Topics are patterns: the name of a topic, or the beginning of names and an asterisk, such as
	// "order.*". Empty: all topics.
	Topics []string
	// MaxTopics bounds the topics that match Topics and have tasks, the dead included, on each
	// node: a task that would bring in another one is refused. 0: no bound.
	MaxTopics int
	// MaxPending bounds the tasks that are pending in topics that match Topics, and likewise those
	// that are dead or finished and kept, on each node, whichever caller has scheduled them. Beyond
	// one of them, further tasks are refused. 0: no bound.
	MaxPending int
	// Reserved lets the caller bring in topics beyond MaxTopics-ReservedTopics.
	Reserved bool
}

// Allows reports whether the caller may use the topic. A nil grant allows all.
func (g *Grant) Allows(topic string) bool {
	return g == nil || AnyMatches(g.Topics, topic)
}

// HasReserved reports whether the caller may have the reserved places of topics. With a nil grant
// it may not.
func (g *Grant) HasReserved() bool { return g != nil && g.Reserved }

// Equal reports whether two grants allow the same.
func (g *Grant) Equal(o *Grant) bool {
	if g == nil || o == nil {
		return g == o
	}
	return slices.Equal(g.Topics, o.Topics) && g.MaxTopics == o.MaxTopics && g.MaxPending == o.MaxPending && g.Reserved == o.Reserved
}

// CheckPattern returns what is wrong with a pattern of topics, or "".
func CheckPattern(pattern string) string {
	if pattern == "*" {
		return ""
	}
	if !ValidName(strings.TrimSuffix(pattern, "*")) {
		return "must be the name of a topic, or the beginning of names and an asterisk"
	}
	return ""
}

// Matches reports whether the topic has the name that the pattern gives, or a name that begins so.
func Matches(pattern, topic string) bool {
	if start, many := strings.CutSuffix(pattern, "*"); many {
		return strings.HasPrefix(topic, start)
	}
	return pattern == topic
}

// ValidPattern reports whether a text is the name of a topic, or the beginning of names and an
// asterisk.
func ValidPattern(p string) bool {
	return p == "*" || ValidName(strings.TrimSuffix(p, "*"))
}

// AnyMatches reports whether the topic matches one of the patterns. It is true if there are none.
func AnyMatches(patterns []string, topic string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return Matches(p, topic) })
}

// A Version names a task as a caller has seen it. Each change by a caller makes another version,
// and so does another task under the same id.
type Version struct {
	Revision int64     // Task.Revision
	Created  time.Time // Task.Created; zero: of any task
}

// AnyVersion is the version of every task that exists.
var AnyVersion = Version{Revision: -1}

// Conditions are what goes with the context of a call: on which conditions it holds, and what has
// caused it.
type Conditions struct {
	Grant   *Grant
	Version Version // that the task must have; zero: it does not matter
	Trace   TraceContext
}

type conditionsKey struct{}

// ConditionsOf returns the conditions of a call, nil if there are none.
func ConditionsOf(ctx context.Context) *Conditions {
	c, _ := ctx.Value(conditionsKey{}).(*Conditions)
	return c
}

// conditionsOf returns a copy of the conditions of a call, the zero value if there are none.
func conditionsOf(ctx context.Context) (c Conditions) {
	if before := ConditionsOf(ctx); before != nil {
		c = *before
	}
	return c
}

// In returns the context of a call with these conditions.
func (c Conditions) In(ctx context.Context) context.Context {
	return context.WithValue(ctx, conditionsKey{}, &c)
}

// Conditional reports whether the call is about a version that must exist.
func (c *Conditions) Conditional() bool { return c != nil && c.Version != (Version{}) }

// Permit checks whether the call may be about a task. It returns ErrNotGranted if the grant does
// not allow the topic, and ErrVersion if the task has another version than the call asks for.
// created is in Unix nanoseconds.
func (c *Conditions) Permit(topic string, revision, created int64) error {
	switch {
	case c == nil:
		return nil
	case !c.Grant.Allows(topic):
		return ErrNotGranted
	case c.Version == (Version{}), c.Version == AnyVersion:
		return nil
	case c.Version.Revision != revision, !c.Version.Created.IsZero() && c.Version.Created.UnixNano() != created:
		return ErrVersion
	}
	return nil
}

// WithGrant returns the context of a call for which the grant holds. A call that names a topic that
// the grant does not allow is refused with ErrNotGranted. A task of such a topic does not exist for
// the call (ErrNotFound), but that its id is taken (ErrExists). A call about many tasks covers only
// those of the grant's topics. No call creates a task beyond its bounds, see MaxTopics and
// MaxPending.
func WithGrant(ctx context.Context, g *Grant) context.Context {
	c := conditionsOf(ctx)
	c.Grant = g
	return c.In(ctx)
}

// WithVersion returns the context of a Cancel, Fire, Replace or Reschedule that does nothing, and
// returns ErrRevision, unless the task has that version.
func WithVersion(ctx context.Context, v Version) context.Context {
	c := conditionsOf(ctx)
	v.Created = v.Created.UTC() // other nodes get JSON, where the offset of a zone has no seconds
	c.Version = v
	return c.In(ctx)
}

// GrantOf returns the grant of a call, nil if there is none.
func GrantOf(ctx context.Context) *Grant {
	if t := ConditionsOf(ctx); t != nil {
		return t.Grant
	}
	return nil
}

// PatternsOf returns the patterns of a call's grant, nil for all topics.
func PatternsOf(ctx context.Context) []string {
	if g := GrantOf(ctx); g != nil {
		return g.Topics
	}
	return nil
}
