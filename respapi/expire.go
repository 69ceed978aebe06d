package respapi

import (
	"math"
	"strings"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// conditions are those of EXPIRE.
type conditions struct{ nx, xx, gt, lt bool }

// readConditions reads the conditions of EXPIRE. It answers and reports false if they cannot be.
func (x *call) readConditions(args [][]byte) (c conditions, ok bool) {
	for _, a := range args {
		switch strings.ToLower(string(a)) {
		case "nx":
			c.nx = true
		case "xx":
			c.xx = true
		case "gt":
			c.gt = true
		case "lt":
			c.lt = true
		default:
			x.out.Error("ERR Unsupported option " + cut(a, 128))
			return c, false
		}
	}
	switch {
	case c.nx && (c.xx || c.gt || c.lt):
		x.out.Error("ERR NX and XX, GT or LT options at the same time are not compatible")
		return c, false
	case c.gt && c.lt:
		x.out.Error("ERR GT and LT options at the same time are not compatible")
		return c, false
	}
	return c, true
}

// allow reports whether a key may get a deadline. No deadline counts as one that never comes.
func (c *conditions) allow(t *tasks.Task, want deadline) bool {
	due, when := dueOf(t), want.seenFrom(t)
	none := due.none()
	switch {
	case c.nx && !none, c.xx && none,
		c.gt && (none || !when.After(due.at)), c.lt && !none && !when.Before(due.at):
		return false
	}
	return true
}

// runExpire answers EXPIRE, PEXPIRE, EXPIREAT and PEXPIREAT.
func runExpire(u unit) func(*call) {
	return func(x *call) { x.expire(u) }
}

func (x *call) expire(u unit) {
	conds, ok := x.readConditions(x.args[3:])
	if !ok {
		return
	}
	when, ok := x.number(x.args[2], errNotInteger)
	if !ok {
		return
	}
	if u.seconds && (when > math.MaxInt64/1000 || when < math.MinInt64/1000) {
		x.invalidTime()
		return
	}
	want, ok := deadlineOf(when, u)
	if !ok {
		x.invalidTime()
		return
	}
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	var did deed
	_, err := x.update(&k, func(old *tasks.Task) change {
		c := change{}
		if old != nil && conds.allow(old, want) {
			c = x.moved(old, want)
		}
		did = c.deed
		return c
	}, func() { x.told(&k, did) })
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Flag(did != leave)
}

// moved returns the change that gives a key a deadline. One that has come already deletes the key,
// as in Redis, or has it expire at once.
func (x *call) moved(old *tasks.Task, want deadline) change {
	switch {
	case !want.isPast(old):
		return change{deed: move, due: want}
	case x.c.server.cfg.PastExpires:
		return change{deed: move, due: deadline{at: old.SeenAt.UTC().Truncate(time.Millisecond)}}
	}
	return change{deed: remove}
}

func runPersist(x *call) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	var did deed
	_, err := x.update(&k, func(old *tasks.Task) change {
		did = leave
		if old != nil && old.State != tasks.Held {
			did = hold
		}
		return change{deed: did}
	}, func() { x.told(&k, did) })
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Flag(did == hold)
}

// runTTL answers TTL, PTTL, EXPIRETIME and PEXPIRETIME.
func runTTL(u unit) func(*call) {
	return func(x *call) {
		t, ok := x.read()
		switch {
		case !ok:
			return
		case t == nil:
			x.out.Int(-2)
			return
		case t.State == tasks.Held:
			x.out.Int(-1)
			return
		}
		n := t.Due.UnixMilli()
		if u.relative {
			n = max(t.Due.Sub(t.SeenAt).Milliseconds(), 0)
		}
		if u.seconds {
			n = (n + 500) / 1000
		}
		x.out.Int(n)
	}
}
