package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/query"
	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// Calls between nodes. The query and the reply of a method are JSON, of one type each; what they
// have in them are types of task and engine as they are. So a field that is renamed there is
// another one for other nodes, which TestWireFormatUnchanged notices.
//
// Fields that a version does not know are ignored, and those that it does not send are
// zero, so that versions mix while nodes are replaced one by one. So this is how they
// change, and TestWireFormatUnchanged has each of them in testdata:
//
//   - A query and a reply are objects, and fields are only ever added. None is taken
//     out, renamed or encoded in another way, and no two differ only in case.
//   - The zero value of a new field means what was meant before there was one, for the caller
//     as for the node that it calls.
//   - A method that changes its meaning, or has to change in another way, gets another name.
//     Of one that a version does not know it says so, and the caller returns ErrUnavailable.
//   - Error codes are only ever added. One that a version does not know may mean that
//     something was done.

// A Method is what one node can call at another: Q is the query, A the reply.
type Method[Q, A any] struct {
	Name string
	// writes: what the query asks for may have been done although no reply came.
	writes bool
	// prompt: the caller goes on with something else while no message can be sent.
	prompt bool

	// Of a method that is called at all nodes, see everywhere: how this node answers; which queries
	// are about dead tasks alone, of which no spool has any (nil: none); and the query that follows
	// a reply with More (nil: the same again).
	here      func(s *Cluster, ctx context.Context, asked Q) (A, error)
	deadAlone func(q *Q) bool
	next      func(asked Q, a *A) Q
}

// An RPCHandler answers the calls of one method.
type RPCHandler func(s *Cluster, ctx context.Context, from string, body []byte) []byte

// Handle returns the name of a method and the handler that serve makes of it. from is the
// calling node.
func Handle[Q, A any](m Method[Q, A], serve func(s *Cluster, ctx context.Context, from string, query Q) (A, error)) (string, RPCHandler) {
	return m.Name, func(s *Cluster, ctx context.Context, from string, body []byte) []byte {
		var query Q
		if err := json.Unmarshal(body, &query); err != nil {
			return Reply[A]{Fault: WireErrorOf(fmt.Errorf("%w: %w", ErrNotUnderstood, err))}.Encode()
		}
		a, err := serve(s, ctx, from, query)
		if err != nil {
			return Reply[A]{Fault: WireErrorOf(err)}.Encode()
		}
		return Reply[A]{Answer: &a}.Encode()
	}
}

// A Reply is an answer, or why there is none, on its way back.
type Reply[A any] struct {
	Answer *A         `json:"answer,omitempty"`
	Fault  *WireError `json:"fault,omitempty"`
}

// Encode returns the message.
func (r Reply[A]) Encode() []byte {
	b, err := task.Canonical(r)
	if err != nil {
		b, _ = task.Canonical(Reply[A]{Fault: WireErrorOf(err)}) // which consists of texts
	}
	return b
}

// Call calls a method of another node. If the method returns an error that has a code on the wire,
// Call returns that error. Other errors:
//   - ErrNodeAway: no node received the call, or a read was not answered.
//   - ErrUnknown: a write was not answered, or its answer cannot be read.
//   - ErrUnavailable: the method is unknown there, or the answer of a read cannot be read.
//   - ErrOverloaded: too many calls are open.
//
// If the other node has not answered, the error is relay.ErrUnheard or relay.ErrNoAnswer too.
func Call[Q, A any](ctx context.Context, s *Cluster, node string, m Method[Q, A], q Q) (A, error) {
	var none A
	body, err := task.Canonical(q)
	if err != nil {
		return none, err
	}
	call := s.Fleet.Relay.Call
	if m.prompt {
		call = s.Fleet.Relay.CallPromptly
	}
	raw, err := call(ctx, node, m.Name, body)
	switch {
	case err == nil:
	case errors.Is(err, relay.ErrOverloaded):
		return none, fmt.Errorf("%w: node %s: %w", task.ErrOverloaded, node, err)
	case errors.Is(err, relay.ErrNoAnswer) && m.writes:
		return none, fmt.Errorf("%w: node %s: %w", task.ErrUnknown, node, err)
	default:
		return none, fmt.Errorf("%w: node %s: %w", task.ErrNodeAway, node, err)
	}
	var r Reply[A]
	if err := json.Unmarshal(raw, &r); err != nil {
		return none, fmt.Errorf("%w: node %s: %w", unclear(m.writes), node, err)
	}
	switch {
	case r.Fault != nil:
		return none, r.Fault.Err(node, m.writes)
	case r.Answer == nil:
		return none, fmt.Errorf("%w: node %s answered nothing", unclear(m.writes), node)
	}
	return *r.Answer, nil
}

// askEach calls a method at each of some nodes at the same time. take is called with each answer,
// or why there is none, one at a time. It returns when all have been taken.
func askEach[Q, A any](ctx context.Context, s *Cluster, nodes []string, m Method[Q, A], q Q, take func(node string, a A, err error)) {
	var taking sync.Mutex // guards what take uses
	var calls sync.WaitGroup
	for _, node := range nodes {
		calls.Go(func() {
			a, err := Call(ctx, s, node, m, q)
			taking.Lock()
			defer taking.Unlock()
			take(node, a, err)
		})
	}
	calls.Wait()
}

// unclear is the error of an answer that this version cannot read.
func unclear(writes bool) error {
	if writes {
		return task.ErrUnknown
	}
	return task.ErrUnavailable
}

// handleCall answers a call of another node.
func (s *Cluster) handleCall(ctx context.Context, q relay.Call) []byte {
	select {
	case <-s.engine.Life.Opened:
	case <-ctx.Done():
		return Reply[struct{}]{Fault: WireErrorOf(task.ErrClosed)}.Encode()
	}
	s.noteMultiNode()
	serve, ok := s.Fleet.Methods[q.Method]
	if !ok {
		return Reply[struct{}]{Fault: WireErrorOf(fmt.Errorf("%w: the method %q", ErrNotUnderstood, q.Method))}.Encode()
	}
	return serve(s, ctx, q.From, q.Body)
}

// Answers that only nodes give one another.
var (
	// errNotMine is answered when the task's shard is not held here (any more): nothing
	// was done, and it must be looked for again.
	errNotMine = errors.New("not the owner of the task's shard")
	// ErrNotUnderstood is the reply to a call of a newer version.
	ErrNotUnderstood = errors.New("not understood by this version")
)

// ErrorCodes are the errors that travel between nodes. The first that matches counts.
var ErrorCodes = []struct {
	Code string
	Err  error
}{
	{"not_mine", errNotMine},
	{"not_understood", ErrNotUnderstood},
	{"not_held", engine.ErrNotHeld},
	{"handed_over", engine.ErrHandedOver},
	{"handing_over", engine.ErrHandingOver},
	{"orphaned", errOwnerSilent},
	{"finished", engine.ErrFinished},
	{"cancelled", engine.ErrCancelled},
	{"invalid", task.ErrInvalid},
	{"too_large", task.ErrTooLarge},
	{"not_granted", task.ErrNotGranted},
	{"not_found", task.ErrNotFound},
	{"exists", task.ErrExists},
	{"delivering", task.ErrDelivering},
	{"dead", task.ErrDead},
	{"draining", task.ErrDraining},
	{"no_heir", task.ErrNoSuccessor},
	{"quota", task.ErrQuota}, // a kind of the next one
	{"overloaded", task.ErrOverloaded},
	{"unrecorded", task.ErrUnrecorded}, // a kind of the next one
	{"unknown", task.ErrUnknown},
	{"node_away", task.ErrNodeAway},  // a kind of the next one
	{"contended", task.ErrContended}, // a kind of the next one
	{"unavailable", task.ErrUnavailable},
	{"replaying", task.ErrReplaying},
	{"receipt_unknown", engine.ErrReceiptUnknown},
	{"stale", task.ErrStale},
	{"receipt", task.ErrReceipt},
	{"no_topic", task.ErrNoTopic},
	{"in_use", task.ErrInUse},
	{"revision", task.ErrRevision},
	{"handled", task.ErrHandled},
	{"closed", task.ErrClosed},
	{"not_selected", query.ErrNotSelected},
}

// A WireError is an error on its way to another node.
type WireError struct {
	Code   string            `json:"code"`
	Text   string            `json:"text"`
	Fields []task.FieldError `json:"fields,omitempty"` // of an InvalidError
}

// WireErrorOf returns an error for its way to another node.
func WireErrorOf(err error) *WireError {
	f := &WireError{Code: "internal", Text: err.Error()}
	for _, c := range ErrorCodes {
		if errors.Is(err, c.Err) {
			f.Code = c.Code
			break
		}
	}
	var invalid *task.InvalidError
	if errors.As(err, &invalid) {
		f.Fields = invalid.Fields
	}
	return f
}

// Err is the error as it was at the other node. One that this version does not know may
// mean that something was done.
func (f *WireError) Err(node string, writes bool) error {
	if f.Code == "invalid" {
		return &task.InvalidError{Fields: f.Fields}
	}
	for _, c := range ErrorCodes {
		if c.Code != f.Code {
			continue
		}
		if errors.Is(c.Err, ErrNotUnderstood) {
			return fmt.Errorf("%w: node %s: %w: %s", task.ErrUnavailable, node, ErrNotUnderstood, f.Text)
		}
		return &remoteError{f.Text, c.Err}
	}
	return fmt.Errorf("%w: node %s: %s", unclear(writes), node, f.Text)
}

// A remoteError is an error that another node has answered, in its words.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() error { return e.kind }

// errOwnerSilent is answered while no node has adopted a shard whose holder is dead.
var errOwnerSilent = task.KindOf(task.ErrNodeAway, "no heartbeat; its shards wait for adoption")
