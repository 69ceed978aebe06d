package task

import (
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/internal/choice"
)

// Limits of a subscription.
const (
	MaxEventTopics = 100       // that one subscription may name
	MaxEventBuffer = 1_000_000 // events that may wait for its reader

	DefaultEventBuffer = 4096
	// TextPerEvent is how many bytes the ids and errors of waiting events may take, on average: the
	// memory of a subscription is bounded, whatever a topic fails with.
	TextPerEvent = 256
)

// An Observer receives what happens to tasks, right after it happened.
type Observer interface {
	// Observe receives one event. The scheduler calls it without any lock held, from many
	// goroutines at once, so not always in the order of events. It must return quickly.
	Observe(Event)
}

// An Event is one thing that happened to a task.
type Event struct {
	Kind  EventKind
	At    time.Time
	ID    string
	Topic string
	// Attempt is the attempt that begins (Started), or that has ended (Delivered, Retried, Died).
	Attempt int `json:",omitzero"`
	// Lateness of a first attempt (Started), or of a task that has become ready for it (Due): the
	// time since the task was due, or since its place in its topic's Spread.
	Lateness time.Duration `json:",omitzero"`
	// By (Started) names the node whose receiver has the task, or that took it in a backlog; empty
	// if that is this node.
	By  string `json:",omitzero"`
	Err string `json:",omitzero"` // Retried, Died: why, at most 1 KiB
}

// NodeEvents are what a FleetSubscription has heard of one node: events, how many were lost after
// them, or a change of whether they are heard of.
type NodeEvents struct {
	Node   string  // its name
	Events []Event // in the order in which they happened there
	// Lost is how many events are missing after these, because the reader was too slow, or did not
	// ask often enough.
	Lost int64

	Change NodeChange // empty if there are events, or some are lost
	// Gap (NodeCovered): events of the node that happened before, while the subscription was open,
	// may be missing.
	Gap bool
	Err error // NodeMissing: why
}

// A NodeChange says whether a FleetSubscription hears of a node's events from now on.
type NodeChange string

// What becomes of a node while a FleetSubscription is open.
const (
	NodeCovered NodeChange = "covered" // its events are heard of from now on
	NodeMissing NodeChange = "missing" // it does not answer, or has died and still holds tasks
	NodeLeft    NodeChange = "left"    // it has ended, and holds no task
)

// An EventKind names what happened.
type EventKind string

// What observers and subscriptions hear of.
const (
	EventScheduled EventKind = "scheduled" // accepted and recorded
	EventStarted   EventKind = "started"   // a delivery has begun
	EventDelivered EventKind = "delivered" // acknowledged
	EventRetried   EventKind = "retried"   // an attempt failed, another follows
	EventDied      EventKind = "dead"      // attempts exhausted, or buried
	EventCancelled EventKind = "cancelled"
	EventSkipped   EventKind = "skipped" // later than its max_lateness, or misfired
	EventRescued   EventKind = "rescued" // the sweep found it overdue
	// EventDue says that a task has become ready for its first attempt: its deadline has come, or
	// its place in its topic's Spread. It comes again when the task is read back from the ledger
	// before that attempt, be it by another node that adopts it, and when the task becomes due anew
	// because it was moved, or because the clock was set back. It comes before what makes the task
	// wait or end without an attempt, such as a pause or a max_lateness. Only subscriptions whose
	// Kinds name it hear of it, and no Observer does.
	EventDue EventKind = "due"
)

// EventKinds are all kinds there are.
var EventKinds = []EventKind{
	EventScheduled, EventStarted, EventDelivered, EventRetried, EventDied, EventCancelled, EventSkipped, EventRescued,
	EventDue,
}

// An EventFilter says what a subscription hears of. Its zero value is everything but EventDue.
type EventFilter struct {
	// Topics are those whose events the subscription hears of, up to MaxEventTopics. They may
	// include topics that no node has met yet. Empty: all.
	Topics []string
	// Patterns are as in a Grant: the subscription hears only of topics that match one. Empty: any.
	Patterns []string
	// Kinds are the kinds of events that the subscription hears of. Empty: all but EventDue.
	Kinds []EventKind
	// Buffer is how many events may wait for Next, 1 to MaxEventBuffer, as long as their ids and
	// errors take no more than 256 bytes each on average. 0: 4,096.
	Buffer int
}

// Validate returns an *InvalidError that reports everything that is wrong, all at once; nil if
// nothing is.
func (f *EventFilter) Validate() error {
	var all Faults
	switch {
	case len(f.Patterns) > MaxGrantTopics || slices.ContainsFunc(f.Patterns, func(p string) bool { return CheckPattern(p) != "" }):
		all.Add("patterns", fmt.Sprintf("must be at most %d patterns of topics", MaxGrantTopics))
	case len(f.Topics) > MaxEventTopics:
		all.Add("topic", fmt.Sprintf("must be given at most %d times", MaxEventTopics))
	case slices.ContainsFunc(f.Topics, func(t string) bool { return !ValidName(t) }):
		all.Add("topic", NameProblem)
	}
	if slices.ContainsFunc(f.Kinds, func(k EventKind) bool { return !slices.Contains(EventKinds, k) }) {
		all.Add("kind", "must be "+choice.Text(EventKinds))
	}
	if f.Buffer < 0 || f.Buffer > MaxEventBuffer {
		all.Add("buffer", fmt.Sprintf("must be from 1 to %d", MaxEventBuffer))
	}
	return all.Err()
}
