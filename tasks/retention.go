package tasks

import (
	"math"
	"time"

	"github.com/lapsehq/lapse/recovery"
)

const (
	// sweptDeadAtOnce bounds how many of the dead the sweep looks at in one period.
	sweptDeadAtOnce = 20 * redrivenAtOnce
	// After the wall clock was set forward by more than clockLeap, or the machine has
	// slept for so long, nothing is deleted for clockRest: a wrong time is often mended
	// soon, and until then all seem to have been dead for long.
	clockLeap = time.Minute
	clockRest = time.Hour
)

// retentionLoop deletes, once in every period of the sweep, who has been dead for
// longer than TopicSettings.DeadRetention. It has a goroutine of its own: when the ledger
// does not answer, the sweep goes on.
func (s *engine) retentionLoop() {
	tick := time.NewTicker(s.cfg.SweepEvery)
	defer tick.Stop()
	u := retentionSweeper{engine: s}
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

// A retentionSweeper deletes the dead that were kept for as long as their topics say.
type retentionSweeper struct {
	*engine
	at          int  // position of the topic where it goes on
	unreachable bool // the ledger did not answer the last time
	position    deadPosition

	wall time.Time     // of the round before, to notice steps of the clock
	mono time.Duration // of the round before
	rest time.Duration // on the monotonic clock: until then nothing is deleted
}

// A deadPosition is how far the sweeper has come in a topic.
type deadPosition struct {
	topic  *topic
	after  recovery.Ref // the last one that it has looked at
	missed bool         // another caller was about to change one of those before
}

// round visits the topics in turn whose oldest dead were kept long enough. What
// it does not get done is left to the next one, and so is everything else once the
// ledger has failed.
func (u *retentionSweeper) round() {
	now := u.readClock()
	left := sweptDeadAtOnce
	for passed := 0; left > 0 && u.breathe(); {
		t, ok := u.next(now, &passed)
		if !ok {
			break
		}
		looked, over, err := u.misfirePass(t, now, min(left, redrivenAtOnce))
		if u.tell(err); err != nil {
			u.position = deadPosition{}
			return
		}
		if left -= looked; over {
			u.at, u.position = u.at+1, deadPosition{}
			passed++
		}
	}
}

// readClock returns the wall clock, in Unix ms, by which the dead are judged: the time
// before all of them while it is not to be trusted.
func (u *retentionSweeper) readClock() int64 {
	// Both are read for this round alone. The sweep looks for steps too; but a
	// task that is deleted must be judged by a time that was itself compared.
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

// tell logs an outage once.
func (u *retentionSweeper) tell(err error) {
	switch {
	case err != nil && !u.unreachable && !u.isClosing():
		u.cfg.Log.Warn("dead tasks cannot be deleted at the moment", "node", u.cfg.Node, "error", err)
	case err == nil && u.unreachable:
		u.cfg.Log.Info("dead tasks can be deleted again", "node", u.cfg.Node)
	}
	u.unreachable = err != nil
}

// next returns the next topic that has to be visited. passed counts those that were
// passed over or visited: it ends when that is all of them.
func (u *retentionSweeper) next(now int64, passed *int) (*topic, bool) {
	for {
		t, over := u.load(now, passed)
		if t != nil || over {
			return t, t != nil
		}
	}
}

// search looks at some topics under one lock.
func (u *retentionSweeper) load(now int64, passed *int) (found *topic, over bool) {
	u.mu.Lock()
	defer u.unlock()
	total := len(u.byNumber)
	for n := 0; n < atOnce && *passed < total; n++ {
		if u.at >= total {
			u.at = 0
		}
		if t := u.byNumber[u.at]; t.gauges[Dead] > 0 && (t.oldest.gone || t.oldest.at <= t.keepsSince(now)) {
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
func (u *retentionSweeper) misfirePass(t *topic, now int64, limit int) (looked int, over bool, err error) {
	if u.position.topic != t {
		u.position = deadPosition{topic: t}
	}
	u.mu.Lock()
	x := redrive{engine: u.engine, topic: t.name, op: opExpire, until: t.keepsSince(now)}
	before := t.oldest.askLocked()
	u.unlock()

	found, err := u.look(&x, limit)
	if err == nil && len(found.ids) > 0 {
		err = x.piece(u.ctx, found.ids)
		u.position.missed = u.position.missed || x.missed
	}

	again := err != nil || !found.over || u.position.missed
	answer := found.next
	if again {
		answer = before
	}
	u.mu.Lock()
	defer u.unlock()
	t.oldest.learnLocked(before, answer)
	t.oldest.gone = t.oldest.gone || again
	if !again && answer == noneDead && t.gauges[Dead] > 0 {
		u.doubtDeadLocked() // memory counts some, and the ledger has none
	}
	return found.looked, found.over, err
}

// A find is what the sweeper has seen of a topic.
type find struct {
	looked int      // how many
	ids    []string // of those that were kept long enough
	next   int64    // when the first of the others died; noneDead if there is none
	over   bool     // it has come to that one, or to the end
}

// look reads on where it has stopped the last time.
func (u *retentionSweeper) look(x *redrive, limit int) (f find, err error) {
	f.next, f.over = noneDead, true
	ctx, cancel := u.within(u.ctx)
	defer cancel()
	err = u.ledger.ListDead(ctx, x.topic, u.position.after, func(e recovery.Entry) bool {
		if f.looked == limit {
			f.over = false
			return false
		}
		f.looked++
		u.position.after = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if e.Spot.At <= x.until {
			f.ids = append(f.ids, u.position.after.ID)
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
