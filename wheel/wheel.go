package wheel

import (
	"math"
	"math/bits"
)

// Wheel is a hierarchical timing wheel. It has no lock, no clock and no
// goroutine: times are passed in, and its methods must not be called
// concurrently. Make one with [New].
//
// A worked example, with a tick of 1 ms and the present at tick 1000, which is
// 3·256 + 232. An entry due at tick 1010 (3·256 + 242) differs in its last byte
// only: level 0, slot 242. One due at 1100 (4·256 + 76) differs in the byte
// before: level 1, slot 4. That slot begins at tick 4·256 = 1024. When the
// present gets there, the bucket is cascaded: the entry now differs in its last
// byte only and moves to level 0, slot 76, from where it is emitted at 1100.
//
// Thus every bucket has one absolute start, whatever was added when; a level
// holds only what is later than all that the levels below it hold; and the
// earliest bucket is the first occupied slot of the lowest occupied level.
//
// A bucket with more entries than fit into a batch would keep all later ones
// waiting. So it gives way: what is left of it moves to the leftover, which has
// half of each batch, and the buckets after it have the other half.
type Wheel struct {
	tick int64  // milliseconds
	now  uint64 // the present; see ceil for the unit
	len  int
	slab slab

	buckets  [buckets]bucket
	occupied [levels]slotSet // which buckets of the levels have entries
	inUse    uint64          // which levels have entries

	// What has become occupied since it was last asked for: the Runner's
	// cue to let these buckets wait in its queue.
	fresh  [levels]slotSet
	opened bool // some bucket has; perhaps the one of the overdue

	batch []uint64 // lent to Advance's emit
}

// batchSize is how many values are emitted at once, and how many entries are moved before the
// Runner releases its mutex: some 100 µs of work.
const batchSize = 4096

// New returns an empty wheel whose present is now, in Unix milliseconds. The
// tick is the resolution in milliseconds; it panics if that is below 1.
func New(tick int64, now int64) *Wheel {
	if tick < 1 {
		panic("wheel: a tick is at least one millisecond")
	}
	w := &Wheel{tick: tick}
	w.now = w.floor(now)
	return w
}

// Len returns the number of entries that wait.
func (w *Wheel) Len() int { return w.len }

// Add arms value for due, in Unix milliseconds, rounded up to a multiple of the
// tick. What is then past due is emitted by the next Advance. The Timer cancels
// it.
func (w *Wheel) Add(due int64, value uint64) Timer {
	i, e := w.slab.get()
	e.tick = w.ceil(due)
	e.value = value
	w.link(i, e, w.bucketOf(e.tick))
	w.len++
	return e.timer(i)
}

// Cancel disarms t and returns its value. It reports false if t has been
// emitted or cancelled, or never existed.
func (w *Wheel) Cancel(t Timer) (value uint64, ok bool) {
	i, e, ok := w.slab.find(t)
	if !ok {
		return 0, false
	}
	value = e.value
	w.unlink(i, e)
	w.slab.put(i, e)
	w.len--
	return value, true
}

// Advance moves the present to now, in Unix milliseconds, and emits whatever is
// due by then: first what was past due when it was added, then the earlier ticks
// before the later. It returns how many there were.
//
// The exception is a bucket of more than half a batch, which is 2048 entries: the
// rest of it is emitted, or cascaded, in turn with what is later.
//
// The slice is valid only during the call of emit. An entry can be cancelled
// until the batch that holds it is emitted. emit may call Add, Cancel, Next and
// Len; what it adds that is due by now is emitted by the same Advance.
//
// A now before the present means that the clock was set back, as in SetBack.
func (w *Wheel) Advance(now int64, emit func(values []uint64)) int {
	if w.batch == nil {
		w.batch = make([]uint64, batchSize)
	}
	total := 0
	for {
		n, more := w.take(now, w.batch)
		if n > 0 {
			emit(w.batch[:n])
		} else if !more {
			return total
		}
		total += n
	}
}

// take is a bounded piece of Advance: together it emits and cascades at most len(buf) entries. It
// fills buf with the values and returns how many there are, and whether there may be more to do.
// The present reaches now when there is no more, or before.
//
// The leftover comes first, with half of buf, then the buckets that are due, and the leftover again
// if they leave room. A bucket that had half of buf and is not empty gives way. So does a coarse
// one in any case: it stands for the present, and no longer for the future.
func (w *Wheel) take(now int64, buf []uint64) (n int, more bool) {
	w.SetBack(now)
	target, half := w.floor(now), len(buf)/2
	n, dealt := w.deal(leftover, buf[:half])
	for dealt < len(buf) {
		room := buf[n : n+len(buf)-dealt]
		b, ok := w.earliest()
		if !ok || w.start(b) > target {
			// No bucket starts in between, so that each entry's highest
			// differing digit stays what it was.
			w.now = target
			k, last := w.deal(leftover, room)
			return n + k, last == len(room)
		}
		w.now = w.start(b)
		k, some := w.deal(b, room)
		if w.buckets[b].head != 0 && (some >= half || isCoarse(b)) {
			w.giveWay(b)
		}
		n, dealt = n+k, dealt+some
	}
	return n, true
}

// first returns the bucket that is to be dealt with next, if any.
func (w *Wheel) first() (b int, ok bool) {
	if w.buckets[leftover].head != 0 {
		return leftover, true
	}
	return w.earliest()
}

// earliest returns the bucket that is to be dealt with next beside the leftover, if any.
func (w *Wheel) earliest() (b int, ok bool) {
	if w.buckets[overdue].head != 0 {
		return overdue, true
	}
	if w.inUse == 0 {
		return 0, false
	}
	level := bits.TrailingZeros64(w.inUse)
	return level*slots + w.occupied[level].first(), true
}

// SetBack adjusts the wheel when the clock was set back to now, in Unix
// milliseconds: what is due between now and the present waits again. Nothing
// happens if now is not before the present. It takes time proportional to the
// entries that were close to being due.
func (w *Wheel) SetBack(now int64) {
	to := w.floor(now)
	if to >= w.now {
		return
	}
	// On the levels above the highest digit that changes, nothing does. On its
	// own level, what was later than the present still is, in the same slot. All
	// below now differs from the present in that digit and gathers in one slot
	// of that level. The overdue and the leftover stay: deal looks at each entry.
	level := digitOf(w.now ^ to)
	w.now = to
	for b := range level * slots {
		w.move(b)
	}
	w.fresh = w.occupied
	w.opened = true
}

// skip moves the present to now, or as near as it gets without anything
// becoming due or having to be cascaded.
func (w *Wheel) skip(now int64) {
	target := w.floor(now)
	if b, ok := w.first(); ok && w.start(b) <= target {
		return
	}
	w.now = max(w.now, target)
}

// Next says when Advance should next be called, in Unix milliseconds: when the
// earliest bucket is to be emitted or cascaded, which is never later than the
// earliest due. It reports false if the wheel is empty.
func (w *Wheel) Next() (at int64, ok bool) {
	b, ok := w.first()
	if !ok {
		return 0, false
	}
	return w.millis(w.start(b)), true
}

// isBehind reports whether something should have been emitted or cascaded by before, in Unix
// milliseconds, or is waiting that was past due when it was added.
func (w *Wheel) isBehind(before int64) bool {
	b, ok := w.first()
	return ok && (b == overdue || w.start(b) < w.ceil(before))
}

// present returns the wheel's time in Unix milliseconds.
func (w *Wheel) present() int64 { return w.millis(w.now) }

// Ticks are kept with the sign bit flipped, so that they compare as unsigned
// numbers, digit by digit, and times before 1970 need no care.
const signBit = 1 << 63

// ceil returns the first tick at or after ms.
func (w *Wheel) ceil(ms int64) uint64 {
	if w.tick == 1 {
		return uint64(ms) ^ signBit
	}
	q := ms / w.tick
	if ms%w.tick > 0 {
		q++
	}
	return uint64(q) ^ signBit
}

// floor returns the last tick at or before ms.
func (w *Wheel) floor(ms int64) uint64 {
	q := ms / w.tick
	if ms%w.tick < 0 {
		q--
	}
	return uint64(q) ^ signBit
}

// millis returns the time of a tick, or the nearest that an int64 can hold.
func (w *Wheel) millis(tick uint64) int64 {
	q := int64(tick ^ signBit)
	switch {
	case q > math.MaxInt64/w.tick:
		return math.MaxInt64
	case q < math.MinInt64/w.tick:
		return math.MinInt64
	}
	return q * w.tick
}
