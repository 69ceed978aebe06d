package crash

import (
	"slices"
	"time"
)

// life is from the first request for a task until the last thing that is known of it, and for as
// long after its deadline as something may be under way.
func (c *taskJudge) life() (s Span) {
	add := func(start, end time.Time) {
		if s.Start.IsZero() || start.Before(s.Start) {
			s.Start = start
		}
		if end.After(s.End) {
			s.End = end
		}
	}
	for _, x := range c.Changes {
		add(x.Start, x.End)
		if !x.Due.IsZero() {
			add(x.Start, x.Due.Add(c.Patience))
		}
	}
	for _, d := range c.Deliveries {
		add(d.Start, d.End)
		for _, x := range d.Settlements {
			add(x.Start, x.End)
		}
	}
	return s
}

// forgotten reports whether Redis has lost writes of the task, and no memory may have had them
// (docs/operations.md, "Redis"): the process of a node has ended after the first of the lost writes
// and before the loss was noticed and mended. A node that hands its tasks over before it ends does
// not explain that, since it keeps them until another one has them. A node that is out of touch for
// as long as others wait for it does.
func (c *taskJudge) forgotten() (why string, ok bool) { return c.lostBetween(c.touches) }

// Forgotten is the same of something that is no task, and was changed in a span of time.
func (b Bench) Forgotten(h *History, touched Span) (why string, ok bool) {
	b.faults = h.Faults()
	return b.lostBetween(func() []Span { return []Span{touched} })
}

func (b Bench) lostBetween(touches func() []Span) (why string, ok bool) {
	var touched []Span
	for _, loss := range b.faults {
		if loss.Lost.IsZero() {
			continue
		}
		for _, f := range b.faults {
			if !b.endsMemory(f) || !b.atOnce(loss, f) {
				continue
			}
			if touched == nil {
				touched = touches()
			}
			if slices.ContainsFunc(touched, func(s Span) bool {
				return s.End.Add(b.Patience).After(loss.Lost) && s.Start.Before(loss.End.Add(b.Patience))
			}) {
				return loss.String() + "; " + f.String(), true
			}
		}
	}
	return "", false
}

// endsMemory reports whether what a node had in memory is in no memory during, or after, a fault.
func (b Bench) endsMemory(f Fault) bool {
	switch f.Trouble {
	case Killed, Restarted:
		return true
	case Stopped, CutOff, HalfOpen, Slow:
		return f.End.IsZero() || f.End.Sub(f.Start) > b.FailoverAfter*8/10
	}
	return false
}

// atOnce reports whether a fault began after writes that Redis has lost, and lasted, with the time
// in which others read what the node had, until the loss.
func (b Bench) atOnce(loss, f Fault) bool {
	const underWay = 200 * time.Millisecond // to a replica
	return f.Start.After(loss.Lost.Add(-underWay)) && f.meets(loss.Start.Add(-b.Patience), loss.End.Add(b.Patience))
}

// touches are the requests that may have changed the record of the task.
func (c *taskJudge) touches() (all []Span) {
	for i := range c.Changes {
		if x := &c.Changes[i]; x.may() && !x.Kind.asks() {
			all = append(all, Span{Start: x.Start, End: c.lands(x)})
		}
	}
	for _, d := range c.Deliveries {
		all = append(all, Span{Start: d.Start, End: d.End})
		for _, s := range d.Settlements {
			all = append(all, Span{Start: s.Start, End: s.End})
		}
	}
	return all
}

// ended returns the answer by which a task was finished before an instant, if it was.
func (c *taskJudge) ended(before time.Time) (by Span, ok bool) {
	for _, d := range c.Deliveries {
		if s := d.recorded(); s != nil && s.End.Before(before) {
			return s.Span, true
		}
	}
	for _, x := range c.Changes {
		if x.Kind == Cancel && x.Outcome == Done && x.End.Before(before) {
			return x.Span, true
		}
	}
	return Span{}, false
}

// mayHaveEnded returns the request by which a task was finished before an instant, recorded or not,
// or may have been; the zero Span if there is none.
func (c *taskJudge) mayHaveEnded(before time.Time) Span {
	for _, d := range c.Deliveries {
		if s := d.find(Ack, Done, Unknown); s != nil && s.End.Before(before) {
			return s.Span
		}
	}
	for _, x := range c.Changes {
		if x.Kind == Cancel && x.may() && x.End.Before(before) {
			return x.Span
		}
	}
	return Span{}
}

// outOfMemory reports whether Redis has lost the end of a task, and only an earlier process, or an
// earlier owner of its shard, had the record of that.
func (c *taskJudge) outOfMemory(end Span) (why string, ok bool) {
	for _, loss := range c.faults {
		if loss.Lost.IsZero() || !loss.Lost.Before(end.End.Add(c.Patience)) || loss.End.Before(end.Start) {
			continue
		}
		for _, f := range c.faults {
			if f.Trouble.moves() && f.meets(end.Start, loss.End.Add(c.Patience)) {
				return loss.String() + "; " + f.String(), true
			}
		}
	}
	return "", false
}

// moves reports whether a process ends, or others may take over what it has.
func (t Trouble) moves() bool { return t.down() || Fault{Trouble: t}.strays() }
