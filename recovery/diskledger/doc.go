// Package diskledger keeps the record of a node's tasks in a directory on the
// local disk. It is for one machine without Redis, and it is the default.
//
// A batch is one frame of a journal, written and synced once. What the journal is too short for, a
// Pebble store has:
//
//	Apply    journal, sync ──► young: where in the journal each pending record is
//	                      └──► store: dead records, settings, removals of what is not young
//	retire   old segments of the journal: what is still young ──► store, flushed; they are free
//	Adopt    store, and the journal on top of it ──► store; the journal begins anew
//
// Most tasks end young: then neither their record nor its removal ever reaches the store. The store
// has no log. It loses nothing by that, as a segment is free only when the store has written to
// tables whatever that segment has done to it, and as a replay of all later segments, in order,
// leads to the same end from whichever of these states the store is in.
//
// Records of the store are ordered by the time of their next attempt, so that replay reads the
// oldest first; layout.go has every key byte by byte. The directory
// belongs to one process at a time, by a file lock. Its file LAPSE has the layout, and says that a
// store must be beside it: a directory that lost files is refused, never taken for an empty one.
//
// # When the disk fails
//
// Pebble ends the process when a write to its manifest fails. So it never learns of a failed write.
// A [fence] between the files and both Pebble and the journal notes the first one. From that moment
// nothing that this instance does reaches the disk, and none of its answers is used. The ledger
// refuses all calls (the batch under way has an open outcome), closes the instance, and opens the
// directory anew in the background, until that succeeds; the committer repeats its batch meanwhile.
// What was confirmed before stays.
//
// It owns the directory and the one open instance of Pebble. It calls packages recovery and journal
// and Pebble, and knows neither tasks nor other ledgers.
//
// What can fail: Adopt, with recovery.ErrHeld, recovery.ErrLayout or why the directory cannot be
// read; every method, while the directory is being opened anew; Condition, with recovery.ErrFull,
// while the disk is running full (space.go), and with another error while the directory is gone or
// compaction is too far behind (pressure.go).
package diskledger
