package respapi

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A draft is what a transaction has read, and what it will write. Commands run on it, in memory,
// before anything is written: so each key is looked at once, by one clock, and written once.
type draft struct {
	exec    *call
	began   time.Time // the present, for keys that do not exist
	watched map[string]tasks.Version
	keys    map[string]*draftKey // by id
	bytes   int                  // of the keys, as they count in held.kept
	begun   bool                 // something may have been written: EXEC cannot be nil any more

	// Of the part under way.
	runs    []run       // by the places of its commands
	out     resp.Writer // their answers
	answers int         // bytes of out, as they count in held.kept
	running bool        // the commands run that come before the write
	at      int         // the place of the one that runs
	until   time.Time   // how long the delivery of an expired event is waited for
}

// A draftKey is a key of a draft.
type draftKey struct {
	key     key
	task    tasks.Task // as the scheduler has it; the zero Task: there is none
	seen    time.Time  // when it was read, by the clock that its deadline goes by
	size    int        // as which it is counted
	watched bool
	// Before the commands, and after those that have run.
	base, now value
	changed   bool // by a command
	since     int  // the place of the first one
	moved     bool // another key has its value: it is deleted last

	written bool // as stored
	stored  value
	stale   bool  // it was not written, since another client came first
	lost    error // why it was not written
	err     error // why it cannot be read
}

// A value is what a key has in a draft.
type value struct {
	task *tasks.Task // nil: the key does not exist
	due  deadline    // of the task, as a command has said it
	put  bool        // a command has set it, or changed its text
}

// A run is a command that has run on a draft.
type run struct {
	keys   []*draftKey // that it has looked at
	events []event
	end    int // of its answer
}

// An event is what subscribers hear of a key once it is written.
type event struct {
	class classes
	name  string
	key   []byte
}

var (
	// errWatched is returned if a watched key has changed before the first write.
	errWatched = errors.New("a watched key has changed")
	// errWatchedLate is the error of a watched key that has changed after it.
	errWatchedLate = task.KindOf(task.ErrUnavailable, "a watched key has changed after the transaction's first write; nothing was done with it")
	// errDraftLarge is the error of a key for which the draft has no room.
	errDraftLarge   = errors.New("the values of a transaction exceed 16 MiB together")
	errAnswersLarge = errors.New("the answers before the last write of a transaction exceed 16 MiB together; nothing was done")
	errDraftFull    = task.KindOf(task.ErrUnavailable, "the transactions of all connections, or of this token, have too many bytes")
)

// view returns the task of a key that exists for the next command, else nil.
func (v *value) view() *tasks.Task {
	if v.task == nil || !isLive(v.task) { // it was set with a deadline that is over
		return nil
	}
	return v.task
}

// same reports whether two values are the same to a reader.
func (v *value) same(w *value) bool {
	if v.task == nil || w.task == nil {
		return v.task == w.task
	}
	return v.task.State == w.task.State && v.due == w.due && bytes.Equal(v.task.Payload, w.task.Payload)
}

func newDraft(exec *call) *draft {
	d := &draft{exec: exec, began: time.Now(), keys: make(map[string]*draftKey)}
	d.out.Three = exec.out.Three
	if len(exec.c.watched) > 0 {
		d.watched = make(map[string]tasks.Version, len(exec.c.watched))
	}
	for i := range exec.c.watched {
		w := &exec.c.watched[i]
		d.watched[w.key.id] = w.version
	}
	return d
}

// fetch reads keys that the draft does not have, some at the same time, and returns them.
func (d *draft) fetch(keys []key) []*draftKey {
	fresh := make([]*draftKey, 0, len(keys))
	for i := range keys {
		if d.keys[keys[i].id] == nil {
			e := &draftKey{key: keys[i]}
			d.keys[e.key.id] = e
			fresh = append(fresh, e)
		}
	}
	each(len(fresh), func(i int) { fresh[i].task, fresh[i].err = d.exec.found(d.exec.c.ctx, &fresh[i].key) })
	for _, e := range fresh {
		d.admit(e)
	}
	return fresh
}

// admit makes an key that was read ready for commands.
func (d *draft) admit(e *draftKey) {
	if e.err == nil {
		if e.err = d.grow(e, watchedOverhead+len(e.key.name)+len(e.task.Payload)); e.err != nil && !d.running {
			e.err = nil
			delete(d.keys, e.key.id)
		}
	}
	if e.err != nil {
		e.task = tasks.Task{}
		return
	}
	e.seen = d.began
	if e.task.ID != "" {
		e.seen = e.task.SeenAt
	}
	if e.task.ID != "" && isLive(&e.task) {
		was := e.task
		e.base = value{task: &was, due: dueOf(&was)}
	}
	e.now = e.base
	var version tasks.Version
	if version, e.watched = d.watched[e.key.id]; e.watched && d.begun && versionOf(e.base.task) != version {
		e.err = errWatchedLate
	}
}

// grow counts more bytes of a key, or fewer. Errors: errDraftLarge, errDraftFull.
func (d *draft) grow(e *draftKey, bytes int) error {
	switch kept := d.exec.c.held.kept; {
	case bytes <= 0:
		kept.Add(int64(bytes))
	case d.bytes+bytes > mostDraft:
		return errDraftLarge
	case !kept.Take(int64(bytes)):
		return errDraftFull
	}
	e.size += bytes
	d.bytes += bytes
	return nil
}

// drop forgets a key, which is read again if a command needs it.
func (d *draft) drop(e *draftKey) {
	_ = d.grow(e, -e.size)
	delete(d.keys, e.key.id)
}

// find returns a key for the command that runs.
func (d *draft) find(k *key) *draftKey {
	e := d.keys[k.id]
	if e == nil {
		e = d.fetch([]key{*k})[0]
	}
	if d.running {
		r := &d.runs[d.at]
		r.keys = append(r.keys, e)
	}
	return e
}

// tell keeps an event of the command that runs, if a subscriber hears of it.
func (d *draft) tell(class classes, name string, key []byte) {
	if d.exec.c.server.wanted()&class == 0 {
		return
	}
	r := &d.runs[d.at]
	r.events = append(r.events, event{class, name, key})
}

// live is call.live on the draft.
func (d *draft) live(k *key) (*tasks.Task, error) {
	e := d.find(k)
	return e.now.view(), e.err
}

// update is call.update on the draft.
func (d *draft) update(k *key, decide func(old *tasks.Task) change) (tasks.Task, error) {
	e := d.find(k)
	if e.err != nil {
		return tasks.Task{}, e.err
	}
	old := e.now.view()
	want := decide(old)
	if want.deed == leave {
		return tasks.Task{}, nil
	}
	next, err := d.next(e, old, want)
	if err != nil {
		return tasks.Task{}, err
	}
	if !e.changed {
		e.changed, e.since = true, d.at
	}
	if e.now, e.moved = next, false; next.task == nil {
		return tasks.Task{}, nil
	}
	if old == nil {
		d.tell(classNew, "new", k.name)
	}
	return *next.task, nil
}

// remove is call.drop on the draft: the key is deleted after all others are written.
func (d *draft) remove(k *key) error {
	_, err := d.update(k, func(*tasks.Task) change { return change{deed: remove} })
	d.keys[k.id].moved = err == nil
	return err
}

// next returns what a change makes of a key. Errors: as of grow.
func (d *draft) next(e *draftKey, old *tasks.Task, want change) (value, error) {
	if want.deed == remove {
		return value{}, nil
	}
	t := tasks.Task{ID: e.key.id, Topic: e.key.topic, SeenAt: e.seen}
	v := value{task: &t, due: want.due, put: e.now.put && old != nil}
	if old != nil {
		t.Payload, t.Revision, t.Created = old.Payload, old.Revision, old.Created
		if want.due == dueOf(old) {
			v.due = e.now.due // as it was said
		}
	}
	if want.deed == put {
		if err := d.grow(e, len(want.value)-len(t.Payload)); err != nil {
			return v, err
		}
		t.Payload, v.put = want.value, true
	}
	t.State = tasks.Held
	if !v.due.none() {
		t.State, t.Due = tasks.Pending, v.due.seenFrom(&t)
	}
	return v, nil
}

// wanted returns the change that makes of a key what it is in the draft.
func (e *draftKey) wanted() change {
	live := e.task.ID != "" && isLive(&e.task)
	switch t := e.now.task; {
	case t == nil && live:
		return change{deed: remove}
	case t == nil:
		return change{}
	case e.now.put || e.written || !live:
		return change{put, t.Payload, e.now.due}
	case t.State == e.task.State && e.now.due == dueOf(&e.task):
		return change{}
	case t.State == tasks.Held:
		return change{deed: hold}
	default:
		return change{deed: move, due: e.now.due}
	}
}

// isUnchanged reports whether the watched keys are what they were at WATCH.
func (d *draft) isUnchanged() (bool, error) {
	var others []*watched
	for i := range d.exec.c.watched {
		w := &d.exec.c.watched[i]
		switch e := d.keys[w.key.id]; {
		case e == nil || e.err != nil:
			others = append(others, w)
		case versionOf(e.base.task) != w.version:
			return false, nil
		}
	}
	changed, errs := make([]bool, len(others)), make([]error, len(others))
	each(len(others), func(i int) {
		t, err := d.exec.live(d.exec.ctx, &others[i].key)
		changed[i], errs[i] = versionOf(t) != others[i].version, err
	})
	for _, err := range errs {
		if err != nil {
			return false, err
		}
	}
	return !slices.Contains(changed, true), nil
}

// write writes what the commands have changed: first the watched keys, one by one in the order of
// the commands, and last what was renamed. It reports whether the commands have to run again,
// because another client came first. Errors, before the first write: errWatched; why a watched key
// cannot be read.
func (d *draft) write() (again bool, err error) {
	var first, then, last []*draftKey
	for _, e := range d.keys {
		switch {
		case !e.changed || e.err != nil || e.written && e.now.same(&e.stored):
		case e.moved:
			last = append(last, e)
		case e.watched:
			first = append(first, e)
		default:
			then = append(then, e)
		}
	}
	slices.SortFunc(first, func(a, b *draftKey) int { return a.since - b.since })
	if !d.begun {
		unchanged, err := d.isUnchanged()
		switch {
		case err != nil:
			return false, err
		case !unchanged:
			return false, errWatched
		}
	}
	for _, e := range first {
		if d.writeAll([]*draftKey{e}); e.stale {
			return true, nil
		}
	}
	d.writeAll(then)
	isStale := func(e *draftKey) bool { return e.stale }
	if again = slices.ContainsFunc(then, isStale); !again {
		d.writeAll(last)
		again = slices.ContainsFunc(last, isStale)
	}
	return again, nil
}

// writeAll writes keys, some at the same time.
func (d *draft) writeAll(list []*draftKey) {
	each(len(list), func(i int) {
		e := list[i]
		want := e.wanted()
		if want.deed == leave {
			return
		}
		now, err := d.exec.attempt(&e.key, &e.task, want, d.until)
		switch {
		case isConflict(err) && e.written: // by another client, who has seen it as it was written
			e.stored = e.now
		case isConflict(err):
			e.stale = true
		case err != nil:
			e.lost, e.err = err, err
		default:
			e.task, e.stored, e.written = now, e.now, true
		}
	})
	for _, e := range list {
		d.begun = d.begun || e.written || isOpen(e.lost)
	}
}

// giveUp makes err the error of the keys that are not written because another client came first.
func (d *draft) giveUp(err error) {
	for _, e := range d.keys {
		if e.stale {
			e.lost, e.err = err, err
		}
	}
}

// restart makes the draft ready for the same commands again. At first all keys are read again; once
// something was written, those that another client has changed. A key that was written begins as it
// did: what the commands make of it then is written again if it differs.
func (d *draft) restart() {
	for _, e := range d.keys {
		if !d.begun || e.stale && !e.written {
			d.drop(e)
		} else {
			e.now, e.changed, e.moved, e.stale = e.base, false, false, false
		}
	}
	d.forgetAnswers()
}

// proceed makes the draft ready for other commands, which begin with what the ones before have
// made.
func (d *draft) proceed() {
	for _, e := range d.keys {
		e.base = value{task: e.now.task, due: e.now.due}
		e.now, e.changed, e.moved, e.written = e.base, false, false, false
	}
	d.forgetAnswers()
}

func (d *draft) forgetAnswers() {
	d.exec.c.held.kept.Add(-int64(d.answers))
	clear(d.runs)
	d.runs, d.out.Buf, d.answers = d.runs[:0], d.out.Buf[:0], 0
}
