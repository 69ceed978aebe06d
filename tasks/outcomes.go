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
// It is a ring, whose entries are also linked into short lists by the low bits of
// the hash, each list with the newest first: what the ring overwrites is the last of
// its list.
type outcomes struct {
	ring   [outcomesKept]pastTask
	next   uint32
	newest [outcomesKept]uint32 // heads of the lists: 1 + position in ring; 0: empty
}

type pastTask struct {
	hash uint64
	outcome
	older uint32 // the next of its list, as in newest
}

const outcomesKept = 1 << 16

func newOutcomes() *outcomes { return new(outcomes) }

func (o *outcomes) list(hash uint64) *uint32 { return &o.newest[hash%outcomesKept] }

func (o *outcomes) add(hash uint64, what outcome) {
	at := o.next
	o.next = (o.next + 1) % outcomesKept
	if past := &o.ring[at]; past.kind != 0 {
		link := o.list(past.hash)
		for *link != at+1 {
			link = &o.ring[*link-1].older
		}
		*link = 0
	}
	head := o.list(hash)
	o.ring[at] = pastTask{hash, what, *head}
	*head = at + 1
}

// find returns the newest outcome of an id, or the zero outcome.
func (o *outcomes) find(hash uint64) outcome {
	for i := *o.list(hash); i != 0; i = o.ring[i-1].older {
		if past := &o.ring[i-1]; past.hash == hash {
			return past.outcome
		}
	}
	return outcome{}
}
