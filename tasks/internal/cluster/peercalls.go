package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/task"
)

// PeerCalls are how this node asks others for what it cannot do by itself. Each may be nil:
// then no node is asked. None of them is called under a lock.
type PeerCalls struct {
	// CallRelease has a node release a shard to this one. It returns once the shard was
	// transferred, or the reason why not. The other node calls Engine.ReleaseShard.
	CallRelease func(ctx context.Context, node string, shardID recovery.ShardID) error
	// CallOfferShard has a node ask for a shard that this one holds, and accept it. It returns
	// once it was accepted, or the reason why not. The other node calls Cluster.AcceptOffer.
	CallOfferShard func(ctx context.Context, node string, shardID recovery.ShardID) error
	// Settle has the owner of a shard settle deliveries by their receipts. The other node calls
	// handleSettle. ErrUnavailable, ErrUnknown and ErrReplaying, of all or of one, mean that it is
	// worth another attempt.
	Settle func(ctx context.Context, shardID recovery.ShardID, v task.Verdict, receipts []string) ([]task.Settled, error)
}
