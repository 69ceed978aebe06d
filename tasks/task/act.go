package task

import "time"

// An Action is what Act does with each of many tasks.
type Action string

// The actions. All but RequeueAction and DeleteAction are for tasks that are not dead.
const (
	CancelAction  Action = "cancel"  // as Cancel does; the dead stay
	MoveAction    Action = "move"    // to another deadline, as Reschedule does
	FireAction    Action = "fire"    // as Fire does
	HoldAction    Action = "hold"    // as Hold does
	ResumeAction  Action = "resume"  // as Resume does; a query selects held tasks only
	RequeueAction Action = "requeue" // dead tasks, as Requeue does
	DeleteAction  Action = "delete"  // dead tasks, as DeleteDead does
)

// Dead reports whether the action is for dead tasks.
func (a Action) Dead() bool { return a == RequeueAction || a == DeleteAction }

// MaxActs bounds how many tasks one Act changes.
const MaxActs = 1000

// An Act does one thing with many tasks: with those that are named, or with those that a query
// selects.
type Act struct {
	Action Action
	// IDs name the tasks, 1 to MaxActs of them. nil: Query selects them.
	IDs []string
	// Query selects the tasks. It must select by at least one of its fields, with RequeueAction and
	// DeleteAction by Topic; then State is Dead if it is not given, and with the others Dead is
	// refused. Limit is how many tasks the call changes at most, 0 meaning MaxActs. Cursor is
	// Acted.Cursor of the call before. Beside IDs only Cursor may be given.
	Query Query
	// Due is the new deadline of the tasks, for MoveAction, and may be given for RequeueAction,
	// whose tasks are due at once without it.
	Due time.Time
	// Shift is added to the deadline and to the next attempt of each task, for MoveAction in place
	// of Due. It may be negative. A held task stays held. The first call, which has no Cursor,
	// moves nothing and returns the cursor under which no task is moved twice, however often a call
	// is repeated.
	Shift time.Duration
	// Dry counts the tasks, and changes nothing.
	Dry bool
}

// Acted says what an Act has done.
type Acted struct {
	Matched int       // tasks that were selected when their turn came: Done, and those in Failed
	Done    int       // 0 with Act.Dry
	Failed  []Refusal // why the others were not changed
	Cursor  string    // for the next call; empty at the end
}

// A Refusal says why a task was not changed.
type Refusal struct {
	ID  string
	Err error // ErrDelivering, ErrRevision: another Act has changed it since this one began, ...
}
