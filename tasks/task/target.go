package task

import (
	"bytes"
	"encoding/json"
	"errors"
	"time"
)

// MaxTarget bounds Target.Settings, in bytes.
const MaxTarget = 4 << 10

// A Target is what a task says of its own delivery, in a topic with TopicSettings.TaskDelivery. The
// topic says all the rest: the kind of delivery, its mode, its secrets, and what a task may choose.
type Target struct {
	// Settings are the fields of the topic's delivery object that are others for this task: a JSON
	// object. Which ones that may be is the way's to say. Empty: none.
	Settings json.RawMessage `json:",omitempty"`
	// Retry has what is other for this task. What is zero is as in the topic.
	Retry Retry `json:",omitzero"`

	// Kind is that of the topic when it accepted Settings, and Receiver is where they lead to,
	// without secrets, as Attempt.By has it. Both are set by the scheduler, and empty without
	// Settings.
	Kind     Kind   `json:",omitzero"`
	Receiver string `json:",omitzero"`
	// Undeliverable says why the task waits although it is due: its topic has another kind by now,
	// or no TaskDelivery. Empty if it does not.
	Undeliverable string `json:",omitzero"`
}

// IsZero reports whether nothing is said.
func (t *Target) IsZero() bool { return t == nil || len(t.Settings) == 0 && t.Retry == (Retry{}) }

// A Targeter is a Deliverer that delivers tasks to targets of their own: Deliver obeys
// Delivery.Target.Settings. If it cannot, the attempt fails; it never goes to the topic's receiver
// instead. Tasks with such settings are not given to other Deliverers.
type Targeter interface {
	Deliverer
	// CheckTarget checks settings of a task, a JSON object, and returns the receiver that they lead
	// to, which is shown to callers that may not see the settings. It must not wait for anything.
	// Error: an *InvalidError that names the fields of the object.
	CheckTarget(settings json.RawMessage) (receiver string, err error)
}

// OwnSettings returns the settings that a delivery has of its own; nil: those of the topic hold.
func (d *Delivery) OwnSettings() json.RawMessage {
	if d.Target == nil || len(d.Target.Settings) == 0 {
		return nil
	}
	return d.Target.Settings
}

// Of returns the schedule with what is set in own.
func (r Retry) Of(own Retry) Retry {
	set := func(to *time.Duration, v time.Duration) {
		if v != 0 {
			*to = v
		}
	}
	if own.MaxAttempts != 0 {
		r.MaxAttempts = own.MaxAttempts
	}
	set(&r.MaxAge, own.MaxAge)
	set(&r.MinBackoff, own.MinBackoff)
	set(&r.MaxBackoff, own.MaxBackoff)
	return r
}

// within adds a fault for each field that is out of range. With own, zero stands for what the topic
// says.
func (r *Retry) within(f *Faults, prefix string, own bool) {
	within := func(ok, zero bool, field, problem string) {
		if !ok && (!own || !zero) {
			f.Add(prefix+field, problem)
		}
	}
	least := r.MinBackoff
	if own && least == 0 {
		least = time.Millisecond
	}
	within(r.MaxAttempts >= 1 && r.MaxAttempts <= MaxRetryAttempts, r.MaxAttempts == 0, "max_attempts", "must be from 1 to 1000000")
	within(r.MaxAge == 0 || r.MaxAge >= time.Second && r.MaxAge <= MaxAhead, false, "max_age", "must be from 1 s to 3660 days")
	within(r.MinBackoff >= time.Millisecond && r.MinBackoff <= 24*time.Hour, r.MinBackoff == 0, "min_backoff", "must be from 1 ms to 24 h")
	within(r.MaxBackoff >= least && r.MaxBackoff <= 30*24*time.Hour, r.MaxBackoff == 0, "max_backoff", "must be from min_backoff to 30 days")
}

// A TargetPolicy is what a topic says of the targets of its tasks. It is a copy, for use without a
// lock.
type TargetPolicy struct {
	Allowed       bool // TopicSettings.TaskDelivery
	Kind          Kind
	By            Deliverer
	Undeliverable error // why this process cannot deliver the topic's tasks
}

// Check returns a target in its stored form: its settings with their fields in order, its kind and
// its receiver. nil: nothing is said. Error: an *InvalidError.
func (p *TargetPolicy) Check(t *Target) (*Target, error) {
	if t.IsZero() {
		return nil, nil
	}
	if !p.Allowed {
		return nil, Invalid("delivery", "must not be given: the topic does not let tasks choose (task_delivery)")
	}
	var f Faults
	t.Retry.within(&f, "delivery.retry.", true)
	own := Target{Retry: t.Retry}
	if len(t.Settings) > 0 {
		f = append(f, p.settings(t, &own)...)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	if own.IsZero() {
		return nil, nil
	}
	return &own, nil
}

// Stored returns a target that another ledger has stored in the form in which Check returns it,
// with its Kind and its Receiver. What the topic lets tasks choose is not looked at: a task keeps
// its target whatever the topic says by now, and waits if it cannot be delivered so. nil: nothing
// is said. Error: an *InvalidError.
func (t *Target) Stored() (*Target, error) {
	if t == nil {
		return nil, nil
	}
	var f Faults
	t.Retry.within(&f, "delivery.retry.", true)
	own := Target{Retry: t.Retry}
	fields := f.CheckSettings(t)
	switch {
	case len(fields) == 0 && t.Kind != "":
		f.Add("delivery.kind", "must not be given without a field for it")
	case len(fields) == 0 && t.Receiver != "":
		f.Add("delivers_to", "must not be given without a receiver in delivery")
	case len(fields) > 0 && !ValidName(string(t.Kind)):
		f.Add("delivery.kind", "must be given, and "+NameProblem)
	case len(t.Receiver) > MaxAttemptBy:
		f.Add("delivers_to", "must be at most 128 bytes")
	}
	if len(fields) > 0 {
		own.Kind, own.Receiver = t.Kind, t.Receiver
		var err error
		if own.Settings, err = Canonical(fields); err != nil || len(own.Settings) > MaxTarget {
			f.Add("delivery", "must be a JSON object of at most 4 KiB")
		}
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	if own.IsZero() {
		return nil, nil
	}
	return &own, nil
}

// CheckSettings returns the fields of a target's settings, and adds what is wrong with them,
// whatever its topic allows: they must be a JSON object of at most MaxTarget.
func (f *Faults) CheckSettings(t *Target) map[string]any {
	if t == nil || len(t.Settings) == 0 {
		return nil
	}
	fields, problem := objectOf(t.Settings)
	if problem != "" {
		f.Add("delivery", problem)
	}
	return fields
}

// objectOf reads settings of a target, or says what is wrong with them.
func objectOf(settings json.RawMessage) (fields map[string]any, problem string) {
	given := bytes.TrimSpace(settings)
	d := json.NewDecoder(bytes.NewReader(given))
	d.UseNumber()
	switch {
	case len(given) > MaxTarget:
		return nil, "must be at most 4 KiB long"
	case !bytes.HasPrefix(given, []byte("{")) || !json.Valid(given) || d.Decode(&fields) != nil:
		return nil, "must be a JSON object"
	}
	return fields, ""
}

// settings checks the settings of a target and adds them to own.
func (p *TargetPolicy) settings(t, own *Target) Faults {
	fields, problem := objectOf(t.Settings)
	switch {
	case problem != "":
		return Faults{{"delivery", problem}}
	case len(fields) == 0:
		return nil
	case p.Undeliverable != nil:
		return Faults{{"delivery", "cannot be checked here: " + p.Undeliverable.Error()}}
	case t.Kind != "" && t.Kind != p.Kind:
		return Faults{{"delivery.kind", "must be that of the topic, which is " + string(p.Kind)}}
	}
	by, ok := p.By.(Targeter)
	if !ok {
		return Faults{{"delivery", "must have nothing but retry: the topic's way of delivery, " + string(p.Kind) + ", has no targets of tasks"}}
	}
	text, err := Canonical(fields)
	if err != nil {
		return Faults{{"delivery", "must be a JSON object"}}
	}
	receiver, err := by.CheckTarget(text)
	if err == nil {
		own.Settings, own.Kind, own.Receiver = text, p.Kind, Cut(receiver, MaxAttemptBy)
		return nil
	}
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		return Faults{{"delivery", err.Error()}}
	}
	var f Faults
	for _, field := range invalid.Fields {
		f.Add("delivery."+field.Field, field.Problem)
	}
	return f
}

// Canonical returns JSON without spaces and without escapes for HTML. The keys of a map are in the
// order of their names.
func Canonical(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(b.Bytes()), err
}
