package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/lapsehq/lapse/tasks/internal/relay"
	"github.com/lapsehq/lapse/tasks/task"
)

// Messages between the programs that embed the nodes. The nodes carry them, and know of them only
// the subject, which names a handler.

// MessageMethod carries a message of a program to the handler of its subject.
var MessageMethod = Method[messageQuery, messageReply]{Name: "message", writes: true}

type (
	messageQuery struct {
		Subject string
		Body    []byte `json:",omitempty"`
	}
	// A messageReply has what the handler has returned.
	messageReply struct {
		Body  []byte     `json:",omitempty"`
		Fault *WireError `json:",omitempty"` // its error
	}
)

const (
	// maxMessagesAnswered bounds how many handlers of messages run at once that another node waits
	// for: they share the places of all calls between nodes, of which there are more.
	maxMessagesAnswered = 512
	// maxLongBroadcasts bounds the bodies of the broadcasts under way that are too long for one
	// message of the bus, in bytes.
	maxLongBroadcasts = 16 << 20
)

// messages are the handlers of the program, and what is under way.
type messages struct {
	mu       sync.RWMutex // guards handlers
	handlers map[string]task.MessageHandler

	answering atomic.Int64 // handlers that run for callers of other nodes
	long      atomic.Int64 // bytes of long broadcasts under way
}

// isMessage reports whether notifications of a method are answered in the order of their sender.
func isMessage(method string) bool { return method == MessageMethod.Name }

// checkMessage returns what is wrong with a message, as an *InvalidError.
func checkMessage(subject string, body []byte) error {
	var f task.Faults
	if !task.ValidName(subject) {
		f.Add("subject", task.NameProblem)
	}
	if len(body) > task.MaxMessage {
		f.Add("body", fmt.Sprintf("must be at most %d bytes", task.MaxMessage))
	}
	return f.Err()
}

// OnMessage is tasks.Admin.OnMessage.
func (s *Cluster) OnMessage(subject string, f task.MessageHandler) error {
	if err := checkMessage(subject, nil); err != nil {
		return err
	}
	m := &s.Peers.messages
	m.mu.Lock()
	defer m.mu.Unlock()
	if f == nil || m.handlers[subject] != nil {
		return task.Invalid("subject", "must have one handler")
	}
	if m.handlers == nil {
		m.handlers = make(map[string]task.MessageHandler)
	}
	m.handlers[subject] = f
	return nil
}

// handleMessage answers a message of another node. If that waits for no answer, this is called for
// one message of a node at a time.
func (s *Cluster) handleMessage(ctx context.Context, from string, q messageQuery) (messageReply, error) {
	m := &s.Peers.messages
	if m.answering.Add(1) > maxMessagesAnswered {
		m.answering.Add(-1)
		return messageReply{}, fmt.Errorf("%w: messages of other nodes", task.ErrOverloaded)
	}
	defer m.answering.Add(-1)
	body, err := s.callHandler(ctx, from, &q)
	switch {
	case errors.Is(err, ErrNotUnderstood):
		return messageReply{}, err
	case err != nil:
		return messageReply{Fault: WireErrorOf(err)}, nil
	}
	return messageReply{Body: body}, nil
}

// callHandler calls the handler of a subject. Without one, the error is ErrNotUnderstood.
func (s *Cluster) callHandler(ctx context.Context, from string, q *messageQuery) (body []byte, err error) {
	m := &s.Peers.messages
	m.mu.RLock()
	f := m.handlers[q.Subject]
	m.mu.RUnlock()
	if f == nil {
		return nil, fmt.Errorf("%w: the subject %q", ErrNotUnderstood, task.Cut(q.Subject, task.MaxReason))
	}
	defer func() {
		if p := recover(); p != nil {
			s.engine.Config.Log.Error("a handler of messages panicked", "node", s.engine.Config.Node, "subject", q.Subject, "from", from, "panic", p, "stack", string(debug.Stack()))
			body, err = nil, fmt.Errorf("panic: %v", p)
		}
	}()
	if body, err = f(ctx, from, q.Body); err == nil && len(body) > task.MaxMessage {
		return nil, fmt.Errorf("%w: an answer of %d bytes", task.ErrTooLarge, len(body))
	}
	return body, err
}

// LivePeers is tasks.Admin.Peers.
func (s *Cluster) LivePeers() []string {
	if s.NoPeers() {
		return nil
	}
	nodes, err := s.Fleet.ledger.Peers(s.engine.Life.Context)
	if err != nil {
		return nil
	}
	var live []string
	for i := range nodes {
		if n := &nodes[i]; !n.Self && absence(n) == nil {
			live = append(live, n.Name)
		}
	}
	return live
}

// Broadcast is tasks.Admin.Broadcast.
func (s *Cluster) Broadcast(subject string, body []byte) {
	if err := checkMessage(subject, body); err != nil {
		s.engine.Config.Log.Error("broadcast not sent", "subject", task.Cut(subject, task.MaxReason), "error", err)
		return
	}
	if s.NoPeers() {
		return
	}
	q := messageQuery{subject, body}
	raw, err := json.Marshal(q)
	switch {
	case err != nil:
	case len(raw) > relay.MaxNotification:
		err = s.broadcastLong(&q)
	default:
		err = s.Fleet.Relay.Send("", MessageMethod.Name, raw)
	}
	if err != nil {
		s.engine.Config.Log.Debug("broadcast not sent", "subject", subject, "error", err)
	}
}

// broadcastLong calls each of the other nodes, and does not wait for the answers.
func (s *Cluster) broadcastLong(q *messageQuery) error {
	m, size := &s.Peers.messages, int64(len(q.Body))
	if m.long.Add(size) > maxLongBroadcasts {
		m.long.Add(-size)
		return task.ErrOverloaded
	}
	q = &messageQuery{q.Subject, append([]byte(nil), q.Body...)}
	if !s.engine.Life.Go(func() {
		defer m.long.Add(-size)
		ctx, cancel := context.WithTimeout(s.engine.Life.Context, s.engine.Config.AnswerWithin)
		defer cancel()
		askEach(ctx, s, s.LivePeers(), MessageMethod, *q, func(string, messageReply, error) {})
	}) {
		m.long.Add(-size)
		return task.ErrClosed
	}
	return nil
}

// Ask is tasks.Admin.Ask.
func (s *Cluster) Ask(ctx context.Context, node, subject string, body []byte) ([]byte, error) {
	if err := checkMessage(subject, body); err != nil {
		return nil, err
	}
	q := messageQuery{subject, body}
	if node == s.NodeName() {
		answer, err := s.callHandler(ctx, node, &q)
		if errors.Is(err, ErrNotUnderstood) {
			err = fmt.Errorf("%w: node %s: %w", task.ErrUnavailable, node, err)
		}
		return answer, err
	}
	if s.Fleet == nil {
		return nil, fmt.Errorf("%w: node %s: this node has no others", task.ErrNodeAway, node)
	}
	r, err := Call(ctx, s, node, MessageMethod, q)
	switch {
	case errors.Is(err, relay.ErrClosed):
		return nil, fmt.Errorf("%w: %w", task.ErrClosed, err)
	case err != nil:
		return nil, err
	case r.Fault != nil:
		return nil, r.Fault.ofHandler(node)
	}
	return r.Body, nil
}

// ofHandler is Err of an error that the handler of a message has returned. One without a code is
// its text: the handler was called, and has answered.
func (f *WireError) ofHandler(node string) error {
	if f.Code == "internal" {
		return fmt.Errorf("node %s: %s", node, f.Text)
	}
	return f.Err(node, true)
}
