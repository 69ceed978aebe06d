package cluster

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

// A node of an earlier version ignores what it does not know. It would create a task without its
// target, and deliver it to the receiver of the topic, or deliver a held task. So such requests go
// by methods of other names, which such a node refuses: see Method.
var (
	scheduleMethods = requestMethods[requestQuery, WireTask]{ScheduleMethod, ScheduleToMethod, ScheduleAsMethod}
	replaceMethods  = requestMethods[requestQuery, WireTask]{ReplaceMethod, ReplaceToMethod, ReplaceAsMethod}
	batchMethods    = requestMethods[batchQuery, batchReply]{BatchMethod, BatchToMethod, BatchAsMethod}

	ScheduleToMethod = Method[requestQuery, WireTask]{Name: "schedule_to", writes: true}
	ReplaceToMethod  = Method[requestQuery, WireTask]{Name: "replace_to", writes: true}
	BatchToMethod    = Method[batchQuery, batchReply]{Name: "batch_to", writes: true}
	MoveToMethod     = Method[MoveQuery, WireTask]{Name: "move_to", writes: true}

	ScheduleAsMethod = Method[requestQuery, WireTask]{Name: "schedule_as", writes: true}
	ReplaceAsMethod  = Method[requestQuery, WireTask]{Name: "replace_as", writes: true}
	BatchAsMethod    = Method[batchQuery, batchReply]{Name: "batch_as", writes: true}

	// ReplaceBatchMethod is BatchMethod with replacements, of whatever requests.
	ReplaceBatchMethod = Method[batchQuery, batchReply]{Name: "replace_batch", writes: true}
)

// requestMethods are the methods that do one thing with requests: with those that all versions
// understand, with those that have a target, and with those that are held or supersede.
type requestMethods[Q, A any] struct{ plain, to, as Method[Q, A] }

// of returns the method for a request.
func (m *requestMethods[Q, A]) of(r *task.Request) Method[Q, A] {
	switch {
	case r.Held || r.Supersede:
		return m.as
	case r.Target != nil:
		return m.to
	}
	return m.plain
}

// MoveMethodOf returns the method that makes a move.
func MoveMethodOf(m *task.Move) Method[MoveQuery, WireTask] {
	if m.Target != nil {
		return MoveToMethod
	}
	return MoveMethod
}

// A wireTarget is a task.Target.
type wireTarget struct {
	Settings      []byte    `json:"Settings,omitempty"`
	Retry         wireRetry `json:"Retry"`
	Kind          task.Kind `json:"Kind,omitempty"`
	Receiver      string    `json:"Receiver,omitempty"`
	Undeliverable string    `json:"Undeliverable,omitempty"`
}

// A wireRetry is a task.Retry.
type wireRetry struct {
	MaxAttempts int           `json:"MaxAttempts,omitempty"`
	MinBackoff  time.Duration `json:"MinBackoff,omitempty"`
	MaxBackoff  time.Duration `json:"MaxBackoff,omitempty"`
	MaxAge      time.Duration `json:"MaxAge,omitempty"`
}

func encodeTarget(t *task.Target) *wireTarget {
	if t == nil {
		return nil
	}
	return &wireTarget{t.Settings, wireRetry(t.Retry), t.Kind, t.Receiver, t.Undeliverable}
}

func (w *wireTarget) decode() *task.Target {
	if w == nil {
		return nil
	}
	return &task.Target{Settings: w.Settings, Retry: task.Retry(w.Retry), Kind: w.Kind, Receiver: w.Receiver, Undeliverable: w.Undeliverable}
}

// size returns about how many bytes a target has in a message.
func (w *wireTarget) size() int {
	if w == nil {
		return 0
	}
	return len(w.Settings)
}

func encodeRequest(r *task.Request) wireRequest {
	return wireRequest{r.ID, r.Topic, r.Due, r.Delay, r.Payload, r.Headers, r.Group, r.MaxLateness, encodeTarget(r.Target), r.Held, r.Supersede}
}

func (w *wireRequest) decode() task.Request {
	return task.Request{
		ID: w.ID, Topic: w.Topic, Due: w.Due, Delay: w.Delay, Payload: w.Payload, Headers: w.Headers,
		Group: w.Group, MaxLateness: w.MaxLateness, Target: w.Target.decode(),
		Held: w.Held, Supersede: w.Supersede,
	}
}

func encodeMove(m *task.Move) wireMove {
	return wireMove{m.Due, m.Delay, m.Payload, encodeTarget(m.Target)}
}

func (w *wireMove) decode() task.Move {
	return task.Move{Due: w.Due, Delay: w.Delay, Payload: w.Payload, Target: w.Target.decode()}
}
