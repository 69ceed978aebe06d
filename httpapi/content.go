package httpapi

import (
	"encoding/base64"
	"strconv"
	"time"

	"github.com/lapsehq/lapse/internal/timespan"
	"github.com/lapsehq/lapse/tasks"
)

// This file has the fields of a task: in requests, in answers, and in the lines of exports. The
// types of requests only describe them for the OpenAPI document: requests are decoded straight into
// the scheduler's types. A test keeps the two in step.

// NewTask describes a task in a request.
type NewTask struct {
	ID          string            `json:"id,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" maxLength:"128" doc:"Chosen by the caller, so that a request may be repeated. A UUIDv7 is made when it is left out."`
	Topic       string            `json:"topic" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" minLength:"1" maxLength:"128" doc:"The kind of task."`
	Delay       span              `json:"delay,omitempty" doc:"Time until the task is due, at most 10 years. Not together with due_at; neither means now."`
	DueAt       string            `json:"due_at,omitempty" format:"date-time" doc:"The deadline, at most 10 years ahead. One in the past is due at once."`
	Payload     any               `json:"payload,omitempty" doc:"Any JSON. The receiver gets the same bytes."`
	Headers     map[string]string `json:"headers,omitempty" maxProperties:"64" doc:"Handed to the receiver, at most 8 KiB together."`
	MaxLateness span              `json:"max_lateness,omitempty" doc:"Not delivered if later than that."`
	Group       string            `json:"group,omitempty" pattern:"^[A-Za-z0-9][A-Za-z0-9._:@-]*$" maxLength:"128" doc:"Names the tasks that belong together."`
	Delivery    *TaskDelivery     `json:"delivery,omitempty"`
}

// TaskBody describes a task that is put under the id in the path.
type TaskBody NewTask

// task reads a task in a request. The scheduler checks ranges and alphabets. Only what a Request
// cannot express is refused here.
func (s *scanner) task(r *tasks.Request) {
	var when deadline
	for key := range s.object("") {
		switch string(key) {
		case "id":
			r.ID = s.filled("id", "must not be empty; leave it out to get one from the server")
		case "delay":
			r.Delay = s.duration("delay")
			when.delay = true
		case "due_at":
			r.Due = s.instant("due_at")
			when.due = true
		default:
			s.content(key, r)
		}
	}
	when.check(s)
}

// content reads a field that requests and lines of exports have.
func (s *scanner) content(key []byte, r *tasks.Request) {
	switch string(key) {
	case "topic":
		r.Topic = s.topic()
	case "payload":
		r.Payload = s.raw()
	case "headers":
		r.Headers = s.headers()
	case "max_lateness":
		r.MaxLateness = s.span("max_lateness", time.Millisecond, tasks.MaxAhead)
	case "group":
		r.Group = s.filled("group", "must not be empty; leave it out for a task without a group")
	case "delivery":
		r.Target = s.target()
	default:
		s.unknown(key)
	}
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

// appendTask appends the line of a task. An export has millions of them.
func appendTask(text []byte, x *tasks.Exported) []byte {
	kind := lineTask
	switch x.State {
	case tasks.Dead:
		kind = lineDead
	case tasks.Finished:
		kind = lineFinished
	}
	text = append(append(text, `{"type":"`...), kind...)
	text = appendText(append(text, `",`...), "id", x.ID)
	text = appendText(append(text, ','), "topic", x.Topic)
	text = appendTime(append(text, ','), "due_at", x.Due)
	switch x.State {
	case tasks.Dead:
		text = appendTime(append(text, ','), "died_at", x.Died)
		text = appendOptional(text, "reason", string(x.Reason))
	case tasks.Finished:
		text = appendTime(append(text, ','), "finished_at", x.Finished)
		text = appendOptional(text, "outcome", string(x.Outcome))
	default:
		text = appendTime(append(text, ','), "next_at", x.Next)
	}
	if x.State == tasks.Held {
		text = appendTime(append(text, ','), "held_at", x.HeldAt)
	}
	text = appendCreated(text, x.Created)
	text = strconv.AppendInt(append(text, `,"attempt":`...), int64(x.Attempt), 10)
	text = strconv.AppendInt(append(text, `,"revision":`...), x.Revision, 10)
	text = appendHex(text, "fingerprint", x.Fingerprint)
	if x.Stamp != 0 {
		text = appendHex(text, "stamp", x.Stamp)
	}
	text = appendOptional(text, "group", x.Group)
	if x.MaxLateness > 0 {
		text = appendText(append(text, ','), "max_lateness", timespan.Format(x.MaxLateness))
	}
	text = appendOptional(text, "last_error", x.LastError)
	if len(x.Headers) > 0 {
		headers, _ := plainJSON(x.Headers) // of texts
		text = append(append(text, `,"headers":`...), headers...)
	}
	if len(x.Attempts) > 0 {
		attempts := make([]Attempt, len(x.Attempts))
		for i := range attempts {
			attempts[i] = wireAttempt(&x.Attempts[i])
		}
		all, _ := plainJSON(attempts) // of texts and numbers
		text = append(append(text, `,"attempts":`...), all...)
	}
	if t := x.Target; t != nil {
		own, _ := plainJSON(TaskDelivery{string(t.Kind), t.Settings, t.Retry}) // of JSON
		text = append(append(text, `,"delivery":`...), own...)
		text = appendOptional(text, "delivers_to", t.Receiver)
	}
	switch {
	case len(x.Payload) == 0:
	case fitsLine(x.Payload):
		text = append(append(text, `,"payload":`...), x.Payload...)
	default:
		text = append(text, `,"payload_base64":"`...)
		text = append(base64.StdEncoding.AppendEncode(text, x.Payload), '"')
	}
	return append(text, "}\n"...)
}
