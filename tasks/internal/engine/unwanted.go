package engine

import "time"

// A deliverer may have receivers, and none that wants a certain task (task.ErrUnwanted). The task
// is a stray then. Some strays are tried again each second, and all once a receiver may have come,
// in a pass of small steps. Strays come behind all that is due, and a step waits until those of the
// step before have been tried. So tasks that are wanted never stand behind many that are not.

const (
	// tryAfter is how long tasks that no receiver wants are left alone.
	tryAfter = time.Second
	// triedAtOnce is how many are tried then.
	triedAtOnce = 64
	// stepAfter is between two steps of a pass, each of AtOnce tasks.
	stepAfter = 5 * time.Millisecond
	// passShare bounds the share of the time that passes take: one in so many.
	passShare = 5
)

// unwantedTasks is what a topic knows of its strays that no receiver wants. Times are Elapsed.
type unwantedTasks struct {
	any   bool // there may be such
	timer *time.Timer
	came  time.Duration // when a receiver may have come, the last time

	left  int           // tasks that the pass still has to try; 0: there is none
	began time.Duration // the pass
	rest  time.Duration // no pass begins before
	again bool          // a further one is due

	stepped int64 // when strays were put into the queue, the last time, in Unix milliseconds
}

// returnOf returns how a task is ready again that comes back from a delivery: outside of the queue
// if no receiver wants it, and none has come since the delivery began.
func returnOf(s *Engine, t *Topic, n uint32, aside bool, how arrival) arrival {
	if !aside || s.Dispatch.Leases[n].Began < t.unwanted.came {
		return how
	}
	t.Line.Spend(-1)
	return unwanted
}

// tryLaterLocked has tasks tried in a while that no receiver wants.
func tryLaterLocked(s *Engine, t *Topic) {
	u := &t.unwanted
	if u.timer != nil || s.Ended {
		return
	}
	after := tryAfter
	if u.left > 0 {
		after = stepAfter
	}
	u.timer = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.unlock()
		u.timer = nil
		tryUnwantedLocked(s, t)
	})
}

// seekLocked has all tasks tried that no receiver wants: one may have come.
func seekLocked(s *Engine, t *Topic) {
	u := &t.unwanted
	u.came = s.Elapsed()
	if !u.any {
		return
	}
	if u.again = true; u.left > 0 || u.came < u.rest {
		return
	}
	if u.timer != nil {
		u.timer.Stop()
		u.timer = nil
	}
	tryUnwantedLocked(s, t)
}

// tryUnwantedLocked takes a step of a pass, or tries some tasks.
func tryUnwantedLocked(s *Engine, t *Topic) {
	u := &t.unwanted
	if u.any = u.any && t.Strays.Live > 0; !u.any || s.Ended {
		u.left, u.again = 0, false
		return
	}
	now := s.Elapsed()
	if u.again && u.left == 0 && now >= u.rest {
		u.again, u.began, u.left = false, now, t.Strays.Count
	}
	first, ok := t.OldestReady(staleLooks, s.Store.Stale)
	setBack := u.stepped > s.Now() // the clock
	if t.returning == 0 && (!ok || setBack || first > u.stepped) {
		some := triedAtOnce
		if u.left > 0 {
			some = min(AtOnce, u.left)
			if u.left -= some; u.left == 0 {
				u.rest = now + (passShare-1)*(now-u.began)
			}
		}
		s.returnStraysLocked(t, some)
	}
	tryLaterLocked(s, t)
}
