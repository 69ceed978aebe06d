package store

// An Outcome is what has become of a finished task.
type Outcome struct {
	Kind    OutcomeKind
	Topic   uint32 // 1 + that of the task's slot; 0: not known
	Nonce   uint64 // of the receipt that settled it
	Created int64  // of the task, at this node, in Unix ms; 0: not known, or of no matter
}

// Covers reports whether a record of the same id is that of the finished task, or of an earlier
// one. A cancel is about all.
func (o Outcome) Covers(created int64) bool {
	return o.Kind == WasCancelled || o.Created == 0 || created <= o.Created
}

// OutcomeKind says what has become of a finished task.
type OutcomeKind uint8

// What may have become of it.
const (
	WasCancelled OutcomeKind = iota + 1
	WasDelivered
	WasSkipped
	wasUndone // nothing has become of it
)

// Outcomes remembers the last outcomesKept finished tasks, by the hash of their
// id, so that a repeated cancel or acknowledgement gets the answer of the first.
// It is a ring, whose entries are also linked into short lists by the low bits of
// the hash, each list with the newest first: what the ring overwrites is the last of
// its list.
type Outcomes struct {
	ring   [outcomesKept]pastTask
	Count  uint64               // of all ever added; modulo the ring, the place of the next
	newest [outcomesKept]uint32 // heads of the lists: 1 + position in ring; 0: empty
}

type pastTask struct {
	hash uint64
	Outcome
	older uint32 // the next of its list, as in newest
}

const outcomesKept = 1 << 16

// NewOutcomes returns an empty ring.
func NewOutcomes() *Outcomes { return new(Outcomes) }

func (o *Outcomes) list(hash uint64) *uint32 { return &o.newest[hash%outcomesKept] }

// Add remembers what has become of the task whose id has this hash.
func (o *Outcomes) Add(hash uint64, what Outcome) {
	at := uint32(o.Count % outcomesKept)
	o.Count++
	if past := &o.ring[at]; past.Kind != 0 {
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

// Find returns the newest outcome of an id, or the zero outcome.
func (o *Outcomes) Find(hash uint64) Outcome { return o.FindSince(hash, 0) }

// FindSince is find without those that were added before there were so many.
func (o *Outcomes) FindSince(hash, since uint64) Outcome {
	for i := *o.list(hash); i != 0; i = o.ring[i-1].older {
		if past := &o.ring[i-1]; past.hash == hash && past.Kind != wasUndone {
			if behind := (o.Count - uint64(i)) % outcomesKept; o.Count-1-behind < since {
				break // and so are the others of the list
			}
			return past.Outcome
		}
	}
	return Outcome{}
}

// Undo takes the newest outcome of an id back: it will not be recorded.
func (o *Outcomes) Undo(hash uint64) {
	for i := *o.list(hash); i != 0; i = o.ring[i-1].older {
		if past := &o.ring[i-1]; past.hash == hash && past.Kind != wasUndone {
			past.Kind = wasUndone // it stays in its list, which the ring needs
			return
		}
	}
}
