// Package diskledger keeps the record of a node's tasks in a directory on the
// local disk, in a Pebble store. It is for one machine without Redis, and it is
// the default.
//
// Records are ordered by the time of their next attempt, so that replay reads the oldest first and
// delivered records are deleted at the front; layout.go has every key byte by byte. The directory
// belongs to one process at a time, by a file lock. Its file LAPSE has the layout, and says that a
// store must be beside it: a directory that lost files is refused, never taken for an empty one.
//
// # When the disk fails
//
// Pebble ends the process when a write to its log or its manifest fails. If its logger prevents
// that, Pebble returns nil: silent loss. So Pebble never learns of a failed write. A [fence]
// between it and the files notes the first one. From that moment nothing that this instance of
// Pebble does reaches the disk, and none of its answers is used. The ledger refuses all calls (the
// batch under way has an open outcome), closes the instance, and opens the directory anew in the
// background, until that succeeds; the committer repeats its batch meanwhile. What was confirmed
// before stays.
//
// It owns the directory and the one open instance of Pebble. It calls package recovery and Pebble,
// and knows neither tasks nor other ledgers.
//
// What can fail: Adopt, with recovery.ErrHeld, recovery.ErrLayout or why the directory cannot be
// read; every method, while the directory is being opened anew; Condition, with recovery.ErrFull,
// while the disk is running full (space.go), and with another error while the directory is gone or
// compaction is too far behind (pressure.go).
package diskledger
