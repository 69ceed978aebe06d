package cluster

import (
	"time"

	"github.com/lapsehq/lapse/tasks/task"
)

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
