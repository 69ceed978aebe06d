package task

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Errors of the scheduler's methods, to be tested for with errors.Is. An error that says why
// something did not happen leaves everything as it was, except ErrUnknown.
var (
	// ErrInvalid is returned when the request itself is wrong. The error is an *InvalidError that
	// names each field and what it accepts.
	ErrInvalid = errors.New("invalid request")
	// ErrTooLarge is returned when a payload is larger than Config.MaxPayload or its headers are
	// larger than MaxHeaderBytes.
	ErrTooLarge = errors.New("too large")
	// ErrNotFound is returned when no task has this id, or the one that had it is finished: which
	// of the two is remembered only for a while.
	ErrNotFound = errors.New("unknown or finished")
	// ErrExists is returned by Schedule when the id belongs to a task that was requested with other
	// content.
	ErrExists = errors.New("the id is taken by a task with other content")
	// ErrTaken is a kind of ErrExists: the id belongs to a task of a topic that the caller's Grant
	// does not allow.
	ErrTaken = KindOf(ErrExists, ErrExists.Error())
	// ErrDelivering is returned when the task is being delivered at the moment, so that it can
	// neither be cancelled nor moved.
	ErrDelivering = errors.New("the task is being delivered")
	// ErrDead is returned when the task is dead: requeue it or delete it first.
	ErrDead = errors.New("the task is dead")
	// ErrNotDead is returned when a task that is to be requeued or deleted is not among the dead.
	ErrNotDead = errors.New("the task is not dead")
	// ErrOverloaded is returned when Config.MaxPending or Config.MaxInFlight is reached. Tasks
	// already accepted are kept.
	ErrOverloaded = errors.New("overloaded")
	// ErrQuota is a kind of ErrOverloaded: a bound of the caller's Grant is reached.
	ErrQuota = KindOf(ErrOverloaded, "quota reached")
	// ErrUnavailable is returned when the ledger does not take writes at the moment. Nothing was
	// recorded.
	ErrUnavailable = errors.New("the ledger is not available")
	// ErrUnknown is returned when the ledger did not answer in time and the write may have landed.
	// Repeating the request with the same id is safe.
	ErrUnknown = errors.New("outcome unknown")
	// ErrUnrecorded is a kind of ErrUnknown: the ledger is known not to answer, or has no room
	// for what the task leaves. This process has done what was asked for and does not deliver
	// the task; it is recorded later. Until then the end of this process undoes it.
	ErrUnrecorded = KindOf(ErrUnknown, "done, but not recorded yet: the ledger does not answer or has no room")
	// ErrReplaying is returned while a node still reads back what it holds, for what it cannot know
	// before: whether an id exists, or which settings a topic has.
	ErrReplaying = errors.New("replay in progress")
	// ErrStale is returned for a receipt whose delivery is over: settled, expired, or handed out
	// again.
	ErrStale = errors.New("the receipt is stale")
	// ErrReceipt is returned for a text that is no receipt of this data set.
	ErrReceipt = errors.New("not a receipt")
	// ErrNoTopic is returned when a topic has no settings of its own.
	ErrNoTopic = errors.New("the topic has no settings")
	// ErrInUse is returned by DeleteTopic when the topic has tasks.
	ErrInUse = errors.New("the topic has tasks")
	// ErrRevision is returned when a topic's settings have changed since the revision that the
	// caller has seen.
	ErrRevision = errors.New("the settings have another revision")
	// ErrVersion is a kind of ErrRevision: the task has another version than the caller has seen.
	ErrVersion = KindOf(ErrRevision, "the task has another revision")
	// ErrHandled is returned by Handle when the topic has a handler or another way of delivery
	// already, and by Reserve when its tasks are not pulled.
	ErrHandled = errors.New("the topic has a handler or another way of delivery already")
	// ErrNotGranted is returned when a Grant does not allow the topic that is named, or that of the
	// task of a receipt.
	ErrNotGranted = errors.New("topic not granted")
	// ErrDraining is returned by every method that would create a task once Drain has begun:
	// another node takes it.
	ErrDraining = errors.New("this node is being drained")
	// ErrNodeAway is a kind of ErrUnavailable: the node that has the task, or that was named, does
	// not answer, or the task is changing hands.
	ErrNodeAway = KindOf(ErrUnavailable, "node unavailable")
	// ErrContended is a kind of ErrUnavailable: the ledger answers, but so many requests change the
	// same task that this one did not get its turn in time.
	ErrContended = KindOf(ErrUnavailable, "too many concurrent changes of the task")
	// ErrNoNode is returned by Node, DrainNode and a List by node when no node has the name.
	ErrNoNode = errors.New("there is no such node")
	// ErrNoSuccessor is returned by Drain and DrainNode when no other node takes what this one
	// holds.
	ErrNoSuccessor = errors.New("no other node can take over")
	// ErrNoAct is returned by FindAct when the log of actions has no such entry.
	ErrNoAct = errors.New("there is no such act in the log")
	// ErrClosed is returned by every method once Close has begun.
	ErrClosed = errors.New("the scheduler is closed")
)

// A KindError is an error that is a kind of a more general one and has a text of its own. The HTTP
// API shows the text to its callers: it names no file, no host and no value of a request.
type KindError struct {
	text    string
	general error
}

// KindOf returns a *KindError. errors.Is holds between it and the general error, whose text it does
// not repeat.
func KindOf(general error, text string) error { return &KindError{text, general} }

func (e *KindError) Error() string { return e.text }

// Unwrap returns the more general error.
func (e *KindError) Unwrap() error { return e.general }

// A StuckError says that a scheduler does not move. Only the end of its process mends it.
type StuckError struct {
	Part string        // which part does not: its lock, its wheel or its sweep
	For  time.Duration // for how long, at least
}

// Error names the part.
func (e *StuckError) Error() string {
	return fmt.Sprintf("the scheduler does not move: %s has not answered for %s", e.Part, e.For.Round(time.Millisecond))
}

// A FieldError says what is wrong with one field of a request. It never repeats the value.
type FieldError struct {
	Field   string // as on the wire: "due_at" is Request.Due, "retry.max_age" Retry.MaxAge
	Problem string // what it must be, with the accepted range
}

// InvalidError lists everything that is wrong with a request. It wraps ErrInvalid.
type InvalidError struct{ Fields []FieldError }

// Invalid returns the *InvalidError of one field.
func Invalid(field, problem string) error {
	return &InvalidError{Fields: []FieldError{{field, problem}}}
}

// Error names all fields.
func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString(ErrInvalid.Error())
	for i, f := range e.Fields {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep + f.Field + " " + f.Problem)
	}
	return b.String()
}

// Unwrap makes errors.Is(err, ErrInvalid) hold.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// Faults gathers field errors.
type Faults []FieldError

// Add adds what is wrong with a field.
func (f *Faults) Add(field, problem string) { *f = append(*f, FieldError{field, problem}) }

// Err returns the *InvalidError of all fields, nil if there are none.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return &InvalidError{Fields: f}
}

// A NodeError says which node is the reason why a call about the tasks of all nodes has failed.
type NodeError struct {
	Node string
	Err  error
}

func (e *NodeError) Error() string { return "node " + e.Node + ": " + e.Err.Error() }

func (e *NodeError) Unwrap() error { return e.Err }
