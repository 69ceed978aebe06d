package task

import (
	"time"
)

// Limits of topics.
const (
	// MaxTopics bounds the topics of a node. The last ReservedTopics of them are for topics that
	// are set up or have a handler, and for callers whose Grant says so: a caller that may only
	// schedule cannot keep another one from setting up a topic.
	MaxTopics      = 100_000
	ReservedTopics = 10_000
	// MaxTopicPage is how many topics a page has at most.
	MaxTopicPage = 1000
)

// A Topic is a topic with its settings and what it is doing.
type Topic struct {
	Name     string
	Settings TopicSettings // with defaults filled in
	Revision int64         // of the stored settings; 0: none were set
	Counts   Counts

	// ConcurrencySet reports whether Settings.Concurrency was set. Where it was not, it is the
	// default, and a backlog raises it (see Config.SweepBacklog).
	ConcurrencySet bool
	// ConcurrencyNow is what holds at this moment: Settings.Concurrency, or more.
	ConcurrencyNow int
	// Undeliverable says why this process cannot deliver the topic's tasks, which wait: its
	// settings name a way of delivery that the process does not have, or that does not accept them
	// (any more), or its deliverer has no receiver at the moment (ErrNoReceiver). Empty if it can.
	Undeliverable string
	// LastError is why the last attempt failed of those that have failed here since the start, at
	// most MaxTopicError bytes; empty if none has. LastFailed is when it ended.
	LastError  string
	LastFailed time.Time
}

// MaxTopicError bounds Topic.LastError, in bytes.
const MaxTopicError = 256

// A Kind names a way of delivery.
type Kind string

// The ways of delivery that need no package of their own.
const (
	Pull    Kind = "pull"    // receivers ask with Reserve
	Handler Kind = "handler" // a function in this process, registered with Handle
)

// Rate bounds how many deliveries of a topic begin, by a bucket of tokens. The zero value is no
// bound.
type Rate struct {
	PerSecond float64 // 0.001 to 1,000,000
	// Burst is how many may begin at once after a rest; 1 to 1,000,000. The default is PerSecond
	// rounded up.
	Burst int
}

// Misfire says what becomes of a task whose deadline (its place, in a topic with a Spread) passed
// while no process held it: one that was read back from the ledger for its first attempt, with a
// deadline before Open. A restart of one second is downtime too, and it is not known when the
// process before has ended: a task that was due before that, and was neither delivered nor failed,
// is misfired as well, an attempt that was under way included unless the topic has CountCrashes. A
// caller that wants to drop only what is old uses Request.MaxLateness. It is decided when a task
// would be delivered; one that a caller has moved, fired or changed since Open is not misfired.
type Misfire string

// What may become of such tasks.
const (
	MisfireDeliver Misfire = "deliver" // it is delivered late
	MisfireSkip    Misfire = "skip"    // it is not delivered, and counts as skipped
	// MisfireCoalesce delivers one of the misfired tasks of a group, once replay is over: the one
	// with the latest deadline, then the one created last, then the one with the greater id. Nodes
	// that share a ledger ask one another for later ones, and wait for a bounded time. Tasks
	// without a group are all delivered.
	MisfireCoalesce Misfire = "coalesce"
)

// Counts are a topic's figures: how many tasks stand where, and what has happened since the start.
type Counts struct {
	Pending    int64 `json:"pending,omitzero"`    // now
	Ready      int64 `json:"ready,omitzero"`      // now
	Delivering int64 `json:"delivering,omitzero"` // now
	Dead       int64 `json:"dead,omitzero"`       // now
	PendingCounts
	ReadyCounts
	Finished int64 `json:"finished,omitzero"` // now: finished tasks that are kept

	Scheduled    int64 `json:"scheduled,omitzero"`     // accepted
	Delivered    int64 `json:"delivered,omitzero"`     // acknowledged
	Failed       int64 `json:"failed,omitzero"`        // attempts that failed, of any cause
	LeaseExpired int64 `json:"lease_expired,omitzero"` // of those, attempts whose lease ran out
	// Retried counts the failed attempts after which another one follows.
	Retried int64 `json:"retried,omitzero"`
	// Exhausted counts the failed attempts that were the last.
	Exhausted int64 `json:"exhausted,omitzero"`
	// Buried counts the failed attempts whose receiver buried the task.
	Buried int64 `json:"buried,omitzero"`
	// Returned counts deliveries that a receiver or another node gave back unused; no attempts.
	Returned int64 `json:"returned,omitzero"`
	DeathCounts
	Cancelled int64 `json:"cancelled,omitzero"`
	Skipped   int64 `json:"skipped,omitzero"`  // past max_lateness, or misfired
	Panicked  int64 `json:"panicked,omitzero"` // handlers that panicked; also in Failed

	// DeadOldest is when the first of those that are dead now died; zero if there are none. It
	// follows within a period of the sweep.
	DeadOldest time.Time `json:"dead_oldest,omitzero"`

	// Lateness is that of first attempts, from the deadline or the place in the Spread on.
	Lateness Histogram `json:"lateness,omitzero"`

	// ReadyOldest is since when the oldest task has been due that is ready now; zero if none is.
	// Right after thousands of ready tasks were cancelled it may be the time of one of them.
	ReadyOldest time.Time `json:"ready_oldest,omitzero"`
	// Receivers counts those that wait for tasks at this node now.
	Receivers int64 `json:"receivers,omitzero"`
	// Recent is the lateness of the last minutes, and of the tasks that are ready now.
	Recent RecentLateness `json:"recent,omitzero"`
	// FailedRecent are the attempts that have failed within the last RecentTime, and at most a
	// minute before.
	FailedRecent int64 `json:"failed_recent,omitzero"`
}

// PendingCounts are parts of the pending tasks, now.
type PendingCounts struct {
	Retrying int64 `json:"retrying,omitzero"` // tasks of which an attempt was made
	Held     int64 `json:"held,omitzero"`     // tasks whose countdown is held
}

// ReadyCounts are parts of the ready tasks, now.
type ReadyCounts struct {
	// Blocked are those that wait for deliveries of their groups to end, in a topic with
	// ConcurrencyPerGroup.
	Blocked int64 `json:"blocked,omitzero"`
	// Strays counts those whose topic cannot deliver them to their Target.
	Strays int64 `json:"strays,omitzero"`
}

// DeathCounts are the figures of deaths, since the start.
type DeathCounts struct {
	Died int64 `json:"died,omitzero"` // exhausted or buried
	// Expired counts dead tasks that were deleted after TopicSettings.DeadRetention.
	Expired int64 `json:"expired,omitzero"`
	// FollowUps are the tasks of TopicSettings.OnDead. FollowUpsLost are those that were not made
	// since there was no room; FollowUpsEnded those that were not made since their chain had come
	// through the topic before, or was too long. Those tasks are dead, and that is all.
	FollowUps      int64 `json:"follow_ups,omitzero"`
	FollowUpsLost  int64 `json:"follow_ups_lost,omitzero"`
	FollowUpsEnded int64 `json:"follow_ups_ended,omitzero"`
	// Lost are dead tasks, and finished ones that were kept, which the ledger has lost, and of
	// which this node had no records in memory to write them again.
	Lost int64 `json:"lost,omitzero"`
}

// Add adds the figures of o to c. DeadOldest and ReadyOldest become the earlier of the two.
func (c *Counts) Add(o *Counts) { addUp(c, o) }

// WithoutRest returns the counts without the lateness of tasks that wait because their topic is
// paused. Those of all topics are added up so: a pause that is meant hides nothing else.
func (c Counts) WithoutRest(paused bool) Counts {
	if paused {
		c.ReadyOldest, c.Recent = time.Time{}, RecentLateness{}
	}
	return c
}

// A TopicQuery asks for a page of topics.
type TopicQuery struct {
	Limit  int    // 1 to MaxTopicPage; 0: MaxTopicPage
	Cursor string // TopicPage.NextCursor of the page before; empty: from the beginning

	// Search leaves out topics whose names do not have this part, in whatever case; empty: none. At
	// most MaxSearch bytes.
	Search string
	Sort   TopicSort // empty: by name

	Allows func(name string) bool // leaves other topics out; nil: none
}

// A TopicPage is a part of the topics that a node has met, in the order of TopicQuery.Sort. It ends
// early if the topics are large.
type TopicPage struct {
	Topics     []Topic
	NextCursor string // leads to the next page; empty: there are no more topics
	// Matched is how many topics all pages have together, with a Search or a Sort: at least, if a
	// node has more than it tells of, see MaxSortedTopics. Otherwise 0.
	Matched int
}

// MaxSearch is how long TopicQuery.Search may be, in bytes.
const MaxSearch = 128

// MaxSortedTopics is how many topics each other node tells of for a sorted page, of many nodes
// fewer: those that are first by its own figures.
const MaxSortedTopics = 20_000

// A TopicSort says which topics come first in a page. Those that it does not tell apart come by
// name.
type TopicSort string

// The orders of topics.
const (
	SortName TopicSort = "name"
	// SortWorst: topics that are late come first, those that fail next, then those with dead tasks,
	// then those that are paused, and then all others. Late are topics that are not paused and have
	// a task that has been ready for LateAfter or longer. Of these it is as SortLate, of those that
	// fail as SortFailed, and of those with dead tasks as SortDead.
	SortWorst   TopicSort = "worst"
	SortLate    TopicSort = "late"    // the oldest ready task, of topics that are not paused
	SortFailed  TopicSort = "failed"  // most FailedRecent; of topics without, most Failed
	SortDead    TopicSort = "dead"    // most dead tasks
	SortReady   TopicSort = "ready"   // most ready tasks
	SortPending TopicSort = "pending" // most pending tasks
	SortPaused  TopicSort = "paused"  // those that are paused, with the most tasks that wait
)

// TopicSorts are all orders of topics.
var TopicSorts = []TopicSort{SortName, SortWorst, SortLate, SortFailed, SortDead, SortReady, SortPending, SortPaused}

// LateAfter is for how long a task is ready before SortWorst takes its topic for late.
const LateAfter = time.Second
