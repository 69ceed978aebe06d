package engine

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
// the deadline as the next attempt, and Slot.Next is the place for as long as the flag
// Windowed is set.
//
// Example: Spread 10 s, 10,000 tasks due at 12:00:00.000. One whose id hashes to 0.75 of the
// range of hashes is delivered at 12:00:07.500, and late from then on.

// Offset is how far into a window of that length an id has its place, in milliseconds. It
// is less than the window, and evenly distributed, wherever the ids come from.
func Offset(id []byte, window time.Duration) int64 {
	part, _ := bits.Mul64(xxhash.Sum64(id), uint64(window.Milliseconds()))
	return int64(part)
}

// enterWindow gives a task whose deadline has come its place in the window of its topic. It
// reports false if the task does not go there: it has its place already, or its next
// attempt is not the first one, or was asked for by Fire.
func (t *Topic) enterWindow(b *store.Store, sl *store.Slot) bool {
	rec := b.Record(sl)
	if sl.Flags&(store.Windowed|store.Prompt) != 0 || record.Attempt(rec) != 0 || record.Next(rec) != record.Due(rec) {
		return false
	}
	sl.Next += Offset(b.ID(sl), t.Settings.Spread)
	sl.Flags |= store.Windowed
	return true
}

// leaveWindow takes a task out of its place: its time is that of its record again.
func leaveWindow(b *store.Store, sl *store.Slot) {
	if sl.Flags.IsWindowed() {
		sl.Next = record.Next(b.Record(sl))
		sl.Flags &^= store.Windowed
	}
}

// deadline returns the time from which the lateness of a delivery is measured, in Unix ms.
// first says that it is the first delivery of the task.
func (t *Topic) deadline(b *store.Store, sl *store.Slot, first bool) int64 {
	due := record.Due(b.Record(sl))
	switch {
	case sl.Flags.IsWindowed():
		return sl.Next
	case t.Settings.Spread == 0:
		return due
	case first:
		return sl.Next // of one that Fire was asked for, the time of that
	}
	return due + Offset(b.ID(sl), t.Settings.Spread)
}

// isTooLate reports whether a task has passed its max_lateness.
func (t *Topic) isTooLate(b *store.Store, sl *store.Slot, now int64) bool {
	rec := b.Record(sl)
	if record.Flags(rec)&record.HasMaxLateness == 0 {
		return false
	}
	f, err := record.Decode(rec)
	return err == nil && now-t.deadline(b, sl, f.Attempt == 0) > f.MaxLateness
}
