package crash

import (
	"fmt"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A Trouble is a kind of fault.
type Trouble string

// The kinds of fault of a node, or of Redis for all nodes when no node is named.
const (
	Killed     Trouble = "killed"
	Stopped    Trouble = "stopped"     // SIGSTOP, as if its machine were suspended
	CutOff     Trouble = "cut off"     // from Redis
	Restarted  Trouble = "restarted"   // stopped in order, and started again
	HandedOver Trouble = "handed over" // stopped in order after other nodes took its tasks over
	Drained    Trouble = "drained"     // asked to hand over and end, and started again
	// HalfOpen: its connections to Redis are dead without notice; new ones work.
	HalfOpen   Trouble = "half-open"
	Slow       Trouble = "slow"        // traffic between it and Redis is late
	Deaf       Trouble = "deaf"        // it gets no messages; commands pass
	Down       Trouble = "down"        // of Redis: killed, and started again without a loss
	Hung       Trouble = "hung"        // of Redis: stopped
	Rewound    Trouble = "rewound"     // of Redis: killed, and started again with an older file
	FailedOver Trouble = "failed over" // of Redis: another server took over
	SlotsMoved Trouble = "slots moved" // of Redis: from one master to another
	Flushed    Trouble = "flushed"     // of Redis: FLUSHALL
	Full       Trouble = "full"        // of Redis: out of memory
	Late       Trouble = "late"        // traffic between Redis and all nodes
	OtherSpool Trouble = "respooled"   // its spool is in another directory
)

// A Fault is what was done to a node, and for how long: until it was ready again, in the case of a
// process that had to be started.
type Fault struct {
	Trouble Trouble
	Node    string // empty: Redis itself
	Start   time.Time
	End     time.Time // zero while it lasts
	// Lost is the moment since which Redis has lost confirmed writes, until Start; of a Redis that
	// is empty, the beginning of the history. Zero: none.
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

// meets reports whether the fault lay, at least in part, between two instants.
func (f Fault) meets(from, to time.Time) bool {
	return f.Start.Before(to) && (f.End.IsZero() || f.End.After(from))
}

// Begin notes that a fault begins. It ends when end is called.
func (h *History) Begin(trouble Trouble, node string) (end func()) {
	return h.BeginLoss(trouble, node, time.Time{})
}

// BeginLoss is Begin of a fault that loses the writes since an instant.
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

// Note notes a fault that is over.
func (h *History) Note(f Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, f)
}

// Faults returns the faults recorded so far.
func (h *History) Faults() []Fault {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]Fault(nil), h.faults...)
}
