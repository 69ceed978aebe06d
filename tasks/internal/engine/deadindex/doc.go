// Package deadindex is what a node knows of the tasks that its ledger has at the place of the dead:
// those that are dead, and the finished ones that are kept.
//
// The ledger has their records, and may lose them. The index has the hashes of their ids, by node
// and by shard, when the first of a topic died, the records of the last that were buried, as far as
// there is room, and whether all that is to be compared with the ledger.
//
// It is passive: it calls no ledger and reads no clock, and the caller guards it with a mutex of
// its own. Nothing in it can fail.
package deadindex
