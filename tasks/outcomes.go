package tasks

// An outcome is what has become of a finished task.
type outcome struct {
	kind    outcomeKind
	nonce   uint64 // of the receipt that settled it
	created int64  // the task, at this node, in Unix milliseconds; 0: not known, or it does not matter
}

// covers reports whether a record of the same id is that of the finished task, or of an earlier
// one. A cancel is about all.
func (o outcome) covers(created int64) bool {
	return o.kind == wasCancelled || o.created == 0 || created <= o.created
}

type outcomeKind uint8

const (
	wasCancelled outcomeKind = iota + 1
	wasDelivered
	wasSkipped
	wasUndone // nothing has become of it
)

// outcomes remembers the last outcomesKept finished tasks, by the hash of their
// id, so that a repeated cancel or acknowledgement gets the answer of the first.
// It is a ring, whose entries are also linked into short lists by the low bits of
// the hash, each list with the newest first: what the ring overwrites is the last of
// its list.
type outcomes struct {
	ring   [outcomesKept]pastTask
	count  uint64               // of all that were ever added; modulo the ring, where the next one goes
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
	at := uint32(o.count % outcomesKept)
	o.count++
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
func (o *outcomes) find(hash uint64) outcome { return o.findSince(hash, 0) }

// findSince is find without those that were added before there were so many.
func (o *outcomes) findSince(hash, since uint64) outcome {
	for i := *o.list(hash); i != 0; i = o.ring[i-1].older {
		if past := &o.ring[i-1]; past.hash == hash && past.kind != wasUndone {
			if behind := (o.count - uint64(i)) % outcomesKept; o.count-1-behind < since {
				break // and so are the others of the list
			}
			return past.outcome
		}
	}
	return outcome{}
}

// undo takes the newest outcome of an id back: it will not be recorded.
func (o *outcomes) undo(hash uint64) {
	for i := *o.list(hash); i != 0; i = o.ring[i-1].older {
		if past := &o.ring[i-1]; past.hash == hash && past.kind != wasUndone {
			past.kind = wasUndone // it stays in its list, which the ring needs
			return
		}
	}
}
