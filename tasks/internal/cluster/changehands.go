package cluster

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// How nodes hand shards over. A node that needs a shard asks its holder to release it.
// A node that wants to be rid of one asks another node to take it, which then asks for it. Both
// may be repeated: for a shard that has already changed hands the call succeeds.
var (
	ReleaseMethod    = Method[shardQuery, struct{}]{Name: "yield", writes: true}
	OfferShardMethod = Method[shardQuery, struct{}]{Name: "take", writes: true}
	ReadAheadMethod  = Method[readAheadQuery, struct{}]{Name: "read_ahead"}
)

// A shardQuery is about one shard.
type shardQuery struct {
	ShardID recovery.ShardID `json:"Home"`
}

// A readAheadQuery is about a shard that is about to change hands, at a position.
type readAheadQuery struct {
	ShardID  recovery.ShardID
	Position string
}

// handleRelease hands a shard over to the node that asks. A node that has not registered all its
// ids keeps its shards until then: no other node would know where the ids are.
func (s *Cluster) handleRelease(ctx context.Context, from string, q shardQuery) (struct{}, error) {
	if !s.IsIndexed() {
		return struct{}{}, task.KindOf(engine.ErrHandedOver, "shard stays: its ids are being registered; retry")
	}
	return struct{}{}, s.engine.ReleaseShard(ctx, q.ShardID, from)
}

func (s *Cluster) handleOfferShard(ctx context.Context, from string, q shardQuery) (struct{}, error) {
	return struct{}{}, s.AcceptOffer(ctx, q.ShardID, from)
}

func (s *Cluster) handleReadAhead(ctx context.Context, _ string, q readAheadQuery) (struct{}, error) {
	return struct{}{}, s.engine.ReadAhead(ctx, q.ShardID, q.Position)
}

// startPeerCalls sets the calls to other nodes that are not set yet.
func (s *Cluster) startPeerCalls() {
	about := func(v Method[shardQuery, struct{}]) func(ctx context.Context, node string, shardID recovery.ShardID) error {
		return func(ctx context.Context, node string, shardID recovery.ShardID) error {
			_, err := Call(ctx, s, node, v, shardQuery{shardID})
			return err
		}
	}
	if s.peerCalls.CallRelease == nil {
		s.peerCalls.CallRelease = about(ReleaseMethod)
	}
	if s.peerCalls.CallOfferShard == nil {
		s.peerCalls.CallOfferShard = about(OfferShardMethod)
	}
	if s.peerCalls.CallReadAhead == nil {
		s.peerCalls.CallReadAhead = func(ctx context.Context, node string, shardID recovery.ShardID, position string) error {
			_, err := Call(ctx, s, node, ReadAheadMethod, readAheadQuery{shardID, position})
			return err
		}
	}
	if s.peerCalls.Settle == nil {
		s.peerCalls.Settle = func(ctx context.Context, _ recovery.ShardID, v task.Verdict, receipts []string) ([]task.Settled, error) {
			return s.settleAnywhere(ctx, v, receipts)
		}
	}
}

// PeerCalls are calls that have other nodes do what this node cannot do by itself. Each may be nil:
// then no node is asked. None of them is called under a lock.
type PeerCalls struct {
	// CallRelease has a node release a shard to this one. It returns once the shard was
	// transferred, or the reason why not. The other node calls Engine.ReleaseShard.
	CallRelease func(ctx context.Context, node string, shardID recovery.ShardID) error
	// CallOfferShard has a node ask for a shard that this one holds, and accept it. It returns
	// once it was accepted, or the reason why not. The other node calls Cluster.AcceptOffer.
	CallOfferShard func(ctx context.Context, node string, shardID recovery.ShardID) error
	// CallReadAhead has a node read a shard before it is transferred there. It returns once the
	// node has it in memory, or the reason why not. The other node calls Engine.ReadAhead.
	CallReadAhead func(ctx context.Context, node string, shardID recovery.ShardID, position string) error
	// Settle has the owner of a shard settle deliveries by their receipts. The other node calls
	// handleSettle. ErrUnavailable, ErrUnknown and ErrReplaying, of all or of one, mean that it is
	// worth another attempt.
	Settle func(ctx context.Context, shardID recovery.ShardID, v task.Verdict, receipts []string) ([]task.Settled, error)
}
