package tasks

import (
	"math"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// dugAtOnce bounds how many of the dead the sweep looks at in one period.
	dugAtOnce = 20 * exhumedAtOnce
	// After the wall clock was set forward by more than clockLeap, or the machine has
	// slept for so long, nothing is deleted for clockRest: a wrong time is often mended
	// soon, and until then everybody seems to have been dead for long.
	clockLeap = time.Minute
	clockRest = time.Hour
)

// retentionLoop deletes, once in every period of the sweep, who has been dead for
// longer than TopicSettings.DeadRetention. It has a goroutine of its own: when the ledger
// does not answer, the sweep goes on.
func (s *Scheduler) retentionLoop() {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	u := undertaker{Scheduler: s}
	for {
		select {
		case <-tick.C:
			if s.isReplayed() {
				u.round()
			}
		case <-s.closing:
			return
		}
	}
}

// An undertaker sees to it that nobody is kept for longer than the topic says.
type undertaker struct {
	*Scheduler
	at   int  // position of the topic where it goes on
	deaf bool // the ledger did not answer the last time
	dig  digging

	wall time.Time     // of the round before, to notice steps of the clock
	mono time.Duration // of the round before
	rest time.Duration // on the monotonic clock: until then nothing is deleted
}

// digging is how far it has come in a topic.
type digging struct {
	topic  *topic
	after  recovery.Ref // the last one that it has looked at
	missed bool         // somebody else was about to change one of those before
}

// round visits the topics in turn whose longest dead were kept long enough. What
// it does not get done is left to the next one, and so is everything else once the
// ledger has failed.
func (u *undertaker) round() {
	now := u.readClock()
	left := dugAtOnce
	for passed := 0; left > 0 && u.breathe(); {
		t, ok := u.next(now, &passed)
		if !ok {
			break
		}
		looked, over, err := u.visit(t, now, min(left, exhumedAtOnce))
		if u.tell(err); err != nil {
			u.dig = digging{}
			return
		}
		if left -= looked; over {
			u.at, u.dig = u.at+1, digging{}
			passed++
		}
	}
}

// readClock returns the wall clock, in Unix ms, by which the dead are judged: the time
// before all of them while it is not to be trusted.
func (u *undertaker) readClock() int64 {
	// Both are read for this round alone. The sweep looks for steps too; but whoever
	// is deleted must be judged by a time that was itself compared.
	wall, mono := u.cfg.Clock(), u.elapsed()
	step := wall.Round(0).Sub(u.wall.Round(0)) - (mono - u.mono)
	if !u.wall.IsZero() && step > clockLeap {
		u.rest = mono + clockRest
		u.cfg.Log.Warn("the wall clock was set forward; no dead task is deleted for a while",
			"node", u.cfg.Node, "by", step.Round(time.Millisecond), "for", clockRest)
	}
	u.wall, u.mono = wall, mono
	if mono < u.rest {
		return math.MinInt64
	}
	return wall.UnixMilli()
}

// tell logs once an outage.
func (u *undertaker) tell(err error) {
	switch {
	case err != nil && !u.deaf && !u.isClosing():
		u.cfg.Log.Warn("dead tasks cannot be deleted at the moment", "node", u.cfg.Node, "error", err)
	case err == nil && u.deaf:
		u.cfg.Log.Info("dead tasks can be deleted again", "node", u.cfg.Node)
	}
	u.deaf = err != nil
}

// next returns the next topic that has to be visited. passed counts those that were
// passed over or visited: it ends when that is all of them.
func (u *undertaker) next(now int64, passed *int) (*topic, bool) {
	for {
		t, over := u.search(now, passed)
		if t != nil || over {
			return t, t != nil
		}
	}
}

// search looks at some topics under one lock.
func (u *undertaker) search(now int64, passed *int) (found *topic, over bool) {
	u.mu.Lock()
	defer u.unlock()
	total := len(u.byNumber)
	for n := 0; n < atOnce && *passed < total; n++ {
		if u.at >= total {
			u.at = 0
		}
		if t := u.byNumber[u.at]; t.gauges[Dead] > 0 && (t.longest.gone || t.longest.at <= t.keepsSince(now)) {
			return t, false
		}
		u.at++
		*passed++
	}
	return nil, *passed >= total
}

// keepsSince is when the dead must have died, at the latest, to be deleted.
func (t *topic) keepsSince(now int64) int64 {
	if now == math.MinInt64 {
		return now
	}
	return now - t.settings.DeadRetention.Milliseconds()
}

// visit deletes up to limit of those of a topic that were kept long enough, the longest
// dead first, and finds out who is the next to go. It returns how many it has looked at,
// and whether it has come to the end.
func (u *undertaker) visit(t *topic, now int64, limit int) (looked int, over bool, err error) {
	if u.dig.topic != t {
		u.dig = digging{topic: t}
	}
	u.mu.Lock()
	x := exhumation{Scheduler: u.Scheduler, topic: t.name, op: opExpire, until: t.keepsSince(now)}
	before := t.longest.askLocked()
	u.unlock()

	found, err := u.look(&x, limit)
	if err == nil && len(found.ids) > 0 {
		err = x.piece(u.ctx, found.ids)
		u.dig.missed = u.dig.missed || x.missed
	}

	again := err != nil || !found.over || u.dig.missed
	answer := found.next
	if again {
		answer = before
	}
	u.mu.Lock()
	defer u.unlock()
	t.longest.learnLocked(before, answer)
	t.longest.gone = t.longest.gone || again
	if !again && answer == noneDead && t.gauges[Dead] > 0 {
		u.doubtDeadLocked() // memory counts some, and the ledger has none
	}
	return found.looked, found.over, err
}

// A find is what the undertaker has seen of a topic.
type find struct {
	looked int      // how many
	ids    []string // of those that were kept long enough
	next   int64    // when the first of the others died; noneDead if there is none
	over   bool     // it has come to that one, or to the end
}

// look reads on where it has stopped the last time.
func (u *undertaker) look(x *exhumation, limit int) (f find, err error) {
	f.next, f.over = noneDead, true
	ctx, cancel := u.within(u.ctx)
	defer cancel()
	err = u.ledger.ListDead(ctx, x.topic, u.dig.after, func(e recovery.Entry) bool {
		if f.looked == limit {
			f.over = false
			return false
		}
		f.looked++
		u.dig.after = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if e.Spot.At <= x.until {
			f.ids = append(f.ids, u.dig.after.ID)
			return true
		}
		u.mu.Lock()
		defer u.unlock()
		if u.buriedLocked(e.ID) { // else the ledger has lost that it was taken from there
			f.next = e.Spot.At
		}
		return f.next == noneDead
	})
	return f, err
}
