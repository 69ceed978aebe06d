package task

import (
	"cmp"
	"slices"
	"time"
)

// MaxDeadReasons bounds how many reasons a DeadReasons tells of.
const MaxDeadReasons = 50

// DeadReasons says why tasks are dead, how many of each reason.
type DeadReasons struct {
	Reasons  []DeadReason // those of most tasks first
	LeftOut  int          // tasks that were looked at and selected, and that none of these counts
	LookedAt int          // how many dead tasks were looked at
	Dead     int          // how many dead tasks the topics have, selected or not
	Complete bool         // there are no others that are selected
}

// A DeadReason counts the dead tasks of one topic that died for one reason, of errors that are the
// same but for numbers.
type DeadReason struct {
	Topic   string
	Reason  Reason // empty: not known
	Error   string // LikeError of the last error of each
	Example string // the last error of one of them, at most MaxBriefError
	Count   int
	// FirstDied and LastDied are when the first and the last of them died.
	FirstDied, LastDied time.Time
}

// A deadKey tells one DeadReason from others.
type deadKey struct {
	topic  string
	reason Reason
	error  string
}

// A DeadTally adds up reasons of dead tasks. The zero value has none.
type DeadTally struct {
	DeadReasons
	at map[deadKey]int // in Reasons
}

// Add counts what another answer tells.
func (t *DeadTally) Add(o *DeadReasons) {
	for i := range o.Reasons {
		t.AddReason(o.Reasons[i])
	}
	t.LeftOut += o.LeftOut
	t.LookedAt += o.LookedAt
	t.Dead += o.Dead
	t.Complete = t.Complete && o.Complete
}

// AddReason counts tasks of one reason.
func (t *DeadTally) AddReason(r DeadReason) {
	key := deadKey{r.Topic, r.Reason, r.Error}
	at, known := t.at[key]
	if !known {
		if t.at == nil {
			t.at = make(map[deadKey]int)
		}
		t.at[key], t.Reasons = len(t.Reasons), append(t.Reasons, r)
		return
	}
	have := &t.Reasons[at]
	have.Count += r.Count
	if r.FirstDied.Before(have.FirstDied) {
		have.FirstDied, have.Example = r.FirstDied, r.Example
	}
	if r.LastDied.After(have.LastDied) {
		have.LastDied = r.LastDied
	}
}

// Most returns what was added, with the reasons of most tasks, at most so many.
func (t *DeadTally) Most(limit int) DeadReasons {
	most := t.DeadReasons
	most.Reasons = slices.Clone(most.Reasons)
	slices.SortFunc(most.Reasons, func(a, b DeadReason) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Error, b.Error))
	})
	for _, r := range most.Reasons[min(limit, len(most.Reasons)):] {
		most.LeftOut += r.Count
	}
	most.Reasons = most.Reasons[:min(limit, len(most.Reasons))]
	return most
}
