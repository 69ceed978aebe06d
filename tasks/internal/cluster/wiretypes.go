package cluster

import (
	"context"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// The types of package task on their way to another node. They have the same fields, and names of
// their own for the wire, so that a field can be renamed for callers without a change of what nodes
// of two versions send one another.
//
// A conversion such as WireTask(t) compiles only while both types have the same fields. A field
// that is added to package task has to be added here as well. For one that is renamed there, the
// conversion has to be written out.

// A WireTask is a task.Task.
type WireTask struct {
	ID          string            `json:"ID"`
	Topic       string            `json:"Topic"`
	State       task.State        `json:"State"`
	Due         time.Time         `json:"Due"`
	Next        time.Time         `json:"Next"`
	Payload     []byte            `json:"Payload"`
	Headers     map[string]string `json:"Headers"`
	Group       string            `json:"Group"`
	MaxLateness time.Duration     `json:"MaxLateness"`
	Attempt     int               `json:"Attempt"`
	Revision    int64             `json:"Revision"`
	Created     time.Time         `json:"Created"`
	Died        time.Time         `json:"Died"`
	Reason      task.Reason       `json:"Reason"`
	LastError   string            `json:"LastError"`
	Node        string            `json:"Node"`
	Spooled     bool              `json:"Spooled"`
	Repeated    bool              `json:"Repeated"`
}

// A wireRequest is a task.Request.
type wireRequest struct {
	ID          string            `json:"ID"`
	Topic       string            `json:"Topic"`
	Due         time.Time         `json:"Due"`
	Delay       time.Duration     `json:"Delay"`
	Payload     []byte            `json:"Payload"`
	Headers     map[string]string `json:"Headers"`
	Group       string            `json:"Group"`
	MaxLateness time.Duration     `json:"MaxLateness"`
}

// A wireMove is a task.Move.
type wireMove struct {
	Due     time.Time      `json:"Due"`
	Delay   *time.Duration `json:"Delay"`
	Payload []byte         `json:"Payload"`
}

// A wireVerdict is a task.Verdict.
type wireVerdict struct {
	Verb   task.Verb      `json:"Verb"`
	Delay  *time.Duration `json:"Delay"`
	Lease  time.Duration  `json:"Lease"`
	Reason string         `json:"Reason"`
}

// A wireField is a task.FieldError.
type wireField struct {
	Field   string `json:"Field"`
	Problem string `json:"Problem"`
}

// A wireListed is an engine.Listed.
type wireListed struct {
	Task WireTask `json:"Task"`
	At   int64    `json:"At"`
}

// encodeTask makes the reply of a call whose answer is a task.
func encodeTask(t task.Task, err error) (WireTask, error) { return WireTask(t), err }

// callTask is Call of a method whose answer is a task.
func callTask[Q any](ctx context.Context, s *Cluster, node string, m Method[Q, WireTask], q Q) (task.Task, error) {
	t, err := Call(ctx, s, node, m, q)
	return task.Task(t), err
}

// RoutedTask is Routed of a method whose answer is a task.
func RoutedTask[Q any](ctx context.Context, s *Cluster, id string, m Method[Q, WireTask], q func(recovery.ShardID) Q, here func(context.Context) (task.Task, error)) (task.Task, error) {
	t, _, err := Routed(ctx, s, id, m, q, func(ctx context.Context) (WireTask, error) { return encodeTask(here(ctx)) })
	return task.Task(t), err
}
