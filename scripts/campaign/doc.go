// Package campaign searches for broken promises of many nodes without a prepared scenario: with
// seeded calls, seeded faults, and a judge that knows only the answers. It consists of tests.
//
// A seed gives one run of a fleet on a Redis of its own:
//
//	plan       which faults meet, at which node or Redis, for how long, and which features callers
//	           prefer meanwhile
//	callers    use the features, at any node
//	receivers  reserve, acknowledge, release, extend, bury, at any node; requeue the dead
//	finish     all faults end, everything is delivered, all nodes are killed once more
//	judgement  [crash.Bench] compares the history with the promises; what features promise beside
//	           those, they judge themselves; tasks and keys that several callers use at a time are
//	           checked for linearizability
//
// Faults are described in one table (faultlist_test.go), features in another (features_test.go):
// the name, what it does, how it is done, and what it excuses by the documentation. A plan combines
// each fault with each. The plans of 20 seeds in a row, such as 1-20, complete each other: each
// begins with the pairs that those before it have tried least. At the end a matrix shows how often
// each feature was used during each fault, and how often a promise was broken.
//
// Every call with its answer, and every fault with its instants, goes into the history and into a
// file. A violation that a fault explains is listed as excused; [crash.Bench] says which. The plan
// and the mix of calls follow from the seed. The instants do not, since servers, kernel and network
// vary: the same seed finds the same class of faults again, not the same microsecond.
//
// # Lost writes of Redis
//
// Redis is put back to an older file, fails over to a server that was behind, or is emptied, while
// other faults are under way. As long as some process has the lost writes in memory, Lapse promises
// (docs/internals/protocol.md, section 4) that nothing is lost: a task that was accepted, moved,
// cancelled, acknowledged or buried stays so. A node that hands over keeps what it had until the
// new owner has it, so a hand-over explains nothing. A process that is killed between the loss and
// its discovery explains what became of the tasks that were changed in the lost time; so does a
// process that was ended without a hand-over, or out of touch until others took its shards over. A
// task that was both accepted and buried in the lost time is lost with its record if its process
// has ended, or its shard has moved, since its death. The record of a dead task that was requeued
// may come back and be listed again; when it is requeued again, the delivery that follows was
// requested.
//
// # Other faults
//
// Waits are bounded. A node that does not become ready, a drain without an end, a process that ends
// by itself, a panic in its log, an answer that no route documents, and a task that is not
// delivered within the bound are faults like a broken promise.
//
// Plan, matrix and judge are tested by `make test`. The campaign itself needs the build tag
// `fault`: `make campaign`, and a short seed in `make fault`. CONTRIBUTING.md says how to run it
// and how to read what it prints.
package campaign
