package tasks

import "github.com/lapsehq/lapse/tasks/task"

type (
	// A Target is what a task says of its own delivery, in a topic with TaskDelivery.
	Target = task.Target

	// A Targeter is a Deliverer that delivers tasks to targets of their own.
	Targeter = task.Targeter
)

// MaxTarget bounds Target.Settings, in bytes.
const MaxTarget = task.MaxTarget

type (
	// OnDead says what becomes of a task that dies, besides the dead task.
	OnDead = task.OnDead
	// Links are addresses of other systems that pages show with the tasks of a topic.
	Links = task.Links

	// DeathCounts are the figures of deaths, since the start.
	DeathCounts = task.DeathCounts
)

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

// ReadyCounts are parts of the ready tasks, now.
type ReadyCounts = task.ReadyCounts
