package crash

import (
	"fmt"
	"slices"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// A Bench judges the history of several nodes. It uses instants alone: a task may be at any node,
// and a request may have been passed on.
type Bench struct {
	// Deliver says that nodes that are cut off from Redis go on from memory. Faults that follow
	// from what they cannot know, such as an acknowledgement at another node, are excused.
	Deliver bool
	// Patience is for how long, after an answer or the end of a fault, something may still be under
	// way: a message, a write, or a node that has yet to notice.
	Patience time.Duration
	// FailoverAfter is for how long a node that was cut off is certain of its shards.
	FailoverAfter time.Duration

	faults []Fault
}

// Judge compares a history with the promises:
//
//   - what was accepted and not cancelled is delivered and acknowledged;
//   - nothing is delivered before a deadline that was in force;
//   - nothing is delivered after its cancellation was answered with 204, or after its
//     acknowledgement was answered as recorded, unless Deliver excuses it;
//   - a second delivery has a reason: the attempt was given back, or its lease ran out,
//     and was counted unless the task was replaced; or the node that had it had a fault;
//   - no task is unknown, or made a second time, that was accepted and that no request may
//     have finished; whole lists do not leave out a task that no request touches meanwhile;
//   - a task has the id of the answer to its creation;
//   - a buried task is not delivered until it is requeued;
//   - a cancelled task is not shown any more.
//
// A Redis that has lost writes excuses none of that, as the memory of the nodes, which live all the
// time, makes up for it. The record of a dead task is in the memory of the process in which it has
// died, until that ends or its shard moves: then a task that was both accepted and buried in the
// time that Redis has lost is gone.
func (b Bench) Judge(h *History) Verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	b.faults = h.faults
	v := Verdict{Tasks: len(h.tasks), Again: map[string]int{}, Broken: map[Promise]int{}}
	for n, t := range h.tasks {
		t.count(&v)
		c := taskJudge{Bench: b, Task: t, broken: v.Broken}
		c.judgeTask(v.Again)
		for _, x := range c.guilty {
			x.Task = n
			v.Violations = append(v.Violations, x)
			v.Faults = append(v.Faults, fmt.Sprintf("task %d: %s", n, x.Text))
		}
		for _, excuse := range c.excused {
			v.Excused = append(v.Excused, fmt.Sprintf("task %d: %s", n, excuse))
		}
	}
	slices.Sort(v.Faults)
	slices.Sort(v.Excused)
	return v
}

// Owed returns how many tasks were surely accepted, surely not cancelled, and surely not
// acknowledged, except those that Redis has lost when they were dead.
func (b Bench) Owed(h *History) (owed int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	b.faults = h.faults
	for _, t := range h.tasks {
		c := taskJudge{Bench: b, Task: t}
		if !t.owed() {
			continue
		}
		if _, lost := c.lostDead(); lost {
			continue
		}
		if _, lost := c.forgotten(); !lost {
			owed++
		}
	}
	return owed
}

// A taskJudge judges one task.
type taskJudge struct {
	Bench
	*Task
	broken  map[Promise]int
	guilty  []Violation
	excused []string
}

// breaks records a promise that was broken by what happened in a span of time, unless no memory was
// left that could have kept it.
func (c *taskJudge) breaks(p Promise, s Span, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if why, ok := c.forgotten(); ok && p != Early && p != WrongID {
		c.excused = append(c.excused, text+"; "+why)
		return
	}
	c.broken[p]++
	c.guilty = append(c.guilty, Violation{Promise: p, Text: text, Start: s.Start, End: s.End})
}

func (c *taskJudge) judgeTask(again map[string]int) {
	if loss, ok := c.lostDead(); c.owed() && ok {
		c.excused = append(c.excused, "lost when it was dead: "+loss.String())
	} else if c.owed() {
		c.breaks(Lost, c.life(), "lost: accepted, not cancelled, and never acknowledged")
	}
	for i := range c.Changes {
		c.denied(&c.Changes[i])
	}
	slices.SortFunc(c.Deliveries, func(a, b *Delivery) int { return a.End.Compare(b.End) })
	for i, d := range c.Deliveries {
		c.named(d)
		if promise, what, since := c.overdue(d); what != "" {
			c.excuse(d, promise, what, since)
		} else if promise, what := c.onTime(d); what != "" {
			c.excuse(d, promise, what, d.Start)
		}
		if i == 0 {
			continue
		}
		before := c.Deliveries[i-1]
		reason := c.explain(before, d)
		if reason == "" {
			c.breaks(Repeated, Span{Start: before.Start, End: d.End}, "delivered again without a reason: attempt %d by %s after attempt %d by %s",
				d.Attempt, d.by(), before.Attempt, before.by())
		}
		again[reason]++
	}
}

// by names the nodes of a delivery, and its time.
func (d *Delivery) by() string {
	via := d.Node
	if d.Owner != "" && d.Owner != d.Node {
		via = d.Owner + " at " + d.Node
	}
	return fmt.Sprintf("%s %s-%s", via, rig.Stamp(d.Start), rig.Stamp(d.End))
}

// excuse finds the fault that explains a delivery that should not have been made after since: its
// node was out of touch then, or had yet to notice.
func (c *taskJudge) excuse(d *Delivery, promise Promise, what string, since time.Time) {
	what = fmt.Sprintf("%s: attempt %d by %s", what, d.Attempt, d.by())
	if c.Deliver {
		for _, f := range slices.Backward(c.faults) { // the latest explains it best
			if d.isOf(f.Node) && f.strays() && f.Start.Before(since) && f.meets(d.Start.Add(-c.Patience), d.End) {
				c.excused = append(c.excused, what+"; "+f.String())
				return
			}
		}
	}
	c.breaks(promise, Span{Start: since, End: d.End}, "%s", what)
}

func (d *Delivery) isOf(node string) bool { return node != "" && (node == d.Owner || node == d.Node) }

// began is a moment at which the delivery was surely not under way yet. A webhook whose node was
// stopped in the middle has begun before that.
func (c *taskJudge) began(d *Delivery) time.Time {
	if !d.Signed.IsZero() {
		for _, f := range c.faults {
			if f.Trouble == Stopped && d.isOf(f.Node) && f.meets(d.Signed, d.Start) {
				return d.Signed
			}
		}
	}
	return d.Start
}

// overdue reports whether the task had been finished when the delivery began.
func (c *taskJudge) overdue(d *Delivery) (promise Promise, what string, since time.Time) {
	began := c.began(d)
	for i := range c.Changes {
		x := &c.Changes[i]
		if x.Kind != Cancel || x.Outcome != Done || x.Group && c.besides(x) || c.remade(x, d) {
			continue
		}
		// A task that is being delivered cannot be cancelled. Only a node that was stopped may have
		// handed it out before, and answer now.
		if x.End.Before(began) || x.End.Before(d.End) && !c.met(d.isOf, began, d.End) {
			return AfterCancel, "delivered after its cancellation was answered with 204", x.End
		}
	}
	for _, other := range c.Deliveries {
		s := other.recorded()
		if other != d && s != nil && s.End.Before(began) && !c.repeated(other, d) && !c.imported(s, d) {
			return AfterAck, "delivered after its acknowledgement was recorded", s.End
		}
		if s := other.find(Bury, Done); other != d && s != nil && s.Recorded && s.End.Before(began) && !c.revived(other, d) {
			return AfterBury, "delivered after its burial was recorded", s.End
		}
	}
	return "", "", time.Time{}
}

// recorded returns the settlement that finished the task for good, if any.
func (d *Delivery) recorded() *Settlement {
	for i := range d.Settlements {
		if s := &d.Settlements[i]; s.Verb == Ack && s.Outcome == Done && s.Recorded {
			return s
		}
	}
	return nil
}

// met reports whether a fault of one of some nodes lay between two instants.
func (c *taskJudge) met(of func(node string) bool, from, to time.Time) bool {
	return slices.ContainsFunc(c.faults, func(f Fault) bool { return of(f.Node) && f.meets(from, to) })
}

// lands is when a change took effect at the latest, if it did at all. A change that was answered
// has done so by then. Another may be under way for a while, and be delayed by any fault in that
// time.
func (c *taskJudge) lands(x *Change) time.Time {
	if x.Outcome == Done {
		return x.End
	}
	at := x.End.Add(c.Patience)
	for _, f := range c.faults {
		if !f.meets(x.Start, x.End.Add(c.Patience)) {
			continue
		}
		if f.End.IsZero() {
			return f.Start.AddDate(1, 0, 0)
		}
		if late := f.End.Add(c.Patience); late.After(at) {
			at = late
		}
	}
	return at
}

// may reports whether a change may have had an effect.
func (x *Change) may() bool { return x.Outcome == Done || x.Outcome == Unknown }

// interrupted reports whether a fault began while a request was under way: one node may have done
// it, and a second one, without knowledge of that, may have been asked.
func (c *taskJudge) interrupted(s Span) bool {
	return slices.ContainsFunc(c.faults, func(f Fault) bool {
		return !f.Start.Before(s.Start.Add(-time.Second)) && f.Start.Before(s.End)
	})
}

// onTime checks that the delivery belongs to a deadline that may have been in force,
// and that this deadline had come.
func (c *taskJudge) onTime(d *Delivery) (Promise, string) {
	began := c.began(d)
	var inForce []*Change
	for i := range c.Changes {
		x := &c.Changes[i]
		if x.Kind == Cancel || x.Kind.asks() || !x.may() || !x.Start.Before(d.End) {
			continue
		}
		if x.Outcome == Done && x.End.Before(began) && !x.Present {
			// Everything that had taken effect before it is over.
			inForce = slices.DeleteFunc(inForce, func(old *Change) bool { return c.lands(old).Before(x.Start) })
		}
		inForce = append(inForce, x)
	}
	switch {
	case len(inForce) == 0:
		return Unasked, "delivered, and was never asked for"
	case !slices.ContainsFunc(inForce, func(x *Change) bool { return c.sets(x, d.Due) }):
		return NotInForce, fmt.Sprintf("delivered for the deadline %s, which was not in force", rig.Stamp(d.Due))
	case d.End.Before(d.Due):
		return Early, fmt.Sprintf("early by %s", d.Due.Sub(d.End))
	}
	return "", ""
}

// sets reports whether a change set a deadline. When a task is fired, its deadline is the instant
// at which that is done, which only an answer shows.
func (c *taskJudge) sets(x *Change, due time.Time) bool {
	switch {
	case x.Kind == Hold:
		return false
	case x.Kind == Resume && x.Outcome != Done:
		return !due.After(c.lands(x).AddDate(1, 0, 0)) // as much later as it was held
	}
	if x.Kind == Fire && x.Outcome != Done {
		return !due.Before(x.Start.Truncate(time.Millisecond)) && !due.After(c.lands(x))
	}
	return due.Equal(x.Due)
}

// explain returns the reason for another delivery of a task, or "".
func (c *taskJudge) explain(before, d *Delivery) string {
	switch {
	case c.repeated(before, d):
		return AskedAgain
	case c.imported(before.find(Ack, Done), d):
		return ImportedAgain
	case c.revived(before, d):
		return Requeued
	}
	if _, what, _ := c.overdue(d); what != "" {
		return FinishedElsewhere // which has been judged
	}
	either := func(node string) bool { return before.isOf(node) || d.isOf(node) }
	// An acknowledgement that the ledger has not confirmed is lost with its node.
	until := d.End
	settled := before.find(Ack, Done)
	if settled == nil {
		settled = before.find(Bury, Done)
	}
	if settled != nil {
		until = settled.End.Add(c.Patience)
	}
	for _, f := range c.faults {
		from := before.Start
		if c.Deliver && f.strays() {
			from = from.Add(-c.Patience) // it has yet to notice which shards other nodes have
		}
		if either(f.Node) && (f.Trouble == Killed || f.strays() || c.endedAlone(f)) && c.whole(f).meets(from, until) {
			return "a node was " + string(f.Trouble)
		}
		// The shard may have moved before the acknowledgement, which a third node answered then.
		if settled != nil && !settled.Recorded && (f.Trouble == Killed || f.strays()) && c.whole(f).meets(settled.Start, until) {
			return "a node was " + string(f.Trouble)
		}
	}
	switch {
	case settled != nil, d.Attempt <= before.Attempt && !c.replaced(before, d):
		return ""
	case before.find(Release, Done, Unknown) != nil:
		return GivenBack
	case !d.End.Before(before.lease()):
		return LeaseOut
	}
	return ""
}

// endedAlone reports whether a node was ended in order while Redis was away, so that it could not
// record the attempts that it had counted.
func (b Bench) endedAlone(f Fault) bool {
	if f.Trouble != Restarted && f.Trouble != HandedOver && f.Trouble != Drained {
		return false
	}
	return slices.ContainsFunc(b.faults, func(r Fault) bool {
		return (r.Trouble == Down || r.Trouble == Hung || !r.Lost.IsZero()) && r.meets(f.Start, f.End)
	})
}

// lease returns the end of a delivery's lease, as its receiver knows it.
func (d *Delivery) lease() time.Time {
	until := d.LeaseUntil
	for _, s := range d.Settlements {
		if s.Verb == Extend && s.Outcome == Done && s.Until.After(until) {
			until = s.Until
		}
	}
	return until
}

// whole is a fault with the time after its end in which it has effects: a node that was cut off may
// have yet to connect again, and delivers for as long as it is certain of its shards.
func (b Bench) whole(f Fault) Fault {
	if end := f.Start.Add(b.FailoverAfter); f.Trouble == CutOff && !f.End.IsZero() && f.End.Before(end) {
		f.End = end
	}
	return f
}

// replaced reports whether another task replaced the one that had been delivered before, and the
// delivery has its deadline, or one that it was given since. Its attempts are counted from the
// first.
func (c *taskJudge) replaced(before, d *Delivery) bool {
	return slices.ContainsFunc(c.Changes, func(x Change) bool {
		if x.Kind != Replace || !x.may() || !x.Start.Before(d.End) || !before.Start.Before(c.lands(&x)) {
			return false
		}
		return x.Due.Equal(d.Due) || slices.ContainsFunc(c.Changes, func(y Change) bool {
			moves := y.Kind == Move || y.Kind == Fire || y.Kind == Resume
			return moves && y.may() && x.Start.Before(y.Start) && y.Start.Before(d.End) && c.sets(&y, d.Due)
		})
	})
}

// strays reports whether a node with this fault goes on without knowing what other nodes do.
func (f Fault) strays() bool {
	return f.Trouble == Stopped || f.Trouble == CutOff || f.Trouble == HalfOpen || f.Trouble == Slow
}

// imported reports whether the task was imported once more after it was finished, and a process had
// ended meanwhile: what was finished is remembered for that long (docs/export.md).
func (c *taskJudge) imported(ack *Settlement, d *Delivery) bool {
	return ack != nil && slices.ContainsFunc(c.Changes, func(x Change) bool {
		return x.Kind == Import && x.may() && x.Start.Before(d.End) && ack.Start.Before(c.lands(&x)) &&
			slices.ContainsFunc(c.faults, func(f Fault) bool { return f.Trouble.down() && f.meets(ack.Start, c.lands(&x)) })
	})
}

// repeated reports whether the creation was repeated when the task may have been finished and
// forgotten.
func (c *taskJudge) repeated(before, d *Delivery) bool {
	ack := before.find(Ack, Done, Unknown)
	if ack == nil || len(c.Changes) == 0 {
		return false
	}
	return slices.ContainsFunc(c.Changes[1:], func(x Change) bool {
		if c.Terms.Kept && x.Kind == Create && x.Outcome == Done && !x.Anew {
			return false // it found the finished task
		}
		return (x.Kind == Create || x.Kind == Replace || x.Kind == Requeue) && x.may() && x.Start.Before(d.End) && ack.Start.Before(c.lands(&x))
	})
}
