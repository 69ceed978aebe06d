package store

import (
	"time"

	"github.com/cespare/xxhash/v2"
)

// An Order lists slots by the hash of their ids, so that the tasks of a range of hashes are found
// without a visit to all of them. It is there while an export reads.
//
// The hash is the same in every process, unlike that of the index. A caller who chooses ids by
// their hashes can make one list long, which slows the export down and nothing else.
//
// List k has every slot that was read into the Order, or entered since it began, while the hash of
// its id began with k. Slots stay in their lists when their tasks leave, and may be in a list
// twice: the reader compares each with the task that the slot has now.
type Order struct {
	lists   [OrderLists][]uint32
	entries int
	read    uint32    // slots before it are in
	whole   bool      // all slots that were there when it began are in
	Used    time.Time // when it was asked for last
}

// OrderLists is how many lists an Order has: one for each beginning of 16 bits.
const (
	OrderLists = 1 << 16
	orderShift = 64 - 16
)

// PlaceOf returns the hash of an id by which an Order lists its slot.
func PlaceOf(id []byte) uint64 { return xxhash.Sum64(id) }

// ListOf returns the list of a place.
func ListOf(place uint64) int { return int(place >> orderShift) }

// EndOf returns the last place of a list.
func EndOf(list int) uint64 { return uint64(list)<<orderShift | (1<<orderShift - 1) }

// spareEntries is how many entries an Order may have besides two for each task.
const spareEntries = 1 << 20

// OrderSome reads up to n slots into the Order, which it begins if there is none, and reports
// whether it has all of them. An Order in which too many tasks have come and gone begins anew.
func (b *Store) OrderSome(n int, now time.Time) bool {
	if b.order == nil || b.order.entries > 2*b.used+spareEntries {
		b.order = new(Order)
	}
	o := b.order
	o.Used = now
	for ; n > 0 && o.read < b.end && !o.whole; n-- {
		if s := b.Slot(o.read); s.rec != 0 {
			o.add(b.arena.id(s.rec), o.read)
		}
		o.read++
	}
	o.whole = o.whole || o.read >= b.end
	return o.whole
}

// Ordered returns the slots of a list of the Order, which only grows. It reports false if the Order
// is not there, or does not have all slots yet: tasks may be missing in the list.
func (b *Store) Ordered(list int) (slots []uint32, whole bool) {
	if b.order == nil || !b.order.whole {
		return nil, false
	}
	return b.order.lists[list], true
}

// NextList returns the first list of the Order from one on that has slots; OrderLists if none has.
func (b *Store) NextList(list int) int {
	if b.order == nil {
		return list
	}
	for list < OrderLists && len(b.order.lists[list]) == 0 {
		list++
	}
	return list
}

// DropOrder gives the memory of the Order back if it was not asked for since a time.
func (b *Store) DropOrder(since time.Time) {
	if b.order != nil && b.order.Used.Before(since) {
		b.order = nil
	}
}

func (o *Order) add(id []byte, n uint32) {
	list := ListOf(PlaceOf(id))
	o.lists[list] = append(o.lists[list], n)
	o.entries++
}
