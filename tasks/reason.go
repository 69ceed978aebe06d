package tasks

import (
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// A Reason says why a task is dead.
type Reason string

// The reasons of a death. It is empty if the ledger does not know it (any more).
const (
	Exhausted    Reason = "exhausted" // its last attempt failed, or ran out of time
	Buried       Reason = "buried"    // its receiver said so: Bury, Kill
	TopicDeleted Reason = "deleted"   // its topic was deleted by force
)

// reasons are what the states of dead records say. See package record.
var reasons = [record.States]Reason{record.Exhausted: Exhausted, record.Buried: Buried, record.TopicDeleted: TopicDeleted}
