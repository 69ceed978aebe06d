package wheel

import "time"

// When the Runner's goroutine, the loop, fires nothing, a caller of Overdue takes its place. A loop
// that is late is no fault of its own: after the process was paused, or the clock was set, loop and
// caller find the same timers overdue at the same time. So the caller leaves what is overdue to the
// loop as long as that moves, and waits for it in several short naps instead of a long one. A pause
// of the process makes one nap long, and in each of the others the loop, which has been awake since
// the pause, has its turn.

const (
	// slack is for how long something may be overdue before a caller of Overdue asks why.
	slack = 100 * time.Millisecond
	// A loop that does not move stalls after so many naps, and after more while it calls Fire.
	nap, idleNaps, firingNaps = 20 * time.Millisecond, 5, 50
)

// Overdue makes up for a loop that does not move: it passes whatever is due to fire, on the
// caller's goroutine, a batch at a time, and returns how many values these were. It returns 0, and
// takes nothing, while the loop moves, however late that is. It waits for the loop for up to 1 s,
// but not if at now, in Unix milliseconds, nothing had been overdue for 100 ms. A caller that calls
// Nudge after steps of the clock passes the time by which it has looked for one: the loop was told
// of all that is overdue then. No lock is held while fire runs.
func (r *Runner) Overdue(now int64, fire func(values []uint64)) (fired int) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return 0
	}
	r.running.Add(1)
	defer r.running.Done()
	left := r.wheel.Len() // concurrent adds must not keep the caller here for ever
	r.mu.Unlock()
	if !r.waitStalled(now) {
		return 0
	}
	buf := r.borrow()
	defer r.giveBack(buf)
	for more := true; more && left > 0; {
		var n int
		n, more = r.fillStalled(buf)
		if n > 0 {
			fire(buf[:n])
		}
		fired, left = fired+n, left-n
	}
	return fired
}

// Stalled reports whether a call of Overdue has found that the loop does not move, and the loop has
// not moved since.
func (r *Runner) Stalled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stalled
}

// IsLost reports whether the value of t, whose time has come, will reach neither Fire nor a caller
// of Overdue any more. It is false while t waits, and while the loop calls Fire, perhaps with that
// value, unless the loop has stalled. It is true once the Runner is closed. It is meant for a
// caller whose lock keeps Fire from ending.
func (r *Runner) IsLost(t Timer) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return true
	}
	if r.firing.Load() && !r.stalled {
		return false
	}
	_, _, waits := r.wheel.slab.find(t)
	return !waits
}

// waitStalled reports whether something was overdue at now that the loop does not fire.
func (r *Runner) waitStalled(now int64) bool {
	turns, behind, stalled := r.progress(now)
	for i := 0; behind && !stalled; i++ {
		if i >= idleNaps && !r.firing.Load() || i >= firingNaps {
			return r.stall(turns)
		}
		timer := time.NewTimer(nap)
		select {
		case <-timer.C:
		case <-r.exit:
			timer.Stop()
			return false
		}
		var since uint64
		if since, behind, stalled = r.progress(now); since != turns {
			return false
		}
	}
	return behind
}

// progress tells how far the loop has come, whether the wheel was behind at now, and whether the
// loop is known to stall.
func (r *Runner) progress(now int64) (turns uint64, behind, stalled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return r.turns, false, false
	}
	now = min(now, r.readClockLocked()) // it may have been set back since
	if !r.stalled {
		now -= slack.Milliseconds()
	}
	return r.turns, r.wheel.isBehind(now), r.stalled
}

// stall notes that the loop does not move. It reports false if the loop has moved meanwhile.
func (r *Runner) stall(turns uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stalled = !r.closed && r.turns == turns
	return r.stalled
}

// fillStalled fills buf with values that are due, as long as the loop does not move.
func (r *Runner) fillStalled(buf []uint64) (n int, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || !r.stalled {
		return 0, false
	}
	return r.fillLocked(buf)
}
