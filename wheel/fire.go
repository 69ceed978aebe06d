package wheel

import "time"

// fireDue has the loop fire what is due, a batch at a time. The mutex is held only while a batch
// is filled: others add and cancel in between, and what is still in the wheel can be cancelled.
func (r *Runner) fireDue() {
	buf := r.borrow()
	defer r.giveBack(buf)
	for more := true; more; {
		var n int
		n, more = r.fillOwn(buf)
		if n > 0 {
			r.fire(buf[:n])
		}
		r.firing.Store(false)
	}
}

// fillOwn fills buf with values that are due, for the loop.
func (r *Runner) fillOwn(buf []uint64) (n int, more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, false
	}
	n, more = r.fillLocked(buf)
	r.turns++
	r.stalled = false
	r.firing.Store(n > 0)
	r.beatLocked()
	return n, more
}

func (r *Runner) fillLocked(buf []uint64) (n int, more bool) {
	n, more = r.wheel.take(r.readClockLocked(), buf)
	r.offerLocked()
	return n, more
}

// readClockLocked reads the clock, and moves the wheel's present there as far
// as that goes without anything falling due; or back, if the clock was set back.
func (r *Runner) readClockLocked() (now int64) {
	now = r.millis()
	if was := r.wheel.present(); now < was {
		r.wheel.SetBack(now)
		// Elements due up to alarmLead later have left the queue, or may have.
		// The others still wait there.
		for b, at := range r.queued {
			if at <= was+alarmLead.Milliseconds() {
				r.queued[b] = notQueued
			}
		}
		r.offerLocked()
		return now
	}
	r.wheel.skip(now)
	return now
}

// millis is the clock in Unix milliseconds. It is truncated, so a timer that is due by it is due on
// the clock itself.
func (r *Runner) millis() int64 { return r.clock().UnixMilli() }

// nextMillis is what the poller goes by: the clock, and as much ahead of it as elements leave the
// queue early.
func (r *Runner) nextMillis() int64 { return r.millis() + alarmLead.Milliseconds() }

// left is for how long e waits outside of the queue. It is 0 for a nudge, and for an element that
// is far ahead of its time, which goes back into the queue.
func (r *Runner) left(e *element) time.Duration {
	if e == nudge {
		return 0
	}
	left := time.UnixMilli(e.at).Sub(r.clock())
	if left > alarmLead {
		return 0
	}
	return left
}

func (r *Runner) borrow() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.buffers); n > 0 {
		buf := r.buffers[n-1]
		r.buffers = r.buffers[:n-1]
		return buf
	}
	return make([]uint64, batchSize)
}

func (r *Runner) giveBack(buf []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buffers = append(r.buffers, buf)
}
