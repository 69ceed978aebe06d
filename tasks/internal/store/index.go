package store

import (
	"bytes"
	"hash/maphash"
)

// An index finds a task's slot by its id. It is a hash table of slot numbers,
// open addressing with linear probing, split into many small tables by the top
// bits of the hash: growing rehashes one of them, never all, so that no caller
// waits for millions of entries to move. The ids themselves stay in the arena,
// 32 bits of the hash in the slot, and four of those in the entry, so that a probe
// rarely reads a slot that is not the right one, and almost never an id: at ten
// million tasks each of these is a wait for memory.
type index struct {
	seed   maphash.Seed // random: no caller can choose ids that collide
	tables [indexTables]indexTable
}

type indexTable struct {
	entries []uint32 // tag and slot number + 1; 0: empty. The length is a power of two
	used    int
}

const indexTables = 256

// An entry is the top four bits of the 32 of the hash, then 28 of the number.
const (
	tagMask   = 0xF000_0000
	maxNumber = 1<<28 - 2 // of a slot
)

func entryOf(hash, n uint32) uint32 { return hash&tagMask | n + 1 }

func numberOf(entry uint32) uint32 { return entry&^tagMask - 1 }

func newIndex() *index { return &index{seed: maphash.MakeSeed()} }

func (x *index) hash(id []byte) uint64 { return maphash.Bytes(x.seed, id) }

// find returns the slot of an id with this hash.
func (x *index) find(b *Store, h uint64, id []byte) (uint32, bool) {
	t := &x.tables[h>>56]
	if len(t.entries) == 0 {
		return 0, false
	}
	mask := uint32(len(t.entries) - 1)
	for i := uint32(h) & mask; t.entries[i] != 0; i = (i + 1) & mask {
		e := t.entries[i]
		if (e^uint32(h))&tagMask != 0 {
			continue
		}
		n := numberOf(e)
		if s := b.Slot(n); s.hash == uint32(h) && bytes.Equal(b.arena.id(s.rec), id) {
			return n, true
		}
	}
	return 0, false
}

// add enters a slot whose id is not in the index.
func (x *index) add(b *Store, h uint64, n uint32) {
	t := &x.tables[h>>56]
	if (t.used+1)*4 > len(t.entries)*3 {
		t.grow(b)
	}
	t.place(uint32(h), entryOf(uint32(h), n))
	t.used++
}

func (t *indexTable) place(hash, entry uint32) {
	mask := uint32(len(t.entries) - 1)
	i := hash & mask
	for t.entries[i] != 0 {
		i = (i + 1) & mask
	}
	t.entries[i] = entry
}

func (t *indexTable) grow(b *Store) { t.resize(b, max(16, 2*len(t.entries))) }

func (t *indexTable) resize(b *Store, size int) {
	old := t.entries
	t.entries = make([]uint32, size)
	for _, e := range old {
		if e != 0 {
			t.place(b.Slot(numberOf(e)).hash, e)
		}
	}
}

// remove takes a slot out. The entries behind it move up, so that no probe
// meets a gap before its entry (Knuth, TAOCP 6.4, algorithm R). A table that has
// become almost empty shrinks.
func (x *index) remove(b *Store, h uint64, n uint32) {
	t := &x.tables[h>>56]
	mask := uint32(len(t.entries) - 1)
	i := uint32(h) & mask
	for t.entries[i] != entryOf(uint32(h), n) {
		if t.entries[i] == 0 {
			panic("tasks: a slot is missing in the index")
		}
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		if t.entries[j] == 0 {
			break
		}
		shardID := b.Slot(numberOf(t.entries[j])).hash & mask
		// The entry at j may move to i unless its home lies in (i, j].
		if (j-shardID)&mask >= (j-i)&mask {
			t.entries[i] = t.entries[j]
			i = j
		}
	}
	t.entries[i] = 0
	t.used--
	if len(t.entries) > 64 && t.used*8 < len(t.entries) {
		t.resize(b, len(t.entries)/2)
	}
}
