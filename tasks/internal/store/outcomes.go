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
// the hash, each list with the newest first. A link is the number of an outcome, so
// a list ends where the ring has overwritten it: overwriting touches no other entry.
type Outcomes struct {
	ring   [outcomesKept]pastTask
	Count  uint64               // of all ever added; the number of the last
	newest [outcomesKept]uint64 // heads of the lists; 0: empty
}

type pastTask struct {
	hash uint64
	Outcome
	older uint64 // the next of its list, as in newest
}

const outcomesKept = 1 << 16

// NewOutcomes returns an empty ring.
func NewOutcomes() *Outcomes { return new(Outcomes) }

// Add remembers what has become of the task whose id has this hash.
func (o *Outcomes) Add(hash uint64, what Outcome) {
	o.Count++
	head := &o.newest[hash%outcomesKept]
	o.ring[o.Count%outcomesKept] = pastTask{hash, what, *head}
	*head = o.Count
}

// Find returns the newest outcome of an id, or the zero outcome.
func (o *Outcomes) Find(hash uint64) Outcome { return o.FindSince(hash, 0) }

// FindSince is Find without those that were added before there were so many.
func (o *Outcomes) FindSince(hash, since uint64) Outcome {
	if past := o.find(hash, since); past != nil {
		return past.Outcome
	}
	return Outcome{}
}

// Undo takes the newest outcome of an id back: it will not be recorded.
func (o *Outcomes) Undo(hash uint64) {
	if past := o.find(hash, 0); past != nil {
		past.Kind = wasUndone
	}
}

func (o *Outcomes) find(hash, since uint64) *pastTask {
	if o.Count > outcomesKept {
		since = max(since, o.Count-outcomesKept) // the ring has overwritten those before
	}
	for n := o.newest[hash%outcomesKept]; n > since; {
		past := &o.ring[n%outcomesKept]
		if past.hash == hash && past.Kind != wasUndone {
			return past
		}
		n = past.older
	}
	return nil
}
