package task

import (
	"time"

	"github.com/google/uuid"
)

// Limits of every request, whatever the configuration.
const (
	MaxIDBytes     = 128
	MaxHeaderBytes = 8 << 10 // names and values together
	MaxHeaders     = 64
	MaxAhead       = 10 * 366 * 24 * time.Hour // 10 years
	MaxBatch       = 10_000                    // tasks in one ScheduleBatch
)

// A Task is one thing to deliver when due, as it stood when it was asked for. Nodes send tasks,
// requests and the other types of this package to one another as JSON: see package cluster.
type Task struct {
	ID    string
	Topic string
	State State
	Due   time.Time // the deadline, to the millisecond
	// Next is when the next attempt starts: first Due, or the task's place after it in a topic with
	// a Spread; after a failed attempt, the end of the backoff.
	Next        time.Time
	Payload     []byte
	Headers     map[string]string `json:",omitzero"`
	Group       string            `json:",omitzero"`
	MaxLateness time.Duration     `json:",omitzero"` // 0: delivered however late
	Attempt     int               // deliveries so far, the running one included
	Revision    int64             // 1 at first, higher with every change by a caller
	// Created is when the task was created, by the clock of the node that made it. What is below
	// the millisecond is random, and tells the task from others under the same id.
	Created time.Time
	Died    time.Time `json:",omitzero"` // of a dead task
	Reason  Reason    `json:",omitzero"` // why it is dead; empty for any other
	// Finished and Outcome are when and how a task has ended that is kept, see
	// TopicSettings.KeepFinished; zero for any other.
	Finished  time.Time `json:",omitzero"`
	Outcome   Outcome   `json:",omitzero"`
	LastError string    `json:",omitzero"` // of the last failed attempt, or why it was buried
	Node      string    // the node that owns it
	Spooled   bool      `json:",omitzero"` // the ledger does not have it yet, see Config.Spool
	// SeenAt is when the owner has read it, by the owner's clock, which Due and Next go by. Set by
	// Get and Scan.
	SeenAt time.Time `json:",omitzero"`
	// HeldAt is when the countdown of a held task was held; zero: it is not. Due and Next are what
	// they were then. Remaining is the time from HeldAt to Next; 0: the task was due.
	HeldAt    time.Time     `json:",omitzero"`
	Remaining time.Duration `json:",omitzero"`
	// Attempts are those that have failed last, the oldest first, and the delivery of a finished
	// task: at most MaxAttempts, and fewer if their texts are long. Set by Get, and in lists of
	// dead and of finished tasks.
	Attempts []Attempt `json:",omitzero"`
	Target   *Target   `json:",omitzero"` // what the task says of its own delivery; nil: nothing

	// Repeated is set by Schedule when the very same request was accepted before, and by Replace
	// when there was a task to replace.
	Repeated bool `json:",omitzero"`
}

// Request returns the request for a task with the content and the deadline of this one.
func (t *Task) Request() Request {
	return Request{ID: t.ID, Topic: t.Topic, Due: t.Due, Payload: t.Payload, Headers: t.Headers, Group: t.Group, MaxLateness: t.MaxLateness, Target: t.Target}
}

// Fill gives a task what a request says of it: the reverse of Request.
func (t *Task) Fill(r *Request) {
	t.ID, t.Topic, t.Due, t.Payload, t.Headers = r.ID, r.Topic, r.Due, r.Payload, r.Headers
	t.Group, t.MaxLateness, t.Target = r.Group, r.MaxLateness, r.Target
}

// NewID returns a new id, as Schedule makes them: a UUIDv7.
func NewID() string { return uuid.Must(uuid.NewV7()).String() }

// State is where a task stands in its life, as a caller sees it. While a write is under way the
// state before it is shown.
type State uint8

// The states of a task. A finished task has one only while it is kept, see
// TopicSettings.KeepFinished. Otherwise it is no longer known.
const (
	Pending    State = iota + 1 // waits for its next attempt
	Ready                       // due, waits for its receiver
	Delivering                  // handed out, not settled yet
	Dead                        // attempts exhausted, or buried

	// Retrying is a part of Pending: the tasks of which an attempt was made. Queries select by it;
	// the State of a task is Pending.
	Retrying

	// Held is a part of Pending: the tasks whose countdown is held. Queries select by it, and it is
	// the State of such a task.
	Held

	// Finished tasks are delivered, cancelled or skipped, and kept to be read.
	Finished
)

var stateNames = [...]string{Pending: "pending", Ready: "ready", Delivering: "delivering", Dead: "dead", Retrying: "retrying", Held: "held", Finished: "finished"}

// ParseState returns the state whose name String returns. It reports false for any other text.
func ParseState(name string) (State, bool) {
	for s, n := range stateNames {
		if n == name && n != "" {
			return State(s), true
		}
	}
	return 0, false
}

// String returns the state's name on the wire.
func (s State) String() string {
	if s == 0 || int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// A Reason says why a task is dead.
type Reason string

// The reasons of a death. It is empty if the ledger does not know it (any more).
const (
	Exhausted    Reason = "exhausted" // its last attempt failed, or ran out of time
	Buried       Reason = "buried"    // its receiver said so: Bury, Kill
	TopicDeleted Reason = "deleted"   // its topic was deleted by force
)

// An Outcome says what has become of a finished task.
type Outcome string

// The outcomes of finished tasks. It is empty if the ledger does not know it (any more).
const (
	OutcomeDelivered Outcome = "delivered" // acknowledged
	OutcomeCancelled Outcome = "cancelled" // by a caller
	OutcomeSkipped   Outcome = "skipped"   // past max_lateness, or misfired
)

// A Request asks for a task. Either Due or Delay says when. Both zero means now: a Due that comes
// from a field that may be empty must be checked by the caller (time.Time.IsZero).
type Request struct {
	// ID is chosen by the caller, 1 to 128 of A-Z a-z 0-9 . _ : @ - beginning with a letter or a
	// digit. Empty: a UUIDv7 is made.
	ID string
	// Topic names the kind of task, in the same alphabet. Required.
	Topic string
	// Due is the deadline, at most MaxAhead from now. One in the past is due at once. A fraction of
	// a millisecond rounds up.
	Due time.Time `json:",omitzero"`
	// Delay is the time until the deadline, 0 to MaxAhead, instead of Due.
	Delay time.Duration `json:",omitzero"`
	// Payload is handed to the receiver byte for byte, at most Config.MaxPayload bytes.
	Payload []byte
	// Headers are handed to the receiver, names in lower case, together at most MaxHeaderBytes.
	Headers map[string]string `json:",omitzero"`
	// Group names the tasks that belong together, in the alphabet of ID.
	Group string `json:",omitzero"`
	// MaxLateness is how late a delivery may start, a repeated one too; later than that, the task
	// counts as skipped. In a topic with a Spread it counts from the task's place. 0 means any. 1
	// ms to MaxAhead.
	MaxLateness time.Duration `json:",omitzero"`
	// Target is what the task says of its own delivery; nil: nothing. The topic must allow it, see
	// TopicSettings.TaskDelivery.
	Target *Target `json:",omitzero"`
	// Held has the task created held: it has no deadline until it is resumed, moved or replaced.
	// Due or Delay say what is left of its countdown, Task.Remaining; both zero mean 0.
	Held bool `json:",omitzero"`
	// Supersede has Replace also take the place of a task that is being delivered, is dead, or is
	// finished and kept. See Replace. Schedule ignores it.
	Supersede bool `json:",omitzero"`
}

// A Move gives a task a new deadline, a new payload, a new target, or several of them. The zero Due
// and a nil Delay keep the deadline; a nil Payload keeps the payload, and a nil Target keeps the
// target. A Target that says nothing takes it away.
type Move struct {
	Due     time.Time
	Delay   *time.Duration
	Payload []byte
	Target  *Target
}

// A Result is the answer to one request of a batch: the id, or why not.
type Result struct {
	ID       string
	Err      error
	Spooled  bool // as of Task
	Repeated bool // the task was there already, of the very same request
	Finished bool // it is there, finished and kept: the request has scheduled nothing
}

// A Query selects tasks for List.
type Query struct {
	Topic  string // empty: all topics
	Group  string // empty: all tasks, also those without a group
	State  State  // 0: pending, ready and delivering; Dead and Finished need a topic
	Limit  int    // 1 to 1,000; 0 means 100
	Cursor string // Page.Cursor of the page before; empty for the first

	// Node selects the tasks that the node of this name has, those that it has adopted included.
	// Empty: the tasks of all nodes. Only lists know it.
	Node string

	// The rest selects among these. Zero values select all.
	IDPrefix string // the beginning of the id, in its alphabet
	Error    string // a part of Task.LastError, in small or capital letters, up to MaxErrorPart
	// ErrorLike selects tasks whose LastError is this but for numbers: LikeError of both is the
	// same. Up to MaxReason.
	ErrorLike string
	Reason    Reason // why it died; only with Dead
	// DueFrom and DueTo are a window of Task.Next, without DueTo. Not with Dead. A held task is in
	// no window.
	DueFrom, DueTo time.Time
	// DiedFrom and DiedTo are a window of Task.Died, without DiedTo. Only with Dead.
	DiedFrom, DiedTo time.Time

	// Brief lists tasks without Payload, Headers, Target and Attempts, and with at most
	// MaxBriefError of LastError.
	Brief bool
}

// Shorten leaves out what a list with Query.Brief leaves out.
func (t *Task) Shorten() {
	t.Payload, t.Headers, t.Attempts = nil, nil, nil
	t.LastError = Cut(t.LastError, MaxBriefError)
}

// MaxBriefError bounds the last error of a task in a list with Query.Brief, in bytes.
const MaxBriefError = 256

// MaxErrorPart bounds Query.Error, in bytes.
const MaxErrorPart = 256

// A Page is one page of a list, soonest first. It is no snapshot: a task that moves meanwhile may
// be seen twice or not at all. It may be empty although there is more, which its cursor says.
type Page struct {
	Tasks  []Task
	Cursor string // for the next page; empty at the end
}

// Purged counts what a Purge has done.
type Purged struct {
	Cancelled  int // tasks that the ledger has forgotten: they are never delivered (again)
	Delivering int // tasks that were being delivered, and are left to their receivers
}

// Killed counts what a KillTopic has done.
type Killed struct {
	Killed     int // tasks that are recorded as dead
	Delivering int // tasks that were being delivered, and are left to their receivers
}

// A Requeue says which dead tasks of a topic come back, and when.
type Requeue struct {
	// IDs name the tasks; nil means all of the topic.
	IDs []string
	// Due is their new deadline, or Delay the time until then, as in a Request: at most MaxAhead
	// from now, not both; both zero means now.
	Due   time.Time
	Delay time.Duration
	// Mend changes the content of the task in the same step. IDs must name one task. nil: it stays.
	Mend *Mend
}

// A Mend is what a dead task has from now on that is requeued. What is nil stays as it was.
type Mend struct {
	Payload []byte            // as of a Request
	Headers map[string]string // all headers; not nil and empty: it has none any more
	Target  *Target           // what the task says of its own delivery; the zero Target: nothing
}

// Requeued says what a Requeue has done.
type Requeued struct {
	Requeued int
	// Unknown are those of the given ids that are not among the dead of the topic.
	Unknown []string
}

// GroupCancelled says what a CancelGroup has done.
type GroupCancelled struct {
	Cancelled  int      // tasks that the ledger has forgotten: they are never delivered (again)
	Delivering []string // ids of tasks that were being delivered, and are left to their receivers
	More       int      // how many of those there were beyond the first MaxGroupDelivering
}

// MaxGroupDelivering is how many ids a GroupCancelled names at most.
const MaxGroupDelivering = 1000

// MaxPageBytes bounds the tasks of one page of a list, and of one Reserve, in bytes of
// payloads, headers and names: both end with the task that reaches it. What is left comes
// with the next page, or with the next Reserve.
const MaxPageBytes = 4 << 20
