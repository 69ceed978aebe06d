package tasks

import "github.com/lapsehq/lapse/tasks/task"

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
