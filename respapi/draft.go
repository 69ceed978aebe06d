package respapi

import (
	"bytes"
	"cmp"
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
	changed   bool        // by a command
	since     int         // the place of the first one
	needs     []*draftKey // to be written before it: its value comes from them, or is moved there

	written bool // as stored
	stored  value
	tried   bool  // the write under way has come to it
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

// A run is a command of the part under way.
type run struct {
	keys   []*draftKey // that it has looked at
	events []event
	ran    bool // on the draft
	end    int  // of its answer
}

// An event is what subscribers hear of a key once it is written.
type event struct {
	class classes
	name  string
	key   *draftKey
}

var (
	// errWatched is returned if a watched key has changed before the first write.
	errWatched = errors.New("a watched key has changed")
	// errWatchedLate is the error of a watched key that has changed after it.
	errWatchedLate = task.KindOf(task.ErrUnavailable, "a watched key has changed after the transaction's first write; nothing was done with it")
	// errDraftLarge is the error of a key for which the draft has no room.
	errDraftLarge   = errors.New("the keys of a transaction exceed 64 MiB together")
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

// fetch reads keys that the draft does not have, some at the same time, as long as there is room.
func (d *draft) fetch(keys []key) {
	for len(keys) > 0 && d.bytes < mostDraft/2 {
		some := keys[:min(len(keys), 4*mostAtOnce)]
		keys = keys[len(some):]
		fresh := make([]*draftKey, 0, len(some))
		for i := range some {
			if d.keys[some[i].id] == nil {
				e := &draftKey{key: some[i]}
				d.keys[e.key.id] = e
				fresh = append(fresh, e)
			}
		}
		each(len(fresh), func(i int) { d.read(fresh[i]) })
		for _, e := range fresh {
			if !d.admit(e) {
				delete(d.keys, e.key.id)
			}
		}
	}
}

func (d *draft) read(e *draftKey) { e.task, e.err = d.exec.found(d.exec.c.ctx, &e.key) }

// admit makes a key that was read ready for commands. It reports whether the draft has room for it.
func (d *draft) admit(e *draftKey) bool {
	full := errDraftLarge // half of the room is for what is written
	if n := keyOverhead + len(e.key.name) + len(e.task.Payload); d.bytes+n <= mostDraft/2 {
		full = d.grow(e, n)
	}
	if full != nil && d.running { // afterwards it need not be kept
		e.task, e.err = tasks.Task{}, full
	}
	e.begin(d.began)
	var version tasks.Version
	if version, e.watched = d.watched[e.key.id]; e.watched && d.begun && e.err == nil && versionOf(e.base.task) != version {
		e.err = errWatchedLate
	}
	return full == nil
}

// begin sets what the commands begin with. now is the present for a key that does not exist.
func (e *draftKey) begin(now time.Time) {
	e.seen = now
	if e.task.ID != "" && e.err == nil {
		e.seen = e.task.SeenAt
		if isLive(&e.task) {
			was := e.task
			e.base = value{task: &was, due: dueOf(&was)}
		}
	}
	e.now = e.base
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
		e = &draftKey{key: *k}
		d.read(e)
		if d.admit(e) {
			d.keys[k.id] = e
		}
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
	if i := slices.IndexFunc(r.keys, func(e *draftKey) bool { return bytes.Equal(e.key.name, key) }); i >= 0 {
		r.events = append(r.events, event{class, name, r.keys[i]})
	}
}

// live is call.live on the draft.
func (d *draft) live(k *key) (*tasks.Task, error) {
	e := d.find(k)
	return e.now.view(), cmp.Or(e.err, e.lost)
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
	if e.now = next; next.task == nil {
		return tasks.Task{}, nil
	}
	if old == nil {
		d.tell(classNew, "new", k.name)
	}
	return *next.task, nil
}

// remove is call.drop on the draft. into is the key that has got the value, nil if none has.
func (d *draft) remove(k, into *key) error {
	if _, err := d.update(k, func(*tasks.Task) change { return change{deed: remove} }); err != nil {
		return err
	}
	if into != nil {
		d.keys[k.id].needs = []*draftKey{d.keys[into.id]}
	}
	return nil
}

// derive notes that a key has the value of another one, which goes on to exist or does not.
func (d *draft) derive(to, from *key, exists bool) {
	source := d.keys[from.id]
	needs := source.needs
	if exists && source.changed {
		needs = append(slices.Clip(needs), source)
	}
	d.keys[to.id].needs = needs
}

// next returns what a change makes of a key. Errors: ErrTooLarge; those of grow.
func (d *draft) next(e *draftKey, old *tasks.Task, want change) (value, error) {
	t := tasks.Task{ID: e.key.id, Topic: e.key.topic, SeenAt: e.seen}
	v := value{task: &t, due: want.due, put: e.now.put && old != nil}
	if old != nil {
		t.Payload, t.Revision, t.Created = old.Payload, old.Revision, old.Created
		if want.due == dueOf(old) {
			v.due = e.now.due // as it was said
		}
	}
	switch want.deed {
	case remove:
		v = value{}
	case put:
		if len(want.value) > d.exec.scheduler().MaxPayload() {
			return v, tasks.ErrTooLarge
		}
		t.Payload, v.put = want.value, true
	}
	if err := d.grow(e, v.bytes()-e.now.bytes()); err != nil || v.task == nil {
		return v, err
	}
	t.State = tasks.Held
	if !v.due.none() {
		t.State, t.Due = tasks.Pending, v.due.seenFrom(&t)
	}
	return v, nil
}

// bytes returns how many the value has beside those that were read.
func (v *value) bytes() int {
	if !v.put {
		return 0
	}
	return len(v.task.Payload)
}

// wanted returns the change that gives a key a value.
func (e *draftKey) wanted(v value) change {
	live := e.task.ID != "" && isLive(&e.task)
	switch t := v.task; {
	case t == nil && live:
		return change{deed: remove}
	case t == nil:
		return change{}
	case v.put || e.written || !live:
		return change{put, t.Payload, v.due}
	case t.State == e.task.State && v.due == dueOf(&e.task):
		return change{}
	case t.State == tasks.Held:
		return change{deed: hold}
	default:
		return change{deed: move, due: v.due}
	}
}

// isUnchanged reports whether the watched keys are what they were at WATCH. Those whose write finds
// that out are not read again.
func (d *draft) isUnchanged(first []*draftKey) (bool, error) {
	var others []*watched
	for i := range d.exec.c.watched {
		w := &d.exec.c.watched[i]
		e := d.keys[w.key.id]
		if e != nil && e.err == nil && versionOf(e.base.task) != w.version {
			return false, nil
		}
		if len(first) == 0 || e != first[0] {
			others = append(others, w)
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

// unwritten returns the keys that the scheduler does not have as the commands have made them.
func (d *draft) unwritten() (list []*draftKey) {
	for _, e := range d.keys {
		if (e.changed || e.written) && e.err == nil && e.lost == nil && !(e.written && e.now.same(&e.stored)) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *draftKey) int { return a.since - b.since })
	return list
}

// write writes what the commands have changed: first the watched keys, one by one in their order,
// and a key after those that it needs. It reports whether the commands have to run again, because
// another client came first. Errors, before the first write: errWatched; why a watched key cannot
// be read.
func (d *draft) write() (again bool, err error) {
	list := d.unwritten()
	var first, then []*draftKey
	for _, e := range list {
		switch e.tried = false; {
		case e.watched:
			first = append(first, e)
		case len(e.needs) == 0:
			then = append(then, e)
		}
	}
	if !d.begun {
		unchanged, err := d.isUnchanged(first)
		switch {
		case err != nil:
			return false, err
		case !unchanged:
			return false, errWatched
		}
	}
	for _, e := range first {
		if claim := e.base; len(e.needs) > 0 && !e.written && claim.task != nil {
			// Others come before it: this write only finds out whether it has changed.
			claim.put = true
			d.writeAs(e, claim)
		} else {
			d.writeInTurn(e)
		}
		if d.noteBegun(e); e.stale {
			return true, nil
		}
	}
	each(len(then), func(i int) { d.writeInTurn(then[i]) })
	for _, e := range list {
		d.writeInTurn(e)
		d.noteBegun(e)
		again = again || e.stale
	}
	return again, nil
}

func (d *draft) noteBegun(e *draftKey) { d.begun = d.begun || e.written || isOpen(e.lost) }

// writeInTurn writes a key after those that it needs, unless one of them is not written.
func (d *draft) writeInTurn(e *draftKey) {
	if e.tried || e.lost != nil || e.err != nil {
		return
	}
	e.tried = true
	for _, n := range e.needs {
		d.writeInTurn(n)
		switch e.lost = cmp.Or(n.lost, n.err); {
		case e.lost != nil:
			return
		case n.stale:
			e.stale = true
			return
		}
	}
	if !e.written || !e.now.same(&e.stored) {
		d.writeAs(e, e.now)
	}
}

// writeAs writes a key as a value.
func (d *draft) writeAs(e *draftKey, v value) {
	want := e.wanted(v)
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
		e.lost = err
	default:
		e.task, e.stored, e.written = now, v, true
	}
}

// wrote reports whether something of the part was written.
func (d *draft) wrote() bool {
	for _, e := range d.keys {
		if e.written || isOpen(e.lost) {
			return true
		}
	}
	return false
}

// giveUp makes err the error of the keys that are not written.
func (d *draft) giveUp(err error) {
	for _, e := range d.unwritten() {
		e.lost = err
	}
}

// restart makes the draft ready for the same commands again. At first all keys are read again; once
// something was written, those that another client has changed. A key that was written begins as it
// did: it is written again if the commands make something else of it, or nothing.
func (d *draft) restart() {
	for _, e := range d.keys {
		if !d.begun || e.stale && !e.written {
			d.drop(e)
			continue
		}
		_ = d.grow(e, e.base.bytes()-e.now.bytes())
		e.now, e.changed, e.needs, e.stale = e.base, false, nil, false
		if e.err == nil {
			e.err = e.lost
		}
	}
	d.forgetAnswers()
}

// proceed makes the draft ready for other commands, which begin with what the ones before have
// made. A key that could not be written, or read, is read again, unless the others must not rely on
// it.
func (d *draft) proceed() {
	for _, e := range d.keys {
		err := cmp.Or(e.lost, e.err)
		if err != nil && !errors.Is(err, errWatchedLate) && !isOpen(err) {
			d.drop(e)
			continue
		}
		if e.base = e.now; e.written && e.now.task != nil {
			t := *e.now.task
			t.Due = e.task.Due
			e.base = value{task: &t, due: dueOf(&t), put: e.now.put}
		}
		e.err, e.lost, e.now, e.changed, e.needs, e.written = err, nil, e.base, false, nil, false
	}
	d.forgetAnswers()
}

func (d *draft) forgetAnswers() {
	d.exec.c.held.kept.Add(-int64(d.answers))
	clear(d.runs)
	d.runs, d.out.Buf, d.answers = d.runs[:0], d.out.Buf[:0], 0
}
