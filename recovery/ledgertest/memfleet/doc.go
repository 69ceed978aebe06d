// Package memfleet is a [recovery.Fleet] in memory: several nodes of one process that share
// shards. It is for tests only, of code that works with a fleet.
//
// It owns the shards, the directory and the messages of all its nodes, under one mutex. It calls
// packages recovery, memshard, and memledger for the settings. Nothing in it depends on time: the
// test says which node dies, adopts, is cut off or is uncertain.
//
// # What can fail
//
// The calls of a node that has crashed or is cut off, as those of a real one do, and what the test
// lets fail with the methods of [Fleet] and [Member].
package memfleet
