package respapi

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"sync"

	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/tasks"
)

// options are what SET and GETEX say besides the key and the value.
type options struct {
	nx, xx, get, keep, persist bool
	than                       comparison
	until                      []byte // the argument of unit
	unit                       unit
}

// A comparison is IFEQ or IFNE with a value, as Redis 8.4 and Valkey 8.1 have them.
type comparison struct {
	given, equal bool
	value        []byte
}

// read reads IFEQ or IFNE, and the value after it. It reports false if the arguments do not begin
// with one.
func (c *comparison) read(args [][]byte) bool {
	if len(args) < 2 || !is(args[0], "ifeq") && !is(args[0], "ifne") {
		return false
	}
	*c = comparison{true, is(args[0], "ifeq"), args[1]}
	return true
}

// holds reports whether a key may be changed. A key that does not exist has no value.
func (c *comparison) holds(t *tasks.Task) bool {
	return !c.given || (t != nil && bytes.Equal(t.Payload, c.value)) == c.equal
}

// A unit says what the number of a TTL means.
type unit struct{ seconds, relative bool }

var (
	seconds     = unit{seconds: true, relative: true}
	millis      = unit{relative: true}
	unixSeconds = unit{seconds: true}
	unixMillis  = unit{}
)

// readOptions reads the options of SET, or those of GETEX. It answers and reports false if they
// cannot be.
func (x *call) readOptions(args [][]byte, ofSet bool) (o options, ok bool) {
	for i := 0; i < len(args); i++ {
		arg, left := args[i], len(args)-i-1
		// An option may stand twice, but not beside one that says something else.
		timed := func(u unit) bool {
			if left == 0 || o.keep || o.persist || o.until != nil && o.unit != u {
				return false
			}
			i++
			o.until, o.unit = args[i], u
			return true
		}
		switch {
		case ofSet && is(arg, "nx") && !o.xx && !o.than.given:
			o.nx = true
		case ofSet && is(arg, "xx") && !o.nx && !o.than.given:
			o.xx = true
		case ofSet && !o.nx && !o.xx && !o.than.given && o.than.read(args[i:]):
			i++
		case ofSet && is(arg, "get"):
			o.get = true
		case ofSet && is(arg, "keepttl") && o.until == nil:
			o.keep = true
		case !ofSet && is(arg, "persist") && o.until == nil:
			o.persist = true
		case is(arg, "ex") && timed(seconds), is(arg, "px") && timed(millis),
			is(arg, "exat") && timed(unixSeconds), is(arg, "pxat") && timed(unixMillis):
		default:
			x.out.Error(errSyntax)
			return o, false
		}
	}
	return o, true
}

// invalidTime answers that a TTL is none.
func (x *call) invalidTime() {
	x.out.Error("ERR invalid expire time in '" + x.verb.fullName() + "' command")
}

// until returns the deadline that an argument says. It answers and reports false if it is none.
func (x *call) until(arg []byte, u unit) (due deadline, ok bool) {
	n, ok := x.number(arg, errNotInteger)
	if !ok {
		return due, false
	}
	if ok = n > 0 && (!u.seconds || n <= math.MaxInt64/1000); ok {
		due, ok = deadlineOf(n, u)
	}
	if !ok {
		x.invalidTime()
	}
	return due, ok
}

// A setting is a SET that was understood.
type setting struct {
	options
	key key
	due deadline
}

// plain reports whether neither the setting nor its events depend on what is there.
func (x *call) plain(s *setting) bool {
	return !s.nx && !s.xx && !s.than.given && !s.get && !s.keep && x.tx == nil && !x.c.server.tellsNew()
}

// tellsNew reports whether a subscriber of any node hears of new keys. Then a verb must know
// whether the key was there.
func (s *Server) tellsNew() bool { return s.wanted()&classNew != 0 }

// readSet reads a SET. It answers and reports false if it is none.
func (x *call) readSet() (s setting, ok bool) {
	if s.options, ok = x.readOptions(x.args[3:], true); !ok {
		return s, false
	}
	if s.until != nil {
		if s.due, ok = x.until(s.options.until, s.unit); !ok {
			return s, false
		}
	}
	s.key, ok = x.key(x.args[1])
	return s, ok
}

func setOf(x *call) (s setting, value []byte, ok bool) {
	s, ok = x.readSet()
	return s, x.args[2], ok
}

// runSet answers SET, SETEX and PSETEX.
func runSet(x *call) {
	if s, value, ok := x.verb.set(x); ok {
		x.runSetting(&s, value)
	}
}

func (x *call) runSetting(s *setting, value []byte) {
	if x.plain(s) {
		r, err := x.request(&s.key, value, s.due)
		if err == nil {
			err = x.set(r)
		}
		x.answerSet(&s.key, s.due, err)
		return
	}
	var before []byte
	was, done := false, false
	_, err := x.update(&s.key, func(old *tasks.Task) change {
		was, before = old != nil, nil
		if was {
			before = old.Payload
		}
		if done = !(s.nx && was || s.xx && !was) && s.than.holds(old); !done {
			return change{}
		}
		due := s.due
		if s.keep {
			due = dueOf(old)
		}
		return change{put, value, due}
	}, func() {
		if done {
			x.changed(&s.key, s.due)
		}
	})
	if err != nil {
		x.fail(err)
		return
	}
	switch {
	case s.get && was:
		x.out.Bulk(before)
	case s.get, !done:
		x.out.Null()
	default:
		x.out.OK()
	}
}

// changed tells subscribers that a key was set.
func (x *call) changed(k *key, due deadline) {
	x.notify(classString, "set", k.name)
	if !due.none() {
		x.notify(classGeneric, "expire", k.name)
	}
}

// answerSet answers a plain SET.
func (x *call) answerSet(k *key, due deadline, err error) {
	if err != nil {
		x.fail(err)
		return
	}
	x.changed(k, due)
	x.out.OK()
}

// setAll answers SET commands of one pipeline, which are about different keys. Those that do not
// depend on what is there go to the scheduler together.
func setAll(sets []*call) {
	var group sync.WaitGroup
	defer group.Wait()
	requests := make([]tasks.Request, 0, len(sets))
	known := make([]setting, 0, len(sets))
	calls := make([]*call, 0, len(sets))
	for _, x := range sets {
		s, ok := x.readSet()
		if !ok {
			continue
		}
		if !x.plain(&s) {
			group.Go(func() { x.runSetting(&s, x.args[2]) })
			continue
		}
		r, err := x.request(&s.key, x.args[2], s.due)
		if err != nil {
			x.fail(err)
			continue
		}
		requests, known, calls = append(requests, r), append(known, s), append(calls, x)
	}
	if len(requests) == 0 {
		return
	}
	x := calls[0]
	for i, err := range x.setMany(requests) {
		calls[i].answerSet(&known[i].key, known[i].due, err)
	}
}

// setMany is set for many keys, with one wait for the ledger. It returns an error for each.
func (x *call) setMany(requests []tasks.Request) []error {
	errs := make([]error, len(requests))
	for from := 0; from < len(requests); from += tasks.MaxBatch {
		some := requests[from:min(from+tasks.MaxBatch, len(requests))]
		results, err := x.scheduler().ReplaceBatch(x.ctx, some)
		for i := range some {
			if err != nil {
				errs[from+i] = err
			} else {
				errs[from+i] = results[i].Err
			}
		}
	}
	var expiring []int
	for i, err := range errs {
		if isExpiring(err) {
			expiring = append(expiring, i)
		}
	}
	each(len(expiring), func(i int) { errs[expiring[i]] = x.supersede(requests[expiring[i]]) })
	return errs
}

// setExOf reads SETEX and PSETEX.
func setExOf(u unit) func(*call) (s setting, value []byte, ok bool) {
	return func(x *call) (s setting, value []byte, ok bool) {
		if s.due, ok = x.until(x.args[2], u); ok {
			s.key, ok = x.key(x.args[1])
		}
		return s, x.args[3], ok
	}
}

func runSetNX(x *call) {
	k, ok := x.key(x.args[1])
	if !ok {
		return
	}
	done := false
	_, err := x.update(&k, func(old *tasks.Task) change {
		if done = old == nil; !done {
			return change{}
		}
		return change{deed: put, value: x.args[2]}
	}, func() {
		if done {
			x.changed(&k, deadline{})
		}
	})
	if err != nil {
		x.fail(err)
		return
	}
	x.out.Flag(done)
}

func runGetSet(x *call) {
	if k, ok := x.key(x.args[1]); ok {
		x.runSetting(&setting{options: options{get: true}, key: k}, x.args[2])
	}
}

// pairs returns the keys and the values in arguments of MSET. It answers and reports false if they
// cannot be.
func (x *call) pairs(args [][]byte) (keys []key, values [][]byte, ok bool) {
	if len(args)%2 != 0 {
		x.out.Error("ERR wrong number of arguments for '" + x.verb.fullName() + "' command")
		return nil, nil, false
	}
	for i := 0; i < len(args); i += 2 {
		k, ok := x.key(args[i])
		if !ok {
			return nil, nil, false
		}
		keys, values = append(keys, k), append(values, args[i+1])
	}
	return keys, values, true
}

// runMSet answers MSET. Each key is set in one step, not all of them in one: after an error the
// others may be set.
func runMSet(x *call) {
	keys, values, ok := x.pairs(x.args[1:])
	if !ok {
		return
	}
	if err := x.setEach(keys, values, deadline{}, false); err != nil {
		x.fail(err)
		return
	}
	x.out.OK()
}

// setEach sets keys, whatever was there, and tells subscribers of those that it has set. keep: they
// keep their deadlines. The error is the gravest one of a key.
func (x *call) setEach(keys []key, values [][]byte, due deadline, keep bool) (failed error) {
	set := x.setTogether
	if keep || x.tx != nil || x.c.server.tellsNew() {
		set = func(keys []key, values [][]byte, due deadline) []error { return x.setInTurn(keys, values, due, keep) }
	}
	for i, err := range set(keys, values, due) {
		if err != nil {
			failed = graver(failed, err)
			continue
		}
		x.changed(&keys[i], due)
	}
	return failed
}

// runMSetEx answers MSETEX numkeys key value [key value ...] [NX|XX] [EX n|PX n|EXAT n|PXAT
// n|KEEPTTL]. Like MSET and MSETNX it sets the keys one after the other. Between the look of XX and
// the last key, other clients may delete one.
func runMSetEx(x *call) {
	n, ok := resp.ParseInt(x.args[1])
	switch {
	case !ok || n < 1 || n > math.MaxInt32:
		x.out.Error("ERR invalid numkeys value or out of range")
		return
	case n > int64(len(x.args)-2)/2:
		x.out.Error(errSyntax)
		return
	}
	o, ok := x.readOptions(x.args[2+2*n:], true)
	if !ok {
		return
	}
	if o.get || o.than.given {
		x.out.Error(errSyntax)
		return
	}
	var due deadline
	if o.until != nil {
		if due, ok = x.until(o.until, o.unit); !ok {
			return
		}
	}
	keys, values, ok := x.pairs(x.args[2 : 2+2*n])
	if !ok {
		return
	}
	switch {
	case o.nx:
		x.createEach(keys, values, due)
		return
	case o.xx:
		found, err := x.findAll(keys)
		if err != nil {
			x.fail(err)
			return
		}
		if slices.ContainsFunc(found, func(t tasks.Task) bool { return t.ID == "" }) {
			x.out.Int(0)
			return
		}
	}
	if err := x.setEach(keys, values, due, o.keep); err != nil {
		x.fail(err)
		return
	}
	x.out.Int(1)
}

// setTogether sets keys, whatever was there, with one wait for the ledger. It returns an error for
// each; nothing is done if there is no room for one of them.
func (x *call) setTogether(keys []key, values [][]byte, due deadline) []error {
	requests := make([]tasks.Request, len(keys))
	for i := range keys {
		var err error
		if requests[i], err = x.request(&keys[i], values[i], due); err != nil {
			return []error{err}
		}
	}
	return x.setMany(requests)
}

// setInTurn is setTogether for keys whose events, or deadlines, depend on what is there.
func (x *call) setInTurn(keys []key, values [][]byte, due deadline, keep bool) []error {
	errs := make([]error, len(keys))
	for i := range keys {
		_, errs[i] = x.update(&keys[i], func(old *tasks.Task) change {
			if keep {
				due = dueOf(old)
			}
			return change{put, values[i], due}
		}, nil)
	}
	return errs
}

// errKeyExists is returned for a key that must not exist.
var errKeyExists = errors.New("the key exists")

// create makes a key that must not exist. Errors: errKeyExists; as of update.
func (x *call) create(k *key, value []byte, due deadline) (tasks.Task, error) {
	exists := false
	t, err := x.update(k, func(old *tasks.Task) change {
		if exists = old != nil; exists {
			return change{}
		}
		return change{put, value, due}
	}, nil)
	if err == nil && exists {
		err = errKeyExists
	}
	return t, err
}

func runMSetNX(x *call) {
	if keys, values, ok := x.pairs(x.args[1:]); ok {
		x.createEach(keys, values, deadline{})
	}
}

// createEach makes keys of which none may exist, one after the other, and answers. If one of them
// exists by then, those that were made are deleted again: another client may have seen them.
func (x *call) createEach(keys []key, values [][]byte, due deadline) {
	last := make(map[string]int, len(keys)) // of the values of one key, the last one holds
	for i := range keys {
		last[keys[i].id] = i
	}
	found, err := x.findAll(keys)
	for i := range found {
		if found[i].ID != "" && err == nil {
			err = errKeyExists
		}
	}
	made := make(map[int]tasks.Task)
	for i := 0; i < len(keys) && err == nil; i++ {
		if last[keys[i].id] != i {
			continue
		}
		var t tasks.Task
		if t, err = x.create(&keys[i], values[i], due); err == nil {
			made[i] = t
		}
	}
	if err == nil {
		for i := range keys {
			if _, ok := made[i]; ok {
				x.changed(&keys[i], due)
			}
		}
		x.out.Int(1)
		return
	}
	for i, t := range made { // unless another client has changed it by now
		_ = x.drop(&keys[i], &t)
	}
	if errors.Is(err, errKeyExists) {
		x.out.Int(0)
		return
	}
	x.fail(err)
}
