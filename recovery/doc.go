// Package recovery is what survives a crash: the durable record of the tasks
// that a node still owes.
//
// The record is kept by a [Ledger]. This package knows what every ledger has
// in common, whether it is Redis or a store on the local disk:
//
//   - [Committer] is the only writer. Concurrent callers share one round trip
//     or one fsync: whatever has gathered while the last commit was under way
//     goes with the next one. A batch that was not answered is sent again,
//     unchanged, and nothing overtakes it.
//   - [Replay] reads a ledger's pending records back into memory after a start.
//   - [Audit] compares memory with the ledger while the node runs, a slice at
//     a time.
//
// A record is opaque here: an id, the time of its next attempt, and bytes that
// the caller encodes. It stands in one of two places, among the pending or
// among the dead, and every write is a [Change] that takes one record from
// where it stands to where it shall stand. Because one writer owns a shard and
// all decisions are taken in that writer's memory, no change carries a
// condition: applied twice in order, it has the effect of being applied once.
//
// It owns the contract of ledgers, the queues of changes that are not committed yet, and the IDs of
// shards. It calls no other package of Lapse: neither a ledger nor the wheel nor anything that
// knows a task.
//
// What can fail: a ledger may be held by another process ([ErrHeld]), may have
// refused what was new in a batch for want of room ([ErrFull]), may have passed
// to another owner ([ErrLost], which is final), or may be out of reach and have
// left the outcome of a batch open (any other error of Apply, after which the
// committer repeats the batch).
package recovery
