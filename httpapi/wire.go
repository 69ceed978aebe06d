package httpapi

import (
	"encoding/base64"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/goccy/go-json"

	"github.com/lapsehq/lapse/internal/timespan"
	"github.com/lapsehq/lapse/tasks"
)

// This file has the form of tasks in answers.

// span is a duration in a request.
type span struct{}

// Schema describes a duration to huma.
func (span) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		{Type: huma.TypeString, Description: `A Go duration, also with d for days, such as "30m" or "7d".`, Examples: []any{"30m"}},
		{Type: huma.TypeNumber, Description: "Milliseconds."},
	}}
}

// duration is a span of time in an answer.
type duration time.Duration

// Schema describes a duration to huma.
func (duration) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Examples: []any{"30m"}}
}

// MarshalJSON writes the form that requests use.
func (d duration) MarshalJSON() ([]byte, error) {
	return []byte(`"` + timespan.Format(time.Duration(d)) + `"`), nil
}

// Task is a task as the server shows it. Its times are in UTC, to the millisecond, by the server's
// clock.
type Task struct {
	ID          string            `json:"id"`
	Topic       string            `json:"topic"`
	State       string            `json:"state" enum:"pending,held,ready,delivering,dead,finished" doc:"finished: it is done, and kept because of its topic's keep_finished; without that a finished task is not found."`
	DueAt       string            `json:"due_at" format:"date-time" doc:"The deadline."`
	NextAt      string            `json:"next_at" format:"date-time" doc:"When the next attempt starts: at the deadline; in a topic with a spread, at the task's place in it; after a failed attempt, later."`
	Payload     payload           `json:"payload,omitempty" doc:"As it was given. Left out if the task has none."`
	PayloadB64  string            `json:"payload_base64,omitempty" contentEncoding:"base64" doc:"In place of payload, where an embedding program gave a payload that is not JSON."`
	Headers     map[string]string `json:"headers,omitempty"`
	Group       string            `json:"group,omitempty"`
	MaxLateness *duration         `json:"max_lateness,omitempty"`
	Attempt     int               `json:"attempt" doc:"Deliveries so far, a running one included."`
	Revision    int64             `json:"revision" doc:"1 at first, higher with every change."`
	CreatedAt   string            `json:"created_at" format:"date-time"`
	DiedAt      string            `json:"died_at,omitempty" format:"date-time" doc:"Of a dead task."`
	Reason      string            `json:"reason,omitempty" enum:"exhausted,buried,deleted" doc:"Why a dead task is dead: its attempts were exhausted, it was buried by its receiver, or its topic was deleted by force. Left out if the reason is no longer known."`
	FinishedAt  string            `json:"finished_at,omitempty" format:"date-time" doc:"Of a finished task."`
	Outcome     string            `json:"outcome,omitempty" enum:"delivered,cancelled,skipped" doc:"What has become of a finished task: it was acknowledged; a caller cancelled it; or it was given up undelivered, as too late or misfired. Left out if that is no longer known."`
	LastError   string            `json:"last_error,omitempty" doc:"Of the last failed attempt, or why it was buried."`
	Node        string            `json:"node" doc:"The node that owns the task."`
	Attempts    []Attempt         `json:"attempts,omitempty" maxItems:"10" doc:"The attempts that have failed last, the oldest first, and the delivery of a finished task: at most 10, and fewer if their texts are long. In the answer about one task (GET) and in lists of dead and of finished tasks; left out if there is none."`
	HeldAt      string            `json:"held_at,omitempty" format:"date-time" doc:"Of a held task: since when its countdown is held. due_at and next_at are what they were then."`
	Remaining   *duration         `json:"remaining,omitempty" doc:"Of a held task: the time until its next attempt that it had at held_at, and has again when it is resumed. 0s: it was due."`
	Durability  string            `json:"durability,omitempty" enum:"spooled" doc:"spooled: only the disk of this node has the task, Redis does not have it yet. Left out otherwise."`
	Receiving
}

// Attempt is an attempt that has ended.
type Attempt struct {
	Number   int       `json:"attempt" doc:"Its number. A task that was requeued begins with 1 again."`
	At       string    `json:"at" format:"date-time" doc:"When it ended."`
	Duration *duration `json:"duration,omitempty" doc:"How long it took. Left out if that is not known: the server was restarted meanwhile, or the task has changed its node."`
	By       string    `json:"by,omitempty" doc:"Its receiver: scheme and host of a webhook (its path may be a secret), the name of a stream or channel, the name of the token that reserved the task, otherwise the node that made the attempt or whose receiver had the task. At most 128 bytes. Left out if it is not known."`
	Outcome  string    `json:"outcome" enum:"failed,lease_expired,buried,process_ended,delivered" doc:"failed: it failed, or was released; lease_expired: it was not settled within its lease; buried: its receiver gave the task up; process_ended: the process ended during it, which is known in topics with count_crashes; delivered: the last one of a finished task."`
	Error    string    `json:"error,omitempty" doc:"Why, in at most 256 bytes."`
}

// spooled is the durability of a task in the spool.
const spooled = "spooled"

// payload is any JSON in an answer.
type payload json.RawMessage

// Schema describes any JSON to huma.
func (payload) Schema(huma.Registry) *huma.Schema { return &huma.Schema{} }

// MarshalJSON writes the payload as it was given.
func (p payload) MarshalJSON() ([]byte, error) { return p, nil }

// TaskPage is a page of a list.
type TaskPage struct {
	Tasks      []Task `json:"tasks" nullable:"false"`
	NextCursor string `json:"next_cursor,omitempty" doc:"For the page after this one. Left out at the end."`
}

// instantLayout is RFC 3339 with milliseconds.
const instantLayout = "2006-01-02T15:04:05.000Z07:00"

func formatInstant(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(instantLayout)
}

// wireTask returns a task for a caller that may see all of it, or not.
func wireTask(t *tasks.Task, all bool) Task {
	w := Task{
		ID: t.ID, Topic: t.Topic, State: t.State.String(),
		DueAt: formatInstant(t.Due), NextAt: formatInstant(t.Next),
		Headers: t.Headers, Group: t.Group,
		Attempt: t.Attempt, Revision: t.Revision,
		CreatedAt: formatInstant(t.Created), DiedAt: formatInstant(t.Died),
		FinishedAt: formatInstant(t.Finished), Outcome: string(t.Outcome),
		Reason: string(t.Reason), LastError: t.LastError, Node: t.Node,
	}
	if t.Spooled {
		w.Durability = spooled
	}
	for i := range t.Attempts {
		w.Attempts = append(w.Attempts, wireAttempt(&t.Attempts[i]))
	}
	w.wireTarget(t.Target, all)
	if t.State == tasks.Held {
		w.HeldAt, w.Remaining = formatInstant(t.HeldAt), (*duration)(&t.Remaining)
	}
	if t.MaxLateness > 0 {
		w.MaxLateness = (*duration)(&t.MaxLateness)
	}
	if len(t.Payload) > 0 {
		if isJSON(t.Payload) {
			w.Payload = t.Payload
		} else {
			w.PayloadB64 = base64.StdEncoding.EncodeToString(t.Payload)
		}
	}
	return w
}

func wireAttempt(a *tasks.Attempt) Attempt {
	w := Attempt{Number: a.Number, At: formatInstant(a.Ended), By: a.By, Outcome: string(a.Outcome), Error: a.Error}
	if a.Took > 0 {
		w.Duration = (*duration)(&a.Took)
	}
	return w
}

// isJSON reports whether data is a single JSON value that an answer may hold.
func isJSON(data []byte) bool {
	s := scan(data)
	s.skip()
	s.end()
	return s.err == nil
}

func wirePage(p tasks.Page, all bool) TaskPage {
	w := TaskPage{Tasks: make([]Task, len(p.Tasks)), NextCursor: p.Cursor}
	for i := range p.Tasks {
		w.Tasks[i] = wireTask(&p.Tasks[i], all)
	}
	return w
}

// typeOf returns the type that describes a request's body in the OpenAPI document.
func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
