package task

import (
	"slices"
	"time"
)

// HistoryMinutes is how many minutes a History has before the one that is under way.
const HistoryMinutes = 60

// A History says what has happened in the last hour, by the minute, of all topics together. A node
// keeps it in memory: what a process has counted ends with it.
type History struct {
	// Since is when the node began to count: of several nodes, the one that began last.
	Since time.Time
	// Minutes begin with that in which the first node began to count, or HistoryMinutes ago. The
	// last is under way.
	Minutes []PastMinute
}

// A PastMinute is a minute of a History. What is counted at its end may be in the next one, or the
// other way round, by a period of the sweep.
type PastMinute struct {
	At time.Time `json:"at" fleet:"own"` // when it began, by the clocks of the nodes

	Scheduled int64 `json:"scheduled,omitzero"` // tasks that were accepted
	Delivered int64 `json:"delivered,omitzero"` // acknowledged
	Failed    int64 `json:"failed,omitzero"`    // attempts, of any cause
	Died      int64 `json:"died,omitzero"`
	Cancelled int64 `json:"cancelled,omitzero"`

	// Lateness is that of the first attempts that began; not of tasks that are still ready.
	Lateness RecentLateness `json:"lateness,omitzero"`
}

// Add adds the history of another node.
func (h *History) Add(o *History) {
	if o.Since.After(h.Since) {
		h.Since = o.Since
	}
	for i := range o.Minutes {
		m := &o.Minutes[i]
		at, known := slices.BinarySearchFunc(h.Minutes, m.At, func(p PastMinute, at time.Time) int { return p.At.Compare(at) })
		if known {
			addUp(&h.Minutes[at], m)
		} else {
			h.Minutes = slices.Insert(h.Minutes, at, *m)
		}
	}
	h.Minutes = h.Minutes[max(0, len(h.Minutes)-HistoryMinutes-1):]
}
