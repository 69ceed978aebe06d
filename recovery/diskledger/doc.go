// Package diskledger keeps the record of a node's tasks in a directory on the
// local disk, in a Pebble store. It is for one machine without Redis, and it is
// the default.
//
// Records are ordered by the time of their next attempt, so that replay reads
// the oldest first and what is delivered goes away at the front; layout.go has
// every key byte by byte. The directory belongs to one process at a time, by a
// file lock. Its file LAPSE tells the layout, and that there must be a store
// beside it: a directory that lost files is refused, never taken for an empty
// one.
//
// # When the disk fails
//
// Pebble ends the process when a write to its log or its manifest fails, and if
// its logger does not let it, it answers nil: silent loss. So Pebble never
// learns of a failed write. A [fence] between it and the files takes note of the
// first one, and from that moment nothing that this instance of Pebble does
// reaches the disk, and nothing that it answers is believed. The ledger refuses
// everything (the batch under way has an open outcome), closes the instance, and
// opens the directory anew in the background, until that succeeds; the committer
// repeats its batch meanwhile. What was confirmed before stays.
//
// What can fail: Adopt, with recovery.ErrHeld, recovery.ErrLayout or why the
// directory cannot be read; every method, while the directory is being opened
// anew; Condition, with recovery.ErrFull, while the disk is running full, and with another
// error while the directory is gone or compaction is too far behind (pressure.go).
package diskledger
