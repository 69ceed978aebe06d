// Package memshard keeps the records of one shard in memory, for memledger and for the fleet of
// tests.
//
// It owns nothing beside the maps of a [Shard], which have no lock: the caller has one. It calls
// package recovery only, and cannot fail. With strict, [Shard.Apply] panics at a change whose
// record is elsewhere.
package memshard
