package tasks

// An outcome is what has become of a finished task.
type outcome struct {
	kind  outcomeKind
	nonce uint64 // of the receipt that settled it
}

type outcomeKind uint8

const (
	wasCancelled outcomeKind = iota + 1
	wasDelivered
	wasSkipped
)

// outcomes remembers the last outcomesKept finished tasks, by the hash of their
// id, so that a repeated cancel or acknowledgement gets the answer of the first.
type outcomes struct {
	ring   [outcomesKept]pastTask
	next   int
	byHash map[uint64]uint32 // position in ring of the newest outcome
}

type pastTask struct {
	hash uint64
	outcome
}

const outcomesKept = 1 << 16

func newOutcomes() *outcomes {
	return &outcomes{byHash: make(map[uint64]uint32, outcomesKept)}
}

func (o *outcomes) add(hash uint64, what outcome) {
	old := &o.ring[o.next]
	if at, ok := o.byHash[old.hash]; ok && int(at) == o.next && old.kind != 0 {
		delete(o.byHash, old.hash)
	}
	*old = pastTask{hash, what}
	o.byHash[hash] = uint32(o.next)
	o.next = (o.next + 1) % outcomesKept
}

// find returns the newest outcome of an id, or the zero outcome.
func (o *outcomes) find(hash uint64) outcome {
	if at, ok := o.byHash[hash]; ok {
		return o.ring[at].outcome
	}
	return outcome{}
}
