package tasks

import (
	"context"
	"fmt"

	"github.com/lapsehq/lapse/recovery"
)

// How nodes ask one another for shards: who wants one asks its holder to yield it, and who
// wants to be rid of one asks another node to take it, which then asks for it. Both may
// be asked again: what has changed hands already is answered as such.
var (
	yieldQuestion = question[homeAsk, struct{}]{verb: "yield", writes: true}
	takeQuestion  = question[homeAsk, struct{}]{verb: "take", writes: true}
)

// A homeAsk is about one shard.
type homeAsk struct{ Home recovery.Home }

// answerYield hands a shard over to the node that asks. One that has not filed all its ids
// keeps what it has until then: where they are would be known to nobody.
func (s *Scheduler) answerYield(ctx context.Context, from string, q homeAsk) (struct{}, error) {
	if !s.isIndexed() {
		return struct{}{}, fmt.Errorf("%w: its ids are being filed", errHandedOver)
	}
	return struct{}{}, s.yield(ctx, q.Home, from)
}

func (s *Scheduler) answerTake(ctx context.Context, from string, q homeAsk) (struct{}, error) {
	return struct{}{}, s.take(ctx, q.Home, from)
}

// befriend lets this node ask others for what it cannot do by itself.
func (s *Scheduler) befriend() {
	about := func(v question[homeAsk, struct{}]) func(ctx context.Context, node string, home recovery.Home) error {
		return func(ctx context.Context, node string, home recovery.Home) error {
			_, err := ask(ctx, s, node, v, homeAsk{home})
			return err
		}
	}
	if s.peers.askYield == nil {
		s.peers.askYield = about(yieldQuestion)
	}
	if s.peers.askTake == nil {
		s.peers.askTake = about(takeQuestion)
	}
	if s.peers.settle == nil {
		s.peers.settle = func(ctx context.Context, _ recovery.Home, v Verdict, receipt string) error {
			return s.settleElsewhere(ctx, v, receipt)
		}
	}
}
