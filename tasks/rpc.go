package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/internal/relay"
)

// Calls between nodes. The query and the reply of a method are JSON, of one type each.
// Fields that a version does not know are ignored, and those that it does not send are
// zero, so that versions mix while nodes are replaced one by one. So this is how they
// change, and TestQuestionsStay has each of them in testdata:
//
//   - A query and a reply are objects, and fields are only ever added. None is taken
//     out, renamed or encoded in another way, and no two differ only in case.
//   - The zero value of a new field means what was meant before there was one, for the caller
//     as for the node that it calls.
//   - A method that changes its meaning, or has to change in another way, gets another name.
//     Of one that a version does not know it says so, and the caller returns ErrUnavailable.
//   - Error codes are only ever added. One that a version does not know may mean that
//     something was done.

// A method is what one node can call at another: Q is the query, A the reply.
type method[Q, A any] struct {
	name string
	// writes: what the query asks for may have been done although no reply came.
	writes bool
}

// An rpcHandler answers the calls of one method.
type rpcHandler func(s *cluster, ctx context.Context, from string, body []byte) []byte

// handle returns the name of a method and the handler that serve makes of it. from is the
// calling node.
func handle[Q, A any](m method[Q, A], serve func(s *cluster, ctx context.Context, from string, query Q) (A, error)) (string, rpcHandler) {
	return m.name, func(s *cluster, ctx context.Context, from string, body []byte) []byte {
		var query Q
		if err := json.Unmarshal(body, &query); err != nil {
			return reply[A]{Fault: wireErrorOf(fmt.Errorf("%w: %w", errNotUnderstood, err))}.encode()
		}
		a, err := serve(s, ctx, from, query)
		if err != nil {
			return reply[A]{Fault: wireErrorOf(err)}.encode()
		}
		return reply[A]{Answer: &a}.encode()
	}
}

// A reply is an answer, or why there is none, on its way back.
type reply[A any] struct {
	Answer *A         `json:"answer,omitempty"`
	Fault  *wireError `json:"fault,omitempty"`
}

func (r reply[A]) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		b, _ = json.Marshal(reply[A]{Fault: wireErrorOf(err)}) // which consists of texts
	}
	return b
}

// call calls a method of another node. If that replies with an error of this package, call
// returns that error. Others: ErrNodeAway when the call was not heard, and ErrUnavailable when it
// was not understood; when it was not answered, ErrUnknown if it writes, and ErrNodeAway if not.
// ErrOverloaded when too many are under way. Where errors.Is tells relay.ErrUnheard or
// relay.ErrNoAnswer as well, the other node has said nothing.
func call[Q, A any](ctx context.Context, s *cluster, node string, m method[Q, A], q Q) (A, error) {
	var none A
	body, err := json.Marshal(q)
	if err != nil {
		return none, err
	}
	raw, err := s.shared.relay.Ask(ctx, node, m.name, body)
	switch {
	case err == nil:
	case errors.Is(err, relay.ErrOverloaded):
		return none, fmt.Errorf("%w: node %s: %w", ErrOverloaded, node, err)
	case errors.Is(err, relay.ErrNoAnswer) && m.writes:
		return none, fmt.Errorf("%w: node %s: %w", ErrUnknown, node, err)
	default:
		return none, fmt.Errorf("%w: node %s: %w", ErrNodeAway, node, err)
	}
	var r reply[A]
	if err := json.Unmarshal(raw, &r); err != nil {
		return none, fmt.Errorf("%w: node %s: %w", unclear(m.writes), node, err)
	}
	switch {
	case r.Fault != nil:
		return none, r.Fault.err(node, m.writes)
	case r.Answer == nil:
		return none, fmt.Errorf("%w: node %s answered nothing", unclear(m.writes), node)
	}
	return *r.Answer, nil
}

// unclear is the error of an answer that this version cannot read.
func unclear(writes bool) error {
	if writes {
		return ErrUnknown
	}
	return ErrUnavailable
}

// handleCall answers a call of another node.
func (s *cluster) handleCall(ctx context.Context, q relay.Question) []byte {
	select {
	case <-s.engine.Life.Opened:
	case <-ctx.Done():
		return reply[struct{}]{Fault: wireErrorOf(ErrClosed)}.encode()
	}
	s.noteMultiNode()
	serve, ok := s.shared.methods[q.Verb]
	if !ok {
		return reply[struct{}]{Fault: wireErrorOf(fmt.Errorf("%w: the verb %q", errNotUnderstood, q.Verb))}.encode()
	}
	return serve(s, ctx, q.From, q.Body)
}

// Answers that only nodes give one another.
var (
	// errNotMine is answered when the task's shard is not held here (any more): nothing
	// was done, and it must be looked for again.
	errNotMine = errors.New("the task's shard is not held by this node")
	// errNotUnderstood is the reply to a call of a newer version.
	errNotUnderstood = errors.New("not understood by this version")
)

// errorCodes are the errors that travel between nodes. The first that matches counts.
var errorCodes = []struct {
	code string
	err  error
}{
	{"not_mine", errNotMine},
	{"not_understood", errNotUnderstood},
	{"not_held", engine.ErrNotHeld},
	{"handed_over", engine.ErrHandedOver},
	{"orphaned", errOwnerSilent},
	{"finished", engine.ErrFinished},
	{"cancelled", engine.ErrCancelled},
	{"invalid", ErrInvalid},
	{"too_large", ErrTooLarge},
	{"not_granted", ErrNotGranted},
	{"not_found", ErrNotFound},
	{"exists", ErrExists},
	{"delivering", ErrDelivering},
	{"dead", ErrDead},
	{"draining", ErrDraining},
	{"no_heir", ErrNoHeir},
	{"quota", ErrQuota}, // a kind of the next one
	{"overloaded", ErrOverloaded},
	{"unrecorded", ErrUnrecorded}, // a kind of the next one
	{"unknown", ErrUnknown},
	{"node_away", ErrNodeAway},  // a kind of the next one
	{"contended", ErrContended}, // a kind of the next one
	{"unavailable", ErrUnavailable},
	{"replaying", ErrReplaying},
	{"stale", ErrStale},
	{"receipt", ErrReceipt},
	{"no_topic", ErrNoTopic},
	{"in_use", ErrInUse},
	{"revision", ErrRevision},
	{"handled", ErrHandled},
	{"closed", ErrClosed},
}

// A wireError is an error on its way to another node.
type wireError struct {
	Code   string       `json:"code"`
	Text   string       `json:"text"`
	Fields []FieldError `json:"fields,omitempty"` // of an InvalidError
}

func wireErrorOf(err error) *wireError {
	f := &wireError{Code: "internal", Text: err.Error()}
	for _, c := range errorCodes {
		if errors.Is(err, c.err) {
			f.Code = c.code
			break
		}
	}
	var invalid *InvalidError
	if errors.As(err, &invalid) {
		f.Fields = invalid.Fields
	}
	return f
}

// err is the error as it was at the other node. One that this version does not know may
// mean that something was done.
func (f *wireError) err(node string, writes bool) error {
	if f.Code == "invalid" {
		return &InvalidError{Fields: f.Fields}
	}
	for _, c := range errorCodes {
		if c.code != f.Code {
			continue
		}
		if errors.Is(c.err, errNotUnderstood) {
			return fmt.Errorf("%w: node %s: %w: %s", ErrUnavailable, node, errNotUnderstood, f.Text)
		}
		return &remoteError{f.Text, c.err}
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
