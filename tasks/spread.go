package tasks

import (
	"math/bits"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/lapsehq/lapse/tasks/internal/record"
	"github.com/lapsehq/lapse/tasks/internal/store"
)

// In a topic with a Spread, a task whose deadline has come does not become ready for its
// first attempt, but waits for its place in the window that begins with the deadline. The
// place follows from the id: it is the same after a restart, on another node, and
// however often it is asked for. So nothing about it is written down: the ledger has
// the deadline as the next attempt, and slot.next is the place for as long as the flag
// windowed is set.
//
// Example: Spread 10 s, 10,000 tasks due at 12:00:00.000. One whose id hashes to 0.75 of the
// range of hashes is delivered at 12:00:07.500, and late from then on.

// offset is how far into a window of that length an id has its place, in milliseconds. It
// is less than the window, and evenly distributed, wherever the ids come from.
func offset(id []byte, window time.Duration) int64 {
	part, _ := bits.Mul64(xxhash.Sum64(id), uint64(window.Milliseconds()))
	return int64(part)
}

// enterWindowLocked gives a task whose deadline has come its place in its topic's window. It
// reports false if the task does not go there: it has its place already, or its next
// attempt is not the first one, or was asked for by Fire.
func (s *engine) enterWindowLocked(t *topic, sl *store.Slot) bool {
	rec := s.store.Record(sl)
	if sl.Flags&(store.Windowed|store.Prompt) != 0 || record.Attempt(rec) != 0 || record.Next(rec) != record.Due(rec) {
		return false
	}
	sl.Next += offset(s.store.ID(sl), t.settings.Spread)
	sl.Flags |= store.Windowed
	return true
}

// leaveWindowLocked takes a task out of its place: its time is what its record says.
func (s *engine) leaveWindowLocked(sl *store.Slot) {
	if sl.Flags&store.Windowed != 0 {
		sl.Next = record.Next(s.store.Record(sl))
		sl.Flags &^= store.Windowed
	}
}

// deadlineLocked is when a delivery should begin at the latest: what lateness is measured
// against. first tells that it is the first one.
func (s *engine) deadlineLocked(t *topic, sl *store.Slot, first bool) int64 {
	due := record.Due(s.store.Record(sl))
	switch {
	case sl.Flags&store.Windowed != 0:
		return sl.Next
	case t.settings.Spread == 0:
		return due
	case first:
		return sl.Next // of one that Fire was asked for, the time of that
	}
	return due + offset(s.store.ID(sl), t.settings.Spread)
}
