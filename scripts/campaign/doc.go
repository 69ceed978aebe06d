// Package campaign searches for broken promises of many nodes without a prepared scenario: with
// seeded calls, seeded faults, and a judge that knows only the answers.
//
// A seed gives one run of a fleet on a Redis of its own:
//
//	plan       which fault hits which node, or Redis, in which order and for how long
//	callers    schedule, move, replace, fire, cancel, list, at any node
//	receivers  reserve, acknowledge, release, extend, bury, at any node; requeue the dead
//	finish     all faults end, everything is delivered, all nodes are killed once more
//	judgement  [crash.Bench] compares the history with the promises
//
// Every call with its answer, and every fault with its instants, goes into the history and into a
// file. A violation that a fault explains is listed as excused; [crash.Bench] says which. The plan
// and the mix of calls follow from the seed. The instants do not, since servers, kernel and network
// vary: the same seed finds the same class of faults again, not the same microsecond.
//
// # Lost writes of Redis
//
// Redis is put back to an older file, or fails over to a replica that was behind, while all nodes
// live and none is stopped, cut off or restarted until they have noticed. Under that condition
// Lapse promises (docs/protocol.md, section 4) that nothing is lost: a task that was accepted,
// moved, cancelled, acknowledged or buried after the older file's moment stays so, since the memory
// of the nodes makes up for the loss. So the judge excuses nothing by such a loss except this: the
// records of the dead are not in memory, so a task that was both accepted and buried after the
// older file's moment is lost with it. The record of a dead task that was requeued may come back
// and be listed again; when it is requeued again, the delivery that follows was requested.
//
// # Other faults
//
// Waits are bounded. A node that does not become ready, a drain without an end, a process that ends
// by itself, a panic in its log, an answer that no route documents, and a task that is not
// delivered within the bound are faults like a broken promise.
//
// The plan and the judge are tested by `make test`. The campaign itself needs the build tag
// `fault`: `make campaign`, and a short seed in `make fault`.
package campaign
