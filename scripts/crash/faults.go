package crash

import (
	"fmt"
	"time"
)

// A Trouble is a kind of fault.
type Trouble string

// The kinds of trouble that befall a node, or all of them when no node is named.
const (
	Killed     Trouble = "killed"
	Stopped    Trouble = "stopped"     // SIGSTOP, as if its machine were suspended
	CutOff     Trouble = "cut off"     // from Redis
	Restarted  Trouble = "restarted"   // stopped in order, and started again
	HandedOver Trouble = "handed over" // stopped in order after others took its tasks over
	FailedOver Trouble = "failed over" // of Redis: another server took over
	SlotsMoved Trouble = "slots moved" // of Redis: from one master to another
)

// A Fault is what was done to a node, and for how long: until it was ready
// again, in the case of a process that had to be started.
type Fault struct {
	Trouble Trouble
	Node    string // empty: Redis itself
	Start   time.Time
	End     time.Time // zero while it lasts
}

func (f Fault) String() string {
	node, until := f.Node, "..."
	if node == "" {
		node = "Redis"
	}
	if !f.End.IsZero() {
		until = stamp(f.End)
	}
	return fmt.Sprintf("%s was %s %s-%s", node, f.Trouble, stamp(f.Start), until)
}

// meets tells whether the fault lay, at least in part, between two instants.
func (f Fault) meets(from, to time.Time) bool {
	return f.Start.Before(to) && (f.End.IsZero() || f.End.After(from))
}

// Begin notes that a fault begins. It ends when end is called.
func (h *History) Begin(trouble Trouble, node string) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.faults)
	h.faults = append(h.faults, Fault{Trouble: trouble, Node: node, Start: time.Now()})
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.faults[n].End = time.Now()
	}
}

// Faults are those that were noted so far.
func (h *History) Faults() []Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Fault(nil), h.faults...)
}
