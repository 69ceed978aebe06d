package cluster

import (
	"context"
	"slices"

	"github.com/lapsehq/lapse/tasks/internal/engine"
	"github.com/lapsehq/lapse/tasks/task"
)

// ReturnUnusedLocked returns deliveries to the nodes that they came from; while Close runs, to the
// owners of their shards. A task whose delivery cannot be returned is ready again when its lease is
// over.
func (s *Cluster) ReturnUnusedLocked(ds []*engine.Delivery) {
	for _, d := range ds {
		if s.engine.Ended {
			s.ReturnToOwnerLocked([]string{d.Receipt()})
		} else {
			s.returnLocked(target{node: d.Source.Node}, d.Receipt())
		}
	}
}

// ReturnToOwnerLocked returns deliveries to the nodes that own their shards now, or will in a
// moment.
func (s *Cluster) ReturnToOwnerLocked(receipts []string) {
	for _, text := range receipts {
		if r, err := s.engine.Signer.Parse(text); err == nil {
			s.returnLocked(target{shardID: r.ShardID}, text)
		}
	}
}

func (s *Cluster) returnLocked(to target, receipt string) {
	until := s.engine.Elapsed() + s.engine.Config.AnswerWithin
	s.forwardLocked(to, settlement{OffloadOutcome{Receipt: receipt, Verb: task.Return}, until})
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
