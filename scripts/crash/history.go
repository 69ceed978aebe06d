package crash

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// Outcome is what a client knows of a request after it.
type Outcome uint8

// The outcomes of a request.
const (
	Done    Outcome = iota + 1 // the server said that it was done
	Refused                    // the server said that it was not done
	Unknown                    // no answer, or one that leaves it open
	Missing                    // the server said that there is no such task: 404
)

// OutcomeOf is what a client may conclude from the status and the body of an answer, or of a
// problem in one. It reports false for an answer that no node may give.
func OutcomeOf(status int, body []byte) (outcome Outcome, ok bool) {
	switch {
	case status < 300:
		return Done, true
	case status == http.StatusNotFound:
		return Missing, true
	case status == http.StatusConflict, status == http.StatusTooManyRequests:
		return Refused, true
	case status == http.StatusServiceUnavailable:
		if bytes.Contains(body, []byte("outcome_unknown")) {
			return Unknown, true
		}
		return Refused, true // any other problem says that nothing was done
	}
	return Unknown, false
}

// A Span is when a request was under way, and with which run of the server:
// each start of the process has the next number and an address of its own,
// so that no request can reach another run than the one it was made for.
type Span struct {
	Node       string // the node that was called
	Run        int
	Start, End time.Time
}

func (s Span) String() string {
	return fmt.Sprintf("%s/%d %s-%s", s.Node, s.Run, rig.Stamp(s.Start), rig.Stamp(s.End))
}

func (o Outcome) String() string {
	return [...]string{"", "done", "refused", "unknown", "missing"}[o]
}

// A Change is a request that set, moved or removed a task's deadline, or read the task.
type Change struct {
	Span
	Kind    Kind
	Outcome Outcome
	Due     time.Time // the deadline in force afterwards, if known
	// Anew, 201: a replacement found nothing to replace, or a repeated creation no task.
	Anew    bool
	ID      string // of the task, from the answer to its creation
	Present bool   // an import found the task, and has changed nothing
	Spooled bool   // the answer said that only the disk of this node has it
	Group   bool   // a cancellation of the whole group, which leaves out the dead
}

// Kind is what a change asks for.
type Kind uint8

// The kinds of change.
const (
	Create Kind = iota + 1
	Move
	Cancel
	Replace // the creation, or a move of what is there
	Fire    // now is the deadline, unless it has passed
	Look    // changes nothing
	Listed  // as Look, in a list: Missing if a whole list left it out
	Requeue // from among the dead
	Hold    // no deadline is in force until the task is resumed, moved, replaced, or fired
	Resume
	Exported // as Look, in an export: Missing if a whole export left it out
	Import   // as Create, but what was finished since the first one is not made again
)

// asks reports whether a change changes nothing.
func (k Kind) asks() bool { return k == Look || k == Listed || k == Exported }

// A Delivery is an attempt as its receiver saw it. Its Span is that of the
// reserve call: the task was handed out at some instant in between. A webhook
// was sent at its Start.
type Delivery struct {
	Span
	ID         string    // of the task, as it was delivered; empty if it was not recorded
	Owner      string    // the node of the task, from the answer; with several nodes
	Signed     time.Time // of a webhook: when its node says that it began, to the second
	Due        time.Time // from the answer of the server
	LeaseUntil time.Time
	Attempt    int
	// Settlements are the receiver's requests about it: none if it let the lease run out, and more
	// than one if the first had no answer.
	Settlements []Settlement
}

// A Settlement is a request to settle a delivery, and the answer to it.
type Settlement struct {
	Span
	Outcome  Outcome
	Verb     Verb
	Recorded bool      // Done: the ledger has confirmed it
	Until    time.Time // Extend that is Done: when the lease ends now
}

// A Verb is the verb of a settlement.
type Verb uint8

// The verbs.
const (
	Release Verb = iota // not done, again later
	Ack                 // done
	Extend              // still at work
	Bury                // never again, unless it is requeued
)

func (v Verb) String() string { return [...]string{"release", "ack", "extend", "bury"}[v] }

// find returns the first settlement of a verb with one of the outcomes; nil if there
// is no such settlement.
func (d *Delivery) find(verb Verb, outcomes ...Outcome) *Settlement {
	for i := range d.Settlements {
		if s := &d.Settlements[i]; s.Verb == verb && slices.Contains(outcomes, s.Outcome) {
			return s
		}
	}
	return nil
}

func (k Kind) String() string {
	return [...]string{"", "create", "move", "cancel", "replace", "fire", "look", "list", "requeue", "hold", "resume", "export", "import"}[k]
}

// A Task is the history of one task, in the order in which its client sent the requests. One client
// at a time changes a task.
type Task struct {
	Changes    []Change // the first one is its creation
	Deliveries []*Delivery
	Terms      Terms
}

// Terms are what a task's topic promises beside what holds for all tasks.
type Terms struct {
	Kept   bool // it is kept once it is finished, for longer than the history takes (keep_finished)
	Mortal bool // it stays dead once it is buried
	// Skippable: it may be skipped for a later one of its group, and is not owed once that one was
	// acknowledged (misfire: coalesce).
	Skippable bool
	Skipped   bool // ... which has happened
}

// String returns all of it, line by line.
func (t *Task) String() string {
	var b strings.Builder
	for _, c := range t.Changes {
		fmt.Fprintf(&b, "  %v %v at %v, due %s, anew %v, id %q, spooled %v, by group %v\n",
			c.Kind, c.Outcome, c.Span, rig.Stamp(c.Due), c.Anew, c.ID, c.Spooled, c.Group)
	}
	for _, d := range t.Deliveries {
		fmt.Fprintf(&b, "  attempt %d of %s at %v, due %s, lease until %s, id %q\n", d.Attempt, d.Owner, d.Span, rig.Stamp(d.Due), rig.Stamp(d.LeaseUntil), d.ID)
		for _, s := range d.Settlements {
			fmt.Fprintf(&b, "    %v: %v at %v, recorded %v\n", s.Verb, s.Outcome, s.Span, s.Recorded)
		}
	}
	return b.String()
}

// A History holds all tasks of a run of the suite. A task is known by the
// number in its payload, since the id of one whose creation was not answered is
// unknown.
type History struct {
	mu     sync.Mutex // guards all that follows, and what tasks holds
	tasks  map[int]*Task
	faults []Fault
}

// NewHistory is empty.
func NewHistory() *History {
	return &History{tasks: map[int]*Task{}}
}

// Change records the answer to a request that changed task n.
func (h *History) Change(n int, c Change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.taskLocked(n)
	t.Changes = append(t.Changes, c)
}

// Agree notes the terms of task n.
func (h *History) Agree(n int, terms Terms) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.taskLocked(n).Terms = terms
}

// Deliver records an attempt at task n, which may be delivered before the answer to its creation is
// recorded.
func (h *History) Deliver(n int, d *Delivery) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.taskLocked(n)
	t.Deliveries = append(t.Deliveries, d)
}

// Settle records the answer to a request that settles a delivery.
func (h *History) Settle(d *Delivery, s Settlement) {
	h.mu.Lock()
	defer h.mu.Unlock()
	d.Settlements = append(d.Settlements, s)
}

func (h *History) taskLocked(n int) *Task {
	t := h.tasks[n]
	if t == nil {
		t = &Task{}
		h.tasks[n] = t
	}
	return t
}

// Owed returns how many tasks were surely accepted, surely not cancelled, and surely not
// acknowledged.
func (h *History) Owed() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, t := range h.tasks {
		if t.owed() {
			n++
		}
	}
	return n
}

// Task returns a copy of the history of task n so far: nil if there is none.
func (h *History) Task(n int) *Task {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tasks[n]
	if t == nil {
		return nil
	}
	whole := &Task{Changes: slices.Clone(t.Changes), Terms: t.Terms}
	for _, d := range t.Deliveries {
		one := *d
		one.Settlements = slices.Clone(d.Settlements)
		whole.Deliveries = append(whole.Deliveries, &one)
	}
	return whole
}

// Owes lists the numbers of the tasks that Owed counts, in order.
func (h *History) Owes() (list []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, t := range h.tasks {
		if t.owed() {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}

// Settled reports whether nothing is owed. While much is owed, it returns early: a caller that asks
// often must not delay those that write.
func (h *History) Settled() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range h.tasks {
		if t.owed() {
			return false
		}
	}
	return true
}

// anew returns when the task was last created again, according to an answer: before that it was
// finished.
func (t *Task) anew() (last time.Time) {
	for _, c := range t.Changes {
		if c.Anew && c.Start.After(last) {
			last = c.Start
		}
	}
	return last
}

// owed: see Owed. A cancellation or an ack without an answer may have finished the task, and so has
// some request if a cancellation did not find it. A task that had been finished before a
// replacement created it again is open again.
func (t *Task) owed() bool {
	accepted := false
	anew := t.anew()
	if t.Terms.Skipped {
		return false
	}
	for _, c := range t.Changes {
		if c.Kind == Cancel && c.Outcome != Refused {
			return false
		}
		accepted = accepted || c.Outcome == Done && !c.Kind.asks()
	}
	return accepted && !slices.ContainsFunc(t.Deliveries, func(d *Delivery) bool {
		s := d.find(Ack, Done, Unknown)
		if s == nil && t.Terms.Mortal {
			s = d.find(Bury, Done, Unknown)
		}
		return s != nil && s.End.After(anew)
	})
}
