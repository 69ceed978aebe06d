package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/goccy/go-json"
)

// State is the state of a task.
type State string

// The states of a task. Finished tasks are found only for as long as their topic keeps them, see
// Settings.KeepFinished.
const (
	Pending    State = "pending"    // waits for its time
	Ready      State = "ready"      // due, and not handed out yet
	Delivering State = "delivering" // handed to its receiver
	Dead       State = "dead"       // its attempts are exhausted, or it was buried
	Finished   State = "finished"   // delivered, cancelled or skipped; see Task.Outcome

	// Retrying is a part of Pending: tasks of which an attempt was made. It selects tasks in a
	// Query; the State of such a task is Pending.
	Retrying State = "retrying"
	// Held is a part of Pending: tasks whose countdown is held. It selects tasks, and is the state
	// of such a task.
	Held State = "held"
)

// Reason is why a task is dead. It is empty if the reason is no longer known.
type Reason string

// The reasons of a death.
const (
	Exhausted    Reason = "exhausted" // its last attempt failed, or ran out of time
	Buried       Reason = "buried"    // its receiver gave it up
	TopicDeleted Reason = "deleted"   // its topic was deleted by force
)

// Outcome is what has become of a finished task. It is empty if that is no longer known.
type Outcome string

// What may have become of it.
const (
	OutcomeDelivered Outcome = "delivered" // acknowledged
	OutcomeCancelled Outcome = "cancelled" // by a caller
	OutcomeSkipped   Outcome = "skipped"   // too late, or misfired
)

// AttemptOutcome is how an attempt has ended.
type AttemptOutcome string

// How attempts end that are kept.
const (
	AttemptFailed       AttemptOutcome = "failed"        // it failed, or was released
	AttemptLeaseExpired AttemptOutcome = "lease_expired" // it was not settled within its lease
	AttemptBuried       AttemptOutcome = "buried"        // its receiver gave the task up
	// The process ended during the attempt, in a topic that counts crashes.
	AttemptProcessEnded AttemptOutcome = "process_ended"
	AttemptDelivered    AttemptOutcome = "delivered" // it was the delivery of a finished task
)

// Answered is what an answer says beside its task.
type Answered struct {
	// Created is set by Schedule and Replace: the task is new. Otherwise Schedule found the task of
	// an earlier request, and Replace has replaced it.
	Created bool
	// ETag names the revision, for IfMatch. Tasks of lists and deliveries have none.
	ETag string
}

// Request describes a task to schedule. Topic is required. Its JSON is that of the HTTP API.
type Request struct {
	// ID has 1 to 128 of A-Za-z0-9._:@-, the first one a letter or digit. Empty: the client makes
	// one, see the package's text about repetition.
	ID    string `json:"id,omitempty"`
	Topic string `json:"topic"` // in the same alphabet
	// Delay is the time until the task is due, at most 10 years; Due the deadline
	// itself, a time in the past meaning now. Not both; neither means now.
	Delay time.Duration `json:"-"`
	Due   time.Time     `json:"-"`
	// Payload is any JSON. The receiver gets the same bytes. Nil: none.
	Payload []byte `json:"-"`
	// Headers are handed to the receiver: up to 64, 8 KiB together.
	Headers map[string]string `json:"headers,omitempty"`
	// MaxLateness: not delivered if later than that. 0: however late.
	MaxLateness time.Duration `json:"-"`
	// Group names the tasks that belong together.
	Group string `json:"-"`
	// Delivery is what is other for this task than for its topic, which must have TaskDelivery.
	// Nil: nothing.
	Target *Target `json:"delivery,omitempty"`
}

// Target is what a task says of its own delivery: fields of the topic's way that are others for
// this task, such as Target{Settings: map[string]any{"url": "https://shop/hooks/42"}}, and its own
// retry.
type Target struct {
	Kind     string // that of the topic; it need not be given
	Settings map[string]any
	Retry    Retry // zero fields are as in the topic
}

// MarshalJSON writes all into one object.
func (t Target) MarshalJSON() ([]byte, error) {
	all := map[string]any{}
	maps.Copy(all, t.Settings)
	if t.Kind != "" {
		all["kind"] = t.Kind
	}
	if t.Retry != (Retry{}) {
		all["retry"] = t.Retry
	}
	return json.Marshal(all)
}

// UnmarshalJSON is the reverse.
func (t *Target) UnmarshalJSON(text []byte) error {
	*t = Target{}
	var known struct {
		Kind  string `json:"kind"`
		Retry Retry  `json:"retry"`
	}
	if err := json.Unmarshal(text, &known); err != nil {
		return err
	}
	if err := json.Unmarshal(text, &t.Settings); err != nil {
		return err
	}
	t.Kind, t.Retry = known.Kind, known.Retry
	delete(t.Settings, "kind")
	delete(t.Settings, "retry")
	return nil
}

// A requestBody is a Request in JSON: the fields that have another form there are told anew.
type requestBody struct {
	fieldsOfRequest
	Delay       Duration        `json:"delay,omitempty"`
	Due         *time.Time      `json:"due_at,omitempty"`
	Payload     json.RawMessage `json:"payload,omitempty"`
	MaxLateness Duration        `json:"max_lateness,omitempty"`
	Group       *string         `json:"group,omitempty"`
}

// fieldsOfRequest is a Request without its methods.
type fieldsOfRequest Request

// encode writes the request for the wire.
func (r *Request) encode() ([]byte, error) {
	b := requestBody{fieldsOfRequest(*r), Duration(r.Delay), instant(r.Due), nil, Duration(r.MaxLateness), nil}
	if group := r.Group; group != "" {
		b.Group = &group
	}
	text, err := json.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return withPayload(text, r.Payload)
}

// MarshalJSON writes the form of the HTTP API.
func (r Request) MarshalJSON() ([]byte, error) { return r.encode() }

// UnmarshalJSON reads the form of the HTTP API. It refuses unknown fields and an empty group. Of a
// field that stands twice it takes the last one, which the server would refuse.
func (r *Request) UnmarshalJSON(text []byte) error {
	if bytes.Equal(text, []byte("null")) {
		return nil
	}
	var b requestBody
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b); err != nil {
		return err
	}
	read := Request(b.fieldsOfRequest)
	read.Delay, read.Payload, read.MaxLateness = time.Duration(b.Delay), b.Payload, time.Duration(b.MaxLateness)
	if b.Due != nil {
		read.Due = *b.Due
	}
	if b.Group != nil {
		if read.Group = *b.Group; read.Group == "" {
			return errors.New("group must not be empty; leave it out for a task without a group")
		}
	}
	*r = read
	return nil
}

// instant is nil for the zero time.
func instant(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

// withPayload adds a payload to an encoded object, byte for byte: an encoder would write an equal
// value in other bytes.
func withPayload(object, payload []byte) ([]byte, error) {
	if payload == nil {
		return object, nil
	}
	if !json.Valid(payload) {
		return nil, fmt.Errorf("%w: payload must be JSON", ErrInvalid)
	}
	text := make([]byte, 0, len(object)+len(payload)+len(`,"payload":`))
	text = append(text, object[:len(object)-1]...)
	if len(object) > len("{}") {
		text = append(text, ',')
	}
	text = append(text, `"payload":`...)
	text = append(text, payload...)
	return append(text, '}'), nil
}

// Move describes a change of a task. Fields that are nil or zero change nothing.
type Move struct {
	Delay   *time.Duration // the new deadline, from now
	Due     time.Time      // or as a time
	Payload []byte         // JSON
	// Delivery replaces what the task says of its own delivery; an empty one takes it away.
	Target *Target
}

// After is a Move by a delay from now.
func After(delay time.Duration) Move { return Move{Delay: &delay} }

// Schedule has a task delivered when it is due. It returns once the server has
// recorded it. The same request with the same ID may be repeated, and returns the task
// that is there; after ErrUnknown the returned task carries the ID to do that with.
//
// Errors: ErrInvalid, ErrExists, ErrTooLarge, ErrOverloaded, ErrUnavailable,
// ErrUnknown, ErrUnreachable.
func (c *Client) Schedule(ctx context.Context, r Request) (*Task, error) {
	q := call{method: http.MethodPost, path: "/v1/tasks", effect: same}
	if r.ID == "" && c.retries >= 0 {
		r.ID = NewID()
	}
	if r.ID == "" {
		q.effect = again
	}
	t, err := c.put(ctx, q, &r)
	if errors.Is(err, ErrUnknown) {
		p := (*Problem)(nil)
		if r.ID == "" && errors.As(err, &p) {
			r.ID = p.ID
		}
		return &Task{ID: r.ID, Topic: r.Topic}, err
	}
	return t, err
}

// Replace creates a task, or replaces a pending or ready one as a whole: deadline and
// content. The ID is required.
//
// Errors: those of Schedule but ErrExists, and ErrDelivering, ErrDead.
func (c *Client) Replace(ctx context.Context, r Request) (*Task, error) {
	path, err := pathOf("/v1/tasks/", "id", r.ID)
	if err != nil {
		return nil, err
	}
	return c.put(ctx, call{method: http.MethodPut, path: path, effect: same}, &r)
}

func (c *Client) put(ctx context.Context, q call, r *Request) (*Task, error) {
	var err error
	if q.body, err = r.encode(); err != nil {
		return nil, err
	}
	if q.method == http.MethodPut {
		q.withIfMatch(ctx)
	}
	return c.oneTask(ctx, q)
}

// oneTask makes a call whose answer is a task.
func (c *Client) oneTask(ctx context.Context, q call) (*Task, error) {
	t := &Task{}
	a, err := c.do(ctx, q, t)
	if err != nil {
		return nil, err
	}
	t.ETag = a.header.Get("ETag")
	t.Created = a.status == http.StatusCreated || a.status == http.StatusAccepted
	return t, nil
}

// Get returns a task. Errors: ErrNotFound, ErrUnavailable, ErrUnreachable.
func (c *Client) Get(ctx context.Context, id string) (*Task, error) {
	return c.onTask(ctx, call{method: http.MethodGet, effect: reads}, id, "")
}

// Reschedule moves the deadline of a pending or ready task, or gives it another payload or target,
// in one step: the old deadline is never delivered after it.
//
// Errors: ErrInvalid, ErrNotFound, ErrDelivering, ErrDead, ErrTooLarge, ErrOverloaded,
// ErrUnavailable, ErrUnknown, ErrUnreachable.
func (c *Client) Reschedule(ctx context.Context, id string, m Move) (*Task, error) {
	text, err := json.Marshal(struct {
		Delay *Duration  `json:"delay,omitempty"`
		Due   *time.Time `json:"due_at,omitempty"`
		To    *Target    `json:"delivery,omitempty"`
	}{(*Duration)(m.Delay), instant(m.Due), m.Target})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	q := call{method: http.MethodPatch, effect: same}
	if q.body, err = withPayload(text, m.Payload); err != nil {
		return nil, err
	}
	return c.onTask(ctx, q, id, "")
}

// Fire makes a pending task due now. Errors: those of Reschedule.
func (c *Client) Fire(ctx context.Context, id string) (*Task, error) {
	return c.onTask(ctx, call{method: http.MethodPost, effect: again}, id, "/fire")
}

// Hold holds the countdown of a task: it is not delivered until Resume, and then has the
// time left that it has now. A task that is held already stays as it is. Errors: those of
// Reschedule.
func (c *Client) Hold(ctx context.Context, id string) (*Task, error) {
	return c.onTask(ctx, call{method: http.MethodPost, effect: same}, id, "/hold")
}

// Resume lets the countdown of a held task go on. A task that is not held stays as it is.
// Errors: those of Reschedule, but for ErrDelivering.
func (c *Client) Resume(ctx context.Context, id string) (*Task, error) {
	return c.onTask(ctx, call{method: http.MethodPost, effect: same}, id, "/resume")
}

// Cancel makes sure that a task is not delivered any more; a dead one is deleted. It
// may be repeated for a while, after which it returns ErrNotFound.
//
// Errors: ErrNotFound, ErrDelivering, ErrOverloaded, ErrUnavailable, ErrUnknown,
// ErrUnreachable.
func (c *Client) Cancel(ctx context.Context, id string) error {
	path, err := pathOf("/v1/tasks/", "id", id)
	if err != nil {
		return err
	}
	q := call{method: http.MethodDelete, path: path, effect: same}
	q.withIfMatch(ctx)
	_, err = c.do(ctx, q, nil)
	return err
}

func (c *Client) onTask(ctx context.Context, q call, id, rest string) (*Task, error) {
	path, err := pathOf("/v1/tasks/", "id", id)
	if err != nil {
		return nil, err
	}
	q.path = path + rest
	if q.method != http.MethodGet {
		q.withIfMatch(ctx)
	}
	return c.oneTask(ctx, q)
}

// named makes a call about what has a name.
func (c *Client) named(ctx context.Context, q call, prefix, field, name, rest string, into any) error {
	path, err := pathOf(prefix, field, name)
	if err != nil {
		return err
	}
	q.path = path + rest
	_, err = c.do(ctx, q, into)
	return err
}

// pathOf puts a name into a path. With an empty name it would be the path of another route.
func pathOf(prefix, field, name string) (string, error) {
	if name == "" || name == "." || name == ".." {
		return "", fmt.Errorf("%w: %s must be given", ErrInvalid, field)
	}
	return prefix + url.PathEscape(name), nil
}
