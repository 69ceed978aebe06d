package store

import (
	"encoding/binary"

	"github.com/lapsehq/lapse/tasks/internal/hugepage"
)

// An arena holds records in large segments without pointers. Space is given out
// at the end of the newest segment and never reused in place: a segment whose
// last record has gone is dropped as a whole, and one that has become mostly
// empty is emptied by moving its rest to the end (see compact). So memory
// follows the number of tasks down as well as up.
//
// An entry in a segment:
//
//	0  4  the slot that it belongs to; with its highest bit set, links follow the head
//	4  4  its size, this head included
//	8  1  length of the id
//	9  8  only then: the links of a task that is in a group, see groups.go
//	      id, then the record to the end
type arena struct {
	segments []segment
	free     []uint32         // positions in segments that hold none
	spare    [][]byte         // emptied segments of the usual size, for the next ones
	moves    []hugepage.Piece // memory that was taken and given up, for Store.Moves
	open     uint32           // the segment that is being filled
	size     int64            // bytes of all segments
	live     int64            // bytes of all entries in use
}

type segment struct {
	mem  []byte // up to its length in use, up to its capacity free
	live int    // bytes of entries in use
}

// An address is where an entry stands: segment and offset. Zero is nowhere.
type address uint64

const (
	segmentSize = 256 << 10
	entryHead   = 9
	entryLinks  = 8
	linkedBit   = 1 << 31 // in an entry's slot; slots have numbers far below
	maxSpare    = 64
	maxMoves    = 32 << 10
)

func newArena() *arena {
	// The first segment stays empty, so that the zero address is nowhere.
	return &arena{segments: make([]segment, 1)}
}

func (a *arena) at(p address) []byte {
	seg := a.segments[p>>32].mem[uint32(p):]
	return seg[:binary.LittleEndian.Uint32(seg[4:])]
}

// id returns the id of the entry at p. It is valid until the next put or compact.
func (a *arena) id(p address) []byte {
	e := a.at(p)
	head := headOf(e)
	return e[head : head+int(e[8])]
}

// headOf is how many bytes of an entry stand before its id.
func headOf(e []byte) int { return entryHead + int(e[3]>>7)*entryLinks }

// record returns the record of the entry at p, valid like id.
func (a *arena) record(p address) []byte {
	e := a.at(p)
	return e[headOf(e)+int(e[8]):]
}

// links returns the place for links in the entry at p, valid like id; empty if it has none.
func (a *arena) links(p address) []byte {
	e := a.at(p)
	return e[entryHead:headOf(e):headOf(e)]
}

// put stores an id and a record for a slot, with room for links or without.
func (a *arena) put(slot uint32, id, rec []byte, linked bool) address {
	head := entryHead
	if linked {
		head += entryLinks
		slot |= linkedBit
	}
	n := head + len(id) + len(rec)
	p, e := a.alloc(n)
	binary.LittleEndian.PutUint32(e, slot)
	binary.LittleEndian.PutUint32(e[4:], uint32(n))
	e[8] = byte(len(id))
	clear(e[entryHead:head]) // the memory may have been used before
	copy(e[head:], id)
	copy(e[head+len(id):], rec)
	return p
}

func (a *arena) alloc(n int) (address, []byte) {
	seg := &a.segments[a.open]
	if cap(seg.mem)-len(seg.mem) < n {
		a.openSegment(n)
		seg = &a.segments[a.open]
	}
	off := len(seg.mem)
	seg.mem = seg.mem[:off+n]
	seg.live += n
	a.live += int64(n)
	return address(uint64(a.open)<<32 | uint64(off)), seg.mem[off:]
}

// openSegment begins a new segment with room for n bytes.
func (a *arena) openSegment(n int) {
	last := a.open
	var mem []byte
	switch k := len(a.spare); {
	case n > segmentSize:
		mem = make([]byte, 0, n)
	case k > 0:
		mem, a.spare = a.spare[k-1], a.spare[:k-1]
	default:
		mem = make([]byte, 0, segmentSize)
		a.note(hugepage.Of(mem))
	}
	a.size += int64(cap(mem))
	if k := len(a.free); k > 0 {
		a.open, a.free = a.free[k-1], a.free[:k-1]
	} else {
		a.open = uint32(len(a.segments))
		a.segments = append(a.segments, segment{})
	}
	a.segments[a.open] = segment{mem: mem}
	if last != 0 && a.segments[last].live == 0 {
		a.drop(last)
	}
}

// note notes memory that is in use from now on, or no longer.
func (a *arena) note(p hugepage.Piece) {
	if len(a.moves) < maxMoves {
		a.moves = append(a.moves, p)
	}
}

// remove gives the entry at p up.
func (a *arena) remove(p address) {
	n := len(a.at(p))
	i := uint32(p >> 32)
	a.segments[i].live -= n
	a.live -= int64(n)
	if a.segments[i].live == 0 && i != a.open {
		a.drop(i)
	}
}

func (a *arena) drop(i uint32) {
	mem := a.segments[i].mem
	a.size -= int64(cap(mem))
	switch {
	case cap(mem) != segmentSize:
	case len(a.spare) < maxSpare:
		a.spare = append(a.spare, mem[:0])
	default:
		a.note(hugepage.Of(mem).Gone())
	}
	a.segments[i] = segment{}
	a.free = append(a.free, i)
}

// sparse returns a segment, from position i on, that is less than 5/8 full; or
// false at the end. With a quarter of the entries gone at random nothing moves
// yet; the more have gone, the cheaper it is to move the rest.
func (a *arena) sparse(i uint32) (uint32, bool) {
	for ; int(i) < len(a.segments); i++ {
		s := &a.segments[i]
		if i != a.open && len(s.mem) > 0 && s.live*8 < len(s.mem)*5 {
			return i, true
		}
	}
	return 0, false
}

// trim gives up the spare segments beyond as many as are in use.
func (a *arena) trim() {
	keep := min(len(a.spare), int(a.size/segmentSize))
	for _, mem := range a.spare[keep:] {
		a.note(hugepage.Of(mem).Gone())
	}
	clear(a.spare[keep:])
	a.spare = a.spare[:keep]
}

// compact moves what is left in segment i to the end of the arena, which drops
// the segment. owner returns where a slot's entry stands; moved is told its new place.
func (a *arena) compact(i uint32, owner func(slot uint32) address, moved func(slot uint32, to address)) {
	mem := a.segments[i].mem
	for off := 0; off < len(mem); {
		e := mem[off:]
		slot, n := binary.LittleEndian.Uint32(e)&^linkedBit, binary.LittleEndian.Uint32(e[4:])
		here := address(uint64(i)<<32 | uint64(off))
		off += int(n)
		if owner(slot) != here {
			continue
		}
		to, dst := a.alloc(int(n))
		copy(dst, e[:n])
		moved(slot, to)
		a.remove(here)
	}
}
