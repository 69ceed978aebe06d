package tasks

import "math"

// A taker is who takes ready tasks off a topic's queue.
type taker struct {
	kind takerKind
	node string // that it belongs to, if that is another one
}

type takerKind uint8

const (
	aWorker       takerKind = iota // of this process
	aReceiver                      // that has called Reserve here
	aRemoteWaiter                  // receivers that wait at another node
	aRemoteWorker                  // workers of another node, during a backlog here
)

var (
	byWorker   = taker{kind: aWorker}
	byReceiver = taker{kind: aReceiver}
)

// away tells that only a receipt can settle what it takes: that counts against MaxInFlight.
func (k taker) away() bool { return k.kind != aWorker }

// fits tells that the topic's tasks are for this taker.
func (k taker) fits(t *topic) bool {
	return t.pulled() == (k.kind == aReceiver || k.kind == aRemoteWaiter)
}

// allowed is how many of n deliveries may begin now. A rate holds per node: what a helper
// takes counts against its own.
func (k taker) allowed(t *topic, n int) int {
	if k.kind == aRemoteWorker {
		return n
	}
	return t.allowed(n)
}

func (k taker) spend(t *topic, n int) {
	if k.kind != aRemoteWorker {
		t.spend(n)
	}
}

// bytes bounds the records that it takes at once, give or take one task: what goes to another
// node or to a receiver is one message.
func (k taker) bytes() int {
	if k.away() {
		return MaxPageBytes
	}
	return math.MaxInt
}
