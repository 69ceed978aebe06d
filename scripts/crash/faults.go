package crash

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
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
	Drained    Trouble = "drained"     // asked to hand over and end, and started again
	HalfOpen   Trouble = "half-open"   // its connections to Redis are dead, and it is not told; new ones work
	Slow       Trouble = "slow"        // what passes between it and Redis is late
	Deaf       Trouble = "deaf"        // it gets no messages, while commands pass
	Down       Trouble = "down"        // of Redis: killed, and started again without a loss
	Hung       Trouble = "hung"        // of Redis: stands still
	Rewound    Trouble = "rewound"     // of Redis: killed, and started again with an older file
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
	// Lost is since when Redis has lost what it had confirmed, until Start. Zero: nothing.
	Lost time.Time
}

func (f Fault) String() string {
	node, until := f.Node, "..."
	if node == "" {
		node = "Redis"
	}
	if !f.End.IsZero() {
		until = rig.Stamp(f.End)
	}
	text := fmt.Sprintf("%s was %s %s-%s", node, f.Trouble, rig.Stamp(f.Start), until)
	if !f.Lost.IsZero() {
		text += ", and lost what was written since " + rig.Stamp(f.Lost)
	}
	return text
}

// meets tells whether the fault lay, at least in part, between two instants.
func (f Fault) meets(from, to time.Time) bool {
	return f.Start.Before(to) && (f.End.IsZero() || f.End.After(from))
}

// Begin notes that a fault begins. It ends when end is called.
func (h *History) Begin(trouble Trouble, node string) (end func()) {
	return h.BeginLoss(trouble, node, time.Time{})
}

// BeginLoss is Begin of a fault by which what was written since an instant is lost.
func (h *History) BeginLoss(trouble Trouble, node string, since time.Time) (end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.faults)
	h.faults = append(h.faults, Fault{Trouble: trouble, Node: node, Start: time.Now(), Lost: since})
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
