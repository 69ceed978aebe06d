package recovery

import "context"

// A KeyLister is a ledger whose storage has the records of a node under keys that people can look
// at. It is optional.
type KeyLister interface {
	// Stored returns where the first shards of a node are, by index. It reads a count and an owner
	// for each. Errors: those of the storage.
	Stored(ctx context.Context, node string, shards int) ([]StoredShard, error)
}

// A StoredShard is where the storage keeps a shard, and how much of it.
type StoredShard struct {
	Pending string // key of the set of the ids of unfinished tasks
	Tasks   string // key of their records
	Count   int64  // unfinished tasks
	Owner   string // the node that has the shard now; empty: none, or it could not be read
}
