package store

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// groups finds the tasks of a group. Those of one group form a doubly linked
// list: each has its links in the arena, beside its record, so that a task without a group
// costs nothing, one with a group eight bytes, and what a group needs goes when its tasks
// go. Links are slot numbers; slot 0 is never used and stands for no task.
//
// The first task of each list is in a hash table like that of the index: open addressing,
// in many small tables, of which one grows or shrinks at a time. An entry is the lower half
// of the hash of the group's name, then the slot; the name itself is only in the records,
// and is compared when the halves are equal. So a list holds the tasks of one group and
// no other, whatever collides. The first task of a list is the last that joined.
type groups struct {
	tables  [groupTables]groupTable
	cursors []*Cursor // under way
}

type groupTable struct {
	firsts []uint64 // 0: empty. The length is a power of two
	used   int
}

const groupTables = 256

func firstOf(hash, n uint32) uint64 { return uint64(hash)<<32 | uint64(n) }

// A Cursor goes over the tasks of a group, one by one, while others come and go: each task
// that is in the group all the time comes by once. Those that join come by never.
type Cursor struct {
	next uint32 // 0: the cursor is at the end
}

// OpenGroup returns a cursor over the tasks of a group. The caller closes it.
func (b *Store) OpenGroup(group string) *Cursor {
	t, g := &Cursor{}, &b.groups
	h := b.index.hash([]byte(group))
	if table := &g.tables[h>>56]; len(table.firsts) > 0 {
		t.next = uint32(table.firsts[table.positionOf(b, uint32(h), []byte(group))])
	}
	g.cursors = append(g.cursors, t)
	return t
}

// Advance returns the task that comes next, or 0.
func (b *Store) Advance(t *Cursor) (n uint32) {
	if n = t.next; n != 0 {
		t.next = b.following(n)
	}
	return n
}

// CloseGroup ends a cursor.
func (b *Store) CloseGroup(t *Cursor) {
	g := &b.groups
	g.cursors = slices.DeleteFunc(g.cursors, func(other *Cursor) bool { return other == t })
}

// add puts a slot, whose record is in place, in front of the others of its group.
func (g *groups) add(b *Store, n uint32) {
	group := b.Group(b.Slot(n))
	h := b.index.hash(group)
	t := &g.tables[h>>56]
	if (t.used+1)*4 > len(t.firsts)*3 {
		t.resize(max(16, 2*len(t.firsts)))
	}
	i := t.positionOf(b, uint32(h), group)
	second := uint32(t.firsts[i])
	t.firsts[i] = firstOf(uint32(h), n)
	b.link(n, 0, second)
	if second == 0 {
		t.used++
		return
	}
	b.link(second, n, b.following(second))
}

// remove takes a slot, whose record is still in place, out of its group.
func (g *groups) remove(b *Store, n uint32) {
	before, after := b.preceding(n), b.following(n)
	for _, t := range g.cursors {
		if t.next == n {
			t.next = after
		}
	}
	if after != 0 {
		b.link(after, before, b.following(after))
	}
	if before != 0 {
		b.link(before, b.preceding(before), after)
		return
	}
	group := b.Group(b.Slot(n))
	h := b.index.hash(group)
	t := &g.tables[h>>56]
	i := t.positionOf(b, uint32(h), group)
	if t.firsts[i] != firstOf(uint32(h), n) {
		panic("tasks: the first task of a group is missing among the groups")
	}
	if after != 0 {
		t.firsts[i] = firstOf(uint32(h), after)
		return
	}
	t.empty(i)
}

// positionOf returns the position of a group, or the one where it belongs. The table has an
// empty one.
func (t *groupTable) positionOf(b *Store, hash uint32, group []byte) uint32 {
	mask := uint32(len(t.firsts) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		first := t.firsts[i]
		if first == 0 || uint32(first>>32) == hash && bytes.Equal(b.Group(b.Slot(uint32(first))), group) {
			return i
		}
	}
}

// empty takes an entry out and moves those behind it up, as index.remove does.
func (t *groupTable) empty(i uint32) {
	mask := uint32(len(t.firsts) - 1)
	for j := i; ; {
		j = (j + 1) & mask
		if t.firsts[j] == 0 {
			break
		}
		shardID := uint32(t.firsts[j]>>32) & mask
		if (j-shardID)&mask >= (j-i)&mask {
			t.firsts[i] = t.firsts[j]
			i = j
		}
	}
	t.firsts[i] = 0
	t.used--
	if len(t.firsts) > 64 && t.used*8 < len(t.firsts) {
		t.resize(len(t.firsts) / 2)
	}
}

func (t *groupTable) resize(size int) {
	old := t.firsts
	t.firsts = make([]uint64, size)
	mask := uint32(size - 1)
	for _, first := range old {
		if first == 0 {
			continue
		}
		i := uint32(first>>32) & mask
		for t.firsts[i] != 0 {
			i = (i + 1) & mask
		}
		t.firsts[i] = first
	}
}

// The links of a task that is in a group: the one before, then the one behind it.

func (b *Store) preceding(n uint32) uint32 {
	return binary.LittleEndian.Uint32(b.arena.links(b.Slot(n).rec))
}

func (b *Store) following(n uint32) uint32 {
	return binary.LittleEndian.Uint32(b.arena.links(b.Slot(n).rec)[4:])
}

func (b *Store) link(n, before, after uint32) {
	links := b.arena.links(b.Slot(n).rec)
	binary.LittleEndian.PutUint32(links, before)
	binary.LittleEndian.PutUint32(links[4:], after)
}
