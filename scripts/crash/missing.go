package crash

import (
	"slices"
	"time"

	"github.com/lapsehq/lapse/scripts/internal/rig"
)

// denied checks an answer by which a task does not exist: a request must be able to have finished
// it. The answer is 404, 201 to a request for an existing task, or a list that leaves it out.
func (c *taskJudge) denied(x *Change) {
	switch {
	case x.Kind.asks() && x.Outcome == Done:
		if !c.Terms.Kept { // as finished, it may be
			c.shown(x)
		}
		return
	case x.Outcome == Missing, x.Anew:
	default:
		return
	}
	kept := c.Terms.Kept && (x.Kind == Look || x.Kind == Exported || x.Anew && x.Kind == Create)
	accepted := false
	for i := range c.Changes {
		other := &c.Changes[i]
		switch {
		case other == x, other.Kind.asks():
		case other.Kind == Cancel && other.Outcome != Refused && other.Start.Before(x.End):
			if !kept || c.keptNot() {
				return
			}
		case other.Outcome == Done && other.End.Before(x.Start):
			accepted = true
		}
	}
	for _, d := range c.Deliveries {
		if s := d.find(Ack, Done, Unknown); s != nil && s.Start.Before(x.End) && (!kept || c.keptNot()) {
			return
		}
	}
	if !accepted || x.Kind == Cancel && c.interrupted(x.Span) || x.Kind == Listed && !c.still(x) || x.Kind == Requeue && !c.surelyDead(x) {
		return
	}
	if loss, ok := c.lostDead(); ok && loss.Start.Before(x.End) {
		c.excused = append(c.excused, "unknown to "+x.by()+", lost when it was dead: "+loss.String())
		return
	}
	if node, down := c.spooledAt(x); down {
		c.excused = append(c.excused, "unknown to "+x.by()+": it is in the spool of "+node+", which is down")
		return
	}
	end, finished := c.ended(x.Start)
	finished = finished && kept
	if !finished {
		end = c.mayHaveEnded(x.Start)
	}
	if why, ok := c.outOfMemory(end); kept && ok {
		c.excused = append(c.excused, "not kept, says "+x.by()+"; "+why)
		return
	}
	switch {
	case finished && x.Anew:
		c.breaks(NotKept, x.Span, "made again by %s, and the task was finished and is kept", x.by())
	case finished:
		c.breaks(NotKept, x.Span, "unknown to %s in a %s, and the task was finished and is kept", x.by(), x.Kind)
	case x.Kind == Exported:
		c.breaks(LeftOut, x.Span, "left out of an export by %s, and no request had finished it", x.by())
	case x.Anew:
		c.breaks(MadeTwice, x.Span, "made again by %s, and no request had finished it", x.by())
	case x.Kind == Listed:
		c.breaks(LeftOut, x.Span, "left out of a list by %s, and no request had touched it", x.by())
	default:
		c.breaks(WrongMissing, x.Span, "answered 404 by %s, and no request had finished it", x.by())
	}
}

func (x *Change) by() string { return x.Node + " " + rig.Stamp(x.Start) + "-" + rig.Stamp(x.End) }

// still reports whether a task was pending during all of a list: a task that moves meanwhile may be
// left out, and a dead one is.
func (c *taskJudge) still(x *Change) bool {
	for i := range c.Changes {
		other := &c.Changes[i]
		if other == x || other.Kind.asks() || other.Outcome == Refused {
			continue
		}
		if other.Start.Before(x.End) && !c.lands(other).Before(x.Start) || !other.Due.IsZero() && other.Due.Before(x.End.Add(time.Second)) {
			return false
		}
	}
	return !slices.ContainsFunc(c.Deliveries, func(d *Delivery) bool { return d.Start.Before(x.End) })
}

// spooledAt reports whether only one node's disk may have the task, and whether that node was down.
// Other nodes cannot know of it then.
func (c *taskJudge) spooledAt(x *Change) (node string, down bool) {
	for _, other := range c.Changes {
		if !other.Spooled {
			continue
		}
		for _, f := range c.faults {
			if f.Node == other.Node && f.Trouble.down() && f.meets(x.Start, x.End) {
				return f.Node, true
			}
		}
	}
	return "", false
}

// keptNot reports whether a task is not kept when it is finished: only a spool has it
// (docs/http.md, "Finished tasks").
func (c *taskJudge) keptNot() bool {
	return slices.ContainsFunc(c.Changes, func(x Change) bool { return x.Spooled })
}

// down reports whether the process of a node does not run.
func (t Trouble) down() bool {
	return t == Killed || t == Restarted || t == HandedOver || t == Drained
}

// shown checks that a task in an answer had not been cancelled.
func (c *taskJudge) shown(x *Change) {
	for i := range c.Changes {
		other := &c.Changes[i]
		if other.Kind != Cancel || other.Outcome != Done || other.Group || !other.End.Before(x.Start) {
			continue
		}
		if !c.remade(other, &Delivery{Span: x.Span}) {
			c.breaks(ShownAfter, x.Span, "shown by %s after its cancellation was answered with 204", x.by())
			return
		}
	}
}

// named checks that a task is delivered under the id that its creation was answered.
func (c *taskJudge) named(d *Delivery) {
	if d.ID == "" {
		return
	}
	told := ""
	for _, x := range c.Changes {
		if x.Kind == Create && x.Outcome == Done && x.ID != "" {
			if told = x.ID; told == d.ID {
				return
			}
		}
	}
	if told != "" {
		c.breaks(WrongID, d.Span, "created as %s, and delivered as %s by %s", told, d.ID, d.by())
	}
}

// besides reports whether the cancellation of a group may have left a task out: it was not surely
// in the group yet, it was dead, or only the disk of a node that was down had it.
func (c *taskJudge) besides(x *Change) bool {
	for i := range c.Changes {
		y := &c.Changes[i]
		if (y.Kind == Create || y.Kind == Import || y.Kind == Replace || y.Kind == Requeue) && y.may() && !c.lands(y).Before(x.Start) {
			return true
		}
	}
	_, down := c.spooledAt(x)
	return down || c.dead(x.Start)
}

// remade reports whether the task may have been created again after a cancellation, and before a
// delivery.
func (c *taskJudge) remade(x *Change, d *Delivery) bool {
	return slices.ContainsFunc(c.Changes, func(y Change) bool {
		return (y.Kind == Create || y.Kind == Replace || y.Kind == Requeue) && y.may() &&
			y.Start.Before(d.End) && !c.lands(&y).Before(x.Start)
	})
}

// dead reports whether the task may have been dead at an instant.
func (c *taskJudge) dead(at time.Time) bool {
	return slices.ContainsFunc(c.Deliveries, func(d *Delivery) bool {
		s := d.find(Bury, Done, Unknown)
		return s != nil && s.Start.Before(at)
	})
}

// lostDead reports whether all that Redis had of the task was lost, and no node may have had it in
// memory: it was created, for the last time, after the moment to which Redis went back, and died
// before that was noticed. Memory has the record of a dead task as long as the process lives in
// which it died, and its shard stays there.
func (c *taskJudge) lostDead() (loss Fault, ok bool) {
	anew := c.anew()
	for _, f := range c.faults {
		if f.Lost.IsZero() {
			continue
		}
		// Whichever request created it, the write came after that moment.
		made := slices.ContainsFunc(c.Changes, func(x Change) bool {
			return (x.Kind == Create || x.Kind == Replace) && x.may() && !x.Start.Before(anew) && c.lands(&x).Before(f.Lost)
		})
		died := slices.ContainsFunc(c.Deliveries, func(d *Delivery) bool {
			s := d.find(Bury, Done, Unknown)
			return s != nil && s.Start.Before(f.End) && c.lands(&Change{Span: s.Span, Outcome: s.Outcome}).After(f.Lost)
		})
		if !made && died && c.outlivedItsMemory(f) {
			return f, true
		}
	}
	return Fault{}, false
}

// outlivedItsMemory reports whether a process has ended, or a shard may have moved, between the
// first death of the task and the time in which a loss was noticed.
func (c *taskJudge) outlivedItsMemory(loss Fault) bool {
	return slices.ContainsFunc(c.Deliveries, func(d *Delivery) bool {
		s := d.find(Bury, Done, Unknown)
		if s == nil {
			return false
		}
		_, ok := c.outOfMemory(s.Span)
		return ok && s.Start.Before(loss.End)
	})
}

// surelyDead reports whether the task was dead when a requeue was requested.
func (c *taskJudge) surelyDead(x *Change) bool {
	for i := range c.Changes {
		other := &c.Changes[i]
		if other != x && other.Kind == Requeue && other.Outcome != Refused && other.Start.Before(x.End) {
			return false // it may be back already
		}
	}
	return slices.ContainsFunc(c.Deliveries, func(d *Delivery) bool {
		s := d.find(Bury, Done)
		return s != nil && s.Recorded && s.End.Before(x.Start)
	})
}

// revived reports whether the task was requeued after the receiver of a delivery had buried it, and
// before another delivery.
func (c *taskJudge) revived(before, d *Delivery) bool {
	s := before.find(Bury, Done, Unknown)
	return s != nil && slices.ContainsFunc(c.Changes, func(x Change) bool {
		return x.Kind == Requeue && x.may() && x.Start.Before(d.End) && s.Start.Before(c.lands(&x))
	})
}
