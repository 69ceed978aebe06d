package respapi

import (
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A deadline is when a key is to expire: at most one of its fields is set, none if it never
// expires. The clocks of nodes may differ, and a key expires by the clock of its owner. So what is
// relative is sent to the owner as it is, and what depends on the present is judged by the time
// that the owner has read the key at.
type deadline struct {
	at time.Time     // absolute, in UTC
	in time.Duration // relative; a key that has expired already may have one below 0
}

// deadlineOf returns the deadline that a number of a command says. It reports false if that is too
// far ahead. The number is in the range of seconds, or of milliseconds, that a time can have.
func deadlineOf(n int64, u unit) (d deadline, ok bool) {
	if u.seconds {
		n *= 1000
	}
	most := task.MaxAhead.Milliseconds()
	if !u.relative {
		return deadline{at: time.UnixMilli(n).UTC()}, n <= time.Now().UnixMilli()+most
	}
	if n = max(n, -most); n == 0 {
		return deadline{in: -1}, true
	}
	return deadline{in: time.Duration(min(n, most)) * time.Millisecond}, n <= most
}

// none reports whether it never comes.
func (d deadline) none() bool { return d == deadline{} }

// seenFrom returns the time of a deadline by the clock of a key's owner.
func (d deadline) seenFrom(t *tasks.Task) time.Time {
	if d.in != 0 {
		return t.SeenAt.Add(d.in)
	}
	return d.at
}

// isPast reports whether a deadline has come already for a key that was read.
func (d deadline) isPast(t *tasks.Task) bool { return !d.seenFrom(t).After(t.SeenAt) }

// move returns the change of a task that gives it the deadline.
func (d deadline) move() tasks.Move {
	if d.in != 0 {
		return tasks.Move{Delay: &d.in}
	}
	return tasks.Move{Due: d.at}
}

// dueOf returns the deadline of a key: none if it has none, or does not exist.
func dueOf(t *tasks.Task) deadline {
	if t == nil || t.State == tasks.Held {
		return deadline{}
	}
	return deadline{at: t.Due.UTC()}
}
