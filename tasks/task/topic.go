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
	Pending    int64 `json:"pending,omitzero" http:"pending" doc:"Retrying and held tasks included." metric:"tasks,state=pending" help:"Tasks that this node holds now, by topic and state: pending (waits for its time), ready (due, waits for a receiver), delivering (handed out, not settled), dead (out of attempts, or buried; kept until requeued or deleted). The states add up to all tasks. Sum over the nodes for the fleet."`
	Ready      int64 `json:"ready,omitzero" http:"ready" metric:"tasks,state=ready"`
	Delivering int64 `json:"delivering,omitzero" http:"delivering" metric:"tasks,state=delivering"`
	Dead       int64 `json:"dead,omitzero" http:"dead" metric:"tasks,state=dead"`
	PendingCounts
	ReadyCounts
	OverdueCounts
	Finished int64 `json:"finished,omitzero" http:"finished" doc:"Finished tasks that are kept because of their topic's keep_finished." metric:"tasks_finished" help:"Finished tasks of the topic that this node keeps now, because the topic's keep_finished says so. They are not in lapse_tasks. Each costs this node some 40 bytes, and the ledger its record."`

	Scheduled    int64 `json:"scheduled,omitzero" http:"scheduled" metric:"tasks_scheduled_total" help:"Tasks that this node has accepted since its start."`
	Delivered    int64 `json:"delivered,omitzero" http:"delivered" doc:"Acknowledged." attempt:"Acknowledged." metric:"tasks_delivered_total" help:"Tasks of this node that their receiver has acknowledged, since the start of the node."`
	Failed       int64 `json:"failed,omitzero" http:"failed" doc:"Attempts, of any cause." metric:"attempts_failed_total" help:"Attempts at this node that failed since its start, of whatever cause. A task may fail several times and be delivered in the end."`
	LeaseExpired int64 `json:"lease_expired,omitzero" http:"lease_expired" doc:"Attempts whose lease ran out; also in failed." attempt:"Not settled within their lease, whether another attempt follows or not." metric:"attempts_lease_expired_total" help:"Attempts at this node whose lease ran out before they were settled, since its start; lapse_attempts_failed_total counts them too. Any increase: receivers die, or their lease is too short, and work is done twice."`
	// Retried counts the failed attempts after which another one follows.
	Retried int64 `json:"retried,omitzero" attempt:"Failed; another attempt follows."`
	// Exhausted counts the failed attempts that were the last.
	Exhausted int64 `json:"exhausted,omitzero" attempt:"Failed, and were the last: the task is dead."`
	// Buried counts the failed attempts whose receiver buried the task.
	Buried int64 `json:"buried,omitzero" attempt:"Buried by their receiver: the task is dead."`
	// Returned counts deliveries that a receiver or another node gave back unused; no attempts.
	Returned int64 `json:"returned,omitzero" attempt:"Given back unused, by a receiver, or by a node that had fetched it for one; no attempt of the task."`
	DeathCounts
	Cancelled int64 `json:"cancelled,omitzero" http:"cancelled" metric:"tasks_cancelled_total" help:"Tasks of this node that were cancelled since its start, dead ones that were deleted included."`
	Skipped   int64 `json:"skipped,omitzero" http:"skipped" doc:"Later than their max_lateness, or not delivered because of their topic's misfire." metric:"tasks_skipped_total" help:"Tasks of this node that were given up undelivered since its start: they were later than their max_lateness, or their deadline had passed while no node held them and the topic's misfire says skip or coalesce."`
	Panicked  int64 `json:"panicked,omitzero" http:"panicked" doc:"Handlers that panicked; also in failed." metric:"attempts_panicked_total" help:"Attempts whose handler panicked at this node, since its start; lapse_attempts_failed_total counts them too. Any increase is a fault of the program that embeds Lapse."`

	// DeadOldest is when the first of those that are dead now died; zero if there are none. It
	// follows within a period of the sweep.
	DeadOldest time.Time `json:"dead_oldest,omitzero" http:"dead_oldest_at,omitempty" doc:"When the oldest dead task died. Left out if there is none." metric:"dead_oldest_age_seconds" help:"Age in seconds of the longest dead task of the topic at this node; 0 if none is dead. Once it reaches the topic's dead_retention (7 days unless set) that task is deleted."`

	// Lateness is that of first attempts, from the deadline or the place in the Spread on.
	Lateness Histogram `json:"lateness,omitzero" http:"lateness" doc:"Of first attempts since the start."`

	// ReadyOldest is since when the oldest task has been due that is ready now; zero if none is.
	// Right after thousands of ready tasks were cancelled it may be the time of one of them.
	ReadyOldest time.Time `json:"ready_oldest,omitzero" http:"ready_oldest_at,omitempty" doc:"Since when the oldest task has been due that is ready now. Left out if none is." metric:"ready_oldest_age_seconds" help:"How long, in seconds, the oldest ready task of the topic at this node has been due, for its first or a further attempt; 0 if none is ready. It grows while receivers are gone or too slow, or the topic is paused (lapse_topic_paused)."`
	// Receivers counts those that wait for tasks at this node now.
	Receivers int64 `json:"receivers,omitzero" http:"receivers" doc:"Calls of reserve that wait." metric:"receivers_waiting" help:"Calls of reserve that wait at this node for tasks of the topic, now. 0 while tasks are ready and the topic is pulled: no receiver asks."`
	// Recent is the lateness of the last minutes, and of the tasks that are ready now.
	Recent RecentLateness `json:"recent,omitzero" http:"recent" doc:"Of first attempts in the last 5 minutes, and of the tasks that are ready now, for their first or a further attempt. The total leaves paused topics out."`
	// FailedRecent are the attempts that have failed within the last RecentTime, and at most a
	// minute before.
	FailedRecent int64 `json:"failed_recent,omitzero" http:"failed_recent" doc:"Attempts that failed in the last 5 minutes."`
	// DeliveredRecent are the tasks that were delivered then, at whatever attempt.
	DeliveredRecent int64 `json:"delivered_recent,omitzero" http:"delivered_recent" doc:"Tasks that were delivered in the last 5 minutes, at whatever attempt."`
}

// PendingCounts are parts of the pending tasks, now.
type PendingCounts struct {
	Retrying int64 `json:"retrying,omitzero" http:"retrying" doc:"Tasks of which an attempt was made, and that wait for the next one. They count as pending too." metric:"tasks_retrying" help:"Tasks of this node that wait for another attempt after one that failed, now. lapse_tasks counts them as pending. Many of them: the receivers of the topic fail."`
	Held     int64 `json:"held,omitzero" http:"held" doc:"Tasks whose countdown is held. They count as pending too." metric:"tasks_held" help:"Tasks of this node whose countdown is held, now. lapse_tasks counts them as pending. They wait until they are resumed, however long that takes."`
}

// ReadyCounts are parts of the ready tasks, now.
type ReadyCounts struct {
	// Blocked are those that wait for deliveries of their groups to end, in a topic with
	// ConcurrencyPerGroup.
	Blocked int64 `json:"blocked,omitzero" http:"blocked" doc:"Tasks that wait for deliveries of their groups to end, in topics with concurrency_per_group. They count as ready too." metric:"tasks_blocked" help:"Ready tasks of the topic at this node that wait for deliveries of their groups to end, now, because of the topic's concurrency_per_group. They count as ready in lapse_tasks too."`
	// Strays counts those whose topic cannot deliver them to their Target, and those that no
	// receiver wants (ErrUnwanted).
	Strays int64 `json:"strays,omitzero" http:"strays" doc:"Tasks that wait aside: their topic cannot make the delivery that they have of their own, see undeliverable of a task, or none of its receivers wants them. They count as ready too." metric:"tasks_strays" help:"Ready tasks of the topic at this node that wait aside, now: the topic cannot make the delivery that they have of their own (it has another kind, or no task_delivery any more), or none of its receivers wants them (no subscriber of the channels of these keys). They wait until its settings change or a receiver comes, and count as ready in lapse_tasks too. More than 0: mend the topic, the tasks or the receivers."`
}

// OverdueCounts are the tasks whose deadline has passed and that are not delivered, now. Such a
// task is ready for its first attempt, or an attempt of it has failed, wherever it stands now. Held
// tasks are not overdue, nor are dead ones, nor those that wait for their place in a Spread.
type OverdueCounts struct {
	Overdue         int64 `json:"overdue,omitzero" http:"overdue.count" doc:"Tasks whose deadline has passed and that are not delivered: ready for their first attempt, or an attempt has failed. Held and dead tasks are not overdue, nor is one of which the first attempt is under way." metric:"tasks_overdue" help:"Tasks of the topic at this node whose deadline has passed and that are not delivered, now: ready for their first attempt, or an attempt has failed. Those of paused topics are in lapse_tasks_overdue_paused too. Sum over the nodes for the fleet."`
	OverdueRetrying int64 `json:"overdue_retrying,omitzero" http:"overdue.retrying" doc:"Of the overdue tasks, those of which an attempt has failed, whatever state they are in now." metric:"tasks_overdue_retrying" help:"Overdue tasks of the topic at this node of which an attempt has failed, now, whatever state they are in now. Many of them: the receivers of the topic fail."`
	OverduePaused   int64 `json:"overdue_paused,omitzero" http:"overdue.paused" doc:"Of the overdue tasks, those of paused topics." metric:"tasks_overdue_paused" help:"Overdue tasks of the topic at this node that wait because the topic is paused, now."`
	// OverdueOldest is the earliest deadline of an overdue task; zero if there is none. It may be
	// that of a task that is overdue no more if others of the same minute are.
	OverdueOldest time.Time `json:"overdue_oldest,omitzero" http:"overdue.oldest_at,omitempty" doc:"The earliest deadline of an overdue task. Left out if there is none. The total leaves paused topics out." metric:"overdue_oldest_age_seconds" help:"How long ago, in seconds, the earliest deadline of an overdue task of the topic at this node passed; 0 if none is overdue. Unlike lapse_ready_oldest_age_seconds it grows while a task is tried again and again."`
}

// DeathCounts are the figures of deaths, since the start.
type DeathCounts struct {
	Died int64 `json:"died,omitzero" http:"died" metric:"tasks_died_total" help:"Tasks of this node that have died since its start: their attempts were exhausted, or their receiver buried them. They wait for an operator: alert on any increase."`
	// Expired counts dead tasks that were deleted after TopicSettings.DeadRetention.
	Expired int64 `json:"expired,omitzero" http:"expired" doc:"Dead tasks that were deleted because dead_retention had passed." metric:"dead_expired_total" help:"Dead tasks that this node has deleted since its start, because the dead_retention of their topic had passed. They are gone undelivered."`
	// FollowUps are the tasks of TopicSettings.OnDead. FollowUpsLost are those that were not made
	// since there was no room; FollowUpsEnded those that were not made since their chain had come
	// through the topic before, or was too long. Those tasks are dead, and that is all.
	FollowUps      int64 `json:"follow_ups,omitzero" http:"follow_ups.made" metric:"on_dead_total,outcome=made" help:"Tasks of this node that have died since its start in a topic with on_dead, by outcome: made (followed by a task of the other topic), lost (not followed, since there was no room), ended (not followed, since the chain of deaths had come through that topic before, or was too long). Those lost and ended are dead, and that is all: alert on any increase."`
	FollowUpsLost  int64 `json:"follow_ups_lost,omitzero" http:"follow_ups.lost" doc:"Not made, since there was no room. Those tasks are dead, and that is all." metric:"on_dead_total,outcome=lost"`
	FollowUpsEnded int64 `json:"follow_ups_ended,omitzero" http:"follow_ups.ended" doc:"Not made, since the chain of deaths had come through the topic before, or was too long." metric:"on_dead_total,outcome=ended"`
	// Lost are dead tasks, and finished ones that were kept, which the ledger has lost, and of
	// which this node had no records in memory to write them again.
	Lost int64 `json:"lost,omitzero" http:"lost" doc:"Dead tasks, and finished ones that were kept, which the ledger has lost since the start, and of which this node had no records in memory to write them again." metric:"dead_lost_total" help:"Dead tasks, and finished ones that were kept, which the ledger has lost, and of which this node had no records in memory to write them again, since its start. Alert on any increase: those tasks are gone, and their ids are free."`
}

// Add adds the figures of o to c. DeadOldest and ReadyOldest become the earlier of the two.
func (c *Counts) Add(o *Counts) { addUp(c, o) }

// WithoutRest returns the counts without the lateness of tasks that wait because their topic is
// paused. Those of all topics are added up so: a pause that is meant hides nothing else.
func (c Counts) WithoutRest(paused bool) Counts {
	if paused {
		c.ReadyOldest, c.OverdueOldest, c.Recent = time.Time{}, time.Time{}, RecentLateness{}
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
	// a task that has been overdue for LateAfter or longer. Of these it is as SortLate, of those
	// that fail as SortFailed, and of those with dead tasks as SortDead.
	SortWorst   TopicSort = "worst"
	SortLate    TopicSort = "late"    // the oldest overdue task, of topics that are not paused
	SortFailed  TopicSort = "failed"  // most FailedRecent; of topics without, most Failed
	SortDead    TopicSort = "dead"    // most dead tasks
	SortReady   TopicSort = "ready"   // most ready tasks
	SortPending TopicSort = "pending" // most pending tasks
	SortPaused  TopicSort = "paused"  // those that are paused, with the most tasks that wait
)

// TopicSorts are all orders of topics.
var TopicSorts = []TopicSort{SortName, SortWorst, SortLate, SortFailed, SortDead, SortReady, SortPending, SortPaused}

// LateAfter is for how long a task is overdue before SortWorst takes its topic for late.
const LateAfter = time.Second
