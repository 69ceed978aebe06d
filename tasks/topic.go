package tasks

import (
	"encoding/json"
	"time"
)

// TopicSettings say how the tasks of a topic are delivered and retried. The
// zero value of a field means its default, except where it says otherwise.
type TopicSettings struct {
	Kind          Kind            // a way of Config.Ways; unless set, Handler if one was registered, else Pull
	Delivery      json.RawMessage `json:",omitempty"` // what the way needs to know: a JSON object, see the way's package
	Retry         Retry           //
	Lease         time.Duration   // how long a delivery may stay unsettled; 1 s to 24 h, default 30 s
	Concurrency   int             // deliveries at once on this node (Pull is not bound by it); 1 to 100,000, default 64, which a backlog may raise
	Rate          Rate            // deliveries a second on this node; default: no bound
	Weight        int             // share of the node's places for deliveries when they are scarce, beside other topics; 1 to 1,000, default 1
	Spread        time.Duration   // window from the deadline on over which the first attempts of tasks of one instant are spread evenly, by their ids; 0 to 24 h, default 0
	Misfire       Misfire         // what becomes of tasks that fell due while no process held them; default MisfireDeliver
	CountCrashes  bool            // record each attempt before it is delivered: one more write, and a task that kills its process runs out of attempts too
	Paused        bool            // accept, but do not deliver
	DeadRetention time.Duration   // how long dead tasks are kept; 1 min to 3660 days, default 7 days
}

// Rate bounds how many deliveries of a topic begin, by a bucket of tokens. The zero
// value is no bound.
type Rate struct {
	PerSecond float64 // 0.001 to 1,000,000
	Burst     int     // how many may begin at once after a rest; 1 to 1,000,000, default PerSecond rounded up
}

// Misfire says what becomes of a task whose deadline (its place, in a topic with a
// Spread) passed while no process held it: one that was read back from the ledger for its
// first attempt, with a deadline before Open. A restart of one second is downtime
// too, and it is not known when the process before has ended: a task that was due before
// that, and was neither delivered nor failed, is misfired as well, an attempt that was under way
// included unless the topic has CountCrashes. A caller that wants to drop only what is
// old uses Request.MaxLateness. It is decided when a task would be delivered; one that a
// caller has moved, fired or changed since Open is not misfired.
type Misfire string

// What may become of such tasks.
const (
	MisfireDeliver  Misfire = "deliver"  // it is delivered late
	MisfireSkip     Misfire = "skip"     // it is not delivered, and counts as skipped
	MisfireCoalesce Misfire = "coalesce" // of such tasks with the same group only the one with the latest deadline is delivered (then the one created last, then the greater id), once replay is over; tasks without a group all are
)

// Retry is the schedule of attempts after a failed one: exponential backoff
// with full jitter. The n-th pause is drawn evenly from MinBackoff up to
// MinBackoff * 2^n, and is never longer than MaxBackoff.
type Retry struct {
	MaxAttempts int           // then the task is dead; 1 to MaxRetryAttempts, which is the default (20 with CountCrashes)
	MinBackoff  time.Duration // 1 ms to 24 h, default 1 s
	MaxBackoff  time.Duration // MinBackoff to 30 days, default 10 min

	// MaxAge ends a task with the first attempt that fails so long after its deadline: 1 s to
	// 3660 days. Default 24 h where MaxAttempts has its default, or no bound. A task whose first
	// attempt came late, because no process ran or the topic was paused, still has as many
	// attempts as fit into MaxAge on average, at most 20. A new deadline begins it anew.
	MaxAge time.Duration `json:",omitempty"`
}

// MaxRetryAttempts bounds Retry.MaxAttempts, and is its default: with that, MaxAge ends a task
// long before.
const MaxRetryAttempts = 1_000_000

// Kind is a way of delivery.
type Kind string

// The ways of delivery that need no package of their own.
const (
	Pull    Kind = "pull"    // receivers ask with Reserve
	Handler Kind = "handler" // a function in this process, registered with Handle
)

// A Topic is a topic with its settings and what it is doing.
type Topic struct {
	Name     string
	Settings TopicSettings // with defaults filled in
	Revision int64         // of the stored settings; 0: none were set
	Counts   Counts

	// ConcurrencySet tells that somebody has set Settings.Concurrency. Where nobody
	// has, it is the default, and a backlog raises it (see Config.SweepBacklog).
	ConcurrencySet bool
	// ConcurrencyNow is what holds at this moment: Settings.Concurrency, or more.
	ConcurrencyNow int
	// Undeliverable tells why this process cannot deliver the topic's tasks, which wait:
	// its settings name a way of delivery that the process does not have, or that
	// does not accept them (any more). Empty if it can.
	Undeliverable string
}

// Counts are a topic's figures: how many tasks stand where, and what has
// happened since the start.
type Counts struct {
	Pending, Ready, Delivering, Dead int64 // now

	Scheduled    int64 // accepted
	Delivered    int64 // acknowledged
	Failed       int64 // attempts that failed, of any cause
	LeaseExpired int64 // of those, attempts whose lease ran out
	Died         int64 // exhausted or buried
	Expired      int64 // dead tasks that were deleted because TopicSettings.DeadRetention had passed
	Cancelled    int64
	Skipped      int64 // past max_lateness, or misfired
	Panicked     int64 // handlers that panicked; also in Failed

	// DeadOldest is when the first of those that are dead now died; zero if there are
	// none. It follows within a period of the sweep.
	DeadOldest time.Time

	Lateness Histogram // of first attempts, from the deadline or the place in the Spread on
}

// A Histogram counts durations in fixed buckets.
type Histogram struct {
	Counts [len(LatenessBounds) + 1]int64 // Counts[i]: up to LatenessBounds[i]; the last one: above
	Sum    time.Duration
}

// LatenessBounds are the upper bounds of the histogram's buckets.
var LatenessBounds = [...]time.Duration{
	1 * time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond,
	10 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	1 * time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	time.Minute, 10 * time.Minute, time.Hour,
}
