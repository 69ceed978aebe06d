package cluster

import (
	"context"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// ReturnUnused returns deliveries to the nodes that they came from; while Close runs, to the owners
// of their shards. A task whose delivery cannot be returned is ready again when its lease is over.
// It may be called with Engine.mu held.
func (s *Cluster) ReturnUnused(ds []*engine.Delivery) {
	if !s.engine.Life.Enter() {
		s.ReturnMoved(ds)
		return
	}
	defer s.engine.Life.Handlers.Done()
	for _, d := range ds {
		s.returnTo(target{node: d.Source.Node}, d.Receipt())
	}
}

// ReturnMoved returns deliveries to the nodes that own their shards now, or will in a moment.
func (s *Cluster) ReturnMoved(ds []*engine.Delivery) {
	for _, d := range ds {
		s.returnToOwner(d.Receipt())
	}
}

func (s *Cluster) returnToOwner(receipt string) {
	if r, err := s.engine.Signer.Parse(receipt); err == nil {
		s.returnTo(target{shardID: r.ShardID}, receipt)
	}
}

func (s *Cluster) returnTo(to target, receipt string) {
	until := s.engine.Elapsed() + s.engine.Config.AnswerWithin
	s.forward(to, settlement{OffloadOutcome{Receipt: receipt, Verb: task.Return}, until})
}

// takeBack takes back deliveries that were handed out here, which a node has not used. It returns
// engine.ErrHandedOver if one of them is not open here any more: then they have to be returned to
// the owners of their shards.
func (s *Cluster) takeBack(ctx context.Context, from string, receipts []string) error {
	var told OutcomesQuery
	for _, text := range receipts {
		told.Outcomes = append(told.Outcomes, OffloadOutcome{Receipt: text, Verb: task.Return})
	}
	a, err := s.handleOutcomes(ctx, from, told)
	if slices.ContainsFunc(a.Faults, func(f WireError) bool { return f.Code != "" }) {
		err = engine.ErrHandedOver
	}
	return err
}
