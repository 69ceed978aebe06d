package delivertest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lapsehq/lapse/tasks"
)

// A history is what has happened to a test's tasks: the requests, what their receiver saw and
// answered, and what the schedulers have told their observer. It is kept apart from the scheduler's
// own records and judged at the end.
type history struct {
	zero time.Time

	mu      sync.Mutex // guards everything below
	run     int        // number of the running scheduler, from 1
	crashed map[int]bool
	broken  bool // a fault was between way and receiver: an attempt may have arrived twice
	tasks   map[string]*story
}

// A story is the history of one task.
type story struct {
	asked    tasks.Request // with Due; none if its topic is empty
	hurried  bool          // its backoff was cut short by the test
	arrivals []*arrival
	events   []event
}

type arrival struct {
	Arrival
	run      int
	said     Say // empty: nothing yet
	why      string
	answered time.Time
	settled  bool // settled by receipt, which takes precedence over an answer
}

type event struct {
	tasks.Event
	run int
}

func newHistory() *history {
	return &history{zero: time.Now(), crashed: map[int]bool{}, tasks: map[string]*story{}}
}

func (h *history) story(id string) *story {
	st, ok := h.tasks[id]
	if !ok {
		st = &story{}
		h.tasks[id] = st
	}
	return st
}

func (h *history) ask(r tasks.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.story(r.ID).asked = r
}

// begin forgets the history of the requested tasks. From now on it is the story of new ones, due
// now.
func (h *history) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, st := range h.tasks {
		asked := st.asked
		asked.Due = now()
		h.tasks[id] = &story{asked: asked}
	}
}

// now is the scheduler's notion of now: in milliseconds, rounded down.
func now() time.Time { return time.Now().Truncate(time.Millisecond) }

func (h *history) arrive(a Arrival) (*arrival, int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.story(a.ID)
	seen := &arrival{Arrival: a, run: h.run}
	st.arrivals = append(st.arrivals, seen)
	return seen, len(st.arrivals)
}

func (h *history) answer(a *arrival, said Answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !a.settled {
		a.said, a.why, a.answered = said.Say, said.Why, time.Now()
	}
}

// settle records a receipt's settlement of an arrival, if it was valid.
func (h *history) settle(receipt string, said Answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, st := range h.tasks {
		for _, a := range st.arrivals {
			if a.Receipt == receipt && !a.settled {
				a.said, a.why, a.answered, a.settled = said.Say, said.Why, time.Now(), true
			}
		}
	}
}

// An observer records what one scheduler reports.
type observer struct {
	h   *history
	run int
}

func (h *history) observer() observer {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.run++
	return observer{h, h.run}
}

// Observe implements tasks.Observer.
func (o observer) Observe(e tasks.Event) {
	o.h.mu.Lock()
	defer o.h.mu.Unlock()
	st := o.h.story(e.ID)
	st.events = append(st.events, event{e, o.run})
}

// each calls visit for every requested task of the topic under test.
func (h *history) each(visit func(id string, st *story)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, st := range h.tasks {
		if st.asked.Topic == subject {
			visit(id, st)
		}
	}
}

// all reports whether cond holds for every task.
func (h *history) all(cond func(st *story) bool) bool {
	yes := true
	h.each(func(_ string, st *story) { yes = yes && cond(st) })
	return yes
}

// count returns how many events of a kind a task has, and the last of them.
func (st *story) count(k tasks.EventKind) (n int, last event) {
	for _, e := range st.events {
		if e.Kind == k {
			n, last = n+1, e
		}
	}
	return n, last
}

// order sorts the records of several goroutines.
func (st *story) order() {
	slices.SortStableFunc(st.arrivals, func(a, b *arrival) int { return cmp.Or(a.run-b.run, a.At.Compare(b.At)) })
	slices.SortStableFunc(st.events, func(a, b event) int { return cmp.Or(a.run-b.run, a.At.Compare(b.At)) })
}

// tell is a task's whole history, a line each.
func (st *story) tell(zero time.Time) string {
	type line struct {
		at   time.Time
		text string
	}
	stamp := func(t time.Time) string { return fmt.Sprintf("%9.3fs", t.Sub(zero).Seconds()) }
	lines := []line{{st.asked.Due, "due"}}
	for _, a := range st.arrivals {
		lines = append(lines, line{a.At, fmt.Sprintf("run %d: attempt %d arrived", a.run, a.Attempt)})
		if a.said != "" {
			lines = append(lines, line{a.answered, fmt.Sprintf("run %d: attempt %d was told: %s", a.run, a.Attempt, a.said)})
		}
	}
	for _, e := range st.events {
		lines = append(lines, line{e.At, fmt.Sprintf("run %d: %s %d %s", e.run, e.Kind, e.Attempt, e.Err)})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return a.at.Compare(b.at) })
	var b strings.Builder
	for _, l := range lines {
		fmt.Fprintf(&b, "\n    %s %s", stamp(l.at), strings.TrimSpace(l.text))
	}
	return b.String()
}
