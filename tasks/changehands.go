package tasks

import (
	"context"

	"github.com/lapsehq/lapse/recovery"
)

// How nodes ask one another for shards: who wants one asks its holder to yield it, and who
// wants to be rid of one asks another node to take it, which then asks for it. Both may
// be asked again: what has changed hands already is answered as such.
var (
	yieldQuestion = question[shardAsk, shardAnswer]{verb: "yield", writes: true}
	takeQuestion  = question[shardAsk, shardAnswer]{verb: "take", writes: true}
)

// A shardAsk is about one shard, and shardAnswer says that it was done.
type (
	shardAsk    struct{ Home recovery.Home }
	shardAnswer struct{}
)

func (s *Scheduler) answerYield(ctx context.Context, from string, q shardAsk) (shardAnswer, error) {
	return shardAnswer{}, s.yield(ctx, q.Home, from)
}

func (s *Scheduler) answerTake(ctx context.Context, from string, q shardAsk) (shardAnswer, error) {
	return shardAnswer{}, s.take(ctx, q.Home, from)
}

func (s *Scheduler) askYield(ctx context.Context, node string, home recovery.Home) error {
	_, err := ask(ctx, s, node, yieldQuestion, shardAsk{home})
	return err
}

func (s *Scheduler) askTake(ctx context.Context, node string, home recovery.Home) error {
	_, err := ask(ctx, s, node, takeQuestion, shardAsk{home})
	return err
}
