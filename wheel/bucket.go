package wheel

import "math/bits"

// A tick is written in digits of one byte. Level k holds the entries whose
// highest digit that differs from the present tick is digit k, in the slot that
// this digit names. There is a level for every byte: no deadline is too far off.
const (
	slotBits = 8
	slots    = 1 << slotBits
	levels   = 64 / slotBits

	overdue  = levels * slots // the bucket of entries that were past due when added
	leftover = overdue + 1    // the bucket of what large ones had left, see giveWay
	buckets  = leftover + 1
)

// bucket is a list of entries in the order in which they came.
type bucket struct {
	head, tail uint32
}

// isCoarse reports whether bucket b stands for several ticks.
func isCoarse(b int) bool { return b >= slots && b < overdue }

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
	if b >= overdue {
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

// unlink takes entry e, at place i, out of its bucket.
func (w *Wheel) unlink(i uint32, e *entry) {
	b := int(e.bucket)
	if k := w.buckets[b]; k.head != i && k.tail != i {
		b = leftover // or in the middle, where the bucket stays as it is
	}
	k := &w.buckets[b]
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
		w.unmark(b)
	}
}

// mark notes that bucket b is no longer empty.
func (w *Wheel) mark(b int) {
	w.opened = true
	if b >= overdue {
		return
	}
	w.occupied[b/slots].add(b % slots)
	w.fresh[b/slots].add(b % slots)
	w.inUse |= 1 << (b / slots)
}

// unmark notes that bucket b has become empty.
func (w *Wheel) unmark(b int) {
	if b >= overdue {
		return
	}
	s := &w.occupied[b/slots]
	s.remove(b % slots)
	if s.first() == slots {
		w.inUse &^= 1 << (b / slots)
	}
}

// move empties bucket b, and puts each entry where it belongs at present.
func (w *Wheel) move(b int) {
	i := w.detach(b).head
	for i != 0 {
		e := w.slab.at(i)
		next := e.next
		w.link(i, e, w.bucketOf(e.tick))
		i = next
	}
}

// deal takes up to len(buf) entries from the front of bucket b, and returns how many there were. It
// copies the values of those that are due to buf, n of them, and puts the others where they belong
// at present, which is not b.
func (w *Wheel) deal(b int, buf []uint64) (n, dealt int) {
	i := w.buckets[b].head
	for ; i != 0 && dealt < len(buf); dealt++ {
		e := w.slab.at(i)
		next := e.next
		if e.tick <= w.now {
			buf[n] = e.value
			n++
			w.slab.put(i, e)
		} else {
			w.link(i, e, w.bucketOf(e.tick))
		}
		i = next
	}
	w.len -= n
	if i == 0 {
		w.detach(b)
	} else {
		w.buckets[b].head = i
		w.slab.at(i).prev = 0
	}
	return n, dealt
}

// giveWay moves what is left in bucket b, in its order, to the leftover, so that the buckets after
// b need not wait for it. What was in the leftover before goes first, but not if b is coarse: then
// small ones of what is left would wait for a large one. It takes no time for the single entries:
// they still say that they are in b, and unlink knows that.
func (w *Wheel) giveWay(b int) {
	left := w.detach(b)
	to := &w.buckets[leftover]
	if isCoarse(b) {
		*to = w.join(left, *to)
	} else {
		*to = w.join(*to, left)
	}
}

// detach empties bucket b and returns what it was.
func (w *Wheel) detach(b int) (was bucket) {
	was, w.buckets[b] = w.buckets[b], was
	if was.head != 0 {
		w.unmark(b)
	}
	return was
}

// join returns the list of a's entries and then b's.
func (w *Wheel) join(a, b bucket) bucket {
	if a.head == 0 || b.head == 0 {
		return bucket{max(a.head, b.head), max(a.tail, b.tail)}
	}
	w.slab.at(a.tail).next = b.head
	w.slab.at(b.head).prev = a.tail
	return bucket{a.head, b.tail}
}
