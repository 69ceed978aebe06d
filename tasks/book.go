package tasks

import (
	"bytes"
	"math"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/wheel"
)

// A book holds all tasks that are in memory. It has no lock of its own.
type book struct {
	chunks [][]slot
	vacant uint32 // first of the free slots, linked through hash; 0: none
	used   int
	end    uint32 // behind the last slot that was ever in use
	arena  *arena
	index  *index
	groups groups
}

// A slot is what is at hand about one task; the rest is in its record. 48 bytes,
// no pointers.
type slot struct {
	next   int64       // the next attempt, Unix ms; that of the record, unless windowed
	stored int64       // the next under which the ledger has the record
	rec    address     // id and record in the arena
	timer  wheel.Timer // while pending
	hash   uint32      // low half of the id's hash
	gen    uint32      // one more whenever the task leaves or enters the wheel or a queue: what was armed before is stale
	topic  uint32      // position in the scheduler's topics
	shard  uint16
	state  state
	flags  slotFlags
}

// state is a task's state, with the busy ones that callers never see.
type state uint8

const (
	vacant state = iota
	creating
	pending
	ready
	claiming
	delivering
	moving
	cancelling
	finishing
	burying
	requeuing
	parking
	checking
	registering // before creating: its id is on the way into the directory
)

// busy tells that a write (or a read) decides what becomes of the task, and
// that nothing else may be begun before.
func (s state) busy() bool {
	switch s {
	case pending, ready, delivering:
		return false
	}
	return true
}

// maybeDead reports whether the ledger's record of the task may rightly be that of a dead one:
// it is dying, is being taken from among the dead, or is being looked up.
func (s state) maybeDead() bool {
	return s == burying || s == requeuing || s.undecided()
}

// undecided reports whether the task is being created or looked up: there may be none.
func (s state) undecided() bool { return s == creating || s == registering || s == checking }

// shown is the state that callers see.
func (s state) shown() State {
	switch s {
	case pending, moving, cancelling, requeuing:
		return Pending
	case ready, claiming:
		return Ready
	case delivering, burying, parking:
		return Delivering
	}
	return 0
}

type slotFlags uint8

const (
	writing   slotFlags = 1 << iota // a write of this task is with the committer
	wanted                          // being created, and asked for again since; or being cancelled, and never taken back
	sought                          // being checked because a caller asked for it
	nominated                       // being checked because replay came across it, perhaps as well
	doubtful                        // the write was under way when the shard was rewound: once more before it counts
	windowed                        // next is its place in its topic's window, see spread.go; in the record it is when it is due
	prompt                          // Fire was asked for: it is not spread. Forgotten by a restart
	misfired                        // its deadline passed while no node held it, see misfire.go
)

const (
	chunkSlots = 8192
	// notStored in slot.stored: the ledger has no record.
	notStored = math.MinInt64
)

func newBook() *book { return &book{arena: newArena(), index: newIndex()} }

func (b *book) slot(n uint32) *slot { return &b.chunks[n/chunkSlots][n%chunkSlots] }

// slots is how many there are to look at: vacant ones too, but none behind the last that
// was ever in use.
func (b *book) slots() uint32 { return b.end }

// rest is the slots of a chunk from the n-th of all on, as far as there is something to
// look at.
func (b *book) rest(n uint32) []slot {
	first := n - n%chunkSlots
	return b.chunks[n/chunkSlots][n-first : min(chunkSlots, b.end-first)]
}

// hash returns the hash of an id, by which other tables may find it as well.
func (b *book) hash(id []byte) uint64 { return b.index.hash(id) }

// find returns the slot of an id.
func (b *book) find(id []byte) (uint32, bool) { return b.findHashed(b.hash(id), id) }

// findHashed returns the slot of an id with this hash.
func (b *book) findHashed(hash uint64, id []byte) (uint32, bool) { return b.index.find(b, hash, id) }

// len returns how many tasks there are.
func (b *book) len() int { return b.used }

// size returns how many bytes the arena takes.
func (b *book) size() int64 { return b.arena.size }

// live returns how many of them are in use.
func (b *book) live() int64 { return b.arena.live }

// enter makes a slot for an id that has none. Slot 0 is never used.
func (b *book) enter(id, rec []byte) (uint32, *slot) {
	if b.vacant == 0 {
		b.growSlots()
	}
	n := b.vacant
	s := b.slot(n)
	b.vacant, b.end = s.hash, max(b.end, n+1)
	h := b.index.hash(id)
	group := record.Group(rec)
	*s = slot{hash: uint32(h), gen: s.gen + 1, stored: notStored, rec: b.arena.put(n, id, rec, len(group) > 0)}
	b.index.add(b, h, n)
	if len(group) > 0 {
		b.groups.add(b, n)
	}
	b.used++
	return n, s
}

func (b *book) growSlots() {
	first := uint32(len(b.chunks) * chunkSlots)
	if first+chunkSlots-1 > maxNumber {
		panic("tasks: one process holds at most 268 million tasks, and its ledger has more: use more nodes")
	}
	b.chunks = append(b.chunks, make([]slot, chunkSlots))
	for i := uint32(chunkSlots); i > 0; i-- {
		if n := first + i - 1; n != 0 {
			b.slot(n).hash, b.vacant = b.vacant, n
		}
	}
}

// leave forgets a task.
func (b *book) leave(n uint32) {
	s := b.slot(n)
	if b.grouped(s) {
		b.groups.remove(b, n)
	}
	b.index.remove(b, b.index.hash(b.arena.id(s.rec)), n)
	b.arena.remove(s.rec)
	*s = slot{hash: b.vacant, gen: s.gen + 1}
	b.vacant = n
	b.used--
}

func (b *book) id(s *slot) []byte     { return b.arena.id(s.rec) }
func (b *book) record(s *slot) []byte { return b.arena.record(s.rec) }

// chosen reports whether a caller chose the task's id. A record that is empty says no.
func (b *book) chosen(s *slot) bool {
	rec := b.record(s)
	return record.Whole(rec) && record.Flags(rec)&record.ChosenID != 0
}

// group returns the name of a task's group, valid like its id; nil if it has none.
func (b *book) group(s *slot) []byte {
	if !b.grouped(s) {
		return nil
	}
	return record.Group(b.record(s))
}

func (b *book) grouped(s *slot) bool { return len(b.arena.links(s.rec)) > 0 }

// fields takes a task's record apart. The record was checked when it came into
// memory: if it is damaged now, so may be all others, and the process ends rather
// than deliver them. A plain panic would not do: an HTTP server recovers it, and
// goes on with a lock that is never released.
func (b *book) fields(s *slot) record.Fields {
	f, err := record.Decode(b.record(s))
	if err != nil {
		go panic("tasks: a record in memory is damaged: " + err.Error())
		select {}
	}
	return f
}

// rewrite gives a task another record. rec must not point into the arena.
func (b *book) rewrite(n uint32, rec []byte) {
	s := b.slot(n)
	old, group := s.rec, record.Group(rec)
	stays := bytes.Equal(b.group(s), group)
	if !stays && b.grouped(s) {
		b.groups.remove(b, n)
	}
	// The arena may open a new segment but never moves an old one: id stays.
	s.rec = b.arena.put(n, b.arena.id(old), rec, len(group) > 0)
	switch {
	case stays:
		copy(b.arena.links(s.rec), b.arena.links(old))
	case len(group) > 0:
		b.groups.add(b, n)
	}
	b.arena.remove(old)
}

// tidy compacts up to n sparse segments of the arena, from position from on, and returns
// where to go on, 0 at the end.
func (b *book) tidy(from uint32, n int) uint32 {
	owner := func(k uint32) address { return b.slot(k).rec }
	moved := func(k uint32, to address) { b.slot(k).rec = to }
	for ; n > 0; n-- {
		i, ok := b.arena.sparse(from)
		if !ok {
			return 0
		}
		b.arena.compact(i, owner, moved)
		from = i + 1
	}
	return from
}

// value packs what a timer or a queue remembers of a slot.
func (s *slot) value(n uint32) uint64 { return uint64(s.gen)<<32 | uint64(n) }

// unpack is the reverse; ok is false if the slot has moved on since.
func (b *book) unpack(v uint64, in state) (n uint32, s *slot, ok bool) {
	n = uint32(v)
	s = b.slot(n)
	return n, s, s.state == in && s.gen == uint32(v>>32)
}
