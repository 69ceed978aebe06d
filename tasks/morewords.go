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
