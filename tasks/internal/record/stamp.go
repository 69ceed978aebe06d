package record

import (
	"math/rand/v2"
	"time"
)

// A stamp tells an action on many tasks from all others, and which of two began first: the
// milliseconds since 1970 at which it began, and below them stampNoise random bits. Its cursor has
// it. Each task that the action changes has it in its record, written together with the change.
// Other changes leave it there. So an action that meets a task once more knows what became of it,
// whatever node asks, and whatever became of the nodes in between:
//
//	stamp of the task     the action
//	none, or a lower one  changes it
//	that of the action    has done so already
//	a higher one          is refused: an action that began later has changed it
//
// For example: one action begins to shift tasks by an hour, another one 1 ms later by a day. Both
// reach task t, the first one first, and t moves by 25 hours. The call of the first one comes
// again, since its answer was lost: the stamp of t is higher, and the call is refused. It could not
// know whether t still needs its hour.
//
// Two nodes whose actions begin in the same millisecond draw the same bits once in four million
// times. The milliseconds suffice until the year 2109.
const stampNoise = 22

// createdStep bounds how far, in nanoseconds, two times of creation of one millisecond lie apart.
const createdStep = 1000

// NewCreated returns a time of creation, in Unix nanoseconds, for a task that is created now, after
// the one that this process has created last. What is below the millisecond is random. The time is
// a part of a task's identity: it tells the task from an earlier or later one under the same id,
// also if both were created within a millisecond. It grows unless the clock is set back by more
// than a second.
func NewCreated(now time.Time, last int64) int64 {
	begins := now.UnixMilli() * int64(time.Millisecond)
	if ahead := last - begins; ahead >= 0 && ahead < int64(time.Second) {
		return last + 1 + rand.Int64N(createdStep)
	}
	return begins + rand.Int64N(int64(time.Millisecond))
}

// LowestStamp returns the lowest stamp of a moment.
func LowestStamp(now time.Time) uint64 { return uint64(max(now.UnixMilli(), 0)) << stampNoise }

// NewStamp returns a stamp of an action that begins now.
func NewStamp(now time.Time) uint64 { return LowestStamp(now) + rand.Uint64N(1<<stampNoise) }

// StampedAt returns when the action of a stamp began, by the clock of its node.
func StampedAt(stamp uint64) time.Time { return time.UnixMilli(int64(stamp >> stampNoise)) }

// Stamp returns that of the last action that has changed the task; 0: none has.
func Stamp(rec []byte) uint64 {
	if Flags(rec)&hasStamp == 0 {
		return 0
	}
	f, err := Decode(rec)
	if err != nil {
		return 0 // the record was checked when it was read
	}
	return f.Stamp
}
