package respapi

import (
	"errors"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// runDel answers DEL and UNLINK. Keys are deleted one by one, not all in one step.
func runDel(x *call) {
	n, err := x.countEach(func(k *key) (bool, error) {
		if t, err := x.live(x.ctx, k); t == nil || err != nil {
			return false, err
		}
		done := false
		_, err := x.update(k, func(old *tasks.Task) change {
			if done = old != nil; !done {
				return change{}
			}
			return change{deed: remove}
		}, func() {
			if done {
				x.told(k, remove)
			}
		})
		return done && err == nil, err
	}, false)
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Int(n)
}

// runDelEx answers DELEX key [IFEQ|IFNE value], as of Redis 8.4.
func runDelEx(x *call) {
	var c comparison
	if len(x.args) > 2 && (len(x.args) != 4 || !c.read(x.args[2:])) {
		x.out.Error(errSyntax)
		return
	}
	x.deleteIf(c)
}

// runDelIfEq answers DELIFEQ key value, as of Valkey 9.
func runDelIfEq(x *call) { x.deleteIf(comparison{given: true, equal: true, value: x.args[2]}) }

func (x *call) deleteIf(c comparison) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	did := leave
	_, err := x.update(&k, func(old *tasks.Task) change {
		if did = leave; old != nil && c.holds(old) {
			did = remove
		}
		return change{deed: did}
	}, func() { x.told(&k, did) })
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Flag(did == remove)
}

// runExists answers EXISTS and TOUCH.
func runExists(x *call) {
	n, err := x.countEach(func(k *key) (bool, error) {
		t, err := x.live(x.ctx, k)
		return t != nil, err
	}, true)
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Int(n)
}

// countEach counts the keys of a command for which f is true. A stream counts as exists says; what
// cannot be a key does not count. After an error of f for one key the others may be done.
func (x *call) countEach(f func(*key) (bool, error), exists bool) (n int64, err error) {
	names := x.args[1:]
	yes, errs := make([]bool, len(names)), make([]error, len(names))
	each := x.each
	if !exists && x.c.server.wanted()&classGeneric != 0 { // events come in the order of the keys
		each = inTurn
	}
	each(len(names), func(i int) {
		topic, problem := x.c.server.keyTopic(names[i])
		switch {
		case problem == errWrongType:
			yes[i] = exists
		case problem == "":
			k := keyOf(names[i], topic)
			yes[i], errs[i] = f(&k)
		}
	})
	for i := range yes {
		if errs[i] != nil && !errors.Is(errs[i], errOtherTopic) {
			err = errs[i]
		}
		if yes[i] {
			n++
		}
	}
	return n, err
}

// inTurn calls f with all numbers below n.
func inTurn(n int, f func(i int)) {
	for i := range n {
		f(i)
	}
}

// runType answers TYPE.
func runType(x *call) {
	topic, problem := x.c.server.keyTopic(x.args[1])
	if problem != "" {
		x.out.Simple(map[bool]string{true: "stream", false: "none"}[problem == errWrongType])
		return
	}
	k := keyOf(x.args[1], topic)
	t, err := x.live(x.ctx, &k)
	switch {
	case err != nil && !errors.Is(err, errOtherTopic):
		x.fail(err)
	case t == nil:
		x.out.Simple("none")
	default:
		x.out.Simple("string")
	}
}

// runRename answers RENAME and RENAMENX. The new key is made before the old one is deleted: a crash
// in between leaves both.
func runRename(onlyNew bool) func(*call) {
	return func(x *call) { x.rename(onlyNew) }
}

func (x *call) rename(onlyNew bool) {
	from, to, ok := x.twoKeys()
	if !ok {
		return
	}
	var c copied
	for try := range mostTries {
		t, err := x.live(x.ctx, &from)
		switch {
		case err != nil:
			x.undo(&to, &c)
			x.fail(err)
			return
		case t == nil:
			x.undo(&to, &c)
			x.out.Error(errNoKey)
			return
		case from.id == to.id && onlyNew:
			x.out.Int(0)
			return
		case from.id == to.id:
			x.out.OK()
			return
		}
		if err = x.copyTo(&to, t, &c, !onlyNew); err == nil {
			err = x.drop(&from, t)
		}
		switch {
		case err == nil:
			x.notify(classGeneric, "rename_from", from.name)
			x.notify(classGeneric, "rename_to", to.name)
			if onlyNew {
				x.out.Int(1)
			} else {
				x.out.OK()
			}
			return
		case errors.Is(err, errKeyExists):
			x.out.Int(0)
			return
		case isConflict(err):
			err = rest(x.ctx, try)
		}
		if err != nil {
			if !isOpen(err) {
				x.undo(&to, &c)
			}
			x.fail(err)
			return
		}
	}
	x.undo(&to, &c)
	x.fail(errContended)
}

// copied is what copyTo has made of a key, and what was there.
type copied struct {
	made   tasks.Task // the zero Task: nothing was made
	before *tasks.Task
}

// undo gives a key back what it had before copyTo, unless another client has changed it since.
func (x *call) undo(k *key, c *copied) {
	switch {
	case c.made.ID == "":
	case c.before == nil:
		_ = x.drop(k, &c.made)
	default:
		_, _ = x.attempt(k, &c.made, change{put, c.before.Payload, dueOf(c.before)}, time.Time{})
	}
}

// copyTo makes a key with the value and the deadline of another one. Unless replace is true, the
// key must not exist, or be what was made before. Errors: errKeyExists; as of update.
func (x *call) copyTo(to *key, t *tasks.Task, c *copied, replace bool) error {
	exists, first := false, c.made.ID == ""
	var before *tasks.Task
	now, err := x.update(to, func(old *tasks.Task) change {
		before = old
		if exists = old != nil && !replace && (first || versionOf(old) != versionOf(&c.made)); exists {
			return change{}
		}
		return change{put, t.Payload, dueOf(t)}
	}, nil)
	switch {
	case err != nil:
		return err
	case exists:
		return errKeyExists
	case first || before == nil || versionOf(before) != versionOf(&c.made):
		c.before = before // of another client
	}
	if c.made = now; first && before != nil {
		// Redis deletes the key that was there, and so tells of a new one.
		x.notify(classNew, "new", to.name)
	}
	return nil
}

// runCopy answers COPY source destination [DB n] [REPLACE].
func runCopy(x *call) {
	replace := false
	for rest := x.args[3:]; len(rest) > 0; {
		switch {
		case is(rest[0], "replace"):
			replace, rest = true, rest[1:]
		case is(rest[0], "db") && len(rest) > 1:
			n, ok := x.number(rest[1], errNotInteger)
			if !ok {
				return
			}
			if n != 0 {
				x.out.Error("ERR DB index is out of range")
				return
			}
			rest = rest[2:]
		default:
			x.out.Error(errSyntax)
			return
		}
	}
	from, to, ok := x.twoKeys()
	if !ok {
		return
	}
	if from.id == to.id {
		x.out.Error("ERR source and destination objects are the same")
		return
	}
	t, err := x.live(x.ctx, &from)
	if err == nil && t != nil {
		err = x.copyTo(&to, t, &copied{}, replace)
	}
	switch {
	case err == nil && t != nil:
		x.notify(classGeneric, "copy_to", to.name)
		x.out.Int(1)
	case err == nil, errors.Is(err, errKeyExists):
		x.out.Int(0)
	default:
		x.fail(err)
	}
}

// runDBSize answers DBSIZE: how many keys there are, see countKeys.
func runDBSize(x *call) {
	n, _, err := x.countKeys(x.ctx)
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Int(n)
}

// runFlush answers FLUSHDB and FLUSHALL: it deletes all keys, one by one. Expiries that were not
// delivered yet go with them, but for those that are being delivered.
func runFlush(x *call) {
	switch {
	case len(x.args) > 2, len(x.args) == 2 && !is(x.args[1], "async") && !is(x.args[1], "sync"):
		x.out.Error(errSyntax)
		return
	case !x.c.server.cfg.Flush:
		x.out.Error("ERR " + x.name() + " is off; the setting resp_flush allows it")
		return
	}
	for topic := range x.c.server.hasKeys {
		if _, err := x.scheduler().Purge(x.ctx, topic); err != nil {
			x.fail(err)
			return
		}
	}
	x.out.OK()
}
