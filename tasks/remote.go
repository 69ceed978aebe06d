package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lapsehq/lapse/relay"
)

// What nodes ask one another. A question and its answer are JSON, of one type each.
// Fields that a version does not know are ignored, and those that it does not send are
// zero, so that versions mix while nodes are replaced one by one. So this is how they
// change, and TestQuestionsStay has each of them in testdata:
//
//   - A question and its answer are objects, and fields are only ever added. None is taken
//     out, renamed or encoded in another way, and no two differ only in case.
//   - The zero value of a new field means what was meant before there was one, for who asks
//     as for who answers.
//   - A verb that changes its meaning, or has to change in another way, gets another name.
//     Of one that a version does not know it says so, and the asker answers ErrUnavailable.
//   - Codes of faults are only ever added. One that a version does not know may mean that
//     something was done.

// A question names a verb by which nodes ask: Q is what is asked, A the answer.
type question[Q, A any] struct {
	verb string
	// writes: what was asked may have been done although no answer came.
	writes bool
}

// An answerer answers the questions of one verb.
type answerer func(s *Scheduler, ctx context.Context, from string, body []byte) []byte

// answering gives a verb to the method that answers it. from is the node that asks.
func answering[Q, A any](q question[Q, A], answer func(s *Scheduler, ctx context.Context, from string, ask Q) (A, error)) (string, answerer) {
	return q.verb, func(s *Scheduler, ctx context.Context, from string, body []byte) []byte {
		var asked Q
		if err := json.Unmarshal(body, &asked); err != nil {
			return reply[A]{Fault: faultOf(fmt.Errorf("%w: %w", errNotUnderstood, err))}.encode()
		}
		a, err := answer(s, ctx, from, asked)
		if err != nil {
			return reply[A]{Fault: faultOf(err)}.encode()
		}
		return reply[A]{Answer: &a}.encode()
	}
}

// A reply is an answer, or why there is none, on its way back.
type reply[A any] struct {
	Answer *A          `json:"answer,omitempty"`
	Fault  *wiredFault `json:"fault,omitempty"`
}

func (r reply[A]) encode() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		b, _ = json.Marshal(reply[A]{Fault: faultOf(err)}) // which consists of texts
	}
	return b
}

// ask asks another node. What it answers with an error of this package comes back as
// that error. Others: ErrNodeAway when the question was not heard, and ErrUnavailable when it
// was not understood; when it was not answered, ErrUnknown if it writes, and ErrNodeAway if not.
// ErrOverloaded when too many are under way. Where errors.Is tells relay.ErrUnheard or
// relay.ErrNoAnswer as well, the other node has said nothing.
func ask[Q, A any](ctx context.Context, s *Scheduler, node string, v question[Q, A], q Q) (A, error) {
	var none A
	body, err := json.Marshal(q)
	if err != nil {
		return none, err
	}
	raw, err := s.shared.relay.Ask(ctx, node, v.verb, body)
	switch {
	case err == nil:
	case errors.Is(err, relay.ErrOverloaded):
		return none, fmt.Errorf("%w: node %s: %w", ErrOverloaded, node, err)
	case errors.Is(err, relay.ErrNoAnswer) && v.writes:
		return none, fmt.Errorf("%w: node %s: %w", ErrUnknown, node, err)
	default:
		return none, fmt.Errorf("%w: node %s: %w", ErrNodeAway, node, err)
	}
	var r reply[A]
	if err := json.Unmarshal(raw, &r); err != nil {
		return none, fmt.Errorf("%w: node %s: %w", unclear(v.writes), node, err)
	}
	switch {
	case r.Fault != nil:
		return none, r.Fault.err(node, v.writes)
	case r.Answer == nil:
		return none, fmt.Errorf("%w: node %s answered nothing", unclear(v.writes), node)
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

// answer answers a question of another node.
func (s *Scheduler) answer(ctx context.Context, q relay.Question) []byte {
	select {
	case <-s.opened:
	case <-ctx.Done():
		return reply[struct{}]{Fault: faultOf(ErrClosed)}.encode()
	}
	s.noteMultiNode()
	answer, ok := s.shared.verbs[q.Verb]
	if !ok {
		return reply[struct{}]{Fault: faultOf(fmt.Errorf("%w: the verb %q", errNotUnderstood, q.Verb))}.encode()
	}
	return answer(s, ctx, q.From, q.Body)
}

// Answers that only nodes give one another.
var (
	// errNotMine is answered when the task's home is not held here (any more): nothing
	// was done, and it must be looked for again.
	errNotMine = errors.New("the task's shard is not held by this node")
	// errNotUnderstood is answered to a question of a newer version.
	errNotUnderstood = errors.New("not understood by this version")
)

// faultCodes are the errors that travel between nodes. The first that matches counts.
var faultCodes = []struct {
	code string
	err  error
}{
	{"not_mine", errNotMine},
	{"not_understood", errNotUnderstood},
	{"not_held", errNotHeld},
	{"handed_over", errHandedOver},
	{"orphaned", errOwnerSilent},
	{"finished", errFinished},
	{"cancelled", errCancelled},
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

// A wiredFault is an error on its way to another node.
type wiredFault struct {
	Code   string       `json:"code"`
	Text   string       `json:"text"`
	Fields []FieldError `json:"fields,omitempty"` // of an InvalidError
}

func faultOf(err error) *wiredFault {
	f := &wiredFault{Code: "internal", Text: err.Error()}
	for _, c := range faultCodes {
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
func (f *wiredFault) err(node string, writes bool) error {
	if f.Code == "invalid" {
		return &InvalidError{Fields: f.Fields}
	}
	for _, c := range faultCodes {
		if c.code != f.Code {
			continue
		}
		if errors.Is(c.err, errNotUnderstood) {
			return fmt.Errorf("%w: node %s: %w: %s", ErrUnavailable, node, errNotUnderstood, f.Text)
		}
		return &farError{f.Text, c.err}
	}
	return fmt.Errorf("%w: node %s: %s", unclear(writes), node, f.Text)
}

// A farError is an error that another node has answered, in its words.
type farError struct {
	text string
	kind error
}

func (e *farError) Error() string { return e.text }

func (e *farError) Unwrap() error { return e.kind }
