package dispatch

import (
	"math"

	"github.com/lapsehq/lapse/tasks/task"
)

// A Consumer is what takes ready tasks off a topic's queue.
type Consumer struct {
	kind consumerKind
	Node string // that it belongs to, if that is another one
}

type consumerKind uint8

const (
	aWorker       consumerKind = iota // of this process
	aReceiver                         // that has called Reserve here
	aRemoteWaiter                     // receivers that wait at another node
	aRemoteWorker                     // workers of another node, during a backlog here
)

// The consumers of this node.
var (
	ByWorker   = Consumer{kind: aWorker}
	ByReceiver = Consumer{kind: aReceiver}
)

// ByRemoteWaiter returns the consumer that the receivers of another node are.
func ByRemoteWaiter(node string) Consumer { return Consumer{aRemoteWaiter, node} }

// ByRemoteWorker returns the consumer that the workers of another node are, during a backlog here.
func ByRemoteWorker(node string) Consumer { return Consumer{aRemoteWorker, node} }

// Leases reports whether only a receipt can settle what it takes: that counts against
// MaxInFlight.
func (k Consumer) Leases() bool { return k.kind != aWorker }

// Fits reports whether the line's tasks are for this consumer.
func (k Consumer) Fits(l *Line) bool {
	return l.Policy.Pulled == (k.kind == aReceiver || k.kind == aRemoteWaiter)
}

// Allowed returns how many of n deliveries it may begin now. A rate holds per node: what the
// workers of another node take counts against the rate there. They take nothing while this node
// lacks a receiver.
func (k Consumer) Allowed(l *Line, n int) int {
	switch {
	case k.kind == aRemoteWorker && l.lacks:
		return 0
	case k.kind == aRemoteWorker:
		return n
	case k.kind == aWorker:
		n = l.probed(n)
	}
	return l.Allowed(n)
}

// Spend takes the tokens of deliveries that it begins.
func (k Consumer) Spend(l *Line, n int) {
	if k.kind == aRemoteWorker {
		return
	}
	if k.kind == aWorker && n > 0 {
		l.probe = noProbe
	}
	l.Spend(n)
}

// Bytes bounds the records that it takes at once, give or take one task: what goes to another
// node or to a receiver is one message.
func (k Consumer) Bytes() int {
	if k.Leases() {
		return task.MaxPageBytes
	}
	return math.MaxInt
}
