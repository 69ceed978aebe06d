package crash

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// Reasons for a task to be delivered again.
const (
	GivenBack   = "given back"
	LeaseOut    = "lease ran out"
	NotRecorded = "acknowledgement not recorded"
	AskedAgain  = "asked for again" // a creation was repeated after the task was finished
	Requeued    = "requeued"        // after it was buried
	// ImportedAgain: a process that remembered its end had ended.
	ImportedAgain = "imported again"
	// FinishedElsewhere: another node had finished it, and its node did not know.
	FinishedElsewhere = "finished elsewhere"
)

// A Promise is what a Bench checks, named by its violation.
type Promise string

// The promises.
const (
	Lost         Promise = "lost"
	Early        Promise = "early"
	NotInForce   Promise = "deadline not in force"
	Unasked      Promise = "never asked for"
	Repeated     Promise = "repeated without a cause"
	AfterCancel  Promise = "delivered after its cancellation"
	AfterAck     Promise = "delivered after its acknowledgement"
	AfterBury    Promise = "delivered after its burial"
	WrongMissing Promise = "wrong 404"
	LeftOut      Promise = "left out of a list"
	MadeTwice    Promise = "made twice"
	ShownAfter   Promise = "shown after its cancellation"
	NotKept      Promise = "not kept once it was finished"
	WrongID      Promise = "wrong id"
)

// A Verdict is the result of the judge.
type Verdict struct {
	Tasks, Accepted, Cancelled, Moved int
	Deliveries                        int
	Again                             map[string]int // deliveries after the first one, by reason
	Faults                            []string       // promises that were broken
	Broken                            map[Promise]int
	Violations                        []Violation // Faults, of a Bench
	// Excused are deliveries that would be among them, and what explains each.
	Excused []string
}

// A Violation is a broken promise of a task.
type Violation struct {
	Task       int
	Promise    Promise
	Text       string
	Start, End time.Time // when what broke it happened
}

// String is one line of figures, and the first faults.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tasks %d, accepted %d, cancelled %d, moved %d, deliveries %d, again %v, faults %d, excused %d",
		v.Tasks, v.Accepted, v.Cancelled, v.Moved, v.Deliveries, v.Again, len(v.Faults), len(v.Excused))
	for _, f := range v.Faults[:min(20, len(v.Faults))] {
		b.WriteString("\n  " + f)
	}
	for _, e := range v.Excused {
		b.WriteString("\n  excused: " + e)
	}
	return b.String()
}

// Judge compares a history with the promises. The caller has waited until nothing was owed any
// more, or for as long as is reasonable.
func Judge(h *History) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := Verdict{Tasks: len(h.tasks), Again: map[string]int{}}
	for n, t := range h.tasks {
		t.count(&v)
		for _, fault := range t.judge(&v) {
			v.Faults = append(v.Faults, fmt.Sprintf("task %d: %s", n, fault))
		}
	}
	slices.Sort(v.Faults)
	return v
}

func (t *Task) count(v *Verdict) {
	v.Deliveries += len(t.Deliveries)
	done := map[Kind]int{}
	for _, c := range t.Changes {
		if c.Outcome == Done {
			done[c.Kind] = 1
		}
	}
	v.Accepted += done[Create]
	v.Moved += done[Move]
	v.Cancelled += done[Cancel]
}

func (t *Task) judge(v *Verdict) (faults []string) {
	if t.owed() {
		faults = append(faults, "lost: accepted, not cancelled, and never acknowledged")
	}
	slices.SortFunc(t.Deliveries, func(a, b *Delivery) int {
		if a.Run != b.Run {
			return a.Run - b.Run
		}
		return a.End.Compare(b.End)
	})
	for i, d := range t.Deliveries {
		if fault := t.onTime(d); fault != "" {
			faults = append(faults, fault)
		}
		if t.cancelledBefore(d) {
			faults = append(faults, "delivered after its cancellation was answered with 204")
		}
		if i == 0 {
			continue
		}
		reason := t.explain(t.Deliveries[i-1], d)
		if reason == "" {
			faults = append(faults, fmt.Sprintf("delivered again without a reason: attempt %d of run %d after attempt %d of run %d",
				d.Attempt, d.Run, t.Deliveries[i-1].Attempt, t.Deliveries[i-1].Run))
		}
		v.Again[reason]++
	}
	return faults
}

// onTime checks that the delivery belongs to a deadline that may have been in
// force, and that this deadline had come.
func (t *Task) onTime(d *Delivery) string {
	var inForce []time.Time
	for _, c := range t.Changes {
		switch {
		case c.Outcome == Refused, c.Kind == Cancel, c.Run > d.Run:
		case c.Outcome == Done && (c.Run < d.Run || c.End.Before(d.Start)):
			inForce = []time.Time{c.Due} // all deadlines before it are over
		case c.Start.Before(d.End):
			inForce = append(inForce, c.Due)
		}
	}
	switch {
	case len(inForce) == 0:
		return "delivered, and was never asked for"
	case !slices.ContainsFunc(inForce, d.Due.Equal):
		return fmt.Sprintf("delivered for the deadline %s, which was not in force: %v", rig.Stamp(d.Due), inForce)
	case d.End.Before(d.Due):
		return fmt.Sprintf("early by %s", d.Due.Sub(d.End))
	}
	return ""
}

// cancelledBefore: a task that is being delivered cannot be cancelled, so one
// that was cancelled while the reserve call was open cannot be in its answer.
func (t *Task) cancelledBefore(d *Delivery) bool {
	for _, c := range t.Changes {
		if c.Kind == Cancel && c.Outcome == Done && (d.Run > c.Run || d.Run == c.Run && d.End.After(c.End)) {
			return true
		}
	}
	return false
}

// explain returns the reason for another delivery of a task, or "".
func (t *Task) explain(before, d *Delivery) string {
	acked := before.find(Ack, Done)
	switch {
	case t.repeated(before, d):
		return AskedAgain
	case acked != nil && (acked.Recorded || d.Run == acked.Run):
		return "" // final; and a process that knows of an ack obeys it without the ledger
	case d.Run == before.Run && d.Attempt <= before.Attempt:
		return ""
	case before.find(Release, Done, Unknown) != nil:
		return GivenBack
	case !d.End.Before(before.LeaseUntil):
		return LeaseOut
	case d.Run > before.Run, before.find(Ack, Unknown) != nil:
		return NotRecorded
	}
	return ""
}

// repeated reports whether the creation was sent again, and accepted when the task may have been
// finished and forgotten already.
func (t *Task) repeated(before, d *Delivery) bool {
	ack := before.find(Ack, Done, Unknown)
	if ack == nil || len(t.Changes) == 0 {
		return false
	}
	return slices.ContainsFunc(t.Changes[1:], func(c Change) bool {
		return c.Outcome != Refused && c.Kind == Create && c.Run <= d.Run && ack.Start.Before(c.End)
	})
}
