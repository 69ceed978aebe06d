package tasks_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lapsehq/lapse/tasks"
	"github.com/lapsehq/lapse/tasks/internal/rig"
)

// may is what an id may be, as far as its caller can know.
type may uint8

const (
	mayBeAbsent may = 1 << iota
	mayBeAlive
	mayBeDead
)

// A fact is what the model knows of one id.
type fact struct {
	may     may
	dues    []int64 // of a live task: what its deadline may be, Unix ms; nil: anything
	req     string  // the request that made it; empty: unknown
	topic   string  // empty: unknown, and then the group is too
	group   string
	written bool // what the ledger has is what may says; a crash changes nothing
	// The last delivery, until it has ended in one way or another.
	open *outstanding
	// The last delivery whose acknowledgement was accepted.
	acked string // its receipt
	// loose: since the task was made or moved, a restart may have brought attempts
	// back that had ended, so that more than one receipt may count.
	loose bool
	// missable: it may have been due while there was no process, so that it may be skipped,
	// which is recorded sooner or later.
	missable bool
	// held: its countdown is surely held, and the ledger has that.
	held bool
	// during: it was delivered while a call was under way, before or after what
	// the call has done.
	during bool
	// living is the wall clock when it was surely not dead for the last time.
	living time.Time
	story  []string // what happened to it
}

// An outstanding delivery.
type outstanding struct {
	receipt string
	attempt int
	until   time.Time // monotonic
	handler bool
	crashed bool // its process is gone
	over    bool // the sweep has seen that its lease is out
	said    may  // what its handler made of it when its time was over
}

// A model is what a user may rely on, for the ids that a simulation uses. It is
// naive: it knows nothing of wheels, slots or batches.
type model struct {
	t     testing.TB
	clock *rig.SteppedClock

	mu    sync.Mutex
	facts map[string]*fact
	made  []string // ids that Lapse made
	ended bool     // faults are over, everything is to be delivered now
	calls bool     // a call is under way
	told  int      // deliveries
}

func (m *model) fault(id, format string, args ...any) {
	f := m.fact(id)
	m.t.Errorf("%s %s: %s; before:\n%s", m.clock.Now().Format("15:04:05.000"), id, fmt.Sprintf(format, args...),
		strings.Join(f.story[max(0, len(f.story)-15):], "\n"))
}

// note keeps what happens to an id, for faults.
func (m *model) note(id, format string, args ...any) {
	f := m.fact(id)
	f.story = append(f.story, m.clock.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

func (m *model) fact(id string) *fact {
	f, ok := m.facts[id]
	if !ok {
		f = &fact{may: mayBeAbsent, written: true}
		m.facts[id] = f
	}
	return f
}

// alive sets a fact to a live task with this deadline, on record.
func (f *fact) alive(due time.Time) {
	f.may, f.dues, f.open, f.written, f.loose = mayBeAlive, []int64{due.UnixMilli()}, nil, true, false
	f.missable, f.held = false, false
}

// gone sets it to no task, on record.
func (f *fact) gone() {
	f.may, f.dues, f.open, f.req, f.topic, f.written, f.loose = mayBeAbsent, nil, nil, "", "", true, false
	f.held = false
}

// is says that the task has been seen in this state, which must be possible.
func (m *model) is(id string, state may, what string) *fact {
	f := m.fact(id)
	if f.may&mayBeAlive != 0 && f.spent() {
		f.may |= mayBeDead
	}
	if f.may&mayBeAlive != 0 && f.missable {
		f.may |= mayBeAbsent
	}
	if f.may&state == 0 {
		m.fault(id, "%s: it is %03b, and may be %03b", what, state, f.may)
	}
	return f
}

// spent tells that a process may have ended in the last attempt, which it had
// claimed: then the task dies without a word.
func (f *fact) spent() bool {
	return f.loose && f.topic != "pulled" && f.topic != "handled" && f.topic != "missed" && f.topic != "kept"
}

// busy tells that the last delivery is surely not over.
func (f *fact) busy() bool {
	return f.open != nil && !f.open.crashed && time.Now().Before(f.open.until)
}

// delivered checks one delivery: never early, of a task that is known, and, if it
// is not the first one, explained.
func (m *model) delivered(d *tasks.Delivery, term time.Duration, handler bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told++
	now := m.clock.Now()
	m.note(d.ID, "delivered, attempt %d, due %v", d.Attempt, d.Due)
	f := m.fact(d.ID)
	if now.Before(d.Due) || now.Before(d.Next) {
		m.fault(d.ID, "early: due %v, next %v", d.Due, d.Next)
	}
	if m.calls {
		f.during, f.dues, f.open = true, nil, nil
		f.may |= mayBeAlive
	}
	f = m.is(d.ID, mayBeAlive, "delivered")
	if f.dues != nil && !slices.Contains(f.dues, d.Due.UnixMilli()) {
		m.fault(d.ID, "delivered for the deadline %d, of %d", d.Due.UnixMilli(), f.dues)
	}
	if f.held {
		m.fault(d.ID, "delivered while it is held")
	}
	if f.busy() {
		m.fault(d.ID, "attempt %d is delivered while %d is open until %v", d.Attempt, f.open.attempt, f.open.until)
	}
	f.may, f.dues, f.missable = mayBeAlive, []int64{d.Due.UnixMilli()}, false
	f.open = &outstanding{receipt: d.Receipt(), attempt: d.Attempt, until: time.Now().Add(term), handler: handler}
}

// acknowledged tells that a delivery was accepted as done. Not recorded, it may
// come back after a crash.
func (m *model) acknowledged(id, receipt string, recorded bool) {
	f := m.fact(id)
	m.note(id, "acknowledged, recorded %v", recorded)
	if recorded {
		f.gone()
	}
	f.may, f.open, f.acked, f.written = mayBeAbsent, nil, receipt, recorded
	if m.calls { // which may have come before, or have made it anew after
		f.during, f.may, f.dues, f.req, f.topic = true, mayBeAbsent|mayBeAlive, nil, "", ""
	}
}

// failed tells that an attempt has ended without success.
func (m *model) failed(id string, died, recorded bool) {
	m.note(id, "failed, died %v, recorded %v", died, recorded)
	f := m.fact(id)
	f.may, f.open, f.written = mayBeAlive, nil, recorded
	if died {
		f.may = mayBeDead
	}
}

// lastWords tells what a handler has said whose time was over: if its process is closing just
// then, that may have counted.
func (m *model) lastWords(id string, done, died bool) {
	m.note(id, "said too late, done %v, died %v", done, died)
	switch f := m.fact(id); {
	case done:
		f.open.said = mayBeAbsent
	case died:
		f.open.said = mayBeDead
	}
}

// expired takes into account that leases have run out: the sweep comes within a
// second.
func (m *model) expired(maxAttempts func(topic string) int) {
	for _, f := range m.facts {
		o := f.open
		if o == nil || f.busy() {
			continue
		}
		if o.attempt >= maxAttempts(f.topic) {
			f.may |= mayBeDead
		}
		if !o.over && time.Since(o.until) > 1100*time.Millisecond {
			o.over, f.written = true, false
		}
	}
}

// kept takes into account that a task that has been dead for so long is deleted, and none
// before.
func (m *model) kept(keep time.Duration) {
	const slack = 5 * time.Second // of a step
	now := m.clock.Now()
	for _, f := range m.facts {
		dead := f.may&mayBeDead != 0 || f.may&mayBeAlive != 0 && f.spent()
		switch {
		case !dead || now.Before(f.living):
			f.living = now
		case now.Sub(f.living) > keep-slack:
			f.may |= mayBeDead | mayBeAbsent
		}
	}
}

// crashed makes everything uncertain that was not on record.
func (m *model) crashed() {
	for id, f := range m.facts {
		m.note(id, "crash: written %v", f.written)
		if f.open != nil {
			f.open.crashed = true
		}
		f.loose = true // of two deliveries of one attempt, either receipt may count
		if !f.written {
			// At worst everything since the last answer of the ledger is undone.
			f.may |= mayBeAlive | mayBeDead
		}
	}
}

// restarted takes into account that what was due may be skipped from now on.
func (m *model) restarted() {
	for _, f := range m.facts {
		f.acked = "" // outcomes are forgotten
		due := len(f.dues) == 0 || slices.Min(f.dues) <= m.clock.Now().UnixMilli()
		if (f.topic == "missed" || f.topic == "") && due {
			f.missable = true
		}
	}
}

// settled takes note that the ledger has answered everything.
func (m *model) settled() {
	for _, f := range m.facts {
		f.written = true
	}
}

// call tells that a call begins, of which the model learns only when it is over.
func (m *model) begin() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = true
	for _, f := range m.facts {
		f.during = false
	}
}

// over says that the call has ended. It reports whether the id was delivered
// meanwhile, in which case its answer tells nothing; in an outage, it is not
// even known what came first.
func (m *model) over(id string, faults bool) bool {
	m.calls = false
	f := m.fact(id)
	if f.during && faults {
		f.may, f.dues, f.loose, f.written, f.req, f.topic = mayBeAbsent|mayBeAlive|mayBeDead, nil, true, false, "", ""
	}
	return f.during
}

// finished checks a finished task that is kept.
func (m *model) finished(id string, task tasks.Task) {
	if task.Topic != "kept" || task.Outcome == "" || task.Finished.IsZero() {
		m.fault(id, "finished, of topic %q, outcome %q, finished %v", task.Topic, task.Outcome, task.Finished)
	}
}

// saw compares an answer about a task with what is known, and learns from it.
func (m *model) saw(id string, task tasks.Task, err error) {
	m.note(id, "seen %v, %v", task.State, err)
	if err == nil && task.State == tasks.Finished { // it is gone, but kept to be read
		m.finished(id, task)
		err = tasks.ErrNotFound
	}
	switch {
	case err == nil && task.State == tasks.Dead:
		m.is(id, mayBeDead, "Get").may = mayBeDead
	case err == nil:
		f := m.is(id, mayBeAlive, "Get")
		if due := task.Due.UnixMilli(); f.dues != nil && !slices.Contains(f.dues, due) {
			m.fault(id, "due %d, of %d", due, f.dues)
		} else {
			f.dues = []int64{due}
		}
		if f.held && task.State != tasks.Held {
			m.fault(id, "is %v, and held", task.State)
		}
		if task.State == tasks.Delivering && f.open == nil && !f.loose {
			m.fault(id, "is being delivered, and no receiver has it")
		}
		if task.State == tasks.Delivering && f.open == nil {
			// It was parked, and a crash has undone what ended it: its lease runs again, and it may
			// have been the last one.
			f.open = &outstanding{attempt: task.Attempt, until: time.Now(), crashed: true}
		}
		if f.busy() && !f.open.handler && task.State != tasks.Delivering {
			m.fault(id, "is %v, and its lease ends %v", task.State, f.open.until)
		}
		if f.topic != "" && (task.Topic != f.topic || task.Group != f.group) {
			m.fault(id, "of topic %q and group %q, not %q and %q", task.Topic, task.Group, f.topic, f.group)
		}
		f.may, f.topic, f.group = mayBeAlive, task.Topic, task.Group
	case errors.Is(err, tasks.ErrNotFound):
		switch f := m.is(id, mayBeAbsent, "Get"); {
		case f.missable:
			f.may, f.written = mayBeAbsent, false
		case f.written:
			f.gone()
		default:
			f.may = mayBeAbsent
		}
	}
}
