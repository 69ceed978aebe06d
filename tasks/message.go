package tasks

import (
	"context"

	"github.com/lapsehq/lapse/tasks/task"
)

// MaxMessage bounds the body of a message between nodes, and of its answer.
const MaxMessage = task.MaxMessage

// OnMessage registers the handler of a subject, which is a name as topics have. Messages that have
// come before were refused, or are lost: so a program registers its handlers right after Open.
// Error: ErrInvalid, also if the subject has a handler.
func (s Admin) OnMessage(subject string, f MessageHandler) error {
	return s.cluster.OnMessage(subject, f)
}

// Broadcast sends a message to the handlers of a subject at all other nodes that share the ledger
// and live, once. It may get lost, at each of them. Those of a node arrive in the order in which
// they were sent, but for bodies beyond 128 KiB, which travel apart. Broadcast does not wait for
// the other nodes, and copies the body. It drops the message if too much waits to be sent, and logs
// an error if the subject or the body is not valid. Without other nodes it does nothing.
func (s Admin) Broadcast(subject string, body []byte) { s.cluster.Broadcast(subject, body) }

// Ask sends a message to the handler of a subject at one node, and returns its answer. The message
// is repeated until the node has answered, and handled at most once. body must not change before
// Ask returns. At this node, Ask calls the handler itself.
//
// Errors: what the handler has returned; of those that errors.Is knows, the ones of this package
// stay what they are. If the handler was not called: ErrInvalid; ErrTooLarge, also of an answer;
// ErrNodeAway; ErrOverloaded; ErrUnavailable if the node has no handler of the subject, also
// because its version is older. ErrUnknown if it may have been called. ErrClosed.
func (s Admin) Ask(ctx context.Context, node, subject string, body []byte) ([]byte, error) {
	return s.cluster.Ask(ctx, node, subject, body)
}

// Peers returns the names of the other nodes that share the ledger and live, as this node knows
// them now. It asks no one, and costs next to nothing. A node whose ledger is its own has none.
func (s Admin) Peers() []string { return s.cluster.LivePeers() }
