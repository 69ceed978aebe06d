package respapi

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/respapi/internal/keyid"
	"github.com/lapsehq/lapse/respapi/internal/resp"
	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/task"
)

// A draft is what a transaction has read, and what it will write. Commands run on it, in memory,
// before anything is written: so each key is looked at once, by one clock, and written once. What a
// command makes of a key depends on that key alone. Commands of which that is not true divide the
// transaction, and do not run on the draft.
type draft struct {
	exec     *call
	compared []watched                // the keys that EXEC compares
	watched  map[string]tasks.Version // those of them that were not written
	keys     map[string]*draftKey     // by id
	bytes    int                      // of the keys, as they count in held.kept
	begun    bool                     // something may be written or answered: EXEC is not nil
	broken   bool                     // a watched key has changed before that

	// Of the part under way.
	runs    []run       // by the places of its commands
	out     resp.Writer // their answers
	alone   resp.Writer // the answer of the command that divides the part from the next
	answers int         // bytes of out, as they count in held.kept
	running bool        // the commands run that come before the write
	at      int         // the place of the one that runs
	until   time.Time   // how long the delivery of an expired event is waited for
	wrote   bool        // something may have been written
	marked  bool        // a script runs
	marks   []mark      // what it has changed
}

// A mark is what a key of a draft was before a change.
type mark struct {
	key     *draftKey
	was     value
	changed bool
	since   int
}

// A draftKey is a key of a draft.
type draftKey struct {
	key     key
	task    tasks.Task // as the scheduler has it; the zero Task: there is none
	seen    time.Time  // when it was read, by the clock that its deadline goes by
	read    time.Time  // the same by the clock of this node, or a little before
	size    int        // as which it is counted
	carried bool       // it was read for a part before
	// Before the commands, and after those that have run.
	base, now value
	changed   bool // by a command
	marked    bool // by the script that runs
	guards    bool // a script has looked at it
	since     int  // the place of the first one

	written bool
	done    value // which was written
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
	told   []telling // by a script
	ran    bool      // on the draft
	end    int       // of its answer
}

// A telling is what a script publishes.
type telling struct{ channel, text string }

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
	// errOvertaken is the error of a key that a script has written, and would now leave as it was.
	errOvertaken = fmt.Errorf("%w: another client has changed a key that the script had written", tasks.ErrUnknown)
	errDraftFull = task.KindOf(task.ErrUnavailable, "the transactions of all connections, or of this token, have too many bytes")
)

// view returns the task of a key that exists for the next command, else nil.
func (v *value) view() *tasks.Task {
	if v.task == nil || !isLive(v.task) { // it was set with a deadline that is over
		return nil
	}
	return v.task
}

// equal reports whether two values are the same.
func (v *value) equal(w *value) bool {
	if v.task == nil || w.task == nil {
		return v.task == w.task
	}
	return v.due == w.due && bytes.Equal(v.task.Payload, w.task.Payload)
}

func newDraft(exec *call, compared []watched) *draft {
	d := &draft{exec: exec, compared: compared, keys: make(map[string]*draftKey)}
	if len(compared) > 0 {
		d.watched = make(map[string]tasks.Version, len(compared))
	}
	for i := range compared {
		w := &compared[i]
		d.watched[w.key.id] = w.version
	}
	return d
}

// close gives back what the draft counts.
func (d *draft) close() { d.exec.c.held.kept.Add(-int64(d.bytes + d.answers)) }

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

func (d *draft) read(e *draftKey) {
	e.read = time.Now()
	e.task, e.err = d.exec.found(d.exec.c.ctx, &e.key)
}

// admit makes a key that was read ready for commands. It reports whether the draft has room for it.
func (d *draft) admit(e *draftKey) bool {
	full := errDraftLarge // half of the room is for what is written
	if n := keyOverhead + len(e.key.name) + len(e.task.Payload); d.bytes+n <= mostDraft/2 {
		full = d.grow(e, n)
	}
	if full != nil && d.running { // afterwards it need not be kept
		e.task, e.err = tasks.Task{}, full
	}
	e.begin()
	if d.begun && e.err == nil && d.isForeign(e) {
		e.err = errWatchedLate
	}
	return full == nil
}

// isForeign reports whether a watched key is not what it was at WATCH. One that the transaction has
// written does not count.
func (d *draft) isForeign(e *draftKey) bool {
	version, watched := d.watched[e.key.id]
	return watched && versionOf(e.base.task) != version
}

// begin sets what the commands begin with. A task that was written tells no clock: that counts by
// which its key was read before, when it had not expired.
func (e *draftKey) begin() {
	switch {
	case !e.task.SeenAt.IsZero():
		e.seen = e.task.SeenAt
	case e.seen.IsZero():
		e.seen = time.Now()
	case e.task.State == tasks.Pending && !e.task.Due.After(e.seen):
		e.seen = e.task.Due.Add(-time.Millisecond)
	}
	if e.task.ID != "" && e.err == nil {
		was := e.task
		if was.SeenAt = e.seen; isLive(&was) {
			e.base = value{task: &was, due: dueOf(&was)}
		}
	}
	e.now = e.base
}

// grow counts more bytes of a key, or fewer. Errors: errDraftLarge, errDraftFull.
func (d *draft) grow(e *draftKey, bytes int) error {
	switch kept := d.exec.c.held.kept; {
	case bytes <= 0, e.written: // what was written is made once more
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
		if n := len(r.keys); n == 0 || r.keys[n-1] != e {
			r.keys = append(r.keys, e)
		}
		e.guards = e.guards || d.marked
	}
	return e
}

// tell keeps an event of the command that runs, if a subscriber hears of it.
func (d *draft) tell(class classes, name string, key []byte) {
	if d.exec.c.server.wanted()&class == 0 {
		return
	}
	id, _ := keyid.Encode(key)
	d.runs[d.at].events = append(d.runs[d.at].events, event{class, name, d.keys[id]})
}

// saw notes what a command that does not run on the draft has read, or written. Errors: errWatched,
// errWatchedLate, if it has read a watched key that has changed.
func (d *draft) saw(k *key, t *tasks.Task, wrote bool) error {
	e := d.keys[k.id]
	if e == nil {
		e = &draftKey{key: *k, task: *t, read: time.Now()}
		if d.admit(e) {
			d.keys[k.id] = e
		}
	}
	e.task, e.base, e.err, e.carried = *t, value{}, nil, true
	if e.begin(); wrote {
		d.begun = true
		delete(d.watched, k.id)
		return nil
	}
	switch {
	case !d.isForeign(e):
		return nil
	case d.begun:
		return errWatchedLate
	}
	d.broken = true
	return errWatched
}

// live is call.live on the draft.
func (d *draft) live(k *key) (*tasks.Task, error) {
	e := d.find(k)
	if !d.running {
		return e.now.view(), cmp.Or(e.err, e.lost)
	}
	return e.now.view(), e.err
}

// update is call.update on the draft.
func (d *draft) update(k *key, decide func(old *tasks.Task) change) (tasks.Task, error) {
	e := d.find(k)
	if err := cmp.Or(e.err, e.lost); err != nil { // lost: in an earlier try
		return tasks.Task{}, err
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
	if d.marked && !e.marked {
		e.marked = true
		d.marks = append(d.marks, mark{e, e.now, e.changed, e.since})
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

// scripted runs a script on the draft. If it fails, what it has changed is taken back.
func (d *draft) scripted(run func() error) error {
	if !d.running {
		return run()
	}
	r := &d.runs[d.at]
	events, told := len(r.events), len(r.told)
	d.marked, d.marks = true, d.marks[:0]
	err := run()
	d.marked = false
	for i := range d.marks {
		d.marks[i].key.marked = false
	}
	if err == nil {
		return nil
	}
	for _, m := range d.marks {
		_ = d.grow(m.key, m.was.bytes()-m.key.now.bytes())
		m.key.now, m.key.changed, m.key.since = m.was, m.changed, m.since
	}
	r.events, r.told = r.events[:events], r.told[:told]
	return err
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
		if err := d.exec.fits(want.value); err != nil {
			return v, err
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

// wanted returns the change that makes of a key what it is in the draft.
func (e *draftKey) wanted() change {
	live := e.task.ID != "" && isLive(&e.task)
	switch t := e.now.task; {
	case t == nil && live:
		return change{deed: remove}
	case t == nil:
		return change{}
	case e.now.put, !live, e.written && !bytes.Equal(t.Payload, e.done.task.Payload):
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
	all := d.compared
	changed, errs := make([]bool, len(all)), make([]error, len(all))
	each(len(all), func(i int) {
		w := &all[i]
		if e := d.keys[w.key.id]; e != nil && e.err == nil && versionOf(e.base.task) != w.version {
			changed[i] = true
			return
		}
		t, err := d.exec.live(d.exec.ctx, &w.key)
		changed[i], errs[i] = versionOf(t) != w.version, err
	})
	for _, err := range errs {
		if err != nil {
			return false, err
		}
	}
	return !slices.Contains(changed, true), nil
}

// unwritten returns the keys that are still to be written, in the order in which they were
// changed. What a script makes of a key may depend on another one. So a key that was written is
// written again if the script has come to another end since.
func (d *draft) unwritten() (list []*draftKey) {
	for _, e := range d.keys {
		if e.lost == nil && (e.changed && !e.written || e.written && !e.now.equal(&e.done)) {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b *draftKey) int { return a.since - b.since })
	return list
}

// write writes what the commands have changed: first the watched keys, one by one, then the others,
// some at the same time. It reports whether the commands have to run again, because another client
// came first. Errors, before the first write: errWatched; why a watched key cannot be read.
func (d *draft) write() (again bool, err error) {
	if !d.begun {
		unchanged, err := d.isUnchanged()
		switch {
		case err != nil:
			return false, err
		case !unchanged:
			return false, errWatched
		}
	}
	list := d.unwritten()
	if len(list) > 0 && !d.begun {
		if stale, err := d.guardsChanged(); stale || err != nil {
			return stale, err
		}
	}
	var others []*draftKey
	for _, e := range list {
		if r := &d.runs[e.since]; e.written && !slices.Contains(r.keys, e) {
			r.keys = append(r.keys, e)
		}
		if _, watched := d.watched[e.key.id]; !watched {
			others = append(others, e)
			continue
		}
		if d.writeKey(e); e.stale {
			return true, nil
		}
		d.noteWritten(e)
	}
	each(len(others), func(i int) { d.writeKey(others[i]) })
	for _, e := range others {
		d.noteWritten(e)
		again = again || e.stale
	}
	return again, nil
}

// guardsChanged reports whether another client has changed a key since that a script has looked at,
// and does not write: what the script has made of other keys may depend on it. Error: why it cannot
// be read.
func (d *draft) guardsChanged() (stale bool, err error) {
	var guards []*draftKey
	for _, e := range d.keys {
		if e.guards && !e.changed && !e.written && e.err == nil && !e.carried {
			guards = append(guards, e)
		}
	}
	errs := make([]error, len(guards))
	each(len(guards), func(i int) {
		var t *tasks.Task
		e := guards[i]
		t, errs[i] = d.exec.live(d.exec.c.ctx, &e.key)
		e.stale = errs[i] == nil && versionOf(t) != versionOf(e.base.task)
	})
	for i, e := range guards {
		stale = stale || e.stale
		err = cmp.Or(err, errs[i])
	}
	return stale, err
}

func (d *draft) noteWritten(e *draftKey) {
	if e.written || isOpen(e.lost) {
		d.begun, d.wrote = true, true
		delete(d.watched, e.key.id) // by now it differs in any case
	}
}

func (d *draft) writeKey(e *draftKey) {
	want := e.wanted()
	if want.deed == leave {
		return
	}
	now, err := d.exec.attempt(&e.key, &e.task, want, d.until)
	switch {
	case isConflict(err) && e.written:
		e.lost = errOvertaken
	case isConflict(err):
		e.stale = true
	case err != nil:
		e.lost = err
	default:
		e.task, e.written, e.done = now, true, e.now
	}
}

// giveUp makes err the error of the keys that are not written.
func (d *draft) giveUp(err error) {
	for _, e := range d.unwritten() {
		e.lost = err
	}
}

// restart makes the draft ready for the same commands again. At first all keys are read again, but
// for those of parts before; once something was written, those that another client has changed. A
// key that was written begins as it did, and so becomes what it was written as.
func (d *draft) restart() {
	for _, e := range d.keys {
		switch {
		case e.carried && e.stale:
			d.readAgain(e)
		case !e.carried && !d.begun, e.stale:
			d.drop(e)
			continue
		}
		_ = d.grow(e, e.base.bytes()-e.now.bytes())
		e.now, e.changed = e.base, false
	}
	d.clearRuns()
}

// readAgain reads a key of parts before that another client has changed. If it has expired since
// the transaction has looked at it first, and would keep its deadline, nothing is left to write.
func (d *draft) readAgain(e *draftKey) {
	before, seen, read, moved := e.base, e.seen, e.read, e.now.due != e.base.due
	e.base, e.stale = value{}, false
	d.read(e)
	e.begin()
	switch {
	case e.err != nil:
	case d.isForeign(e):
		e.err = errWatchedLate
	case e.base.task == nil && !moved && before.task != nil && !before.due.none() && !before.due.at.After(seen.Add(time.Since(read))):
		e.base, e.written, e.seen, e.read = before, true, seen, read
	}
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
		e.err, e.lost, e.now, e.changed, e.written, e.carried = err, nil, e.base, false, false, true
	}
	d.clearRuns()
	d.exec.c.held.kept.Add(-int64(d.answers))
	d.answers, d.wrote = 0, false
}

func (d *draft) clearRuns() {
	clear(d.runs)
	d.runs, d.out.Buf = d.runs[:0], d.out.Buf[:0]
}
