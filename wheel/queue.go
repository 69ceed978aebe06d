package wheel

import (
	"math"
	"math/bits"
	"time"
)

// How buckets wait. For each bucket that becomes occupied, an element is put
// into the delay queue, with the bucket's start as its time. When the element
// comes out, the loop advances the wheel to whatever the clock says then. So an
// element whose bucket was emptied by cancels, or dealt with by Overdue, does no
// harm; and the element of an occupied bucket must never be missing. What a bucket
// leaves over needs no other: the loop goes on until nothing is left over, and a
// caller of Overdue takes no element out of the queue.
//
// Offer hands a wake-up to the poller without a buffer, and would block for ever
// once the poller has gone. Therefore every Offer is made under the Runner's
// mutex, with closed still false, and Close tells the poller to exit only after
// setting closed under that mutex. Under it Offer blocks no longer than the
// poller takes to get to its select: the poller needs no lock of ours, and it is
// asleep, the only state in which Offer waits for it, only right before the
// select that receives the wake-up.

// element is what waits in the queue.
type element struct {
	at int64 // Unix milliseconds; notQueued for a nudge
}

// notQueued is the queued time of a bucket of which no element is in the queue,
// and the queue's time of a nudge: before all others.
const notQueued = math.MinInt64

var nudge = &element{at: notQueued}

// longestWait bounds how far ahead an element is put into the queue: the poller
// computes its wait in nanoseconds, and would overflow. An element that comes
// out before its time goes in again.
const longestWait = int64(365 * 24 * time.Hour / time.Millisecond)

// opens reports whether an entry for due would be the first of its bucket.
func (w *Wheel) opens(due int64) bool {
	return w.buckets[w.bucketOf(w.ceil(due))].head == 0
}

// offerLocked puts an element into the queue for every bucket that has become
// occupied since the last time and still is.
func (r *Runner) offerLocked() {
	w := r.wheel
	if !w.opened {
		return
	}
	w.opened = false
	for level := range w.fresh {
		for i, word := range w.fresh[level] {
			word &= w.occupied[level][i]
			w.fresh[level][i] = 0
			for ; word != 0; word &= word - 1 {
				r.offerBucketLocked(level*slots + i*64 + bits.TrailingZeros64(word))
			}
		}
	}
	if w.buckets[overdue].head != 0 {
		r.nudgeLocked()
	}
}

func (r *Runner) offerBucketLocked(b int) {
	at := r.wheel.millis(r.wheel.start(b))
	if r.queued[b] == at && at > r.wheel.present() {
		return // it was emptied and filled again; its element still waits
	}
	r.queued[b] = at
	var e *element
	if n := len(r.spare); n > 0 {
		e, r.spare = r.spare[n-1], r.spare[:n-1]
	} else {
		e = new(element)
	}
	e.at = at
	r.putLocked(e)
}

func (r *Runner) putLocked(e *element) {
	r.queue.Offer(e, min(e.at, r.wheel.present()+longestWait))
}

func (r *Runner) nudgeLocked() {
	if !r.nudged {
		r.nudged = true
		r.queue.Offer(nudge, nudge.at)
	}
}

// Nudge makes the Runner read its clock again now. Code that learns that the clock was stepped, or
// that the machine has slept, should call it: the queue waits on the monotonic clock, which does
// not show the one and may not show the other. It is cheap, and may be called at any time.
func (r *Runner) Nudge() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.nudgeLocked()
	}
}

// taken handles an element that has come out of the queue.
func (r *Runner) taken(e *element) {
	if e == nudge {
		r.mu.Lock()
		r.nudged = false // before the clock is read: a later Nudge is another
		r.mu.Unlock()
	}
	r.fireDue()

	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || e == nudge:
	case e.at > r.wheel.present():
		// Out before its time: because of longestWait, or the clock was set
		// back after the poller had read it.
		r.putLocked(e)
	default:
		r.spare = append(r.spare, e)
	}
}
