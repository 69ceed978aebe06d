package respapi

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"

	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/tasks"
)

// live returns the task of a key that exists, nil of one that does not. Errors: as of found.
func (x *call) live(ctx context.Context, k *key) (*tasks.Task, error) {
	if x.tx != nil {
		return x.tx.live(k)
	}
	t, err := x.found(ctx, k)
	if err != nil || t.ID == "" || !isLive(&t) {
		return nil, err
	}
	return &t, nil
}

// read returns the task of the key of a command; nil: it does not exist. It answers and reports
// false if the key cannot be read.
func (x *call) read() (t *tasks.Task, ok bool) {
	if x.peeked {
		return x.seen, true
	}
	k, ok := x.key(x.args[1])
	if !ok {
		return nil, false
	}
	t, err := x.live(x.ctx, &k)
	if err != nil {
		x.fail(err)
		return nil, false
	}
	return t, true
}

// findAll looks up many keys. Those that do not exist are the zero Task. Error: the first one, but
// errOtherTopic, with which a key does not exist.
func (x *call) findAll(keys []key) ([]tasks.Task, error) {
	all, errs := make([]tasks.Task, len(keys)), make([]error, len(keys))
	x.each(len(keys), func(i int) {
		t, err := x.live(x.ctx, &keys[i])
		if t != nil {
			all[i] = *t
		} else if !errors.Is(err, errOtherTopic) {
			errs[i] = err
		}
	})
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func runGet(x *call) {
	if t, ok := x.read(); ok {
		x.value(t, nil)
	}
}

// value answers the value of a key, that it has none, or an error.
func (x *call) value(t *tasks.Task, err error) {
	switch {
	case err != nil:
		x.fail(err)
	case t == nil:
		x.out.Null()
	default:
		x.out.Bulk(t.Payload)
	}
}

func runStrLen(x *call) {
	switch t, ok := x.read(); {
	case !ok:
	case t == nil:
		x.out.Int(0)
	default:
		x.out.Int(int64(len(t.Payload)))
	}
}

// runMGet answers MGET. Keys are read a few at a time. A stream has no value.
func runMGet(x *call) {
	args := x.args[1:]
	for _, a := range args {
		if _, problem := x.c.server.keyTopic(a); problem != "" && problem != errWrongType {
			x.out.Error(problem)
			return
		}
	}
	from, size, count := len(x.out.Buf), 0, len(args)
	x.out.Array(len(args))
	for len(args) > 0 {
		some := args[:min(len(args), 4*mostAtOnce)]
		args = args[len(some):]
		all, err := x.readSome(some)
		for i := range all {
			size += len(all[i].Payload)
		}
		switch {
		case err != nil:
			x.out.Buf = x.out.Buf[:from]
			x.fail(err)
			return
		case size > x.c.server.cfg.MaxCommand:
			x.out.Buf = x.out.Buf[:from]
			x.out.Error("ERR the values exceed resp_max_command together")
			return
		case x.c.crowded():
			x.out.Buf = x.out.Buf[:from]
			x.out.Error(errUnread)
			return
		}
		// The others are of the same size, mostly.
		rest := (size/(count-len(args)) + 16) * (len(some) + len(args))
		x.out.Buf = slices.Grow(x.out.Buf, min(rest, 4*size, x.c.server.cfg.MaxCommand))
		for i := range all {
			if all[i].ID == "" {
				x.out.Null()
			} else {
				x.out.Bulk(all[i].Payload)
			}
		}
		x.c.holdLarge()
	}
}

// readSome looks up the keys with some names. Those that do not exist are the zero Task.
func (x *call) readSome(names [][]byte) ([]tasks.Task, error) {
	keys := make([]key, 0, len(names))
	at := make([]int, 0, len(names))
	for i, name := range names {
		if topic, problem := x.c.server.keyTopic(name); problem == "" {
			keys, at = append(keys, keyOf(name, topic)), append(at, i)
		}
	}
	found, err := x.findAll(keys)
	all := make([]tasks.Task, len(names))
	for i := range found {
		all[at[i]] = found[i]
	}
	return all, err
}

func runGetDel(x *call) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	var before *tasks.Task
	_, err := x.update(&k, func(old *tasks.Task) change {
		if before = old; old == nil {
			return change{}
		}
		return change{deed: remove}
	}, func() {
		if before != nil {
			x.told(&k, remove)
		}
	})
	x.value(before, err)
}

func runGetEx(x *call) {
	o, ok := x.readOptions(x.args[2:], false)
	if !ok {
		return
	}
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	if o.until == nil && !o.persist {
		runGet(x)
		return
	}
	// Redis looks at the key before it looks at the time.
	if t, err := x.live(x.ctx, &k); err != nil || t == nil {
		x.value(t, err)
		return
	}
	var due deadline
	if o.until != nil {
		if due, ok = x.until(o.until, o.unit); !ok {
			return
		}
	}
	var before *tasks.Task
	var did change
	_, err := x.update(&k, func(old *tasks.Task) change {
		before, did = old, change{}
		switch {
		case old == nil:
		case o.persist:
			if old.State != tasks.Held {
				did.deed = hold
			}
		default:
			did = x.moved(old, due)
		}
		return did
	}, func() { x.told(&k, did.deed) })
	x.value(before, err)
}

// told tells subscribers what was done with a key, besides giving it a value.
func (x *call) told(k *key, d deed) {
	switch d {
	case move:
		x.notify(classGeneric, "expire", k.name)
	case hold:
		x.notify(classGeneric, "persist", k.name)
	case remove:
		x.notify(classGeneric, "del", k.name)
	}
}

// edit changes the value of a key, which keeps its deadline. edited returns the new value, and
// whether there is one; or why there is none, which is answered. It reports whether the value was
// edited.
func (x *call) edit(k *key, event string, edited func(old []byte, exists bool) (value []byte, refusal string)) bool {
	var refusal string
	done := false
	_, err := x.update(k, func(old *tasks.Task) change {
		var before []byte
		if old != nil {
			before = old.Payload
		}
		var value []byte
		value, refusal = edited(before, old != nil)
		if done = refusal == "" && value != nil; !done {
			return change{}
		}
		return change{put, value, dueOf(old)}
	}, func() {
		if done {
			x.notify(classString, event, k.name)
		}
	})
	switch {
	case err != nil:
		x.fail(err)
		return false
	case refusal != "":
		x.out.Error(refusal)
		return false
	}
	return true
}

// runAdd answers INCR and DECR.
func runAdd(delta int64) func(*call) {
	return func(x *call) { x.add(delta) }
}

func runIncrBy(x *call) {
	if n, ok := x.number(x.args[2], errNotInteger); ok {
		x.add(n)
	}
}

func runDecrBy(x *call) {
	switch n, ok := x.number(x.args[2], errNotInteger); {
	case !ok:
	case n == math.MinInt64:
		x.out.Error("ERR decrement would overflow")
	default:
		x.add(-n)
	}
}

func (x *call) add(delta int64) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	var sum int64
	if x.edit(&k, "incrby", func(old []byte, exists bool) ([]byte, string) {
		n := int64(0)
		if exists {
			if n, ok = resp.ParseInt(old); !ok {
				return nil, errNotInteger
			}
		}
		if sum = n + delta; (sum > n) != (delta > 0) && delta != 0 {
			return nil, "ERR increment or decrement would overflow"
		}
		return strconv.AppendInt(nil, sum, 10), ""
	}) {
		x.out.Int(sum)
	}
}

func runIncrByFloat(x *call) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	var sum string
	if x.edit(&k, "incrbyfloat", func(old []byte, exists bool) ([]byte, string) {
		if !exists {
			old = []byte{'0'}
		}
		a, ok := parseFloat(old)
		b, alsoOK := parseFloat(x.args[2])
		if !ok || !alsoOK {
			return nil, "ERR value is not a valid float"
		}
		if sum = addFloat(a, b); sum == "" {
			return nil, "ERR increment would produce NaN or Infinity"
		}
		return []byte(sum), ""
	}) {
		x.out.Text(sum)
	}
}

func runAppend(x *call) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	n := 0
	if x.edit(&k, "append", func(old []byte, _ bool) ([]byte, string) {
		if n = len(old) + len(x.args[2]); n > x.c.server.cfg.MaxCommand {
			return nil, errStringLarge
		}
		value := make([]byte, 0, n)
		return append(append(value, old...), x.args[2]...), ""
	}) {
		x.out.Int(int64(n))
	}
}

func runSetRange(x *call) {
	offset, ok := x.number(x.args[2], errNotInteger)
	switch {
	case !ok:
		return
	case offset < 0:
		x.out.Error("ERR offset is out of range")
		return
	}
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	part, n := x.args[3], 0
	if x.edit(&k, "setrange", func(old []byte, _ bool) ([]byte, string) {
		n = len(old)
		switch {
		case len(part) == 0:
			return nil, ""
		case offset > int64(x.c.server.cfg.MaxCommand-len(part)):
			return nil, errStringLarge
		}
		n = max(n, int(offset)+len(part))
		value := make([]byte, n)
		copy(value, old)
		copy(value[offset:], part)
		return value, ""
	}) {
		x.out.Int(int64(n))
	}
}

// runGetRange answers GETRANGE and SUBSTR.
func runGetRange(x *call) {
	from, ok := x.number(x.args[2], errNotInteger)
	if !ok {
		return
	}
	to, ok := x.number(x.args[3], errNotInteger)
	if !ok {
		return
	}
	t, ok := x.read()
	switch {
	case !ok:
		return
	case t == nil:
		x.out.Text("")
		return
	}
	n := int64(len(t.Payload))
	if from < 0 && to < 0 && from > to {
		x.out.Text("")
		return
	}
	if from < 0 {
		from = max(from+n, 0)
	}
	if to < 0 {
		to = max(to+n, 0)
	}
	if to = min(to, n-1); from > to || n == 0 {
		x.out.Text("")
		return
	}
	x.out.Bulk(t.Payload[from : to+1])
}
