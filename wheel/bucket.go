package wheel

import "math/bits"

// A tick is written in digits of one byte. Level k holds the entries whose
// highest digit that differs from the present tick is digit k, in the slot that
// this digit names. There is a level for every byte: no deadline is too far off.
const (
	slotBits = 8
	slots    = 1 << slotBits
	levels   = 64 / slotBits

	overdue = levels * slots // the bucket of entries that were past due when added
	buckets = overdue + 1
)

// bucket is a list of entries in the order in which they came.
type bucket struct {
	head, tail uint32
}

// slotSet says which slots of one level are meant.
type slotSet [slots / 64]uint64

func (s *slotSet) add(slot int)    { s[slot/64] |= 1 << (slot % 64) }
func (s *slotSet) remove(slot int) { s[slot/64] &^= 1 << (slot % 64) }

// first returns the lowest slot of the set, or slots if there is none.
func (s *slotSet) first() int {
	for i, word := range s {
		if word != 0 {
			return i*64 + bits.TrailingZeros64(word)
		}
	}
	return slots
}

// bucketOf says where an entry for that tick belongs at present.
func (w *Wheel) bucketOf(tick uint64) int {
	if tick < w.now {
		return overdue
	}
	level := digitOf(tick ^ w.now)
	return level*slots + int(tick>>(level*slotBits)%slots)
}

// digitOf returns the number of the highest digit of x that is not zero.
func digitOf(x uint64) int {
	return (bits.Len64(x|1) - 1) / slotBits
}

// start returns the first tick that bucket b stands for. The digits above its
// level are those of the present.
func (w *Wheel) start(b int) uint64 {
	if b == overdue {
		return w.now
	}
	shift := b / slots * slotBits
	return w.now>>(shift+slotBits)<<(shift+slotBits) | uint64(b%slots)<<shift
}

// link appends entry i to bucket b.
func (w *Wheel) link(i uint32, e *entry, b int) {
	k := &w.buckets[b]
	e.bucket, e.next, e.prev = uint16(b), 0, k.tail
	if k.tail != 0 {
		w.slab.at(k.tail).next = i
	} else {
		k.head = i
		w.mark(b)
	}
	k.tail = i
}

// unlink takes entry e out of its bucket.
func (w *Wheel) unlink(e *entry) {
	k := &w.buckets[e.bucket]
	if e.prev != 0 {
		w.slab.at(e.prev).next = e.next
	} else {
		k.head = e.next
	}
	if e.next != 0 {
		w.slab.at(e.next).prev = e.prev
	} else {
		k.tail = e.prev
	}
	if k.head == 0 {
		w.unmark(int(e.bucket))
	}
}

// mark notes that bucket b is no longer empty.
func (w *Wheel) mark(b int) {
	w.opened = true
	if b == overdue {
		return
	}
	w.occupied[b/slots].add(b % slots)
	w.fresh[b/slots].add(b % slots)
	w.inUse |= 1 << (b / slots)
}

// unmark notes that bucket b has become empty.
func (w *Wheel) unmark(b int) {
	if b == overdue {
		return
	}
	s := &w.occupied[b/slots]
	s.remove(b % slots)
	if s.first() == slots {
		w.inUse &^= 1 << (b / slots)
	}
}

// move takes up to limit entries from the front of bucket b, puts each where it
// belongs at present, and returns how many there were. One that belongs into b
// itself is appended there, and not met again.
func (w *Wheel) move(b, limit int) (moved int) {
	k := &w.buckets[b]
	for last, i := k.tail, uint32(0); i != last && moved < limit; moved++ {
		i = k.head
		e := w.slab.at(i)
		w.unlink(e)
		w.link(i, e, w.bucketOf(e.tick))
	}
	return moved
}

// pop takes entries from the front of bucket b until buf is full or the bucket
// empty, copies their values to buf, and returns how many there were.
func (w *Wheel) pop(b int, buf []uint64) (n int) {
	k := &w.buckets[b]
	i := k.head
	for ; i != 0 && n < len(buf); n++ {
		e := w.slab.at(i)
		next := e.next
		buf[n] = e.value
		w.slab.put(i, e)
		i = next
	}
	k.head = i
	if i != 0 {
		w.slab.at(i).prev = 0
	} else {
		k.tail = 0
		w.unmark(b)
	}
	w.len -= n
	return n
}
