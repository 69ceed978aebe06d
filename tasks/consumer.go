package tasks

import "math"

// A consumer is what takes ready tasks off a topic's queue.
type consumer struct {
	kind consumerKind
	node string // that it belongs to, if that is another one
}

type consumerKind uint8

const (
	aWorker       consumerKind = iota // of this process
	aReceiver                         // that has called Reserve here
	aRemoteWaiter                     // receivers that wait at another node
	aRemoteWorker                     // workers of another node, during a backlog here
)

var (
	byWorker   = consumer{kind: aWorker}
	byReceiver = consumer{kind: aReceiver}
)

// leases reports whether only a receipt can settle what it takes: that counts against
// MaxInFlight.
func (k consumer) leases() bool { return k.kind != aWorker }

// fits tells that the topic's tasks are for this consumer.
func (k consumer) fits(t *topic) bool {
	return t.pulled() == (k.kind == aReceiver || k.kind == aRemoteWaiter)
}

// allowed is how many of n deliveries may begin now. A rate holds per node: what a helper
// takes counts against its own.
func (k consumer) allowed(t *topic, n int) int {
	if k.kind == aRemoteWorker {
		return n
	}
	return t.allowed(n)
}

func (k consumer) spend(t *topic, n int) {
	if k.kind != aRemoteWorker {
		t.spend(n)
	}
}

// bytes bounds the records that it takes at once, give or take one task: what goes to another
// node or to a receiver is one message.
func (k consumer) bytes() int {
	if k.leases() {
		return MaxPageBytes
	}
	return math.MaxInt
}
