package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/internal/engine/events"
	"github.com/lapsehq/lapse/tasks/task"
)

// The words of the API stand in package task, where ways of delivery and the inside of the
// scheduler find them too. Here they have the names that applications use.

type (
	// A Task is one thing to deliver when due, as it stood when it was asked for.
	Task = task.Task

	// State is where a task stands in its life, as a caller sees it.
	State = task.State

	// A Reason says why a task is dead.
	Reason = task.Reason

	// An Attempt is a delivery that has ended without success.
	Attempt = task.Attempt

	// An Outcome says what has become of a finished task.
	Outcome = task.Outcome

	// An AttemptOutcome says how an attempt has ended.
	AttemptOutcome = task.AttemptOutcome

	// A Receiver is a Deliverer that names what it delivers to, for Attempt.By.
	Receiver = task.Receiver

	// A Request asks for a task.
	Request = task.Request

	// A Result is the answer to one request of a batch: the id, or why not.
	Result = task.Result

	// A Move gives a task a new deadline, a new payload, or both.
	Move = task.Move

	// A Query selects tasks for List.
	Query = task.Query

	// A Page is one page of a list, soonest first.
	Page = task.Page
)

type (
	// A Delivery is one attempt to hand a task to its receiver.
	Delivery = task.Delivery

	// A Deliverer hands a task to its receiver: one way of delivery.
	Deliverer = task.Deliverer

	// A BatchDeliverer is a Deliverer whose receiver takes many tasks in one go for little more
	// than one: then a goroutine makes many deliveries at once, of whatever has become ready while
	// it was busy with those before.
	BatchDeliverer = task.BatchDeliverer

	// HandlerFunc is a Deliverer that is a function of this process.
	HandlerFunc = task.HandlerFunc

	// A Way is a way of delivery that topics choose by its kind, at run time: what a program brings
	// along in Config.Ways, such as those of packages webhook, stream and pubsub.
	Way = task.Way

	// WayStats is what a way of delivery has counted.
	WayStats = task.WayStats

	// A Tally is a Way that counts what has become of attempts, by outcome, such as {"2xx": 10,
	// "timeout": 1}.
	Tally = task.Tally

	// Took says how long things took that a process has done.
	Took = task.Took

	// Latency counts how long something took, in buckets.
	Latency = task.Latency

	// A Verb is what a receiver says of a delivery.
	Verb = task.Verb

	// A Verdict settles deliveries.
	Verdict = task.Verdict

	// A Settled is the answer to one receipt.
	Settled = task.Settled
)

// A Tallier counts outcomes, see task.Tallier.
type Tallier[O ~int] = task.Tallier[O]

type (
	// A Topic is a topic with its settings and what it is doing.
	Topic = task.Topic

	// TopicSettings say how the tasks of a topic are delivered and retried.
	TopicSettings = task.TopicSettings

	// A TopicQuery asks for a page of topics.
	TopicQuery = task.TopicQuery

	// A TopicPage is a part of the topics that a node has met.
	TopicPage = task.TopicPage

	// A TopicSort says which topics come first in a page.
	TopicSort = task.TopicSort

	// A Kind names a way of delivery.
	Kind = task.Kind

	// Misfire says what becomes of a task whose deadline (its place, in a topic with a Spread)
	// passed while no process held it: one that was read back from the ledger for its first
	// attempt, with a deadline before Open.
	Misfire = task.Misfire

	// Rate bounds how many deliveries of a topic begin, by a bucket of tokens.
	Rate = task.Rate

	// Retry is the schedule of attempts after a failed one: exponential backoff with full jitter.
	Retry = task.Retry

	// Counts are a topic's figures: how many tasks stand where, and what has happened since the
	// start.
	Counts = task.Counts

	// A Histogram counts durations in fixed buckets.
	Histogram = task.Histogram

	// Buckets count durations.
	Buckets = task.Buckets

	// A RecentLateness says how late tasks are now.
	RecentLateness = task.RecentLateness
)

type (
	// Purged counts what a Purge has done.
	Purged = task.Purged

	// Killed counts what a KillTopic has done.
	Killed = task.Killed

	// A Requeue says which dead tasks of a topic come back, and when.
	Requeue = task.Requeue

	// A Mend is what a dead task has from now on that is requeued.
	Mend = task.Mend

	// Requeued says what a Requeue has done.
	Requeued = task.Requeued

	// GroupCancelled says what a CancelGroup has done.
	GroupCancelled = task.GroupCancelled

	// An Outlook says what a forecast is about.
	Outlook = task.Outlook

	// A PastQuery asks for a Past.
	PastQuery = task.PastQuery

	// A Past says what has happened, by the minute or the hour.
	Past = task.Past

	// A Mark is something that has happened to a node, the ledger or a topic.
	Mark = task.Mark

	// A MarkKind says what.
	MarkKind = task.MarkKind

	// A PastMinute is a point of a Past.
	PastMinute = task.PastMinute

	// A Forecast says how many deliveries will start when.
	Forecast = task.Forecast

	// A Foresight says whether what falls due will be delivered in time.
	Foresight = task.Foresight

	// A ShownRate is the most that receivers have delivered in a minute.
	ShownRate = task.ShownRate

	// A Peak is a time in which more falls due than is delivered.
	Peak = task.Peak

	// A WaveQuery asks for the tasks that are due in a span, or were.
	WaveQuery = task.WaveQuery

	// A Wave is all that was due in a span, and its fate.
	Wave = task.Wave

	// WaveCounts count the tasks of a wave by their fate.
	WaveCounts = task.WaveCounts

	// A WaveTopic is the part of a wave that is of one topic.
	WaveTopic = task.WaveTopic

	// A WaveOutlook says how far a wave is.
	WaveOutlook = task.WaveOutlook
)

type (
	// Config configures a scheduler.
	Config = task.Config

	// An OnOutage says what becomes of deliveries while this node cannot tell whether another one
	// has taken over what it holds: it has been cut off from the ledger, or was suspended, for so
	// long that others may have found it dead.
	OnOutage = task.OnOutage

	// An Observer receives what happens to tasks, right after it happened. The scheduler calls it
	// without any lock held.
	Observer = task.Observer

	// An Event is one thing that happened to a task.
	Event = task.Event

	// An EventKind names what happened.
	EventKind = task.EventKind

	// An EventFilter says what a subscription hears of.
	EventFilter = task.EventFilter

	// A Node is one of the processes that share a ledger: what the ledger knows of it, and what it
	// reported with its last heartbeat.
	Node = task.Node

	// A NodeState sums up what is known of a node.
	NodeState = task.NodeState

	// NodeStatus is what a node tells the others about its memory.
	NodeStatus = task.NodeStatus

	// Readiness reports whether the scheduler can take and deliver tasks.
	Readiness = task.Readiness

	// A Waiting says what is stuck or not served yet, since when, and what it waits for.
	Waiting = task.Waiting

	// Stats are a scheduler's figures at one moment.
	Stats = task.Stats

	// A Reach says which nodes the figures of an answer are of.
	Reach = task.Reach

	// Figures are those of Stats that add up over nodes.
	Figures = task.Figures

	// SweepStats are the figures of the sweep and of what it finds.
	SweepStats = task.SweepStats

	// ShardStats are the figures of the shards that this node holds.
	ShardStats = task.ShardStats

	// LoadStats are the figures of the work at hand.
	LoadStats = task.LoadStats

	// PeerStats count what passes between nodes that share a ledger: each such delivery counts at
	// both.
	PeerStats = task.PeerStats

	// RelayStats count calls to other nodes, those of other nodes, and what became of them.
	RelayStats = task.RelayStats

	// A ClockReading is how far the clock of a node is ahead of that of the ledger's server.
	ClockReading = task.ClockReading
	// A ClockOffset is how far the clock of another node is from that of this one.
	ClockOffset = task.ClockOffset
	// SpoolStats are the figures of Config.Spool.
	SpoolStats = task.SpoolStats
)

type (
	// A Grant says which topics a caller may use, and how much of a node they may take up.
	Grant = task.Grant

	// A Version names a task as a caller has seen it.
	Version = task.Version

	// A FieldError says what is wrong with one field of a request.
	FieldError = task.FieldError

	// InvalidError lists everything that is wrong with a request.
	InvalidError = task.InvalidError

	// A KindError is an error that is a kind of a more general one and has a text of its own.
	KindError = task.KindError

	// A NodeError says which node is the reason why a call about the tasks of all nodes has failed.
	NodeError = task.NodeError
)

// The states of a task, why it is dead, and what has become of it.
const (
	Pending          = task.Pending
	Ready            = task.Ready
	Delivering       = task.Delivering
	Dead             = task.Dead
	Retrying         = task.Retrying
	Held             = task.Held
	Exhausted        = task.Exhausted
	Buried           = task.Buried
	TopicDeleted     = task.TopicDeleted
	Finished         = task.Finished
	OutcomeDelivered = task.OutcomeDelivered
	OutcomeCancelled = task.OutcomeCancelled
	OutcomeSkipped   = task.OutcomeSkipped
)

// How attempts end that are kept.
const (
	AttemptFailed       = task.AttemptFailed
	AttemptLeaseExpired = task.AttemptLeaseExpired
	AttemptBuried       = task.AttemptBuried
	AttemptProcessEnded = task.AttemptProcessEnded
	AttemptDelivered    = task.AttemptDelivered
)

// The ways to settle a delivery.
const (
	Ack     = task.Ack
	Release = task.Release
	Extend  = task.Extend
	Bury    = task.Bury
	Return  = task.Return
)

// The ways of delivery that need no package of their own, and what may become of misfired tasks.
const (
	Pull            = task.Pull
	Handler         = task.Handler
	MisfireDeliver  = task.MisfireDeliver
	MisfireSkip     = task.MisfireSkip
	MisfireCoalesce = task.MisfireCoalesce
)

// What a node may do while it is cut off, and the states of nodes.
const (
	OutageDeliver = task.OutageDeliver
	OutagePause   = task.OutagePause
	NodeLive      = task.NodeLive
	NodeDraining  = task.NodeDraining
	NodeSilent    = task.NodeSilent
	NodeUnknown   = task.NodeUnknown
	NodeReleased  = task.NodeReleased
)

// What observers and subscriptions hear of.
const (
	EventScheduled = task.EventScheduled
	EventStarted   = task.EventStarted
	EventDelivered = task.EventDelivered
	EventRetried   = task.EventRetried
	EventDied      = task.EventDied
	EventCancelled = task.EventCancelled
	EventSkipped   = task.EventSkipped
	EventRescued   = task.EventRescued
	EventDue       = task.EventDue
)

// The orders of topics. Each is explained in package task.
const (
	SortName    = task.SortName
	SortWorst   = task.SortWorst
	SortLate    = task.SortLate
	SortFailed  = task.SortFailed
	SortDead    = task.SortDead
	SortReady   = task.SortReady
	SortPending = task.SortPending
	SortPaused  = task.SortPaused
)

// Limits of requests, whatever the configuration. Each is explained in package task.
const (
	MaxIDBytes         = task.MaxIDBytes
	MaxHeaderBytes     = task.MaxHeaderBytes
	MaxHeaders         = task.MaxHeaders
	MaxAhead           = task.MaxAhead
	MaxKeepFinished    = task.MaxKeepFinished
	MaxBatch           = task.MaxBatch
	MaxActs            = task.MaxActs
	MaxPageBytes       = task.MaxPageBytes
	MaxReserve         = task.MaxReserve
	MaxWait            = task.MaxWait
	MinLease           = task.MinLease
	MaxLease           = task.MaxLease
	MaxRetryAttempts   = task.MaxRetryAttempts
	MaxTopics          = task.MaxTopics
	ReservedTopics     = task.ReservedTopics
	MaxTopicPage       = task.MaxTopicPage
	MaxSearch          = task.MaxSearch
	MaxSortedTopics    = task.MaxSortedTopics
	LateAfter          = task.LateAfter
	MaxStatsTopics     = task.MaxStatsTopics
	MaxTopicError      = task.MaxTopicError
	MaxAttempts        = task.MaxAttempts
	MaxAttemptBy       = task.MaxAttemptBy
	MaxAttemptError    = task.MaxAttemptError
	MaxErrorPart       = task.MaxErrorPart
	MaxBriefError      = task.MaxBriefError
	RecentTime         = task.RecentTime
	MaxGrantTopics     = task.MaxGrantTopics
	MaxGroupDelivering = task.MaxGroupDelivering
	MaxEventTopics     = task.MaxEventTopics
	MaxEventBuffer     = task.MaxEventBuffer
	MinForecast        = task.MinForecast
	HistoryMinutes     = task.HistoryMinutes
	MaxForecastSteps   = task.MaxForecastSteps
)

// The errors of the scheduler's methods, to be tested for with errors.Is. An error
// that says why something did not happen leaves everything as it was, except ErrUnknown.
// Each is explained in package task.
var (
	ErrInvalid     = task.ErrInvalid
	ErrTooLarge    = task.ErrTooLarge
	ErrNotFound    = task.ErrNotFound
	ErrExists      = task.ErrExists
	ErrTaken       = task.ErrTaken
	ErrDelivering  = task.ErrDelivering
	ErrDead        = task.ErrDead
	ErrNotDead     = task.ErrNotDead
	ErrOverloaded  = task.ErrOverloaded
	ErrQuota       = task.ErrQuota
	ErrUnavailable = task.ErrUnavailable
	ErrNodeAway    = task.ErrNodeAway
	ErrContended   = task.ErrContended
	ErrUnknown     = task.ErrUnknown
	ErrUnrecorded  = task.ErrUnrecorded
	ErrReplaying   = task.ErrReplaying
	ErrStale       = task.ErrStale
	ErrReceipt     = task.ErrReceipt
	ErrNoTopic     = task.ErrNoTopic
	ErrInUse       = task.ErrInUse
	ErrRevision    = task.ErrRevision
	ErrHandled     = task.ErrHandled
	ErrNotGranted  = task.ErrNotGranted
	ErrDraining    = task.ErrDraining
	ErrNoNode      = task.ErrNoNode
	ErrNoSuccessor = task.ErrNoSuccessor
	ErrNoAct       = task.ErrNoAct
	ErrClosed      = task.ErrClosed
	ErrLater       = task.ErrLater
)

// Lists of what there is.
var (
	EventKinds     = task.EventKinds
	NodeStates     = task.NodeStates
	TroubleKinds   = task.TroubleKinds
	LatenessBounds = task.LatenessBounds
	LatencyBounds  = task.LatencyBounds
)

// AnyVersion is the version of every task that exists.
var AnyVersion = task.AnyVersion

// NewID makes an id as Schedule does: a UUIDv7.
func NewID() string { return task.NewID() }

// ParseState is the reverse of State.String. It reports false for any other text.
func ParseState(name string) (State, bool) { return task.ParseState(name) }

// Kill marks an error that no further attempt can mend: the task is dead.
func Kill(err error) error { return task.Kill(err) }

// RetryAfter marks an error after which the next attempt starts in pause, instead of after the
// topic's backoff.
func RetryAfter(err error, pause time.Duration) error { return task.RetryAfter(err, pause) }

// NewTallier counts outcomes that are numbered from 0 and have these names.
func NewTallier[O ~int](names []string) *Tallier[O] { return task.NewTallier[O](names) }

// CheckPattern returns what is wrong with a pattern of topics, or "".
func CheckPattern(pattern string) string { return task.CheckPattern(pattern) }

// WithGrant makes the context of a call for which the grant holds, see task.WithGrant.
func WithGrant(ctx context.Context, g *Grant) context.Context { return task.WithGrant(ctx, g) }

// WithVersion makes the context of a call that does nothing, and returns ErrRevision, unless the
// task has that version, see task.WithVersion.
func WithVersion(ctx context.Context, v Version) context.Context { return task.WithVersion(ctx, v) }

// GrantOf returns the grant of a call, nil if there is none.
func GrantOf(ctx context.Context) *Grant { return task.GrantOf(ctx) }

// A Subscription hears of what happens to tasks, in the order in which it happens.
type Subscription = events.Subscription

// WithReceiver makes the context of a Reserve by a receiver of that name, see task.WithReceiver.
func WithReceiver(ctx context.Context, name string) context.Context {
	return task.WithReceiver(ctx, name)
}
