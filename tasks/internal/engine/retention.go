package engine

import (
	"math"
	"time"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine/deadindex"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
)

const (
	// SweptDeadAtOnce bounds how many of the dead the sweep looks at in one period.
	SweptDeadAtOnce = 20 * RedrivenAtOnce
	// After the wall clock was set forward by more than clockLeap, or the machine has
	// slept for so long, nothing is deleted for clockRest: a wrong time is often mended
	// soon, and until then all seem to have been dead for long.
	clockLeap = time.Minute
	clockRest = time.Hour
)

// retentionLoop deletes the tasks that have been dead for longer than TopicSettings.DeadRetention,
// and finished ones that were kept for longer than TopicSettings.KeepFinished, once in every period
// of the sweep. It has a goroutine of its own: when the ledger does not
// answer, the sweep goes on.
func (s *Engine) retentionLoop() {
	u := retentionSweeper{Engine: s}
	s.Life.Every(s.Config.SweepEvery, func() {
		if s.IsReplayed() {
			u.round()
		}
	})
}

// A retentionSweeper deletes dead tasks that were kept for as long as their topics' settings say.
type retentionSweeper struct {
	*Engine
	at          int  // position of the topic where it goes on
	unreachable bool // the ledger did not answer the last time
	position    deadPosition

	clock clockWatch
	rest  time.Duration // on the monotonic clock: until then nothing is deleted
}

// A deadPosition is how far the sweeper has come in a topic.
type deadPosition struct {
	topic  *Topic
	after  recovery.Ref // the last task that was looked at
	missed bool         // another caller was about to change one of the tasks up to that one
}

// round visits in turn the topics whose oldest dead were kept for long enough. It deletes at most
// SweptDeadAtOnce tasks and ends when the ledger fails. The next round goes on from there.
func (u *retentionSweeper) round() {
	now := u.readClock()
	left := SweptDeadAtOnce
	for passed := 0; left > 0 && u.Breathe(); {
		t, ok := u.next(now, &passed)
		if !ok {
			break
		}
		looked, over, err := u.expireTopic(t, now, min(left, RedrivenAtOnce))
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

// readClock returns the time of the wall clock, in Unix ms, by which the age of the dead is judged.
// For a while after the clock was set forward it returns math.MinInt64, so that no task is deleted.
func (u *retentionSweeper) readClock() int64 {
	// Both are read for this round alone. The sweep looks for steps too; but a
	// task that is deleted must be judged by a time that was itself compared.
	wall, mono := u.Config.Clock(), u.Elapsed()
	if step := u.clock.step(wall, mono); step > clockLeap {
		u.rest = mono + clockRest
		u.Config.Log.Warn("the wall clock was set forward; no dead task is deleted for a while",
			"node", u.Config.Node, "by", step.Round(time.Millisecond), "for", clockRest)
	}
	if mono < u.rest {
		return math.MinInt64
	}
	return wall.UnixMilli()
}

// tell logs once that the ledger fails, and once that it answers again.
func (u *retentionSweeper) tell(err error) {
	switch {
	case err != nil && !u.unreachable && !u.IsClosing():
		u.Config.Log.Warn("dead tasks cannot be deleted at the moment", "node", u.Config.Node, "error", err)
	case err == nil && u.unreachable:
		u.Config.Log.Info("dead tasks can be deleted again", "node", u.Config.Node)
	}
	u.unreachable = err != nil
}

// next returns the next topic that has to be visited. passed counts the topics that were passed
// over or visited in this round. next reports false when passed counts all of them.
func (u *retentionSweeper) next(now int64, passed *int) (*Topic, bool) {
	for {
		t, over := u.scanTopics(now, passed)
		if t != nil || over {
			return t, t != nil
		}
	}
}

// scanTopics looks at up to AtOnce topics under one lock. It returns the first one with dead tasks
// to delete, and reports over if the round has come to its end.
func (u *retentionSweeper) scanTopics(now int64, passed *int) (found *Topic, over bool) {
	u.mu.Lock()
	defer u.unlock()
	total := len(u.TopicTable.ByNumber)
	for n := 0; n < AtOnce && *passed < total; n++ {
		if u.at >= total {
			u.at = 0
		}
		if t := u.TopicTable.ByNumber[u.at]; t.Gauges[task.Dead] > 0 && t.Oldest.IsDue(t.keepsSince(now)) {
			return t, false
		}
		u.at++
		*passed++
	}
	return nil, *passed >= total
}

// keepsSince returns the latest time of death, in Unix ms, at which a task is deleted now. Finished
// tasks are not deleted while it is not known for how long they are to be kept.
func (t *Topic) keepsSince(now int64) int64 {
	switch {
	case now == math.MinInt64, t.of != nil && t.of.unknownSettings():
		return math.MinInt64
	case t.of != nil:
		return now - record.RoundUpMillis(t.of.Settings.KeepFinished)
	}
	return now - t.Settings.DeadRetention.Milliseconds()
}

// expireTopic looks at up to limit dead tasks of a topic, the longest dead first, and deletes those
// that were kept for long enough. It notes when the first of the others died. It returns how many
// tasks it has looked at, and reports over if no more of the topic are to be deleted.
func (u *retentionSweeper) expireTopic(t *Topic, now int64, limit int) (looked int, over bool, err error) {
	if u.position.topic != t {
		u.position = deadPosition{topic: t}
	}
	u.mu.Lock()
	x := Redrive{Engine: u.Engine, Topic: t.Name, Op: OpExpire, kept: t.of != nil, Until: t.keepsSince(now)}
	t.Oldest.Ask(u.position.after == recovery.Ref{})
	u.unlock()

	found, err := u.look(&x, limit)
	if err == nil && len(found.ids) > 0 {
		err = x.Piece(u.Life.Context, found.ids)
		u.position.missed = u.position.missed || x.missed
	}

	again := err != nil || !found.over || u.position.missed
	u.mu.Lock()
	defer u.unlock()
	if again {
		t.Oldest.Stop()
	} else {
		t.Oldest.Learn(found.next)
	}
	if !again && found.next == deadindex.None && t.Gauges[task.Dead] > 0 {
		u.doubtDeadLocked() // memory counts some, and the ledger has none
	}
	return found.looked, found.over, err
}

// expiredDead is one piece of a topic's list of dead tasks, as the sweeper has read it.
type expiredDead struct {
	looked int      // how many tasks were read
	ids    []string // of those that were kept for long enough
	next   int64    // when the first of the others died; deadindex.None if there is none
	over   bool     // the piece ends with the first of the others, or with the list
}

// look reads the next piece of the list of a topic's dead, of at most limit tasks.
func (u *retentionSweeper) look(x *Redrive, limit int) (f expiredDead, err error) {
	f.next, f.over = deadindex.None, true
	ctx, cancel := u.Within(u.Life.Context)
	defer cancel()
	err = u.Ledger.ListDead(ctx, x.Topic, u.position.after, func(e recovery.Entry) bool {
		if f.looked == limit {
			f.over = false
			return false
		}
		f.looked++
		u.position.after = recovery.Ref{ID: string(e.ID), Next: e.Spot.At}
		if e.Spot.At <= x.Until {
			f.ids = append(f.ids, u.position.after.ID)
			return true
		}
		u.mu.Lock()
		defer u.unlock()
		// Otherwise the ledger has lost that it was taken from there.
		if u.OutsideLocked(u.Store.Hash(e.ID)).Buried() {
			f.next = e.Spot.At
		}
		return f.next == deadindex.None
	})
	return f, err
}
