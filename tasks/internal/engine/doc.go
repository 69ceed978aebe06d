// Package engine is one node: the life of its tasks from their creation to their end.
//
// It owns what this node has in memory, under one mutex: the tasks, the topics, the open
// deliveries and the terms of the shards. It writes to the ledger, arms the wheel, hands ready
// tasks to workers and receivers, settles, sweeps, audits, replays and spools.
//
// It calls the wheel, the committer of the ledger, and packages store, receipt, record and task.
// It knows nothing of the calls between nodes. What its tasks and shards mean to other nodes it
// tells the Cluster, whose methods never wait. Under the mutex only the wheel, the committer and
// the feed of events are called.
//
// What can fail: the ledger refuses or does not answer (task.ErrUnavailable, task.ErrUnknown), a
// shard is another node's (ErrNotHeld), or the request does not fit the state of its task.
package engine
