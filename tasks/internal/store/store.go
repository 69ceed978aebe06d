package store

import (
	"bytes"
	"math"

	"github.com/lapsehq/lapse/tasks/internal/hugepage"
	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/task"
	"github.com/lapsehq/lapse/wheel"
)

// A Store holds all tasks that are in memory. It has no lock of its own.
type Store struct {
	chunks [][]Slot
	vacant uint32 // first of the free slots, linked through hash; 0: none
	used   int
	end    uint32 // behind the last slot that was ever in use
	arena  *arena
	index  *index
	groups groups
	order  *Order // nil: none is wanted
}

// A Slot is what is at hand about one task; the rest is in its record. 48 bytes,
// no pointers.
type Slot struct {
	Next   int64       // the next attempt, Unix ms; that of the record, unless windowed
	Stored int64       // the next under which the ledger has the record
	rec    address     // id and record in the arena
	Timer  wheel.Timer // while pending
	hash   uint32      // low half of the id's hash
	// Gen grows when the task enters or leaves the wheel or a queue: it tells stale timers apart.
	Gen   uint32
	Topic uint32 // position in the scheduler's topics
	Shard uint16
	State State
	Flags Flags
}

// State is a task's state, with the busy ones that callers never see.
type State uint8

// The states of a slot. See docs/internals/protocol.md.
const (
	Vacant State = iota
	Creating
	Pending
	Ready
	Claiming
	Delivering
	Moving
	Cancelling
	Finishing
	Burying
	Requeuing
	Parking
	Checking
	Registering // before creating: its id is on the way into the directory
	Replacing   // moving, of a task that is being delivered: its lease stays until the write counts
)

// Busy reports whether a write or a read that is under way decides what becomes of the task. No
// other one may be begun before.
func (s State) Busy() bool {
	switch s {
	case Pending, Ready, Delivering:
		return false
	}
	return true
}

// MaybeDead reports whether the ledger's record of the task may rightly be that of a dead one:
// it is dying, is being taken from among the dead, or is being looked up. A finished task is kept
// in the same place.
func (s State) MaybeDead() bool {
	return s == Burying || s == Requeuing || s == Finishing || s == Cancelling || s.Undecided()
}

// Undecided reports whether the task is being created or looked up: there may be none.
func (s State) Undecided() bool { return s == Creating || s == Registering || s == Checking }

// Occupying reports whether a task in this state is being delivered, or about to be.
func (s State) Occupying() bool {
	return s == Claiming || s == Delivering || s == Parking || s == Replacing
}

// Shown is the state that callers see.
func (s State) Shown() task.State {
	switch s {
	case Pending, Moving, Cancelling, Requeuing:
		return task.Pending
	case Ready, Claiming:
		return task.Ready
	case Delivering, Burying, Parking, Replacing:
		return task.Delivering
	}
	return 0
}

// Flags are marks on a slot.
type Flags uint8

// The marks.
const (
	Writing   Flags = 1 << iota // a write of this task is with the committer
	Wanted                      // creating: asked for again since; cancelling: never taken back
	Sought                      // being checked because a caller asked for it
	Nominated                   // being checked because replay came across it, perhaps as well
	Doubtful                    // its write was under way when the shard was rewound: repeat it
	Windowed                    // Next is its place in the topic's window, not the record's time
	Prompt                      // Fire was asked for: it is not spread. Forgotten by a restart
	Misfired                    // its deadline passed while no node held it, see misfire.go

	// Missed, both marks of it, is of a task whose deadline has passed and of which an attempt has
	// failed since: it counts in minutes.Missed. Such a task has no place in a window.
	Missed = Windowed | Prompt
	// Stray is of a ready task: it waits outside of its topic's queue, since the topic cannot
	// deliver it to the target that it has. No task that is ready is Nominated.
	Stray = Nominated
	// InGroup is of a ready task: it waits in the queue of its group. No task that is ready is
	// Sought.
	InGroup = Sought
	// Occupies is of a task that is being delivered: it counts in its group. No such task is
	// Sought.
	Occupies = Sought
)

// IsMissed reports whether a task counts in minutes.Missed.
func (f Flags) IsMissed() bool { return f&Missed == Missed }

// IsWindowed reports whether a task has its place in the topic's window.
func (f Flags) IsWindowed() bool { return f&Missed == Windowed }

// IsPrompt reports whether Fire was asked for, of a task that is not Missed.
func (f Flags) IsPrompt() bool { return f&Missed == Prompt }

const (
	// ChunkSlots is how many slots are allocated at a time.
	ChunkSlots = 8192
	// NotStored in Slot.Stored: the ledger has no record.
	NotStored = math.MinInt64
)

// New returns an empty store.
func New() *Store { return &Store{arena: newArena(), index: newIndex()} }

// Slot returns the slot with this number, which must be one that was in use once.
func (b *Store) Slot(n uint32) *Slot { return &b.chunks[n/ChunkSlots][n%ChunkSlots] }

// Slots is how many there are to look at: vacant ones too, but none behind the last that
// was ever in use.
func (b *Store) Slots() uint32 { return b.end }

// Rest is the slots of a chunk from the n-th of all on, as far as there is something to
// look at.
func (b *Store) Rest(n uint32) []Slot {
	first := n - n%ChunkSlots
	return b.chunks[n/ChunkSlots][n-first : min(ChunkSlots, b.end-first)]
}

// Hash returns the hash of an id, by which other tables may find it as well.
func (b *Store) Hash(id []byte) uint64 { return b.index.hash(id) }

// Find returns the slot of an id.
func (b *Store) Find(id []byte) (uint32, bool) { return b.FindHashed(b.Hash(id), id) }

// FindHashed returns the slot of an id with this hash.
func (b *Store) FindHashed(hash uint64, id []byte) (uint32, bool) { return b.index.find(b, hash, id) }

// Len returns how many tasks there are.
func (b *Store) Len() int { return b.used }

// Size returns how many bytes the arena takes.
func (b *Store) Size() int64 { return b.arena.size }

// Live returns how many of them are in use.
func (b *Store) Live() int64 { return b.arena.live }

// Enter makes a slot for an id that has none. Slot 0 is never used.
func (b *Store) Enter(id, rec []byte) (uint32, *Slot) {
	if b.vacant == 0 {
		b.growSlots()
	}
	n := b.vacant
	s := b.Slot(n)
	b.vacant, b.end = s.hash, max(b.end, n+1)
	h := b.index.hash(id)
	group := record.Group(rec)
	*s = Slot{hash: uint32(h), Gen: s.Gen + 1, Stored: NotStored, rec: b.arena.put(n, id, rec, len(group) > 0)}
	b.index.add(b, h, n)
	if b.order != nil {
		b.order.add(id, n)
	}
	if len(group) > 0 {
		b.groups.add(b, n)
	}
	b.used++
	return n, s
}

func (b *Store) growSlots() {
	first := uint32(len(b.chunks) * ChunkSlots)
	if first+ChunkSlots-1 > maxNumber {
		panic("tasks: one process holds at most 268 million tasks, and its ledger has more: use more nodes")
	}
	chunk := make([]Slot, ChunkSlots)
	b.chunks = append(b.chunks, chunk)
	b.arena.note(hugepage.Of(chunk))
	for i := uint32(ChunkSlots); i > 0; i-- {
		if n := first + i - 1; n != 0 {
			b.Slot(n).hash, b.vacant = b.vacant, n
		}
	}
}

// EnterChecking enters an id that memory does not know in the state Checking, so that its record
// can be read while no caller changes it.
func (b *Store) EnterChecking(id []byte, why Flags) uint32 {
	n, sl := b.Enter(id, nil)
	sl.State, sl.Flags = Checking, why
	return n
}

// Leave forgets a task.
func (b *Store) Leave(n uint32) {
	s := b.Slot(n)
	if b.Grouped(s) {
		b.groups.remove(b, n)
	}
	b.index.remove(b, b.index.hash(b.arena.id(s.rec)), n)
	b.arena.remove(s.rec)
	*s = Slot{hash: b.vacant, Gen: s.Gen + 1}
	b.vacant = n
	b.used--
}

// ID returns the id of a task. It is valid while the lock is held, and must not be changed.
func (b *Store) ID(s *Slot) []byte { return b.arena.id(s.rec) }

// Record returns the stored bytes of a task, valid like its id.
func (b *Store) Record(s *Slot) []byte { return b.arena.record(s.rec) }

// Attempted reports whether an attempt of a task was made. It waits for memory: the record is not
// beside the slot.
func (b *Store) Attempted(s *Slot) bool { return record.Attempt(b.Record(s)) > 0 }

// Chosen reports whether a caller chose the task's id. A record that is empty says no.
func (b *Store) Chosen(s *Slot) bool {
	rec := b.Record(s)
	return record.Whole(rec) && record.Flags(rec)&record.ChosenID != 0
}

// Group returns the name of a task's group, valid like its id; nil if it has none.
func (b *Store) Group(s *Slot) []byte {
	if !b.Grouped(s) {
		return nil
	}
	return record.Group(b.Record(s))
}

// Grouped reports whether a task is in a group.
func (b *Store) Grouped(s *Slot) bool { return len(b.arena.links(s.rec)) > 0 }

// Fields takes a task's record apart. The record was checked when it came into
// memory: if it is damaged now, so may be all others, and the process ends rather
// than deliver them. A plain panic would not do: an HTTP server recovers it, and
// goes on with a lock that is never released.
func (b *Store) Fields(s *Slot) record.Fields { return FieldsOf(b.Record(s)) }

// FieldsOf is Fields of a record that memory has, or a copy of it.
func FieldsOf(rec []byte) record.Fields {
	f, err := record.Decode(rec)
	if err != nil {
		go panic("tasks: a record in memory is damaged: " + err.Error())
		select {}
	}
	return f
}

// Rewrite gives a task another record. rec must not point into the arena.
func (b *Store) Rewrite(n uint32, rec []byte) {
	s := b.Slot(n)
	old, group := s.rec, record.Group(rec)
	stays := bytes.Equal(b.Group(s), group)
	if !stays && b.Grouped(s) {
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

// Tidy compacts up to n sparse segments of the arena, from position from on, and returns
// where to go on, 0 at the end. There it also gives up spare segments, of which there are few.
func (b *Store) Tidy(from uint32, n int) uint32 {
	owner := func(k uint32) address { return b.Slot(k).rec }
	moved := func(k uint32, to address) { b.Slot(k).rec = to }
	for ; n > 0; n-- {
		i, ok := b.arena.sparse(from)
		if !ok {
			b.arena.trim()
			return 0
		}
		b.arena.compact(i, owner, moved)
		from = i + 1
	}
	return from
}

// Moves returns the memory that slots and records have taken and given up since it was called last,
// in that order. Records beyond the size of a segment are not in it.
func (b *Store) Moves() []hugepage.Piece {
	moves := b.arena.moves
	b.arena.moves = nil
	return moves
}

// Value packs what a timer or a queue remembers of a slot.
func (s *Slot) Value(n uint32) uint64 { return uint64(s.Gen)<<32 | uint64(n) }

// Unpack is the reverse; ok is false if the slot has moved on since.
func (b *Store) Unpack(v uint64, in State) (n uint32, s *Slot, ok bool) {
	n = uint32(v)
	s = b.Slot(n)
	return n, s, s.State == in && s.Gen == uint32(v>>32)
}

// Stale reports whether a value stands for a task that is not ready any more.
func (b *Store) Stale(v uint64) bool {
	_, _, live := b.Unpack(v, Ready)
	return !live
}
