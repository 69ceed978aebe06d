package tasks

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// The words of the API stand in package task, where ways of delivery and the inside of the
// scheduler find them too. Here they have the names that applications use.

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

// WithReceiver makes the context of a Reserve by a receiver of that name, see task.WithReceiver.
func WithReceiver(ctx context.Context, name string) context.Context {
	return task.WithReceiver(ctx, name)
}

// MaxTarget bounds Target.Settings, in bytes.
const MaxTarget = task.MaxTarget

// A chain of follow-ups of dead tasks, and the headers that tell of the death.
const (
	MaxDeaths  = task.MaxDeaths
	DeadHeader = task.DeadHeader
)

// MaxPerGroup bounds TopicSettings.ConcurrencyPerGroup.
const MaxPerGroup = task.MaxPerGroup

// Errors of a Deliverer that has no receiver at the moment, or none that wants the task, see
// task.ErrNoReceiver and task.ErrUnwanted.
var (
	ErrNoReceiver = task.ErrNoReceiver
	ErrUnwanted   = task.ErrUnwanted
)
