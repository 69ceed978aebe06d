package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
	"github.com/lapsehq/lapse/tasks/internal/engine"
)

// How nodes hand shards over. A node that needs a shard asks its holder to release it.
// A node that wants to be rid of one asks another node to take it, which then asks for it. Both
// may be repeated: for a shard that has already changed hands the call succeeds.
var (
	releaseMethod    = method[homeQuery, struct{}]{name: "yield", writes: true}
	offerShardMethod = method[homeQuery, struct{}]{name: "take", writes: true}
)

// A homeQuery is about one shard.
type homeQuery struct{ Home recovery.Home }

// handleRelease hands a shard over to the node that asks. A node that has not filed all its ids
// keeps its shards until then: no other node would know where the ids are.
func (s *cluster) handleRelease(ctx context.Context, from string, q homeQuery) (struct{}, error) {
	if !s.isIndexed() {
		return struct{}{}, fmt.Errorf("%w: its ids are being filed", engine.ErrHandedOver)
	}
	return struct{}{}, s.engine.ReleaseShard(ctx, q.Home, from)
}

func (s *cluster) handleOfferShard(ctx context.Context, from string, q homeQuery) (struct{}, error) {
	return struct{}{}, s.acceptOffer(ctx, q.Home, from)
}

// startPeerCalls lets this node ask others for what it cannot do by itself.
func (s *cluster) startPeerCalls() {
	about := func(v method[homeQuery, struct{}]) func(ctx context.Context, node string, shardID recovery.Home) error {
		return func(ctx context.Context, node string, shardID recovery.Home) error {
			_, err := call(ctx, s, node, v, homeQuery{shardID})
			return err
		}
	}
	if s.peerCalls.callRelease == nil {
		s.peerCalls.callRelease = about(releaseMethod)
	}
	if s.peerCalls.callOfferShard == nil {
		s.peerCalls.callOfferShard = about(offerShardMethod)
	}
	if s.peerCalls.settle == nil {
		s.peerCalls.settle = func(ctx context.Context, _ recovery.Home, v Verdict, receipt string) error {
			return s.settleElsewhere(ctx, v, receipt)
		}
	}
}
