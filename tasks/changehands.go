package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
)

// How nodes ask one another for shards. A node that needs a shard asks its holder to yield it.
// A node that wants to be rid of one asks another node to take it, which then asks for it. Both
// may be repeated: for a shard that has already changed hands the call succeeds.
var (
	yieldQuestion = question[homeAsk, struct{}]{verb: "yield", writes: true}
	takeQuestion  = question[homeAsk, struct{}]{verb: "take", writes: true}
)

// A homeAsk is about one shard.
type homeAsk struct{ Home recovery.Home }

// answerYield hands a shard over to the node that asks. A node that has not filed all its ids
// keeps its shards until then: no other node would know where the ids are.
func (s *Scheduler) answerYield(ctx context.Context, from string, q homeAsk) (struct{}, error) {
	if !s.isIndexed() {
		return struct{}{}, fmt.Errorf("%w: its ids are being filed", errHandedOver)
	}
	return struct{}{}, s.yield(ctx, q.Home, from)
}

func (s *Scheduler) answerTake(ctx context.Context, from string, q homeAsk) (struct{}, error) {
	return struct{}{}, s.take(ctx, q.Home, from)
}

// startPeerCalls lets this node ask others for what it cannot do by itself.
func (s *Scheduler) startPeerCalls() {
	about := func(v question[homeAsk, struct{}]) func(ctx context.Context, node string, home recovery.Home) error {
		return func(ctx context.Context, node string, home recovery.Home) error {
			_, err := ask(ctx, s, node, v, homeAsk{home})
			return err
		}
	}
	if s.peerCalls.askYield == nil {
		s.peerCalls.askYield = about(yieldQuestion)
	}
	if s.peerCalls.askTake == nil {
		s.peerCalls.askTake = about(takeQuestion)
	}
	if s.peerCalls.settle == nil {
		s.peerCalls.settle = func(ctx context.Context, _ recovery.Home, v Verdict, receipt string) error {
			return s.settleElsewhere(ctx, v, receipt)
		}
	}
}
