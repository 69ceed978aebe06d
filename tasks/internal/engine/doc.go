// Package engine is one node: the life of its tasks from their creation to their end.
//
// It owns what this node has in memory, under one mutex: the tasks, the topics, the open
// deliveries and the terms of the shards. It writes to the ledger, arms the wheel, hands ready
// tasks to workers and receivers, settles, sweeps, audits, replays and spools.
//
// It calls the wheel, the ledger and its committer, and packages store, receipt, record, query and
// task. Package dispatch decides who may take how many ready tasks, and package coalesce which
// misfired tasks of a group; the engine carries that out. The other packages below it keep what is
// theirs: who is dead, events, failures, counts by the minute, deadlines of calls, the life of the
// process.
// It knows nothing of the calls between nodes. What its tasks and shards mean to other nodes it
// tells the Cluster.
//
// What can fail: the ledger refuses or does not answer (task.ErrUnavailable, task.ErrUnknown), a
// shard is another node's (ErrNotHeld), or the request does not fit the state of its task.
//
// # Locks
//
// Functions whose names end with Locked are called with mu held. Under it the wheel, the committer
// and the feed of events may be called, each with a lock of its own that it never holds while
// calling back, but for Config.Clock, the Locked methods of the Cluster, and ShardID and Standing
// of the Fleet: none of them waits. No handler, observer or round trip to the ledger is under it.
// unlock tells the observer what has happened, after it has released mu. No function whose name
// ends with Locked releases mu: what waits for the ledger or for a task takes mu itself, before and
// after (run, Pull, Queue).
//
// # The life of a task
//
// docs/internals/protocol.md, section 1, has the states of a task, and what each change writes. A
// task is busy while a write for its id is under way. A busy task is not delivered and admits no
// second operation; others wait for it, so that two writes of one id can never swap. Section 8 has
// the stages of a shard, from acquired to evicting.
//
// A retry is armed at once and recorded as soon as the ledger answers. Ends that leave a record
// wait for room in the ledger, once it has none (heldback.go). An attempt is recorded before it
// begins only in topics that count crashes. Dead tasks live in the ledger, not in memory. What has
// become of finished tasks is remembered for the last 65,536 of them, so that a repeated cancel or
// acknowledgement gets the answer of the first.
//
// # The sweep
//
// Every task.Config.SweepEvery it fires what the wheel should have fired, searches a part
// of memory for overdue tasks that the wheel has lost, takes back deliveries whose lease
// has run out, wakes receivers that were missed, and compares a slice of memory with the
// ledger. Once it has found a lost task it searches all of memory, until it finds none.
// Outside a fault SweepStats.Rescued, MissedWakes and AuditRepaired stay zero.
//
// At the times in task.Config.SweepAt a full sweep does all that for the whole of memory. Its
// audit goes slice by slice and rests in between for nine times as long as the ledger
// took to answer: it takes minutes for millions of tasks, and no caller waits for it.
//
// When more than task.Config.SweepBacklog ready tasks wait for this process to deliver them,
// a sweep runs at once, and topics whose concurrency is not set rise to
// task.Config.SweepMaxConcurrency, as long as workers and deliveries left to receipts
// together are fewer than task.Config.MaxInFlight. The first periodic sweep
// that finds no more than half of SweepBacklog waiting ends that.
//
// In the same period the dead of each topic that have been so for task.TopicSettings.DeadRetention
// are deleted, the longest dead first and at most 10,000 at a time. Memory knows of every
// topic when the first of its dead died, and asks the ledger only when that one has to go.
//
// # Where ten million tasks live
//
// Every task in memory is a slot of 48 bytes, a record in an arena (the very
// bytes that the ledger holds), an entry in an index of ids and an entry in the
// wheel. None of them contains a pointer: the collector has nothing to mark. Those
// that share a group are linked through the arena; the others pay nothing for that.
package engine
