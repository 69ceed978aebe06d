package tasks

import (
	"bytes"
	"hash/maphash"
)

// An index finds a task's slot by its id. It is a hash table of slot numbers,
// open addressing with linear probing, split into many small tables by the top
// bits of the hash: growing rehashes one of them, never all, so that no caller
// waits for millions of entries to move. The ids themselves stay in the arena,
// and 32 bits of the hash in the slot, so that a probe rarely reads an id.
type index struct {
	seed   maphash.Seed // random: nobody can choose ids that collide
	tables [indexTables]indexTable
}

type indexTable struct {
	slots []uint32 // slot number + 1; 0: empty. The length is a power of two
	used  int
}

const indexTables = 256

func newIndex() *index { return &index{seed: maphash.MakeSeed()} }

func (x *index) hash(id []byte) uint64 { return maphash.Bytes(x.seed, id) }

// find returns the slot of an id with this hash.
func (x *index) find(b *book, h uint64, id []byte) (uint32, bool) {
	t := &x.tables[h>>56]
	if len(t.slots) == 0 {
		return 0, false
	}
	mask := uint32(len(t.slots) - 1)
	for i := uint32(h) & mask; t.slots[i] != 0; i = (i + 1) & mask {
		n := t.slots[i] - 1
		if s := b.slot(n); s.hash == uint32(h) && bytes.Equal(b.arena.id(s.rec), id) {
			return n, true
		}
	}
	return 0, false
}

// add enters a slot whose id is not in the index.
func (x *index) add(b *book, h uint64, n uint32) {
	t := &x.tables[h>>56]
	if (t.used+1)*4 > len(t.slots)*3 {
		t.grow(b)
	}
	t.place(uint32(h), n+1)
	t.used++
}

func (t *indexTable) place(hash, entry uint32) {
	mask := uint32(len(t.slots) - 1)
	i := hash & mask
	for t.slots[i] != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = entry
}

func (t *indexTable) grow(b *book) { t.resize(b, max(16, 2*len(t.slots))) }

func (t *indexTable) resize(b *book, size int) {
	old := t.slots
	t.slots = make([]uint32, size)
	for _, e := range old {
		if e != 0 {
			t.place(b.slot(e-1).hash, e)
		}
	}
}

// remove takes a slot out. The entries behind it move up, so that no probe
// meets a gap before its entry (Knuth, TAOCP 6.4, algorithm R). A table that has
// become almost empty shrinks.
func (x *index) remove(b *book, h uint64, n uint32) {
	t := &x.tables[h>>56]
	mask := uint32(len(t.slots) - 1)
	i := uint32(h) & mask
	for t.slots[i] != n+1 {
		if t.slots[i] == 0 {
			panic("tasks: a slot is missing in the index")
		}
		i = (i + 1) & mask
	}
	for j := i; ; {
		j = (j + 1) & mask
		if t.slots[j] == 0 {
			break
		}
		home := b.slot(t.slots[j]-1).hash & mask
		// The entry at j may move to i unless its home lies in (i, j].
		if (j-home)&mask >= (j-i)&mask {
			t.slots[i] = t.slots[j]
			i = j
		}
	}
	t.slots[i] = 0
	t.used--
	if len(t.slots) > 64 && t.used*8 < len(t.slots) {
		t.resize(b, len(t.slots)/2)
	}
}
