package tasks

import (
	"github.com/lapsehq/lapse/tasks/internal/record"
)

// reasons are what the states of dead records say. See package record.
var reasons = [record.States]Reason{record.Exhausted: Exhausted, record.Buried: Buried, record.TopicDeleted: TopicDeleted}
